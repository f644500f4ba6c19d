"""Moments in float64, in one pass: quicker where many are wanted, approximate, and other bits for other parts or ranks.

Two parts with weights (or numbers of rows) w are merged pairwise; the part without rows is the identity.

References
----------
P. Pebay, Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical moments,
Sandia report SAND2008-6212, 2008, sections 2 and 3.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.stats import exact
from hpcreduce.stats.covariance import Pair
from hpcreduce.stats.numbers import Numbers, Rows, Sums

_BLOCK = 1 << 15


class Part(NamedTuple):
    """Weight, mean, and the sums of the second, third and fourth power of the distance from it."""

    w: float = 0.0
    mean: float = 0.0
    m2: float = 0.0
    m3: float = 0.0
    m4: float = 0.0


class Shared(NamedTuple):
    """Weight and means of two columns over the rows that they share, and the sum of the products of the distances."""

    w: float = 0.0
    x: float = 0.0
    y: float = 0.0
    c: float = 0.0


def merge(a: Part, b: Part) -> Part:
    """Return what is known of two parts together."""
    if not (a.w and b.w):
        return a if a.w else b
    w = a.w + b.w
    d, p, q = b.mean - a.mean, a.w / w, b.w / w
    return Part(
        w,
        a.mean + d * q,
        a.m2 + b.m2 + d * d * (a.w * q),
        a.m3 + b.m3 + d**3 * (a.w * q) * (p - q) + 3 * d * (p * b.m2 - q * a.m2),
        a.m4
        + b.m4
        + d**4 * (a.w * q) * (p * p - p * q + q * q)
        + 6 * d * d * (p * p * b.m2 + q * q * a.m2)
        + 4 * d * (p * b.m3 - q * a.m3),
    )


def merge_shared(a: Shared, b: Shared) -> Shared:
    """Return what is known of two parts together."""
    if not (a.w and b.w):
        return a if a.w else b
    w = a.w + b.w
    dx, dy, q = b.x - a.x, b.y - a.y, b.w / w
    return Shared(w, a.x + dx * q, a.y + dy * q, a.c + b.c + dx * dy * (a.w * q))


class FastNumbers(Numbers):
    """A column of numbers whose sums are in float64, but for those of integers."""

    def __init__(self, weighted: bool, moments: bool) -> None:
        super().__init__(weighted)
        self.moments = moments
        self.part = Part()

    def add(self, rows: Rows, shard: int, row: int) -> Rows:
        """Take rows in, of a batch that begins there, and return those that are finite."""
        if not rows.values.size:
            return rows
        low, high = rows.values.min(), rows.values.max()
        if not (np.isfinite(low) and np.isfinite(high)):
            rows = self._specials(rows, shard, row)
            if not rows.values.size:
                return rows
            low, high = rows.values.min(), rows.values.max()
        self._extremes(rows, exact.key(float(low)), exact.key(float(high)), shard, row)
        total = 0
        if rows.values.dtype.kind != "f" and not self.weighted:
            total = _whole_sum(rows.values) << exact.UNIT
        self.sums = Sums(self.sums.rows + rows.values.size, 0, self.sums.total + total)
        self.part = merge(self.part, _part(rows, self.moments))
        return rows


class FastPair(Pair):
    """Two columns whose products are in float64."""

    def __init__(self, x: int, y: int, weighted: bool) -> None:
        super().__init__(x, y, weighted)
        self.shared = Shared()

    def _products(self, x: Rows, y: Rows) -> None:
        if not x.values.size:
            return
        dx, dy = x.values.astype(np.float64), y.values.astype(np.float64)
        weights = None if x.weights is None else x.weights.astype(np.float64)
        mx, my = np.average(dx, weights=weights), np.average(dy, weights=weights)
        dx -= mx
        dy -= my
        w = float(dx.size if weights is None else weights.sum())
        products = np.dot(dx if weights is None else dx * weights, dy)
        self.shared = merge_shared(self.shared, Shared(w, float(mx), float(my), float(products)))

    def covariance(self, x: Numbers, y: Numbers, ddof: int) -> float:
        """Return the covariance; NaN where there are too few rows or one is not finite."""
        left = self.shared.w - ddof
        return math.nan if self.special or left <= 0 else self.shared.c / left


Floats = tuple[list[Part], list[Shared]]


def floats(columns: Sequence[Numbers], pairs: Sequence[Pair]) -> Floats:
    """Return what a rank tells the others of fast columns and pairs."""
    parts = [column.part for column in columns if isinstance(column, FastNumbers)]
    return parts, [pair.shared for pair in pairs if isinstance(pair, FastPair)]


def meet(columns: Sequence[Numbers], pairs: Sequence[Pair], told: Sequence[Floats]) -> None:
    """Make fast columns and pairs what all ranks have seen; they are merged in the order of the ranks."""
    for index, column in enumerate(columns):
        if isinstance(column, FastNumbers):
            column.part = functools.reduce(merge, (parts[index] for parts, _ in told), Part())
    for index, pair in enumerate(pairs):
        if isinstance(pair, FastPair):
            pair.shared = functools.reduce(merge_shared, (shared[index] for _, shared in told), Shared())


def totals(column: FastNumbers, ddof: int) -> dict[str, float | None]:
    """Return sum, mean, variance and standard deviation of finite values."""
    part = column.part
    if not part.w:
        return {"sum": 0.0, "mean": None, "var": None, "std": None}
    left = part.w - ddof
    var = part.m2 / left if left > 0 else None
    return {"sum": part.mean * part.w, "mean": part.mean, "var": var, "std": None if var is None else math.sqrt(var)}


def shape(part: Part) -> tuple[float | None, float | None, float | None, float | None]:
    """Return skewness and kurtosis of the population, and both of a sample, as `powers.Powers.shape` does."""
    n, m2, m3, m4 = part.w, part.m2, part.m3, part.m4
    if not m2 > 0:
        return None, None, None, None
    skewness, excess = math.sqrt(n) * m3 / m2**1.5, n * m4 / (m2 * m2) - 3
    sample_skewness = skewness * math.sqrt(n * (n - 1)) / (n - 2) if n > 2 else None
    sample_kurtosis = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * excess + 6) if n > 3 else None
    return skewness, excess, sample_skewness, sample_kurtosis


def _part(rows: Rows, moments: bool) -> Part:
    """Return what is known of rows, taken in blocks that stay in a processor's cache."""
    part = Part()
    for start in range(0, rows.values.size, _BLOCK):
        d: Any = rows.values[start : start + _BLOCK].astype(np.float64)
        weights: Any = None
        w, total = float(d.size), float(d.sum())
        if rows.weights is not None:
            weights = rows.weights[start : start + _BLOCK].astype(np.float64)
            w, total = float(weights.sum()), float(np.dot(weights, d))
        mean = total / w
        d -= mean
        weighed = d if weights is None else d * weights
        m2, m3, m4 = float(np.dot(weighed, d)), 0.0, 0.0
        if moments:
            squares = d * d
            m3, m4 = float(np.dot(weighed, squares)), float(np.dot(weighed, squares * d))
        part = merge(part, Part(w, mean, m2, m3, m4))
    return part


def _whole_sum(values: np.ndarray) -> int:
    if values.dtype.itemsize < 8:
        return int(values.sum(dtype=np.int64))
    low = values & values.dtype.type(0xFFFFFFFF)
    return (int((values >> 32).sum()) << 32) + int(low.sum())
