"""``predict``: needs no MPI, prints once, marks the fastest, and refuses what it cannot compute."""

import json

import pytest
from launching import refused

from hpcreduce.algorithms import ALGORITHMS

SCHEDULES = [name for name, row in ALGORITHMS.items() if row.rounds]
TREE = ("predict", "--network", "fat-tree:2x4")
GOOD = {
    "hosts": ["a", "b"],
    "links": [
        {"a": "a", "b": "s", "bandwidth": 1e9, "latency": 1e-6},
        {"a": "b", "b": "s", "bandwidth": 1e9, "latency": 1e-6},
    ],
}


@pytest.fixture
def no_mpi(tmp_path):
    """A folder whose mpi4py says that it was imported."""
    (tmp_path / "stub" / "mpi4py").mkdir(parents=True)
    (tmp_path / "stub" / "mpi4py" / "__init__.py").write_text("raise RuntimeError('mpi4py was imported')")
    return [tmp_path / "stub"]


def test_figures(cli, no_mpi):
    result = cli(0, *TREE, "--ranks", "8", "--sizes", "1K,1M,1G", "--json", "-", paths=no_mpi)
    assert result.status == 0 and result.err == "", result
    document = json.loads(result.out)
    rows = document["rows"]
    assert [(row["nbytes"], row["algorithm"]) for row in rows] == [
        (nbytes, name) for nbytes in (1 << 10, 1 << 20, 1 << 30) for name in SCHEDULES
    ]
    assert all(list(row) == ["algorithm", "nbytes", "ranks", "seconds"] for row in rows)
    assert all(row["ranks"] == 8 and row["seconds"] > 0 for row in rows)
    assert list(document["winner"]) == ["1024", "1048576", "1073741824"] and document["left_out"] == []
    for nbytes, name in document["winner"].items():
        times = {row["algorithm"]: row["seconds"] for row in rows if row["nbytes"] == int(nbytes)}
        assert times[name] == min(times.values())
    assert document["winner"]["1024"] != document["winner"]["1073741824"]


def test_a_figure_by_hand(cli, folder):
    """Two ranks exchange 8 MB: 1 us, two links of 1 us, 8 ms; and reduce it in 0.8 ms."""
    (folder / "net.json").write_text(json.dumps(GOOD))
    options = ("--sizes", "8000000", "--algorithms", "recursive_doubling", "--json", "-")
    result = cli(0, "predict", "--network", "net.json", *options)
    (row,) = json.loads(result.out)["rows"]
    assert row["ranks"] == 2 and row["seconds"] == pytest.approx(3e-6 + 8e-3 + 8e-4, rel=1e-12)


def test_the_table_is_printed_once(cli, folder):
    for ranks in 0, 3:
        outputs = ("--json", f"{ranks}.json", "--plot", f"{ranks}.svg")
        result = cli(ranks, *TREE, "--sizes", "8,1000", "--algorithms", "ring,tree,ring", *outputs)
        assert result.status == 0 and result.own == [], result
        assert result.out.count("computed by a model, not measured") == 1 and result.out.count("<- fastest") == 2
        assert result.out.count(" ring ") == result.out.count(" tree ") == 2 and "8 ranks" in result.out
        rows = json.loads((folder / f"{ranks}.json").read_text())["rows"]
        assert [row["nbytes"] for row in rows] == [8, 8, 1000, 1000]
        assert (folder / f"{ranks}.svg").read_bytes().startswith(b"<?xml")


def test_one_rank_takes_no_time(cli):
    result = cli(0, "predict", "--network", "star:1", "--sizes", "8", "--plot", "one.png")
    assert result.status == 0 and result.out.count("0.000 us") == len(SCHEDULES), result


def test_what_is_left_out_is_said(cli):
    options = ("--sizes", "8,1K", "--algorithms", "ring,recursive_doubling", "--ranks", "300")
    result = cli(0, "predict", "--network", "star:300", *options)
    assert result.status == 0 and "recursive_doubling" in result.out, result
    assert result.own == ["note: ring is left out at 8 B, 1 KiB: more than 100000 messages among 300 ranks"]
    result = cli(0, "predict", "--network", "star:300", "--sizes", "8", "--algorithms", "ring", "--json", "-")
    document = json.loads(result.out)
    assert result.status == 1 and document["rows"] == [] and document["winner"] == {}
    assert document["left_out"][0]["algorithm"] == "ring"


def test_bad_options(cli, folder):
    (folder / "speed.json").write_text(json.dumps(GOOD).replace("1000000000.0", "-3"))
    (folder / "lonely.json").write_text(json.dumps(GOOD | {"hosts": ["a", "b", "c"]}))
    (folder / "text.json").write_text("no")
    for status, words, options in (
        (2, ["--network"], []),
        (2, ["0", "--ranks"], ["--network", "star:2", "--ranks", "0"]),
        (2, ["no size"], ["--network", "star:2", "--sizes", "0"]),
        (2, ["unknown algorithm 'mpi'"], ["--network", "star:2", "--algorithms", "mpi"]),
        (2, ["--ports"], ["--network", "star:2", "--ports", "0"]),
        (2, ["must end in .png"], ["--network", "star:2", "--plot", "out.gif"]),
        (1, ["3 ranks have no place on 2 hosts"], ["--network", "star:2", "--ranks", "3"]),
        (1, ["cannot read network 'none.json'"], ["--network", "none.json"]),
        (1, ["star:2,speed=1: unknown setting"], ["--network", "star:2,speed=1"]),
        (1, ["speed.json: links[0].bandwidth", "found -3"], ["--network", "speed.json"]),
        (1, ["lonely.json: links: host 'c' has no link"], ["--network", "lonely.json"]),
        (1, ["text.json: not JSON"], ["--network", "text.json"]),
        (1, ["cannot write no/a.json: No such file"], ["--network", "star:2", "--json", "no/a.json"]),
    ):
        refused(cli(0, "predict", *options), status, *words)


def test_errors_under_mpirun_are_printed_once(cli):
    refused(cli(3, "predict", "--network", "star:2", "--ranks", "3"), 1, "have no place")
    refused(cli(3, "predict", "--network", "star:2", "--json", "no/a.json"), 1, "cannot write no/a.json")
