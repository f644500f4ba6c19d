"""The second pass: powers of the distance from the mean, for skewness and kurtosis.

Each value becomes ``z = (value - mean) / 2^k``, with 2^k near the standard deviation, and ``s = z * z``, both rounded;
then the sums of z, z z, z s and s s are exact. So the result is not correctly rounded, but the same for any order and
number of ranks. That the mean is rounded too is made good by the sum of z.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from hpcreduce.stats import exact, kernels
from hpcreduce.stats.numbers import Numbers, Rows, linear, quadratic


class Powers:
    """Sums of the first four powers of z, and the number and the weight of the rows of `column`."""

    def __init__(self, column: Numbers, mean: float, deviation: float) -> None:
        self.column = column
        self.mean, self.shift = mean, -math.frexp(deviation)[1]
        self.sums = [0, 0, 0, 0]
        self.counts = np.zeros(0, np.int64)

    def add(self, rows: Rows) -> None:
        """Take in finite values."""
        z = np.ldexp(rows.values.astype(np.float64, copy=False), self.shift) - np.ldexp(self.mean, self.shift)
        s = z * z
        if rows.weights is None:
            found = kernels.squares(z)
            more = [found.sum, found.squares, kernels.products(z, s), kernels.squares(s).squares]
        else:
            weights = rows.weights
            more = [linear(Rows(z, None, weights)), *(quadratic(x, y, weights) for x, y in ((z, z), (z, s), (s, s)))]
        self.sums = [mine + new for mine, new in zip(self.sums, more, strict=True)]

    def integers(self) -> list[int]:
        """Return what is added up over the ranks."""
        return self.sums

    def widths(self) -> list[int]:
        """Return their limbs."""
        return [exact.width(factors) for factors in self._factors()]

    def become(self, integers: list[int], counts: np.ndarray) -> None:
        """Become what all ranks have seen."""
        self.sums = integers

    def _factors(self) -> tuple[int, ...]:
        return (2, 3, 3, 3) if self.column.weighted else (1, 2, 2, 2)

    def shape(self) -> tuple[float | None, float | None, float | None, float | None]:
        """Return skewness and excess kurtosis of the population, and both of a sample."""
        n = Fraction(self.column.sums.weight, 1 << exact.UNIT)
        scaled = zip(self.sums, self._factors(), strict=True)
        s1, s2, s3, s4 = (Fraction(each, 1 << exact.UNIT * factors) for each, factors in scaled)
        mu = s1 / n
        m2 = s2 - mu * s1
        m3 = s3 - 3 * mu * s2 + 2 * mu * mu * s1
        m4 = s4 - 4 * mu * s3 + 6 * mu * mu * s2 - 3 * mu**3 * s1
        if m2 <= 0:
            return None, None, None, None
        squared = m3 * m3 * n / m2**3
        excess = n * m4 / (m2 * m2) - 3
        skewness, sample_skewness = _root(squared, m3), None
        sample_kurtosis = None
        if n > 2:
            sample_skewness = _root(squared * n * (n - 1) / (n - 2) ** 2, m3)
        if n > 3:
            sample_kurtosis = _float((n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * excess + 6))
        return skewness, _float(excess), sample_skewness, sample_kurtosis


def _root(squared: Fraction, sign: Fraction) -> float:
    size = exact.root(squared.numerator, squared.denominator)
    return -size if sign < 0 else size


def _float(number: Fraction) -> float:
    return exact.ratio(number.numerator, number.denominator)
