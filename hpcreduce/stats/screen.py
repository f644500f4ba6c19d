"""Statistics for people: tables that fit 80 columns, from the document that programs get.

Rules that hold here:

1. Nothing is wider than `WIDTH`. Digits go first, then the middle of long names and texts, then whole figures.
2. What is not shown is named, with where it stands.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from hpcreduce.stats.batches import NUMBER
from hpcreduce.stats.report import SHAPES, quantile
from hpcreduce.units import plural

WIDTH = 80
MOST_COLUMNS = 100
"""Columns of the data of which a table tells."""
MOST_NAMES = 3
"""Columns that are named where a promise holds for some only."""
DIGITS = (6, 5, 4)
MOST_GROUPS, MOST_GROUPED = 20, 8
"""Groups that are shown, and columns of numbers that are told of them."""
_TOLD = ("count", "mean", "std", "min", "max", "sum")
BINS = 30
"""Bars of a histogram; of more bins, neighbours share one."""
_BARS = "▁▂▃▄▅▆▇█"
_GAP = 2
_NARROWEST = 12
"""Width to which a text is cut."""
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")

Table = dict[str, list[Any]]
"""Heading -> cells, texts or numbers or None; the names come first."""


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what ``stats`` prints."""
    everything = document["columns"]
    columns = dict(list(everything.items())[:MOST_COLUMNS])
    numbers = {name: column for name, column in columns.items() if column["kind"] == NUMBER}
    others = {name: column for name, column in columns.items() if column["kind"] != NUMBER}
    left_out: dict[str, None] = {}
    if numbers:
        table = _taken(numbers, ("count", "null", "nan", "mean", "std", "min", "max", "sum"))
        idle = [name for name in ("nan", "null") if not any(table[name])]
        yield from _fitted(table, (*idle, "sum", "null", "nan"), left_out)
    if any("quantiles" in column for column in numbers.values()):
        yield from _quantiles(numbers, left_out)
    if others:
        yield from _fitted(_taken(others, ("dtype", "count", "null", "min", "max")), (), left_out)
    if any("product" in column for column in numbers.values()):
        yield from _fitted(_taken(numbers, ("var", *SHAPES)), ("sample_kurtosis", "sample_skewness"), left_out)
        yield from _fitted(_places(numbers), (), left_out)
    elif numbers:
        left_out["var"] = None
    if drawn := {name: column["histogram"] for name, column in numbers.items() if "histogram" in column}:
        yield from _fitted(_histograms(drawn, numbers), (), left_out)
    if any("distinct" in column for column in columns.values()):
        found = {name: column for name, column in columns.items() if "distinct" in column}
        table = _taken(found, ("distinct",))
        errors = [column["distinct_error"] for column in found.values()]
        yield from _fitted(
            table | {"standard error": [f"{error:.1%}" if error else "exact" for error in errors]}, (), left_out
        )
    for name, column in columns.items():
        if column.get("top"):
            values = [each["value"] for each in column["top"][:MOST_GROUPS]]
            yield from _fitted(
                {name: values, "times": [each["count"] for each in column["top"][:MOST_GROUPS]]}, (), left_out
            )
    if document.get("groups"):
        yield from _groups(document["groups"], document["group_count"], left_out)
    if "covariance" in document:
        yield from _covariance(document["covariance"], left_out)
    for line in _promises(document):
        yield from textwrap.wrap(line, WIDTH, subsequent_indent="  ")
    if len(everything) > len(columns):
        left_out[plural(len(everything) - len(columns), "column")] = None
    if numbers:
        left_out["further digits"] = None
    if left_out:
        said = f"Not shown: {', '.join(left_out)}. --json FILE and --output FILE have all of it."
        yield from textwrap.wrap(said, WIDTH, subsequent_indent="  ")


def _taken(columns: Mapping[str, Any], figures: Sequence[str]) -> Table:
    return {"column": list(columns)} | {name: [column[name] for column in columns.values()] for name in figures}


def _quantiles(numbers: Mapping[str, Any], left_out: dict[str, None]) -> Iterator[str]:
    """Yield as many quantiles as fit, the first ones."""
    table: Table = {"column": list(numbers)}
    for q in dict.fromkeys(q for column in numbers.values() for q in column.get("quantiles", ())):
        table[quantile(q)] = [column.get("quantiles", {}).get(q) for column in numbers.values()]
    yield from _fitted(table, list(table)[:0:-1], left_out)


def _places(numbers: Mapping[str, Any]) -> Table:
    """Return where the smallest and the largest values are."""
    table: Table = {"column": list(numbers)}
    for end in "min", "max":
        found = [column[f"arg{end}"] for column in numbers.values()]
        table[f"{end} in file"] = [place and place["file"] for place in found]
        table[f"{end} in row"] = [place and place["row"] for place in found]
    return table


def _histograms(drawn: Mapping[str, Any], numbers: Mapping[str, Any]) -> Table:
    """Return bars, each as high as the fullest bins below it, between the ends of the range."""
    bars = []
    for histogram in drawn.values():
        counts = histogram["counts"]
        each = -(-len(counts) // BINS)
        shared = [sum(counts[start : start + each]) for start in range(0, len(counts), each)]
        top = max([*shared, 1])
        bars.append("".join(_BARS[-(-count * len(_BARS) // top) - 1] if count else " " for count in shared))
    return {
        "column": list(drawn),
        "from": [histogram["edges"][0] for histogram in drawn.values()],
        "histogram": bars,
        "to": [histogram["edges"][-1] for histogram in drawn.values()],
        "outside": [numbers[name]["count"] - sum(histogram["counts"]) for name, histogram in drawn.items()],
    }


def _groups(groups: Sequence[Mapping[str, Any]], count: int, left_out: dict[str, None]) -> Iterator[str]:
    """Yield a table of the first groups for each of the first columns of numbers."""
    shown = groups[:MOST_GROUPS]
    table: Table = {name: [group["by"][name] for group in shown] for name in groups[0]["by"]}
    numbers = [name for name, told in groups[0]["columns"].items() if "mean" in told]
    if not numbers:
        yield from _fitted(table | {"rows": [group["rows"] for group in shown]}, (), left_out)
    for name in numbers[:MOST_GROUPED]:
        told = [group["columns"][name] for group in shown]
        more = {
            f"{name}: {figure}" if figure == "count" else figure: [each[figure] for each in told] for figure in _TOLD
        }
        yield from _fitted(table | more, ("sum", "max", "min"), left_out)
    if count > len(shown):
        left_out[plural(count - len(shown), "group")] = None
    if others := len(groups[0]["columns"]) - len(numbers[:MOST_GROUPED]):
        left_out[f"{plural(others, 'column')} in groups"] = None


def _covariance(covariance: Mapping[str, Any], left_out: dict[str, None]) -> Iterator[str]:
    """Yield as many of the leading rows and columns as fit."""
    names, matrix = covariance["names"], covariance["matrix"]
    if not names:
        return
    for shown in range(min(len(names), WIDTH // 6), 0, -1):
        table: Table = {"covariance": names[:shown]}
        table |= {name: [row[index] for row in matrix[:shown]] for index, name in enumerate(names[:shown])}
        cells = _cells(table, DIGITS[-1])
        if shown == 1 or _width(cells) <= WIDTH:
            break
    if shown < len(names):
        left_out[f"covariances of {plural(len(names) - shown, 'column')}"] = None
    yield from _fitted(table, (), left_out)


def _promises(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each promise: which figures it holds for, and of which columns unless of all that have them."""
    columns = document["columns"]
    held: dict[str, dict[str, list[str]]] = {}
    for name, column in columns.items():
        for figure, promise in column["promises"].items():
            held.setdefault(promise, {}).setdefault(figure, []).append(name)
    if "covariance" in document and document["covariance"]["names"]:
        held.setdefault(document["covariance"]["promise"], {})["covariance"] = []
    for promise, figures in held.items():
        parts: dict[str, list[str]] = {}  # which columns -> figures
        for figure, names in figures.items():
            having = sum(figure in column["promises"] for column in columns.values())
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            which = "" if len(names) == having else f" of {', '.join(map(clean, names[:MOST_NAMES]))}{more}"
            parts.setdefault(which, []).append(figure)
        error = next((column["quantiles_error"] for column in columns.values() if "quantiles_error" in column), None)
        which = "quantiles within" if len(figures) > 1 else "within"
        more = f" ({which} {error:.1%} of the value)" if error and "quantiles" in figures else ""
        yield f"{promise}: {'; '.join(', '.join(told) + which for which, told in parts.items())}{more}"


def _fitted(table: Table, may_go: Sequence[str], left_out: dict[str, None]) -> Iterator[str]:
    """Yield the lines of a table that is not too wide; `may_go` are figures to leave out if need be, in that order."""
    texts = [heading for heading, values in table.items() if any(_is_text(value) for value in values)]
    for gone in may_go:
        if _too_wide(_cells(table, DIGITS[-1]), texts) <= 0:
            break
        if gone in table:
            left_out[gone if any(table[gone]) else f"{gone} (0 everywhere)"] = None
            table = {heading: values for heading, values in table.items() if heading != gone}
    for digits in DIGITS:
        cells = _cells(table, digits)
        if _width(cells) <= WIDTH:
            break
    if _width(cells) > WIDTH:
        left_out["the middle of long texts"] = None
        _cut(cells, texts)
    yield from _drawn(cells, texts)
    yield ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value not in _NO_NUMBERS


def _cells(table: Table, digits: int) -> dict[str, list[str]]:
    return {heading: [_cell(value, digits) for value in values] for heading, values in table.items()}


def _cell(value: Any, digits: int) -> str:
    """Return how a value is shown.

    >>> [_cell(value, 4) for value in (None, True, 12345678901, 2**70, 1 / 3, "NaN")]
    ['-', 'true', '12345678901', '1.181e+21', '0.3333', 'NaN']
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        exact = str(value)
        return exact if len(exact) <= 11 else f"{Decimal(value):.{digits - 1}e}"
    return f"{value:.{digits}g}" if isinstance(value, float) else clean(value)


def clean(text: str) -> str:
    r"""Return the text on one line, with nothing that moves a cursor.

    >>> print(clean("a\nb"))
    a\nb
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _widths(cells: Mapping[str, Sequence[str]]) -> dict[str, int]:
    from rich.cells import cell_len

    return {heading: max(map(cell_len, [clean(heading), *texts])) for heading, texts in cells.items()}


def _width(cells: Mapping[str, Sequence[str]]) -> int:
    return sum(_widths(cells).values()) + _GAP * (len(cells) - 1)


def _too_wide(cells: Mapping[str, Sequence[str]], texts: Sequence[str]) -> int:
    """Return by how much the cells are too wide even if all texts are cut."""
    widths = _widths(cells)
    return _width(cells) - WIDTH - sum(max(0, widths[heading] - _NARROWEST) for heading in texts)


def _cut(cells: dict[str, list[str]], texts: Sequence[str]) -> None:
    """Take from the widest of the texts, evenly, what is too much."""
    from rich.cells import cell_len

    widths = {heading: width for heading, width in _widths(cells).items() if heading in texts}
    for _ in range(_width(cells) - WIDTH):
        widest = max(widths, key=lambda heading: widths[heading])
        widths[widest] = max(widths[widest] - 1, _NARROWEST)
    for heading, width in widths.items():
        for index, text in enumerate(cells[heading]):
            while cell_len(text) > width:
                middle = len(text) // 2
                text = text[: middle - 1] + "…" + text[middle + 1 :]
            cells[heading][index] = text


def _drawn(cells: Mapping[str, Sequence[str]], texts: Sequence[str]) -> Iterator[str]:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, _GAP - 1, 0, 0), pad_edge=False)
    for heading in cells:
        grid.add_column(Text(clean(heading)), justify="left" if heading in texts else "right", no_wrap=True)
    for row in zip(*cells.values(), strict=True):
        grid.add_row(*map(Text, row))
    file = io.StringIO()
    Console(file=file, width=WIDTH, color_system=None, force_terminal=False).print(grid)
    yield from (line.rstrip() for line in file.getvalue().rstrip("\n").split("\n"))
