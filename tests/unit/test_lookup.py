"""Measured tables: what is refused, which entry counts, and what a call takes from it."""

import json

import numpy as np
import pytest

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.errors import TableError
from hpcreduce.explanation import Model, explanation
from hpcreduce.lookup import Place, Setting, Table, family, find, near, pack, parse, placed, table, unpack
from hpcreduce.runtime import tablefiles
from hpcreduce.runtime.operations import OPERATIONS, resolve
from hpcreduce.selection import WINDOW, choose

HERE = Place("MPICH", 3, 1)
NODE = (0, 0, 0)


def entry(start=0, algorithm="ring", segment=None, window=None, **more):
    fields = {"library": "MPICH", "ranks": 3, "nodes": 1, "itemsize": 8, "from": start}
    return fields | {"algorithm": algorithm, "segment": segment, "window": window} | more


def data(*entries, **more):
    return json.dumps({"format": 1, "about": {}, "entries": list(entries)} | more).encode()


def tables(*entries, place=HERE, source="mine"):
    return placed([table(source, parse(data(*entries), "t.json")[1])], place)


def chosen(found, op="sum", dtype="f8", nbytes=8, algorithm="auto", segment=None, without=(), nodes=NODE):
    operation = resolve(op)
    work = operation.types(np.dtype(dtype))[0]
    return choose(algorithm, segment, operation, work, nbytes // work.itemsize, nodes, found, without)


def test_what_is_written_is_read():
    facts = {"seconds": 1e-6, "speed": 1.5, "low": 1.4, "high": 1.6, "turns": 9, "slower_than": ["a"]}
    own = {"algorithm": "tree", "segment": 4096, "window": 3}
    entries = [entry(0, "mpi", own=own, runner_up=own, **facts), entry(4096, "ring", 65536, 4)]
    about, found = parse(data(*entries, about={"runs": [1]}), "t.json")
    assert about == {"runs": [1]} and found == entries
    mine = table("mine", found)
    assert unpack(pack([mine, Table("other", ())])) == [mine, Table("other", ())]
    assert mine.entries[0].own == Setting("tree", 4096, 3) and dict(mine.entries[0].facts) == facts | {"runner_up": own}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"\xff", "t.json: not JSON"),
        (b"{", "t.json: not JSON"),
        (b"[" * 100_000, "t.json: not JSON"),
        (b"[]", "the table: expected an object with format, about, entries, found []"),
        (b'{"format": 1, "about": {}}', "the table: the field 'entries' is missing"),
        (data(format=2), "format: expected 1, found 2"),
        (data(format=True), "format: expected 1, found True"),
        (data(about=[]), "about: expected an object, found []"),
        (data(entries={}), "entries: expected a list, found {}"),
        (data(3), "entries[0]: expected an object with library, ranks"),
        (data(entry(), entry(1) | {"rank": 3}), "entries[1]: unknown field 'rank'; expected library"),
        (data({"library": "MPICH"}), "entries[0]: the field 'ranks' is missing"),
        (data(entry(library="")), "entries[0].library: expected a name, found ''"),
        (data(entry(ranks=0)), "entries[0].ranks: expected a whole number from 1 on, found 0"),
        (data(entry(ranks=3.0)), "entries[0].ranks: expected a whole number from 1 on, found 3.0"),
        (data(entry(nodes=4)), "entries[0].nodes: expected a whole number from 1 to 3, found 4"),
        (data(entry(itemsize="8")), "entries[0].itemsize: expected a whole number from 1 to 1048576, found '8'"),
        (data(entry(-1)), "entries[0].from: expected a whole number from 0 on, found -1"),
        (data(entry(algorithm="rong")), "entries[0].algorithm: expected one of ring, tree"),
        (data(entry(algorithm=["ring"])), "entries[0].algorithm: expected one of"),
        (data(entry(segment=0)), "entries[0].segment: expected a whole number from 1 on, found 0"),
        (data(entry(window=True)), "entries[0].window: expected a whole number from 1 to 1024, found True"),
        (data(entry(own=None)), "entries[0].own: expected an object with algorithm, segment, window, found None"),
        (data(entry(own={"algorithm": "ring"})), "entries[0].own: the field 'segment' is missing"),
        (data(entry(own=Setting("mpi")._asdict())), "entries[0].own.algorithm: expected one of our schedules"),
        (data(entry(speed=0)), "entries[0].speed: expected a number above 0, found 0"),
        (data(entry(speed=float("nan"))), "entries[0].speed: expected a number above 0, found nan"),
        (data(entry(turns=0)), "entries[0].turns: expected a whole number from 1 on"),
        (data(entry(slower_than="x")), "entries[0].slower_than: expected a list of texts, found 'x'"),
        (
            data(entry(8), entry(9), entry(8, "tree")),
            "entries[2]: expected another place or size than that of entries[0]",
        ),
    ],
)
def test_wrong_tables_are_refused_in_one_line(bad, words):
    with pytest.raises(TableError) as refusal:
        parse(bad, "t.json")
    text = str(refusal.value)
    assert text.startswith("t.json: ") and words in text and "\n" not in text and len(text) < 300


def starts(found, nbytes, itemsize=8):
    return [(hit.source, hit.entry.start, hit.until) for hit in find(found, itemsize, nbytes)]


def test_the_largest_size_that_is_reached_counts():
    found = tables(entry(64), entry(16), entry(1024))
    assert starts(found, 15) == []
    assert starts(found, 16) == starts(found, 63) == [("mine", 16, 64)]
    assert starts(found, 1023) == [("mine", 64, 1024)]
    assert starts(found, 1 << 40) == [("mine", 1024, None)]


def test_the_nearest_element_size_counts():
    found = tables(entry(0, itemsize=4), entry(1, itemsize=8), entry(2, itemsize=16))
    for itemsize, start in ((1, 0), (4, 0), (5, 0), (6, 1), (8, 1), (11, 1), (12, 2), (64, 2)):
        assert [one for _, one, _ in starts(found, 100, itemsize)] == [start], itemsize
    assert [one for _, one, _ in starts(tables(entry(0, itemsize=2), entry(1, itemsize=8)), 100, 4)] == [0]


@pytest.mark.parametrize(
    ("ranks", "nodes", "wanted"),
    [
        (1, 1, None),
        (2, 1, (4, 1)),
        (4, 1, (4, 1)),
        (5, 1, (4, 1)),
        (6, 1, (8, 1)),
        (16, 1, (8, 1)),
        (17, 1, None),
        (4, 4, (4, 4)),
        (2, 2, (4, 4)),
        (8, 4, (8, 2)),
        (6, 2, (8, 2)),
        (8, 5, (8, 4)),
        (9, 9, None),
    ],
)
def test_the_nearest_ranks_that_are_placed_alike_count(ranks, nodes, wanted):
    places = [(4, 1), (8, 1), (4, 4), (8, 2)] + [(8, 4)] * (nodes == 5)
    entries = [entry(0, ranks=ranks, nodes=nodes) for ranks, nodes in places]
    found = tables(*entries, place=Place("MPICH", ranks, nodes))
    assert [one.place[1:] for each in found for one in each.entries] == ([wanted] if wanted else [])
    assert not tables(*entries, place=Place("Open MPI", ranks, nodes))


def test_what_is_told_to_other_ranks_suffices():
    entries = [entry(0, ranks=ranks, nodes=nodes) for ranks in range(1, 20) for nodes in (1, ranks)[:ranks]]
    mine = [table("mine", parse(data(*entries), "t.json")[1])]
    for ranks in range(1, 40):
        for nodes in {1, ranks}:
            place = Place("MPICH", ranks, nodes)
            assert placed(near(mine, "MPICH", ranks), place) == placed(mine, place)
    assert near(mine, "MPICH", 3)[0].entries[0].place.ranks == 2


def test_library_names():
    assert family("Intel(R) MPI Library 2021.6 for Linux* OS\n") == "Intel(R) MPI"
    assert family("CRAY MPICH version 8.1.29") == "CRAY MPICH" and family("MVAPICH2 2.3.7") == "MVAPICH2"
    assert family("\0") == "" and family("Odd MPI") == "Odd MPI"


def test_a_call_takes_what_the_table_says():
    found = tables(entry(0, "tree", 4096, 5), entry(1 << 20, "circulant"))
    first, second = chosen(found), chosen(found, nbytes=1 << 20)
    assert (first.algorithm.name, first.segment, first.window) == ("tree", 512, 5)
    assert (second.algorithm.name, second.segment, second.window) == (
        "circulant",
        chosen((), nbytes=1 << 20).segment,
        WINDOW,
    )
    assert first.reason.startswith("mine: MPICH, 3 ranks on 1 node, elements of 8 bytes, 0 B to 1 MiB: tree 4 KiB/5")
    assert chosen(found, segment=80).segment == 10 and chosen(found, segment=80).window == 5


def test_an_algorithm_that_is_asked_for_takes_its_own_settings():
    found = tables(entry(0, "mpi", own=Setting("tree", 4096, 5)._asdict()))
    asked = chosen(found, algorithm="tree")
    assert (asked.segment, asked.window, asked.reason) == (512, 5, "asked for")
    assert chosen(found, algorithm="ring")[1:] == chosen((), algorithm="ring")[1:]
    assert chosen(found, algorithm="tree", segment=8).segment == 1
    assert chosen(found, algorithm="hierarchical:ring").static["across"] == "ring"


def test_what_is_forbidden_falls_back():
    def first(a, b):
        return a

    own = Setting("double_tree", 4096, 3)
    found = tables(entry(0, "mpi", own=own._asdict()))
    assert chosen(found).algorithm.name == "mpi"
    assert chosen(found, "max").algorithm.name == "double_tree"  # the library would lose NaN
    assert chosen(found, "bxor", "i8", without=("shared",)).algorithm.name == "double_tree"  # no head tells ranks apart
    assert chosen(found, "bxor", "i8").algorithm.name == "mpi"  # but node-shared memory does
    assert chosen(found, without=("mpi",)).algorithm.name == "double_tree"
    assert "; double_tree 4 KiB/3 of what can run this" in chosen(found, "max").reason
    for forbidden in (found, tables(entry(0, "ring"))):  # none keeps rank order
        assert chosen(forbidden, first)[:5] == chosen((), first)[:5] and chosen(forbidden, first).hit is None
    assert chosen(tables(entry(0, "mpi")), "max")[:5] == chosen((), "max")[:5]
    mine, built_in = tables(entry(0, "mpi")), tables(entry(0, "ring"), source="built-in")
    assert chosen(mine + built_in, "max").hit.source == "built-in"
    assert chosen(mine + built_in).hit.source == "mine"


def test_a_table_of_another_version_does_no_harm():
    found = tables(entry(0, "ring", own=Setting("tree")._asdict()))
    strange = found[0].entries[0]._replace(setting=Setting("chain"))
    assert chosen((Table("mine", (strange,)),)).algorithm.name == "tree"


def test_it_is_explained():
    found = tables(entry(0, "tree", 4096, 5, speed=1.234, low=1.1, high=1.3, slower_than=["reduce+bcast"]))
    text = explanation(NODE, 10, np.dtype(float), OPERATIONS["sum"], Model(), found)
    assert (text.entry["algorithm"], text.entry["source"], text.entry["until"], text.window) == (
        "tree",
        "mine",
        None,
        5,
    )
    assert "from 0 B on: tree 4 KiB/5 is best, 1.23 x mpi (1.10 to 1.30), though slower than" in str(text)
    rules = explanation(NODE, 10, np.dtype(float), OPERATIONS["sum"], Model())
    assert rules.entry is None and "no table decides" in str(rules)


@pytest.fixture
def fresh():
    tablefiles.own.cache_clear()
    yield
    tablefiles.own.cache_clear()


def test_the_users_table_is_found(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("HPCREDUCE_TABLE", "")
    assert tablefiles.own() is None
    monkeypatch.delenv("HPCREDUCE_TABLE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    tablefiles.own.cache_clear()
    assert tablefiles.own() is None
    path = tmp_path / "hpcreduce" / "table.json"
    path.parent.mkdir()
    path.write_bytes(data(entry()))
    tablefiles.own.cache_clear()
    assert tablefiles.own().source == str(path)
    path.unlink()  # each process reads it once
    assert tablefiles.all_tables()[0].source == str(path)


def test_tables_that_cannot_be_read(fresh, tmp_path, monkeypatch):
    (tmp_path / "bad.json").write_text("{}")
    for path, words in (
        (tmp_path / "none.json", "No such file"),
        (tmp_path, "not a regular file"),
        ("/dev/zero", "not a regular file"),
        (tmp_path / "bad.json", "the field 'format' is missing"),
    ):
        monkeypatch.setenv("HPCREDUCE_TABLE", str(path))
        tablefiles.own.cache_clear()
        told = tablefiles.offer("MPICH", 3)
        with pytest.raises(TableError, match=words):
            tablefiles.accept(told)


def test_the_built_in_tables_are_right():
    found = tablefiles.built_in()
    places = {one.place for each in found for one in each.entries}
    assert places >= {Place(library, ranks, 1) for library in ("MPICH", "Open MPI") for ranks in (2, 3)}
    for each in found:
        for one in each.entries:
            assert one.setting.algorithm in ALGORITHMS and one.own and one.facts["turns"] >= 5
    for place in places:
        for itemsize in {one.itemsize for each in found for one in each.entries}:
            assert list(find(placed(found, place), itemsize, 0)), "the smallest array has an entry"
