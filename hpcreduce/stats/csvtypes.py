"""What the columns of CSV files are: found from all records, in any order and however they are cut the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hpcreduce.stats import schema
from hpcreduce.stats.reading import Found, ReadOptions, SourceError

_CHAINS = (
    ("int64", "negative", "huge", "double"),
    ("int64", "uint64", "huge", "double"),
    ("date32[day]", "timestamp[s]", "timestamp[ns]"),
    ("timestamp[s, tz=UTC]", "timestamp[ns, tz=UTC]"),
)
"""What takes what is before it. ``int64`` has no negative numbers, ``negative`` has; ``huge`` ones fit no type."""
GROUPED = "grouped "
"""Before the names of numbers with marks between thousands."""


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
    prefix = GROUPED if plain != (one, other) else ""
    for chain in _CHAINS:
        if plain[0] in chain and plain[1] in chain:
            return prefix + max(plain, key=chain.index)
    return prefix + "huge" if set(plain) == {"negative", "uint64"} else "string"


def join_all(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """Join what the columns are in some records and in others."""
    return {name: join(one.get(name, "null"), kind) for name, kind in other.items()}


def kind(values: Any, options: ReadOptions, text: Callable[[], Any]) -> str:
    """Return what values are, by the type that pyarrow has found for them; `text` gives them as text."""
    import pyarrow as pa
    from pyarrow import compute

    name = str(values.type)
    if name == "string":
        return _grouped(values, options) or name
    if name not in ("int64", "double"):
        return name
    least, most = compute.min_max(values).as_py().values()
    if name == "int64":
        return _signed(least)
    if least is None or -(2.0**63) < least <= most < 2.0**63:
        return name
    digits = text()
    if compute.all(compute.match_substring_regex(digits, r"^\s*-?[0-9]+\s*$")).as_py() is False:
        return name
    try:
        digits.cast(pa.uint64())
        return "uint64"
    except pa.ArrowInvalid:
        return "huge"


def _signed(least: int | None) -> str:
    return "int64" if least is None or least >= 0 else "negative"


def _grouped(values: Any, options: ReadOptions) -> str | None:
    """Return what text is if all of it is numbers with marks between thousands."""
    from pyarrow import compute

    marks = [options.thousands] if options.thousands else [mark for mark in ",." if mark != options.decimal]
    for mark in marks:
        if ungroup(values.slice(0, 100), mark, options.decimal, "double") is None:
            continue
        whole = ungroup(values, mark, options.decimal, "int64")
        if whole is not None:
            return GROUPED + _signed(compute.min_max(whole)["min"].as_py())
        if ungroup(values, mark, options.decimal, "double") is not None:
            return GROUPED + "double"
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
    known |= {"negative": pa.int64(), "uint64": pa.uint64(), "huge": pa.float64()}
    kinds = {name: known.get(kind.removeprefix(GROUPED)) for name, kind in seen.items()}
    unknown = {name: "bytes that are no UTF-8 text" for name, kind in kinds.items() if kind is None}
    notes = found.notes + schema.supported(options.columns, unknown)
    notes += tuple(
        f"column {name!r} has integers of more than 64 bits, which are read as float64"
        for name, kind in seen.items()
        if kind.endswith("huge")
    )
    types = {name: kind for name, kind in (found.types | kinds).items() if name not in unknown}
    return found._replace(types=types, layout=found.layout._replace(grouped=marked), notes=notes)
