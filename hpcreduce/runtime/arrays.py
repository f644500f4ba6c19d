"""The node-shared arrays of one communicator: where a buffer lies in them, and where the other ranks' are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_OFFSET = 44  # bits of a place that are an offset


class _Array(NamedTuple):
    """One array of every rank: the address of this rank's own, its bytes, and the memory of each rank of the node."""

    address: int
    nbytes: int
    memories: list[Any]


class Arrays:
    """All that were made and not freed, by number; all ranks make and free them in the same order.

    Attributes
    ----------
    version : int
        Another one once arrays were made or freed.
    """

    def __init__(self) -> None:
        self.version = 0
        self._known: dict[int, _Array] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, rank: int, nbytes: int, memories: Sequence[Any]) -> Any:
        """Take the memory of a new array of every rank of the node, and return that of the one at hand as bytes."""
        arrays = [np.frombuffer(memory, np.uint8, nbytes) for memory in memories]
        own = arrays[rank]
        self.version += 1
        self._known[next(self._numbers)] = _Array(_address(own), nbytes, arrays)
        return own

    def place(self, buffer: Any) -> int:
        """Return the number of the place where a contiguous buffer lies, 0 if in none of the arrays."""
        start = _address(buffer)
        for number, array in self._known.items():
            offset = start - array.address
            if 0 <= offset <= array.nbytes - buffer.nbytes:
                return number << _OFFSET | offset
        return 0

    def memory(self, rank: int, place: int, nbytes: int) -> Any:
        """Return the bytes at a rank's place."""
        offset = place & (1 << _OFFSET) - 1
        return self._known[place >> _OFFSET].memories[rank][offset : offset + nbytes]

    def remove(self, place: int) -> None:
        """Forget the array there; its memory lasts as long as arrays refer to it."""
        del self._known[place >> _OFFSET]
        self.version += 1

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
        self.version += 1


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
