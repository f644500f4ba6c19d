"""``bench``: figures that can be recomputed, units that are units, and nothing lost."""

import csv
import json
import time

import pytest
from launching import refused, refused_by_all

QUICK = ("--iterations", "5", "--warmup", "1")
KEYS = ["algorithm", "nbytes", "dtype", "op", "ranks", "median_s", "p10_s", "p90_s", "low_s", "high_s"]
KEYS += ["algbw", "busbw", "ratio_to_mpi"]


def strict(text):
    """Parse JSON, without the NaN and Infinity that are none."""

    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_P05_figures_can_be_recomputed(cli, ranks):
    start = time.monotonic()
    result = cli(ranks, "bench", "--sizes", "8,64K,1M", "--algorithms", "ring,tree,auto", *QUICK, "--json", "-")
    wall = time.monotonic() - start
    assert result.status == 0 and result.err == "", result
    document = strict(result.out)
    rows = document["rows"]
    assert (document["ranks"], document["iterations"], document["warmup"], document["mode"]) == (ranks, 5, 1, "plan")
    expected = [(name, size) for size in (8, 65536, 1 << 20) for name in ("mpi", "ring", "tree", "auto")]
    assert [(row["algorithm"], row["nbytes"]) for row in rows] == expected
    for row in rows:
        assert list(row) == KEYS and (row["ranks"], row["dtype"], row["op"]) == (ranks, "float64", "sum")
        assert row["algbw"] == pytest.approx(row["nbytes"] / row["median_s"])
        assert row["busbw"] == pytest.approx(row["nbytes"] / row["median_s"] * 2 * (ranks - 1) / ranks)
        assert 0 < row["p10_s"] <= row["median_s"] <= row["p90_s"]
        assert 0 < row["low_s"] <= row["median_s"] <= row["high_s"]
        assert row["ratio_to_mpi"] > 0 and (row["algorithm"] != "mpi" or row["ratio_to_mpi"] == 1)
    assert sum(row["median_s"] * 5 for row in rows) <= wall


PROGRAM = """
import json, time
from mpi4py import MPI
from hpcreduce.measure import bench

calls = {"slow": 0, "cold": 0}

def ours(comm, array, target, op, algorithm, one_off, plans):
    def call():
        calls[algorithm] += 1
        comm.Allreduce(MPI.IN_PLACE, array)
        if algorithm == "slow" and comm.rank == 1:
            time.sleep(0.02)
        if algorithm == "cold" and calls[algorithm] <= 3:
            time.sleep(0.2)
    return call

bench._ours = ours
rows = bench.compare(MPI.COMM_WORLD, ["slow", "cold"], 8, iterations=9, warmup=2)
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps([row._asdict() for row in rows]))
"""


def test_P05_slowest_rank_counts_and_warm_up_does_not(mpirun, folder):
    """A rank that is slow in every call, and ranks that are slow in their first calls only."""
    program = folder / "slow.py"
    program.write_text(PROGRAM)
    result = mpirun(2, "python", program)
    assert result.status == 0, result
    rows = {row["algorithm"]: row for row in json.loads(result.out)}
    assert rows["slow"]["p10_s"] >= 0.02 and rows["slow"]["ratio_to_mpi"] > 1
    assert rows["cold"]["p90_s"] < 0.2  # its three slow calls are the one that is checked and the warm-up


def test_wrong_result_ends_the_run_on_every_rank(mpirun, folder):
    program = folder / "wrong.py"
    program.write_text(
        "import sys\n"
        "from hpcreduce import commands\n"
        "from hpcreduce.algorithms import ALGORITHMS\n"
        "right = ALGORITHMS['ring'].rounds\n"
        "ALGORITHMS['ring'] = ALGORITHMS['ring']._replace(rounds=lambda *a: list(right(*a))[:-1])\n"
        "sys.exit(commands.run(['bench', '--sizes', '1K', '--algorithms', 'ring', '--json', 'out.json']))\n"
    )
    result = refused(mpirun(3, "python", program), 1, "ring: wrong sum of 1024 bytes on ranks", "nothing was timed")
    assert not (folder / "out.json").exists(), result


def test_table_and_files(cli, folder):
    outputs = [word for name in ("json", "csv", "plot") for word in (f"--{name}", f"out.{name}".replace("plot", "png"))]
    result = cli(3, "bench", "--sizes", "8:32,1M", *QUICK, "--algorithms", "tree", *outputs)
    assert result.status == 0 and result.err == "", result
    lines = result.out.splitlines()
    assert "3 ranks on 1 node: sum of float64, prepared plans" in lines[0] and "median of 5" in lines[0]
    assert lines[1].split()[:3] == ["size", "algorithm", "time"] and len(lines) == 2 + 4 * 2
    assert [line[:9].strip() for line in lines[2:]] == ["8 B", "", "16 B", "", "32 B", "", "1 MiB", ""]
    assert sum("<- fastest" in line for line in lines) == 4
    rows = strict((folder / "out.json").read_text())["rows"]
    with open(folder / "out.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [(row["algorithm"], int(row["nbytes"]), float(row["median_s"])) for row in table] == [
        (row["algorithm"], row["nbytes"], row["median_s"]) for row in rows
    ]
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_of_each_kind(cli, folder):
    for name, head in (("a.svg", b"<?xml"), ("b.pdf", b"%PDF")):
        result = cli(1, "bench", "--sizes", "8", *QUICK, "--algorithms", "ring", "--plot", name)
        assert result.status == 0 and result.err == "", result
        assert (folder / name).read_bytes().startswith(head)


def test_types_and_operations(many):
    """Also those that MPI does not have: nothing to compare with then."""
    cases = {
        ("float32", "mean"): True,
        ("int32", "max"): True,
        ("int8", "sum"): True,
        ("float32", "max"): True,
        ("int32", "mean"): False,
        ("float16", "sum"): False,
        ("float64", "nanmax"): False,
        ("bool", "lor"): True,
        ("bool", "sum"): False,
        (">f8", "sum"): False,
        ("complex64", "prod"): True,
        ("uint8", "bor"): True,
    }
    commands = [
        ["bench", "--dtype", dtype, "--op", op, "--sizes", "1K,300K", "--algorithms", "ring", *QUICK, "--json", "-"]
        for dtype, op in cases
    ]
    for said, ((dtype, op), compared) in zip(many(2, commands), cases.items(), strict=True):
        assert said.statuses == [0, 0], said
        rows = strict(said.outs[0])["rows"]
        assert {row["algorithm"] for row in rows} == ({"ring", "mpi"} if compared else {"ring"}), (dtype, op)
        assert all((row["ratio_to_mpi"] is not None) == compared for row in rows)


def test_one_off(cli):
    result = cli(2, "bench", "--sizes", "8", "--one-off", *QUICK)
    assert result.status == 0 and "allreduce() one by one" in result.out, result


def test_sizes_of_whole_elements(cli):
    result = cli(1, "bench", "--sizes", "1,9,1.5K,1b,2KiB", *QUICK, "--algorithms", "ring", "--json", "-")
    assert [row["nbytes"] for row in strict(result.out)["rows"][::2]] == [8, 16, 1536, 2048]


def test_bad_options(many):
    commands = {
        ("--sizes", "8,x"): "'x' is no size such as 8, 64K",
        ("--sizes", "0"): "'0' is no size",
        ("--sizes", "-8"): "no size",
        ("--sizes", "1:2:3"): "no size",
        ("--sizes", "1.3"): "no size",
        ("--sizes", ""): "no size",
        ("--sizes", "9" * 40): "no size",
        ("--sizes", "1M:1K"): "ends below its beginning",
        ("--algorithms", "rings"): "unknown algorithm 'rings'",
        ("--iterations", "0"): "0 is not in the range",
        ("--dtype", "float63"): "float63",
        ("--op", "median"): "median",
        ("--op", "max", "--dtype", "complex64"): "op max does not take dtype complex64",
        ("--op", "sum", "--dtype", "float16", "--algorithms", "mpi"): "no other algorithm",
        ("--plot", "out.gif"): "must end in .png",
    }
    for said, words in zip(many(2, [["bench", *options] for options in commands]), commands.values(), strict=True):
        refused_by_all(said, 2, words)


def test_sizes_that_no_memory_holds(many):
    (said,) = many(2, [["bench", "--sizes", "512T"]])
    refused_by_all(said, 1, "no size can be timed", "512", "quarter of a node's free memory")


def test_outputs_that_cannot_be_written_are_said_before_the_work(many, folder):
    commands = [
        ["bench", option, name] for option, name in (("--json", "no/a"), ("--csv", "no/b"), ("--plot", "no/c.png"))
    ]
    for said in many(2, commands):
        refused_by_all(said, 1, "cannot write no/", "No such file")
        assert max(said.seconds) < 15
    assert not list(folder.iterdir())
