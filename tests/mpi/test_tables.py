"""The table that rank 0 reads decides on all ranks."""

import json
import os

import numpy as np
import pytest
from mpi4py import MPI
from outcomes import recovered

import hpcreduce
from hpcreduce.lookup import family
from hpcreduce.runtime import agreement, tablefiles

pytestmark = pytest.mark.mpi


def entry(comm, start, algorithm, segment=None, window=None, **more):
    library = family(MPI.Get_library_version())
    fields = {"library": library, "ranks": comm.size, "nodes": 1, "itemsize": 8, "from": start}
    return fields | {"algorithm": algorithm, "segment": segment, "window": window} | more


@pytest.fixture
def given(comm, tmp_path, monkeypatch):
    """Let rank 0 alone have a table, and return its path there; others are told of a file that is not there."""

    def given(text):
        path = tmp_path / "mine.json"
        if comm.rank == 0:
            path.write_text(text)
        monkeypatch.setenv("HPCREDUCE_TABLE", str(path))
        tablefiles.own.cache_clear()
        return comm.bcast(str(path))

    yield given
    tablefiles.own.cache_clear()


def table(*entries):
    return json.dumps({"format": 1, "about": {}, "entries": entries})


def choice(comm, count, name="allreduce", **options):
    """Reduce, check the result, and return what ran it."""
    mine = (comm.rank + 1.0) * (np.arange(count) + 1)
    found = getattr(hpcreduce, name)(comm, mine, timeout=60, **options)
    found = found.Wait() if name == "iallreduce" else found
    assert (found == comm.size * (comm.size + 1) // 2 * (np.arange(count) + 1.0)).all()
    (call,) = [call for key, call in agreement.state(comm).calls.items() if key[:2] == (name, (count,))]
    assert len(set(comm.allgather((call.fingerprint, call.choice.window, call.choice.reason)))) == 1
    return call.choice


def test_the_table_of_rank_0_decides_on_all(comm, given):
    own = {"algorithm": "double_tree", "segment": 512, "window": 4}
    path = given(table(entry(comm, 0, "mpi", own=own), entry(comm, 800, "direct", 64, 3), entry(comm, 8000, "tree")))
    found = choice(comm, 500)
    if comm.size == 1:  # nothing is measured for one rank
        assert found.hit is None
        return
    assert (found.algorithm.name, found.segment, found.window, found.hit.source) == ("direct", 8, 3, path)
    assert choice(comm, 5).algorithm.name == "mpi" and choice(comm, 1009).algorithm.name == "tree"
    found = choice(comm, 7, "iallreduce")  # never the library's
    assert (found.algorithm.name, found.segment, found.window) == ("double_tree", 64, 4)
    assert choice(comm, 501, segment=80).segment == 10
    text = str(hpcreduce.explain(comm, np.ones(500)))
    assert path in text and "800 B to 7.8125 KiB: direct 64 B/3 is best" in text
    assert hpcreduce.explain(comm, np.ones(500), op=lambda a, b: a).algorithm == "direct"  # which keeps rank order
    assert hpcreduce.explain(comm, np.ones(5), op="max").algorithm == "double_tree"
    before = agreement.state(comm).tables
    assert recovered(comm) and agreement.state(comm).tables == before
    assert choice(comm, 500).algorithm.name == "direct"


def test_each_communicator_is_told_by_its_own_rank_0(comm, given):
    """Which has read the file once: that it is gone by then is not seen."""
    path = given(table(entry(comm, 0, "circulant")))
    choice(comm, 100)
    if comm.rank == 0:
        os.unlink(path)
    other = comm.Split(comm.rank % 2, -comm.rank)
    if other.bcast(comm.rank) == 0:
        assert hpcreduce.allreduce(other, 1, timeout=60) == other.size
    else:  # another rank is the first one there, and never had such a file
        with pytest.raises(ValueError, match="cannot read the table"):
            hpcreduce.allreduce(other, 1, timeout=60)
    other.Free()


@pytest.mark.parametrize(
    "text, words", [("{", "not JSON"), ('{"format": 1}', "the field 'about' is missing"), ("", "not JSON")]
)
def test_a_wrong_table_raises_on_all_ranks(comm, given, text, words):
    path = given(text)
    for _ in range(2):  # at each use
        with pytest.raises(ValueError, match=words) as refusal:
            hpcreduce.allreduce(comm, np.ones(5), timeout=60)
        assert str(refusal.value).startswith(f"{path}: ")
    tablefiles.own.cache_clear()
    given(table())
    assert hpcreduce.allreduce(comm, comm.rank, timeout=60) == comm.size * (comm.size - 1) // 2
