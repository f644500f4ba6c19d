"""Ranks that do not come in time: those that wait say for whom and where, and all get the same error."""

import time

import numpy as np
import pytest
from mpi4py import MPI
from outcomes import all_raise, call, common, contribution, outcomes, recovered, total

import hpcreduce

SIZE = MPI.COMM_WORLD.size
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(SIZE == 1, reason="one rank waits for nobody")]
PATHS = [("auto", 5), ("mpi", 100_000), ("ring", 100_000), ("tree", 5)]
WAY_OUT = r"recover\(\), or with a duplicate \(comm\.Dup\(\)\)"


@pytest.fixture(autouse=True)
def brisk(monkeypatch):
    """Give the verdict sooner without those who do not come."""
    monkeypatch.setattr(hpcreduce.runtime.inquiry, "COLLECT", 0.1)


def late(comm, absent, work):
    """Do `work`, on the ranks in `absent` only after it has ended on the others; return the outcomes of all."""

    def run():
        if comm.rank in absent:
            comm.Barrier()
            return work()
        try:
            return work()
        finally:
            comm.Barrier()

    return outcomes(comm, run)


def one_timeout(found, absent=None):
    """Whether all ranks got the same error, in time and naming `absent`; return what all say."""
    assert {outcome.error for outcome in found} == {"CollectiveTimeoutError"}, found
    texts = [common(outcome.text) for outcome in found]
    assert texts == texts[:1] * SIZE, found
    if absent is not None:
        assert {outcome.ranks for outcome in found} == {tuple(sorted(absent))}, found
    assert max(outcome.seconds for outcome in found) < 5, found
    return texts[0]


@pytest.mark.parametrize(
    ("algorithm", "count", "number"), [(*path, 1) for path in PATHS] + [("auto", 5, 2), ("ring", 100_000, 2)]
)
def test_who_does_not_come_and_where_it_is_waited_for(comm, algorithm, count, number):
    if number >= SIZE:
        pytest.skip("somebody must wait")
    absent = {(count + rank) % SIZE for rank in range(number)}
    assert hpcreduce.allreduce(comm, comm.rank, op="max", timeout=20) == SIZE - 1
    found = late(comm, absent, lambda: call(comm, count=count, algorithm=algorithm, timeout=0.2))
    text = one_timeout(found, absent)
    who = "rank " if number == 1 else "ranks "
    assert text.startswith(f"not finished after 0.2 s, {who}") and "did not come:" in text
    assert "in no call on this communicator" in text and "last completed #" in text and "op max" in text
    assert f"shape ({count},)" in text and "outcomes.py:" in text
    waiting = [outcome.text for rank, outcome in enumerate(found) if rank not in absent]
    if algorithm in ("ring", "tree"):
        assert all("waiting for a message from rank" in line and ", round " in line for line in waiting), waiting
    with pytest.raises(hpcreduce.BrokenCommunicatorError, match=rf"(?s)earlier operation failed.*{WAY_OUT}"):
        hpcreduce.allreduce(comm, 1)
    assert recovered(comm)
    assert (call(comm, count=count, algorithm=algorithm) == total(comm, count)).all()


@pytest.mark.parametrize("name", ["iallreduce", "allreduce_init", "reduce_scatter", "allgather"])
def test_every_call_has_a_deadline(comm, name):
    assert hpcreduce.allreduce(comm, 1) == SIZE
    found = late(comm, {0}, lambda: call(comm, name=name, count=50, timeout=0.2))
    assert f"{name}(" in one_timeout(found, {0})
    assert recovered(comm)


@pytest.mark.parametrize(("algorithm", "count"), PATHS[:2] if SIZE % 2 else PATHS[2:])
def test_the_shortest_timeout_counts_for_all(comm, algorithm, count):
    assert hpcreduce.allreduce(comm, 1) == SIZE
    timeout = 0.3 if comm.rank == 1 else 60
    one_timeout(late(comm, {0}, lambda: call(comm, count=count, algorithm=algorithm, timeout=timeout)), {0})
    assert recovered(comm)


def test_the_timeout_of_the_environment(comm, monkeypatch):
    if comm.rank == SIZE - 1:
        monkeypatch.setenv("HPCREDUCE_TIMEOUT", "0.3")
    assert hpcreduce.allreduce(comm, 1) == SIZE
    found = late(comm, {0}, lambda: hpcreduce.allreduce(comm, 1))
    one_timeout(found, {0})
    assert "not finished after 0.3 s" in found[SIZE - 1].text
    hpcreduce.Intracomm(comm, timeout=20).recover()
    one_timeout(late(comm, {0}, lambda: hpcreduce.Intracomm(comm).Allreduce(np.ones(5), np.empty(5))), {0})
    assert recovered(comm)


@pytest.mark.parametrize("delay", [0.1, 0.22, 0.29, 0.31, 0.5])
def test_a_rank_that_comes_at_any_time(comm, delay):
    """Before the deadline of 0.2 s it is in time; while the others collect who is there, and later, it is not."""

    def work():
        if comm.rank == 0:
            time.sleep(delay)
        return hpcreduce.allreduce(comm, contribution(comm, 20), algorithm="ring", timeout=0.2)

    assert hpcreduce.allreduce(comm, 1) == SIZE
    comm.Barrier()
    found = outcomes(comm, work)
    if {outcome.error for outcome in found} != {""} or delay > 0.22:
        one_timeout(found)
        assert recovered(comm)


@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_handles_and_plans_end_with_their_communicator(comm, algorithm):
    """What was in flight raises the same error; what was made before the recovery is refused afterwards."""
    options = {"algorithm": algorithm, "timeout": 0.3}
    array = contribution(comm, 30)
    plan = hpcreduce.allreduce_init(comm, array, **options)
    plan.Start()
    assert (plan.Wait() == total(comm, 30)).all()
    handles = [None]
    if comm.rank > 0:
        handles = [hpcreduce.iallreduce(comm, array, **options) for _ in range(2)]
    one_timeout(late(comm, {0}, lambda: handles[-1].Wait() if handles[-1] else hpcreduce.allreduce(comm, 1)), {0})
    for handle in handles if comm.rank else ():
        for end in handle.Test, handle.Wait:
            with pytest.raises(hpcreduce.CollectiveTimeoutError, match="rank 0 did not come"):
                end()
    with pytest.raises(hpcreduce.BrokenCommunicatorError):
        plan.Start()
    assert recovered(comm)
    with pytest.raises(ValueError, match=r"made before recover\(\); make a new one"):
        plan.Start()
    plan.Free()
    with hpcreduce.allreduce_init(comm, array, algorithm=algorithm, timeout=20) as fresh:
        fresh.Start()
        assert (fresh.Wait() == total(comm, 30)).all()


def test_a_handle_that_is_tested_ends_when_another_rank_gives_up(comm):
    assert hpcreduce.allreduce(comm, 1) == SIZE

    def work():
        if comm.rank == 0:
            return call(comm, algorithm="tree")
        handle = hpcreduce.iallreduce(comm, contribution(comm, 5), algorithm="tree", timeout=0.3)
        while comm.rank > 1 and not handle.Test():
            time.sleep(0.001)
        return handle.Wait()

    one_timeout(late(comm, {0}, work), {0})
    assert recovered(comm)


def test_ranks_that_wait_on_different_communicators(comm):
    """The text says where a rank waits that did not come."""
    one, two = comm.Dup(), comm.Dup()
    assert hpcreduce.allreduce(one, 1) == hpcreduce.allreduce(two, 1) == SIZE
    own, timeout = (one, 0.3) if comm.rank == 0 else (two, 1)
    found = outcomes(comm, lambda: hpcreduce.allreduce(own, np.ones(5), algorithm="tree", timeout=timeout))
    assert [outcome.error for outcome in found] == ["CollectiveTimeoutError"] * SIZE, found
    assert "waits on another communicator: allreduce(op sum, dtype float64, shape (5,)" in found[0].text, found
    assert all("did not come" in outcome.text for outcome in found), found
    assert [outcome.ranks for outcome in found] == [tuple(range(1, SIZE)), *[(0,)] * (SIZE - 1)], found
    assert recovered(one) and recovered(two)
    one.Free()
    two.Free()


def test_recover_ends_too(comm):
    """A recovery to which not all ranks come ends at its deadline; a duplicate is still to be had."""
    all_raise(comm, lambda: hpcreduce.allreduce(comm, np.ones(5 + (comm.rank == 0)), timeout=20))
    ours = hpcreduce.Intracomm(comm, timeout=20)
    if comm.rank > 0:
        start = time.monotonic()
        with pytest.raises(hpcreduce.CollectiveTimeoutError, match=r"recover\(\)"):
            ours.recover(timeout=0.5)
        assert time.monotonic() - start < 4
        with pytest.raises(hpcreduce.BrokenCommunicatorError):
            hpcreduce.allreduce(comm, 1)
    fresh = comm.Dup()
    assert hpcreduce.allreduce(fresh, 1, timeout=20) == SIZE
    fresh.Free()


def test_recover_without_need(comm):
    """What is in flight is given up; the communicator works as before."""
    assert hpcreduce.allreduce(comm, 1) == SIZE
    handle = hpcreduce.iallreduce(comm, np.ones(100_000), algorithm="ring", timeout=20)
    assert recovered(comm)
    with pytest.raises(hpcreduce.BrokenCommunicatorError, match=r"recover\(\) was called"):
        handle.Wait()
    assert recovered(comm)


def test_recover_what_was_never_used(comm):
    with pytest.raises(ValueError, match=r"COMM_NULL|never used"):
        hpcreduce.Intracomm(MPI.COMM_NULL).recover()
    with pytest.raises((ValueError, TypeError)):
        hpcreduce.Intracomm(comm).recover(timeout=0)
