"""The product of many values: through logarithms that are added up exactly, so it does not depend on an order.

A mantissa is ``1 + r``, with r below 2^-7, over an entry of a table. The logarithm of ``1 + r`` is rounded, with an
error below 2^-59 for each value; all else is counted. So n values give a relative error of n 2^-59 at most, and only
arithmetic that IEEE 754 fixes is used on the way: the same bits on any machine. Powers of two have no error.
"""

from __future__ import annotations

import decimal
import functools
import math

import numpy as np

from hpcreduce.stats import exact, kernels

_INDEX = 7
_RECIPROCALS = np.array([512, *(round(512 / (1 + (i + 0.5) / 128)) for i in range(1, 128))])
"""Of mantissas from 1 to 2, in units of 1/512."""

EXACT_BELOW = 1 << 50
"""Products of integers below this are exact: at most 31 of their factors are not powers of two."""


_DIGITS = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


class Product:
    """Factors that a rank has seen: zeros, negative ones and mantissas of each kind, and the sum of the logarithms."""

    def __init__(self) -> None:
        self.counts = np.zeros(3 + len(_RECIPROCALS), np.int64)
        """Zeros, negative values, the sum of the exponents, and how often each entry of the table."""
        self.logarithms = 0

    def add(self, values: np.ndarray) -> None:
        """Take in finite values."""
        mantissas, exponents = np.frexp(values.astype(np.float64, copy=False))
        there = mantissas != 0
        whole = np.abs(mantissas[there] * 2.0**53).astype(np.int64)
        index = (whole >> 45) & 127
        rest = (whole * _RECIPROCALS[index] - (1 << 61)).astype(np.float64) * 2.0**-61
        series = np.zeros_like(rest)
        for power in range(8, 1, -1):
            series = rest * (series + (-1.0 if power % 2 == 0 else 1.0) / power)
        self.logarithms += kernels.squares(rest + rest * series).sum
        self.counts[0] += values.size - whole.size
        self.counts[1] += int(np.count_nonzero(np.signbit(mantissas)))
        self.counts[2] += int(exponents[there].sum(dtype=np.int64)) + 8 * whole.size
        self.counts[3:] += np.bincount(index, minlength=len(_RECIPROCALS))

    def integers(self) -> list[int]:
        """Return what is added up over the ranks besides the counts."""
        return [self.logarithms]

    def widths(self) -> list[int]:
        """Return its limbs."""
        return [exact.width(1)]

    def become(self, integers: list[int], counts: np.ndarray) -> None:
        """Become what all ranks have seen."""
        self.logarithms, self.counts = integers[0], counts

    def result(self, integers: bool, plus: int = 0, minus: int = 0) -> int | float:
        """Return the product of what has been taken in and so many infinities; of integers an int where it is exact."""
        zeros, negative, exponent, *uses = self.counts.tolist()
        sign = -1 if (negative + minus) % 2 else 1
        if plus or minus:
            return math.nan if zeros else sign * math.inf
        if zeros:
            return 0 if integers else sign * 0.0
        with decimal.localcontext(_DIGITS):
            logarithm = exponent * _logarithm(2)
            for count, reciprocal in zip(uses, _RECIPROCALS.tolist(), strict=True):
                if count:
                    logarithm -= count * _logarithm(reciprocal)
            logarithm += decimal.Decimal(self.logarithms) / (1 << exact.UNIT)
            if abs(logarithm) > 800:
                return sign * (math.inf if logarithm > 0 else 0.0)
            size = logarithm.exp()
            if integers and size < EXACT_BELOW:
                return sign * round(size)
            return sign * float(size)


@functools.cache
def _logarithm(number: int) -> decimal.Decimal:
    return _DIGITS.ln(decimal.Decimal(number))
