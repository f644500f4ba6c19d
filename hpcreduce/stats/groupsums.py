"""Exact sums of numbers and their squares for each of many groups, and their extremes.

Rules that hold here:

1. A sum is an integer in the units of `exact`, in limbs of 32 bits, a row for each group. Only limbs that a value has
   touched are there: `first` is the lowest.
2. Limbs are int64 and take 2^29 values before what is beyond 32 bits is carried on.
3. Extremes are kept as keys that have the order of the values: of floats `exact.key`, of integers themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcreduce.stats import exact, kernels

_CARRY_AFTER = 1 << 29
_MASK = np.int64((1 << exact.LIMB) - 1)
_LIMITS = np.iinfo(np.int64)
_SPARE = 2
"""Limbs above the highest touched one, for what is carried."""

ROWS, NULL, NAN, PLUS, MINUS = range(5)
"""What is counted: finite values, missing ones, NaN, the two infinite ones."""


class Limbs:
    """An exact sum for each group."""

    def __init__(self, first: int = 0, limbs: np.ndarray | None = None) -> None:
        self.first = first
        self.limbs = np.zeros((0, 0), np.int64) if limbs is None else limbs

    def grow(self, groups: int) -> None:
        """Make room for more groups."""
        self.limbs = grown(self.limbs, groups)

    def cover(self, low: int, high: int) -> None:
        """Have the limbs from low up to high, and spare ones."""
        high += _SPARE
        width = self.limbs.shape[1]
        if not width:
            self.first, self.limbs = low, np.zeros((len(self.limbs), high - low), np.int64)
            return
        before, after = max(0, self.first - low), max(0, high - self.first - width)
        if before or after:
            self.carry()
            top = self.limbs[:, -1]  # the sign is in the last limb, and moves on
            self.limbs = np.pad(self.limbs, ((0, 0), (before, after)))
            for limb in range(before + width - 1, before + width - 1 + after):
                self.limbs[:, limb + 1] = top >> exact.LIMB
                self.limbs[:, limb] = top & _MASK
                top = self.limbs[:, limb + 1]
            self.first -= before

    def carry(self) -> None:
        """Leave 32 bits in each limb but the last."""
        for limb in range(self.limbs.shape[1] - 1):
            self.limbs[:, limb + 1] += self.limbs[:, limb] >> exact.LIMB
            self.limbs[:, limb] &= _MASK

    def join(self, groups: np.ndarray, other: Limbs) -> None:
        """Add the sums of other groups, which have these numbers here."""
        if other.limbs.shape[1]:
            self.cover(other.first, other.first + other.limbs.shape[1] - _SPARE)
            start = other.first - self.first
            self.limbs[groups, start : start + other.limbs.shape[1]] += other.limbs
            self.carry()

    @property
    def unit(self) -> int:
        """The power of two, less that of the units of `exact`, of which the sums are whole numbers."""
        return exact.LIMB * self.first

    def integers(self) -> list[int]:
        """Return the sums, in units of ``2 ** unit`` less those of `exact`."""
        if not self.limbs.shape[1]:
            return [0] * len(self.limbs)
        self.carry()
        size = 4 * (self.limbs.shape[1] - 1)
        low, top = self.limbs[:, :-1].astype(np.uint32).tobytes(), 8 * size
        return [
            int.from_bytes(low[start : start + size], "little") + (last << top)
            for start, last in zip(range(0, len(low), size), self.limbs[:, -1].tolist(), strict=True)
        ]


def grown(array: np.ndarray, groups: int, filling: int = 0) -> np.ndarray:
    """Return an array with room for that many groups."""
    if len(array) >= groups:
        return array
    room = max(groups, 2 * len(array))
    return np.concatenate([array, np.full((room - len(array), *array.shape[1:]), filling, array.dtype)])


class Grouped:
    """What is known of a column of numbers in each group."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.whole, self.unsigned = dtype.startswith(("int", "uint")), dtype == "uint64"
        self.sums, self.squares = Limbs(), Limbs()
        self.counts = np.zeros((0, 5), np.int64)
        self.low = self.high = np.zeros(0, np.int64)
        self.added = 0

    def grow(self, groups: int) -> None:
        """Make room for more groups."""
        self.counts = grown(self.counts, groups)
        self.low = grown(self.low, groups, _LIMITS.max)
        self.high = grown(self.high, groups, _LIMITS.min)
        self.sums.grow(len(self.counts))
        self.squares.grow(len(self.counts))

    def add(self, groups: np.ndarray, values: np.ndarray, valid: np.ndarray | None) -> None:
        """Take in values, each of the group of that number."""
        if valid is not None:
            np.add.at(self.counts[:, NULL], groups[~valid], 1)
            groups, values = groups[valid], values[valid]
        self.added += values.size
        if self.added > _CARRY_AFTER:
            self.sums.carry()
            self.squares.carry()
            self.added = values.size
        if values.dtype.kind == "f":
            self._deposit(groups, values.astype(np.float64, copy=False))
            return
        self._extremes(groups, values)
        self._deposit(groups, values.astype(np.uint64 if values.dtype.kind == "u" else np.int64, copy=False))

    def _deposit(self, groups: np.ndarray, values: np.ndarray) -> None:
        kind = "fiu".index(values.dtype.kind)
        done = 0
        while done < values.size:
            sums, squares = self.sums, self.squares
            more, place, square = kernels.grouped(
                groups[done:],
                values[done:],
                kind,
                (sums.first, sums.limbs),
                (squares.first, squares.limbs),
                (self.counts, self.low, self.high),
            )
            done += more
            if done < values.size:  # this value needs limbs that are not there
                sums.cover(place, place + 3)
                squares.cover(square, square + 5)

    def _extremes(self, groups: np.ndarray, values: np.ndarray) -> None:
        """Note the extremes of integers."""
        if not self.whole:  # other files have floats in this column
            bits = values.astype(np.float64).view(np.int64)
            found = bits ^ (bits >> 63 & np.int64(_LIMITS.max))
        elif self.unsigned:
            found = (values.astype(np.uint64, copy=False) ^ np.uint64(1 << 63)).view(np.int64)
        else:
            found = values.astype(np.int64, copy=False)
        np.minimum.at(self.low, groups, found)
        np.maximum.at(self.high, groups, found)

    def join(self, groups: np.ndarray, other: Grouped) -> None:
        """Take in what is known of other groups, which have these numbers here."""
        self.counts[groups] += other.counts
        self.low[groups] = np.minimum(self.low[groups], other.low)
        self.high[groups] = np.maximum(self.high[groups], other.high)
        self.sums.join(groups, other.sums)
        self.squares.join(groups, other.squares)

    def part(self, groups: np.ndarray) -> Grouped:
        """Return what is known of some groups."""
        found = Grouped(self.dtype)
        self.sums.carry()
        self.squares.carry()
        found.sums = Limbs(self.sums.first, self.sums.limbs[groups])
        found.squares = Limbs(self.squares.first, self.squares.limbs[groups])
        found.counts, found.low, found.high = self.counts[groups], self.low[groups], self.high[groups]
        return found

    def spreads(self, groups: int, ddof: int) -> Iterator[tuple[Any, float | None, float | None, float | None]]:
        """Yield sum, mean, variance and standard deviation of the finite values of each group, each rounded once."""
        # Integers of some hundred bits: the sum in units of 2^one, squares and products in units of 2^two.
        one, squared = self.sums.unit - exact.UNIT, self.squares.unit - 2 * exact.UNIT
        two = min(2 * one, squared)
        up, down = max(0, one), max(0, -one)
        wider, narrower = max(0, two), max(0, -two)
        product, square = 2 * one - two, squared - two
        ratio = exact.ratio
        found = zip(self.counts[:groups, ROWS].tolist(), self.sums.integers(), self.squares.integers(), strict=False)
        for count, total, squares in found:
            top = total << up
            whole = top >> down if self.whole else ratio(top, 1 << down)
            if not count:
                yield whole, None, None, None
                continue
            mean = ratio(top, count << down)
            if count <= ddof:
                yield whole, mean, None, None
                continue
            top = ((count * squares << square) - (total * total << product)) << wider
            bottom = count * (count - ddof) << narrower
            yield whole, mean, ratio(top, bottom), exact.root(top, bottom)

    def extreme(self, keys: np.ndarray) -> list[Any]:
        """Return the numbers that have these keys."""
        if not self.whole:
            found: Any = (keys ^ (keys >> 63 & np.int64(_LIMITS.max))).view(np.float64)
        else:
            found = keys.view(np.uint64) ^ np.uint64(1 << 63) if self.unsigned else keys
        return list(found.tolist())
