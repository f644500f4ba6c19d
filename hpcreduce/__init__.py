"""All-reduce that you can read, prove, tune and trust.

Ring and tree all-reduce written on mpi4py's point-to-point messages and validated against MPI_Allreduce. Importing this
package neither needs an MPI library nor starts MPI.
"""

import importlib
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
    NonFiniteError,
    PeerError,
    ProofError,
    ReplicaError,
)
from hpcreduce.explanation import explain
from hpcreduce.finishing import finished
from hpcreduce.guarding import guard
from hpcreduce.many import Fused, allreduce_many
from hpcreduce.related import allgather, bcast, reduce, reduce_scatter
from hpcreduce.runtime import departure
from hpcreduce.runtime.operations import OPERATIONS
from hpcreduce.runtime.plan import Plan
from hpcreduce.sharing import empty, free, share, zeros

if TYPE_CHECKING:
    from hpcreduce import gradients, stats
    from hpcreduce.gradients import GradientAverager
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
    "GradientAverager",
    "HpcreduceError",
    "Intracomm",
    "LaunchError",
    "MismatchError",
    "NetworkError",
    "NonFiniteError",
    "PeerError",
    "Plan",
    "ProofError",
    "ReplicaError",
    "__version__",
    "allgather",
    "allreduce",
    "allreduce_init",
    "allreduce_many",
    "bcast",
    "empty",
    "explain",
    "finished",
    "free",
    "gradients",
    "guard",
    "iallreduce",
    "reduce",
    "reduce_scatter",
    "share",
    "stats",
    "zeros",
]


departure.watch()


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import on first use what few need, and what is a subclass of mpi4py's, since that starts MPI."""
    if name == "Intracomm":
        return importlib.import_module("hpcreduce.intracomm").Intracomm
    if name == "GradientAverager":
        return importlib.import_module("hpcreduce.gradients").GradientAverager
    if name in ("gradients", "stats"):
        return importlib.import_module(f"hpcreduce.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
