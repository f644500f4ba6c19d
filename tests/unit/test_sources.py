"""Tables in files of all formats as one rank reads them, and what is said of files that are wrong."""

import gzip
import io
import os
import pickle
import subprocess
import sys
import zipfile
from decimal import Decimal
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from hpcreduce.stats import csvtypes, schema, shards, sources
from hpcreduce.stats.batches import Field
from hpcreduce.stats.reading import Found
from hpcreduce.stats.sources import ReadOptions, SourceError

ALONE = SimpleNamespace(rank=0, size=1)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, data):
    with open(name, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
    return name


def content(name):
    with open(name, "rb") as file:
        return file.read()


def find(*files, **options):
    return sources.find(ALONE, files, ReadOptions(**options))


def plain(column):
    values = column.values.tolist() if isinstance(column.values, np.ndarray) else column.values.to_pylist()
    return [value if column.valid is None or column.valid[row] else None for row, value in enumerate(values)]


def read(*files, **options):
    """Return the columns of files as lists."""
    source = find(*files, **options)
    columns, rows = {field.name: [] for field in source.schema}, {}
    for batch in source.batches():
        assert batch.row == rows.get(batch.shard, 0) and batch.rows > 0
        rows[batch.shard] = batch.row + batch.rows
        assert list(batch.columns) == list(columns)
        for name, column in batch.columns.items():
            assert len(column.values) == batch.rows
            columns[name] += plain(column)
    return columns


def refused(*files, **options):
    with pytest.raises(SourceError) as caught:
        read(*files, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def kinds(source):
    return {field.name: (field.kind, field.dtype) for field in source.schema}


# ---- CSV


def test_I04_a_last_row_without_newline_and_empty_lines():
    for end in "", "\n", "\n\n\n", "\r\n\r\n":
        assert read(write("a.csv", "x\n1\n2\n3" + end)) == {"x": [1, 2, 3]}


def test_I05_a_byte_order_mark():
    for header in '"x",y', "x,y":
        assert read(write("a.csv", b"\xef\xbb\xbf" + header.encode() + b"\n1,2\n3,4\n")) == {"x": [1, 3], "y": [2, 4]}
    assert "UTF-16" in refused(write("a.csv", "x\n1\n".encode("utf-16")))


def test_I06_a_delimiter_at_the_end_of_rows_is_an_error_with_its_line():
    assert refused(write("a.csv", "c1,c2\n1,2,\n3,4,\n")) == (
        "a.csv: line 2: expected 2 fields, found 3 (is there a delimiter at the end?)"
    )


@pytest.mark.parametrize("block", [1, 1 << 22])
def test_I07_ragged_rows_are_errors_with_their_lines(block):
    assert refused(write("a.csv", "a,b\n1,2\n3,4,5\n"), block=block) == "a.csv: line 3: expected 2 fields, found 3"
    text = 'a,b,c\n1,"2\n\n",3\n\n4,5\n6,7,8\n'
    assert refused(write("a.csv", text), block=block) == "a.csv: line 6: expected 3 fields, found 2"
    assert refused(write("a.csv.gz", gzip.compress(text.encode())), block=block).startswith("a.csv.gz: line 6: ")


def test_I08_thousands():
    path = write("a.csv", 'x,y\n"1,234",1\n"-5,678",2\n12,3\n')
    assert refused(path) == "a.csv: column 'x' has marks between thousands, as in 1,234: use --thousands ,"
    assert read(path, columns=["y"]) == {"y": [1, 2, 3]}
    assert read(path, thousands=",") == {"x": [1234, -5678, 12], "y": [1, 2, 3]}
    for block in 1, 1 << 22:
        path = write("b.csv", "x;y\n1.234,5;1\n-5.678;+2\n7;3,25\n")
        found = read(path, delimiter=";", decimal=",", thousands=".", block=block)
        assert found == {"x": [1234.5, -5678.0, 7.0], "y": [1.0, 2.0, 3.25]}
    assert kinds(find(write("c.csv", 'x\n"1,234"\n"12,34"\n')))["x"] == ("text", "text")
    assert kinds(find(write("c.csv", 'x\n"1,234"\nabc\n'), block=1))["x"] == ("text", "text")


def test_I10_files_without_rows_are_noted_and_change_nothing():
    files = [write("a.csv", ""), write("b.csv", "x,y\n"), write("c.csv", "x,y\n1,a\n"), write("d.csv", "\n\n")]
    assert read(*files) == {"x": [1], "y": ["a"]}
    assert find(*files).notes == ["a.csv and 1 more: is empty", "b.csv: has no rows, only a header"]
    assert kinds(find(*files)) == {"x": ("number", "int64"), "y": ("text", "text")}
    assert read("b.csv") == {"x": [], "y": []}
    assert refused("a.csv") == "a.csv: there are no columns of data"


def test_I11_columns_are_matched_by_name():
    files = write("a.csv", "a,b\n1,10\n"), write("b.csv", "b,a\n20,2\n"), write("c.csv", "a,c\n3,z\n")
    assert read(*files) == {"a": [1, 2, 3], "b": [10, 20, None], "c": [None, None, "z"]}
    assert find(*files).notes == [
        "a.csv and 1 more: has no column 'c', whose values count as missing there",
        "c.csv: has no column 'b', whose values count as missing there",
    ]


def test_files_that_lack_all_wanted_columns_still_have_rows():
    write("a.csv", "a\n1\n")
    write("b.csv", "x\n2\n3\n")
    table = pa.table({"x": [2, 3]})
    parquet.write_table(table, "c.parquet")
    write_arrow("d.arrow", table, 1)
    write_arrow("e.arrows", table, 1, stream=True)
    np.savez("f.npz", x=[2, 3])
    np.savez_compressed("g.npz", x=[2, 3])
    np.save("h.npy", [2, 3])
    with h5py.File("i.h5", "w") as file:
        file["x"] = [2, 3]
    assert read(*sorted(os.listdir()), columns=["a"]) == {"a": [1, *[None] * 16]}


@pytest.mark.parametrize("block", [1, 100, 1 << 22])
def test_I13_types_are_those_of_all_rows(block):
    files = write("a.csv", "x,y\n,1\n,1\n"), write("b.csv", "x,y\n1,1\n2.5,1\n")
    assert read(*files, block=block)["x"] == [None, None, 1, 2.5]
    path = write("c.csv", "x\n" + "".join(f"{number}\n" for number in range(1000)) + "1.5\n")
    assert read(path, block=block) == {"x": [*map(float, range(1000)), 1.5]}
    path = write("d.csv", "x\n" + "1\n" * 100 + "abc\n")
    assert read(path, block=block) == {"x": ["1"] * 100 + ["abc"]}


@pytest.mark.parametrize("block", [1, 1 << 22])
def test_types_do_not_depend_on_how_a_file_is_cut(block):
    values = {
        ("1", "2"): ("number", "int64"),
        ("1", "+2"): ("number", "float64"),
        ("1", "1e400"): ("number", "float64"),
        ("9223372036854775807", ""): ("number", "int64"),
        ("NaN", "-inf"): ("number", "float64"),
        ("true", "FALSE"): ("bool", "bool"),
        ("true", "1"): ("text", "text"),
        ("2020-01-01", "2020-01-02"): ("date", "date"),
        ("2020-01-01", "2020-01-02 10:00"): ("date", "timestamp[s]"),
        ("2020-01-01 10:00:00.5", "2020-01-02"): ("date", "timestamp[ns]"),
        ("2020-01-01T10:00Z", "2020-01-02T10:00:00.25Z"): ("date", "timestamp[ns, tz=UTC]"),
        ("2020-01-01T10:00Z", "2020-01-02T10:00"): ("text", "text"),
        ("2020-01-01", "5"): ("text", "text"),
        ("12:30", "12:31:05"): ("date", "time32[s]"),
        ("NA", ""): ("number", "float64"),
    }
    for fields, expected in values.items():
        for one, other in fields, fields[::-1]:
            path = write("a.csv", f"x,y\n{one},0\n{other},0\n")
            assert kinds(find(path, block=block))["x"] == expected, fields
            read(path, block=block)


@pytest.mark.parametrize("block", [1, 1 << 22])
def test_integers_beyond_64_bits(block):
    path = write("a.csv", "x\n18446744073709551615\n1\n")
    assert kinds(find(path, block=block)) == {"x": ("number", "uint64")}
    assert read(path, block=block) == {"x": [2**64 - 1, 1]}
    for text in "18446744073709551615\n-1\n", "18446744073709551616\n1\n":
        source = find(write("a.csv", "x\n" + text), block=block)
        assert kinds(source) == {"x": ("number", "float64")}
        assert source.notes == ["a.csv: column 'x' has integers of more than 64 bits, which are read as float64"]


def test_missing_values_of_csv():
    path = write("a.csv", 'x,t\n-999,NA\n5,""\nNaN,b\nNA,-999\n')
    assert read(write("b.csv", "x\nNA\nNULL\n#N/A\n7\n")) == {"x": [None, None, None, 7]}
    found = read(path)
    assert str(found) == "{'x': [-999.0, 5.0, nan, None], 't': [None, None, 'b', '-999']}"
    assert str(read(path, null_values=["-999", "NA"])) == "{'x': [None, 5.0, nan, None], 't': [None, None, 'b', None]}"
    assert read(path, null_values=["-999"])["x"] == [None, "5", "NaN", "NA"]


def test_delimiters_and_headers():
    assert read(write("a.tsv", "x\ty\n1\ta,b\n")) == {"x": [1], "y": ["a,b"]}
    assert read(write("a.csv", "x;y\n1,5;2\n"), delimiter=";", decimal=",") == {"x": [1.5], "y": [2]}
    assert read(write("a.csv", ",a\n0,5\n")) == {"0": [0], "a": [5]}
    assert read(write("a.csv", '"a ""b"", c","d\ne"\r\n0,5\r\n')) == {'a "b", c': [0], "d\ne": [5]}
    assert "the column name 'a' occurs twice" in refused(write("a.csv", "a,b,a\n1,2,3\n"))
    assert "the header is no UTF-8 text" in refused(write("a.csv", b"\xe9,b\n1,2\n"))


def test_text_that_is_not_utf8_is_left_out():
    path = write("a.csv", b"x,y\n1,\xe9\n2,b\n")
    assert read(path) == {"x": [1, 2]}
    assert find(path).notes == [
        "a.csv: left out, since there are no statistics of such types: 'y' (bytes that are no UTF-8 text)"
    ]
    assert "column 'y' has the type bytes that are no UTF-8 text" in refused(path, columns=["y"])


def test_gzip():
    text = "x,y\n" + "".join(f'{number},"a\n{number}"\n' for number in range(500))
    path = write("a.csv.gz", gzip.compress(text.encode()))
    for block in 1, 100, 1 << 22:
        assert read(path, block=block) == {"x": [*range(500)], "y": [f"a\n{number}" for number in range(500)]}
    several = gzip.compress(b"x\n1\n") + gzip.compress(b"2\n3\n")
    assert read(write("b.csv", several)) == {"x": [1, 2, 3]}
    assert "damaged or cut short" in refused(write("a.csv.gz", gzip.compress(text.encode())[:-20]))


# ---- other formats

TABLE = pa.table(
    {
        "i": pa.array([1, 2, None, 4, 5], pa.int32()),
        "f": pa.array([1.5, None, float("inf"), 4, 5], pa.float32()),
        "half": pa.array([1.5, 2, None, 4, 5], pa.float16()),
        "b": [True, None, False, True, True],
        "t": pa.array(["a", None, "b", "", "e"]),
        "large": pa.array(["a", None, "b", "", "e"], pa.large_string()),
        "coded": pa.array(["a", None, "b", "a", "e"]).dictionary_encode(),
        "day": pa.array([1, 2, None, 4, 5], pa.date32()),
        "stamp": pa.array([1, 2, None, 4, 5], pa.timestamp("us", "UTC")),
        "time": pa.array([1, 2, None, 4, 5], pa.time64("us")),
        "none": pa.nulls(5),
        "money": pa.array([1, None, 3, 4, 5]).cast(pa.decimal128(21, 2)),
        "whole": pa.array([Decimal(1), None, Decimal(-3), Decimal(4), Decimal(5)], pa.decimal128(18, 0)),
        "list": [[1], [2], None, [], [5]],
        "bytes": [b"a", None, b"b", b"", b"e"],
    }
)
KINDS = {
    "i": ("number", "int32"),
    "f": ("number", "float32"),
    "half": ("number", "float16"),
    "b": ("bool", "bool"),
    "t": ("text", "text"),
    "large": ("text", "text"),
    "coded": ("text", "text"),
    "day": ("date", "date"),
    "stamp": ("date", "timestamp[us, tz=UTC]"),
    "time": ("date", "time64[us]"),
    "none": ("number", "float64"),
    "money": ("number", "float64"),
    "whole": ("number", "int64"),
}


def write_arrow(path, table, rows=2, stream=False):
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(path, "wb") as file, make(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


WRITERS = {
    "a.parquet": lambda path: parquet.write_table(TABLE, path, row_group_size=2),
    "a.arrow": lambda path: write_arrow(path, TABLE),
    "a.arrows": lambda path: write_arrow(path, TABLE, stream=True),
    "a.feather": lambda path: feather.write_feather(TABLE, path, compression="zstd"),
}


@pytest.mark.parametrize("path", WRITERS)
def test_arrow_types(path):
    WRITERS[path](path)
    expected = {name: TABLE[name].to_pylist() for name in KINDS}
    expected |= {name: [value and float(value) for value in expected[name]] for name in ("money", "whole")}
    assert read(path) == expected
    source = find(path)
    assert kinds(source) == KINDS
    assert "'list' (list<" in source.notes[0] and "'bytes' (binary)" in source.notes[0]
    assert f"{path}: column 'money': decimals are read as float64" in source.notes
    assert read(path, columns=["t", "i"]) == {"t": expected["t"], "i": expected["i"]}
    assert "column 'list' has the type list<" in refused(path, columns=["i", "list"])
    write(path, content(path)[:-300])
    assert refused(path).startswith(f"{path}: ")


def test_numbers_of_arrow_need_no_copy():
    parquet.write_table(pa.table({"x": [1.5, 2, 3]}), "a.parquet")
    (batch,) = find("a.parquet").batches()
    assert not batch.columns["x"].values.flags.owndata and batch.columns["x"].valid is None


def test_I18_parquet_without_rows_or_row_groups():
    parquet.write_table(pa.table({"x": [1, 2]}), "a.parquet")
    parquet.write_table(pa.table({"x": pa.nulls(0, pa.string())}), "b.parquet")
    with parquet.ParquetWriter("c.parquet", pa.schema({"x": pa.int64()})):
        pass
    assert read("a.parquet", "b.parquet", "c.parquet") == {"x": [1, 2]}
    assert kinds(find("a.parquet", "b.parquet"))["x"] == ("number", "int64")
    assert find("b.parquet", "c.parquet").notes == ["b.parquet and 1 more: has no rows"]


def test_damaged_parquet_is_an_error_whenever_it_is_seen():
    parquet.write_table(pa.table({"x": [*range(1000)]}), "a.parquet", row_group_size=100)
    data = content("a.parquet")
    assert refused(write("b.parquet", data[:500])).startswith("b.parquet: ")
    damaged = write("c.parquet", data[:1000] + b"\xff" * 2000 + data[3000:])
    source = find(damaged)
    with pytest.raises(SourceError, match=r"^c\.parquet: ") as caught:
        list(source.batches())
    assert 0 < caught.value.order < len(source.shards)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.order == caught.value.order


@pytest.mark.parametrize("block", [1, 16, 1 << 22])
def test_I22_I25_arrays(block):
    for order in "C", "F":
        np.save("a.npy", np.asarray(np.arange(12.0).reshape(3, 4), order=order))
        assert read("a.npy", block=block) == {
            str(column): [column + 4.0 * row for row in range(3)] for column in range(4)
        }
        assert read("a.npy", block=block, columns=["2"]) == {"2": [2, 6, 10]}
    np.save("a.npy", np.array([1, 2, 3], ">i4"))
    assert read("a.npy", block=block) == {"0": [1, 2, 3]}
    (first, *_) = find("a.npy").batches()
    assert first.columns["0"].values.dtype == np.int32 and first.columns["0"].values.dtype.isnative
    np.save("a.npy", structured())
    assert read("a.npy", block=block) == {"i": [1, 2], "f": [2.5, 3.5], "u": ["a", "\u00e9"], "s": ["c", ""]}
    np.save("a.npy", np.float16(2.5))
    assert read("a.npy", block=block) == {"0": [2.5]}
    np.save("a.npy", np.array(["2020-01-01", "NaT"], "M8[D]"))
    assert [str(day) for day in read("a.npy", block=block)["0"]] == ["2020-01-01", "None"]
    np.save("a.npy", np.zeros((0, 2)))
    assert read("a.npy", block=block) == {"0": [], "1": []}


def structured():
    types = [("i", ">i4"), ("f", "<f4"), ("u", ">U2"), ("s", "S2")]
    return np.array([(1, 2.5, "a", b"c"), (2, 3.5, "\u00e9", b"")], types)


def test_arrays_that_are_refused():
    np.save("a.npy", np.zeros((2, 3, 4)))
    assert refused("a.npy") == "a.npy: the array has the shape (2, 3, 4); rows of columns have one or two dimensions"
    np.save("a.npy", np.zeros(3, complex))
    assert (
        refused("a.npy", columns=["0"]) == "a.npy: column '0' has the type complex128, of which there are no statistics"
    )
    np.save("a.npy", np.array([{}]), allow_pickle=True)
    assert refused("a.npy") == "a.npy: holds pickled Python objects, which are never loaded"
    np.savez("a.npz", x=np.array([{}]))
    assert refused("a.npz") == "a.npz: holds pickled Python objects, which are never loaded"
    np.savez("a.npz", x=np.zeros(3), y=np.zeros(4))
    assert refused("a.npz") == "a.npz: x has 3 rows, but y 4; choose columns of one length"
    assert read("a.npz", columns=["x"]) == {"x": [0, 0, 0]}


def test_I23_truncated_arrays():
    np.save("a.npy", np.arange(10.0))
    assert refused(write("a.npy", content("a.npy")[:-16])) == (
        "a.npy: the file is damaged or cut short: expected 208 bytes, found 192"
    )
    assert refused(write("a.npy", content("a.npy")[:20])).startswith("a.npy: ")
    np.savez("a.npz", x=np.arange(10.0))
    assert "damaged or cut short" in refused(write("a.npz", content("a.npz")[:-100]))


def test_a_file_that_is_cut_short_while_it_is_read():
    np.save("a.npy", np.arange(1000.0))
    source = find("a.npy")
    os.truncate("a.npy", 500)
    with pytest.raises(SourceError, match="cut short: it ends amid the array, at byte 500"):
        list(source.batches())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(save):
    save("a.npz", x=np.arange(3), y=np.asfortranarray(np.arange(6.0).reshape(3, 2)), z=structured()[[0, 1, 0]])
    expected = {"x": [0, 1, 2], "y.0": [0, 2, 4], "y.1": [1, 3, 5], "z.i": [1, 2, 1], "z.f": [2.5, 3.5, 2.5]}
    expected |= {"z.u": ["a", "\u00e9", "a"], "z.s": ["c", "", "c"]}
    for block in 1, 1 << 22:
        assert read("a.npz", block=block) == expected
    assert read("a.npz", columns=["y.1"]) == {"y.1": [1, 3, 5]}
    save("b.npz", np.arange(6).reshape(3, 2))
    assert read("b.npz") == {"0": [0, 2, 4], "1": [1, 3, 5]}
    with zipfile.ZipFile("c.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert refused("c.npz") == "c.npz: a zip archive without NPY members, and of no other known format"


@pytest.mark.parametrize("block", [1, 100, 1 << 22])
def test_I25_I26_I28_hdf5(block):
    with h5py.File("a.h5", "w") as file:
        file["a"] = np.arange(3, dtype=">f8")
        file["g/x"] = np.arange(6).reshape(3, 2)
        file["g/s"] = ["a", "b", "\u00e9"]
        file["g/inner/y"] = np.zeros(5)
        file.create_dataset("chunked", data=np.arange(100.0), chunks=7, compression="gzip")
        file["rows"] = structured()[["i", "f", "s"]]
        file["empty"] = h5py.Empty("f")
        file.create_group("nothing")
    assert read("a.h5", dataset="/a", block=block) == {"a": [0, 1, 2]}
    assert read("a.h5", dataset="chunked", block=block) == {"chunked": [*map(float, range(100))]}
    assert read("a.h5", dataset="g", block=block) == {"s": ["a", "b", "\u00e9"], "x.0": [0, 2, 4], "x.1": [1, 3, 5]}
    assert read("a.h5", dataset="/rows", block=block) == {"i": [1, 2], "f": [2.5, 3.5], "s": ["c", ""]}
    names = "/a, /chunked, /empty, /g/inner/y, /g/s, /g/x, /rows"
    assert refused("a.h5", dataset="/nope") == f"a.h5: has no dataset /nope; it has {names}"
    assert refused("a.h5") == f"a.h5: holds 7 datasets; choose one, or a group, with --dataset: {names}"
    assert refused("a.h5", dataset="nothing") == f"a.h5: the group nothing has no datasets; the file has {names}"
    assert "empty, without even a shape" in refused("a.h5", dataset="empty")
    assert "cut short" in refused(write("b.h5", content("a.h5")[:900]), dataset="a")


def test_I26_hdf5_that_somebody_writes_to_is_read_without_a_lock(folder):
    with h5py.File("a.h5", "w") as file:
        file["a"] = np.arange(3)
        file.flush()
        program = "import sys; sys.path[:0] = %r; import test_sources as t; print(t.read('a.h5'))" % [
            str(os.path.dirname(__file__))
        ]
        got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert got.stdout == "{'a': [0, 1, 2]}\n"


# ---- files, formats, types


def test_formats_are_told_by_content():
    parquet.write_table(pa.table({"x": [1]}), "a.csv")
    assert read("a.csv") == {"x": [1]}
    assert find("a.csv").notes == ["a.csv: is Parquet by its content, and read as that"]
    np.save("a.npy", np.arange(2))
    os.rename("a.npy", "a.dat")
    assert read("a.dat") == {"0": [0, 1]} and find("a.dat").notes == []
    assert read(write("b.csv", gzip.compress(b"x\n1\n"))) == {"x": [1]}
    assert find("b.csv").notes == ["b.csv: is compressed by gzip, and read as what is in it"]
    assert refused(write("a.parquet", "x\n1\n")) == "a.parquet: is not Parquet: it begins with b'x\\n1\\n'"
    assert refused(write("a.npy", "")) == "a.npy: is not NPY: it is empty"
    assert refused(write("a.h5", "x\n1\n")).startswith("a.h5: ")
    assert refused(write("c.csv", b"ab\0\1,3\n")) == "c.csv: holds bytes that are no text, and is of no known format"
    assert "bzip2" in refused(write("c.csv", b"BZh91AY"))


def test_files():
    os.makedirs("data/deep/_temporary")
    for place in "data/b.csv", "data/deep/a.csv", "data/deep/c.csv.gz", "data/_SUCCESS.csv", "data/.hidden.csv":
        text = f"x\n{place[-5]}1\n".encode()
        write(place, gzip.compress(text) if place.endswith("gz") else text)
    write("data/README.md", "hello")
    write("data/deep/_temporary/z.csv", "x\nz1\n")
    everything = ["data/b.csv", "data/deep/a.csv", "data/deep/c.csv.gz"]
    assert find("data").files == find("data/b.csv", "data/deep", "data/deep").files == everything
    assert find("data/**/[a-z].csv", "data/[a-z].csv").files == [
        "data/b.csv",
        "data/deep/_temporary/z.csv",
        "data/deep/a.csv",
    ]
    assert find("data/deep/c*", "data/b.csv").files == ["data/b.csv", "data/deep/c.csv.gz"]
    write("a[1].csv", "x\n1\n")
    assert find("a[1].csv").files == ["a[1].csv"]
    assert refused("nope.csv") == "nope.csv: No such file or directory"
    assert refused("*.nope") == "*.nope: no file matches"
    os.mkdir("none")
    assert refused("none").startswith("none: no file in the folder ends in .parquet, ")
    os.mkfifo("pipe")
    assert refused("pipe") == "pipe: is no regular file; what comes through a pipe is read from stdin, with -"
    os.symlink("away.csv", "link.csv")
    assert refused("link.csv") == "link.csv: No such file or directory"


def test_permission_denied(folder):
    os.chmod(write("a.csv", "x\n1\n"), 0)
    user = os.geteuid()
    try:
        if user == 0:  # who may read everything
            os.chmod(folder, 0o755)
            os.seteuid(65534)
        assert refused("a.csv") == "a.csv: Permission denied"
    finally:
        os.seteuid(user)


def test_stdin(monkeypatch):
    for data, expected in (b"x,y\n1,2\n", [1]), (gzip.compress(b"x\n1\n2\n"), [1, 2]):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        source = find("-", "-")
        assert source.files == ["-"]
        for _ in range(2):  # in each pass again
            assert [value for batch in source.batches(["x"]) for value in plain(batch.columns["x"])] == expected
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"a,b\n1\n")))
    assert refused("-") == "stdin: line 2: expected 2 fields, found 1"


def test_unknown_columns_are_named_with_the_nearest():
    path = write("a.csv", "Height,weight\n1,2\n")
    assert refused(path, columns=["hight"]) == "there is no column 'hight' in a.csv; did you mean 'Height'?"
    assert refused(path, columns=["WEIGHT"]) == "there is no column 'WEIGHT' in a.csv; did you mean 'weight'?"
    assert refused(path, columns=["zzz"]) == "there is no column 'zzz' in a.csv; there are 'Height', 'weight'"
    write("b.csv", "x\n1\n")
    assert "in any of the 2 files" in refused("a.csv", "b.csv", columns=["weigth"])


def test_columns_are_given_as_they_were_asked_for():
    source = find(write("a.csv", "a,b,c\n1,2,3\n"), columns=["c", "a", "c"])
    assert source.schema == [Field("c", "number", "int64"), Field("a", "number", "int64")]
    (batch,) = source.batches(["a"])
    assert {name: plain(column) for name, column in batch.columns.items()} == {"a": [1]}


def test_progress_comes_to_the_bytes_that_were_told():
    parquet.write_table(TABLE, "a.parquet", row_group_size=2)
    write_arrow("b.arrow", TABLE)
    write_arrow("c.arrows", TABLE, stream=True)
    np.save("d.npy", np.arange(10))
    write("e.csv", "x\n1\n2\n\n\n")
    write("f.csv.gz", gzip.compress(b"x\n1\n2\n"))
    np.savez_compressed("g.npz", x=np.arange(10))
    for path in sorted(os.listdir()):
        source, seen = find(path, block=1), []
        list(source.batches(progress=seen.append))
        assert sum(seen) == source.nbytes > 0 and min(seen) > 0, path
    seen = []
    sources.find(ALONE, ["e.csv", "f.csv.gz"], None, lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0


PROMOTED = [
    (["int8", "int8"], "int8"),
    (["int8", "int32"], "int64"),
    (["uint8", "int32"], "int64"),
    (["uint8", "uint64"], "uint64"),
    (["int8", "null"], "int8"),
    (["int64", "float32"], "float64"),
    (["float16", "float32"], "float64"),
    (["uint64", "int8", "float32"], "float64"),
    (["null", "null"], "float64"),
    (["date32", "timestamp[s]"], "timestamp[s]"),
    (["timestamp[us]", "timestamp[ms]"], "timestamp[us]"),
    (["string", "large_string"], "text"),
]


@pytest.mark.parametrize(("types", "expected"), PROMOTED, ids=str)
def test_promotion(types, expected):
    for order in types, types[::-1]:
        have = [(f"{name}.parquet", pa.type_for_alias(name)) for name in order]
        assert schema.name(schema.promote("x", have)) == expected


CONFLICTS = [("int8", "string"), ("bool", "int8"), ("uint64", "int8"), ("date32", "int64"), ("time32[s]", "date32")]


@pytest.mark.parametrize("types", CONFLICTS, ids=str)
def test_types_that_do_not_fit_are_named_with_file_and_column(types):
    one, other = map(pa.type_for_alias, types)
    with pytest.raises(SourceError) as caught:
        schema.promote("x", [("a.csv", pa.null()), ("b.csv", one), ("c.csv", one), ("d.csv", other)])
    assert str(caught.value) == (
        f"d.csv: column 'x' has the type {schema.name(other)}, but in b.csv {schema.name(one)}"
    )


def test_numbers_come_in_the_type_of_their_file():
    np.save("a.npy", np.array([2**53 + 1]))
    np.save("b.npy", np.array([0.5], np.float32))
    assert kinds(find("a.npy", "b.npy"))["0"] == ("number", "float64")
    assert read("a.npy", "b.npy") == {"0": [2**53 + 1, 0.5]}


def test_dates_come_in_the_type_of_all_files():
    parquet.write_table(pa.table({"d": pa.array([1], pa.date32())}), "a.parquet")
    parquet.write_table(pa.table({"d": pa.array([1], pa.timestamp("ms"))}), "b.parquet")
    types = {batch.columns["d"].values.type for batch in find("a.parquet", "b.parquet").batches()}
    assert types == {pa.timestamp("ms")}


def test_joining_types_is_a_lattice():
    kinds = ["null", "int64", "uint64", "double", "huge", "bool", "date32[day]", "timestamp[s]", "timestamp[ns]"]
    kinds += ["timestamp[s, tz=UTC]", "time32[s]", "string", "binary", "grouped int64", "grouped double", "negative"]
    for a in kinds:
        for b in kinds:
            assert csvtypes.join(a, b) == csvtypes.join(b, a)
            assert csvtypes.join(a, csvtypes.join(a, b)) == csvtypes.join(a, b)
            for c in kinds:
                assert csvtypes.join(csvtypes.join(a, b), c) == csvtypes.join(a, csvtypes.join(b, c)), (a, b, c)


def test_cutting_and_sharing():
    files = [
        Found(f"{n}.npy", "NPY", {}, nbytes=size, rows=size, extent=(0, size)) for n, size in enumerate([1000, 10, 0])
    ]
    for ranks in 1, 2, 3, 5:
        pieces = shards.cut(files, ranks, smallest=1)
        for number, found in enumerate(files):
            rows = [row for shard in pieces if shard.file == number for row in range(*shard.place)]
            assert rows == list(range(found.nbytes))
        owners = shards.share(pieces, ranks)
        loads = [
            sum(shard.nbytes for shard, owner in zip(pieces, owners, strict=True) if owner == rank)
            for rank in range(ranks)
        ]
        assert max(loads) - min(loads) <= 1010 / (4 * ranks) + 1
    assert len(shards.cut(files, 5, smallest=2000)) == 2
    assert shards.cut([files[0]._replace(grain=300)], 2, 1)[1].place == (300, 600)
    assert shards.share(shards.cut(files, 1, 1), 3, kept=[0, 1]) == [0, 0]
