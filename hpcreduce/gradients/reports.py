"""What one rank finds wrong is told to all, once all know that somebody has something to tell.

After that the communicator can be used as before: no rank has left a call that others wait in.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcreduce.collectives import allreduce
from hpcreduce.errors import MismatchError, PeerError
from hpcreduce.gradients.parameters import NAMED, differences
from hpcreduce.objects import everyone
from hpcreduce.runtime.inquiry import named
from hpcreduce.runtime.state import State


def compare(comm: Any, state: State, own: dict[str, Any], error: Exception | None, timeout: float | None) -> None:
    """Make sure that all ranks pass the same description, and none an error; collective.

    Raises
    ------
    MismatchError
        Descriptions differ (`hpcreduce.gradients.parameters.differences`); on every rank.
    PeerError
        Another rank passes an error. A rank that does raises that itself.
    """
    text = json.dumps([own, str(error)]).encode()
    mark = zlib.crc32(text) << 31 | len(text)  # and its negative: their largest are equal and opposite only if all are
    totals = allreduce(comm, np.array([mark, -mark]), op="max", timeout=timeout)
    if totals[0] == -totals[1]:
        if error:
            raise error
        return
    theirs = everyone(comm, own | {"error": describe(error)}, timeout)
    refuse(state, "GradientAverager", [each["error"] for each in theirs], error)
    raise MismatchError(f"rank {state.rank}: GradientAverager: the ranks disagree: {differences(theirs)}")


def refuse(state: State, what: str, errors: Sequence[str], own: Exception | None) -> None:
    """Raise the own error, or PeerError with those of other ranks; return if there is none."""
    if own:
        raise own
    ranks = [rank for rank, text in enumerate(errors) if text]
    if ranks:
        texts = "; ".join(f"rank {rank}: {errors[rank]}" for rank in ranks[:3])
        error = PeerError(f"rank {state.rank}: {what}: {named(ranks)} failed: {texts}")
        error.ranks = tuple(ranks)
        raise error


def describe(error: Exception | None) -> str:
    """Return an error in words, empty for none."""
    return f"{type(error).__name__}: {error}" if error else ""


def nonfinite(ranks: Sequence[Sequence[tuple[str, str]]]) -> tuple[str, tuple[int, ...]]:
    """Return in words which gradients are not finite, by rank, and those ranks.

    >>> nonfinite([[], [["'w'", "1 NaN and 0 infinities in 6 elements"]]])
    ("gradients are not finite: parameter 'w' on rank 1 (1 NaN and 0 infinities in 6 elements)", (1,))
    """
    found = [f"parameter {label} on rank {rank} ({text})" for rank, each in enumerate(ranks) for label, text in each]
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    who = tuple(rank for rank, each in enumerate(ranks) if each)
    return f"gradients are not finite: {', '.join(found[:NAMED])}{more}", who
