"""What the columns of CSV files are: found from all records, in any order and however they are cut the same."""

from __future__ import annotations

import re
from typing import Any

from hpcreduce.stats import schema
from hpcreduce.stats.reading import Found, ReadOptions, SourceError

_CHAINS = (
    ("int64", "double"),
    ("date32[day]", "timestamp[s]", "timestamp[ns]"),
    ("timestamp[s, tz=UTC]", "timestamp[ns, tz=UTC]"),
)
GROUPED = "grouped "


def join(one: str, other: str) -> str:
    """Return what a column is that is one thing in some records and another in others; in any order the same.

    Examples
    --------
    >>> join("int64", "double"), join("null", "bool"), join("date32[day]", "int64"), join("grouped int64", "double")
    ('double', 'bool', 'string', 'grouped double')
    """
    if "null" in (one, other):
        return other if one == "null" else one
    if one == other or "binary" in (one, other):
        return one if one == other else "binary"
    plain = one.removeprefix(GROUPED), other.removeprefix(GROUPED)
    for chain in _CHAINS:
        if plain[0] in chain and plain[1] in chain:
            return (GROUPED if plain != (one, other) else "") + max(plain, key=chain.index)
    return "string"


def join_all(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """Join what the columns are in some records and in others."""
    return {name: join(one.get(name, "null"), kind) for name, kind in other.items()}


def grouped(values: Any, options: ReadOptions) -> str | None:
    """Return what text is if all of it is numbers with marks between thousands."""
    marks = [options.thousands] if options.thousands else [mark for mark in ",." if mark != options.decimal]
    for mark in marks:
        for kind in "int64", "double":
            if ungroup(values.slice(0, 100), mark, options.decimal, kind) is None and kind == "double":
                break
            if ungroup(values, mark, options.decimal, kind) is not None:
                return GROUPED + kind
    return None


def ungroup(values: Any, mark: str, decimal: str, kind: str) -> Any:
    """Return text as numbers, without the marks between thousands; `None`: it is not that."""
    import pyarrow as pa
    from pyarrow import compute

    point = re.escape(decimal)
    pattern = rf"^\s*[+-]?(\d{{1,3}}({re.escape(mark)}\d{{3}})+|\d*)({point}\d*)?([eE][+-]?\d+)?\s*$"
    if compute.all(compute.match_substring_regex(values, pattern)).as_py() is False:
        return None
    values = compute.replace_substring_regex(compute.utf8_trim_whitespace(values), r"^\+", "")
    values = compute.replace_substring(compute.replace_substring(values, mark, ""), decimal, ".")
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None


def typed(found: Found, seen: dict[str, str], options: ReadOptions) -> Found:
    """Return what is known of a file when all of it has been looked at."""
    import pyarrow as pa

    marked = frozenset(name for name, kind in seen.items() if kind.startswith(GROUPED))
    if marked and not options.thousands:
        column, mark = min(marked), "," if options.decimal == "." else "."
        raise SourceError(f"column {column!r} has marks between thousands, as in 1{mark}234: use --thousands {mark}")
    known = {str(kind): kind for kind in (pa.null(), pa.int64(), pa.float64(), pa.bool_(), pa.string())}
    known |= {str(kind): kind for kind in (pa.date32(), pa.time32("s"), pa.timestamp("s"), pa.timestamp("ns"))}
    known |= {str(kind): kind for kind in (pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC"))}
    kinds = {name: known.get(kind.removeprefix(GROUPED)) for name, kind in seen.items()}
    unknown = {name: "bytes that are no UTF-8 text" for name, kind in kinds.items() if kind is None}
    notes = found.notes + schema.supported(options.columns, unknown)
    types = {name: kind for name, kind in (found.types | kinds).items() if name not in unknown}
    return found._replace(types=types, layout=found.layout._replace(grouped=marked), notes=notes)
