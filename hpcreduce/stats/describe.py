"""``describe``: the statistics of data in memory, of which each rank has its part."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from hpcreduce.objects import everyone
from hpcreduce.stats import meeting, schema
from hpcreduce.stats.batches import Batch, Column
from hpcreduce.stats.meeting import StatsError
from hpcreduce.stats.moments import passes, summarise
from hpcreduce.stats.reading import SourceError
from hpcreduce.stats.wanted import Summary, Wanted


def describe(
    comm: Any,
    data: Any,
    *,
    ddof: int = 1,
    moments: bool = False,
    covariance: bool = False,
    histogram: int | tuple[int, float | None, float | None] | None = None,
    weights: str | None = None,
    nan: str = "skip",
    fast: bool = False,
    quantiles: Sequence[float] = (),
    method: str = "linear",
    approx: bool = False,
    distinct: bool = False,
    top: int = 0,
    by: str | Sequence[str] = (),
) -> Summary:
    """Describe the columns of a table of which each rank holds some rows; collective.

    The figures are those of the rows of all ranks: exact or correctly rounded where they say so, and the same bits
    however the rows are spread. Ranks may have any number of rows, none too.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The ranks that take part.
    data : array, mapping, table, or an iterable of them
        This rank's rows: a NumPy array (one column, called ``0``), or a two-dimensional one (its columns are called
        ``0``, ``1``, ...), or a structured one, of masked ones what is not masked; a mapping from names to arrays of
        equal length; an Arrow table or record batch, or what gives one (a pandas or Polars frame). An iterable of such
        batches is read batch by batch. An iterator or generator can be read only once, which does not do for `moments`
        (unless `fast`), for a histogram without a range, for `quantiles` (unless `approx`) or for `top`; a function
        that returns a new one
        does. `None`: no rows.
    ddof : int
        The variance is the sum of squares divided by the count less this.
    moments : bool
        Skewness, kurtosis and the product too.
    covariance : bool
        The covariances of all pairs of columns of numbers, each over the rows in which both have a value.
    histogram : int or (int, float, float), optional
        The number of bins, and the range; by default that of all values.
    weights : str, optional
        The column that tells how often each row counts.
    nan : str
        ``skip`` leaves NaN out and counts it; ``propagate``: one NaN makes the sum, the mean, the extremes, ... NaN.
    fast : bool
        Sums in float64: approximate, and dependent on how the rows are spread.
    quantiles : sequence of float
        Those wanted, from 0 to 1, found exactly in bounded memory.
    method : str
        What stands for a quantile between two values, as in NumPy: ``linear``, ``lower``, ``higher``, ``nearest`` or
        ``midpoint``.
    approx : bool
        Quantiles from one pass over the rows: within 1/128 of the value, relatively, and the same bits for any ranks.
    distinct : bool
        How many different values there are: exact up to 262,144, beyond that estimated with a standard error of 0.8 %.
    top : int
        So many of the most frequent values, and how often each is there, exactly. Needs to read the rows twice or more
        where there are very many different values.
    by : str or sequence of str
        Columns of text, integers, bools or dates: figures are told of each group of rows that have the same values
        there, too (`Summary.groups`).

    Returns
    -------
    Summary
        The same on every rank. A value is found again as (rank, row of this rank).

    Raises
    ------
    StatsError, ValueError, TypeError
        Data that do not fit together, or a wrong argument: on every rank, with the same text.

    Examples
    --------
    ::

        summary = hpcreduce.stats.describe(comm, {"mass": mass, "speed": speed}, covariance=True)
        print(summary.columns["mass"].mean, summary.columns["mass"].promises["mean"])
    """
    ranged = (histogram, None, None) if isinstance(histogram, int) else histogram
    chosen = (by,) if isinstance(by, str) else tuple(by)
    wanted = Wanted(
        ddof, moments, covariance, ranged, weights, nan, fast, tuple(quantiles), method, approx, distinct, top
    )
    read: Callable[[], Iterator[Mapping[str, Any]]]
    own: dict[str, Any] = {}
    with meeting.together(comm):
        read, first = _reader(data, passes(wanted))
        own = {} if first is None else _types(first)
    types = _agreed(comm, own, wanted._asdict() | {"by": chosen})
    if weights is not None and weights not in types:
        raise StatsError(f"there is no column {weights!r} for the weights; found {', '.join(types) or 'none'}")
    for name in chosen:
        if name not in types:
            raise StatsError(f"there is no column {name!r} for the groups; found {', '.join(types) or 'none'}")

    wanted = wanted._replace(by=tuple(schema.field(name, types[name]) for name in chosen))

    def batches(names: Sequence[str]) -> Iterator[Batch]:
        row = 0
        for found in read():
            if sorted(found) != sorted(types):
                raise StatsError(f"rank {comm.rank}: a batch has the columns {', '.join(found)}, others have others")
            columns = {name: _column(name, found[name], types[name]) for name in types if name in names}
            rows = len(next(iter(found.values())))
            yield Batch(comm.rank, row, rows, columns)
            row += rows

    return summarise(comm, [schema.field(name, kind) for name, kind in types.items()], batches, wanted)


_EXPECTED = "an array, a mapping of arrays or an Arrow table"


def _reader(data: Any, times: int) -> tuple[Callable[[], Iterator[Mapping[str, Any]]], Mapping[str, Any] | None]:
    """Return a function that yields this rank's batches as mappings, and the first of them."""
    if data is None:
        return lambda: iter(()), None
    if (single := _mapping(data)) is not None:
        return lambda: iter((single,)), single
    if callable(data):
        return lambda: map(_batch, data()), next(map(_batch, data()), None)
    if not isinstance(data, Iterable):
        raise TypeError(f"cannot describe {type(data).__name__}; expected {_EXPECTED}")
    if iter(data) is not data:
        return lambda: map(_batch, data), next(map(_batch, data), None)
    if times > 1:
        raise TypeError("an iterator can be read only once, and this takes two passes; give a list or a function")
    batches = map(_batch, data)
    first = next(batches, None)
    return lambda: itertools.chain([] if first is None else [first], batches), first


def _batch(data: Any) -> Mapping[str, Any]:
    found = _mapping(data)
    if found is None:
        raise TypeError(f"cannot describe a batch of type {type(data).__name__}; expected {_EXPECTED}")
    return found


def _mapping(data: Any) -> Mapping[str, Any] | None:
    """Return one batch as a mapping from names to columns, or None if it is not one batch."""
    if isinstance(data, np.ndarray):
        if data.dtype.names:
            return {name: data[name] for name in data.dtype.names}
        if data.ndim not in (1, 2):
            raise StatsError(f"an array must have one or two dimensions, found shape {data.shape}")
        return {"0": data} if data.ndim == 1 else {str(index): data[:, index] for index in range(data.shape[1])}
    if isinstance(data, Mapping):
        columns = {str(name): _plain(column) for name, column in data.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise StatsError(f"columns differ in length: {lengths}")
        return columns
    if hasattr(data, "column_names") and hasattr(data, "num_rows"):
        return {name: data.column(name) for name in data.column_names}
    if hasattr(data, "__arrow_c_stream__"):
        import pyarrow as pa

        return _mapping(pa.table(data))
    return None


def _plain(column: Any) -> Any:
    return column if hasattr(column, "type") else np.asanyarray(column)  # Arrow's and masked arrays stay what they are


def _types(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain Arrow type of each column."""
    if find_spec("pyarrow") is None:
        raise StatsError("statistics need the package pyarrow: pip install 'hpcreduce[stats]'")
    types = {}
    for name, column in batch.items():
        given = column.dtype if isinstance(column, np.ndarray) else column.type
        types[name] = schema.from_numpy(given) if isinstance(column, np.ndarray) else schema.plain(given)
        if types[name] is None:
            raise StatsError(f"column {name!r}: cannot describe values of type {given}")
    return types


def _agreed(comm: Any, types: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the types of the columns of all ranks, of which those without any batch say nothing; collective."""
    told = everyone(comm, (types, options))
    for rank, (_, theirs) in enumerate(told):
        for name, value in theirs.items():
            if value != told[0][1][name]:
                raise ValueError(f"describe(): {name} is {told[0][1][name]!r} on rank 0, but {value!r} on rank {rank}")
    filled = [(rank, theirs) for rank, (theirs, _) in enumerate(told) if theirs]
    if not filled:
        return {}
    first, agreed = filled[0]
    for rank, theirs in filled:
        if sorted(theirs) != sorted(agreed):
            raise StatsError(f"rank {first} has the columns {', '.join(agreed)}, rank {rank} has {', '.join(theirs)}")
    try:
        return {
            name: schema.promote(name, [(f"the rows of rank {rank}", theirs[name]) for rank, theirs in filled])
            for name in agreed
        }
    except SourceError as error:
        raise StatsError(str(error)) from None


def _column(name: str, values: Any, kind: Any) -> Column:
    """Return the values of one column of a batch as the statistics take them."""
    found = _types({name: values})[name]
    if not schema.fit(found, kind):
        raise StatsError(f"column {name!r} has the type {schema.name(found)} in a batch, expected {schema.name(kind)}")
    return schema.column(values.combine_chunks() if hasattr(values, "combine_chunks") else values, kind)
