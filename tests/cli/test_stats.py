"""``stats``: what it finds, as a user meets it; each case on several numbers of ranks, with the same result on all."""

import gzip
import itertools
import json
import math
import os
from fractions import Fraction
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

RANKS = [1, 2, 3, 5]
NIST = Path(__file__).parents[1] / "data" / "nist_univariate.json"


def strict(text):
    """Read JSON that may not hold NaN or infinity."""
    return json.loads(text, parse_constant=lambda constant: pytest.fail(constant))


@pytest.fixture
def write(folder):
    """Write files, ``write({"a.csv": "x\\n1\\n"})``: text, bytes, an array, a dict of datasets, or an Arrow table."""

    def write(files):
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str | bytes):
                path.write_bytes(content.encode() if isinstance(content, str) else content)
            elif isinstance(content, np.ndarray):
                np.save(path, content)
            elif isinstance(content, dict):
                with h5py.File(path, "w") as file:
                    for dataset, values in content.items():
                        file[dataset] = values
            else:
                pq.write_table(content, path)
        return list(files)

    return write


@pytest.fixture
def stats(many, folder):
    """Run command lines on several numbers of ranks; return for each the document, and the notes on stderr.

    The document is the same for all numbers of ranks, but for that number.
    """

    def stats(*commands, ranks=RANKS):
        results = []
        for count in ranks:
            results.append([])
            said_of = many(count, [["stats", *map(str, command), "--json", "-"] for command in commands])
            for command, said in zip(commands, said_of, strict=True):
                assert said.statuses == [0] * count and not any(said.errs[1:]), (command, *said.errs)
                assert not any(said.outs[1:])
                assert "Traceback" not in said.errs[0] and "error" not in said.errs[0], said
                document = strict(said.outs[0])
                assert document.pop("ranks") == count
                results[-1].append((document, said.errs[0]))
            assert results[-1] == results[0], (count, *ranks)
        return results[0]

    return stats


def column(found, name="x"):
    """Return a column of a document."""
    return found[0]["columns"][name]


def figures(found, names, name="x"):
    """Return some figures of a column, by names in one text."""
    return [column(found, name)[figure] for figure in names.split()]


def test_S01_variance_far_from_zero(write, stats):
    files = write({f"{index}.csv": f"x\n100000000{index}\n" for index in (1, 2, 3)})
    (found,) = stats(files)
    assert figures(found, "count sum mean var std") == [3, 3000000006, 1000000002.0, 1.0, 1.0]


def test_S03_parts_without_rows(write, stats):
    write({"a.csv": "x\n", "b.csv": "x\n1\n2\n", "c.csv": "x\n"})
    found, alone = stats(["a.csv", "b.csv", "c.csv"], ["b.csv"])
    assert figures(found, "count mean var") == figures(alone, "count mean var") == [2, 1.5, 0.5]
    assert "a.csv" in found[1] and "no rows" in found[1] and alone[1] == ""


def test_S06_quantiles_of_sorted_parts(write, stats):
    files = write({f"{part}.csv": "x\n" + "".join(f"{10 * part + x}\n" for x in range(1, 11)) for part in range(10)})
    found, higher, rough = stats(files, [*files, "--method", "higher", "--quantiles", "0.25,1"], [*files, "--approx"])
    assert column(found)["quantiles"] == {"0.25": 25.75, "0.5": 50.5, "0.75": 75.25}
    assert column(higher)["quantiles"] == {"0.25": 26, "1": 100}
    assert abs(column(rough)["quantiles"]["0.5"] - 50.5) < 1 and column(rough)["promises"]["quantiles"] == "approximate"


def test_S07_median_with_ties(write, stats):
    write({"a.csv": "x\n-1\n0\n0\n", "b.csv": "x\n0\n1\n1\n"})
    (found,) = stats(["a.csv", "b.csv"])
    assert column(found)["quantiles"]["0.5"] == 0


def test_groups(write, stats, folder, many):
    write({"a.csv": "k,x\nb,1\n,2\n", "b.csv": "k,x\na,3\nb,4\n,NA\n"})
    found, whole = stats(["a.csv", "b.csv", "--by", "k"], ["a.csv", "b.csv", "--by", "x", "--columns", "k"])
    groups = found[0]["groups"]
    assert [(group["by"]["k"], group["rows"]) for group in groups] == [("a", 1), ("b", 2), (None, 2)]
    assert [group["columns"]["x"]["sum"] for group in groups] == [3, 5, 2]
    assert [group["columns"]["x"]["null"] for group in groups] == [0, 0, 1] and list(found[0]["columns"]) == ["k", "x"]
    assert [group["by"]["x"] for group in whole[0]["groups"]] == [1, 2, 3, 4, None]
    assert list(whole[0]["columns"]) == ["k"]
    for name in "g.csv", "g.parquet":
        (said,) = many(2, [["stats", "a.csv", "b.csv", "--by", "k", "--output", name]])
        assert said.statuses == [0, 0] and "x: count" in said.outs[0]
    table = pq.read_table(folder / "g.parquet").to_pylist()
    assert [(row["k"], row["column"], row["count"], row["sum"]) for row in table] == [
        ("a", "x", 1, 3.0),
        ("b", "x", 2, 5.0),
        (None, "x", 1, 2.0),
    ]
    assert (folder / "g.csv").read_text().splitlines()[0].startswith('"k","column","rows","count"')


def test_S05_one_row(write, stats):
    write({"a.csv": "x\n7\n"})
    sample, population, three = stats(["a.csv"], ["a.csv", "--ddof", 0], ["a.csv", "--ddof", 3, "--moments"])
    assert figures(sample, "count sum mean var std min max") == [1, 7, 7.0, None, None, 7, 7]
    assert figures(population, "var std") == [0.0, 0.0] and figures(three, "var std") == [None, None]


def test_S09_only_missing_values(write, stats):
    write({"a.csv": "x,y\n,1\nNA,2\n", "b.csv": "x,y\nnan,3\n,4\n", "c.csv": "x,y\n,5\n"})
    found, other = stats(["a.csv", "b.csv"], ["c.csv"])
    assert figures(found, "count null nan sum mean std var min max") == [0, 3, 1, 0, *[None] * 5]
    assert column(found)["quantiles"] == {"0.25": None, "0.5": None, "0.75": None}
    assert figures(found, "count sum", "y") == [4, 10] and figures(other, "count sum", "y") == [1, 5]
    assert figures(other, "count null min max") == [0, 1, None, None]


def test_S10_one_rule_for_nan(write, stats):
    one, two = np.array([1.0, np.nan]), np.array([3.0])
    write({"a.npy": one, "b.npy": two, "c.npy": two, "d.npy": one, "e.csv": "0\n1\nNaN\n3\n"})
    todo = [["a.npy", "b.npy"], ["c.npy", "d.npy"], ["e.csv"]]
    for found in stats(*todo):
        assert figures(found, "count null nan sum mean min max var", "0") == [2, 0, 1, 4, 2, 1, 3, 2]
    for found in stats(*[[*files, "--nan", "propagate"] for files in todo]):
        expected = [2, 0, 1, *["NaN"] * 6]
        assert figures(found, "count null nan sum mean min max var std", "0") == expected


def test_S12_last_edge_belongs_to_the_last_bin(write, stats):
    write({"a.csv": "x\n" + "1.0\n" * 10, "b.csv": "x\n0\n0.5\n1\n1.5\n-1\n"})
    found, other = stats(["a.csv", "--histogram", "2:0:1"], ["b.csv", "--histogram", "2:0:1"])
    assert column(found)["histogram"] == {"edges": [0.0, 0.5, 1.0], "counts": [0, 10]}
    assert column(other)["histogram"]["counts"] == [1, 2]


def test_S14_range_of_all_values(write, stats):
    write(
        {
            "a.csv": "x\n" + "".join(f"{x}\n" for x in range(10)),
            "b.csv": "x\n" + "".join(f"{x}\n" for x in range(90, 100)),
        }
    )
    (found,) = stats(["a.csv", "b.csv", "--histogram", 10])
    histogram = column(found)["histogram"]
    assert histogram["counts"] == [10, *[0] * 8, 10] and histogram["edges"] == list(np.linspace(0, 99, 11))


def test_S17_sums_of_any_size(write, stats):
    write({"a.csv": f"x\n{2**63 - 1}\n", "b.csv": "x\n1\n", "c.npy": np.array([2**63, 2**64 - 1], np.uint64)})
    found, unsigned = stats(["a.csv", "b.csv"], ["c.npy"])
    assert figures(found, "sum mean min max") == [2**63, 4.611686018427388e18, 1, 2**63 - 1]
    assert figures(unsigned, "sum min max", "0") == [2**63 + 2**64 - 1, 2**63, 2**64 - 1]


def test_S18_D02_narrow_types(write, stats):
    write({f"{part}.npy": np.full(128, 255, np.int16) for part in "ab"} | {"c.npy": np.full(2, 60000, np.float16)})
    write({f"{part}.npy": np.array([200], np.uint8) for part in "def"})
    shorts, halves, bytes_ = stats(["a.npy", "b.npy"], ["c.npy"], ["d.npy", "e.npy", "f.npy"])
    assert figures(shorts, "count mean std", "0") == [256, 255.0, 0.0]
    assert figures(halves, "sum mean", "0") == [120000.0, 60000.0]
    assert figures(bytes_, "sum", "0") == [600]


def test_S20_same_in_all_formats_and_on_any_number_of_ranks(write, folder, stats):
    random = np.random.default_rng(20)
    data = {
        "a": random.standard_normal(10_007) * 10.0 ** random.integers(-150, 150, 10_007),
        "b": random.standard_normal(10_007).astype(np.float32),
        "c": random.integers(-(2**63), 2**63 - 1, 10_007),
        "d": random.integers(0, 255, 10_007).astype(np.uint8),
    }
    data["a"][::997] = np.nan
    table = pa.table(data)
    lines = ["a,b,c,d", *(",".join(map(repr, map(np.generic.item, row))) for row in zip(*data.values(), strict=True))]
    structured = np.empty(10_007, [(name, values.dtype) for name, values in data.items()])
    for name, values in data.items():
        structured[name] = values
    write({"t.csv": "\n".join(lines) + "\n", "t.npy": structured, "t.h5": data})
    write({"t.csv.gz": gzip.compress((folder / "t.csv").read_bytes()), "t.tsv": "\n".join(lines).replace(",", "\t")})
    pq.write_table(table, folder / "t.parquet", row_group_size=1000)
    np.savez(folder / "t.npz", **data)
    pyarrow.feather.write_feather(table, folder / "t.feather")
    with pyarrow.ipc.new_file(folder / "t.arrow", table.schema) as file:
        for batch in table.to_batches(max_chunksize=777):
            file.write_batch(batch)
    for index in range(7):
        pq.write_table(table.slice(index * 1500, 1500 if index < 6 else 1007), folder / f"part{6 - index}.parquet")
    names = (
        "t.csv",
        "t.csv.gz",
        "t.tsv",
        "t.npy",
        "t.h5",
        "t.parquet",
        "t.npz",
        "t.feather",
        "t.arrow",
        "part*.parquet",
    )
    options = ["--moments", "--covariance", "--histogram", "9"]
    more = {"t.h5": ["--dataset", "/"]}
    found = stats(*[[name, *options, *more.get(name, [])] for name in names], ranks=[*RANKS, 7])
    documents = [document for document, _ in found]
    for name, document in zip(names, documents, strict=True):
        for title, described in document["columns"].items():
            for extreme in described.pop("argmin"), described.pop("argmax"):
                assert name.startswith("part") or extreme["file"] == name
            described.pop("dtype")
            for figure, value in described.items():
                assert value == documents[0]["columns"][title][figure], (name, title, figure)
        assert document == documents[0], name
    there = [Fraction(x) for x in data["a"].tolist() if not math.isnan(x)]
    found = documents[0]["columns"]
    assert found["a"]["sum"] == float(sum(there)) and found["a"]["mean"] == float(sum(there) / len(there))
    assert found["c"]["sum"] == sum(data["c"].tolist()) and found["b"]["sum"] == math.fsum(data["b"].tolist())


def test_S21_constant_column(write, stats):
    write({f"{part}.csv": "x\n" + "0.1\n" * rows for part, rows in (("a", 17), ("b", 982), ("c", 1))})
    (found,) = stats(["a.csv", "b.csv", "c.csv"])
    assert figures(found, "count mean var std min max") == [1000, 0.1, 0.0, 0.0, 0.1, 0.1]


def test_S22_mean_of_all_rows(write, stats):
    write({"a.csv": "x\n1\n1\n1\n1\n", "b.csv": "x\n5\n"})
    (found,) = stats(["a.csv", "b.csv"])
    assert figures(found, "mean") == [1.8]


def test_S25_text_dates_and_truth(write, stats):
    write({"a.csv": "x,s,t,b\n1,pear,2024-02-29,true\n2,,2023-12-31,false\n4,Apfel,,\n"})
    found, text = stats(["a.csv"], ["a.csv", "--columns", "s"])
    assert figures(found, "sum") == [7]
    assert figures(found, "count null min max", "s") == [2, 1, "Apfel", "pear"]
    assert figures(found, "count null min max", "t") == [2, 1, "2023-12-31", "2024-02-29"]
    assert figures(found, "count null min max", "b") == [2, 1, False, True]
    assert list(text[0]["columns"]) == ["s"] and "mean" not in column(text, "s")


def test_I01_newlines_in_quotes(write, stats):
    rows = '"a",1\n"b",2\n"c\nd\ne\n",3\n"h",4\n'
    write({"a.csv": "foo,bar\n" + rows, "b.csv": "foo,bar\n" + rows * 30_000})
    small, large = stats(["a.csv"], ["b.csv"])
    assert figures(small, "count mean std", "bar") == [4, 2.5, 1.2909944487358056]
    assert figures(large, "count sum null", "bar") == [120_000, 300_000, 0]
    assert figures(large, "max", "foo") == ["h"]


def test_I04_last_line(write, stats):
    ends = ("", "\n", "\n\n\n", "\r\n")
    write({f"{index}.csv": "x\n1\n2\n3" + end for index, end in enumerate(ends)})
    for found in stats(*[[f"{index}.csv"] for index in range(len(ends))]):
        assert figures(found, "count sum null") == [3, 6, 0]


def test_I05_byte_order_mark(write, stats):
    mark = b"\xef\xbb\xbf"
    write({"a.csv": mark + b'"x",y\n1,2\n3,4\n', "b.csv": mark + b"x,y\n1,2\n3,4\n"})
    for found in stats(["a.csv"], ["b.csv"], ["a.csv", "b.csv"]):
        assert list(found[0]["columns"]) == ["x", "y"] and figures(found, "mean") == [2]


def test_I08_thousands(write, stats):
    write({"a.csv": 'x\n"1,234"\n"5,678"\n', "b.csv": "x;y\n1.234,5;7\n5.678;8\n"})
    given, german = stats(
        ["a.csv", "--thousands", ","], ["b.csv", "--delimiter", ";", "--decimal", ",", "--thousands", "."]
    )
    assert figures(given, "sum") == [6912]
    assert figures(german, "sum") == [6912.5] and figures(german, "sum", "y") == [15]


def test_I10_empty_files_are_noted(write, stats):
    write({"a.csv": "x\n1\n2\n", "b.csv": "", "c.csv": "x\n"})
    found, alone = stats(["a.csv", "b.csv", "c.csv"], ["a.csv"])
    assert found[0] == alone[0] and "b.csv" in found[1] and "c.csv" in found[1] and alone[1] == ""


def test_I11_columns_by_name(write, stats):
    write({"a.csv": "a,b\n1,10\n", "b.csv": "b,a\n20,2\n"})
    (found,) = stats(["a.csv", "b.csv"])
    assert figures(found, "sum", "a") == [3] and figures(found, "sum", "b") == [30]


def test_I13_types_that_show_late(write, stats):
    write({"a.csv": "x,y\n,1\n,1\n", "b.csv": "x,y\n1,1\n2.5,1\n", "c.csv": "x\n" + "1\n" * 1000 + "1.5\n"})
    write({"d.csv": "x\n" + "123456\n" * 700_000 + "0.25\n"})
    late, last, far = stats(["a.csv", "b.csv"], ["c.csv"], ["d.csv"])
    assert figures(late, "count null mean") == [2, 2, 1.75]
    assert figures(last, "count sum max") == [1001, 1001.5, 1.5]
    assert figures(far, "count sum min") == [700_001, 123456 * 700_000 + 0.25, 0.25]


def test_I17_I18_row_groups(write, folder, stats):
    pq.write_table(pa.table({"x": [1, 2, 3]}), folder / "one.parquet")
    pq.write_table(pa.table({"x": [1, 2, 4]}), folder / "two.parquet", row_group_size=2)
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), folder / "none.parquet")
    with pq.ParquetWriter(folder / "no groups.parquet", pa.schema({"x": pa.int64()})):
        pass
    one, two, both = stats(["one.parquet"], ["two.parquet"], ["none.parquet", "no groups.parquet", "one.parquet"])
    assert figures(one, "count sum") == [3, 6] and figures(two, "count sum") == [3, 7]
    assert both[0] == one[0]


def test_I22_I25_arrays(write, folder, stats):
    write({"f.npy": np.asfortranarray(np.arange(12.0).reshape(3, 4)), "b.npy": np.array([1, 2, 3], ">i4")})
    write(
        {
            "s.npy": np.array([(1, 2.5), (3, 4.5)], [("i", ">i2"), ("v", "<f4")]),
            "b.h5": {"x": np.array([1, 2, 3], ">f8")},
        }
    )
    write({"g.h5": {"deep/er/x": np.arange(6.0).reshape(3, 2)}})
    fortran, second, big, structured, hdf5, deep = stats(
        ["f.npy"],
        ["f.npy", "--column", 1, "--column", 3],
        ["b.npy"],
        ["s.npy", "--columns", "v"],
        ["b.h5"],
        ["g.h5", "--dataset", "deep/er/x"],
    )
    assert [column(fortran, str(index))["mean"] for index in range(4)] == [4, 5, 6, 7]
    assert list(second[0]["columns"]) == ["1", "3"] and column(second, "3")["mean"] == 7
    assert figures(big, "mean", "0") == [2] and figures(hdf5, "mean", *hdf5[0]["columns"]) == [2]
    assert list(structured[0]["columns"]) == ["v"] and figures(structured, "mean", "v") == [3.5]
    assert [described["mean"] for described in deep[0]["columns"].values()] == [2, 3]


def test_I26_read_only_folders(write, folder, stats):
    write({"sub/a.h5": {"x": np.arange(1000.0)}})
    (folder / "sub" / "a.h5").chmod(0o444)
    (folder / "sub").chmod(0o555)
    try:
        (found,) = stats(["sub/a.h5"])
    finally:
        (folder / "sub").chmod(0o755)
    assert figures(found, "sum", *found[0]["columns"]) == [499500]


def test_X02_nothing_and_infinite_in_strict_json(write, stats):
    write({"a.csv": "x,y,z\n,inf,1\n,-inf,inf\n,1,2\n"})
    (found,) = stats(["a.csv", "--moments", "--covariance", "--histogram", "3:0:1"])
    assert figures(found, "sum mean var min max", "y") == ["NaN", "NaN", "NaN", "-Infinity", "Infinity"]
    assert figures(found, "sum mean var min max", "z") == ["Infinity", "Infinity", "NaN", 1, "Infinity"]


def test_promises(write, stats):
    write({"a.csv": "x,y\n1,0.5\n2,0.25\n"})
    exact, fast = stats(["a.csv", "--moments", "--covariance"], ["a.csv", "--fast"])
    told = {name: column(exact, name)["promises"] for name in "xy"}
    assert (
        told["x"]["sum"] == "exact" and told["y"]["sum"] == told["y"]["mean"] == told["y"]["std"] == "correctly rounded"
    )
    assert told["y"]["skewness"] == "same bits" and told["y"]["count"] == told["y"]["min"] == "exact"
    assert exact[0]["covariance"]["promise"] == "correctly rounded"
    assert column(fast, "y")["promises"]["mean"] == "approximate" and column(fast, "y")["promises"]["count"] == "exact"
    for name in "xy":
        for figure in "mean", "std":
            assert math.isclose(column(fast, name)[figure], column(exact, name)[figure], rel_tol=1e-12)


def test_weights(write, stats):
    write({"a.csv": "x,w\n1,1\n2,0\n,5\n4,3\n", "b.csv": "x,w\n1,1\n4,1\n4,1\n4,1\n"})
    weighted, repeated = stats(["a.csv", "--weights", "w"], ["b.csv", "--columns", "x"])
    assert list(weighted[0]["columns"]) == ["x"] and weighted[0]["weights"] == "w" and "weights" not in repeated[0]
    assert figures(weighted, "sum mean var std min max") == figures(repeated, "sum mean var std min max")


def test_many_files_folders_and_patterns(write, stats):
    write(
        {f"sub/{index}.csv": f"x\n{index}\n" for index in range(12)}
        | {"sub/deep/a.csv": "x\n100\n", "sub/notes.md": "no"}
    )
    for found in stats(["sub/?.csv", "sub/1?.csv"], ["sub/[0-9]*.csv", "sub/3.csv"]):
        assert figures(found, "count sum") == [12, 66]
    for found in stats(["sub"], ["sub/**/*.csv"], ["sub/deep", "sub/*.csv", "sub/deep/a.csv"]):
        assert figures(found, "count sum") == [13, 166]


def test_extremes_are_found_again(write, folder, stats):
    rows = [5, 9, 1, 9, 1]
    write({"a.csv": "x\n3\n2\n", "b.csv": "x\n" + "".join(f"{row}\n" for row in rows)})
    pq.write_table(pa.table({"x": rows}), folder / "b.parquet", row_group_size=1)
    text, groups = stats(["a.csv", "b.csv", "--moments"], ["b.parquet", "--moments"])
    assert figures(text, "argmin argmax") == [{"file": "b.csv", "row": 2}, {"file": "b.csv", "row": 1}]
    assert figures(groups, "argmin argmax") == [{"file": "b.parquet", "row": 2}, {"file": "b.parquet", "row": 1}]


def test_null_values(write, stats):
    write({"a.csv": "x,y\n-9,NA\n1,a\n?,b\n,c\n"})
    usual, given = stats(["a.csv"], ["a.csv", "--null-values", "-9,?"])
    assert column(usual)["kind"] == "text" and figures(usual, "count null", "y") == [3, 1]
    assert figures(given, "count null sum") == [1, 3, 1] and figures(given, "count null", "y") == [4, 0]


def test_nist_certified_values(write, folder, stats):
    """Mean and deviation agree to the digits that the data, read as floats, can reach."""
    sets = json.loads(NIST.read_text())["datasets"]
    for name, known in sets.items():
        values = [float(text) for text in known["values"]]
        write({f"{name}.csv": "\n".join(["x", *known["values"], ""]), f"{name}.npy": np.array(values)})
        parts = itertools.pairwise((0, 7, 7, 50, len(values)))
        write({f"{name}.d/{index}.npy": np.array(values[a:b]) for index, (a, b) in enumerate(parts)})
    places = [f"{name}.{kind}" for name in sets for kind in ("csv", "npy", "d")]
    for place, found in zip(places, stats(*[[place] for place in places], ranks=[1, 2, 3, 5]), strict=True):
        known = sets[place.split(".")[0]]
        (described,) = found[0]["columns"].values()
        assert described["count"] == known["n"]
        for figure, certified in ("mean", known["mean"]), ("std", known["sd"]):
            error = abs(Fraction(described[figure]) - Fraction(certified)) / abs(Fraction(certified))
            digits = 15 if not error else -math.log10(error)
            assert digits >= min(known["best_lre_from_float64"], 15) - 0.1, (place, figure, digits)


def test_output_files(write, folder, many):
    write({"a.csv": "x,s\n1,p\n2.5,q\n"})
    outputs = ["--json", "o.json", "--output", "o.csv", "--plot", "o.png"]
    more = ["--json", "p.json", "--output", "p.parquet", "--plot", "p.svg", "--histogram", "4", "--moments"]
    for ranks in 1, 3:
        for said in many(ranks, [["stats", "a.csv", *outputs], ["stats", "a.csv", *more]]):
            assert said.statuses == [0] * ranks and not any(said.errs) and not any(said.outs[1:]), said
            assert said.outs[0].startswith(f"2 rows in 1 file, {ranks} rank"), said
            assert all(len(line) <= 80 for line in said.outs[0].splitlines()), said
            assert not any(said.opened[1:]), said
        assert sorted(os.listdir(folder)) == ["a.csv", "o.csv", "o.json", "o.png", "p.json", "p.parquet", "p.svg"]
        assert strict((folder / "o.json").read_text())["columns"]["x"]["sum"] == 3.5
        assert (folder / "o.csv").read_text().splitlines()[1].startswith('"x"')
        assert pq.read_table(folder / "p.parquet").to_pylist()[0]["argmax_row"] == 1
        assert (folder / "o.png").read_bytes()[:4] == b"\x89PNG" and b"</svg>" in (folder / "p.svg").read_bytes()
