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
    mask : int
        Of the bits where one element holds all, in a sum: the most frequent kind. Else 0.
    """

    rule: str
    bits: int
    length: int
    size: int
    width: int
    signed: bool
    mask: int = 0

    def write(self, array: Array, number: int) -> Any:
        """Put the number into the first elements, and return what they are if every rank has written the same."""
        if self.mask:
            array[0] = value = number & self.mask
            return self._total(value) if self.width else value * self.size
        mask = (1 << self.bits) - 1
        pieces = [number >> shift & mask for shift in range(0, self.bits * self.length, self.bits)]
        if self.rule == "pair":
            pieces = [value for piece in pieces[: self.length // 2] for value in (piece, mask - piece)]
        elif self.rule == "odd":
            pieces = [piece << 1 | 1 for piece in pieces]
        values: list[Any] = [2.0**piece for piece in pieces] if self.rule == "power" else pieces
        for index, value in enumerate(values):
            array[index] = value
        return values if self.rule == "pair" else [self._total(value) for value in values]

    def agrees(self, array: Array, totals: Any) -> bool:
        """Return whether the reduced elements are these."""
        if self.mask:
            return bool(array.item(0) == totals)
        return bool(array[: self.length].tolist() == totals)

    def _total(self, value: Any) -> Any:
        """Return what an element becomes that every rank has written alike."""
        if self.rule == "power":
            return value**self.size
        if not self.width:
            return value * self.size
        value = pow(value, self.size, 1 << self.width) if self.rule == "odd" else value * self.size % (1 << self.width)
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
    if bits <= 0:
        return None
    length = -(-BITS // bits)
    return Head(rule, bits, length, size, width, signed, (1 << bits) - 1 if length == 1 and rule == "sum" else 0)
