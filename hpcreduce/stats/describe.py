"""``describe``: the statistics of data in memory, of which each rank has its part."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcreduce.stats import meeting, moments
from hpcreduce.stats.batches import BOOL, DATE, NUMBER, TEXT, Batch, Column, Field
from hpcreduce.stats.meeting import StatsError
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
        ``0``, ``1``, ...), or a structured one; a mapping from names to arrays of equal length; an Arrow table or
        record batch, or what gives one (a pandas or Polars frame). An iterable of such batches is read batch by batch.
        An iterator or generator can be read only once, which does not do for `moments` (unless `fast`), for a
        histogram without a range, for `quantiles` (unless `approx`) or for `top`; a function that returns a new one
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
        ddof, moments, covariance, ranged, weights, nan, fast, tuple(quantiles), method, approx, distinct, top, chosen
    )
    read: Callable[[], Iterator[Mapping[str, Any]]]
    schema: list[Field] = []
    with meeting.together(comm):
        read, first = _reader(data, _passes(wanted))
        schema = [] if first is None else _schema(first)
    schema = _agreed(comm, schema)
    if weights is not None and weights not in [field.name for field in schema]:
        names = ", ".join(field.name for field in schema) or "none"
        raise StatsError(f"there is no column {weights!r} for the weights; found {names}")

    for name in chosen:
        if name not in [field.name for field in schema]:
            found = ", ".join(field.name for field in schema) or "none"
            raise StatsError(f"there is no column {name!r} for the groups; found {found}")

    def batches(names: Sequence[str]) -> Iterator[Batch]:
        row = 0
        for found in read():
            if sorted(found) != sorted(field.name for field in schema):
                raise StatsError(f"rank {comm.rank}: a batch has the columns {', '.join(found)}, others have others")
            columns = {field.name: _column(found[field.name], field) for field in schema if field.name in names}
            rows = len(next(iter(found.values())))
            yield Batch(comm.rank, row, rows, columns)
            row += rows

    return _summarise(comm, schema, batches, wanted)


_summarise, _passes = moments.summarise, moments.passes
_EXPECTED = "an array, a mapping of arrays or an Arrow table"


def _reader(data: Any, passes: int) -> tuple[Callable[[], Iterator[Mapping[str, Any]]], Mapping[str, Any] | None]:
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
    if passes > 1:
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
    return column if hasattr(column, "type") else np.asarray(column)  # Arrow arrays stay what they are


def _schema(batch: Mapping[str, Any]) -> list[Field]:
    return [_field(name, column) for name, column in batch.items()]


def _field(name: str, column: Any) -> Field:
    if isinstance(column, np.ndarray):
        kind = {"f": NUMBER, "i": NUMBER, "u": NUMBER, "b": BOOL, "U": TEXT, "M": DATE}.get(column.dtype.kind)
        if kind is None or (column.dtype.itemsize > 8 and kind == NUMBER):
            raise StatsError(f"column {name!r}: cannot describe values of type {column.dtype}")
        return Field(name, kind, column.dtype.newbyteorder("=").name if kind == NUMBER else str(column.dtype))
    import pyarrow as pa

    kind_of = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(kind_of) or pa.types.is_floating(kind_of):
        return Field(name, NUMBER, str(np.dtype(kind_of.to_pandas_dtype())))
    if pa.types.is_null(kind_of):
        return Field(name, NUMBER, "null")
    for kind, test in ((BOOL, pa.types.is_boolean), (DATE, pa.types.is_date), (DATE, pa.types.is_timestamp)):
        if test(kind_of):
            return Field(name, kind, str(kind_of))
    if pa.types.is_string(kind_of) or pa.types.is_large_string(kind_of) or pa.types.is_string_view(kind_of):
        return Field(name, TEXT, str(kind_of))
    raise StatsError(f"column {name!r}: cannot describe values of type {kind_of}")


def _agreed(comm: Any, schema: list[Field]) -> list[Field]:
    """Return the columns of all ranks, of which those without any batch say nothing; collective."""
    agreed: list[Field] = []
    for rank, theirs in enumerate(meeting.everyone(comm, schema)):
        if not theirs:
            continue
        if not agreed:
            agreed, first = list(theirs), rank
            continue
        if sorted(field.name for field in theirs) != sorted(field.name for field in agreed):
            names = [", ".join(field.name for field in fields) for fields in (agreed, theirs)]
            raise StatsError(f"rank {first} has the columns {names[0]}, rank {rank} has {names[1]}")
        named = {field.name: field for field in theirs}
        agreed = [_both(field, named[field.name], first, rank) for field in agreed]
    return [field._replace(dtype="float64") if field.dtype == "null" else field for field in agreed]


def _both(one: Field, other: Field, first: int, rank: int) -> Field:
    if one.dtype == "null" or other.dtype == "null":
        return other if one.dtype == "null" else one
    if one.kind != other.kind:
        raise StatsError(f"column {one.name!r} has the type {one.dtype} on rank {first}, {other.dtype} on rank {rank}")
    if one.kind != NUMBER or one.dtype == other.dtype:
        return one
    return one._replace(dtype=str(np.result_type(np.dtype(one.dtype), np.dtype(other.dtype))))


def _column(values: Any, field: Field) -> Column:
    """Return the values of one column of a batch as the statistics take them."""
    found = _field(field.name, values)
    if found.kind != field.kind and found.dtype != "null":
        raise StatsError(f"column {field.name!r} has the type {found.dtype} in a batch, expected {field.dtype}")
    if isinstance(values, np.ndarray):
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        if field.kind in (NUMBER, BOOL):
            return Column(values)
        import pyarrow as pa

        return Column(pa.array(values))
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if field.kind not in (NUMBER, BOOL):
        return Column(values.cast(pa.string()) if found.dtype == "null" else values)
    if found.dtype == "null":
        return Column(np.zeros(len(values), field.dtype), np.zeros(len(values), bool))
    valid = None if not values.null_count else values.is_valid().to_numpy(zero_copy_only=False)
    if values.null_count:
        values = values.fill_null(False if field.kind == BOOL else 0)
    return Column(values.to_numpy(zero_copy_only=False), valid)
