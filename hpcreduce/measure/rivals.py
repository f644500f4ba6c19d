"""What our algorithms are timed beside: the ways to an all-reduce that a program has without them.

Rules that hold here:

* One table, `RIVALS`. ``--algorithms``, ``--help``, errors and tests read it.
* A rival is made for one array, and is then a function that reduces that array in place. What it makes for itself, it
  makes before it is timed, and for a mean it divides as a program would.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.measure import gloo, samples
from hpcreduce.runtime.operations import OPERATIONS, Array, DType, divide, predefined
from hpcreduce.schedule import partition

LIBRARY = "mpi"
"""Name of the rival that is ``comm.Allreduce`` itself, as a program would call it."""

Call = Callable[[], None]


class Rival(NamedTuple):
    """One row of `RIVALS`.

    Attributes
    ----------
    name : str
    make : callable
        ``make(comm, array, op, stack)`` returns the function that is timed; collective. What it holds is given back
        when the stack is closed.
    lacks : callable
        ``lacks(op, dtype)`` returns why it cannot do that, or an empty string.
    missing : callable
        ``missing(comm)`` returns what it needs and some rank has not, or an empty string; collective.
    session : callable
        ``session(comm)`` is a context in which it is made and called, once for all arrays; collective.
    description : str
        One line.
    """

    name: str
    make: Callable[[Any, Array, str, ExitStack], Call]
    lacks: Callable[[str, DType], str]
    description: str
    missing: Callable[[Any], str] = lambda comm: ""
    session: Callable[[Any], AbstractContextManager[None]] = lambda comm: nullcontext()


def _mpi_lacks(op: str, dtype: DType) -> str:
    return "" if samples.mpi_has(op, dtype) else f"MPI has no {op} of {dtype}"


def _finish(comm: Any, array: Array, op: str) -> None:
    if op == "mean":
        divide(array, comm.size)


def _allreduce(comm: Any, array: Array, op: str, stack: ExitStack) -> Call:
    from mpi4py import MPI

    constant = predefined(OPERATIONS[op])

    def call() -> None:
        comm.Allreduce(MPI.IN_PLACE, array, constant)
        _finish(comm, array, op)

    return call


def _reduce_bcast(comm: Any, array: Array, op: str, stack: ExitStack) -> Call:
    from mpi4py import MPI

    constant = predefined(OPERATIONS[op])
    source, target = (MPI.IN_PLACE, array) if comm.rank == 0 else (array, None)

    def call() -> None:
        comm.Reduce(source, target, constant)
        comm.Bcast(array)
        _finish(comm, array, op)

    return call


def _reduce_scatter_allgather(comm: Any, array: Array, op: str, stack: ExitStack) -> Call:
    """Cut the array into one chunk per rank. Ranks may be combined in any order: so all operations here commute."""
    constant = predefined(OPERATIONS[op])
    counts = [chunk.length for chunk in partition(array.size, comm.size)]
    mine = np.empty(counts[comm.rank], array.dtype)

    def call() -> None:
        comm.Reduce_scatter(array, mine, counts, constant)
        comm.Allgatherv(mine, [array, counts])
        _finish(comm, array, op)

    return call


def _persistent(comm: Any, array: Array, op: str, stack: ExitStack) -> Call:
    from mpi4py import MPI

    request = comm.Allreduce_init(MPI.IN_PLACE, array, predefined(OPERATIONS[op]))
    stack.callback(request.Free)

    def call() -> None:
        request.Start()
        request.Wait()
        _finish(comm, array, op)

    return call


RIVALS: dict[str, Rival] = {
    row.name: row
    for row in (
        Rival(LIBRARY, _allreduce, _mpi_lacks, "comm.Allreduce"),
        Rival("reduce+bcast", _reduce_bcast, _mpi_lacks, "comm.Reduce, then comm.Bcast"),
        Rival(
            "reduce_scatter+allgather",
            _reduce_scatter_allgather,
            _mpi_lacks,
            "comm.Reduce_scatter, then comm.Allgatherv",
        ),
        Rival("persistent", _persistent, _mpi_lacks, "comm.Allreduce_init, then Start and Wait"),
        Rival(
            "gloo",
            lambda comm, array, op, stack: gloo.reducer(comm, array, op),
            gloo.lacks,
            "torch.distributed.all_reduce",
            gloo.missing,
            gloo.group,
        ),
    )
}
"""Name -> row."""


def refusal(comm: Any, name: str, op: str, dtype: DType) -> str:
    """Return why a rival cannot be timed here, or an empty string; collective, the same on every rank."""
    rival = RIVALS[name]
    return rival.lacks(op, dtype) or rival.missing(comm)
