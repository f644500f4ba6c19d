"""Count, sum, mean, variance, extremes and more of the columns of a table whose rows lie on many ranks.

Rules that hold here:

1. Each rank reads its own rows, once for each pass. A second pass is made for skewness and kurtosis, which need the
   mean, for a histogram whose range is that of the values, and for quantiles; for these there may be more.
2. What ranks tell each other is some integers for each column, each pair of columns and each shard: not more with more
   rows. For quantiles it is 0.5 MB for each column, and for each bin that is looked into.
3. A rank that fails goes on to where the ranks meet, and all raise the same error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hpcreduce.stats import meeting, quantilerules
from hpcreduce.stats.batches import NUMBER, Batch, Field
from hpcreduce.stats.meeting import StatsError
from hpcreduce.stats.table import Table
from hpcreduce.stats.wanted import Summary, Wanted

Reader = Callable[[Sequence[str]], Iterable[Batch]]


def summarise(comm: Any, schema: Sequence[Field], batches: Reader, wanted: Wanted) -> Summary:
    """Describe the columns of a table of which each rank reads its own shards; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        All its ranks call this with the same schema and wishes.
    schema : sequence of Field
        The columns. Values may have other number types than their field's: what is told is that of the values given.
    batches : callable
        Given some of the columns' names, it yields this rank's rows anew. It is called once for each pass.
    wanted : Wanted
        What is asked for.

    Returns
    -------
    Summary
        The same on every rank.

    Raises
    ------
    ValueError
        What `batches` raised on any rank, or what is wrong with the data: on every rank, with the same text.

    Notes
    -----
    Weights count how often a row occurs: the variance divides by their sum less `ddof`. A row counts for a column where
    its value is there and its weight is there and above 0. Histograms, quantiles and columns that are not numbers take
    no weights; the product is not told with them. Covariances are over the rows in which both columns have a value.

    A rank puts 2.5 KB for each column of numbers into all-reduces, 2.8 KB for each pair with a covariance and 8 bytes
    for each shard; with moments, weights or both it is up to 10 KB for a column, and 4.4 KB for a weighted pair.
    """
    check(wanted, schema)
    table = Table(schema, wanted)
    with meeting.together(comm):
        for batch in batches(table.names()):
            table.add(batch)
    table.meet(comm)
    table.prepare()
    while again := table.again():
        with meeting.together(comm):
            for batch in batches(again):
                table.add_again(batch)
        table.meet_again(comm)
    groups = table.groups.told(comm) if table.groups is not None else None
    return table.summary(comm.size)._replace(groups=groups)


def passes(wanted: Wanted) -> int:
    """Return how often the rows are read; quantiles and frequent values may need more.

    Examples
    --------
    >>> passes(Wanted()), passes(Wanted(moments=True)), passes(Wanted(moments=True, fast=True))
    (1, 2, 1)
    """
    if wanted.top or (wanted.quantiles and not wanted.approx):
        return 2
    ranged = wanted.histogram is not None and None in wanted.histogram[1:]
    return 2 if ranged or (wanted.moments and not wanted.fast) else 1


def check(wanted: Wanted, schema: Sequence[Field]) -> None:
    """Raise ValueError for wishes that make no sense."""
    if not isinstance(wanted.ddof, int | np.integer):
        raise TypeError(f"ddof must be an integer, found {wanted.ddof!r}")
    if wanted.ddof < 0:
        raise ValueError(f"ddof must be 0 or more, found {wanted.ddof}")
    if wanted.nan not in ("skip", "propagate"):
        raise ValueError(f"nan must be 'skip' or 'propagate', found {wanted.nan!r}")
    if wanted.histogram is not None:
        bins, low, high = wanted.histogram
        if bins < 1:
            raise ValueError(f"a histogram needs 1 bin or more, found {bins}")
        if (low is None) != (high is None):
            raise ValueError("a histogram's range needs both its ends, or none")
        if low is not None and high is not None and not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"a histogram's range must be finite and go upwards, found {low} to {high}")
    if wanted.top < 0:
        raise ValueError(f"the number of the most frequent values must be 0 or more, found {wanted.top}")
    if wanted.by and wanted.weights is not None:
        raise ValueError("groups take no weights")
    for key in wanted.by:
        if key.dtype.startswith("float"):
            raise StatsError(f"column {key.name!r} is {key.dtype}; groups are by text, integers, dates or bools")
    quantilerules.check(wanted.quantiles, wanted.method)
    if wanted.weights is not None:
        field = {field.name: field for field in schema}.get(wanted.weights)
        if field is not None and field.kind != NUMBER:
            raise ValueError(f"the weights {wanted.weights!r} must be numbers, found {field.kind}")
