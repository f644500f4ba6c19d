"""Figures of two runs, side by side: what is called slower, what is not, and what is no figures at all."""

import json

import pytest

from hpcreduce.errors import FiguresError
from hpcreduce.measure import cache
from hpcreduce.measure.comparison import Key, Timing, compare, document, figures, lines, read, verdict

FACTS = {"hpcreduce": "0.1.0", "library": "MPICH 5.0.2", "ranks": 3, "mode": "plan", "cache": "warm"}


def row(algorithm="ring", nbytes=8, median=1e-5, spread=0.01, **others):
    times = {"median_s": median, "low_s": median * (1 - spread), "high_s": median * (1 + spread)}
    return {"algorithm": algorithm, "nbytes": nbytes, "dtype": "float64", "op": "sum", "ranks": 3} | times | others


def run(*rows, where="run", **facts):
    return figures(FACTS | facts | {"rows": list(rows)}, where)


@pytest.mark.parametrize(
    ("new", "spread", "expected"),
    [
        (1e-5, 0.01, None),
        (1.2e-5, 0.01, "slower"),
        (0.8e-5, 0.01, "faster"),
        (1.2e-5, 0.2, None),  # the intervals overlap
        (0.8e-5, 0.2, None),
        (1.04e-5, 0.001, None),  # apart, but by 4 %
        (0.96e-5, 0.001, None),
        (1.06e-5, 0.001, "slower"),
        (0.94e-5, 0.001, "faster"),
    ],
)
def test_verdict(new, spread, expected):
    found = compare(run(row(spread=spread)), run(row(median=new, spread=spread)))
    (change,) = found.changes
    assert change.verdict == expected and change.ratio == pytest.approx(new / 1e-5)
    assert (found.count("slower"), found.count("faster")) == (expected == "slower", expected == "faster")


def test_intervals_that_touch_are_not_apart():
    assert verdict(Timing(1.0, 0.9, 1.1), Timing(1.2, 1.1, 1.3)) is None


def test_rows_meet_those_of_the_same_kind_only():
    old = run(row(), row("tree"), row(nbytes=16), row(dtype="float32"), row(op="max"), row(ranks=2))
    new = run(row("tree", median=2e-5), row("mpi"), row())
    found = compare(old, new)
    assert [(change.key.algorithm, change.ratio) for change in found.changes] == [("tree", 2), ("ring", 1)]
    assert found.only_new == [Key("mpi", 8, "float64", "sum", 3)]
    assert found.only_old == [
        Key("ring", 16, "float64", "sum", 3),
        Key("ring", 8, "float32", "sum", 3),
        Key("ring", 8, "float64", "max", 3),
        Key("ring", 8, "float64", "sum", 2),
    ]


def test_facts_that_differ_are_said():
    found = compare(run(row(), where="old.json"), run(row(), library="Open MPI 5.0.11", cache="cold", torch="2.13.0"))
    assert found.facts == [
        ("library", "MPICH 5.0.2", "Open MPI 5.0.11"),
        ("torch", "not said", "2.13.0"),
        ("cache", "warm", "cold"),
    ]
    assert "library: MPICH 5.0.2 -> Open MPI 5.0.11; torch: not said -> 2.13.0; cache: warm -> cold" in "".join(
        lines(found)
    )
    assert not any("not the same" in line for line in lines(compare(run(row()), run(row()))))


def test_table_and_document():
    old = run(row(), row("tree"), row("direct"), row("direct", 1024), where="old.json")
    found = compare(old, run(row(median=2e-5), row("tree", median=5e-6), row("circulant")))
    text = list(lines(found))
    assert "old.json" in text[0] and text[1].split() == ["size", "algorithm", "old", "new", "ratio"]
    assert text[2].split() == ["8", "B", "ring", "10.00", "us", "20.00", "us", "2.00", "slower"]
    assert text[3].split() == ["8", "B", "tree", "10.00", "us", "5.000", "us", "0.50", "faster"]
    assert text[4:6] == [
        "only in old.json: direct, sum of float64 on 3 ranks: 8 B, 1 KiB",
        "only in this run: circulant, sum of float64 on 3 ranks: 8 B",
    ]
    assert text[6].startswith("2 rows compared: 1 slower, 1 faster")
    found = json.loads(json.dumps(document(found)))
    assert (found["file"], found["slower"], found["faster"], found["facts"]) == ("old.json", 1, 1, {})
    assert [(each["algorithm"], each["ratio"], each["verdict"]) for each in found["rows"]] == [
        ("ring", 2, "slower"),
        ("tree", 0.5, "faster"),
    ]
    assert [each["algorithm"] for each in found["only_old"] + found["only_new"]] == ["direct", "direct", "circulant"]


def test_nothing_in_common():
    assert list(lines(compare(run(), run())))[-1].startswith("0 rows compared: 0 slower")


def test_what_is_no_figures_is_said(tmp_path):
    cases = {
        "": "not JSON",
        '{"rows": [': "not JSON",
        "[" * 100_000: "not JSON",
        "[]": r"expected an object, found \[\]",
        '{"hosts": []}': "the field 'rows' is missing",
        '{"rows": 3}': "rows: expected a list, found 3",
        '{"rows": [3]}': r"rows\[0\]: expected an object, found 3",
        '{"library": [], "rows": []}': "library: expected a whole number",
        json.dumps({"rows": [row(), {"algorithm": "ring"}]}): r"rows\[1\]: the field 'nbytes' is missing",
        json.dumps({"rows": [row(nbytes=True)]}): r"rows\[0\]: nbytes: expected a whole number from 1 on, found True",
        json.dumps({"rows": [row(algorithm=7)]}): "algorithm: expected a text, found 7",
        json.dumps({"rows": [row(median_s=float("nan"))]}): "median_s: expected seconds, found nan",
        json.dumps({"rows": [row(low_s=0)]}): "low_s: expected seconds, found 0",
        json.dumps({"rows": [row(high_s="1")]}): "high_s: expected seconds, found '1'",
        json.dumps({"rows": [row(), row()]}): r"rows\[1\]: a second row of ring, sum of float64 on 3 ranks at 8 B",
    }
    for text, words in cases.items():
        (tmp_path / "old.json").write_text(text)
        with pytest.raises(FiguresError, match=rf"old\.json: .*{words}"):
            read(str(tmp_path / "old.json"))
    (tmp_path / "old.json").write_bytes(b"\xff\xfe")
    for name, words in (("old.json", "not JSON"), ("none", "No such file"), ("", "not a file"), ("\0", "cannot read")):
        with pytest.raises(FiguresError, match=words):
            read(f"{tmp_path}/{name}")


def test_texts_of_a_file_do_not_reach_the_terminal_raw():
    found = compare(run(row("\x1b[31mring\n"), library="a\x07b"), run(row()))
    assert all(line.removeprefix("\n").isprintable() for line in lines(found))


def test_last_level_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.os, "sched_getaffinity", lambda pid: {2, 5})
    assert cache.last_level(str(tmp_path)) == cache.UNKNOWN
    for index, size in enumerate(("48K", "2048K", "?", "36M\n", "")):
        place = tmp_path / "cpu2" / "cache" / f"index{index}"
        place.mkdir(parents=True)
        (place / "size").write_text(size)
    assert cache.last_level(str(tmp_path)) == 36 << 20


def test_a_sweep_reads_memory_that_was_written():
    assert cache.sweeper(1001)() == 126
