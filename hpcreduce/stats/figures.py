"""From exact integers to the figures that are told: each is rounded here, once.

Rules that hold here:

1. Infinite values follow IEEE 754: their sum and mean are infinite, or NaN if there are both; their variance is NaN.
2. Without values the sum is 0, and there is no mean, variance or extreme. With `ddof` or fewer there is no variance.
3. The sum of values that are all -0.0 is -0.0, as NumPy's is.
"""

from __future__ import annotations

import math
from typing import Any

from hpcreduce.stats import exact, fast
from hpcreduce.stats.batches import Field
from hpcreduce.stats.covariance import fraction
from hpcreduce.stats.distinct import ERROR, Counted
from hpcreduce.stats.fast import FastNumbers
from hpcreduce.stats.meeting import NONE
from hpcreduce.stats.numbers import Numbers, number
from hpcreduce.stats.others import Others
from hpcreduce.stats.powers import Powers
from hpcreduce.stats.product import Product
from hpcreduce.stats.quantilerules import POINTS
from hpcreduce.stats.quantiles import Quantiles
from hpcreduce.stats.wanted import APPROXIMATE, EXACT, ROUNDED, SAME, Described, Wanted


def integral(field: Field) -> bool:
    """Whether the values of a column of numbers are integers."""
    return field.dtype.startswith(("int", "uint"))


def described(field: Field, told: dict[str, Any]) -> Described:
    """Return what is known of a column; figures that there are not promise nothing."""
    promises = {name: promise for name, promise in told.pop("promises").items() if told.get(name) is not None}
    return Described(field.kind, field.dtype, promises=promises, **told)


def of_others(field: Field, column: Others) -> Described:
    """Return what is known of a column that is not one of numbers."""
    low, high = (None if pair is None else pair[1] for pair in (column.low, column.high))
    told = {"count": column.count, "null": column.null, "min": low, "max": high}
    return described(field, told | {"promises": dict.fromkeys(told, EXACT)})


def of_numbers(field: Field, column: Numbers, wanted: Wanted, whole_weights: bool) -> dict[str, Any]:
    """Return the figures of a column of numbers, with what they promise; None for what there is not."""
    whole = integral(field)
    told: dict[str, Any] = {"count": column.count, "null": column.null, "nan": column.nan}
    lost = wanted.nan == "propagate" and column.nan > 0
    found = totals(column, wanted.ddof, whole and (whole_weights or not column.weighted))
    told |= dict.fromkeys(found, math.nan) if lost else found
    low, high = (math.nan, None), (math.nan, None)
    if not lost:
        low = _extreme(-1, column.low, column.first_minus, column.first_plus, whole)
        high = _extreme(1, column.high, column.first_plus, column.first_minus, whole)
    told |= {"min": low[0], "max": high[0], "argmin": low[1], "argmax": high[1]}
    rounded = APPROXIMATE if wanted.fast else ROUNDED
    promises = {name: rounded if name in found and not isinstance(told[name], int) else EXACT for name in told}
    for name, extreme in ("min", column.low), ("max", column.high):
        if not whole and extreme[1]:  # an integer of another file that float64 does not hold
            promises[name] = ROUNDED
    return told | {"promises": promises | {"histogram": EXACT}}


def of_moments(
    field: Field, column: Numbers, wanted: Wanted, powers: Powers | None, product: Product | None
) -> dict[str, Any]:
    """Return the product and the figures of the second pass, with what they promise."""
    lost = wanted.nan == "propagate" and column.nan > 0
    names = "skewness", "kurtosis", "sample_skewness", "sample_kurtosis"
    if lost or column.plus or column.minus:
        told: dict[str, Any] = dict.fromkeys(names, math.nan)
    elif isinstance(column, FastNumbers):
        told = dict(zip(names, fast.shape(column.part), strict=True))
    else:
        told = dict(zip(names, powers.shape() if powers else [None] * 4, strict=True))
    promises = dict.fromkeys(names, APPROXIMATE if wanted.fast else SAME)
    if product is not None and column.count:
        told["product"] = math.nan if lost else product.result(integral(field), column.plus, column.minus)
        promises["product"] = EXACT if isinstance(told["product"], int) else SAME
    return told | {"promises": promises}


def of_quantiles(field: Field, search: Quantiles, index: int, told: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """Return the quantiles of a column of numbers, of which the rest is told already, and what they promise."""
    values = search.told(index, integral(field), told["min"], told["max"])
    if wanted.nan == "propagate" and told["nan"]:
        values = [math.nan] * len(values)
    promise = APPROXIMATE if wanted.approx else EXACT if wanted.method in POINTS else ROUNDED
    return {"quantiles": dict(zip(wanted.quantiles, values, strict=True)), "promises": {"quantiles": promise}}


def of_counted(described: Described, counted: Counted, wanted: Wanted) -> Described:
    """Return a column with the number of its different values and the most frequent ones."""
    promises = dict(described.promises)
    if wanted.distinct:
        promises["distinct"] = APPROXIMATE if counted.over else EXACT
        error = ERROR if counted.over else 0.0
        described = described._replace(distinct=counted.number, distinct_error=error)
    if wanted.top:
        promises["top"] = EXACT
        described = described._replace(top=counted.told())
    return described._replace(promises=promises)


def totals(column: Numbers, ddof: int, whole: bool) -> dict[str, Any]:
    """Return sum, mean, variance and standard deviation; `whole`: the sum is an integer."""
    sums, factors = column.sums, 2 if column.weighted else 1
    if column.plus or column.minus:
        endless = math.nan if column.plus and column.minus else math.inf if column.plus else -math.inf
        return {"sum": endless, "mean": endless, "var": math.nan, "std": math.nan}
    if whole:
        total: int | float = sums.total >> exact.UNIT * factors
    else:
        total = exact.ratio(sums.total, 1 << exact.UNIT * factors)
    if isinstance(column, FastNumbers):
        found = fast.totals(column, ddof)
        return found | {"sum": total} if whole and not column.weighted else found
    if not sums.rows:
        return {"sum": total, "mean": None, "var": None, "std": None}
    mean = exact.ratio(sums.total, sums.weight << exact.UNIT * (factors - 1))
    if not sums.total and column.high[0] == -exact.key(-0.0):  # the highest of them
        total = mean = -0.0
    top, bottom = fraction(sums.rows, sums.weight, sums.total, sums.total, sums.squares, ddof, column.weighted)
    if bottom <= 0:
        return {"sum": total, "mean": mean, "var": None, "std": None}
    return {"sum": total, "mean": mean, "var": exact.ratio(top, bottom), "std": exact.root(top, bottom)}


def _extreme(sign: int, finite: tuple[int, ...], beyond: tuple[int, ...], last: tuple[int, ...], whole: bool) -> Any:
    """Return an extreme and where it is: an infinite one, a finite one, the other infinite one, or none."""
    if beyond != NONE:
        return sign * math.inf, beyond[2:]
    if finite != NONE:
        value = number(-sign * finite[0], -sign * finite[1])
        return int(value) if whole else float(value), finite[2:]
    if last != NONE:
        return -sign * math.inf, last[2:]
    return None, None
