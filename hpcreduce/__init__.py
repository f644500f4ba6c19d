"""All-reduce that you can read, prove, tune and trust.

Ring and tree all-reduce written on mpi4py's point-to-point messages and validated against MPI_Allreduce. Importing this
package neither needs an MPI library nor starts MPI.
"""

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.collectives import allreduce, allreduce_init, iallreduce
from hpcreduce.errors import (
    BrokenCommunicatorError,
    CollectiveTimeoutError,
    HpcreduceError,
    LaunchError,
    ProofError,
)
from hpcreduce.runtime.operations import OPERATIONS
from hpcreduce.runtime.plan import Plan

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "OPERATIONS",
    "BrokenCommunicatorError",
    "CollectiveTimeoutError",
    "HpcreduceError",
    "LaunchError",
    "Plan",
    "ProofError",
    "__version__",
    "allreduce",
    "allreduce_init",
    "iallreduce",
]
