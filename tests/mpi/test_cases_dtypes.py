"""Types of elements and kinds of buffers that `hpcreduce.allreduce` takes, and what comes back.

A test named with an id holds a case from the project's list of faults that were reported in public. What a rank
contributes depends on rank and index; results are compared with ``==``.
"""

import array as arrays
import functools
import itertools
import mmap

import numpy as np
import pytest
from mpi4py import MPI

import hpcreduce
from hpcreduce.measure import samples
from hpcreduce.selection import forbids

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("entry")]
ALGORITHMS = ["auto", *hpcreduce.ALGORITHMS]
OWN = [name for name, row in hpcreduce.ALGORITHMS.items() if row.rounds]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
allreduce = functools.partial(hpcreduce.allreduce, timeout=60)


def for_each(algorithms):
    """Run a test for one algorithm after the other, which takes less time than a test for each."""

    def decorate(test):
        def run(comm):
            for algorithm in algorithms:
                test(comm, algorithm)

        return run

    return decorate


def takes(algorithm, op, dtype):
    """Whether the algorithm runs `op` on `dtype`: some refuse pairs for which the library's meaning is another."""
    operation = hpcreduce.OPERATIONS[op]
    work, _ = operation.types(np.dtype(dtype))
    return algorithm == "auto" or not forbids(hpcreduce.ALGORITHMS[algorithm], operation, work)


def wrapped(numbers, dtype):
    """Python integers as an integer type holds them."""
    bits = 8 * np.dtype(dtype).itemsize
    low = 0 if np.dtype(dtype).kind == "u" else 1 << bits - 1
    return [(number + low) % (1 << bits) - low for number in numbers]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_op_on_every_dtype(comm, algorithm):
    for op, (name, dtype) in itertools.product(hpcreduce.OPERATIONS, samples.dtypes().items()):
        if samples.applies(op, dtype) and takes(algorithm, op, dtype):
            mine = samples.make(op, dtype, 23, comm.rank, comm.size)
            result = allreduce(comm, mine, op=op, algorithm=algorithm)
            wanted = samples.expected(op, dtype, 23, comm.size)
            for found, want in zip(result if isinstance(result, tuple) else (result,), wanted, strict=True):
                assert found.dtype == want.dtype and found.shape == want.shape, f"{op} of {name}"
                assert samples.same(found, want).all(), f"{op} of {name}"


@for_each(ALGORITHMS)
def test_D01_bools(comm, algorithm):
    """A sum of bools counts, in int64; logical operations and extremes stay bool."""
    size, rank = comm.size, comm.rank
    mine = np.array([True, False, rank == 0, rank > 0, rank % 2 == 1])
    count = [size, 0, 1, size - 1, size // 2]
    wanted = {
        "sum": (np.int64, count),
        "prod": (np.int64, [int(each == size) for each in count]),
        "mean": (np.float64, [each / size for each in count]),
        **dict.fromkeys(("max", "lor", "bor", "nanmax"), (bool, [each > 0 for each in count])),
        **dict.fromkeys(("min", "land", "band", "nanmin"), (bool, [each == size for each in count])),
        **dict.fromkeys(("lxor", "bxor"), (bool, [each % 2 == 1 for each in count])),
    }
    for op, (dtype, values) in wanted.items():
        if takes(algorithm, op, bool):
            result = allreduce(comm, mine, op=op, algorithm=algorithm)
            assert result.dtype == dtype and result.tolist() == values, op


@for_each(ALGORITHMS)
def test_D02_small_integers_wrap(comm, algorithm):
    """As NumPy's do, in whatever order they are added."""
    for dtype in INTEGERS:
        top = int(np.iinfo(dtype).max)
        each = [[top - 55 + rank, 200 % (top + 1), 100 + 3 * rank, top] for rank in range(comm.size)]
        for op, total in (("sum", sum), ("prod", np.prod)):
            if takes(algorithm, op, dtype):
                result = allreduce(comm, np.array(each[comm.rank], dtype), op=op, algorithm=algorithm)
                exact = [int(total(np.array(column, object))) for column in zip(*each, strict=True)]
                assert result.dtype == dtype and result.tolist() == wrapped(exact, dtype), f"{op} of {dtype}"


@for_each(ALGORITHMS)
def test_D03_byte_order(comm, algorithm):
    """Foreign byte order of input, output and both; without an output the result has the input's type."""
    index = np.arange(7)
    total = comm.size * index + comm.size * (comm.size - 1) // 2
    for letter in ("f8", "f4", "i4", "u8", "c16", "f2", "i2"):
        if not takes(algorithm, "sum", letter):
            continue
        for sent, received in ((">", ">"), (">", "<"), ("<", ">")):
            mine = (index + comm.rank).astype(sent + letter)
            result = allreduce(comm, mine, algorithm=algorithm)
            assert result.dtype == mine.dtype and (result == total).all(), letter
            out = np.zeros(7, received + letter)
            assert allreduce(comm, mine, out, algorithm=algorithm) is out and (out == total).all(), letter
        allreduce(comm, MPI.IN_PLACE, mine.astype(">" + letter), algorithm=algorithm)
        allreduce(comm, MPI.IN_PLACE, out, algorithm=algorithm)
        assert (out == comm.size * total).all(), letter


@for_each(["auto", *OWN])
def test_D03_byte_order_of_times_and_pairs(comm, algorithm):
    mine = (np.arange(5) + comm.rank).astype(">M8[s]")
    result = allreduce(comm, mine, op="max", algorithm=algorithm)
    assert result.dtype == ">M8[s]" and (result == (np.arange(5) + comm.size - 1).astype("M8[s]")).all()
    values, ranks = allreduce(comm, (np.arange(5) - comm.rank).astype(">i2"), op="minloc", algorithm=algorithm)
    assert values.dtype == ">i2" and values.tolist() == [place - comm.size + 1 for place in range(5)]
    assert ranks.tolist() == [comm.size - 1] * 5


@for_each(ALGORITHMS)
def test_D04_half_precision(comm, algorithm):
    """Sums are rounded once: 2048 + 1 + 1 is 2050, though 2048 + 1 is 2048 in float16."""
    index = np.arange(9)
    mine = np.where(comm.rank == index % comm.size, 2048, 1).astype(np.float16)
    total = np.float16(2048 + comm.size - 1)
    result = allreduce(comm, mine, algorithm=algorithm)
    assert result.dtype == np.float16 and (result == total).all()
    allreduce(comm, MPI.IN_PLACE, mine, algorithm=algorithm)
    assert (mine == total).all()
    ones = allreduce(comm, np.ones(4, np.float16) * (comm.rank + 1), algorithm=algorithm)
    assert ones.dtype == np.float16 and ones.tolist() == [comm.size * (comm.size + 1) / 2] * 4


@for_each(ALGORITHMS)
def test_D04_bfloat16(comm, algorithm):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    index = np.arange(9)
    mine = np.where(comm.rank == index % comm.size, 256, 1).astype(ml_dtypes.bfloat16)
    result = allreduce(comm, mine, algorithm=algorithm)
    assert result.dtype == mine.dtype and (result == ml_dtypes.bfloat16(256 + comm.size - 1)).all()
    mean = allreduce(comm, (index + comm.rank).astype(mine.dtype), op="mean", algorithm=algorithm)
    assert mean.dtype == mine.dtype and (mean == index + (comm.size - 1) / 2).all()
    if takes(algorithm, "max", mine.dtype):
        lost = np.where((index == 4) & (comm.rank == 0), np.nan, index - comm.rank).astype(mine.dtype)
        result = allreduce(comm, lost, op="max", algorithm=algorithm)
        assert np.isnan(result.astype(float)).tolist() == (index == 4).tolist()
        assert result[index != 4].astype(int).tolist() == index[index != 4].tolist()


@for_each(ALGORITHMS)
def test_D05_complex(comm, algorithm):
    """Sums, products and means are right; an order that does not exist is refused."""
    index = np.arange(5)
    for dtype in (np.complex64, np.complex128, np.clongdouble):
        mine = (index + comm.rank - 1j * index * comm.rank).astype(dtype)
        ranks = comm.size * (comm.size - 1) // 2
        result = allreduce(comm, mine, algorithm=algorithm)
        assert result.dtype == dtype and (result == comm.size * index + ranks - 1j * index * ranks).all()
        result = allreduce(comm, np.full(3, 1 + 1j, dtype) * (1 + comm.rank % 2), op="prod", algorithm=algorithm)
        assert (result == (1 + 1j) ** comm.size * 2 ** (comm.size // 2)).all()
        result = allreduce(comm, mine, op="mean", algorithm=algorithm)
        assert result.dtype == dtype and (result == index + (comm.size - 1) / 2 * (1 - 1j * index)).all()
        for op in ("max", "min", "nanmax", "nanmin", "maxloc", "minloc", "band", "bor", "bxor"):
            with pytest.raises(TypeError, match=f"'{op}' does not take dtype {np.dtype(dtype)}; it takes bool, int"):
                allreduce(comm, mine, op=op, algorithm=algorithm)


REFUSED = {
    "structured": np.zeros(2, [("a", "f8"), ("b", "i4")]),
    "object": np.array([1, None]),
    "str": np.array(["one", "three"]),
    "bytes": np.array([b"one", b"three"]),
    "void": np.zeros(3, "V8"),
}


@for_each(ALGORITHMS)
def test_D07_types_that_are_no_numbers(comm, algorithm):
    for mine in REFUSED.values():
        for op in ("sum", "max", "land", "maxloc", lambda a, b: a):
            with pytest.raises(TypeError) as raised:
                hpcreduce.allreduce(comm, mine, op=op, algorithm=algorithm, timeout=10)
            assert f"dtype {mine.dtype}" in str(raised.value)
            assert "it takes bool, int, uint, float" in str(raised.value)
    assert allreduce(comm, 1) == comm.size


def test_D07_dates_have_no_sum(comm):
    for op in ("sum", "mean", "prod", "land", "band"):
        with pytest.raises(TypeError, match=rf"'{op}' does not take dtype datetime64\[us\]; it takes bool"):
            allreduce(comm, np.zeros(3, "M8[us]"), op=op)


@for_each(ALGORITHMS)
def test_D09_integers_of_every_width(comm, algorithm):
    """Small values and values of half the range, of each width and of each C type with that width."""
    for letter in "bBhHiIlLqQ":
        dtype = np.dtype(letter)
        half = int(np.iinfo(dtype).max) // 2
        each = [[4 + rank, 5, 6 * rank, half - rank, half // (rank + 1)] for rank in range(comm.size)]
        mine = np.array(each[comm.rank], dtype)
        if takes(algorithm, "sum", dtype):
            result = allreduce(comm, mine, algorithm=algorithm)
            assert result.dtype == dtype
            assert result.tolist() == wrapped([sum(column) for column in zip(*each, strict=True)], dtype)
        for op, best in (("max", max), ("min", min), ("nanmax", max), ("nanmin", min)):
            result = allreduce(comm, mine, op=op, algorithm=algorithm)
            assert result.dtype == dtype and result.tolist() == [best(column) for column in zip(*each, strict=True)]


@for_each(ALGORITHMS)
def test_D13_read_only_input(comm, algorithm):
    total = comm.size * np.arange(6) + comm.size * (comm.size - 1) / 2
    mine = np.arange(6.0) + comm.rank
    mine.flags.writeable = False
    assert (allreduce(comm, mine, algorithm=algorithm) == total).all()
    out = np.zeros(6)
    allreduce(comm, mine, out, algorithm=algorithm)
    assert (out == total).all()
    frozen = np.broadcast_to(np.float64(comm.rank), (4,))
    assert allreduce(comm, frozen, algorithm=algorithm).tolist() == [comm.size * (comm.size - 1) / 2] * 4


@for_each(ALGORITHMS)
def test_D13_read_only_output(comm, algorithm):
    out = np.arange(6.0) + comm.rank
    before = out.copy()
    out.flags.writeable = False
    for mine in (np.arange(6.0), MPI.IN_PLACE, out):
        with pytest.raises(ValueError, match="read-only; expected a writable array"):
            hpcreduce.allreduce(comm, mine, out, algorithm=algorithm, timeout=10)
    assert (out == before).all()
    assert allreduce(comm, comm.rank, algorithm=algorithm) == comm.size * (comm.size - 1) // 2


@for_each(ALGORITHMS)
def test_D15_lists_are_added_not_joined(comm, algorithm):
    size, rank = comm.size, comm.rank
    ranks = size * (size - 1) // 2
    for mine, wanted in (
        ([rank], [ranks]),
        ([rank + 1, 2.5], [ranks + size, 2.5 * size]),
        ((rank, rank), [ranks, ranks]),
        ([[rank, 1], [2, 3]], [[ranks, size], [2 * size, 3 * size]]),
        ([True, rank == 0], [size, 1]),
        ([1j, rank], [size * 1j, ranks]),
    ):
        if takes(algorithm, "sum", np.asarray(mine).dtype):
            result = allreduce(comm, mine, algorithm=algorithm)
            assert type(result) is np.ndarray and result.tolist() == wanted
    out = np.zeros(2)
    assert allreduce(comm, [rank, 0.5], out, algorithm=algorithm) is out and out.tolist() == [ranks, size / 2]
    empty = allreduce(comm, [], algorithm=algorithm)
    assert empty.shape == (0,) and empty.dtype == np.float64


LIBRARY_NAMES = {op: row.library for op, row in hpcreduce.OPERATIONS.items() if op not in ("mean", "nanmax", "nanmin")}
ALIASES = {f"{long}_{short}": f"{long[0]}{short}" for long in ("logical", "bitwise") for short in ("and", "or", "xor")}


@for_each(ALGORITHMS)
def test_D16_every_name_means_its_operation(comm, algorithm):
    """Values 2 and 3: as a name, as the library's constant and as a NumPy name."""
    size, rank = comm.size, comm.rank
    values = [[2 + other % 2, 3 - other % 2, 2] for other in range(size)]
    columns = list(zip(*values, strict=True))
    wanted = {
        "sum": [sum(column) for column in columns],
        "prod": [2 ** column.count(2) * 3 ** column.count(3) for column in columns],
        "max": [max(column) for column in columns],
        "min": [min(column) for column in columns],
        "land": [1, 1, 1],
        "lor": [1, 1, 1],
        "lxor": [size % 2] * 3,
        "band": [2 | (1 if 2 not in column else 0) for column in columns],
        "bor": [2 | (1 if 3 in column else 0) for column in columns],
        "bxor": [size % 2 * 2 | column.count(3) % 2 for column in columns],
        "maxloc": ([max(column) for column in columns], [column.index(max(column)) for column in columns]),
        "minloc": ([min(column) for column in columns], [column.index(min(column)) for column in columns]),
    }
    assert wanted.keys() == LIBRARY_NAMES.keys()
    for op, constant in LIBRARY_NAMES.items():
        if takes(algorithm, op, np.int64):
            for given in (op, getattr(MPI, constant), *(name for name, short in ALIASES.items() if short == op)):
                result = allreduce(comm, np.array(values[rank]), op=given, algorithm=algorithm)
                found = tuple(each.tolist() for each in result) if op.endswith("loc") else result.tolist()
                assert found == wanted[op], given
    if takes(algorithm, "mean", np.int64):
        assert (allreduce(comm, values[rank], op="mean", algorithm=algorithm) * size == wanted["sum"]).all()
    for op, plain in (("nanmax", "max"), ("nanmin", "min")):
        assert allreduce(comm, values[rank], op=op, algorithm=algorithm).tolist() == wanted[plain]


@for_each(["auto", *OWN])
def test_dates(comm, algorithm):
    """Extremes of dates; NaT propagates, or is left out by nanmax and nanmin."""
    day = np.datetime64("2024-02-28", "D")
    mine = day + np.arange(6) + comm.rank
    mine[3] = "NaT" if comm.rank == comm.size - 1 else mine[3]
    latest = day + np.arange(6) + comm.size - 1
    for op, wanted in (("max", latest), ("min", day + np.arange(6)), ("maxloc", latest)):
        result = allreduce(comm, mine, op=op, algorithm=algorithm)
        if op == "maxloc":
            result, ranks = result
            assert ranks.tolist() == [comm.size - 1] * 6
        assert result.dtype == mine.dtype and np.isnat(result).tolist() == [False] * 3 + [True] + [False] * 2
        assert (np.delete(result, 3) == np.delete(wanted, 3)).all()
    for op, wanted in (("nanmax", day + 3 + comm.size - 2), ("nanmin", day + 3)):
        result = allreduce(comm, mine, op=op, algorithm=algorithm)
        assert np.isnat(result[3]) if comm.size == 1 else result[3] == wanted


@for_each(["auto", *OWN])
def test_durations(comm, algorithm):
    mine = (np.arange(6) * 2 + comm.rank * 2).astype("m8[ms]")
    wanted = np.arange(6) * 2 * comm.size + comm.size * (comm.size - 1)
    total = allreduce(comm, mine, algorithm=algorithm)
    assert total.dtype == mine.dtype and (total == wanted.astype("m8[ms]")).all()
    mean = allreduce(comm, mine, op="mean", algorithm=algorithm)
    assert mean.dtype == mine.dtype and (mean == (wanted // comm.size).astype("m8[ms]")).all()
    longest = allreduce(comm, mine, op="max", algorithm=algorithm)
    assert (longest == (np.arange(6) * 2 + (comm.size - 1) * 2).astype("m8[ms]")).all()
    mine[comm.rank % 6] = "NaT"
    lost = [place < comm.size for place in range(6)]
    assert np.isnat(allreduce(comm, mine, algorithm=algorithm)).tolist() == lost
    assert np.isnat(allreduce(comm, mine, op="min", algorithm=algorithm)).tolist() == lost
    scalar = allreduce(comm, np.timedelta64(comm.rank, "s"), algorithm=algorithm)
    assert type(scalar) is np.timedelta64 and scalar == np.timedelta64(comm.size * (comm.size - 1) // 2, "s")


@for_each(ALGORITHMS)
def test_longdouble_keeps_its_digits(comm, algorithm):
    if np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("longdouble is float64 here")
    index = np.arange(5)
    mine = np.longdouble(2) ** 60 + index + comm.rank
    wanted = comm.size * np.longdouble(2) ** 60 + index * comm.size + comm.size * (comm.size - 1) // 2
    result = allreduce(comm, mine, algorithm=algorithm)
    assert result.dtype == np.longdouble and (result == wanted).all()
    scalar = allreduce(comm, mine[0], algorithm=algorithm)
    assert type(scalar) is np.longdouble and scalar == wanted[0]


@for_each(ALGORITHMS)
def test_buffers_that_are_no_arrays(comm, algorithm):
    """``array.array`` and memoryview, as input, output and in place."""
    total = [float(comm.size * place + comm.size * (comm.size - 1) // 2) for place in range(5)]
    for make in (functools.partial(arrays.array, "d"), lambda values: memoryview(arrays.array("d", values))):
        mine = make([place + comm.rank for place in range(5)])
        assert allreduce(comm, mine, algorithm=algorithm).tolist() == total
        assert list(mine) == [place + comm.rank for place in range(5)]
        out = make([0.0] * 5)
        assert allreduce(comm, mine, out, algorithm=algorithm) is out and list(out) == total
        assert allreduce(comm, MPI.IN_PLACE, mine, algorithm=algorithm) is mine and list(mine) == total
        assert allreduce(comm, mine, mine, algorithm=algorithm) is mine
        assert list(mine) == [comm.size * value for value in total]
    if takes(algorithm, "bor", np.uint8):
        flags = bytearray([1 << comm.rank, 0, comm.rank == 0])
        assert allreduce(comm, MPI.IN_PLACE, flags, "bor", algorithm=algorithm) is flags
        assert list(flags) == [(1 << comm.size) - 1, 0, 1]


@for_each(ALGORITHMS)
def test_memory_that_is_not_aligned(comm, algorithm):
    base, out = bytearray(8 * 6 + 1), bytearray(8 * 6 + 1)
    mine, target = (np.frombuffer(memory, np.float64, offset=1) for memory in (base, out))
    mine[:] = np.arange(6) + comm.rank
    assert not mine.flags.aligned
    allreduce(comm, mine, target, algorithm=algorithm)
    assert (target == comm.size * np.arange(6) + comm.size * (comm.size - 1) / 2).all()
    allreduce(comm, MPI.IN_PLACE, mine, algorithm=algorithm)
    assert (mine == target).all() and base[0] == out[0] == 0


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@for_each(ALGORITHMS)
def test_subclasses_of_arrays(comm, algorithm):
    """A slice of a matrix is a matrix, which must not reach the algorithms; a mapped file is plain memory."""
    wanted = comm.size * np.arange(12.0).reshape(2, 6) + comm.size * (comm.size - 1) / 2
    mapped = np.frombuffer(mmap.mmap(-1, 96), np.float64).reshape(2, 6)
    for mine in (np.matrix(np.arange(12.0).reshape(2, 6)), mapped):
        mine[...] = np.arange(12.0).reshape(2, 6) + comm.rank
        result = hpcreduce.allreduce(comm, mine, algorithm=algorithm, timeout=5)
        assert type(result) is np.ndarray and (result == wanted).all()
        assert hpcreduce.allreduce(comm, MPI.IN_PLACE, mine, algorithm=algorithm, timeout=5) is mine
        assert (np.asarray(mine) == wanted).all()
