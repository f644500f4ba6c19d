"""Ranks that make different calls: every rank gets the same error, in time, and none a number.

A test named with an id holds a case from the project's list of faults that were reported in public.
"""

import functools
import itertools
import random

import numpy as np
import pytest
from mpi4py import MPI
from outcomes import all_raise, call, call_and_next, contribution, outcomes, recovered, total

import hpcreduce
from hpcreduce.schedule import Send, Span

SIZE = MPI.COMM_WORLD.size
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")]
allreduce = functools.partial(hpcreduce.allreduce, timeout=20)
ALGORITHMS = ["auto", *hpcreduce.ALGORITHMS]
NBYTES = [0, 8, 1 << 10, 64 << 10, 600 << 10, 2 << 20]

# What the odd ranks do otherwise, given the usual call.
KINDS = {
    "length": lambda usual: {"count": usual["count"] + 1},
    "far length": lambda usual: {"count": usual["count"] // 2 + 7},
    "dtype of equal size": lambda usual: {"dtype": "i8"},
    "dtype of equal bytes": lambda usual: {"dtype": "f4", "count": 2 * usual["count"]},
    "op": lambda usual: {"op": "prod"},
    "algorithm": lambda usual: {"algorithm": "circulant" if usual["algorithm"] != "circulant" else "tree"},
    "order": lambda usual: {"algorithm": "auto", "order": "rank"},
    "wire": lambda usual: {"algorithm": "auto", "wire": "bfloat16"},
    "segment": lambda usual: {"segment": 4096},
    "iallreduce": lambda usual: {"name": "iallreduce", "algorithm": "auto"},  # "mpi" is not checked there
    "bcast": lambda usual: {"name": "bcast"},
    "reduce": lambda usual: {"name": "reduce"},
    "allgather": lambda usual: {"name": "allgather"},
    "reduce_scatter": lambda usual: {"name": "reduce_scatter"},
}


def subsets():
    """Return sets of ranks that may be odd: all but none and everyone, or some of them where they are many."""
    every = [set(odd) for most in range(1, SIZE) for odd in itertools.combinations(range(SIZE), most)]
    return every if SIZE <= 3 else [{0}, {SIZE - 1}, {1, 3}, set(range(0, SIZE, 2)), set(range(1, SIZE))]


def described(kind, odd, usual, rank):
    """Return the call that this rank makes."""
    return usual | KINDS[kind](usual) if rank in odd else usual


@pytest.fixture
def unlike(comm, entry):
    """Let rank `odd` pass another array or operation than the others; return what all say, and their arrays' state."""

    def run(odd, usual, other):
        array, op = other if comm.rank == odd else usual
        before = array.copy()
        text = all_raise(comm, lambda: allreduce(comm, array, op=op))
        assert all(comm.allgather(bool((array == before).all())))
        assert recovered(comm)
        return text

    return run


@pytest.mark.parametrize("lengths", [(5, 4), (100_000, 100_005)])
def test_H02_lengths_differ(unlike, lengths):
    usual, other = lengths
    text = unlike(SIZE - 1, (np.ones(usual), "sum"), (np.ones(other), "sum"))
    assert f"shape ({usual},)" in text and f"shape ({other},)" in text


def test_H02_is_a_value_error(comm, entry):
    with pytest.raises(ValueError, match=r"(?s)shape \(5,\).*shape \(4,\)"):
        allreduce(comm, np.ones(4 if comm.rank == SIZE - 1 else 5))


def test_H02_shapes_of_equal_size_differ(comm):
    """The function compares shapes; the drop-in compares counts, as MPI does."""
    text = all_raise(comm, lambda: allreduce(comm, np.ones((2, 3) if comm.rank else (3, 2))))
    assert "shape (2, 3)" in text and "shape (3, 2)" in text
    assert recovered(comm)
    out = np.empty((2, 3) if comm.rank else (3, 2))
    hpcreduce.Intracomm(comm, timeout=20).Allreduce(np.ones(6), out)
    assert (out == SIZE).all()


def test_H03_operations_differ(unlike):
    array = np.arange(3.0)
    text = unlike(0, (array, "sum"), (array, "max"))
    assert "op sum" in text and "op max" in text


def test_D10_dtypes_of_equal_bytes_differ(unlike):
    text = unlike(1, (np.ones(4), "sum"), (np.ones(8, np.float32), "sum"))
    assert "dtype float64" in text and "dtype float32" in text


def test_the_error_says_who_does_what_and_how_to_go_on(comm):
    array = np.ones(5 + (comm.rank == 1))
    found = outcomes(comm, lambda: hpcreduce.allreduce(comm, array, algorithm="tree", timeout=20))
    text = found[1].text
    assert "the ranks disagree about call #1 on this communicator:" in text
    assert "  rank 1: in call #1, allreduce(op sum, dtype float64, shape (6,), algorithm tree), at test_" in text
    assert "must make the same calls" in text and "recover()" in text and "comm.Dup()" in text
    found = outcomes(comm, lambda: hpcreduce.allreduce(comm, array, timeout=20))
    assert [outcome.error for outcome in found] == ["BrokenCommunicatorError"] * SIZE
    assert recovered(comm)


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_difference(comm, kind, impatient):
    """Among calls that were made before, in agreement, and among new ones; of the library and our own."""
    turns = itertools.cycle(subsets()[len(kind) % 2 :])
    for nbytes, known in (64, True), (64, False), (600 << 10, len(kind) % 2):
        usual = {"count": nbytes // 8, "algorithm": "auto"}
        odd = next(turns)
        if known:
            assert (call(comm, **usual) == total(comm, usual["count"])).all()
            call(comm, **usual | KINDS[kind](usual))
        all_raise(comm, functools.partial(call_and_next, comm, **described(kind, odd, usual, comm.rank)))
        assert recovered(comm)


@pytest.mark.parametrize("odd", subsets(), ids=str)
def test_any_ranks_may_be_odd(comm, odd, impatient):
    for algorithm in "auto", "direct":
        usual = {"count": 9, "algorithm": algorithm}
        all_raise(comm, functools.partial(call, comm, **described("length", odd, usual, comm.rank)))
        assert recovered(comm)


@pytest.mark.skipif(SIZE < 3, reason="three groups")
@pytest.mark.parametrize("algorithm", ["auto", "ring", "tree"])
def test_three_groups_at_once(comm, algorithm):
    text = all_raise(comm, lambda: call(comm, count=5 + comm.rank % 3, algorithm=algorithm))
    assert all(f"shape ({count},)" in text for count in (5, 6, 7))
    assert "rank 1" in text or "ranks 1," in text
    assert recovered(comm)


@pytest.mark.parametrize("op", ["bxor", lambda a, b: a + b])
def test_operations_without_a_check_of_the_librarys_own(comm, op):
    array = np.ones(5 + (comm.rank == 0), np.int64)
    all_raise(comm, lambda: allreduce(comm, array, op=op))
    assert recovered(comm)


def test_check_differs(comm):
    """Ranks that leave out the check are promised nothing but an error by their next call."""
    for known, unchecked in itertools.product((False, True), (comm.rank == 0, comm.rank > 0)):
        if known:
            assert all((call(comm, check=check) == total(comm, 5)).all() for check in (True, False))

        def work(unchecked=unchecked):
            call(comm, check=not unchecked)
            return unchecked and call(comm, op="max")

        all_raise(comm, work)
        assert recovered(comm)


@pytest.mark.parametrize("name", ["bcast", "reduce"])
@pytest.mark.parametrize("count", [5, 100_000])
def test_roots_differ(comm, name, count):
    """Also where each rank takes itself for the root, and so waits for none."""

    def work():
        mine = contribution(comm, count)
        getattr(hpcreduce, name)(comm, mine, root=comm.rank % 2, timeout=20)
        allreduce(comm, 1)

    text = all_raise(comm, work)
    assert "root 0" in text and "root 1" in text
    assert recovered(comm)


def test_random_disagreements(comm, impatient):
    """Every size on every path: no rank returns, and afterwards all get the right result there."""
    draw = random.Random(20240607)
    paths = list(itertools.product(ALGORITHMS, NBYTES))
    for turn in range(204):
        algorithm, nbytes = paths[turn * 7 % len(paths)]
        usual = {"count": nbytes // 8, "algorithm": algorithm}
        kind = draw.choice(list(KINDS))
        if KINDS[kind](usual).items() <= usual.items() or (kind == "segment" and nbytes > 600 << 10):
            kind = "op"
        odd = set(draw.sample(range(SIZE), draw.randint(1, SIZE - 1)))
        if nbytes < 64 << 10 and draw.random() < 0.5:
            call(comm, **usual)
        mine = described(kind, odd, usual, comm.rank)
        try:
            all_raise(comm, functools.partial(call_and_next, comm, **mine))
        except AssertionError as error:
            raise AssertionError(f"turn {turn}: {kind} on {odd}, {usual}: {error}") from None
        hpcreduce.Intracomm(comm, timeout=20).recover()
        right = (call(comm, **usual) == total(comm, usual["count"])).all()
        assert all(comm.allgather(bool(right))), f"turn {turn}: {usual}"  # before anyone goes on to the next turn


@pytest.mark.parametrize("count", [9, 600_000])
@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("algorithm", ["tree", "ring", "recursive_doubling"])
def test_messages_that_do_not_fit(comm, algorithm, change, count, monkeypatch):
    """As if the tags of two different calls were equal by chance: the last rank sends too little, or too much."""
    row = hpcreduce.ALGORITHMS[algorithm]

    def changed(rank, size, count):
        for verbs in row.rounds(rank, size, count):
            yield tuple(longer(verb, count) if rank == size - 1 and isinstance(verb, Send) else verb for verb in verbs)

    def longer(verb, count):
        start, stop = verb.span
        start, stop = (max(0, start - 1), stop) if change > 0 and stop == count else (start, min(count, stop + change))
        return verb._replace(span=Span(start, stop))

    monkeypatch.setitem(hpcreduce.ALGORITHMS, algorithm, row._replace(rounds=changed))
    if change > 0 and algorithm != "ring":
        pytest.skip("there is no more than all to send")

    def work():
        result = call(comm, count=count, algorithm=algorithm)  # which may not need the rank that has got the message
        assert (result == total(comm, count)).all()
        allreduce(comm, 1)

    text = all_raise(comm, work)
    assert text.startswith("what arrived cannot be right, ")
    monkeypatch.undo()
    assert recovered(comm)
