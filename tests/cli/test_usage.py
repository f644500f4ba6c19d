"""Usage: one message, one document, one status, whatever the number of ranks."""

import json
import os

import numpy as np
import pytest
from launching import refused, refused_by_all

VALIDATE = ("validate", "--ops", "sum", "--dtypes", "int32,float64", "--counts", "0,1,7")

BAD_USAGE = {
    "op": (["reduce", "--op", "median", "-o", "out.npy", "a.npy"], "median", "mean"),
    "algorithm": (["validate", "--algorithms", "ring,bogus"], "bogus", "tree"),
    "dtype": (["validate", "--dtypes", "float31"], "float31", "float32"),
    "op of validate": (["validate", "--ops", "median"], "median", "mean"),
    "no names": (["validate", "--ops", ","], "op", "mean"),
    "counts": (["validate", "--counts", "1,x"], "1,x"),
    "negative count": (["validate", "--counts", "-1"], "-1"),
    "no counts": (["validate", "--counts", ""], "--counts"),
    "fraction": (["validate", "--counts", "1.5"], "1.5"),
    "command": (["valdiate"], "valdiate"),
    "option": (["validate", "--nope"], "--nope"),
    "option of the group": (["--nope"], "--nope"),
    "argument": (["validate", "extra"], "extra"),
    "no output": (["reduce", "--op", "sum", "a.npy"], "--output"),
    "no op": (["reduce", "-o", "out.npy", "a.npy"], "--op"),
    "no files": (["reduce", "--op", "sum", "-o", "out.npy"], "FILES"),
    "output name": (["reduce", "--op", "sum", "-o", "out.txt", "a.npy"], "out.txt", ".npy"),
    "axis": (["reduce", "--op", "sum", "--axis", "x", "-o", "out.npy", "a.npy"], "--axis"),
    "no value": (["validate", "--json"], "--json"),
}


def array(folder):
    np.save(folder / "a.npy", np.arange(6.0))


def test_X03_bad_option_is_said_once(many, folder):
    array(folder)
    found = many(4, [command for command, *_ in BAD_USAGE.values()])
    for said, (_, *words) in zip(found, BAD_USAGE.values(), strict=True):
        refused_by_all(said, 2, *words, "--help")
        assert len(said.errs[0].splitlines()) <= 8, said
        assert max(said.seconds) < 5 and not any(said.opened), said


@pytest.mark.parametrize("case", ["op", "command"])
def test_X03_usage_error_ends_the_job_at_once(cli, folder, case):
    command, *words = BAD_USAGE[case]
    array(folder)
    result = refused(cli(4, *command), 2, *words, "Try 'python -m hpcreduce")
    assert result.seconds < 15 and os.listdir(folder) == ["a.npy"]


def test_X03_missing_file_is_said_once(cli, folder):
    array(folder)
    command = ("reduce", "--op", "sum", "-o", "out.npy", "a.npy", "no such.npy")
    result = refused(cli(4, *command), 1, "no such.npy: No such file")
    assert result.seconds < 15 and os.listdir(folder) == ["a.npy"]


@pytest.mark.parametrize("digits", [15, 23, 5000])
def test_X03_count_that_no_memory_holds_is_said_once(cli, digits):
    result = cli(4, "validate", "--ops", "sum", "--dtypes", "float64", "--counts", "9" * digits)
    assert result.status in (1, 2) and result.out == "" and len(result.errors) == 1, result
    assert "count" in result.errors[0] and len(result.errors[0]) < 400, result


def test_X03_without_mpirun_too(cli):
    refused(cli(0, "validate", "--ops", "median"), 2, "median")


def test_X01_one_rank_opens_the_output(many, folder):
    array(folder)
    reduce = ["reduce", "--op", "sum", "a.npy", "a.npy", "-o"]
    found = many(4, [[*VALIDATE, "--json", "found.json"], [*reduce, "sum.npy"], ["info"], [*VALIDATE]])
    for said, name in zip(found, ("found.json", "sum.npy", None, None), strict=True):
        assert said.statuses == [0] * 4 and not any(said.errs), said
        assert said.outs[0].strip() and not any(said.outs[1:]), said
        files = [[path for path in paths if not path.startswith("/dev/shm/hpcreduce-")] for paths in said.opened]
        assert len(files[0]) == (name is not None) and not any(files[1:]), said
        # Where the file system has files without a name, it is the folder that is opened.
        assert name is None or files[0][0] == str(folder) or os.path.basename(files[0][0]).startswith(name)
    assert json.loads((folder / "found.json").read_text())["ranks"] == 4
    assert not list(folder.glob("*.part"))


def test_X01_help_is_printed_once(many):
    commands = [
        ["--help"],
        ["-h"],
        ["--version"],
        ["validate", "--help"],
        ["bench", "-h"],
        ["reduce", "-h"],
        ["draw", "-h"],
        ["info", "-h"],
    ]
    for said in many(3, commands):
        assert said.statuses == [0] * 3 and not any(said.outs[1:]) and not any(said.errs), said
        assert said.outs[0].strip() and all(len(line) <= 100 for line in said.outs[0].splitlines()), said


def test_help_names_the_commands_and_what_runs_without_one(cli):
    result = cli(0, "--help")
    assert result.status == 0 and result.err == ""
    for word in ("validate", "bench", "reduce", "draw", "info", "Without a command", "mpirun -n"):
        assert word in result.out


def test_help_names_algorithms_and_operations(cli):
    out = cli(0, "validate", "--help").out
    for word in ("ring", "tree", "mpi", "auto", "sum", "maxloc", "float32", "bfloat16"):
        assert word in out, word


def test_version_is_that_of_the_package(cli):
    import hpcreduce

    assert hpcreduce.__version__ in cli(0, "--version").out


def test_X06_without_mpirun_the_same_output(many, cli, folder):
    array(folder)
    commands = [(*VALIDATE, "--json", "-"), ("info",), ("reduce", "a.npy", "--op", "mean", "-o", "out.npy")]
    launched = many(1, commands)
    written = (folder / "out.npy").read_bytes()
    (folder / "out.npy").unlink()
    for command, said in zip(commands, launched, strict=True):
        assert (0, said.outs[0], said.errs[0]) == cli(0, *command)[:3], command
        assert said.statuses == [0] and said.outs[0]
    assert (folder / "out.npy").read_bytes() == written


def test_info_names_library_ranks_and_nodes(cli):
    result = cli(2, "info")
    facts = dict(line.split("  ", 1) for line in result.out.splitlines())
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    assert result.status == 0 and result.err == "", result
    assert facts["ranks"] == "2" and facts["nodes"] == "1" and facts["ranks per node"].endswith(": 2")
    assert facts["MPI library"].startswith(("Open MPI 5", "Open MPI 4", "MPICH ", "Intel"))
    assert os.path.exists(facts["MPI library path"])


@pytest.mark.parametrize("command", [("info",), (*VALIDATE, "--json", "-")], ids=["info", "json"])
def test_reader_of_stdout_that_has_gone(start, command):
    reading, writing = os.pipe()
    os.close(reading)
    job = start("python", "-m", "hpcreduce", *command, stdout=writing)
    os.close(writing)
    result = job.wait(60)
    assert result.status not in (0, 120), result
    assert "Traceback" not in result.err and "Exception ignored" not in result.err, result
    assert "terminated" not in result.err, result


def test_full_disk_behind_stdout(start):
    with open("/dev/full", "w") as full:
        result = start("python", "-m", "hpcreduce", "info", stdout=full).wait(60)
    assert result.status == 1 and len(result.errors) == 1, result
    assert "No space left" in result.errors[0] and "Exception ignored" not in result.err, result
