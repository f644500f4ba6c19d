"""Tables in files that several ranks read together: each row by one of them, and each error by all."""

import gzip
import itertools
import os
import shutil
import stat
import tempfile

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from hpcreduce.stats import moments, sources
from hpcreduce.stats.sources import ReadOptions, SourceError

pytestmark = pytest.mark.mpi
TINY = {"smallest": 1, "block": 16}


@pytest.fixture
def folder(comm, monkeypatch):
    path = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    monkeypatch.chdir(path)
    yield path
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(path)


def made(comm, make):
    """Let rank 0 make files."""
    if comm.rank == 0:
        make()
    comm.barrier()


def write(comm, name, data):
    def make():
        with open(name, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)

    made(comm, make)
    return name


def find(comm, *files, **options):
    return sources.find(comm, files, ReadOptions(**TINY | options))


def read(comm, *files, **options):
    """Return the columns of files as lists, in the order of the shards, and the shards of each rank."""
    source = find(comm, *files, **options)
    parts = []
    for _ in range(2):  # a further pass gives the same
        parts = []
        for batch in source.batches():
            columns = {name: plain(column) for name, column in batch.columns.items()}
            assert all(len(values) == batch.rows > 0 for values in columns.values())
            parts.append(((batch.shard, batch.row), batch.rows, columns))
    assert sorted(itertools.chain(*comm.allgather(source.mine))) == list(range(len(source.shards)))
    result, following = {field.name: [] for field in source.schema}, {}
    for (shard, row), rows, columns in sorted(itertools.chain(*comm.allgather(parts)), key=lambda part: part[0]):
        assert following.get(shard, 0) == row
        following[shard] = row + rows
        for name in result:
            result[name] += columns[name]
    return result


def plain(column):
    values = column.values.tolist() if isinstance(column.values, np.ndarray) else column.values.to_pylist()
    return [value if column.valid is None or column.valid[row] else None for row, value in enumerate(values)]


def refused(comm, *files, **options):
    """Return the text of the error that all ranks raise."""
    with pytest.raises(SourceError) as caught:
        find(comm, *files, **options)
    texts = comm.allgather(str(caught.value))
    assert texts == texts[:1] * comm.size
    return texts[0]


QUOTED = 'foo,bar\n"a",1\n"b",2\n"c\nd\ne\n",3\n"h",4\n'


def test_I01_records_with_newlines_in_quotes(comm, folder):
    write(comm, "a.csv", QUOTED)
    for block in 1, 10, 1000:
        expected = {"foo": ["a", "b", "c\nd\ne\n", "h"], "bar": [1, 2, 3, 4]}
        assert read(comm, "a.csv", block=block) == expected
    text = "x,y,z\r\n" + "".join(f'{n},"{n}\r\n,""{n % 7 * chr(10)}","{n % 3 * chr(34) * 2}"\r\n' for n in range(100))
    expected = {"x": [*range(100)], "y": [f'{n}\r\n,"{n % 7 * chr(10)}' for n in range(100)]}
    expected["z"] = [n % 3 * chr(34) or None for n in range(100)]
    assert read(comm, write(comm, "b.csv", text)) == expected
    stray = "x,y\n" + "".join(f'{n},{n}" pipe\n{n},"{n}\n"\n' for n in range(100))
    expected = [f"{n // 2}\n" if n % 2 else f'{n // 2}" pipe' for n in range(200)]
    assert read(comm, write(comm, "c.csv", stray))["y"] == expected


def test_shards_are_many_and_fairly_shared(comm, folder):
    write(comm, "a.csv", "x\n" + "".join(f"{n:03}\n" for n in range(900)))
    source = find(comm, "a.csv")
    assert len(source.shards) == (1 if comm.size == 1 else 4 * comm.size)
    loads = comm.allgather(sum(source.shards[number].nbytes for number in source.mine))
    assert sum(loads) == source.nbytes == 3600 and max(loads) - min(loads) <= comm.size
    assert read(comm, "a.csv") == {"x": [*range(900)]}
    assert len(find(comm, "a.csv", smallest=1 << 20).shards) == 1


def test_I04_last_rows_and_empty_lines(comm, folder):
    for end in "", "\n", "\n\n\n":
        assert read(comm, write(comm, "a.csv", "x\n1\n2\n3" + end)) == {"x": [1, 2, 3]}


def test_I05_a_byte_order_mark(comm, folder):
    for header in '"x",y', "x,y":
        data = b"\xef\xbb\xbf" + header.encode() + b"\n1,2\n3,4\n"
        assert read(comm, write(comm, "a.csv", data)) == {"x": [1, 3], "y": [2, 4]}


def test_I06_I07_ragged_rows_wherever_they_are(comm, folder):
    assert refused(comm, write(comm, "a.csv", "c1,c2\n1,2,\n3,4,\n")).startswith("a.csv: line 2: expected 2 fields, ")
    good = [f'{n},"{n}\n"\n' for n in range(100)]
    for bad in 0, 37, 98:
        text = "".join(["a,b\n", *good[:bad], "1,2,3\n", *good[bad + 1 : 99], "4\n"])
        assert refused(comm, write(comm, "a.csv", text)) == f"a.csv: line {2 + 2 * bad}: expected 2 fields, found 3"
    assert refused(comm, write(comm, "b.csv", "a,b,c\n1,2,3\n4,5\n")) == "b.csv: line 3: expected 3 fields, found 2"
    assert refused(comm, "b.csv", "a.csv").startswith("a.csv: ")


def test_I08_thousands(comm, folder):
    write(comm, "a.csv", 'x\n"1,234"\n"5,678"\n' + "7\n" * 40)
    assert "use --thousands ," in refused(comm, "a.csv")
    assert read(comm, "a.csv", thousands=",") == {"x": [1234, 5678, *[7] * 40]}


def test_I10_empty_files(comm, folder):
    files = [write(comm, "a.csv", "x\n1\n2\n"), write(comm, "b.csv", ""), write(comm, "c.csv", "x\n")]
    assert read(comm, *files) == {"x": [1, 2]}
    notes = comm.allgather(find(comm, *files).notes)
    assert notes == [["b.csv: is empty", "c.csv: has no rows, only a header"]] * comm.size
    assert refused(comm, "b.csv") == "b.csv: there are no columns of data"


def test_I11_columns_are_matched_by_name(comm, folder):
    write(comm, "a.csv", "a,b\n1,10\n")
    write(comm, "b.csv", "b,a\n20,2\n")
    assert read(comm, "a.csv", "b.csv") == {"a": [1, 2], "b": [10, 20]}


def test_I13_types_are_those_of_all_rows(comm, folder):
    write(comm, "a.csv", 'x\n\n\n""\n""\n')
    write(comm, "b.csv", "x\n1\n2.5\n")
    assert read(comm, "a.csv", "b.csv") == {"x": [None, None, 1, 2.5]}
    write(comm, "c.csv", "x\n" + "".join(f"{n}\n" for n in range(1000)) + "1.5\n")
    assert read(comm, "c.csv", block=256) == {"x": [*map(float, range(1000)), 1.5]}
    fields = comm.allgather(find(comm, "c.csv").schema)
    assert fields == [[("x", "number", "float64")]] * comm.size
    text = "b.csv: column 'x' has the type float64, but in a.csv text"
    assert refused(comm, write(comm, "a.csv", "x\nabc\n"), "b.csv") == text


def test_I17_I18_row_groups(comm, folder):
    def make():
        parquet.write_table(pa.table({"x": [1, 2, 3]}), "a.parquet")
        parquet.write_table(pa.table({"x": [*range(11)]}), "b.parquet", row_group_size=2)
        parquet.write_table(pa.table({"x": pa.array([], pa.int64())}), "c.parquet")
        with parquet.ParquetWriter("d.parquet", pa.schema({"x": pa.int64()})):
            pass

    made(comm, make)
    assert read(comm, "a.parquet") == {"x": [1, 2, 3]}
    assert read(comm, ".") == {"x": [1, 2, 3, *range(11)]}
    assert read(comm, "c.parquet") == {"x": []}


def test_I22_I25_arrays(comm, folder):
    rows = np.arange(77 * 3).reshape(77, 3)

    def make():
        np.save("c.npy", rows.astype(">i4"))
        np.save("f.npy", np.asfortranarray(rows))
        np.savez("z.npz", x=rows[:, 0], y=np.asfortranarray(rows))
        np.savez_compressed("zc.npz", x=rows[:, 0], y=np.asfortranarray(rows))
        np.save("s.npy", rows.astype("i4").view([("a", "i4"), ("b", "i4"), ("c", "i4")]).reshape(-1))
        with h5py.File("a.h5", "w") as file:
            file["c"] = rows.astype(">f8")
            file.create_dataset("chunked", data=rows, chunks=(5, 2), compression="gzip")

    made(comm, make)
    expected = {str(column): rows[:, column].tolist() for column in range(3)}
    assert read(comm, "c.npy") == read(comm, "f.npy") == expected
    assert read(comm, "a.h5", dataset="c") == read(comm, "a.h5", dataset="chunked") == expected
    assert read(comm, "c.npy", columns=["2"]) == {"2": expected["2"]}
    named = {"x": expected["0"]} | {f"y.{name}": values for name, values in expected.items()}
    assert read(comm, "z.npz") == read(comm, "zc.npz") == named
    assert read(comm, "s.npy", columns=["b"]) == {"b": expected["1"]}
    assert len(find(comm, "f.npy").shards) == (1 if comm.size == 1 else 4 * comm.size)


def test_I23_damaged_files(comm, folder):
    def make():
        np.save("a.npy", np.arange(100))
        os.truncate("a.npy", os.path.getsize("a.npy") - 16)
        np.save("pickled.npy", np.array([{}]), allow_pickle=True)
        parquet.write_table(pa.table({"x": [*range(100)]}), "b.parquet", row_group_size=10)
        shutil.copy("b.parquet", "short.parquet")
        os.truncate("short.parquet", 500)
        with open("b.parquet", "r+b") as file:
            file.seek(700)
            file.write(b"\xff" * 200)

    made(comm, make)
    assert refused(comm, "a.npy").startswith("a.npy: the file is damaged or cut short")
    assert refused(comm, "pickled.npy") == "pickled.npy: holds pickled Python objects, which are never loaded"
    assert refused(comm, "short.parquet").startswith("short.parquet: ")
    source = find(comm, "b.parquet")
    with pytest.raises(SourceError) as caught:  # one rank fails amid its work, all say so
        moments.summarise(comm, source.schema, source.batches, moments.Wanted())
    texts = comm.allgather(str(caught.value))
    assert texts == texts[:1] * comm.size and texts[0].startswith("b.parquet: ")


def test_I26_I28_hdf5_in_a_folder_that_cannot_be_written(comm, folder):
    def make():
        os.mkdir("there")
        with h5py.File("there/a.h5", "w") as file:
            file["x"], file["g/y"] = np.arange(30), np.arange(5)
        os.chmod("there/a.h5", stat.S_IRUSR)
        os.chmod("there", stat.S_IRUSR | stat.S_IXUSR)

    made(comm, make)
    assert read(comm, "there/a.h5", dataset="x") == {"x": [*range(30)]}
    assert refused(comm, "there/a.h5", dataset="/nope") == "there/a.h5: has no dataset /nope; it has /g/y, /x"
    comm.barrier()
    made(comm, lambda: os.chmod("there", stat.S_IRWXU))


def test_gzip_and_stdin_are_read_by_one_rank(comm, folder, monkeypatch):
    write(comm, "a.csv.gz", gzip.compress(QUOTED.encode()))
    assert read(comm, "a.csv.gz")["bar"] == [1, 2, 3, 4]
    write(comm, "b.csv", QUOTED)
    with open("b.csv") as file:
        monkeypatch.setattr("sys.stdin", file if comm.rank == 0 else None)
        assert read(comm, "-", "b.csv")["bar"] == [1, 2, 3, 4] * 2


def test_what_rank_0_cannot_find_all_hear_of(comm, folder):
    assert refused(comm, "nope.csv") == "nope.csv: No such file or directory"
    assert refused(comm, "*.csv") == "*.csv: no file matches"
    assert refused(comm, folder).startswith(f"{folder}: no file in the folder ends in .parquet, ")
    write(comm, "a.csv", "height\n1\n")
    assert refused(comm, "a.csv", columns=["hight"]) == "there is no column 'hight' in a.csv; did you mean 'height'?"
    assert refused(comm, "a.csv", write(comm, "b.csv", "a,a\n1,2\n")).startswith(
        "b.csv: the column name 'a' occurs twice"
    )
