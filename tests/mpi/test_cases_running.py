"""Running `hpcreduce.allreduce` again and again, on many communicators and threads, and stopping it.

A test named with an id holds a case from the project's list of faults that were reported in public. All ranks make the
same calls, but where a test is about a rank that does not come; every wait has a time-out.
"""

import functools
import gc
import os
import signal
import threading
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mpi4py import MPI

import hpcreduce
from hpcreduce.runtime import agreement
from hpcreduce.runtime.state import CALLS

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("entry")]
ALGORITHMS = ["auto", *hpcreduce.ALGORITHMS]
OWN = [name for name, row in hpcreduce.ALGORITHMS.items() if row.rounds]
allreduce = functools.partial(hpcreduce.allreduce, timeout=60)
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def for_every_algorithm(test):
    """Run a test for one algorithm after the other, which takes less time than a test for each."""

    def run(comm):
        for algorithm in ALGORITHMS:
            test(comm, algorithm)

    return run


def contribution(rank, count, seed=0):
    return (rank + 1.0) * (np.arange(count) + 1) + rank + seed


def total(size, count, seed=0):
    return size * (size + 1) // 2 * (np.arange(count) + 1.0) + size * (size - 1) // 2 + size * seed


def works(comm, **options):
    """Whether a small call on `comm` gives what it should."""
    return (allreduce(comm, contribution(comm.rank, 9), **options) == total(comm.size, 9)).all()


@every_algorithm
def test_C15_repeated_calls(comm, algorithm):
    """Nothing of one call is left for the next: lengths cycle, values depend on the number of the call."""
    for number in range(500 if comm.size < 4 else 120):
        count = (0, 1, 2, 7, 4096, 100003)[number % 6]
        result = allreduce(comm, contribution(comm.rank, count, number), algorithm=algorithm)
        assert (result == total(comm.size, count, number)).all(), f"call {number}"


def test_C15_calls_of_all_kinds_in_turn(comm):
    for number in range(60):
        algorithm, segment = ALGORITHMS[number % len(ALGORITHMS)], (None, 64, 1000)[number % 3]
        mine = contribution(comm.rank, 501, number).astype((np.float64, np.int64, np.complex128)[number // 4 % 3])
        out = mine if number % 5 == 0 else None
        result = allreduce(comm, mine, out, algorithm=algorithm, segment=segment)
        assert (result == total(comm.size, 501, number)).all(), f"call {number}"


@for_every_algorithm
def test_C18_parts_of_a_communicator(comm, algorithm):
    """Even and odd ranks reduce at the same time, and not equally often."""
    half = comm.Split(comm.rank % 2)
    for _ in range(3 + 2 * (comm.rank % 2)):
        assert allreduce(half, comm.rank, algorithm=algorithm) == sum(range(comm.rank % 2, comm.size, 2))
    assert works(half, algorithm=algorithm) and works(comm, algorithm=algorithm)
    half.Free()


@for_every_algorithm
def test_C18_reversed_ranks(comm, algorithm):
    """The ranks of the communicator that was passed count, in their order."""
    back = comm.Split(0, key=-comm.rank)
    assert back.rank == comm.size - 1 - comm.rank
    assert works(back, algorithm=algorithm)
    if algorithm == "auto" or (algorithm in OWN and hpcreduce.ALGORITHMS[algorithm].keeps_order):
        first = allreduce(back, contribution(comm.rank, 9), op=lambda a, b: a, algorithm=algorithm)
        assert (first == contribution(comm.size - 1, 9)).all()
    if algorithm != "mpi":
        assert allreduce(back, comm.rank, op="maxloc", algorithm=algorithm) == (comm.size - 1, 0)
    back.Free()


def test_C18_communicators_with_a_topology(comm):
    for shaped in (comm.Create_cart([comm.size], [True]), comm.Create_dist_graph_adjacent([], [])):
        assert works(shaped)
        shaped.Free()


@every_algorithm
def test_H05_arrays_beyond_any_buffering(comm, algorithm):
    """Two million numbers: a send before its receive would stop here."""
    count = 2_000_000
    array = contribution(comm.rank, count)
    allreduce(comm, MPI.IN_PLACE, array, algorithm=algorithm)
    assert (array == total(comm.size, count)).all()


def test_H06_rank_outside_the_group(comm):
    outside = comm.rank == comm.size - 1
    group = comm.Split(MPI.UNDEFINED if outside else 0)
    start = time.monotonic()
    if outside:
        assert group == MPI.COMM_NULL
        with pytest.raises(ValueError, match=r"COMM_NULL.*not a member"):
            hpcreduce.allreduce(group, 1.0)
        assert time.monotonic() - start < 1
    else:
        assert works(group)
        group.Free()
    assert works(comm)


def test_H08_many_calls(comm):
    for number in range(5000 if comm.size < 3 else 500):
        assert allreduce(comm, number + comm.rank) == comm.size * number + comm.size * (comm.size - 1) // 2


def test_H08_communicators(comm):
    """The private duplicates go with the user's communicator. On two ranks test_leaks makes 5000 of them."""
    for number in range(800 if comm.size == 1 else 150):  # three each, and libraries have some 2000, or 65500
        fresh = comm.Dup()
        assert allreduce(fresh, comm.rank, algorithm=ALGORITHMS[number % 2]) == comm.size * (comm.size - 1) // 2
        fresh.Free()


def test_state_goes_with_its_communicator(comm):
    fresh = comm.Dup()
    assert works(fresh, algorithm="ring")
    state = weakref.ref(agreement.state(fresh))
    assert agreement.state(MPI.Intracomm(fresh)) is state()  # another object, the same communicator
    fresh.Free()
    gc.collect()
    assert state() is None
    assert works(comm)


@for_every_algorithm
def test_P01_nothing_is_pickled(comm, algorithm):
    def refuse(*_):
        raise AssertionError("an array was pickled")

    mine, wanted = contribution(comm.rank, 131072), total(comm.size, 131072)
    MPI.pickle.__init__(refuse, refuse)
    try:
        with pytest.raises(AssertionError):
            MPI.pickle.dumps(mine)
        result = allreduce(comm, mine, algorithm=algorithm)
    finally:
        MPI.pickle.__init__()
    assert (result == wanted).all()


@pytest.mark.parametrize("algorithm", OWN)
def test_P04_bytes_that_are_sent(comm, algorithm, monkeypatch):
    """As many as the algorithm's row in the table says; for a ring 2(p-1)/p of the array, but for rounding."""
    sent = []

    def counted(private, *arguments, **options):
        def isend(buffer, peer, tag):
            sent.append(buffer.nbytes)
            return private.Isend(buffer, peer, tag)

        return stream(types.SimpleNamespace(Isend=isend, Irecv=private.Irecv), *arguments, **options)

    stream = hpcreduce.runtime.movers.Stream
    monkeypatch.setattr(hpcreduce.runtime.movers, "Stream", counted)
    count = 1_000_000
    result = allreduce(comm, contribution(comm.rank, count), algorithm=algorithm)
    assert (result == total(comm.size, count)).all()
    assert sum(sent) == 8 * hpcreduce.ALGORITHMS[algorithm].volume(comm.rank, comm.size, count)
    if algorithm == "ring":
        assert abs(sum(sent) - 2 * (comm.size - 1) / comm.size * 8 * count) <= 16
        assert comm.size == 1 or len(sent) > 2 * (comm.size - 1)  # chunks are cut into segments


def test_slow_rank_is_waited_for(comm):
    for algorithm in ALGORITHMS:
        if comm.rank == ALGORITHMS.index(algorithm) % comm.size:
            time.sleep(0.1)
        assert works(comm, algorithm=algorithm)


def others(comm, absent):
    """Whether this rank takes part in a call to which rank `absent` does not come."""
    if comm.size == 1:
        pytest.skip("one rank waits for nobody")
    return comm.rank != absent


def is_broken(comm):
    with pytest.raises(hpcreduce.BrokenCommunicatorError, match=r"earlier operation failed.*recover.*comm\.Dup"):
        hpcreduce.allreduce(comm, 1, timeout=60)
    return True


def is_replaced_by_a_duplicate(comm):
    fresh = comm.Dup()
    assert all(works(fresh, algorithm=algorithm) for algorithm in ALGORITHMS)
    fresh.Free()
    return True


@pytest.mark.parametrize(
    ("algorithm", "count"), [("auto", 5), ("ring", 5), ("ring", 300_000), ("tree", 300_000), ("mpi", 300_000)]
)
def test_timeout(comm, algorithm, count):
    """The ranks that wait stop in time, say so, and can go on with a duplicate."""
    absent = (count + len(algorithm)) % comm.size
    assert works(comm)
    if others(comm, absent):
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=rf"^rank {comm.rank}, .*not finished after 0\.2 s, ") as raised:
            hpcreduce.allreduce(comm, contribution(comm.rank, count), algorithm=algorithm, timeout=0.2)
        assert raised.type is hpcreduce.CollectiveTimeoutError
        assert 0.2 <= time.monotonic() - start < 2.2
        assert is_broken(comm)
    assert is_replaced_by_a_duplicate(comm)


def test_timeout_of_a_rank_that_comes_too_late(comm):
    """What the others have sent for the call that they gave up does not get into any later one."""
    assert works(comm)
    mine = np.full(5, 1e9)
    if others(comm, 0):
        with pytest.raises(hpcreduce.CollectiveTimeoutError):
            hpcreduce.allreduce(comm, mine, algorithm="ring", timeout=0.3)
    comm.Barrier()
    if comm.rank == 0:
        with pytest.raises(hpcreduce.CollectiveTimeoutError):
            hpcreduce.allreduce(comm, mine, algorithm="ring", timeout=0.3)
    assert is_broken(comm)
    assert is_replaced_by_a_duplicate(comm)


def test_timeout_at_the_first_use(comm):
    lost = comm.Dup()  # not freed: what was begun on it stays open
    if others(comm, comm.size - 1):
        start = time.monotonic()
        with pytest.raises(hpcreduce.CollectiveTimeoutError, match=f"rank {comm.rank}: first use"):
            hpcreduce.allreduce(lost, 1, timeout=0.5)
        assert 0.5 <= time.monotonic() - start < 2.5
        with pytest.raises(hpcreduce.BrokenCommunicatorError):
            hpcreduce.allreduce(lost, 1, timeout=60)
    assert works(comm)


def test_timeout_from_the_environment(comm, monkeypatch):
    monkeypatch.setenv("HPCREDUCE_TIMEOUT", "0.25")
    assert works(comm)
    monkeypatch.setenv("HPCREDUCE_TIMEOUT", "wrong, but read once for each communicator")
    if others(comm, 0):
        with pytest.raises(hpcreduce.CollectiveTimeoutError, match=r"not finished after 0\.25 s"):
            hpcreduce.allreduce(comm, 1)


@pytest.mark.parametrize("algorithm", ["auto", "ring", "tree"])
def test_interrupt_from_the_keyboard(comm, algorithm):
    """It ends the wait of the rank that gets it, and is told to the others that wait."""
    assert works(comm)
    absent = ALGORITHMS.index(algorithm) % comm.size
    if others(comm, absent):
        mine = contribution(comm.rank, 9)
        if comm.rank == (absent + 1) % comm.size:
            interrupted(lambda: hpcreduce.allreduce(comm, mine, algorithm=algorithm, timeout=60))
        else:
            with pytest.raises(hpcreduce.PeerError, match="KeyboardInterrupt"):
                hpcreduce.allreduce(comm, mine, algorithm=algorithm, timeout=60)
        assert is_broken(comm)
    assert is_replaced_by_a_duplicate(comm)


def interrupted(work):
    """Interrupt this rank in `work`."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    try:
        start = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            work()
        assert time.monotonic() - start < 2
    finally:
        timer.join()
        signal.signal(signal.SIGINT, handler)


def test_error_in_a_callable(comm):
    """Goes up on the ranks where it happens; the others get it as PeerError, and the communicator is spoilt for all."""

    def divide(a, b):
        raise ZeroDivisionError("by the caller's own function")

    if others(comm, None):
        with pytest.raises((ZeroDivisionError, hpcreduce.PeerError), match="by the caller's own function") as raised:
            hpcreduce.allreduce(comm, 1.0, op=divide, timeout=60)
        assert raised.type is ZeroDivisionError or comm.rank > 0
        assert is_broken(comm)
    assert is_replaced_by_a_duplicate(comm)


def test_callables_of_one_name_are_told_apart(comm):
    """The second one must not run what was prepared for the first."""
    mine = contribution(comm.rank, 9)
    for _ in range(2):
        assert (allreduce(comm, mine, op=lambda a, b: a) == contribution(0, 9)).all()
        assert (allreduce(comm, mine, op=lambda a, b: b) == contribution(comm.size - 1, 9)).all()
        assert (allreduce(comm, mine, op=lambda a, b: a + b) == total(comm.size, 9)).all()


def needs_threads():
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("the MPI library does not take calls from several threads")


@pytest.mark.parametrize("algorithm", ["auto", *OWN])
def test_threads_on_different_communicators(comm, algorithm):
    needs_threads()

    def reduce(own, number):
        for turn in range(10):
            result = allreduce(own, contribution(own.rank, 1009, number + turn), algorithm=algorithm)
            assert (result == total(own.size, 1009, number + turn)).all()

    communicators = [comm.Dup() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(reduce, own, 100 * number) for number, own in enumerate(communicators)]:
            future.result(timeout=60)
    for own in communicators:
        own.Free()


@pytest.mark.parametrize("first", [False, True])
def test_second_thread_on_one_communicator(comm, first):
    """It gets an error, and the call that is going on is not disturbed; also while the communicator is first used."""
    needs_threads()
    assert first or works(comm)
    refused = []

    def call():
        try:
            hpcreduce.allreduce(comm, 1, timeout=60)
        except Exception as error:
            refused.append(error)

    if others(comm, 0):
        timer = threading.Timer(0.2, call)
        timer.start()
        assert works(comm, algorithm="ring")
        timer.join()
    else:
        time.sleep(0.6)
        assert works(comm, algorithm="ring")
    assert works(comm)
    if comm.rank > 0:
        assert [type(error) for error in refused] == [hpcreduce.HpcreduceError]
        assert "another thread" in str(refused[0])


def test_prepared_calls_are_bounded(comm):
    """More kinds of call than are kept, twice: what was dropped is prepared again."""
    kinds = range(CALLS + 10)
    state = agreement.state(comm)
    for turn in range(2):
        for count in kinds:
            result = allreduce(comm, contribution(comm.rank, count, turn), algorithm=OWN[count % len(OWN)])
            assert (result == total(comm.size, count, turn)).all()
            assert len(state.calls) <= CALLS
    assert len(state.calls) == CALLS


def test_prepared_calls_are_used_again(comm):
    """The least recently used one is dropped, not the one that is used all the time."""
    state = agreement.state(comm)
    assert works(comm, algorithm="ring")
    (often,) = state.calls.values()
    for count in range(10, CALLS + 20):
        allreduce(comm, contribution(comm.rank, count), algorithm="tree")
        assert works(comm, algorithm="ring")
    assert any(call is often for call in state.calls.values())


@for_every_algorithm
def test_arrays_are_not_kept_alive(comm, algorithm):
    def call(make):
        mine, out, both = (make(contribution(comm.rank, 4001)) for _ in range(3))
        result = allreduce(comm, mine, algorithm=algorithm)
        allreduce(comm, mine, out, algorithm=algorithm)
        allreduce(comm, MPI.IN_PLACE, both, algorithm=algorithm)
        return [weakref.ref(array) for array in (mine, out, both, result)]

    foreign, strided = (lambda array: np.array(array, ">f8")), (lambda array: np.array([array, array]).T)
    references = call(np.array) + call(foreign) + call(strided)
    gc.collect()
    assert [reference() for reference in references] == [None] * 12
