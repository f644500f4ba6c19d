"""The columns that all files together have: which types statistics take, and what becomes of different ones.

The promotion rule, over all files that have rows:

1. The null type (nothing but missing values) takes any other.
2. The same type everywhere stays. Integers of different types become int64, unsigned ones uint64 if one of them is; a
   uint64 and a signed type together are an error, unless there are floats.
3. Integers and floats, or floats of different types, become float64. Each file's numbers still come in their own type:
   nothing is rounded that the consumer does not round.
4. Dates and timestamps become timestamps of the finest unit among them, in UTC if their zones differ; text of any form
   is text. Anything else is an error that names a file, the column and both types.

Decimals are read as float64, each rounded once, or as int64 where they have no fraction and up to 18 digits.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hpcreduce.stats.batches import BOOL, DATE, NUMBER, TEXT, Column, Field
from hpcreduce.stats.reading import Found, ReadOptions, SourceError

_UNITS = ("s", "ms", "us", "ns")


def plain(kind: Any) -> Any:
    """Return the Arrow type in which values of some Arrow type are handed on; `None`: statistics cannot take them."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return plain(kind.value_type)
    if types.is_run_end_encoded(kind):
        return plain(kind.value_type)
    if types.is_decimal(kind):
        return pa.int64() if kind.scale <= 0 and kind.precision - kind.scale <= 18 else pa.float64()
    if types.is_string_view(kind):
        return pa.string()
    if types.is_date64(kind):
        return pa.date32()
    return kind if _kind(kind) or types.is_null(kind) else None


def _kind(kind: Any) -> str | None:
    import pyarrow as pa

    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind):
        return NUMBER
    if types.is_boolean(kind):
        return BOOL
    if types.is_string(kind) or types.is_large_string(kind):
        return TEXT
    return DATE if types.is_date32(kind) or types.is_timestamp(kind) or types.is_time(kind) else None


def name(kind: Any) -> str:
    """Return what a user would call a type."""
    import pyarrow as pa

    if pa.types.is_floating(kind):
        return f"float{kind.bit_width}"
    words = {BOOL: "bool", TEXT: "text"}
    return "date" if pa.types.is_date32(kind) else words.get(_kind(kind) or "", str(kind))


def from_numpy(dtype: np.dtype[Any]) -> Any:
    """Return the plain Arrow type of a NumPy type, or `None`."""
    import pyarrow as pa

    if dtype.kind in "US":
        return pa.string()
    if dtype.kind == "M":
        unit = np.datetime_data(dtype)[0]
        return pa.timestamp(unit) if unit in _UNITS else pa.date32() if unit == "D" else None
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        return None
    return pa.from_numpy_dtype(dtype.newbyteorder("="))


def distinct(names: Sequence[str]) -> None:
    """Raise SourceError if a name occurs twice."""
    if len(set(names)) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise SourceError(f"the column name {twice!r} occurs twice; columns are told apart by their names")


def supported(wanted: Sequence[str] | None, unsupported: dict[str, str]) -> tuple[str, ...]:
    """Return a note on the columns that statistics cannot take, or raise SourceError if one of them is wanted."""
    if asked := [name for name in wanted or () if name in unsupported]:
        raise SourceError(f"column {asked[0]!r} has the type {unsupported[asked[0]]}, of which there are no statistics")
    if wanted is not None or not unsupported:
        return ()
    listed = ", ".join(f"{name!r} ({kind})" for name, kind in list(unsupported.items())[:5])
    more = f" and {len(unsupported) - 5} more" if len(unsupported) > 5 else ""
    return (f"left out, since there are no statistics of such types: {listed}{more}",)


def choose(files: Sequence[Found], options: ReadOptions) -> list[str]:
    """Return the names of the wanted columns, or raise SourceError if there is no such column in any file."""
    known = list(dict.fromkeys(name for found in files for name in found.types))
    if options.columns is None:
        return known
    for wanted in options.columns:
        if wanted not in known:
            lower = {one.lower(): one for one in reversed(known)}
            near = [lower[one] for one in difflib.get_close_matches(wanted.lower(), lower, 1)]
            listed = ", ".join(repr(one) for one in known[:10]) + (", ..." if len(known) > 10 else "")
            hint = f"did you mean {near[0]!r}?" if near else f"there are {listed}"
            raise SourceError(f"there is no column {wanted!r} in {_all(files)}; {hint}")
    return list(dict.fromkeys(options.columns))


def _all(files: Sequence[Found]) -> str:
    return files[0].path if len(files) == 1 else f"any of the {len(files)} files"


def agree(files: Sequence[Found], names: Sequence[str]) -> tuple[list[Field], list[Any]]:
    """Return the columns as all files together have them, and their Arrow types."""
    fields, types = [], []
    filled = [found for found in files if found.rows != 0]
    for column in names:
        have = [(found.path, found.types[column]) for found in filled if column in found.types]
        have = have or [(found.path, found.types[column]) for found in files if column in found.types][:1]
        kind = promote(column, have)
        types.append(kind)
        fields.append(field(column, kind))
    return fields, types


def field(column: str, kind: Any) -> Field:
    """Return a column of a plain Arrow type as statistics know it."""
    return Field(column, _kind(kind) or NUMBER, name(kind))


def promote(column: str, have: Iterable[tuple[str, Any]]) -> Any:
    """Return the type that a column of these types, each from a file of this name, has; by the rule of this module.

    Examples
    --------
    >>> import pyarrow as pa
    >>> promote("x", [("a.csv", pa.int8()), ("b.csv", pa.null()), ("c.csv", pa.float32())])
    DataType(double)
    """
    import pyarrow as pa

    seen: dict[Any, str] = {}
    for path, kind in have:
        if not pa.types.is_null(kind):
            seen.setdefault(kind, path)
    if not seen:
        return pa.float64()
    kinds = list(seen)
    first = kinds[0]
    for kind in kinds[1:]:
        if not fit(first, kind):
            raise _conflict(column, seen, first, kind)
    if len(kinds) == 1:
        return first
    if _kind(first) == TEXT:
        return pa.large_string()
    if _kind(first) == DATE:
        return _date(kinds)
    if any(pa.types.is_floating(kind) for kind in kinds):
        return pa.float64()
    if pa.uint64() not in kinds:
        return pa.int64()
    if signed := [kind for kind in kinds if pa.types.is_signed_integer(kind)]:
        raise _conflict(column, seen, *sorted((signed[0], pa.uint64()), key=kinds.index))
    return pa.uint64()


def fit(one: Any, other: Any) -> bool:
    """Whether values of two types can be in one column."""
    import pyarrow as pa

    if pa.types.is_null(one) or pa.types.is_null(other):
        return True
    if _kind(one) != _kind(other):
        return False
    if _kind(one) != DATE:
        return True
    if pa.types.is_time(one) or pa.types.is_time(other):
        return bool(pa.types.is_time(one) and pa.types.is_time(other))
    zoned = [getattr(kind, "tz", None) is not None for kind in (one, other)]
    return zoned[0] == zoned[1]


def _conflict(column: str, seen: dict[Any, str], one: Any, other: Any) -> SourceError:
    return SourceError(f"{seen[other]}: column {column!r} has the type {name(other)}, but in {seen[one]} {name(one)}")


def _date(kinds: Sequence[Any]) -> Any:
    import pyarrow as pa

    if pa.types.is_time(kinds[0]):
        return pa.time64("ns")
    stamps = [kind for kind in kinds if pa.types.is_timestamp(kind)]
    zones = {kind.tz for kind in stamps}
    return pa.timestamp(
        max((kind.unit for kind in stamps), key=_UNITS.index), zones.pop() if len(zones) == 1 else "UTC"
    )


def column(values: Any, kind: Any) -> Column:
    """Return values of a file, an Arrow or NumPy array, as a Column of a field of this Arrow type."""
    import pyarrow as pa

    if isinstance(values, np.ndarray):
        mask = np.ma.getmaskarray(values) if np.ma.is_masked(values) else None
        values = np.asarray(values)
        if values.dtype.kind in "biuf":
            data = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
            return Column(data, None if mask is None else ~mask)
        if values.dtype.kind == "S":
            values = np.char.decode(values, "utf-8")
        if values.dtype.kind == "M":
            values = values.astype(values.dtype.newbyteorder("="))
        values = pa.array(values, kind, mask=mask)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_run_end_encoded(values.type):
        values = pa.compute.run_end_decode(values)
    if _kind(kind) not in (NUMBER, BOOL):
        return Column(values if values.type == kind else values.cast(kind))
    if pa.types.is_null(values.type):
        return missing(len(values), kind)
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string()).cast(plain(values.type))  # by their digits, which are rounded once
    if pa.types.is_boolean(values.type):
        data = values.fill_null(False).to_numpy(zero_copy_only=False)
    else:
        data = np.frombuffer(values.buffers()[1], values.type.to_pandas_dtype())
        data = data[values.offset : values.offset + len(values)]
    return Column(data, values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None)


def missing(rows: int, kind: Any) -> Column:
    """Return a column of missing values."""
    import pyarrow as pa

    if _kind(kind) not in (NUMBER, BOOL):
        return Column(pa.nulls(rows, kind))
    return Column(np.zeros(rows, kind.to_pandas_dtype()), np.zeros(rows, bool))
