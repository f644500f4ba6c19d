"""What one rank has seen of a column of numbers: exact integers that can be added up, and the extremes.

Rules that hold here:

1. Units are those of `exact`: a sum of values has 1 factor, of squares or products 2, and one more with weights.
2. A row counts where its value is there and, with weights, its weight is there and above 0.
3. Infinite values and NaN are counted and left out of the sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcreduce.stats import exact, kernels
from hpcreduce.stats.batches import Column
from hpcreduce.stats.meeting import NONE, StatsError


class Rows(NamedTuple):
    """The values of some rows of a column that count."""

    values: np.ndarray
    places: np.ndarray | None
    """Which rows of the batch they are; None: all."""
    weights: np.ndarray | None

    def where(self, mask: np.ndarray) -> Rows:
        """Return those of these rows where the mask is true."""
        places = np.flatnonzero(mask) if self.places is None else self.places[mask]
        return Rows(self.values[mask], places, None if self.weights is None else self.weights[mask])


class Sums(NamedTuple):
    """Exact sums over the rows that count; without weights each has weight 1."""

    rows: int = 0
    weight: int = 0
    total: int = 0
    squares: int = 0


class Numbers:
    """What is known of a column of numbers; `low` and `high` are (key, rest, shard, row), of which the lowest wins."""

    def __init__(self, weighted: bool) -> None:
        self.weighted = weighted
        self.counts = np.zeros(0, np.int64)
        self.null = self.nan = self.plus = self.minus = 0
        self.sums = Sums()
        nothing: tuple[int, ...] = NONE
        self.low = self.high = self.first_plus = self.first_minus = nothing

    def integers(self) -> list[int]:
        """Return what is added up over the ranks."""
        sums = self.sums
        return [self.null, self.nan, self.plus, self.minus, sums.rows, sums.weight, sums.total, sums.squares]

    def widths(self) -> list[int]:
        """Return their limbs."""
        return [exact.width(each) for each in ((0, 0, 0, 0, 0, 1, 2, 3) if self.weighted else (0, 0, 0, 0, 0, 1, 1, 2))]

    def tuples(self) -> list[tuple[int, ...]]:
        """Return what the lowest one is sought of."""
        return [self.low, self.high, self.first_minus, self.first_plus]

    def become(self, integers: list[int], counts: np.ndarray) -> None:
        """Become what all ranks have seen, but for the tuples."""
        self.null, self.nan, self.plus, self.minus = integers[:4]
        self.sums = Sums(*integers[4:])

    @property
    def count(self) -> int:
        """How many values there are that are not NaN."""
        return self.sums.rows + self.plus + self.minus

    def add(self, rows: Rows, shard: int, row: int) -> Rows:
        """Take rows in, of a batch that begins there, and return those that are finite."""
        parts = exact.parts(rows.values)
        found = list(map(kernels.squares, parts))
        if found[0].special:
            rows = self._specials(rows, shard, row)
        if rows.values.size:
            self._extremes(rows, found[0].low, found[0].high, shard, row)
            more = sums(rows) if self.weighted else _added(rows.values.size, parts, found)
            self.sums = Sums(*map(sum, zip(self.sums, more, strict=True)))
        return rows

    def _specials(self, rows: Rows, shard: int, row: int) -> Rows:
        values = rows.values
        self.nan += int(np.count_nonzero(np.isnan(values)))
        for sign, name, first in (1, "plus", "first_plus"), (-1, "minus", "first_minus"):
            infinite = values == sign * np.inf
            if number := int(np.count_nonzero(infinite)):
                setattr(self, name, getattr(self, name) + number)
                place = (0, 0, shard, row + _at(rows, infinite))
                setattr(self, first, min(getattr(self, first), place))
        return rows.where(np.isfinite(values))

    def _extremes(self, rows: Rows, low: int, high: int, shard: int, row: int) -> None:
        values = rows.values
        if values.dtype.kind == "f":
            lowest, highest = (low, 0), (-high, 0)
        else:
            lowest = _pair(int(values.min()))
            key, rest = _pair(int(values.max()))
            highest = (-key, -rest)
        if (*lowest, shard, row) < self.low:
            self.low = min(self.low, (*lowest, shard, row + _at(rows, _equal(values, *lowest))))
        if (*highest, shard, row) < self.high:
            self.high = min(self.high, (*highest, shard, row + _at(rows, _equal(values, -highest[0], -highest[1]))))


def sums(rows: Rows) -> Sums:
    """Return the exact sums of finite values."""
    count = rows.values.size
    if rows.weights is None:
        parts = exact.parts(rows.values)
        return _added(count, parts, list(map(kernels.squares, parts)))
    weight = sum(kernels.squares(part).sum for part in exact.parts(rows.weights))
    return Sums(count, weight, linear(rows), quadratic(rows.values, rows.values, rows.weights))


def _added(count: int, parts: list[np.ndarray], found: list[kernels.Deposit]) -> Sums:
    """Return the sums of values without weights, from what their parts add up to."""
    squares = sum(deposit.squares for deposit in found)
    if len(parts) > 1:
        squares += 2 * kernels.products(*parts)
    return Sums(count, count << exact.UNIT, sum(deposit.sum for deposit in found), squares)


def linear(rows: Rows) -> int:
    """Return the exact sum of values, or of weight times value."""
    parts = exact.parts(rows.values)
    if rows.weights is None:
        return sum(kernels.squares(part).sum for part in parts)
    return sum(kernels.products(weight, part) for weight in exact.parts(rows.weights) for part in parts)


def quadratic(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> int:
    """Return the exact sum of products, or of weight times product."""
    pairs = [(first, second) for first in exact.parts(x) for second in exact.parts(y)]
    if weights is None:
        return sum(kernels.products(*pair) for pair in pairs)
    return sum(kernels.triples(weight, *pair) for weight in exact.parts(weights) for pair in pairs)


def number(key: int, rest: int) -> int | float:
    """Return the number that has this key and rest: an int where there is a rest."""
    value = exact.value(key)
    return int(value) + rest if rest else value


def counting(column: Column, weights: Column | None, shard: int, row: int) -> tuple[Rows, int]:
    """Return the rows that count, and how many values are missing."""
    valid = column.valid
    null = 0 if valid is None else int(valid.size - np.count_nonzero(valid))
    rows = Rows(column.values, None, None)
    mask = valid
    if weights is not None:
        check_weights(weights, shard, row)
        there = weights.values > 0 if weights.valid is None else weights.valid & (weights.values > 0)
        mask = there if valid is None else valid & there
        rows = Rows(column.values, None, weights.values)
    if mask is None or mask.all():
        return rows, null
    return rows.where(mask), null


def check_weights(weights: Column, shard: int, row: int) -> None:
    """Raise StatsError where a weight is negative, infinite or NaN."""
    if weights.values.dtype.kind == "u":
        return
    wrong = ~(weights.values >= 0)
    if weights.values.dtype.kind == "f":
        wrong |= np.isinf(weights.values)
    if weights.valid is not None:
        wrong &= weights.valid
    if wrong.any():
        at = int(np.argmax(wrong))
        raise StatsError(f"a weight is {weights.values[at]}, expected a finite number from 0 on", shard, row + at)


def _pair(whole: int) -> tuple[int, int]:
    """Return the key of the float64 at or below an integer, and what is left of it."""
    below = float(whole)
    if int(below) > whole:
        below = float(np.nextafter(below, -np.inf))
    return exact.key(below), whole - int(below)


def _equal(values: np.ndarray, key: int, rest: int) -> np.ndarray:
    """Return where the number with this key is; -0.0 differs from 0.0."""
    if values.dtype.kind != "f":
        return np.asarray(values == int(number(key, rest)))
    wanted = exact.value(key)
    same = values == wanted
    return np.asarray(same if wanted else same & (np.signbit(values) == np.signbit(wanted)))


def _at(rows: Rows, mask: np.ndarray) -> int:
    first = int(np.argmax(mask))
    return first if rows.places is None else int(rows.places[first])
