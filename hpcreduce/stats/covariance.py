"""Exact sums of the products of two columns, over the rows in which both have a value that counts."""

from __future__ import annotations

import math

import numpy as np

from hpcreduce.stats import exact, numbers
from hpcreduce.stats.numbers import Numbers, Rows


class Pair:
    """What is known of two columns x and y together.

    The sums over the rows that they share are those of each column, less those of the rows that the other one lacks:
    mostly few, so that little is added up twice.
    """

    def __init__(self, x: int, y: int, weighted: bool) -> None:
        self.x, self.y, self.weighted = x, y, weighted
        self.counts = np.zeros(0, np.int64)
        self.special = self.alone = self.weight_alone = self.x_alone = self.y_alone = self.xy = 0

    def integers(self) -> list[int]:
        """Return what is added up over the ranks."""
        return [self.special, self.alone, self.weight_alone, self.x_alone, self.y_alone, self.xy]

    def widths(self) -> list[int]:
        """Return their limbs."""
        return [exact.width(each) for each in ((0, 0, 1, 2, 2, 3) if self.weighted else (0, 0, 1, 1, 1, 2))]

    def become(self, integers: list[int], counts: np.ndarray) -> None:
        """Become what all ranks have seen."""
        self.special, self.alone, self.weight_alone, self.x_alone, self.y_alone, self.xy = integers

    def add(self, x: tuple[Rows, Rows], y: tuple[Rows, Rows], rows: int, propagate: bool) -> None:
        """Take in the rows of each column in a batch that are there, and those of them that are finite."""
        (x_there, x_finite), (y_there, y_finite) = x, y
        x_mask, y_mask = mask(x_finite, rows), mask(y_finite, rows)
        if x_mask is None and y_mask is None:
            self._products(x_finite, y_finite)
            return
        full = np.ones(rows, bool)
        x_mask, y_mask = full if x_mask is None else x_mask, full if y_mask is None else y_mask
        shared_x, shared_y = x_finite.where(y_mask[_index(x_finite)]), y_finite.where(x_mask[_index(y_finite)])
        self._products(shared_x, shared_y)
        alone = x_finite.where(~y_mask[_index(x_finite)])
        if alone.values.size:
            sums = numbers.sums(alone)
            self.alone += sums.rows
            self.weight_alone += sums.weight
            self.x_alone += sums.total
        alone = y_finite.where(~x_mask[_index(y_finite)])
        if alone.values.size:
            self.y_alone += numbers.linear(alone)
        both = _counted(x_there, rows, propagate) & _counted(y_there, rows, propagate)
        self.special += int(np.count_nonzero(both)) - shared_x.values.size

    def _products(self, x: Rows, y: Rows) -> None:
        self.xy += numbers.quadratic(x.values, y.values, x.weights)

    def covariance(self, x: Numbers, y: Numbers, ddof: int) -> float:
        """Return the covariance, rounded once; NaN where there are too few rows or one is not finite."""
        if self.special:
            return math.nan
        count, weight = x.sums.rows - self.alone, x.sums.weight - self.weight_alone
        sums = x.sums.total - self.x_alone, y.sums.total - self.y_alone
        return spread(count, weight, *sums, self.xy, ddof, self.weighted)


def spread(count: int, weight: int, x: int, y: int, xy: int, ddof: int, weighted: bool) -> float:
    """Return the covariance that these sums tell, rounded once; NaN where there are too few rows."""
    top, bottom = fraction(count, weight, x, y, xy, ddof, weighted)
    return exact.ratio(top, bottom) if bottom > 0 else math.nan


def fraction(count: int, weight: int, x: int, y: int, xy: int, ddof: int, weighted: bool) -> tuple[int, int]:
    """Return the exact covariance as a fraction; its denominator is not above 0 where there are too few rows."""
    if weighted:
        return weight * xy - x * y, (weight * (weight - (ddof << exact.UNIT))) << 2 * exact.UNIT
    return count * xy - x * y, (count * (count - ddof)) << 2 * exact.UNIT


def mask(rows: Rows, count: int) -> np.ndarray | None:
    """Return which rows of the batch these are, or None for all."""
    if rows.places is None:
        return None
    result = np.zeros(count, bool)
    result[rows.places] = True
    return result


def _index(rows: Rows) -> np.ndarray | slice:
    return slice(None) if rows.places is None else rows.places


def _counted(rows: Rows, count: int, propagate: bool) -> np.ndarray:
    if not propagate and rows.values.dtype.kind == "f":
        rows = rows.where(~np.isnan(rows.values))
    found = mask(rows, count)
    return np.ones(count, bool) if found is None else found
