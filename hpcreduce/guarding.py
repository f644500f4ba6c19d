"""A rank that fails tells the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hpcreduce.preparation import check_timeout
from hpcreduce.runtime import agreement, departure


@contextlib.contextmanager
def guard(comm: Any, *, timeout: float | None = None) -> Iterator[None]:
    """Tell the other ranks of `comm` if the block ends in an exception on this one.

    They raise `hpcreduce.PeerError` with its traceback, in the call on `comm` in which they wait or in their next one,
    instead of waiting for this rank. SystemExit and KeyboardInterrupt count as well. Afterwards the communicator cannot
    be used until all ranks call `hpcreduce.Intracomm.recover`. An exception in which all ranks have part, such as
    `hpcreduce.MismatchError`, is not told again.

    Collective if it is the first use of `comm`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    timeout : float, optional
        Seconds that the first use of `comm` may take; by default ``HPCREDUCE_TIMEOUT``, or 600.

    Raises
    ------
    TypeError, ValueError, CollectiveTimeoutError, BrokenCommunicatorError, HpcreduceError
        As `hpcreduce.allreduce`, if `comm` cannot be used.

    Examples
    --------
    ::

        with hpcreduce.guard(comm):
            shard = read(f"part-{comm.rank}.npy")  # a file that is missing on one rank ends all of them
            total = hpcreduce.allreduce(comm, shard)
    """
    if timeout is not None:
        check_timeout(timeout)
    state = agreement.state(comm, timeout)
    try:
        yield
    except BaseException as error:
        state.fail(departure.describe(error, skip=1))
        raise
