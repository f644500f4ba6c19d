"""``bench``: figures that can be recomputed, units that are units, and nothing lost."""

import csv
import importlib.util
import json
import os
import time

import pytest
from launching import refused, refused_by_all

from hpcreduce.measure.rivals import RIVALS

pytestmark = pytest.mark.timed
QUICK = ("--iterations", "5", "--warmup", "1")
PLAIN = [name for name in RIVALS if name != "gloo"]
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


def test_rivals(many):
    """All are timed like ours; what cannot do it is left out with a note, or refused if it was named."""
    cases = [("float64", "sum"), ("int8", "sum"), ("float32", "mean"), ("bool", "lor"), ("float64", "max")]
    commands = [
        ["bench", "--dtype", dtype, "--op", op, "--sizes", "1,64K", "--algorithms", "rivals", *QUICK, "--json", "-"]
        for dtype, op in cases
    ]
    for said, case in zip(many(3, commands), cases, strict=True):
        assert said.statuses == [0] * 3, said
        rows = strict(said.outs[0])["rows"]
        left_out = ["gloo"] if "note: gloo is left out: " in said.errs[0] else []
        assert [row["algorithm"] for row in rows] == [name for name in RIVALS if name not in left_out] * 2, case
        assert all(list(row) == KEYS and row["median_s"] > 0 for row in rows)
        assert left_out or (importlib.util.find_spec("torch") and case != ("bool", "lor"))


def test_shorthands(many):
    options = ("--sizes", "8", "--iterations", "1", "--json", "-")
    (said,) = many(2, [["bench", "--dtype", "float16", "--algorithms", "all", "--op", "bor", *options]])
    refused_by_all(said, 2, "op bor does not take dtype float16")
    (said,) = many(2, [["bench", "--dtype", "int16", "--algorithms", "all", "--op", "bor", *options]])
    names = [row["algorithm"] for row in strict(said.outs[0])["rows"]]
    assert names[:3] == ["mpi", "auto", "ring"] and names[-3:] == PLAIN[1:]
    assert said.errs == ["note: gloo is left out: gloo has no bor; it has sum, mean, prod, max, min\n", ""]


def test_rivals_that_cannot_do_it_are_refused(many):
    commands = {
        ("persistent", "float16", "sum"): "algorithm persistent cannot be timed: MPI has no sum of float16",
        ("ring,reduce+bcast", ">f8", "sum"): "algorithm reduce+bcast cannot be timed: MPI has no sum of >f8",
        ("reduce_scatter+allgather", "int32", "mean"): "MPI has no mean of int32",
        ("gloo", "float64", "nanmax"): "gloo has no nanmax; it has sum, mean",
        ("rivals,gloo", "int16", "sum"): "gloo has no sum of int16; it takes float32",
        ("rivals", "bool", "sum"): "MPI has no sum of bool, and no other algorithm is asked for",
        ("reduce", "float64", "sum"): "unknown algorithm 'reduce'; expected some of auto, ring",
    }
    options = [["--algorithms", name, "--dtype", dtype, "--op", op] for name, dtype, op in commands]
    for said, words in zip(many(2, [["bench", *each] for each in options]), commands.values(), strict=True):
        assert set(said.statuses) == {2} and not any(said.outs) and not any(said.errs[1:]), said
        assert said.errs[0].count("hpcreduce: error:") == 1 and words in said.errs[0], said


def test_gloo_without_torch(cli, tmp_path):
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "torch.py").write_text("raise ImportError('libtorch.so: cannot open shared object file')")
    result = cli(2, "bench", "--algorithms", "ring,gloo", "--sizes", "8", paths=[tmp_path / "stub"])
    refused(result, 2, "algorithm gloo cannot be timed: it needs the package torch (libtorch.so", "pip install torch")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_gloo(many, cli):
    """Twice in one process: the ranks meet, part, and meet again."""
    command = ["bench", "--algorithms", "gloo,ring", "--sizes", "8,64K", *QUICK, "--json", "-"]
    for said in many(3, [command, command]):
        assert said.statuses == [0] * 3 and not any(said.errs), said
        document = strict(said.outs[0])
        assert [row["algorithm"] for row in document["rows"]] == ["mpi", "gloo", "ring"] * 2 and document["torch"]
    result = cli(1, "bench", "--algorithms", "gloo", "--sizes", "8", *QUICK, env={"GLOO_SOCKET_IFNAME": "none"})
    refused(result, 1, "gloo cannot start: rank 0: no interface none with an IPv4 address; expected one of")


WRONG = """
import sys
from hpcreduce import commands
from hpcreduce.measure.rivals import RIVALS
right = RIVALS["persistent"].make
def wrong(comm, array, op, stack):
    call = right(comm, array, op, stack)
    def late():
        call()
        array[-1] += comm.rank == 1
    return late
RIVALS["persistent"] = RIVALS["persistent"]._replace(make=wrong)
sys.exit(commands.run(["bench", "--sizes", "1K", "--algorithms", "persistent"]))
"""


def test_a_rival_that_is_wrong_ends_the_run(mpirun, folder):
    (folder / "wrong.py").write_text(WRONG)
    refused(mpirun(2, "python", folder / "wrong.py"), 1, "persistent: wrong sum of 1024 bytes on ranks [1]")


SWEPT = """
import json, time
from mpi4py import MPI
from hpcreduce.measure import bench

swept, calls = [], []

def ours(comm, array, target, op, algorithm, one_off, plans):
    def call():
        calls.append(len(swept))
        comm.Allreduce(MPI.IN_PLACE, array)
    return call

def sweep():
    swept.append(1)
    time.sleep(0.1 * (MPI.COMM_WORLD.rank == 1))

bench._ours = ours
rows = bench.compare(MPI.COMM_WORLD, ["a", "b"], 8, iterations=5, warmup=2, sweep=sweep)
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps([len(swept), calls, [row.median_s for row in rows]]))
"""


def test_cold_calls_are_timed_one_by_one_and_without_the_sweep(mpirun, folder):
    (folder / "swept.py").write_text(SWEPT)
    result = mpirun(2, "python", folder / "swept.py")
    swept, calls, times = json.loads(result.out)
    assert swept == 3 * (1 + 5)  # of three contenders each, the warm-up and five iterations
    assert len(calls) == 2 * (
        1 + 2 + 5
    )  # of two contenders each, the one that is checked, the warm-up, five iterations
    timed = calls[-10:]
    assert len(set(timed)) == 10 and max(times) < 0.1


def test_cold(many):
    options = ("--sizes", "8", "--algorithms", "ring", "--iterations", "1", "--warmup", "0")
    said, warm, shown = many(
        2, [["bench", *options, *more] for more in (["--cold", "--json", "-"], ["--json", "-"], ["--cold"])]
    )
    assert said.statuses == [0, 0] and strict(said.outs[0])["cache"] == "cold", said
    assert strict(warm.outs[0])["cache"] == "warm"
    assert "prepared plans, caches cold beside comm.Allreduce" in shown.outs[0]


def test_compare(many, folder):
    options = ["bench", "--sizes", "8,64K", "--algorithms", "ring", *QUICK]
    many(2, [[*options, "--json", "now.json"]])
    document = json.loads((folder / "now.json").read_text())
    for name, seconds in (("slow.json", 1e3), ("fast.json", 1e-9)):
        rows = [
            row | dict.fromkeys(("median_s", "low_s", "high_s"), seconds)
            for row in document["rows"]
            if (row["algorithm"], row["nbytes"]) != ("ring", 8)
        ]
        (folder / name).write_text(json.dumps(document | {"library": "another", "rows": rows}))
    slower, both, faster, sheer = many(
        2,
        [
            [*options, "--compare", "fast.json"],
            [*options, "--compare", "fast.json", "--json", "new.json"],
            [*options, "--compare", "slow.json", "--json", "slow.json"],
            [*options, "--compare", "fast.json", "--json", "-"],
        ],
    )
    assert slower.statuses == both.statuses == sheer.statuses == [1, 1] and faster.statuses == [0, 0], slower
    assert not any(slower.outs[1:]) and not any(slower.errs), slower
    text = slower.outs[0]
    assert "not the same: library: another -> " in text and "3 rows compared: 3 slower, 0 faster" in text
    assert "only in this run: ring, sum of float64 on 2 ranks: 8 B" in text
    assert "3 rows compared: 0 slower, 3 faster" in faster.outs[0]
    assert "comparison" not in document
    written = [(folder / name).read_text() for name in ("new.json", "slow.json")]
    for text, verdict in zip([*written, sheer.outs[0]], ("slower", "faster", "slower"), strict=True):
        found = strict(text)
        assert [row["verdict"] for row in found["comparison"]["rows"]] == [verdict] * 3
        assert found["comparison"][verdict] == 3 and len(found["rows"]) == 4
        assert list(found["comparison"]["facts"]) == ["library"]


def test_compare_with_what_is_no_figures(many, folder):
    (folder / "broken.json").write_text('{"rows": [{"algorithm": "ring"')
    (folder / "foreign.json").write_text('{"hosts": []}')
    (folder / "row.json").write_text('{"rows": [{"algorithm": "ring"}]}')
    os.mkfifo(folder / "pipe")
    cases = {
        "none.json": "none.json: cannot read it: No such file",
        ".": ".: not a file",
        "pipe": "pipe: not a file",
        "broken.json": "broken.json: not JSON, or truncated",
        "foreign.json": "foreign.json: the field 'rows' is missing",
        "row.json": "row.json: rows[0]: the field 'nbytes' is missing",
    }
    commands = [["bench", "--compare", name, "--json", "out.json"] for name in cases]
    for said, words in zip(many(3, commands), cases.values(), strict=True):
        refused_by_all(said, 2, words, "expected a file that bench --json has written")
        assert max(said.seconds) < 5 and not any(said.opened), said
    assert not (folder / "out.json").exists()
