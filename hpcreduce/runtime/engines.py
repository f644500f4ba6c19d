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

LINE = 64
"""Bytes of a cache line: where a payload begins in the middle of one, reductions are slower."""

LONG = 1024
"""Bytes of a payload that is worth a line of its own for its head."""

Key = tuple[int, Any, Any]
"""Elements, dtype, handle of the MPI.Op."""


class Engine:
    """A persistent all-reduce in an array of its own; `used` while a plan has it. Collective to make."""

    def __init__(self, comm: Any, in_place: Any, key: Key, op: Any) -> None:
        self.array = np.zeros(key[0], key[1])
        self.request = comm.Allreduce_init(in_place, self.array, op)
        self.used = True


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
