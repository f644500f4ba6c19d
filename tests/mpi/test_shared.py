"""Sums in memory that the ranks of a node share, and arrays in it."""

import gc
import itertools
import os
import platform
import random
import time

import numpy as np
import pytest
from mpi4py import MPI
from outcomes import all_raise, call, contribution, outcomes, recovered, total

import hpcreduce
from hpcreduce import lookup
from hpcreduce.runtime import agreement, meeting, memory, rooms, shared, state

SIZE = MPI.COMM_WORLD.size
COUNTS = [0, 1, SIZE - 1, 5, 1009, 40_000, 100_003]
pytestmark = pytest.mark.mpi


@pytest.fixture
def fresh(comm):
    """Return a communicator of this test's own."""
    made = comm.Dup()
    yield made
    made.Free()


@pytest.fixture
def small(monkeypatch):
    """Let small arrays take the ways of large ones."""
    monkeypatch.setattr(rooms, "REDUNDANT", 64 * SIZE)
    monkeypatch.setattr(rooms, "PIECE", 512)
    monkeypatch.setattr(rooms, "SMALLEST", 512)
    monkeypatch.setattr(shared, "BLOCK", 56)


def names():
    """Return the files for memory to be shared that stay there; those of other jobs on this machine do not either."""
    deadline = time.monotonic() + 5
    while found := [name for name in os.listdir(memory.FOLDER) if name.startswith("hpcreduce-")]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("algorithm", ["auto", "shared"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "longdouble"])
def test_arrays_are_reduced_where_they_are(fresh, dtype, algorithm):
    for count in COUNTS:
        array = hpcreduce.empty(fresh, count, dtype, timeout=20)
        assert array.shape == (count,) and array.dtype == dtype
        for _ in range(3):
            array[:] = contribution(fresh, count, dtype)
            hpcreduce.allreduce(fresh, array, array, algorithm=algorithm, timeout=20)
            assert (array == total(fresh, count, dtype)).all()
        assert (hpcreduce.allreduce(fresh, array, op="mean", algorithm=algorithm, timeout=20) == array).all()
        hpcreduce.free(array)


def test_zeros_and_copies(fresh):
    array = hpcreduce.zeros(fresh, (3, 700), np.float32, timeout=20)
    assert array.shape == (3, 700) and array.dtype == np.float32 and not array.any()
    given = contribution(fresh, 2100).reshape(700, 3)
    copy = hpcreduce.share(given.T, fresh, timeout=20)
    assert (copy == given.T).all() and copy.flags.c_contiguous and not np.may_share_memory(copy, given)
    hpcreduce.allreduce(fresh, copy, copy, "mean")
    assert (copy == total(fresh, 2100).reshape(700, 3).T / SIZE).all()
    world = hpcreduce.share([comm_rank := MPI.COMM_WORLD.rank])
    assert world.tolist() == [comm_rank]
    hpcreduce.free(world)


@pytest.mark.parametrize("algorithm", ["auto", "shared"])
def test_slices_anywhere(fresh, algorithm):
    """At the same place of all arrays, at another one on each rank, in other arrays, or in no such array."""
    count, part = 3100, 1003
    first, second = (hpcreduce.zeros(fresh, count, timeout=20) for _ in range(2))
    rank = fresh.rank
    for buffer in (
        first[7 : 7 + part],
        first[rank : rank + part],
        (first, second)[rank % 2][:part],
        np.empty(part) if rank == SIZE - 1 else second[-part:],
        np.empty(part) if rank == 0 else first[:part],
        first[: 3 * part : 3],
    ):
        first.fill(-1)
        second.fill(-1)
        buffer[:] = contribution(fresh, part)
        hpcreduce.allreduce(fresh, buffer, buffer, algorithm=algorithm, timeout=20)
        assert (buffer == total(fresh, part)).all()
        buffer[:] = -1
        assert (first == -1).all() and (second == -1).all()


def test_without_a_message(fresh, monkeypatch):
    """Node-shared arrays of any size, and other arrays with the algorithm of that name."""
    array, private = hpcreduce.empty(fresh, 300_000, timeout=20), np.empty(300_000)
    for buffer, algorithm in (array, "auto"), (array[:1000], "auto"), (private, "shared"), (private[:9], "shared"):
        buffer[:] = contribution(fresh, len(buffer))
        plan = hpcreduce.allreduce_init(fresh, buffer, buffer, algorithm=algorithm, timeout=20)
        stream, fence = plan._stream, []
        assert isinstance(stream, shared.Redundant if len(buffer) == 9 else shared.Shared)
        if getattr(stream, "_otherwise", None):
            monkeypatch.setattr(stream._otherwise, "start", fence.append)
        plan.Start()
        plan.Wait()
        assert not fence and (buffer == total(fresh, len(buffer))).all()


def test_plans_in_any_order(fresh):
    arrays = [hpcreduce.empty(fresh, 2000, timeout=20) for _ in range(3)] + [np.empty(2000), np.empty(10)]
    plans = [hpcreduce.allreduce_init(fresh, array, array, algorithm="shared", timeout=20) for array in arrays]
    chance = random.Random(fresh.rank)
    for turn in range(20):
        for array in arrays:
            array[:] = contribution(fresh, len(array)) + turn * fresh.rank
        order = chance.sample(range(5), 5)
        for index in order:
            plans[index].Start()
        for index in chance.sample(order, 5):
            assert plans[index].Test() or (plans[index].Wait() is arrays[index])
        for array in arrays:
            assert (array == total(fresh, len(array)) + turn * SIZE * (SIZE - 1) // 2).all()
    for plan in plans:
        plan.Free()
    again = hpcreduce.allreduce_init(fresh, arrays[3], arrays[3], algorithm="shared", timeout=20)
    assert again._borrowed in [room for rooms in agreement.state(fresh).rooms._shared.values() for room in rooms]
    assert sum(len(rooms) for rooms in agreement.state(fresh).rooms._shared.values()) == 5


def test_order_is_kept_and_operands_are_left_alone(fresh, small):
    """By a function that does not commute, and by an MPI.Op, which may write to its second operand."""
    given = np.array([[fresh.rank * 7 + index, index + 1] for index in range(201)], dtype=np.int64).reshape(-1)

    def left(a, b):
        return a

    def right(a, b):
        return b.copy()

    def spoil(a, b):
        result = a + b
        b[...] = -77
        return result

    def add(a, b, datatype):
        np.frombuffer(b, np.int64)[:] += np.frombuffer(a, np.int64)

    mine = MPI.Op.Create(add, commute=True)
    for count in 3, 402:
        part = given[:count]
        everyone = fresh.allgather(part)
        for op, wanted in (left, everyone[0]), (right, everyone[-1]), (spoil, sum(everyone)), (mine, sum(everyone)):
            assert (hpcreduce.allreduce(fresh, part, op=op, algorithm="shared", timeout=20) == wanted).all()
    mine.Free()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_stress(fresh, small, monkeypatch, machine):
    """Thousands of sums of random sizes by ranks that are late at random: each must see what the others wrote.

    On another processor fences are in between; this one does not need them, but they must work.
    """
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert (memory.fence() is None) == (machine == "x86_64")
    same, own = random.Random(5), random.Random(fresh.rank)
    arrays = [hpcreduce.empty(fresh, 400, timeout=20), np.empty(400)]
    plans = {}
    deadline = time.monotonic() + 3
    for turn in range(3000 if SIZE <= 2 else 400):
        if not turn % 50 and any(fresh.allgather(time.monotonic() > deadline)):
            break
        count, start = same.choice([1, 7, 64, 129, 300]), same.randrange(100)
        buffer = arrays[own.randrange(2)][start : start + count]
        seed = same.random()
        buffer[:] = np.arange(count) * (fresh.rank + 1) + seed * 2**20 // 1
        if own.random() < 0.02:
            time.sleep(own.random() * 2e-3)
        if turn % 3:
            hpcreduce.allreduce(fresh, buffer, buffer, algorithm="shared", timeout=20)
        else:
            key = count, start
            if key not in plans:
                plans[key] = hpcreduce.allreduce_init(fresh, buffer, buffer, algorithm="shared", timeout=20)
            else:
                hpcreduce.allreduce(fresh, buffer, buffer, algorithm="shared", timeout=20)
        if turn % 3 or key in plans:
            wanted = np.arange(count) * (SIZE * (SIZE + 1) // 2) + (seed * 2**20 // 1) * SIZE
            if turn % 3:
                assert (buffer == wanted).all(), turn


def test_an_array_outlives_its_communicator(comm):
    made = comm.Dup()
    array = hpcreduce.share(contribution(comm, 1000), made, timeout=20)
    made.Free()
    comm.Barrier()
    assert (array == contribution(comm, 1000)).all()
    array[:] += 1
    with pytest.raises(ValueError, match="not node-shared"):
        hpcreduce.free(array)


def test_memory_is_given_back(fresh):
    """Files have no names once all have them; what was freed is not mapped any more, but for the array itself."""

    def used():
        gc.collect()
        with open("/proc/self/maps") as file:
            return sum(f"{memory.FOLDER}/hpcreduce-" in line for line in file)

    before = used()
    for _ in range(3):
        array = hpcreduce.zeros(fresh, 1000, timeout=20)
        assert used() == before + SIZE
        hpcreduce.free(array)
        assert used() == before + 1
        del array
        assert used() == before
    array, other = hpcreduce.zeros(fresh, 1000, timeout=20), fresh.Dup()
    hpcreduce.allreduce(other, array, array, timeout=20)
    hpcreduce.zeros(other, 1000, timeout=20)
    assert used() > before + 2 * SIZE
    other.Free()
    assert used() == before + SIZE
    assert not any(fresh.allgather(names()))


def test_ranks_that_ask_for_different_arrays(fresh):
    text = (
        all_raise(fresh, lambda: hpcreduce.empty(fresh, 5 + (fresh.rank == SIZE - 1), timeout=20)) if SIZE > 1 else ""
    )
    assert SIZE == 1 or ("empty(shape (6,), dtype float64)" in text and "test_shared.py" in text)
    assert SIZE == 1 or recovered(fresh)
    assert hpcreduce.empty(fresh, 5).shape == (5,)


def test_arrays_after_recovery(fresh):
    array = hpcreduce.share(contribution(fresh, 3000), fresh, timeout=20)
    if SIZE > 1:
        all_raise(fresh, lambda: hpcreduce.allreduce(fresh, array[fresh.rank :], array[fresh.rank :], timeout=20))
        assert recovered(fresh)
    array[:] = contribution(fresh, 3000)
    hpcreduce.allreduce(fresh, array, array, timeout=20)
    assert (array == total(fresh, 3000)).all()


def test_no_room(fresh, monkeypatch):
    """Of one rank: all do without, and say so where it was asked for."""
    assert hpcreduce.allreduce(fresh, 1) == SIZE
    if fresh.rank == SIZE - 1:
        monkeypatch.setattr(memory, "create", lambda nbytes: (bytes(memory.NAME), None))
    found = outcomes(fresh, lambda: hpcreduce.empty(fresh, 5))
    assert [outcome.error for outcome in found] == ["MemoryError"] * SIZE, found
    assert all(f"rank {SIZE - 1} cannot share 40 bytes" in outcome.text for outcome in found), found
    with hpcreduce.allreduce_init(fresh, array := contribution(fresh, 30), array) as plan:
        plan.Start()
        assert (plan.Wait() == total(fresh, 30)).all()
    for count in 5, 20_000:
        assert (hpcreduce.allreduce(fresh, contribution(fresh, count)) == total(fresh, count)).all()
    with pytest.raises(ValueError, match="can share memory in /dev/shm"):
        hpcreduce.allreduce(fresh, np.ones(30_000), algorithm="shared")
    assert not any(fresh.allgather(names()))


@pytest.mark.parametrize("name", ["never", "always"])
def test_no_room_on_a_host_without_the_folder(fresh, monkeypatch, name):
    monkeypatch.setattr(memory, "FOLDER", "/dev/shm" if name == "never" and fresh.rank else "/nowhere")
    assert hpcreduce.allreduce(fresh, 1) == SIZE
    assert not agreement.state(fresh).shareable
    with pytest.raises(MemoryError):
        hpcreduce.empty(fresh, 5)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((5, object), TypeError, "without objects"),
        ((-1,), ValueError, "must not be negative"),
        (("five",), TypeError, "whole number"),
        ((2.5,), TypeError, "whole number"),
        ((5, "no such type"), TypeError, "no such type"),
    ],
)
def test_bad_input(comm, arguments, error, words):
    with pytest.raises(error, match=words):
        hpcreduce.empty(comm, *arguments)


def test_bad_input_of_others(comm):
    with pytest.raises(TypeError, match=r"share\(array, comm\)"):
        hpcreduce.share(comm, np.ones(3))
    with pytest.raises(TypeError, match="found list"):
        hpcreduce.free([1.0])
    with pytest.raises(ValueError, match="not node-shared"):
        hpcreduce.free(np.ones(3))
    with pytest.raises(ValueError, match="allreduce_init"):
        hpcreduce.iallreduce(comm, np.ones(3), algorithm="shared")
    assert hpcreduce.allreduce(comm, 1) == SIZE


@pytest.mark.skipif(SIZE < 4, reason="two nodes of two ranks")
@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0)])
def test_inside_of_nodes(comm, monkeypatch, nodes):
    """Of several with equally many ranks: hierarchical stages in their memory, piece by piece."""
    monkeypatch.setattr(state, "node_map", lambda hosts: nodes)
    monkeypatch.setattr(rooms, "ACROSS_PIECE", 1 << 14)
    four = comm.Split(0 if comm.rank < 4 else MPI.UNDEFINED)
    if four == MPI.COMM_NULL:
        return
    for count, algorithm in itertools.product((600, 5000, 50_000), ("auto", "hierarchical", "hierarchical:ring")):
        for turn in range(3):
            array = contribution(four, count) + turn
            plan = hpcreduce.allreduce_init(four, array, array, algorithm=algorithm, segment=1000, timeout=20)
            assert isinstance(plan._stream, shared.Shared) or algorithm == "auto"
            for _ in range(2):
                array[:] = contribution(four, count) + turn
                plan.Start()
                plan.Wait()
                assert (array == total(four, count) + 4 * turn).all()
            assert (call(four, count=count, algorithm=algorithm) == total(four, count)).all()
    four.Free()


@pytest.mark.skipif(SIZE == 1, reason="one rank waits for nobody")
@pytest.mark.parametrize(("algorithm", "count"), [("shared", 5), ("shared", 20_000), ("mpi", 20_000)])
def test_who_is_waited_for(fresh, algorithm, count):
    """And a rank that comes after the others have given up gets no result either."""
    absent = SIZE - 1
    assert (call(fresh, count=count, algorithm=algorithm) == total(fresh, count)).all()

    def work():
        if fresh.rank == absent:
            time.sleep(1.2)
        call(fresh, count=count, algorithm=algorithm, timeout=0.3)

    found = outcomes(fresh, work)
    assert [outcome.error for outcome in found] == ["CollectiveTimeoutError"] * SIZE, found
    for outcome in found[:-1]:
        assert f"waiting in node-shared memory for rank {absent}" in outcome.text, outcome.text
    assert all(outcome.ranks == (absent,) for outcome in found), found
    assert recovered(fresh)
    assert (call(fresh, count=count, algorithm=algorithm) == total(fresh, count)).all()


@pytest.mark.parametrize("sharing", [False, True])
def test_plans_never_meet_before_the_library(fresh, monkeypatch, sharing):
    """Ranks could enter two of them in different orders; and ranks that differ are told apart in each start."""
    array = hpcreduce.empty(fresh, 200_000, timeout=20) if sharing else np.empty(200_000)
    own = agreement.state(fresh)
    for nbytes in 8, 8 * 20_000, 8 * 200_000:
        place = lookup.Place("any", SIZE, 1)
        setting = lookup.Setting("mpi")
        monkeypatch.setattr(
            own, "tables", (lookup.Table("test", (lookup.Entry(place, 8, 0, setting),)),), raising=False
        )
        buffer = array.view(np.int64)[: nbytes // 8]
        for op in "sum", "bxor":
            fused = hpcreduce.Fused(fresh, [((len(buffer),), np.int64)], op=op, timeout=20)
            for plan in hpcreduce.allreduce_init(fresh, buffer, buffer, op, timeout=20), fused._plans[0]:
                stream = plan._stream
                assert (stream or plan._head) and not isinstance(stream, meeting.Met)
                assert not isinstance(getattr(stream, "_otherwise", None), meeting.Met)
            again = hpcreduce.allreduce_init(fresh, buffer, buffer, op, timeout=20)
            for given, one in (buffer, again), (fused.arrays[0], fused):
                given[:] = contribution(fresh, len(given), np.int64)
                one.Start()
                one.Wait()
                if op == "sum":
                    assert (given == total(fresh, len(given), np.int64)).all()


def test_no_room_for_many_arrays(fresh, monkeypatch):
    assert hpcreduce.allreduce(fresh, 1) == SIZE
    if fresh.rank == SIZE - 1:
        monkeypatch.setattr(memory, "create", lambda nbytes: (bytes(memory.NAME), None))
    with hpcreduce.Fused(fresh, [contribution(fresh, 30), contribution(fresh, 9)], op="max", timeout=20) as fused:
        fused.Start()
        assert [result.max() for result in fused.Wait()] == [5 * SIZE, 5 * SIZE]
    given = contribution(fresh, 20_000)
    (result,) = hpcreduce.allreduce_many(fresh, [given], op="max", timeout=20)
    assert (result == given / (fresh.rank + 1) * SIZE).all()


def test_the_drop_in_reduces_arrays_where_they_are(fresh):
    comm = hpcreduce.Intracomm(fresh, timeout=20)
    array = hpcreduce.share(contribution(fresh, 3000), comm)
    comm.Allreduce(MPI.IN_PLACE, array)
    assert (array == total(fresh, 3000)).all()
    assert any(call.where_they_are for call in agreement.state(comm).calls.values())
