"""Element-wise exact sums of arrays: an accumulator for each element, rounded once.

Rules that hold here:

1. An element's sum is an integer in units of 2^-1074, held in limbs of 32 bits, which lie in rows: row k has limb
   ``first + k`` of all elements. Only the rows that a value has touched are looked at and travel.
2. Arrays are taken in pieces of the result, so that accumulators take 128 MB at most, whatever the arrays' size.
3. Infinite values, NaN and signs of zero are told by flags for each element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcreduce.collectives import allreduce
from hpcreduce.stats import exact

MOST = 1 << 24
"""Limbs of a piece: 128 MB."""

_PLUS, _MINUS, _NAN, _OTHER = 1, 2, 4, 8  # _OTHER: anything but -0.0
_MASK = np.int64((1 << exact.LIMB) - 1)
_CARRY_AFTER = 1 << 28
_BLOCK = 1 << 14  # values that are taken apart at a time


class RangeError(ValueError):
    """An integer sum that no 64-bit integer holds."""


def result_type(dtype: np.dtype[Any], mean: bool) -> np.dtype[Any]:
    """Return the type of the exact sum or mean of arrays of `dtype`, or raise TypeError.

    Examples
    --------
    >>> [str(result_type(np.dtype(name), False)) for name in ("float16", "uint8", "bool")]
    ['float16', 'uint64', 'int64']
    """
    if dtype.kind in "biu":
        return np.dtype(np.float64 if mean else np.uint64 if dtype.kind == "u" else np.int64)
    if dtype.kind in "fc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8):
        return dtype
    raise TypeError(f"exact sums are of float16, float32, float64, complex, integers and bools, found dtype {dtype}")


def pieces(shape: tuple[int, ...], dtype: np.dtype[Any], most: int = MOST) -> Iterator[tuple[slice, ...]]:
    """Yield what to take of arrays of this shape at a time; the pieces follow each other in C order.

    Examples
    --------
    >>> len(list(pieces((1000, 1000), np.dtype(np.float64)))), list(pieces((), np.dtype(np.float64)))
    (5, [()])
    """
    yield from _cut(shape, max(1, most // (_rows(dtype)[1] * (1 + (dtype.kind == "c")))))


def _cut(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    if math.prod(shape) <= most:
        yield (slice(None),) * len(shape)
        return
    inner = math.prod(shape[1:])
    if inner <= most:
        step = most // inner
        for start in range(0, shape[0], step):
            yield slice(start, min(start + step, shape[0])), *(slice(None),) * (len(shape) - 1)
        return
    for start in range(shape[0]):
        for rest in _cut(shape[1:], most):
            yield slice(start, start + 1), *rest


def _rows(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the first limb that values of a type need, and how many limbs they and their sums do."""
    if dtype.kind in "biu":
        return 0, 4
    about = np.finfo(dtype)
    lowest = max(int(about.minexp) - int(about.nmant) - 52, -exact.UNIT)  # of the mantissa as a float64 has it
    first = (lowest + exact.UNIT) >> 5
    last = (int(about.maxexp) - 53 + exact.UNIT) >> 5
    return first, last - first + 6  # a value has three, what is carried over two, the sign one


class Accumulators:
    """Exact sums of `count` elements of a type."""

    def __init__(self, dtype: np.dtype[Any], count: int) -> None:
        self.dtype = dtype
        self.parts = 2 if dtype.kind == "c" else 1
        self.first, rows = _rows(dtype)
        self.limbs = np.zeros((rows, count * self.parts), np.int64)
        self.flags = np.zeros(count * self.parts, np.uint8)
        self.low, self.high = rows, 0  # the rows that have been touched: from low up to high
        self.added = 0

    def add(self, rows: np.ndarray) -> None:
        """Add arrays of elements, the rows of a two-dimensional one."""
        columns = min(_BLOCK, rows.shape[1])
        if not rows.size:
            return
        step = _BLOCK // columns
        for start in range(0, len(rows), step):
            self.added += step
            if self.added > _CARRY_AFTER:
                self._carry()
                self.added = step
            for left in range(0, rows.shape[1], columns):
                self._add(rows[start : start + step, left : left + columns], left)

    def _add(self, rows: np.ndarray, left: int) -> None:
        rows = np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
        if self.parts == 2:
            rows, left = rows.view(rows.real.dtype), 2 * left
        columns = slice(left, left + rows.shape[1])
        if rows.dtype.kind == "f":
            self._add_floats(rows.astype(np.float64, copy=False), columns)
        else:
            self._add_integers(rows, columns)

    def _add_floats(self, rows: np.ndarray, columns: slice) -> None:
        bits = rows.view(np.int64)
        exponents = bits >> 52 & 2047
        mantissas = (bits & ((1 << 52) - 1)) | (exponents > 0).astype(np.int64) << 52
        finite = exponents != 2047
        codes = np.where(bits == np.iinfo(np.int64).min, 0, _OTHER).astype(np.uint8)
        if not finite.all():
            mantissas *= finite
            exponents = np.where(finite, exponents, 1)
            codes |= (np.isnan(rows) * _NAN + (rows == np.inf) * _PLUS + (rows == -np.inf) * _MINUS).astype(np.uint8)
        self.flags[columns] |= np.bitwise_or.reduce(codes, axis=0)
        there = mantissas != 0
        if not there.any():
            return
        exponents = np.maximum(exponents, 1) - 1
        exponents = np.where(there, exponents, exponents[there][0])  # no place of its own for a zero
        places, shifts = (exponents >> 5) - self.first, exponents & 31
        low, high = (mantissas & _MASK) << shifts, (mantissas >> 32) << shifts
        sign = np.where(bits < 0, np.int64(-1), np.int64(1))
        digits = (low & _MASK) * sign, ((low >> 32) + (high & _MASK)) * sign, (high >> 32) * sign
        lowest, highest = int(places.min()), int(places.max())
        for place in range(lowest, highest + 1):
            here = places == place
            if lowest == highest or here.any():
                for index, digit in enumerate(digits):
                    chosen = digit if lowest == highest else digit * here
                    self.limbs[place + index, columns] += chosen.sum(axis=0)
        self._touch(lowest, highest + 3)

    def _add_integers(self, rows: np.ndarray, columns: slice) -> None:
        rows = rows.astype(np.uint64 if rows.dtype.kind == "u" else np.int64, copy=False)
        mask = rows.dtype.type(_MASK)
        self.limbs[0, columns] += (rows & mask).astype(np.int64).sum(axis=0)
        self.limbs[1, columns] += (rows >> rows.dtype.type(32)).astype(np.int64).sum(axis=0)
        self._touch(0, 2)

    def _touch(self, low: int, high: int) -> None:
        self.low, self.high = min(self.low, low), max(self.high, high)

    def _carry(self) -> None:
        """Bring the limbs to 0 to 2^32 - 1; what is carried over may touch two more rows, and the sign a third."""
        if self.low >= self.high:
            return
        self.high = min(self.high + 3, len(self.limbs))
        for row in range(self.low, self.high - 1):
            self.limbs[row + 1] += self.limbs[row] >> 32
            self.limbs[row] &= _MASK

    def meet(self, comm: Any) -> None:
        """Add what the other ranks have; collective. Each may have a part of 2^30 values for an element."""
        self._carry()
        low, high = allreduce(comm, np.array([self.low, -self.high]), op="min").tolist()
        self._touch(low, -high)
        if self.low < self.high:
            window = self.limbs[self.low : self.high]
            allreduce(comm, window, window)
        allreduce(comm, self.flags, self.flags, op="bor")

    def result(self, divisor: int | None = None) -> np.ndarray:
        """Return the sums, or the means of so many, below 2^32, rounded once.

        Raises
        ------
        RangeError
            An integer sum is beyond 64 bits.
        """
        wanted = result_type(self.dtype, divisor is not None)
        self._carry()
        if wanted.kind in "iu":
            return _integers(self.limbs, wanted)
        low, high = (self.low, self.high) if self.low < self.high else (0, 1)
        unit = 32 * (self.first + low) - (exact.UNIT if self.dtype.kind in "fc" else 0)
        blocks = (self.limbs[low:high, left : left + _BLOCK] for left in range(0, self.flags.size, _BLOCK))
        real = wanted.type(0).real.dtype
        values = np.concatenate([np.zeros(0, real), *(rounded(block, unit, divisor or 1, real) for block in blocks)])
        if self.dtype.kind in "fc":
            values[(values == 0) & (self.flags & _OTHER == 0)] = -0.0
            values[self.flags & _PLUS > 0] = np.inf
            values[self.flags & _MINUS > 0] = -np.inf
            values[(self.flags & _NAN > 0) | (self.flags & 3 == 3)] = np.nan
        return np.asarray(values.view(wanted)) if wanted.kind == "c" else values


def _integers(limbs: np.ndarray, wanted: np.dtype[Any]) -> np.ndarray:
    """Return the integers that four carried limbs are, the last of which has the sign."""
    values = (limbs[1] << 32 | limbs[0]).view(wanted)
    above = limbs[2] + (limbs[3] << 32)
    wrong = above != (values >> 63 if wanted.kind == "i" else 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        total = exact.from_limbs(limbs[:, at])
        raise RangeError(f"the exact sum of element {at} is {total}, which no {wanted} holds; take the mean")
    return np.asarray(values)


def rounded(limbs: np.ndarray, unit: int, divisor: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the floats nearest to integers in units of ``2 ** unit`` over a divisor, ties to even.

    Parameters
    ----------
    limbs : int64 array, shape (limbs, numbers)
        The lowest first, each from 0 to 2^32 - 1 but the last, which has the sign.
    unit : int
    divisor : int
        From 1 to 2^32 - 1.
    dtype : dtype
        A type of floats, float64 at most.

    Examples
    --------
    >>> rounded(np.array([[1], [0]]), -1074, 1, np.dtype(np.float64)), rounded(np.array([[-7]]), 0, 3, np.dtype("f4"))
    (array([5.e-324]), array([-2.3333333], dtype=float32))
    """
    negative = limbs[-1] < 0
    sizes = _sizes(limbs, negative)
    sticky = np.zeros(limbs.shape[1], bool)
    if divisor != 1:
        sizes, unit = np.concatenate([np.zeros((3, sizes.shape[1]), np.uint64), sizes]), unit - 96
        rest = np.zeros(sizes.shape[1], np.uint64)
        for row in reversed(sizes):
            number = rest << np.uint64(32) | row
            row[...], rest = np.divmod(number, np.uint64(divisor))
        sticky |= rest != 0
    sizes, unit = np.concatenate([np.zeros((2, sizes.shape[1]), np.uint64), sizes]), unit - 64
    there = sizes != 0
    top = np.maximum(len(sizes) - 1 - np.argmax(there[::-1], axis=0), 2)
    sticky |= np.argmax(there, axis=0) < top - 2
    first, second, third = (np.take_along_axis(sizes, (top - back)[None], 0)[0] for back in range(3))
    used = np.frexp(first.astype(np.float64))[1]  # bits of the highest limb, from 1 to 32; 0 if the number is 0
    bits = used.astype(np.uint64)
    high = first << (np.uint64(64) - np.maximum(bits, np.uint64(1)))
    lead = high | second << (np.uint64(32) - bits) | third >> bits  # 64 bits, the first of which is set
    sticky |= third & ((np.uint64(1) << bits) - np.uint64(1)) != 0
    exponent = 32 * top + used - 1 + unit
    about = np.finfo(dtype)
    keep = np.minimum(int(about.nmant) + 1, exponent - (int(about.minexp) - int(about.nmant)) + 1)
    drop = np.clip(64 - keep, 1, 64)
    shift = (drop - 1).astype(np.uint64)
    shifted = lead >> shift
    half, whole = shifted & np.uint64(1), shifted >> np.uint64(1)
    more = (lead & ((np.uint64(1) << shift) - np.uint64(1)) != 0) | sticky
    whole += half & (more | (whole & np.uint64(1) > 0))
    whole[(keep < 0) | (first == 0)] = 0
    with np.errstate(over="ignore"):
        values = np.ldexp(whole.astype(np.float64), (exponent - 63 + drop).astype(np.int32)).astype(dtype)
    return np.asarray(np.where(negative, -values, values))


def _sizes(limbs: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Return absolute values as limbs that are uint64."""
    sizes = np.concatenate([limbs, (limbs[-1] >> 32)[None]])
    sizes[-2:] &= _MASK
    carry = negative.astype(np.int64)
    for row in sizes:
        np.add(np.where(negative, row ^ _MASK, row), carry, out=row)
        carry = row >> 32
        row &= _MASK
    return sizes.view(np.uint64)
