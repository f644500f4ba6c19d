"""Programs that are right raise nothing, however slow a rank is and in whatever order it waits."""

import random
import time
import types

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from outcomes import call, contribution, outcomes, total

import hpcreduce
from hpcreduce.runtime import agreement, wait

SIZE = MPI.COMM_WORLD.size
pytestmark = pytest.mark.mpi
ALGORITHMS = ["auto", *hpcreduce.ALGORITHMS]
OWN = [name for name, row in hpcreduce.ALGORITHMS.items() if row.rounds]
COUNTS = [0, 1, 9, 3000, 80_000]

step = st.one_of(
    st.tuples(st.just("start"), st.sampled_from(COUNTS), st.sampled_from(["auto", *OWN])),
    st.tuples(st.just("block"), st.sampled_from(COUNTS), st.sampled_from(ALGORITHMS)),
    st.tuples(st.just("plans"), st.integers(1, 15), st.none()),
    st.tuples(st.sampled_from(["bcast", "reduce", "allgather", "reduce_scatter"]), st.sampled_from(COUNTS), st.none()),
)


class Run:
    """One rank's run of a program; what the ranks may do in different order is drawn for each of them."""

    def __init__(self, comm, seed):
        self.comms, self.draw = [comm.Dup(), comm.Dup()], random.Random(f"{seed} of rank {comm.rank}")
        self.open = {}  # what is started, and the result that it must have
        self.plans = []
        for own in self.comms:
            for count, algorithm in (9, "auto"), (3000, "ring"):
                array = np.zeros(count)
                plan = hpcreduce.allreduce_init(own, array, algorithm=algorithm, timeout=20)
                self.plans.append((plan, array))

    def do(self, own, kind, number, algorithm):
        """Make one step of the program."""
        self.dawdle()
        mine, wanted = contribution(own, number), total(own, number)
        if kind == "start":
            self.open[hpcreduce.iallreduce(own, mine, algorithm=algorithm, timeout=20)] = wanted
        elif kind == "plans":
            chosen = [pair for index, pair in enumerate(self.plans) if number >> index & 1]
            self.draw.shuffle(chosen)
            for plan, _ in chosen:
                if plan in self.open:  # on this rank; the others start it again as well
                    self.end(plan)
            for plan, array in chosen:
                array[:] = contribution(own, array.size)
                plan.Start()
                self.open[plan] = total(own, array.size)
        elif kind == "block":
            assert (call(own, count=number, algorithm=algorithm) == wanted).all()
        else:
            self.related(own, kind, number, wanted)
        while self.open and self.draw.random() < 0.4:
            self.end(self.draw.choice(list(self.open)))

    def related(self, own, kind, count, wanted):
        found = call(own, name=kind, count=count)
        if kind == "bcast":
            assert (found == np.arange(count) % 5 + 1).all()
        elif kind == "reduce":
            assert found is None if own.rank else (found == wanted).all()
        elif kind == "allgather":
            assert (found.sum(axis=0) == wanted).all()
        else:
            assert (found == wanted[slice(*hpcreduce.schedule.partition(count, own.size)[own.rank])]).all()

    def dawdle(self):
        """Be slow at times, now and then for longer than the others wait before they ask."""
        if self.draw.random() < 0.15:
            time.sleep(self.draw.choice([0.001, 0.005, 0.02, 0.08]))

    def end(self, handle):
        """Wait for one operation, or test it until it is complete."""
        wanted = self.open.pop(handle)
        if self.draw.random() < 0.5:
            while not handle.Test():
                time.sleep(0)
        assert (handle.Wait() == wanted).all()

    def finish(self):
        for handle in self.draw.sample(list(self.open), len(self.open)):
            self.end(handle)
            self.dawdle()
        for plan, _ in self.plans:
            plan.Free()
        for own in self.comms:
            own.Free()


@settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=30 if SIZE <= 3 else 12,
    phases=[Phase.generate],  # all ranks draw the same, as long as none of them goes its own way
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(st.tuples(st.booleans(), step), min_size=3, max_size=14), st.integers(0, 10**9))
def a_program(comm, steps, seed):
    def work():
        run = Run(comm, seed)
        for other, (kind, number, algorithm) in steps:
            run.do(run.comms[other], kind, number, algorithm)
        run.finish()

    found = outcomes(comm, work)
    assert [outcome.error for outcome in found] == [""] * SIZE, found


def test_random_programs(comm):
    """Handles, plans, blocking calls and related ones on two communicators, with results in any order."""
    a_program(comm)
    assert not wait.in_flight


def test_a_slow_rank_on_all_paths(comm):
    for index, algorithm in enumerate(ALGORITHMS):
        for name in ("allreduce", "iallreduce" if algorithm in ("auto", *OWN) else "allreduce_init"):
            count = (5, 100_000)[(index + (name == "allreduce")) % 2]
            if comm.rank == index % SIZE:
                time.sleep(0 if SIZE == 1 else 0.3 if index % 4 == 0 else 0.1)
            assert (call(comm, name=name, count=count, algorithm=algorithm) == total(comm, count)).all()


def test_a_rank_that_is_slow_for_a_second(comm):
    """In the middle of several operations, all in flight."""
    handles = [(count, hpcreduce.iallreduce(comm, contribution(comm, count), timeout=20)) for count in COUNTS]
    if comm.rank == SIZE - 1 and SIZE > 1:
        time.sleep(1)
    for count in COUNTS:
        assert (call(comm, count=count) == total(comm, count)).all()
        for name in "reduce", "bcast", "allgather", "reduce_scatter":
            call(comm, name=name, count=count)
    assert all((handle.Wait() == total(comm, count)).all() for count, handle in handles[::-1])


def test_a_rank_far_ahead(comm):
    """The root of many broadcasts may have made all of them before the others make the first."""
    if comm.rank > 0:
        time.sleep(0.3)
    arrays = [np.full(3, number + 0.5 * (comm.rank == 0)) for number in range(200)]
    for array in arrays:
        hpcreduce.bcast(comm, array, timeout=20)
    assert all((array == number + 0.5).all() for number, array in enumerate(arrays))
    assert (call(comm) == total(comm, 5)).all()


def test_no_messages_are_sent_while_all_is_well(comm):
    """Control messages start after a while without progress, which a busy machine may bring about: several tries."""
    assert hpcreduce.allreduce(comm, 1) == SIZE
    for _ in range(10):
        before = agreement.state(comm).control.sent
        for number in range(60):
            call(comm, count=COUNTS[number % 4], algorithm=ALGORITHMS[number % len(ALGORITHMS)])
            call(comm, name=("iallreduce", "bcast", "reduce", "allgather")[number % 4], count=9)
        if not any(comm.allgather(agreement.state(comm).control.sent - before)):
            return
    raise AssertionError("control messages are sent though nothing is wrong")


@pytest.fixture
def messages(monkeypatch):
    """Our own messages: bytes sent, and receives."""
    found = []

    def counted(private, *arguments, **options):
        def isend(buffer, peer, tag):
            found.append(buffer.nbytes)
            return private.Isend(buffer, peer, tag)

        def irecv(buffer, peer, tag):
            found.append("receive")
            return private.Irecv(buffer, peer, tag)

        return stream(types.SimpleNamespace(Isend=isend, Irecv=irecv), *arguments, **options)

    stream = hpcreduce.runtime.movers.Stream
    monkeypatch.setattr(hpcreduce.runtime.movers, "Stream", counted)
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_check_costs_no_message(comm, algorithm, messages):
    """Neither where we send ourselves nor, from the second call of a kind on, where the library does.

    Large arrays of the library's, which a table may choose for ``auto``, are for the next test.
    """
    assert hpcreduce.allreduce(comm, 1) == SIZE
    for count in (0, 5, 3000, 50_000) if algorithm in ("mpi", "auto") else (0, 5, 3000, 300_000):
        sent = []
        for check in True, False:
            assert (call(comm, count=count, algorithm=algorithm, check=check) == total(comm, count)).all()
            messages.clear()
            assert (call(comm, count=count, algorithm=algorithm, check=check) == total(comm, count)).all()
            sent.append(list(messages))
        assert sorted(map(str, sent[0])) == sorted(map(str, sent[1]))
        assert algorithm != "mpi" or not sent[0]


def test_the_check_of_what_the_library_runs_in_place_costs_a_round(comm, messages):
    """Large arrays with its own algorithm: all ranks meet before it, unless the check is left out."""
    for check in True, False:
        assert (call(comm, count=100_000, algorithm="mpi", check=check) == total(comm, 100_000)).all()
        assert bool(messages) == (check and SIZE > 1)
        assert all(each in (8, "receive") for each in messages)
        messages.clear()
