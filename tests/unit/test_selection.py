"""Which algorithm runs a call."""

import numpy as np
import pytest

from hpcreduce.runtime.operations import OPERATIONS, resolve
from hpcreduce.runtime.rooms import REDUNDANT
from hpcreduce.selection import LIBRARY_BELOW, LONGEST_SEGMENT, NETWORK_SEGMENT, SHARED_BELOW, choose

F8, NODE = np.dtype(float), (0, 0, 0)


def chosen(op, dtype, count, nodes=NODE, algorithm="auto", segment=None, without=("shared",)):
    operation = resolve(op)
    return choose(algorithm, segment, operation, operation.types(np.dtype(dtype))[0], count, nodes, (), without)


def name(*arguments, **options):
    return chosen(*arguments, **options).algorithm.name


@pytest.mark.parametrize("op", ["max", "min", "nanmax", "maxloc"])
def test_auto_never_takes_the_library_where_it_loses_nan(op):
    for count in (1, 1000, 10**6):
        assert name(op, float, count) != "mpi"
    if op in ("max", "min"):
        assert name(op, int, 1) == "mpi"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_auto_never_takes_the_library_where_sums_may_not_wrap(dtype):
    assert name("sum", dtype, 1) != "mpi"


def test_auto_goes_by_size():
    assert name("sum", float, 1) == "mpi"
    assert name("sum", float, LIBRARY_BELOW // 8) == "ring"
    assert name("max", float, 1) == "tree"
    assert name("max", float, 10**6) == "ring"


def test_auto_goes_by_size_where_ranks_share_memory():
    def here(op, dtype, count, nodes=NODE):
        return name(op, dtype, count, nodes, without=())

    most = REDUNDANT // len(NODE) // 8
    assert here("sum", float, 1) == here("max", float, most) == here("maxloc", "float16", 1) == "shared"
    assert here("sum", float, most + 1) == here("bxor", int, most + 1) == "mpi"
    assert here("max", float, most + 1) == here("sum", "int8", SHARED_BELOW - 1) == "shared"
    assert here("sum", float, LIBRARY_BELOW // 8) == "shared" and here("sum", float, SHARED_BELOW // 8) == "ring"
    assert here("sum", float, 1, (0,) * 9) == "mpi" and here("max", float, 1, (0,) * 9) == "tree"
    assert here("sum", float, 1, (0, 0, 1)) == "mpi" and here("max", float, 1, (0, 0, 1)) == "hierarchical"


def test_auto_goes_by_nodes():
    apart, pairs = (0, 1, 2, 3), (0, 0, 1, 1)
    assert name("sum", float, 1, apart) == name("sum", float, 1, pairs) == "mpi"
    assert name("sum", float, (64 << 10) // 8, apart) == "circulant"
    assert name("sum", float, (1 << 20) // 8, apart) == "ring"
    assert name("max", float, 1, apart) == "recursive_doubling"
    assert name("sum", float, (64 << 10) // 8, pairs) == name("max", float, 1, pairs) == "hierarchical"
    assert name("sum", float, 10**7, (0, 1, 0, 1, 0)) == "hierarchical"
    assert chosen("sum", float, 10**7, pairs).static == {"nodes": pairs}
    assert chosen("sum", float, 1, pairs, "hierarchical:tree").static == {"nodes": pairs, "across": "tree"}


def test_operations_that_do_not_commute_keep_rank_order():
    def first(a, b):
        return a

    assert name(first, float, 1) == name(first, float, 10**7) == "tree"
    with pytest.raises(ValueError, match="not commutative"):
        chosen(first, float, 1, algorithm="ring")
    first.commutative = True
    assert name(first, float, 10**7) == "ring"


def test_every_choice_says_why():
    for op in OPERATIONS:
        for count in (1, 10**7):
            assert chosen(op, "int32", count).reason


@pytest.mark.parametrize(("op", "dtype"), [("max", "float64"), ("sum", "int8"), ("sum", "timedelta64[s]")])
def test_the_library_is_refused_where_its_meaning_is_not_ours(op, dtype):
    with pytest.raises(ValueError, match="meaning"):
        chosen(op, dtype, 1, algorithm="mpi")


def test_segments():
    assert chosen("sum", float, 10**7).segment == (1 << 20) // 8
    assert chosen("sum", float, 3).segment == (256 << 10) // 8
    assert chosen("sum", float, 10**7, nodes=(0, 1, 1)).segment == NETWORK_SEGMENT // 8
    assert chosen("sum", float, 10**7, segment=7).segment == 1
    assert chosen("sum", float, 10**7, segment=1 << 40).segment == LONGEST_SEGMENT // 8


@pytest.mark.parametrize(
    ("segment", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError), ("1", TypeError)]
)
def test_bad_segments(segment, error):
    with pytest.raises(error, match="segment"):
        chosen("sum", float, 1, segment=segment)


@pytest.mark.parametrize(("algorithm", "error"), [("rong", ValueError), (None, TypeError), (3, TypeError)])
def test_bad_algorithms(algorithm, error):
    with pytest.raises(error, match="algorithm"):
        chosen("sum", float, 1, algorithm=algorithm)
