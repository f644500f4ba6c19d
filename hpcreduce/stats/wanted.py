"""What can be asked of a table whose rows lie on many ranks, and what is told of it.

Rules that hold here:

1. Every figure says what it promises: ``exact``, ``correctly rounded`` (the float nearest to the exact figure of the
   values given), ``same bits`` (rounded on the way, but the same for any number of ranks, parts and order of rows) or
   ``approximate``.
2. The count is that of values that are neither missing nor NaN. NaN is counted apart.
3. What ranks tell each other is a number of integers that depends on the columns alone, not on the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcreduce.stats.batches import Field

EXACT, ROUNDED, SAME, APPROXIMATE = "exact", "correctly rounded", "same bits", "approximate"
"""What a figure can promise."""


class Wanted(NamedTuple):
    """Which statistics are asked for."""

    ddof: int = 1
    moments: bool = False
    covariance: bool = False
    histogram: tuple[int, float | None, float | None] | None = None
    """Bins, and the range; without one it is that of all values."""
    weights: str | None = None
    """The column that says how often each row counts."""
    nan: str = "skip"
    """``skip``, or ``propagate``: one NaN makes the sum, the mean, the extremes, ... NaN."""
    fast: bool = False
    quantiles: tuple[float, ...] = ()
    """From 0 to 1."""
    method: str = "linear"
    """What stands for a quantile between two values: a name of `quantilerules.METHODS`."""
    approx: bool = False
    """Quantiles from one pass, within `quantiles.ERROR` of a value."""
    distinct: bool = False
    top: int = 0
    """How many of the most frequent values."""
    by: tuple[Field, ...] = ()
    """The columns whose values make the groups of which figures are told besides those of all rows."""


class Described(NamedTuple):
    """What is known of one column; None for what does not exist or was not asked for."""

    kind: str
    dtype: str
    count: int  # type: ignore[assignment]
    null: int
    nan: int = 0
    sum: int | float | None = None
    mean: float | None = None
    var: float | None = None
    std: float | None = None
    min: int | float | str | bool | None = None
    max: int | float | str | bool | None = None
    argmin: tuple[int, int] | None = None
    """(shard, row in the shard), the lowest on ties."""
    argmax: tuple[int, int] | None = None
    product: int | float | None = None
    skewness: float | None = None
    sample_skewness: float | None = None
    kurtosis: float | None = None
    sample_kurtosis: float | None = None
    histogram: tuple[np.ndarray, np.ndarray] | None = None
    """Edges and counts."""
    quantiles: Mapping[float, int | float | None] | None = None
    distinct: int | None = None
    distinct_error: float | None = None
    """The standard error of an estimate, relatively; 0 if the number is exact."""
    top: list[tuple[int | float | str | bool, int]] | None = None
    """The most frequent values, and how often each is there."""
    promises: Mapping[str, str] = {}
    """For each figure that is there, what it promises."""


class Groups(NamedTuple):
    """What is known of groups of rows, in the order of their keys."""

    by: list[str]
    keys: list[list[int | str | bool | None]]
    """For each column of `by` the value of each group; dates as text in ISO form, None for what is missing."""
    rows: list[int]
    columns: dict[str, dict[str, list[int | float | str | bool | None]]]
    """Column -> figure -> what it is in each group."""
    promises: dict[str, dict[str, str]]
    """Column -> figure -> what it promises."""


class Summary(NamedTuple):
    """What is known of a table."""

    rows: int
    ranks: int
    shard_rows: list[int]
    """The rows of each shard, up to the last one that has any."""
    columns: dict[str, Described]
    covariance: tuple[list[str], np.ndarray] | None = None
    """The names of the number columns, and the matrix; NaN where a pair has too few rows."""
    groups: Groups | None = None
    unbinned: Sequence[str] = ()
    """Columns without a histogram, since float64 cannot tell the edges of so many bins of their range apart."""
