"""Many numbers at a time in doubled precision, each with a bound of its error, to round exact sums fast and rightly.

Rules that hold here:

1. A number is the sum of two float64, of which `high` is the float nearest to it. It is within `error` of what it
   stands for.
2. A float is told only if all that is within the error rounds to it (`sure`). What is not sure is left to the integers
   of `exact`, so that every figure is correctly rounded.
3. Overflow makes NaN and infinite values, which are not sure.

References
----------
T. J. Dekker, A floating-point technique for extending the available precision, Numer. Math. 18, 1971.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hpcreduce.stats import exact

_STEP = 2.0**-100
"""More than an operation adds to the error, relatively: each is right to 2^-104 or better."""

_SPLIT = float((1 << 27) + 1)


class Doubled(NamedTuple):
    """Numbers as pairs of float64 arrays."""

    high: Any
    low: Any
    error: Any


def of_limbs(limbs: np.ndarray) -> Doubled:
    """Return integers in limbs that carry no more than the sign beyond 32 bits, a row for each.

    Examples
    --------
    >>> of_limbs(np.array([[1, 0, 2], [2**32 - 1, 2**32 - 1, -1]]))[:2]
    (array([ 3.68934881e+19, -1.00000000e+00]), array([1., 0.]))
    """
    high = low = np.zeros(len(limbs))
    for index in range(limbs.shape[1] - 1, -1, -1):
        total, more = _sum(high, np.ldexp(limbs[:, index].astype(np.float64), exact.LIMB * index))
        high, low = _normal(total, low + more)
    # Integers below 2^105 are two floats exactly.
    error = np.where(abs(high) < 2.0**105, 0.0, abs(high) * limbs.shape[1] * _STEP)
    if limbs.shape[1]:
        error = np.where(abs(limbs[:, -1]) < 1 << 53, error, np.inf)
    return Doubled(high, low, error)


def scaled(x: Doubled, power: int) -> Doubled:
    """Return ``x * 2 ** power``."""
    return Doubled(*(np.ldexp(part, power) for part in x))


def times(x: Doubled, y: Doubled) -> Doubled:
    """Return the product."""
    product, more = _product(x.high, y.high)
    high, low = _normal(product, more + (x.high * y.low + x.low * y.high))
    return Doubled(high, low, 2 * (abs(x.high) * y.error + abs(y.high) * x.error) + abs(high) * _STEP)


def minus(x: Doubled, y: Doubled) -> Doubled:
    """Return the difference."""
    high, low = _sum(x.high, -y.high)
    more, least = _sum(x.low, -y.low)
    high, low = _normal(high, low + more)
    high, low = _normal(high, low + least)
    return Doubled(high, low, x.error + y.error + (abs(x.high) + abs(y.high)) * _STEP)


def over(x: Doubled, divisor: np.ndarray) -> Doubled:
    """Return the quotient by whole float64 numbers; by powers of two it is exact."""
    quotient = x.high / divisor
    product, more = _product(quotient, divisor)
    high, low = _normal(quotient, (((x.high - product) - more) + x.low) / divisor)
    step = np.where(np.frexp(divisor)[0] == 0.5, 0.0, _STEP)
    return Doubled(high, low, x.error / divisor + abs(high) * step)


def root(x: Doubled) -> Doubled:
    """Return the square root."""
    guess = np.sqrt(x.high)
    square, more = _product(guess, guess)
    high, low = _normal(guess, (((x.high - square) - more) + x.low) / (2 * guess))
    return Doubled(high, low, np.where(x.error < x.high / 2, x.error / high + abs(high) * _STEP, np.inf))


def sure(x: Doubled, power: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``x * 2 ** power`` as the nearest float64, and where that is sure."""
    told = np.ldexp(x.high, power)
    size = abs(told)
    normal = (told == 0) | ((size > 2.0**-1000) & (size < 2.0**1000))
    return told, normal & (x.high + (x.low + x.error) == x.high) & (x.high + (x.low - x.error) == x.high)


def _sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded sum and what is left of it."""
    total = a + b
    theirs = total - a
    return total, (a - (total - theirs)) + (b - theirs)


def _normal(high: Any, low: Any) -> tuple[Any, Any]:
    """Return the same sum of two, the first of which is not smaller than the second."""
    total = high + low
    return total, low - (total - high)


def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded product and what is left of it."""
    product = a * b
    a_high, b_high = a * _SPLIT, b * _SPLIT
    a_high, b_high = a_high - (a_high - a), b_high - (b_high - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
