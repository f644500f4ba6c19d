"""Persistent all-reduces of the library, in arrays of their own, that calls of similar size use in turn.

The library matches persistent operations by the order in which they were made: ranks that start different ones wait for
each other rather than mix their data. So what all ranks have made together can be started safely, and messages of
different lengths never meet (Open MPI's nonblocking collectives corrupt their own state then). Within one engine the
calls differ in the payload's length at most, and its `head` tells.

None is freed before its communicator, since Open MPI does not give back what a persistent request held.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcreduce.runtime.head import Head

MOST_SHARED = 63
"""Engines of one kind that plans look through: the bits of a mask."""

LINE = 64
"""Bytes of a cache line: where a payload begins in the middle of one, reductions are slower."""

LONG = 1024
"""Bytes of a payload that is worth a line of its own for its head."""

Key = tuple[int, Any, Any]
"""Elements, dtype, handle of the MPI.Op."""


class Engine:
    """A persistent all-reduce in an array of its own; `used` while a plan has it."""

    def __init__(self, comm: Any, in_place: Any, key: Key, op: Any) -> None:
        self.array = np.zeros(key[0], key[1])
        self.request = comm.Allreduce_init(in_place, self.array, op)
        self.used = True


class Engines:
    """All engines of one communicator, by kind, in the order in which all ranks made them.

    Attributes
    ----------
    blocking : dict
        The engine of each kind for calls that wait for their end at once, one after the other.
    """

    def __init__(self, comm: Any, in_place: Any) -> None:
        self._comm, self._in_place = comm, in_place
        self.blocking: dict[Key, Engine] = {}
        self._shared: dict[Key, list[Engine]] = {}

    def make(self, key: Key, op: Any) -> Engine:
        """Make the engine of this kind for blocking calls; collective, and all ranks must have agreed on it."""
        engine = self.blocking[key] = Engine(self._comm, self._in_place, key, op)
        return engine

    def free_ones(self, key: Key) -> int:
        """Return the bits of those of this kind that no plan of this rank uses."""
        return sum(
            1 << index for index, engine in enumerate(self._shared.get(key, [])[:MOST_SHARED]) if not engine.used
        )

    def borrow(self, key: Key, op: Any, common: int) -> Engine:
        """Return an engine for a plan; `common` are the bits of those that are free on every rank. Collective."""
        engines = self._shared.setdefault(key, [])
        if common:
            engine = engines[(common & -common).bit_length() - 1]
            engine.used = True
        else:
            engine = Engine(self._comm, self._in_place, key, op)
            engines.append(engine)
        return engine

    def free(self) -> None:
        """Free all requests."""
        for engine in [*self.blocking.values(), *(engine for engines in self._shared.values() for engine in engines)]:
            engine.request.Free()
        self.blocking.clear()
        self._shared.clear()


def room(count: int, itemsize: int) -> int:
    """Return the elements that an engine has for a payload of `count`: 64 bytes, or at most a quarter more."""
    nbytes = max(64, count * itemsize)
    step = 1 << max(0, nbytes.bit_length() - 3)
    return -(-nbytes // step) * step // itemsize


def offset(head: Head | None, count: int, itemsize: int) -> int:
    """Return the elements before a payload of `count`: its head, and what aligns the payload where it is long."""
    if head is None:
        return 0
    return head.length if count * itemsize < LONG else -(-head.length * itemsize // LINE) * LINE // itemsize
