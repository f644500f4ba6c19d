"""All-reduce that you can read, prove, tune and trust.

Ring and tree all-reduce written on mpi4py's point-to-point messages and validated against MPI_Allreduce. Importing this
package neither needs an MPI library nor starts MPI.
"""

from typing import TYPE_CHECKING, Any

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.collectives import allreduce, allreduce_init, iallreduce
from hpcreduce.errors import (
    BrokenCommunicatorError,
    CollectiveTimeoutError,
    DumpError,
    FiguresError,
    HpcreduceError,
    LaunchError,
    MismatchError,
    NetworkError,
    PeerError,
    ProofError,
)
from hpcreduce.explanation import explain
from hpcreduce.guarding import guard
from hpcreduce.many import Fused, allreduce_many
from hpcreduce.related import allgather, bcast, reduce, reduce_scatter
from hpcreduce.runtime import departure
from hpcreduce.runtime.operations import OPERATIONS
from hpcreduce.runtime.plan import Plan
from hpcreduce.sharing import empty, free, share, zeros

if TYPE_CHECKING:
    from hpcreduce.intracomm import Intracomm

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "OPERATIONS",
    "BrokenCommunicatorError",
    "CollectiveTimeoutError",
    "DumpError",
    "FiguresError",
    "Fused",
    "HpcreduceError",
    "Intracomm",
    "LaunchError",
    "MismatchError",
    "NetworkError",
    "PeerError",
    "Plan",
    "ProofError",
    "__version__",
    "allgather",
    "allreduce",
    "allreduce_init",
    "allreduce_many",
    "bcast",
    "empty",
    "explain",
    "free",
    "guard",
    "iallreduce",
    "reduce",
    "reduce_scatter",
    "share",
    "zeros",
]


departure.watch()


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import what is a subclass of mpi4py's on first use, since that starts MPI, and what few programs need."""
    if name == "stats":
        import importlib

        return importlib.import_module("hpcreduce.stats")
    if name != "Intracomm":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hpcreduce.intracomm import Intracomm

    return Intracomm
