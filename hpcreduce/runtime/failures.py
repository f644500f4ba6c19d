"""What is raised where a communicator cannot be used, and how it says so. Pure."""

from __future__ import annotations

from hpcreduce.errors import (
    BrokenCommunicatorError,
    CollectiveTimeoutError,
    HpcreduceError,
    MismatchError,
    PeerError,
)
from hpcreduce.runtime.inquiry import Verdict

_ERRORS = {
    "mismatch": MismatchError,
    "exit": MismatchError,
    "peer": PeerError,
    "death": PeerError,
    "timeout": CollectiveTimeoutError,
}
_WAY_OUT = (
    "This communicator cannot be used by hpcreduce any more; all ranks together can go on with "
    "hpcreduce.Intracomm(comm).recover(), or with a duplicate (comm.Dup())"
)
_ADVICE = {
    "mismatch": f"All ranks must make the same calls in the same order, with the same arguments. {_WAY_OUT}",
    "exit": "All ranks must make the same calls; one that has left does not come back",
    "peer": _WAY_OUT,
    "death": "A rank that has left does not come back",
    "timeout": _WAY_OUT,
}


def summary(verdict: Verdict) -> str:
    """Return a verdict in a line."""
    return f"{_ERRORS[verdict.kind].__name__}: {verdict.text.splitlines()[0]}"


def judged(rank: int, where: str, verdict: Verdict) -> HpcreduceError:
    """Return what a rank raises for a verdict; `where` is what it waits for itself, or empty."""
    error: HpcreduceError = _ERRORS[verdict.kind](
        f"rank {rank}{where and ', ' + where}: {verdict.text}\n{_ADVICE[verdict.kind]}"
    )
    if isinstance(error, (CollectiveTimeoutError, PeerError)):
        error.ranks = verdict.ranks
    return error


def broken(rank: int, reason: str) -> HpcreduceError:
    """Return what a rank raises on a communicator on which an operation failed earlier."""
    first = reason.splitlines()[0].rstrip(":")
    return BrokenCommunicatorError(f"rank {rank}: an earlier operation failed ({first}). {_WAY_OUT}")


def never_opened(rank: int, reason: str) -> HpcreduceError:
    """Return what a rank raises on a communicator whose first use failed."""
    return BrokenCommunicatorError(
        f"rank {rank}: this communicator cannot be used any more, since its first use failed ({reason}); "
        "go on with a duplicate of another one: MPI is still busy duplicating this one"
    )


def in_use(rank: int) -> HpcreduceError:
    """Return what a rank raises in a second call at the same time."""
    return HpcreduceError(
        f"rank {rank}: a call on this communicator is going on, in another thread or around this one; "
        "use a communicator per thread (comm.Dup())"
    )
