"""Statistics for programs and for people: JSON, the table for CSV and Parquet, the tables of 80 columns, pictures."""

import csv
import io
import json
import math

import numpy as np
import pyarrow.parquet
import pytest

from hpcreduce.stats import plots, report, screen
from hpcreduce.stats.wanted import Described, Summary, Wanted

ROUNDED = {"count": "exact", "min": "exact", "sum": "correctly rounded", "mean": "correctly rounded"}
HUGE = 3 * 2**90 + 1


def number(**figures):
    """Return a column of numbers; no two figures are alike."""
    told = {"count": 7, "null": 2, "nan": 1, "sum": 0.1 + 0.2, "mean": 1 / 3, "var": 2.5, "std": math.sqrt(2.5)}
    told |= {"min": -5e-324, "max": 1.7976931348623157e308, "promises": ROUNDED}
    return Described("number", "float64", **(told | figures))


def summary(columns, **others):
    """Return a summary of ten rows in three shards."""
    return Summary(**({"rows": 10, "ranks": 3, "shard_rows": [3, 4, 3], "columns": columns} | others))


ORIGIN = report.Origin(["a.csv", "b.csv"], [0, 1, 1])
MOMENTS = {
    "skewness": 0.5,
    "sample_skewness": 0.6,
    "kurtosis": -1.5,
    "sample_kurtosis": -1.25,
    "product": 1e-300,
    "argmin": (0, 2),
    "argmax": (2, 1),
}
TEXT = Described("text", "string", 9, 1, min='Ärger, "so"', max="z\nz", promises={"count": "exact", "min": "exact"})
WHOLE = number(sum=HUGE, min=-(2**63), max=2**64 - 1, promises=ROUNDED | {"sum": "exact"})
EMPTY = number(count=0, sum=0.0, mean=None, var=None, std=None, min=None, max=None)
WILD = number(sum=math.inf, mean=-math.inf, var=math.nan, std=math.nan, min=-math.inf, max=math.inf)


def strict(text):
    """Read JSON that may not hold NaN or infinity."""

    def refuse(constant):
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def written(columns, **others):
    """Return what a program reads from the JSON."""
    document = report.document(summary(columns, **others), ORIGIN, Wanted())
    return strict(json.dumps(document, allow_nan=False))


def test_the_shape_of_the_json():
    found = written({"x": number(), "t": TEXT})
    assert list(found) == ["rows", "ranks", "columns"] and (found["rows"], found["ranks"]) == (10, 3)
    assert list(found["columns"]) == ["x", "t"]
    x, t = found["columns"].values()
    assert set(x) == {"kind", "dtype", *report.NUMBERS, "promises"}
    assert set(t) == {"kind", "dtype", *report.OTHERS, "promises"}
    assert (t["min"], t["max"], x["promises"]) == (TEXT.min, TEXT.max, ROUNDED)


def test_numbers_come_back_as_they_were():
    x = written({"x": number()})["columns"]["x"]
    for name in "sum", "mean", "std", "var", "min", "max":
        assert x[name] == getattr(number(), name) and isinstance(x[name], float), name
    x = written({"x": WHOLE})["columns"]["x"]
    assert (x["sum"], x["min"], x["max"]) == (HUGE, -(2**63), 2**64 - 1)
    assert all(isinstance(x[name], int) for name in ("sum", "min", "max"))
    x = written({"x": number(sum=-0.0, min=np.float32(0.1), max=np.int8(3))})["columns"]["x"]
    assert math.copysign(1, x["sum"]) == -1 and x["min"] == float(np.float32(0.1)) and x["max"] == 3


def test_X02_strict_json_of_what_is_no_number():
    columns = written({"none": EMPTY, "wild": WILD})["columns"]
    assert [columns["none"][name] for name in ("sum", "mean", "std", "var", "min", "max")] == [0.0, *[None] * 5]
    expected = ["Infinity", "-Infinity", "NaN", "NaN", "-Infinity", "Infinity"]
    assert [columns["wild"][name] for name in ("sum", "mean", "std", "var", "min", "max")] == expected


def test_what_was_asked_for_besides():
    column = number(**MOMENTS, histogram=(np.array([0.0, 0.5, 1.0]), np.array([3, 4])))
    covariance = (["x", "y"], np.array([[1.0, math.nan], [math.nan, 2.0]]))
    document = report.document(summary({"x": column, "t": TEXT}, covariance=covariance), ORIGIN, Wanted(moments=True))
    found = strict(json.dumps(document, allow_nan=False))
    x = found["columns"]["x"]
    assert {name: x[name] for name in report.SHAPES} == {name: MOMENTS[name] for name in report.SHAPES}
    assert (x["argmin"], x["argmax"]) == ({"file": "a.csv", "row": 2}, {"file": "b.csv", "row": 5})
    assert x["histogram"] == {"edges": [0.0, 0.5, 1.0], "counts": [3, 4]}
    assert found["covariance"] == {
        "names": ["x", "y"],
        "matrix": [[1.0, "NaN"], ["NaN", 2.0]],
        "promise": "correctly rounded",
    }
    assert "argmin" not in found["columns"]["t"]


def tables(document):
    """Return the CSV as rows of texts, and the Parquet table as rows."""
    text, binary = io.BytesIO(), io.BytesIO()
    report.write(document, text, "csv")
    report.write(document, binary, "parquet")
    rows = list(csv.DictReader(io.StringIO(text.getvalue().decode(), newline="")))
    table = pyarrow.parquet.read_table(binary)
    assert table.schema.metadata[b"rows"] == b"10"
    return rows, table.to_pylist()


def test_tables_with_a_row_per_column():
    column = number(**MOMENTS, histogram=(np.array([0.0, 0.5, 1.0]), np.array([3, 4])))
    whole = WHOLE._replace(**(MOMENTS | {"argmax": None}))
    covariance = (["x", "whole"], np.array([[1.5, -0.1], [-0.1, 2.0]]))
    columns = {"x": column, "whole": whole, "t": TEXT, "wild": WILD}
    rows, table = tables(report.document(summary(columns, covariance=covariance), ORIGIN, Wanted(moments=True)))
    assert list(rows[0]) == list(table[0]) and [row["column"] for row in rows] == list(columns)
    for cells, values, (name, described) in zip(rows, table, columns.items(), strict=True):
        assert values["column"] == name and values["count"] == described.count == int(cells["count"])
        for figure in "sum", "mean", "std", "var", "min", "max":
            expected = getattr(described, figure)
            if described.kind == "number":
                assert np.array_equal(values[figure], float(expected), equal_nan=True), (name, figure)
                assert np.array_equal(float(cells[figure]), float(expected), equal_nan=True), (name, figure)
            else:
                assert values[figure] is None and cells[figure] == ""
    assert [row["sum_text"] for row in table] == [repr(0.1 + 0.2), str(HUGE), None, "Infinity"]
    assert (rows[1]["sum_text"], rows[1]["max_text"]) == (str(HUGE), str(2**64 - 1))
    assert (
        (rows[2]["min_text"], rows[2]["max_text"])
        == (TEXT.min, TEXT.max)
        == (table[2]["min_text"], table[2]["max_text"])
    )
    assert (table[0]["argmax_file"], table[0]["argmax_row"], table[1]["argmax_file"]) == ("b.csv", 5, None)
    assert table[0]["histogram_counts"] == json.loads(rows[0]["histogram_counts"]) == [3, 4]
    assert table[0]["histogram_edges"] == json.loads(rows[0]["histogram_edges"]) == [0.0, 0.5, 1.0]
    assert [row["covariance with whole"] for row in table] == [-0.1, 2.0, None, None]
    assert table[0]["promises"] == rows[0]["promises"]
    assert "sum: correctly rounded" in rows[0]["promises"] and "sum: exact" in rows[1]["promises"]


def test_the_table_does_not_tell_the_ranks():
    said = []
    for ranks in 1, 5:
        file = io.BytesIO()
        report.write(report.document(summary({"x": number()}, ranks=ranks), ORIGIN, Wanted()), file, "csv")
        said.append(file.getvalue())
    assert said[0] == said[1]


def shown(columns, moments=False, **others):
    """Return the lines for people, none of which is too long."""
    from rich.cells import cell_len

    lines = list(screen.lines(report.document(summary(columns, **others), ORIGIN, Wanted(moments=moments))))
    assert all(cell_len(line) <= 80 and line.isprintable() for line in lines), lines
    return lines


def row(lines, name):
    """Return the cells of the first row that begins with a name, with one space between them."""
    return next(" ".join(line.split()) for line in lines if line.split()[:1] == [name])


def test_people_see_figures_and_promises():
    x = number(count=1000, null=0, nan=0, sum=12.5, mean=1 / 3, min=-1.0, max=2.0)
    lines = shown(
        {"x": x, "y": number(sum=7, min=1, max=3), "t": TEXT, "b": Described("bool", "bool", 3, 0, min=False, max=True)}
    )
    assert row(lines, "column") == "column count null nan mean std min max sum"
    assert row(lines, "x") == "x 1000 0 0 0.333333 1.58114 -1 2 12.5"
    assert row(lines, "y") == "y 7 2 1 0.333333 1.58114 1 3 7"
    assert row(lines, "b") == "b bool 3 0 false true"
    text = "\n".join(lines)
    assert r'Ärger, "so"' in text and r"z\nz" in text
    assert "exact: count, min" in text and "correctly rounded: sum, mean" in text
    assert "Not shown: var, further digits." in text and "--json" in text


def test_people_are_told_what_has_no_room():
    wide = number(count=10**11, null=10**10, nan=0, sum=-1.25e-200, mean=-1.25e-200, std=1.25e-200)
    long = f"{'a long name ' * 5}end"
    lines = shown({long: wide, "b": wide, "c" * 90: wide})
    text = " ".join(" ".join(lines).split())
    assert "Not shown: nan (0 everywhere), sum, null" in text and "middle of long texts" in text
    assert row(lines, "column").startswith("column count mean") and "sum" not in lines[0]
    assert lines[2].startswith("a long") and "…" in lines[2]
    many = {f"c{index}": number() for index in range(130)}
    lines = shown(many)
    assert row(lines, "c99") and not any(line.startswith("c100 ") for line in lines)
    assert "30 columns" in "\n".join(lines)


def test_people_see_all_that_they_asked_for():
    counts = np.arange(100)
    column = number(count=5000, **MOMENTS, histogram=(np.linspace(0, 1, 101), counts))
    names = [f"name{index}" for index in range(20)]
    matrix = np.arange(400.0).reshape(20, 20) * 1e-7
    lines = shown({"x": column}, True, covariance=(names, matrix))
    text = " ".join(" ".join(lines).split())
    assert "x 2.5 0.5 0.6 -1.5 -1.25 1e-300" in text
    assert "x a.csv 2 b.csv 5" in text
    assert "▁" in text and "█" in text and lines.count("") == 5
    assert str(5000 - counts.sum()) in text
    assert "covariances of" in text and "name0" in text
    assert all(cut not in text for cut in ("nan (", "var,"))


def test_promises_that_differ_name_the_columns():
    lines = shown({"x": number(), "y": WHOLE, **{f"z{index}": WHOLE for index in range(5)}})
    text = " ".join(" ".join(lines).split())
    assert "correctly rounded: sum of x; mean" in text and "sum of y, z0, z1 and 3 more" in text


@pytest.mark.parametrize("form, start", [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_pictures(form, start, monkeypatch):
    histogram = (np.linspace(0, 1, 4), np.array([1, 5, 1]))
    columns = {name: number(histogram=histogram) for name in ("price in $ and $x_1", "日本\n", "long " * 20)}
    document = report.document(summary(columns | {"t": TEXT}), ORIGIN, Wanted())
    file = io.BytesIO()
    assert plots.histograms(document, file, form) == []
    assert file.getvalue().startswith(start)
    monkeypatch.setattr(plots, "MOST_PANELS", 1)
    assert plots.histograms(document, io.BytesIO(), form) == list(columns)[1:]
