"""Which value a quantile is: the rules of NumPy's methods, and the point between two values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from hpcreduce.stats import exact


def _linear(place: float) -> tuple[int, float]:
    return math.floor(place), place - math.floor(place)


METHODS: dict[str, Callable[[float], tuple[int, float]]] = {
    "linear": _linear,
    "lower": lambda place: (math.floor(place), 0.0),
    "higher": lambda place: (math.ceil(place), 0.0),
    "nearest": lambda place: (round(place), 0.0),
    "midpoint": lambda place: (math.floor(place), 0.5 if place % 1 else 0.0),
}
"""Name -> a function from a place among the sorted values, from 0, to the value at or before it and how far to go on
to the next one. A quantile q of n values has the place q (n - 1), rounded to float64 as NumPy does."""

POINTS = ("lower", "higher", "nearest")
"""The methods that return one of the values, exactly."""


def check(quantiles: Sequence[float], method: str) -> None:
    """Raise ValueError for quantiles that there are not."""
    if method not in METHODS:
        raise ValueError(f"the method of quantiles must be one of {', '.join(METHODS)}, found {method!r}")
    for q in quantiles:
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile must be from 0 to 1, found {q}")


def between(low: int | float, high: int | float, part: float) -> int | float:
    """Return ``low + part (high - low)``, rounded once; an int where no float is equal to it.

    Examples
    --------
    >>> between(1.0, 2.0, 0.25), between(2**53 + 1, 2**53 + 3, 0.5), between(-1.7e308, 1.7e308, 0.5)
    (1.25, 9007199254740994.0, 0.0)
    """
    if math.isinf(low) or math.isinf(high):
        return low if low == high else math.nan if math.isinf(low) and math.isinf(high) else low + high
    point = Fraction(low) + (Fraction(high) - Fraction(low)) * Fraction(part)
    rounded = exact.ratio(point.numerator, point.denominator)
    return int(point) if point.denominator == 1 and point != rounded else rounded
