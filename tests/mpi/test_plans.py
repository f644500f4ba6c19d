"""Nonblocking and persistent operations."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import hpcreduce

pytestmark = pytest.mark.mpi
ALGORITHMS = ["auto", *hpcreduce.ALGORITHMS]
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
every_handle = pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "shared"])


def contribution(comm, count, factor=1):
    return (comm.rank + 1.0) * (np.arange(count) + 1) * factor


def total(comm, count, factor=1):
    return comm.size * (comm.size + 1) // 2 * (np.arange(count) + 1.0) * factor


@every_handle
@pytest.mark.parametrize("count", [0, 5, 100003])
def test_handles_waited_for_in_opposite_order(comm, algorithm, count):
    handles = [
        hpcreduce.iallreduce(comm, contribution(comm, count, factor), algorithm=algorithm, timeout=60)
        for factor in (1, 2, 3)
    ]
    for index in (0, 1, 2) if comm.rank % 2 else (2, 1, 0):
        assert (handles[index].Wait() == total(comm, count, index + 1)).all()
        assert handles[index].Test() and not handles[index].active


@every_handle
def test_two_equal_operations_at_once(comm, algorithm):
    array = contribution(comm, 1009)
    first, second = (hpcreduce.iallreduce(comm, array, algorithm=algorithm, segment=256, timeout=60) for _ in range(2))
    array[:] = -1  # the send buffer is free once the operation is started
    assert (second.Wait() == total(comm, 1009)).all()
    assert (first.Wait() == total(comm, 1009)).all()


def test_handles_on_two_communicators(comm):
    other = comm.Dup()
    one = hpcreduce.iallreduce(comm, contribution(comm, 300_000), algorithm="ring", timeout=60)
    two = hpcreduce.iallreduce(other, contribution(comm, 300_000, 2), algorithm="tree", timeout=60)
    for handle, factor in ((one, 1), (two, 2)) if comm.rank % 2 else ((two, 2), (one, 1)):
        assert (handle.Wait() == total(comm, 300_000, factor)).all()
    other.Free()


@every_algorithm
def test_blocking_calls_move_what_is_in_flight(comm, algorithm):
    handle = hpcreduce.iallreduce(comm, contribution(comm, 200_000), algorithm="ring", timeout=60)
    assert hpcreduce.allreduce(comm, comm.rank, algorithm=algorithm, timeout=60) == comm.size * (comm.size - 1) // 2
    assert (handle.Wait() == total(comm, 200_000)).all()


def test_a_handle_can_be_tested_until_it_is_complete(comm):
    handle = hpcreduce.iallreduce(comm, contribution(comm, 100_000), algorithm="ring")
    deadline = time.monotonic() + 60
    while not handle.Test():
        assert time.monotonic() < deadline
    assert (handle.Wait() == total(comm, 100_000)).all()


@every_algorithm
@pytest.mark.parametrize("in_place", [False, True])
def test_plans_start_again_and_again_and_in_any_order(comm, algorithm, in_place):
    arrays = [np.empty(1009), np.empty(1009)]
    results = arrays if in_place else [np.empty(1009), np.empty(1009)]
    plans = [
        hpcreduce.allreduce_init(comm, array, result, algorithm=algorithm, timeout=60)
        for array, result in zip(arrays, results, strict=True)
    ]
    for turn in range(20):
        order = (0, 1) if (comm.rank + turn) % 2 else (1, 0)
        for index in order:
            arrays[index][:] = contribution(comm, 1009, turn + 10 * index)
            plans[index].Start()
        for index in (0, 1) if turn % 3 else (1, 0):
            assert plans[index].Wait() is results[index]
            assert (results[index] == total(comm, 1009, turn + 10 * index)).all()
    for plan in plans:
        plan.Free()


@pytest.mark.parametrize("op", ["mean", "max", "lor", "maxloc"])
@pytest.mark.parametrize("dtype", [np.int32, np.float16, ">f8"])
def test_plans_convert_their_buffers_each_time(comm, op, dtype):
    array = np.zeros(50, dtype)
    with hpcreduce.allreduce_init(comm, array, op=op, timeout=60) as plan:
        for turn in range(3):
            array[:] = (np.arange(50) * 7 + comm.rank * 3 + turn) % 5
            plan.Start()
            found, wanted = plan.Wait(), hpcreduce.allreduce(comm, array, op=op, timeout=60)
            for ours, other in zip(np.atleast_2d(found), np.atleast_2d(wanted), strict=True):
                assert (ours == other).all()


def test_misuse_of_a_plan_is_refused(comm):
    plan = hpcreduce.allreduce_init(comm, np.ones(3), timeout=60)
    plan.Start()
    with pytest.raises(ValueError, match="active already"):
        plan.Start()
    with pytest.raises(ValueError, match="Wait comes before Free"):
        plan.Free()
    plan.Wait()
    plan.Free()
    for call in (plan.Start, plan.Test, plan.Wait):
        with pytest.raises(ValueError, match="was freed"):
            call()


@pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs a rank that does not come")
def test_a_handle_times_out(comm):
    if comm.rank == 0:
        hpcreduce.allreduce(comm, 1, timeout=60)
    else:
        hpcreduce.allreduce(comm, 1, timeout=60)
        handle = hpcreduce.iallreduce(comm, np.ones(10), algorithm="tree", timeout=0.3)
        with pytest.raises(hpcreduce.CollectiveTimeoutError, match=r"not finished after 0\.3 s"):
            handle.Wait()
        with pytest.raises(hpcreduce.CollectiveTimeoutError):
            handle.Test()
        with pytest.raises(hpcreduce.BrokenCommunicatorError):
            hpcreduce.allreduce(comm, 1)
    comm.Barrier()


def test_plans_leak_nothing(comm):
    """MPICH has room for about 2000 contexts and says so when a persistent request is left behind."""
    array = np.ones(3)
    for _ in range(1500):
        with hpcreduce.allreduce_init(comm, array, timeout=60) as plan:
            plan.Start()
            plan.Wait()
    assert not hpcreduce.runtime.wait.in_flight
