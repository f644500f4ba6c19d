"""Persistent all-reduces of the library that are used again instead of being freed.

For Open MPI, which does not give back what a persistent request held (240 bytes and the size of the array each, seen
with 5.0.11). Elsewhere plans have requests of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

MOST_SHARED = 63
"""Engines of one kind that are looked through: the bits of a mask."""


class Engine:
    """A persistent all-reduce in an array of its own; `used` while a plan has it."""

    def __init__(self, comm: Any, in_place: Any, count: int, dtype: Any, op: Any) -> None:
        self.array = np.empty(count, dtype)
        self.request = comm.Allreduce_init(in_place, self.array, op)
        self.used = True


class Engines:
    """All engines of one communicator, by kind, in the order in which all ranks made them."""

    def __init__(self, comm: Any, in_place: Any) -> None:
        self.comm, self.in_place = comm, in_place
        self.kinds: dict[Hashable, list[Engine]] = {}

    def borrow(self, count: int, dtype: Any, op: Any, all_of: Callable[[int], int]) -> Engine:
        """Return an engine that no plan uses on any rank, a new one if need be; collective.

        Ranks agree on it by `all_of`, which returns the bits that are set on all of them, since each may have given up
        its plans at another time.
        """
        engines = self.kinds.setdefault((count, dtype, op.handle), [])
        if engines:
            mask = sum(1 << index for index, engine in enumerate(engines[:MOST_SHARED]) if not engine.used)
            if common := all_of(mask):
                engine = engines[(common & -common).bit_length() - 1]
                engine.used = True
                return engine
        engines.append(Engine(self.comm, self.in_place, count, dtype, op))
        return engines[-1]

    def free(self) -> None:
        """Free all requests."""
        for engines in self.kinds.values():
            for engine in engines:
                engine.request.Free()
        self.kinds.clear()
