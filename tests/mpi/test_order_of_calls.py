"""Ranks that make their calls in another order, or not all of them, and ranks that are elsewhere meanwhile."""

import functools
import time

import numpy as np
import pytest
from mpi4py import MPI
from outcomes import all_raise, call, common, contribution, outcomes, recovered, total

import hpcreduce

SIZE = MPI.COMM_WORLD.size
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")]
allreduce = functools.partial(hpcreduce.allreduce, timeout=20)


def ends_in_one_way(comm, work, *parts):
    """Do `work`; it must end at the deadline at the latest, in the same words on all ranks, with these parts."""
    found = outcomes(comm, work)
    assert {outcome.error for outcome in found} in ({"MismatchError"}, {"CollectiveTimeoutError"}), found
    texts = [common(outcome.text) for outcome in found]
    assert texts == texts[:1] * SIZE and all(part in texts[0] for part in parts), found
    assert recovered(comm)


@pytest.mark.parametrize("nbytes", [40, 600 << 10])
def test_a_plan_is_no_call(comm, nbytes):
    """Plans may be started in any order among calls, so that it may take until the deadline."""
    name = "allreduce_init" if comm.rank == SIZE - 1 else "allreduce"
    ends_in_one_way(
        comm, lambda: call(comm, name=name, count=nbytes // 8, timeout=0.8), "allreduce_init(", "allreduce("
    )


@pytest.mark.parametrize("algorithm", ["auto", "mpi", "ring"])
def test_a_rank_makes_a_call_more_or_less(comm, algorithm):
    """One rank leaves out the third of three equal calls, then one makes a call of its own before the next ones."""
    for more in False, True:

        def work(more=more):
            mine = contribution(comm, 30)
            if more and comm.rank == SIZE - 1:
                allreduce(comm, 1, op="max", algorithm=algorithm)
            for _ in range(2 if not more and comm.rank == 0 else 3):
                assert (allreduce(comm, mine, algorithm=algorithm) == total(comm, 30)).all()
            assert allreduce(comm, comm.rank, op="max", algorithm=algorithm) == SIZE - 1
            allreduce(comm, mine, algorithm=algorithm)

        text = all_raise(comm, work)
        assert "op max" in text and "op sum" in text
        assert recovered(comm)


def test_calls_in_another_order(comm):
    """Also where the first one of a rank needs nobody else."""
    first, second = {"name": "bcast", "count": 50}, {"name": "allreduce", "count": 50}
    for odd in 0, SIZE - 1:
        for one, two in (first, second), (second, first):

            def work(odd=odd, one=one, two=two):
                for description in (two, one) if comm.rank == odd else (one, two):
                    call(comm, **description)
                call(comm)

            all_raise(comm, work)
            assert recovered(comm)


@pytest.mark.parametrize("algorithm", ["tree", "ring", "auto"])
@pytest.mark.parametrize("ended", ["waited for", "tested"])
def test_handles_started_in_another_order(comm, algorithm, ended, impatient):
    def work():
        counts = (5, 600_000) if comm.rank != 1 else (600_000, 5)
        handles = [hpcreduce.iallreduce(comm, np.ones(count), algorithm=algorithm, timeout=20) for count in counts]
        for handle in handles[::-1]:
            while ended == "tested" and not handle.Test():
                pass
            handle.Wait()

    all_raise(comm, work)
    assert recovered(comm)


@pytest.mark.parametrize("algorithm", ["auto", "mpi", "ring"])
@pytest.mark.parametrize("nbytes", [64, 600 << 10])
def test_plans_made_in_another_order(comm, algorithm, nbytes, impatient):
    def work():
        arrays = [np.ones(nbytes // 8), np.ones(nbytes // 8 + 1)][:: -1 if comm.rank == 0 else 1]
        plans = [hpcreduce.allreduce_init(comm, array, algorithm=algorithm, timeout=20) for array in arrays]
        for plan in plans:
            plan.Start()
        for plan in plans:
            plan.Wait()

    all_raise(comm, work)
    assert recovered(comm)


def test_plans_started_unequally_often(comm):
    """One rank starts a plan once more, the others go on with a call."""
    plan = hpcreduce.allreduce_init(comm, np.ones(5), timeout=0.8)
    plan.Start()
    plan.Wait()

    def work():
        if comm.rank == 0:
            plan.Start()
            plan.Wait()
        hpcreduce.allreduce(comm, 1, timeout=0.8)

    ends_in_one_way(comm, work, "plan 1, start 2", "call #")


@pytest.mark.skipif(SIZE < 3, reason="a third rank")
def test_a_third_rank_in_its_own_code(comm):
    """Two find out, without waiting for it long; it gets the same error in its next call."""
    assert allreduce(comm, 1) == SIZE

    def work():
        if comm.rank == 2:
            time.sleep(0.8)
        call(comm, count=5 + (comm.rank == 0), algorithm="direct")

    text = all_raise(comm, work, seconds=6)
    assert "rank 2: in no call on this communicator; others last completed #1" in text
    assert recovered(comm)


def test_a_rank_far_ahead_of_what_is_wrong(comm):
    """The root of broadcasts, whose first one is unlike that of the others, has made all of them."""

    def work(number):
        if comm.rank > 0:
            time.sleep(0.2)
        for turn in range(number):
            hpcreduce.bcast(comm, np.ones(5 + (comm.rank == turn == 0)), timeout=3)
        allreduce(comm, 1)

    for number in 50, 500:
        assert "bcast" in all_raise(comm, functools.partial(work, number), seconds=2.5)
        assert recovered(comm)


def test_two_communicators_stay_apart(comm):
    """What goes wrong on one of them does not spoil the other."""
    other = comm.Dup()
    assert allreduce(other, 1) == SIZE
    handle = hpcreduce.iallreduce(other, contribution(comm, 1000), timeout=20)
    all_raise(comm, lambda: allreduce(comm, np.ones(5 + (comm.rank == 0))))
    assert (handle.Wait() == total(comm, 1000)).all()
    assert recovered(comm)
    other.Free()
