"""What the ranks tell each other: integers to be added, the lowest of tuples, and what went wrong.

Everything goes through this package's own collective calls, so that a rank that does not come is named.
"""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from hpcreduce.collectives import allreduce
from hpcreduce.errors import HpcreduceError
from hpcreduce.objects import everyone
from hpcreduce.stats import exact

NONE: tuple[int, ...] = (2**63 - 1,) * 4
"""The tuple that `lowest` takes for nothing."""


class StatsError(ValueError):
    """A wrong value in the data, or data that do not fit together; the same text on every rank."""

    def __init__(self, text: str, shard: int | None = None, row: int | None = None) -> None:
        super().__init__(text)
        self.shard, self.row = shard, row

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.shard, self.row)


class State(Protocol):
    """What a rank has seen, which can be added to what another one has."""

    counts: np.ndarray
    """Numbers of rows or values, an int64 array."""

    def integers(self) -> list[int]:
        """Return integers of any size."""

    def widths(self) -> list[int]:
        """Return how many limbs each of them has."""

    def become(self, integers: list[int], counts: np.ndarray) -> None:
        """Become what all ranks have seen."""


def add_up(comm: Any, states: Sequence[State]) -> None:
    """Make each state what all ranks have seen, by one all-reduce; collective."""
    packed = [exact.pack(state.integers(), state.widths()) for state in states]
    flat = np.concatenate([np.zeros(0, np.int64), *packed, *(state.counts for state in states)])
    total = allreduce(comm, flat)
    integers, counts = np.split(total, [sum(map(len, packed))])
    for state, mine in zip(states, packed, strict=True):
        length = state.counts.size
        state.become(exact.unpack(integers[: mine.size], state.widths()), counts[:length])
        integers, counts = integers[mine.size :], counts[length:]


def lowest(comm: Any, tuples: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return, for each place of the list, the lowest tuple of any rank, or NONE; collective."""
    if not tuples:
        return []
    mine = np.array(tuples, np.int64)
    best = np.empty_like(mine)
    in_the_race = np.ones(len(mine), bool)
    for place in range(mine.shape[1]):
        best[:, place] = allreduce(comm, np.where(in_the_race, mine[:, place], NONE[0]), op="min")
        in_the_race &= mine[:, place] == best[:, place]
    return [tuple(row) for row in best.tolist()]


@contextlib.contextmanager
def together(comm: Any) -> Iterator[None]:
    """Raise on every rank what the block raises on any: of several the one of lowest `order`, then rank; collective.

    Until then the other ranks do their own work, so a rank that fails keeps nobody waiting. A rank without work waits
    for as long as the others have some: no time-out counts that.
    """
    found: Exception | None = None
    try:
        yield
    except Exception as error:
        if isinstance(error, HpcreduceError) and not hasattr(error, "order"):
            raise  # all ranks have part in it already
        found = error
    errors = [error for error in everyone(comm, _portable(found), math.inf) if error is not None]
    if errors:
        raise min(errors, key=lambda error: getattr(error, "order", 0)) from found


def _portable(error: Exception | None) -> Exception | None:
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return StatsError(f"{type(error).__name__}: {error}")
