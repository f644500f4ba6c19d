"""What each rank gets out of calls that cannot end well, gathered so that a test fails on all ranks or on none."""

import re
import time
from typing import NamedTuple

import numpy as np

import hpcreduce

SECONDS = 5.0
"""Within which ranks that are all there find out that they disagree."""

COMMON = re.compile(
    r"^rank \d+(, .*?)?: "
    r"((the ranks disagree|what arrived|not finished after|ranks? [\d,-]+ (left|failed|has failed)).*)",
    re.DOTALL,
)
"""The text of a verdict: first what the rank says of itself, then what all say alike."""


class Outcome(NamedTuple):
    """Name of the error's class (empty: the work returned), its text, its `ranks`, and the time it took."""

    error: str
    text: str
    ranks: tuple[int, ...]
    seconds: float


def outcomes(comm, work):
    """Do `work` on every rank, which must end, and return the outcome of each."""
    start = time.monotonic()
    try:
        own = "", repr(work()), ()
    except BaseException as error:
        own = type(error).__name__, str(error), tuple(getattr(error, "ranks", ()))
    return [Outcome(*outcome) for outcome in comm.allgather((*own, time.monotonic() - start))]


def all_raise(comm, work, error="MismatchError", seconds=SECONDS):
    """Do `work` on every rank; each must end in this error in time, in the same words, which are returned."""
    found = outcomes(comm, work)
    assert [outcome.error for outcome in found] == [error] * comm.size, found
    assert max(outcome.seconds for outcome in found) < seconds, found
    texts = [common(outcome.text) for outcome in found]
    assert texts == texts[:1] * comm.size, found
    assert all(outcome.text.startswith(f"rank {rank}") for rank, outcome in enumerate(found)), found
    return texts[0]


def common(text):
    """Return the part of an error's text that all ranks share."""
    match = COMMON.match(text)
    return match[2] if match else f"no verdict: {text}"


def recovered(comm):
    """Mend the communicator on all ranks; return whether a sum on it is right again."""
    hpcreduce.Intracomm(comm, timeout=20).recover()
    return hpcreduce.allreduce(comm, 2.0**comm.rank, timeout=20) == 2.0**comm.size - 1


def contribution(comm, count, dtype="f8"):
    """What this rank contributes: whole numbers that are exact in every type, also as a sum."""
    return ((comm.rank + 1) * (np.arange(count) % 5 + 1)).astype(dtype)


def total(comm, count, dtype="f8"):
    """The sum of all contributions."""
    return (comm.size * (comm.size + 1) // 2 * (np.arange(count) % 5 + 1)).astype(dtype)


def call(comm, name="allreduce", count=5, dtype="f8", op="sum", timeout=20, **options):
    """Make one of our calls on an array of this kind, wait for its end, and return its result."""
    mine = contribution(comm, count, dtype)
    if name == "bcast":
        return hpcreduce.bcast(comm, mine, timeout=timeout)
    if name == "allgather":
        return hpcreduce.allgather(comm, mine, timeout=timeout)
    if name in ("reduce", "reduce_scatter"):
        return getattr(hpcreduce, name)(comm, mine, op=op, timeout=timeout)
    made = getattr(hpcreduce, name)(comm, mine, op=op, timeout=timeout, **options)
    if name == "allreduce":
        return made
    if name == "allreduce_init":
        made.Start()
    return made.Wait()


def call_and_next(comm, **description):
    """Make the call; where it needs no other rank to end, the next one."""
    call(comm, **description)
    if description.get("name") not in ("bcast", "reduce"):  # whose first and last ranks are done at once
        return
    hpcreduce.allreduce(comm, 1.0, timeout=20)
