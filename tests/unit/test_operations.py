"""What the operations mean, and the samples that they are validated with."""

import functools

import numpy as np
import pytest

from hpcreduce.measure import samples
from hpcreduce.runtime import buffers
from hpcreduce.runtime.operations import OPERATIONS, divide, resolve
from hpcreduce.schedule import LEFT, RIGHT

SIZES = (1, 2, 3, 5, 7, 16)


def reduced(op, dtype, count, size):
    """Reduce the samples of all ranks here, one after the other."""
    operation = OPERATIONS[op]
    work, result = operation.types(dtype)
    arrays = []
    for rank in range(size):
        source = samples.make(op, dtype, count, rank, size)
        given = buffers.pair(source, source, None, result, operation.locates)
        arrays.append(buffers.room(given, work)[0])
        buffers.fill(arrays[-1], given, rank)
    total = functools.reduce(lambda a, b: operation.fold(a, b, RIGHT) or a, arrays)
    if operation.divides:
        divide(total, size)
    buffers.store(total, given)
    return given.targets


PAIRS = [(op, name) for op in OPERATIONS for name, dtype in samples.dtypes().items() if samples.applies(op, dtype)]


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_samples_have_the_expected_reduction(op, dtype):
    dtype = samples.dtypes()[dtype]
    for size in SIZES:
        found = reduced(op, dtype, 101, size)
        wanted = samples.expected(op, dtype, 101, size)
        assert len(found) == len(wanted)
        for ours, exact in zip(found, wanted, strict=True):
            assert ours.dtype == exact.dtype
            assert samples.same(ours, exact).all(), size


@pytest.mark.parametrize("op", ["sum", "max", "min", "maxloc", "bxor"])
def test_samples_depend_on_rank_and_index(op):
    arrays = [samples.make(op, np.dtype("int64"), 50, rank, 3) for rank in range(3)]
    assert len({array.tobytes() for array in arrays}) == 3
    assert all(len(set(array.tolist())) > 10 for array in arrays)


def test_a_wrong_slot_a_lost_rank_and_a_doubled_rank_change_the_samples_sum():
    arrays = [samples.make("sum", np.dtype(float), 20, rank, 3) for rank in range(3)]
    (exact,) = samples.expected("sum", np.dtype(float), 20, 3)
    assert (sum(arrays) == exact).all()
    assert (sum(arrays[:2]) != exact).any()
    assert (sum(arrays) + arrays[0] != exact).any()
    assert (np.roll(exact, 1) != exact).any()


def test_fold_sides():
    def minus(a, b):
        return a - b

    target = np.array([5.0])
    resolve(minus).fold(target, np.array([3.0]), RIGHT)
    assert target == [2.0]
    resolve(minus).fold(target, np.array([3.0]), LEFT)
    assert target == [1.0]


@pytest.mark.parametrize(
    ("op", "dtype", "work", "result"),
    [
        ("sum", "?", "int64", "int64"),
        ("sum", "i1", "int8", "int8"),
        ("sum", "f2", "float32", "float16"),
        ("sum", ">f8", "float64", ">f8"),
        ("mean", "i4", "float64", "float64"),
        ("mean", "?", "float64", "float64"),
        ("mean", "f2", "float32", "float16"),
        ("lor", "f4", "bool", "float32"),
        ("max", "M8[s]", "M8[s]", "M8[s]"),
    ],
)
def test_types(op, dtype, work, result):
    assert OPERATIONS[op].types(np.dtype(dtype)) == (np.dtype(work), np.dtype(result))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("max", "c16"),
        ("band", "f8"),
        ("sum", "M8[s]"),
        ("prod", "m8[s]"),
        ("sum", "O"),
        ("sum", "U5"),
        ("max", "i4,f8"),
    ],
)
def test_types_that_make_no_sense_are_named(op, dtype):
    dtype = np.dtype(dtype)
    with pytest.raises(TypeError) as caught:
        OPERATIONS[op].types(dtype)
    assert repr(op) in str(caught.value) and str(dtype) in str(caught.value) and "it takes" in str(caught.value)


def test_names_and_aliases():
    assert resolve("logical_or") is OPERATIONS["lor"]
    with pytest.raises(ValueError, match="unknown op 'median'; expected one of sum, mean"):
        resolve("median")
    for builtin in (sum, max, min):
        with pytest.raises(TypeError, match="write op="):
            resolve(builtin)
    with pytest.raises(TypeError, match="found int"):
        resolve(3)


def test_a_callable_must_keep_the_shape():
    def dot(a, b):
        return a @ b

    with pytest.raises(ValueError, match="op returned shape"):
        resolve(dot).fold(np.ones(3), np.ones(3), RIGHT)
