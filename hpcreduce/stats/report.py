"""Statistics for programs: a JSON document, and a table with a row per column for CSV and Parquet files.

Rules that hold here:

1. Numbers come back as they were: floats as the shortest text that reads as the same float, integers of any size as
   integers. JSON has no NaN or infinity: they are the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
2. What does not exist (the variance of one value, the minimum of none) is null. What was not asked for is not there.
3. Every figure has its promise: ``exact``, ``correctly rounded`` (the float nearest to the exact value), ``same bits``
   (for any number of ranks, order of files and split, but rounded more than once) or ``approximate``.
4. A statistic is a name in the tuples below and a field of `Described`: what comes next is told by adding its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from hpcreduce.stats.batches import NUMBER
from hpcreduce.stats.quantiles import ERROR
from hpcreduce.stats.wanted import APPROXIMATE, ROUNDED, Described, Groups, Summary, Wanted

COUNTS = ("count", "null", "nan")
NUMBERS = (*COUNTS, "sum", "mean", "std", "var", "min", "max")
"""What is told of a column of numbers."""
OTHERS = ("count", "null", "min", "max")
"""What is told of any other column."""
SHAPES = ("skewness", "sample_skewness", "kurtosis", "sample_kurtosis", "product")
PLACES = ("argmin", "argmax")
"""What is told of numbers besides if moments were asked for."""


class Origin(NamedTuple):
    """Where the rows of each shard came from."""

    files: Sequence[str]
    shards: Sequence[int]
    """The number of the file of each shard; the shards of a file stand in the order of their rows."""


def place(origin: Origin, shard_rows: Sequence[int], found: tuple[int, int] | None) -> tuple[str, int] | None:
    """Return the file, and the row in it counted from 0, of a row of a shard.

    >>> place(Origin(["a", "b"], [0, 1, 1]), [10, 20, 30], (2, 5))
    ('b', 25)
    """
    if found is None:
        return None
    shard, row = found
    file = origin.shards[shard]
    before = sum(rows for owner, rows in zip(origin.shards[:shard], shard_rows[:shard], strict=True) if owner == file)
    return origin.files[file], before + row


def document(summary: Summary, origin: Origin, wanted: Wanted, most_groups: int | None = None) -> dict[str, Any]:
    """Return what ``--json`` writes, with all groups or the first ones only."""
    columns = {name: _described(summary, origin, wanted.moments, column) for name, column in summary.columns.items()}
    found: dict[str, Any] = {"rows": summary.rows, "ranks": summary.ranks, "columns": columns}
    if wanted.weights is not None:
        found["weights"] = wanted.weights
    if summary.groups:
        shown = summary.groups.rows[:most_groups]
        found["group_count"] = len(summary.groups.rows)
        found["groups"] = [_group(summary.groups, group) for group in range(len(shown))]
        found["group_promises"] = summary.groups.promises
    if summary.covariance:
        names, matrix = summary.covariance
        found["covariance"] = {
            "names": list(names),
            "matrix": [[plain(value) for value in row] for row in matrix],
            "promise": APPROXIMATE if wanted.fast else ROUNDED,
        }
    return found


def _group(groups: Groups, group: int) -> dict[str, Any]:
    return {
        "by": {name: values[group] for name, values in zip(groups.by, groups.keys, strict=True)},
        "rows": groups.rows[group],
        "columns": {
            name: {figure: plain(values[group]) for figure, values in told.items()}
            for name, told in groups.columns.items()
        },
    }


def _described(summary: Summary, origin: Origin, moments: bool, column: Described) -> dict[str, Any]:
    number = column.kind == NUMBER
    more = number and moments
    names = (NUMBERS if number else OTHERS) + (SHAPES if more else ())
    told: dict[str, Any] = {"kind": column.kind, "dtype": column.dtype}
    told |= {name: plain(getattr(column, name)) for name in names}
    for name in PLACES if more else ():
        found = place(origin, summary.shard_rows, getattr(column, name))
        told[name] = found and {"file": found[0], "row": found[1]}
    if column.histogram:
        edges, counts = column.histogram
        told["histogram"] = {"edges": [plain(edge) for edge in edges], "counts": [plain(count) for count in counts]}
    if column.quantiles is not None:
        told["quantiles"] = {f"{q:.17g}" if q in (0, 1) else repr(q): plain(v) for q, v in column.quantiles.items()}
        if column.promises.get("quantiles") == APPROXIMATE:
            told["quantiles_error"] = ERROR
    if column.distinct is not None:
        told |= {"distinct": column.distinct, "distinct_error": column.distinct_error}
    if column.top is not None:
        told["top"] = [{"value": plain(value), "count": count} for value, count in column.top]
    told["promises"] = {name: column.promises[name] for name in told if name in column.promises}
    return told


def plain(value: Any) -> Any:
    """Return what strict JSON can hold.

    >>> plain(float("nan")), plain(float("-inf")), plain(0.1), plain(2**70)
    ('NaN', '-Infinity', 0.1, 1180591620717411303424)
    """
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def write(document: Mapping[str, Any], file: Any, form: str) -> None:
    """Write a row per column of the document to a binary file; `form` is ``csv`` or ``parquet``.

    `sum`, `min` and `max` are floats there, as near as can be, and stand again in `sum_text`, `min_text` and `max_text`
    with every digit of an integer; dates and text stand only there. Histograms in a CSV file are JSON. The number of
    ranks is left out, so that the same data give the same file on any number of them.
    """
    _write(list(_cells(document)), document["rows"], file, form)


def write_groups(summary: Summary, file: Any, form: str) -> None:
    """Write a row per group and column, with the figures as `write` has them, to a binary file.

    Floats do not stand again as text.
    """
    assert summary.groups is not None
    _write(list(_group_cells(summary.groups)), summary.rows, file, form)


def _write(cells: list[tuple[str, str, list[Any]]], rows: int, file: Any, form: str) -> None:
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    kinds = {
        "text": pyarrow.string(),
        "int": pyarrow.int64(),
        "bool": pyarrow.bool_(),
        "float": pyarrow.float64(),
        "ints": pyarrow.list_(pyarrow.int64()),
        "floats": pyarrow.list_(pyarrow.float64()),
    }
    if form == "csv":
        cells = [
            (name, "text", [_text(value) for value in values]) if kind in ("ints", "floats") else (name, kind, values)
            for name, kind, values in cells
        ]
    arrays = {name: pyarrow.array(values, kinds[kind]) for name, kind, values in cells}
    table = pyarrow.table(arrays, metadata={"rows": str(rows)})
    if form == "csv":
        pyarrow.csv.write_csv(table, file)
    else:
        pyarrow.parquet.write_table(table, file)


def _cells(document: Mapping[str, Any]) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield name, type and values of each column of the table."""
    columns = list(document["columns"].values())

    def taken(name: str) -> list[Any]:
        return [column.get(name) for column in columns]

    yield "column", "text", list(document["columns"])
    yield "kind", "text", taken("kind")
    yield "dtype", "text", taken("dtype")
    told = {name for column in columns for name in column}
    for name in (*NUMBERS, *SHAPES):
        if name in told and name in COUNTS:
            yield name, "int", taken(name)
        elif name in told:
            yield name, "float", [_float(column.get(name)) if column["kind"] == NUMBER else None for column in columns]
    for name in "sum", "min", "max":
        yield f"{name}_text", "text", [_text(value) for value in taken(name)]
    for name in PLACES:
        if name in told:
            yield f"{name}_file", "text", [found and found["file"] for found in taken(name)]
            yield f"{name}_row", "int", [found and found["row"] for found in taken(name)]
    if "histogram" in told:
        for part, kind in ("edges", "floats"), ("counts", "ints"):
            yield f"histogram_{part}", kind, [found and found[part] for found in taken("histogram")]
    for q in dict.fromkeys(q for found in taken("quantiles") if found for q in found):
        yield quantile(q), "float", [_float(found and found[q]) for found in taken("quantiles")]
    for name, kind in ("distinct", "int"), ("distinct_error", "float"):
        if name in told:
            yield name, kind, taken(name)
    if "top" in told:
        yield "top", "text", [json.dumps(found, ensure_ascii=False) for found in taken("top")]
    if covariance := document.get("covariance"):
        rows = dict(zip(covariance["names"], covariance["matrix"], strict=True))
        for index, name in enumerate(covariance["names"]):
            values = [_float(rows[column][index]) if column in rows else None for column in document["columns"]]
            yield f"covariance with {name}", "float", values
    lines = [", ".join(f"{name}: {promise}" for name, promise in found.items()) for found in taken("promises")]
    yield "promises", "text", lines


def _group_cells(groups: Groups) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield name, type and values of each column of the table of groups, in which columns stand one after the other."""
    kinds, times = {str: "text", bool: "bool", int: "int"}, len(groups.columns)
    for name, values in zip(groups.by, groups.keys, strict=True):
        kind = next((kinds[type(value)] for value in values if value is not None), "text")
        if kind == "int" and max(value for value in values if isinstance(value, int)) >= 2**63:
            kind, values = "text", [_text(value) for value in values]
        yield (f"by {name}" if name in ("column", "rows", *NUMBERS) else name), kind, values * times
    yield "column", "text", [name for name in groups.columns for _ in groups.rows]
    yield "rows", "int", groups.rows * times
    nothing: list[Any] = [None] * len(groups.rows)
    for name in NUMBERS:
        parts = [
            told.get(name, nothing) if name in COUNTS or "mean" in told else nothing for told in groups.columns.values()
        ]
        yield name, "int" if name in COUNTS else "float", [value for part in parts for value in part]
    for name in "sum", "min", "max":
        parts = [_texts(told.get(name, nothing)) for told in groups.columns.values()]
        yield f"{name}_text", "text", [value for part in parts for value in part]


def _texts(values: list[Any]) -> list[str | None]:
    """Return values as texts, but for those of a column of floats, which lose nothing in another column."""
    if {*map(type, values)} <= {float, type(None)}:
        return [None] * len(values)
    return [_text(value) for value in values]


def quantile(q: str) -> str:
    """Return what the quantile is called in a table.

    >>> quantile("0.25"), quantile("0.5"), quantile("0.999"), quantile("0")
    ('q25', 'median', 'q99.9', 'q0')
    """
    return "median" if q == "0.5" else f"q{(Decimal(q) * 100).normalize():f}"


def _float(value: Any) -> float | None:
    return None if value is None else float(value)  # float("NaN") and float("Infinity") are what they say


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
