"""The head tells ranks that differ apart, whatever the operation: it is combined as a library would, and looked at."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.runtime.engines import LINE, LONG, offset, room
from hpcreduce.runtime.head import BITS, layout
from hpcreduce.runtime.operations import OPERATIONS

UNHEADED = ("bxor", "lxor")
PAIRS = [(name, char) for name, chars in ALGORITHMS["mpi"].pairs.items() for char in chars if name not in UNHEADED]
NUMBERS = st.integers(-(2**63), 2**63 - 1)


def totals(operation, work, numbers):
    """Return what each rank gets when these numbers are combined."""
    head = layout(operation, work, len(numbers))
    arrays = [np.zeros(head.length + 1, work) for _ in numbers]
    with np.errstate(all="ignore"):
        expected = [head.write(array, number) for array, number in zip(arrays, numbers, strict=True)]
        total = functools.reduce(lambda a, b: operation.combine(a, b, out=np.empty_like(a)), arrays)
    return [head.agrees(total, each) for each in expected]


@pytest.mark.parametrize(("name", "char"), PAIRS)
@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_equal_numbers_agree(name, char, size):
    for number in (0, -1, 1, 2**63 - 1, -(2**63), hash((1, 2))):
        assert all(totals(OPERATIONS[name], np.dtype(char), [number] * size))


@pytest.mark.parametrize(("name", "char"), PAIRS)
@settings(max_examples=20, deadline=None)
@given(numbers=st.lists(NUMBERS, min_size=2, max_size=7))
def test_no_rank_is_content_if_any_differs(name, char, numbers):
    seen = BITS if char != "?" else BITS // 2
    operation, work = OPERATIONS[name], np.dtype(char)
    bits = layout(operation, work, len(numbers)).bits
    different = len({number % (1 << seen // bits * bits) for number in numbers}) > 1
    assert (
        all(totals(operation, work, numbers))
        if len(set(numbers)) == 1
        else not (different and any(totals(operation, work, numbers)))
    )


@pytest.mark.parametrize(("name", "char"), PAIRS)
@pytest.mark.parametrize("size", [2, 4, 6])
def test_every_subset_is_found(name, char, size):
    """Also an even number of ranks that differ from an even number, and numbers that follow one another."""
    one, other = hash((17, 1)), hash((18, 1))
    for odd in range(1, 2**size - 1):
        numbers = [other if odd >> rank & 1 else one for rank in range(size)]
        assert not any(totals(OPERATIONS[name], np.dtype(char), numbers)), odd
    assert not any(totals(OPERATIONS[name], np.dtype(char), [hash((17, rank)) for rank in range(size)]))


@pytest.mark.parametrize("name", UNHEADED)
def test_operations_in_which_pairs_cancel_have_none(name):
    assert layout(OPERATIONS[name], np.dtype(np.int64), 4) is None


def test_none_for_operations_of_the_users_own_and_for_very_many_ranks():
    own = OPERATIONS["sum"]._replace(library=object())
    assert layout(own, np.dtype(float), 4) is None
    assert layout(OPERATIONS["prod"], np.dtype(np.float32), 128) is None
    assert layout(OPERATIONS["prod"], np.dtype(float), 1000).bits == 1
    assert layout(OPERATIONS["prod"], np.dtype(float), 2000) is None
    assert layout(OPERATIONS["sum"], np.dtype(np.float32), 2**20).bits == 4
    assert layout(OPERATIONS["sum"], np.dtype(np.float32), 2**24) is None


def test_a_head_is_short():
    assert layout(OPERATIONS["sum"], np.dtype(float), 8).length == 1
    assert layout(OPERATIONS["sum"], np.dtype(np.int64), 8).length == 1
    for name, char in PAIRS:
        assert layout(OPERATIONS[name], np.dtype(char), 8).length * np.dtype(char).itemsize <= 256


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16, 32])
def test_an_engine_has_room_and_wastes_little(itemsize):
    rooms = [room(count, itemsize) for count in range(20000)]
    for count, elements in enumerate(rooms):
        assert count <= elements <= max(64, 1.25 * count * itemsize + 32) / itemsize
    assert len(set(rooms)) < 60


def test_long_payloads_begin_at_a_line():
    for name, char in PAIRS:
        dtype = np.dtype(char)
        head = layout(OPERATIONS[name], dtype, 8)
        assert offset(head, 1, dtype.itemsize) == head.length and offset(None, 1, dtype.itemsize) == 0
        start = offset(head, LONG, dtype.itemsize)
        assert start >= head.length and start * dtype.itemsize % LINE == 0
    assert room(8192, 8) == 8192  # the most frequent sizes fit
