"""Exact sums of numbers and their squares for each of many groups, and their extremes.

Rules that hold here:

1. A sum is an integer in the units of `exact`, in limbs of 32 bits, a row for each group. Only limbs that a value has
   touched are there: `first` is the lowest.
2. Limbs are int64 and take 2^29 values before what is beyond 32 bits is carried on.
3. Extremes are kept as keys that have the order of the values: of floats `exact.key`, of integers themselves.
4. Sums are rounded once: in doubled precision where that is sure to be right, else as Python's integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcreduce.stats import doubled, exact, kernels

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

    def integers(self, groups: np.ndarray) -> list[int]:
        """Return the sums of these groups, in units of ``2 ** unit`` less those of `exact`."""
        if not self.limbs.shape[1]:
            return [0] * groups.size
        size = 4 * (self.limbs.shape[1] - 1)
        limbs = self.limbs[groups]
        low, top = limbs[:, :-1].astype(np.uint32).tobytes(), 8 * size
        return [
            int.from_bytes(low[start : start + size], "little") + (last << top)
            for start, last in zip(range(0, len(low), size), limbs[:, -1].tolist(), strict=True)
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
        if valid is not None and not valid.all():
            self.counts[:, NULL] += np.bincount(groups[~valid], minlength=len(self.counts))
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

    def spreads(self, groups: int, ddof: int) -> dict[str, Any]:
        """Return sum, mean, variance and standard deviation of the finite values of each group, each rounded once.

        They are masked arrays; sums of integers are an int64 array, or a list where they are too large for that.
        """
        self.sums.carry()
        self.squares.carry()
        unit, aligned = self.sums.unit - exact.UNIT, self.squares.unit - 2 * self.sums.unit
        rows = self.counts[:groups, ROWS]
        with np.errstate(all="ignore"):
            n = rows.astype(np.float64)
            total = doubled.of_limbs(self.sums.limbs[:groups])
            squares = doubled.scaled(doubled.of_limbs(self.squares.limbs[:groups]), aligned)
            number = doubled.Doubled(n, np.zeros(groups), np.zeros(groups))
            spread = doubled.minus(doubled.times(squares, number), doubled.times(total, total))
            variance = doubled.over(doubled.over(spread, n), n - ddof)
            parts = (total, unit), (doubled.over(total, n), unit), (variance, 2 * unit), (doubled.root(variance), unit)
            found, certain = zip(*(doubled.sure(*part) for part in parts), strict=True)
        equal = self.low[:groups] == self.high[:groups]
        for figure, known in zip(found, (rows == 0, rows == 0, rows <= ddof, rows <= ddof), strict=True):
            figure[known] = 0.0
        for figure in found[2:]:
            figure[equal] = 0.0
        unsure = ~(certain[0] & certain[1]) & (rows > 0) | ~(certain[2] & certain[3]) & (rows > ddof) & ~equal
        at = np.flatnonzero(unsure)
        for group, figures in zip(at.tolist(), self._rounded(at, ddof), strict=True):
            for place, figure in zip(found, figures, strict=True):
                place[group] = figure
        few, none = rows <= ddof, rows == 0
        masked = [np.ma.masked_array(each, mask) for each, mask in zip(found[1:], (none, few, few), strict=True)]
        sums = self._whole(groups, total.high) if self.whole else np.ma.masked_array(found[0])
        return dict(zip(("sum", "mean", "var", "std"), (sums, *masked), strict=True))

    def _rounded(self, groups: np.ndarray, ddof: int) -> Iterator[tuple[float, float, float, float]]:
        """Yield the same figures of groups that have values, computed as integers; 0 stands for what there is not."""
        # Integers of some hundred bits: the sum in units of 2^one, squares and products in units of 2^two.
        one, squared = self.sums.unit - exact.UNIT, self.squares.unit - 2 * exact.UNIT
        two = min(2 * one, squared)
        up, down = max(0, one), max(0, -one)
        wider, narrower = max(0, two), max(0, -two)
        product, square = 2 * one - two, squared - two
        rows = self.counts[groups, ROWS].tolist()
        for count, total, squares in zip(rows, self.sums.integers(groups), self.squares.integers(groups), strict=True):
            whole, mean = exact.ratio(total << up, 1 << down), exact.ratio(total << up, count << down)
            if count <= ddof:
                yield whole, mean, 0.0, 0.0
                continue
            top = ((count * squares << square) - (total * total << product)) << wider
            bottom = count * (count - ddof) << narrower
            yield whole, mean, exact.ratio(top, bottom), exact.root(top, bottom)

    def _whole(self, groups: int, sizes: np.ndarray) -> Any:
        """Return the sums of integers, of about these sizes in units."""
        unit = self.sums.unit - exact.UNIT
        if not (np.ldexp(abs(sizes), unit) < 2.0**62).all():
            return [total >> -unit if unit < 0 else total << unit for total in self.sums.integers(np.arange(groups))]
        found = np.zeros(groups, np.int64)
        for index in range(self.sums.limbs.shape[1]):
            shift, limb = unit + exact.LIMB * index, self.sums.limbs[:groups, index]
            if shift < 64:  # what is beyond wraps around, and belongs to the sign
                found += limb << shift if shift >= 0 else limb >> min(63, -shift)
        return np.ma.masked_array(found)

    def extreme(self, keys: np.ndarray) -> np.ndarray:
        """Return the numbers that have these keys."""
        if not self.whole:
            return np.asarray(keys ^ (keys >> 63 & np.int64(_LIMITS.max))).view(np.float64)
        return keys.view(np.uint64) ^ np.uint64(1 << 63) if self.unsigned else keys
