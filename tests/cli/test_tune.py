"""``tune``: a table that counts, in the time that is given, and nothing lost when it is cut short."""

import json
import os
import signal
import time

import pytest
from launching import HPCREDUCE, LAUNCH, refused, refused_by_all

from hpcreduce.lookup import parse

pytestmark = pytest.mark.timed
QUICK = ("--sizes", "8,64K", "--dtype", "float64", "--budget", "3s")


def entries(path):
    return parse(path.read_bytes(), str(path))[1]


OTHER = {"ranks": 5, "nodes": 1, "itemsize": 8, "from": 0, "algorithm": "ring", "segment": None, "window": None}
OLD = {"format": 1, "about": {"by": "hand"}, "entries": [{"library": name, **OTHER} for name in ("Open MPI", "MPICH")]}


def test_a_table_that_counts(cli, folder):
    """Other entries are kept, those of the same place replaced; no file but the table is left."""
    (folder / "t.json").write_text(json.dumps(OLD))
    start = time.monotonic()
    result = cli(2, "tune", *QUICK, "-o", "t.json")
    assert result.status == 0 and "Traceback" not in result.err, result
    assert time.monotonic() - start < 3 * 1.1 + 25  # the launch, on a busy machine
    lines = result.out.splitlines()
    assert "2 ranks on 1 node" in lines[0] and lines[2:4] == ["float64", lines[3]] and "runner-up" in lines[3]
    assert max(map(len, lines)) <= 80, lines
    found = entries(folder / "t.json")
    assert [entry for entry in found if entry["ranks"] == 5] == sorted(
        OLD["entries"], key=lambda entry: entry["library"]
    )
    mine = [entry for entry in found if entry["ranks"] == 2]
    assert mine[0]["from"] == 0 and mine[0]["itemsize"] == 8 and mine[0]["turns"] >= 5 and mine[0]["own"]
    about = json.loads((folder / "t.json").read_text())["about"]
    assert about["by"] == "hand" and about["runs"][0]["budget"] == 3 and about["runs"][0]["ranks"] == 2
    assert os.listdir(folder) == ["t.json"]
    library = mine[0]["library"]
    env = {"HPCREDUCE_TABLE": str(folder / "t.json")}
    result = cli(0, "explain", "--ranks", "2", "--nbytes", "8", "--library", library, env=env)
    assert f"auto takes {mine[0]['algorithm']}: {folder / 't.json'}: {library}, 2 ranks" in result.out, result
    result = cli(0, "explain", "--ranks", "2", "--nbytes", "8", "--library", "Odd MPI", env=env)
    assert "no table decides here" in result.out, result


def awaited(job, path, patience=40):
    deadline = time.monotonic() + patience
    while not (path.exists() and json.loads(path.read_text())["results"]):
        assert job.process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupted_run_goes_on(start, cli, folder):
    table, partial = folder / "t.json", folder / "t.json.partial"
    table.write_text(json.dumps(OLD))
    command = (*HPCREDUCE, "tune", "--sizes", "8,1K,4K,16K", "--dtype", "float32", "-o", "t.json")
    job = start(LAUNCH, 2, *command, "--budget", "24")
    awaited(job, partial)
    os.kill(job.process.pid, signal.SIGTERM)
    result = job.wait(30)
    assert result.status != 0 and not result.left and "Traceback" not in result.err, result
    assert json.loads(table.read_text()) == OLD
    kept = json.loads(partial.read_text())["results"]
    assert kept[0]["cell"] == ["float32", 8] and not list(folder.glob("*.part"))
    refused(
        cli(3, "tune", *command[4:], "--resume"), 1, "ranks: expected 3 as in this run, found 2", "without --resume"
    )
    result = cli(2, "tune", *command[4:], "--budget", "4", "--resume")
    assert result.status == 0 and "of the interrupted run are kept" in result.err, result
    first = next(entry for entry in entries(table) if entry["ranks"] == 2)
    assert {name: first[name] for name in kept[0]["facts"]} == kept[0]["facts"]
    assert os.listdir(folder) == ["t.json"]


def test_what_is_refused(many, cli, folder):
    (folder / "bad.json").write_text('{"format": 1, "about": {}, "entries": 3}')
    (folder / "t.partial").write_text("{}")
    commands = {
        ("--budget", "0"): (2, "'0' is no time above 0"),
        ("--budget", "-3"): (2, "'-3' is no time"),
        ("--budget", "soon"): (2, "such as 90, 90s, 2m or 1.5h"),
        ("--budget", "1e9"): (2, "no time above 0"),
        ("--sizes", "x"): (2, "no size"),
        ("--sizes", "512T"): (1, "no size can be timed"),
        ("--dtype", "float16"): (2, "unknown dtype 'float16'"),
        ("--dtype", "float64,int64"): (2, "one dtype of each size"),
        ("-o", "no/t.json"): (1, "cannot write no/t.json: No such file"),
        ("-o", "."): (1, "cannot write .: not a regular file"),
        ("-o", "bad.json"): (1, "bad.json: entries: expected a list, found 3"),
        ("--resume", "--dtype", "float64"): (1, "t.partial: expected what an interrupted run leaves there"),
        ("--budget", "1e-3", "--budget", "0.0001s"): (1, "nothing was measured", "--budget"),
    }
    said = many(2, [["tune", "-o", "t", *options] for options in commands])
    for each, (status, *words) in zip(said, commands.values(), strict=True):
        refused_by_all(each._replace(errs=[each.errs[0].replace("note:", ""), *each.errs[1:]]), status, *words)
    assert sorted(os.listdir(folder)) == ["bad.json", "t.partial"]
    refused(cli(1, "tune", "-o", "t"), 1, "mpirun -n 2")


@pytest.mark.parametrize("command", ["info", "bench"])
def test_a_wrong_table_of_the_user(cli, folder, command):
    (folder / "mine.json").write_text("[]")
    result = cli(2, command, env={"HPCREDUCE_TABLE": str(folder / "mine.json")})
    refused(result, 1, "mine.json: the table: expected an object with format")
