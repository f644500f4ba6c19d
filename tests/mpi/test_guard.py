"""A rank that fails under `hpcreduce.guard`, or in a call: the others get its traceback."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI
from outcomes import SECONDS, call, contribution, outcomes, recovered, total

import hpcreduce

SIZE = MPI.COMM_WORLD.size
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(SIZE == 1, reason="one rank has nobody to tell")]


def read_the_shard(error):
    raise error("shard 17 is damaged")


def told(comm, failed, error, work):
    """Do `work`; rank `failed` must end in its own error, all others in a PeerError with the traceback."""
    found = outcomes(comm, work)
    for rank, outcome in enumerate(found):
        assert outcome.seconds < SECONDS, found
        if rank == failed:
            assert (outcome.error, outcome.text) == (error.__name__, "shard 17 is damaged"), found
        else:
            assert outcome.error == "PeerError" and outcome.ranks == (failed,), found
            assert f"rank {failed} has failed:\nTraceback" in outcome.text, found
            assert f"{error.__name__}: shard 17 is damaged" in outcome.text, found
            assert "in read_the_shard" in outcome.text and "test_guard.py" in outcome.text, found
    return True


@pytest.mark.parametrize(
    ("algorithm", "count", "error"),
    [
        ("auto", 5, ValueError),
        ("mpi", 100_000, SystemExit),
        ("ring", 100_000, KeyboardInterrupt),
        ("tree", 5, SystemExit),
        ("auto", 100_000, ValueError),
    ],
)
def test_others_wait_in_a_call(comm, algorithm, count, error):
    failed = count % SIZE
    assert hpcreduce.allreduce(comm, 1) == SIZE

    def work():
        with hpcreduce.guard(comm):
            if comm.rank == failed:
                time.sleep(0.1)
                read_the_shard(error)
            call(comm, count=count, algorithm=algorithm)

    assert told(comm, failed, error, work)
    with pytest.raises(hpcreduce.BrokenCommunicatorError, match=r"recover\(\)"):
        hpcreduce.allreduce(comm, 1)
    assert recovered(comm)
    assert (call(comm, count=count, algorithm=algorithm) == total(comm, count)).all()


@pytest.mark.parametrize(
    ("kind", "error"),
    [("blocking", KeyboardInterrupt), ("nonblocking", ValueError), ("plan", SystemExit), ("related", ValueError)],
)
def test_others_are_in_their_own_code(comm, kind, error):
    """They learn it in their next call, also if they began an operation before."""
    array = contribution(comm, 30)
    plan = hpcreduce.allreduce_init(comm, array, timeout=20)
    comm.Barrier()

    def work():
        with hpcreduce.guard(comm):
            if comm.rank == SIZE - 1:
                read_the_shard(error)
            handle = hpcreduce.iallreduce(comm, array, algorithm="ring", timeout=20) if kind == "nonblocking" else None
            time.sleep(0.2)
            if kind == "plan":
                plan.Start()
                plan.Wait()
            elif kind == "related":
                hpcreduce.allgather(comm, array, timeout=20)
            else:
                handle.Wait() if handle else hpcreduce.allreduce(comm, array, timeout=20)

    assert told(comm, SIZE - 1, error, work)
    assert recovered(comm)


def test_first_use_and_all_is_well(comm):
    with hpcreduce.guard(comm, timeout=20):
        assert hpcreduce.allreduce(comm, 1) == SIZE
    with hpcreduce.guard(comm):
        pass
    assert hpcreduce.allreduce(comm, 1) == SIZE


def test_guards_within_guards(comm):
    """On one communicator, and on another: an error goes up through both, and is raised once."""
    other = comm.Dup()

    def work(own):
        with hpcreduce.guard(comm), hpcreduce.guard(other), hpcreduce.guard(comm):
            if comm.rank == 0:
                read_the_shard(ValueError)
            hpcreduce.allreduce(own, np.ones(5), timeout=20)

    assert told(comm, 0, ValueError, lambda: work(comm))
    found = outcomes(comm, lambda: hpcreduce.allreduce(other, 1, timeout=20))
    assert [outcome.error for outcome in found] == ["BrokenCommunicatorError"] * SIZE, found
    assert recovered(comm) and recovered(other)
    assert told(comm, 0, ValueError, lambda: work(other))
    assert recovered(comm) and recovered(other)
    other.Free()


def test_an_error_that_all_have_is_not_told_again(comm):
    def work():
        with hpcreduce.guard(comm):
            hpcreduce.allreduce(comm, np.ones(5 + (comm.rank == 0)), timeout=20)

    found = outcomes(comm, work)
    assert [outcome.error for outcome in found] == ["MismatchError"] * SIZE, found
    assert recovered(comm)


def test_an_error_that_is_caught_inside(comm):
    with hpcreduce.guard(comm):
        with contextlib.suppress(ValueError):
            read_the_shard(ValueError)
        assert hpcreduce.allreduce(comm, 1) == SIZE
    assert hpcreduce.allreduce(comm, 1) == SIZE


def test_a_long_text_is_told_without_its_middle(comm):
    """In many parts, on one of which no other message of that rank comes in between."""

    def work():
        with hpcreduce.guard(comm):
            if comm.rank == 0:
                raise ValueError("Grüße " * 5000 + "end")
            hpcreduce.allreduce(comm, 1, timeout=20)

    found = outcomes(comm, work)
    for outcome in found[1:]:
        assert outcome.error == "PeerError" and "in work" in outcome.text and "\n...\n" in outcome.text, found
        assert outcome.text.count("Grüße") > 500 and "Grüße end" in outcome.text and len(outcome.text) < 10_000
    assert recovered(comm)


def test_two_ranks_fail_at_once(comm):
    """Each has its own error, the others that of one of them."""
    failed = (0, 1)

    def work():
        with hpcreduce.guard(comm):
            if comm.rank in failed:
                read_the_shard(ValueError)
            hpcreduce.allreduce(comm, 1, timeout=20)

    found = outcomes(comm, work)
    assert [outcome.error for outcome in found] == ["ValueError"] * 2 + ["PeerError"] * (SIZE - 2), found
    assert recovered(comm)


@pytest.mark.parametrize("algorithm", ["tree", "recursive_doubling", "direct"])
def test_error_in_a_callable_on_one_rank(comm, algorithm):
    """Of those that call it at all; where it is not called, all is well."""

    def add(a, b):
        if comm.rank == 0:
            read_the_shard(ValueError)
        return a + b

    def work():
        hpcreduce.allreduce(comm, np.ones(SIZE), op=add, algorithm=algorithm, timeout=20)  # which may not need rank 0
        hpcreduce.allreduce(comm, 1, timeout=20)

    add.commutative = True
    assert told(comm, 0, ValueError, work)
    assert recovered(comm)


@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_interrupt_of_one_rank_that_waits(comm, algorithm):
    """Ctrl-C on one rank, while all but one wait."""
    assert hpcreduce.allreduce(comm, 1) == SIZE
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    try:
        if comm.rank == 0:
            timer.start()

        def work():
            if comm.rank == SIZE - 1 and SIZE > 2:
                time.sleep(0.5)
            elif comm.rank == 1 and SIZE == 2:
                time.sleep(0.4)
            hpcreduce.allreduce(comm, np.ones(50), algorithm=algorithm, timeout=20)

        found = outcomes(comm, work)
    finally:
        if comm.rank == 0:
            timer.join()
        signal.signal(signal.SIGINT, handler)
    assert [outcome.error for outcome in found] == ["KeyboardInterrupt"] + ["PeerError"] * (SIZE - 1), found
    assert all("rank 0 has failed" in outcome.text and "KeyboardInterrupt" in outcome.text for outcome in found[1:])
    assert recovered(comm)


def test_a_failure_ends_what_waits_for_other_calls(comm):
    """Handles in flight, and a rank that only tests its own."""

    def work():
        handle = hpcreduce.iallreduce(comm, np.ones(100_000), algorithm="ring", timeout=20)
        with hpcreduce.guard(comm):
            if comm.rank == 0:
                read_the_shard(ValueError)
            while comm.rank == 1 and not handle.Test():
                time.sleep(0.001)
            handle.Wait()
            hpcreduce.allreduce(comm, 1, timeout=20)

    assert told(comm, 0, ValueError, work)
    assert recovered(comm)
