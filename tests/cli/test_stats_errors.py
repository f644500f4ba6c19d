"""``stats``: what it refuses, with one message, on all ranks, and that nothing is written then."""

import gzip
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from launching import PROGRAMS, refused, refused_by_all
from test_reduce_errors import Trap, npy

OLD = b"of an earlier run"


@pytest.fixture
def data(folder):
    """Write good files, and bad ones; an output of an earlier run stays as it is."""
    pq.write_table(pa.table({"alpha": [1.0, 2.0], "beta": ["x", "y"]}), folder / "good.parquet")
    whole = (folder / "good.parquet").read_bytes()
    objects = npy(np.array([Trap(folder / "trapped"), 1], dtype=object), allow_pickle=True)
    contents = {
        "good.csv": b"alpha,beta\n1,x\n2,y\n",
        "long.csv": b"a,b\n1,2\n3,4,5\n",
        "late.csv": b"a,b\n" + b"1,2\n" * 400_000 + b"3,4,5\n" + b"1,2\n" * 400_000,
        "short.parquet": whole[:-20],
        "empty.parquet": b"",
        "really parquet.csv": whole,
        "really gzip.csv": gzip.compress(b"a,b\n1,2\n"),
        "short.csv.gz": gzip.compress(os.urandom(3000).hex().encode() + b"\n1\n")[:-100],
        "short.npy": npy(np.arange(10.0))[:-16],
        "objects.npy": objects,
        "pickle.npy": pickle.dumps(Trap(folder / "trapped")),
        "twice.csv": b"a,b,a\n1,2,3\n",
        "binary.csv": bytes(range(256)) * 10,
        "short.h5": b"\x89HDF\r\n\x1a\n" + b"\0" * 50,
        "text.csv": b"alpha\nfive\n",
        "numbers.csv": b"alpha\n5\n",
        "thousands.csv": b'x\n"1,234"\n"5,678"\n',
        "trailing.csv": b"c1,c2\n1,2,\n3,4,\n",
        "wide.csv": b"u\n18446744073709551615\n",
        "weights.csv": b"alpha,w\n1,1\n2,-1\n",
        "out.csv": OLD,
        "out.json": OLD,
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    pq.write_table(pa.table({"l": [[1], [2]], "x": [1, 2]}), folder / "lists.parquet")
    import h5py

    with h5py.File(folder / "good.h5", "w") as file:
        file["some/where/x"] = np.arange(4.0)
        file["y"] = np.arange(3.0)
    (folder / "nothing").mkdir()
    (folder / "nothing" / "notes.md").write_text("no data")
    yield folder
    assert (folder / "out.csv").read_bytes() == OLD and (folder / "out.json").read_bytes() == OLD
    assert not list(folder.rglob("*.part")) and not (folder / "trapped").exists()


CASES = {
    "missing": (["absent.csv"], "absent.csv"),
    "missing among others": (["good.csv", "absent.csv"], "absent.csv"),
    "pattern of nothing": (["no*.such"], "no*.such"),
    "folder without data": (["nothing"], "nothing"),
    "unknown column": (["good.csv", "--columns", "alpah"], "alpah", "alpha"),
    "I07 long row": (["long.csv"], "long.csv", "line 3"),
    "I07 long row, late": (["late.csv"], "late.csv", "line 400002"),
    "I06 trailing delimiter": (["trailing.csv"], "trailing.csv", "line 2"),
    "I08 thousands": (["thousands.csv"], "thousands.csv", "'x'", "--thousands"),
    "cut Parquet": (["short.parquet"], "short.parquet"),
    "empty Parquet": (["empty.parquet"], "empty.parquet"),
    "cut gzip": (["short.csv.gz"], "short.csv.gz"),
    "I23 cut NPY": (["short.npy"], "short.npy"),
    "objects": (["objects.npy"], "objects.npy", "pickle"),
    "pickle": (["pickle.npy"], "pickle.npy"),
    "same name twice": (["twice.csv"], "twice.csv", "'a'"),
    "cut HDF5": (["short.h5"], "short.h5"),
    "I28 no such dataset": (["good.h5", "--dataset", "/nope"], "/nope", "some/where/x", "y"),
    "number and text": (["numbers.csv", "text.csv"], "text.csv", "alpha"),
    "no such weights": (["good.csv", "--weights", "aplha"], "aplha", "alpha"),
    "weights of text": (["good.csv", "--weights", "beta"], "beta", "numbers"),
    "negative weight": (["weights.csv", "--weights", "w"], "weights.csv", "row 1", "-1"),
    "no such groups": (["good.csv", "--by", "aplha"], "aplha", "alpha"),
    "groups of lists": (["lists.parquet", "--by", "l"], "'l'", "list"),
    "groups of floats": (["good.parquet", "--by", "alpha"], "alpha", "float64"),
    "output is input": (["good.csv", "out.csv", "--output", "./out.csv"], "out.csv"),
    "output in no folder": (["good.csv", "--output", "no/where.csv"], "no/where.csv", "No such file"),
    "JSON in no folder": (["good.csv", "--json", "no/where.json"], "no/where.json", "No such file"),
    "picture in no folder": (["good.csv", "--plot", "no/where.png"], "no/where.png", "No such file"),
    "output is a folder": (["good.csv", "--json", "nothing"], "nothing", "directory"),
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_bad_input_is_refused_by_all(many, data, ranks):
    kept = ["--json", "out.json"]
    commands = [["stats", *words, *([] if "--json" in words else kept)] for words, *_ in CASES.values()]
    for (name, (_, *words)), said in zip(CASES.items(), many(ranks, commands), strict=True):
        refused_by_all(said, 1, *words)
        assert len(said.errs[0].splitlines()) <= 3 and max(said.seconds) < 20, (name, said)


USAGE = {
    "bins": (["--histogram", "0"], "'0'"),
    "bins and range": (["--histogram", "5:1"], "'5:1'"),
    "range the wrong way round": (["--histogram", "5:1:0"], "lower"),
    "range without end": (["--histogram", "5:0:inf"], "two numbers"),
    "delimiter": (["--delimiter", ";;"], "one character"),
    "decimal and delimiter": (["--decimal", ","], "another --delimiter"),
    "decimal and thousands": (["--delimiter", ";", "--decimal", ",", "--thousands", ","], "--thousands"),
    "form of the output": (["--output", "a.txt"], ".csv or .parquet"),
    "form of the picture": (["--plot", "a.gif"], ".png, .svg, .pdf"),
    "output to stdout": (["--output", "-"], "--json"),
    "same file twice": (["--json", "a.csv", "--output", "./a.csv"], "two are the same"),
    "columns both ways": (["--columns", "a", "--column", "1"], "one of them"),
    "no columns": (["--columns", ""], "--columns"),
    "ddof": (["--ddof", "-1"], "--ddof"),
    "quantile": (["--quantiles", "0.5,1.5"], "1.5"),
    "no frequent values": (["--top", "0"], "--top"),
    "quantiles": (["--quantiles", "half"], "'half'"),
    "method": (["--method", "best"], "midpoint"),
    "groups with weights": (["--by", "beta", "--weights", "alpha"], "--weights"),
    "nan": (["--nan", "drop"], "propagate"),
}


def test_wrong_command_lines(many, data):
    commands = [["stats", "good.csv", *words] for words, _ in USAGE.values()]
    for said, (_, word) in zip(many(2, commands), USAGE.values(), strict=True):
        refused_by_all(said, 2, word)
    for said in many(2, [["stats"], ["stats", "--json", "-"]]):
        refused_by_all(said, 2, "FILES")


def test_doubts_are_notes(many, data):
    """What is read, but perhaps not as it was meant."""
    texts = {"semicolons.csv": "x;y\n1;2\n", "headless.csv": "1,2.5\n3,4\n", "words.csv": "w\na\nb\n"}
    for name, text in texts.items():
        (data / name).write_text(text)
    few = [["semicolons.csv"], ["headless.csv"], ["words.csv", "--covariance"], ["words.csv", "--plot", "w.png"]]
    semicolons, headless, words, picture = many(2, [["stats", *more] for more in few])
    for said in semicolons, headless, words, picture:
        assert said.statuses == [0, 0] and not said.errs[1]
    assert "--delimiter ';'" in semicolons.errs[0] and "only numbers in its first line" in headless.errs[0]
    assert not words.errs[0] and "covariance" not in words.outs[0] and "Not shown" not in words.outs[0]
    assert picture.errs[0] == "note: w.png is empty: there is no column of numbers to draw\n"


def test_what_only_has_a_wrong_name_is_read(many, data):
    parquet, gzipped = many(2, [["stats", "really parquet.csv"], ["stats", "really gzip.csv"]])
    assert parquet.statuses == gzipped.statuses == [0, 0]
    assert parquet.errs[0].startswith("note: really parquet.csv") and "Parquet" in parquet.errs[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_cannot_be_written(many, data):
    (data / "closed").mkdir(mode=0o555)
    (said,) = many(2, [["stats", "good.csv", "--json", "closed/a.json"]])
    refused_by_all(said, 1, "closed/a.json", "Permission")


def test_output_is_refused_before_anything_is_read(many, data):
    (said,) = many(2, [["stats", "absent.csv", "--json", "no/where.json"]])
    refused_by_all(said, 1, "no/where.json")


@pytest.mark.parametrize(
    "option, name", [("--json", "new.json"), ("--output", "new.csv"), ("--plot", "new.png"), ("--plot", "new.pdf")]
)
def test_H14_disk_that_is_full(mpirun, data, option, name):
    """A limit on the size of files stands in for a full disk; a histogram of many bins fills it."""
    words = ("stats", "good.csv", "--histogram", "40000", option, name)
    result = mpirun(2, "python", PROGRAMS / "full_disk.py", *words)
    refused(result, 1, f"cannot write {name}")
    assert result.seconds < 30 and not (data / name).exists(), result
