"""Exact sums as Python integers: in which units, how they travel, and how they are rounded, once.

Rules that hold here:

1. A sum of products of k float64 values is an integer in units of ``2 ** (-1074 k)``: every such product is a whole
   number of them, over the whole range of float64, subnormal numbers included. Integer sums do not depend on an order.
2. Integers travel as int64 limbs of 32 bits, each from 0 to 2^32 - 1 but the last, which carries the sign: so up to
   2^31 ranks can add theirs limb by limb and nothing overflows.
3. Rounding is to the nearest float64, ties to even, into the subnormal range and to infinity, and it happens once.

The range of the sums: 2^64 values of any size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

UNIT = 1074
"""A float64 is a whole number of ``2 ** -UNIT``."""

LIMB = 32
"""Bits of a limb."""

_MASK = (1 << LIMB) - 1


def width(factors: int) -> int:
    """Return the limbs of a sum of products of so many float64 values; 0: of a count.

    Examples
    --------
    >>> width(0), width(1), width(2)
    (3, 68, 134)
    """
    return (2098 * factors + 64) // LIMB + 1


def to_limbs(number: int, limbs: int) -> np.ndarray:
    """Return an integer as int64 limbs, the lowest first.

    Examples
    --------
    >>> to_limbs(-1, 3).tolist()
    [4294967295, 4294967295, -1]
    >>> from_limbs(to_limbs(-1, 3))
    -1
    """
    low = [number >> (LIMB * index) & _MASK for index in range(limbs - 1)]
    return np.array([*low, number >> (LIMB * (limbs - 1))], np.int64)


def from_limbs(limbs: np.ndarray) -> int:
    """Return the integer that limbs are, whatever each of them holds."""
    number = 0
    for limb in reversed(limbs.tolist()):
        number = (number << LIMB) + limb
    return number


def pack(numbers: Sequence[int], widths: Sequence[int]) -> np.ndarray:
    """Return integers as one array of limbs, of which that of another rank may be added."""
    return np.concatenate([np.zeros(0, np.int64), *map(to_limbs, numbers, widths)])


def unpack(limbs: np.ndarray, widths: Sequence[int]) -> list[int]:
    """Return the integers that were packed, or their sums."""
    ends = np.cumsum(widths, dtype=np.int64).tolist()
    return [from_limbs(limbs[end - width : end]) for end, width in zip(ends, widths, strict=True)]


def ratio(numerator: int, denominator: int) -> float:
    """Return the float nearest to a fraction, ties to even; infinite where it is too large.

    Examples
    --------
    >>> ratio(1, 3), ratio(-(10**400), 1), ratio(1, 2**1074), ratio(3, 2**1076), ratio(1, 2**1075)
    (0.3333333333333333, -inf, 5e-324, 5e-324, 0.0)
    """
    try:
        return numerator / denominator  # Python rounds the quotient of two integers correctly
    except OverflowError:
        return math.inf if (numerator < 0) == (denominator < 0) else -math.inf


def root(numerator: int, denominator: int) -> float:
    """Return the float nearest to the square root of a fraction.

    Examples
    --------
    >>> root(2, 1), root(1, 2**2140), root(0, 7)
    (1.4142135623730951, 8e-323, 0.0)
    """
    # Scale by 4^shift so that the root has some 120 bits; what is left of it is told by one bit at the end.
    shift = max(0, 120 - (numerator.bit_length() - denominator.bit_length()) // 2)
    quotient, rest = divmod(numerator << 2 * shift, denominator)
    whole = math.isqrt(quotient)
    inexact = rest > 0 or whole * whole != quotient
    return ratio(2 * whole + inexact, 2 << shift)


def key(value: float) -> int:
    """Return an integer that orders float64 values: -0.0 comes before 0.0.

    Examples
    --------
    >>> key(-1.5) < key(-0.0) < key(0.0) < key(5e-324) < key(math.inf), value(key(-1.5))
    (True, -1.5)
    """
    bits = int(np.float64(value).view(np.int64))
    return bits if bits >= 0 else bits ^ _MOST


def value(number: int) -> float:
    """Return the value that has this key."""
    return float(np.int64(number if number >= 0 else number ^ _MOST).view(np.float64))


_MOST = (1 << 63) - 1


def parts(values: np.ndarray) -> list[np.ndarray]:
    """Return float64 arrays whose exact sum is the given numbers: two where integers are beyond 2^53."""
    if values.dtype.kind == "f" or values.dtype.itemsize < 8 or not values.size:
        return [values.astype(np.float64, copy=False)]
    if max(abs(int(values.min())), abs(int(values.max()))) <= 1 << 53:
        return [values.astype(np.float64)]
    low = values & values.dtype.type(_MASK)
    return [(values - low).astype(np.float64), low.astype(np.float64)]
