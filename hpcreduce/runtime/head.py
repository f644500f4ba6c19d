"""A few elements before the payload, by which an all-reduce of the library tells whether all ranks mean the same call.

Each rank puts bits of its call's number there. The operation combines them like the payload, and each rank compares
what comes out with what comes out of its own bits `size` times. Pure: no MPI.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hpcreduce.runtime.operations import Array, DType, Operation

BITS = 48
"""Bits of the number that a head carries at least; half of them where an element holds one bit only."""

_SUMS = ("sum", "mean")
_PAIRS = ("max", "min", "nanmax", "nanmin", "band", "bor", "land", "lor")
_EXPONENTS = {"f": 127, "F": 127}  # of two; 1023 in wider types


class Head(NamedTuple):
    """How a number is put into elements of one dtype.

    Attributes
    ----------
    rule : str
        ``sum``: the total is `size` times the bits; ``odd``: their power, of odd integers; ``power``: the same of
        powers of two; ``pair``: bits and their complement, whose extremes are both the bits only if all had them.
    bits : int
        Bits per element, or per pair.
    length : int
        Elements.
    size : int
        Ranks.
    width : int
        Bits of the integer type, 0 for others: integers wrap around.
    signed : bool
    """

    rule: str
    bits: int
    length: int
    size: int
    width: int
    signed: bool

    def write(self, array: Array, number: int) -> None:
        """Put the number into the first elements."""
        for index, value in enumerate(self._values(number)):
            array[index] = value

    def agrees(self, array: Array, number: int) -> bool:
        """Return whether the reduced elements say that every rank wrote the same number."""
        return bool(array[: self.length].tolist() == self._totals(number))

    def _values(self, number: int) -> list[Any]:
        mask = (1 << self.bits) - 1
        if self.rule == "pair":
            pieces = [number >> shift & mask for shift in range(0, self.bits * self.length // 2, self.bits)]
            return [value for piece in pieces for value in (piece, mask - piece)]
        pieces = [number >> shift & mask for shift in range(0, self.bits * self.length, self.bits)]
        if self.rule == "odd":
            return [piece << 1 | 1 for piece in pieces]
        return [2.0**piece for piece in pieces] if self.rule == "power" else pieces

    def _totals(self, number: int) -> list[Any]:
        values = self._values(number)
        if self.rule == "pair":
            return values
        if self.rule == "power":
            return [value**self.size for value in values]
        if self.rule == "odd":
            return [self._wrapped(pow(value, self.size, 1 << self.width)) for value in values]
        return [self._wrapped(value * self.size) if self.width else value * self.size for value in values]

    def _wrapped(self, value: int) -> int:
        value &= (1 << self.width) - 1
        return value - (1 << self.width) if self.signed and value >> self.width - 1 else value


def layout(operation: Operation, work: DType, size: int) -> Head | None:
    """Return the head for an operation of the library on `work` among `size` ranks, `None` if there is none.

    There is none for ``bxor`` and ``lxor``, in which an even number of ranks that differ cancels out, for operations of
    the user's own, and for products of so many ranks that a power of two leaves the range.
    """
    if not isinstance(operation.library, str) or not operation.library:
        return None
    integer = work.kind in "iu"
    width = 8 * work.itemsize if integer else 0
    most = width - 1
    if operation.name in _PAIRS and (integer or work.kind == "b"):
        bits = min(most, BITS) if integer else 1
        wanted = BITS if integer else BITS // 2
        return Head("pair", bits, 2 * -(-wanted // bits), size, width, work.kind == "i")
    if operation.name in _SUMS and integer:
        return _head("sum", min(most, BITS), size, width, work.kind == "i")
    if operation.name in _SUMS and work.kind in "fc":
        return _head("sum", min(np.finfo(work).nmant + 1 - (size - 1).bit_length(), BITS), size)
    if operation.name == "prod" and integer:
        return _head("odd", min(most - 1, BITS), size, width, work.kind == "i")
    if operation.name == "prod" and work.kind in "fc":
        return _head("power", (_EXPONENTS.get(work.char, 1023) // size + 1).bit_length() - 1, size)
    return None


def _head(rule: str, bits: int, size: int, width: int = 0, signed: bool = False) -> Head | None:
    return Head(rule, bits, -(-BITS // bits), size, width, signed) if bits > 0 else None
