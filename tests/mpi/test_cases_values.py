"""Values of `hpcreduce.allreduce`: lengths, layouts, in place, scalars, NaN, ties, means, operations of the user's own.

A test named with an id holds a case from the project's list of faults that were reported in public. What a rank
contributes depends on rank and index, and sums are exact in any order, so that results are compared with ``==``.
"""

import functools
import hashlib
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import hpcreduce
from hpcreduce.measure import samples
from hpcreduce.selection import forbids

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("entry")]
ALGORITHMS = ["auto", *hpcreduce.ALGORITHMS]
OWN = [name for name, row in hpcreduce.ALGORITHMS.items() if row.rounds]
ORDERED = [name for name in OWN if hpcreduce.ALGORITHMS[name].keeps_order]
allreduce = functools.partial(hpcreduce.allreduce, timeout=60)
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def for_every_algorithm(test):
    """Run a test for one algorithm after the other, which takes less time than a test for each."""

    def run(comm):
        for algorithm in ALGORITHMS:
            test(comm, algorithm)

    return run


def takes(algorithm, op, dtype):
    """Whether the algorithm runs `op` on `dtype`: some refuse pairs for which the library's meaning is another."""
    operation = hpcreduce.OPERATIONS[op]
    work, _ = operation.types(np.dtype(dtype))
    return algorithm == "auto" or not forbids(hpcreduce.ALGORITHMS[algorithm], operation, work)


def contribution(rank, shape, dtype=np.float64):
    index = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return np.asarray((rank + 1) * (index + 1) + rank, dtype)


def total(size, shape, dtype=np.float64):
    return np.asarray(sum(contribution(rank, shape, np.int64) for rank in range(size)), dtype)


def lengths(size):
    return sorted({1, size - 1, size, size + 1, 2 * size + 3, 10, 1009})


@every_algorithm
def test_C01_length_not_a_multiple_of_ranks(comm, algorithm):
    size = comm.size
    for count in lengths(size):
        index = np.arange(count)
        for segment in (None, 24):
            result = allreduce(comm, 100.0 * comm.rank + index, algorithm=algorithm, segment=segment)
            assert (result == 100 * size * (size - 1) // 2 + size * index).all()


@for_every_algorithm
def test_C02_fewer_elements_than_ranks(comm, algorithm):
    """A decimal digit for each rank: 0 is a rank that was lost, 2 one that was counted twice."""
    for count in {0, 1, 2, 4, comm.size - 1, comm.size}:
        for segment in (None, 1, 16):
            result = allreduce(comm, np.full(count, 10**comm.rank), algorithm=algorithm, segment=segment)
            assert result.shape == (count,) and (result == int("1" * comm.size)).all()


@every_algorithm
def test_C03_rank_count_that_is_no_power_of_two(comm, algorithm):
    """Every rank count up to that of the job, in groups of the first ranks and of the last ones."""
    for members in range(1, comm.size + 1):
        group = comm.Split(comm.rank < members)
        for count in (1, 1001):
            index = np.arange(count) * 10**8
            result = allreduce(group, 10**group.rank + index, algorithm=algorithm)
            assert (result == int("1" * group.size) + group.size * index).all()
        group.Free()


@for_every_algorithm
def test_C07_same_array_as_input_and_output(comm, algorithm):
    for shape in ((6,), (comm.size + 1,), (2, 3), ()):
        for other_view in (False, True):
            array = contribution(comm.rank, shape)
            out = array[...] if other_view else array
            assert allreduce(comm, array, out, algorithm=algorithm) is out
            assert (array == total(comm.size, shape)).all()


@for_every_algorithm
def test_C07_in_place_mean(comm, algorithm):
    for dtype in (np.float16, np.float32, np.complex128):
        if takes(algorithm, "mean", dtype):
            array = (comm.rank + np.arange(9) * 2).astype(dtype)
            assert allreduce(comm, MPI.IN_PLACE, array, "mean", algorithm=algorithm) is array
            assert (array == (comm.size - 1) / 2 + np.arange(9) * 2).all()


@every_algorithm
def test_C09_input_is_not_changed(comm, algorithm):
    rng = np.random.default_rng(comm.rank)
    for dtype in samples.dtypes().values():
        array = rng.integers(0, 2 if dtype.kind == "b" else 100, 10007).astype(dtype)
        if dtype.kind in "fc":
            array = (rng.standard_normal(10007) * 100).astype(dtype)
        before = array.tobytes()
        for op in ("sum", "mean", "max", "maxloc", "lor"):
            if samples.applies(op, dtype) and takes(algorithm, op, dtype):
                allreduce(comm, array, op=op, algorithm=algorithm)
                assert array.tobytes() == before, f"{op} of {dtype}"


VIEWS = {
    "every second": ((20,), lambda base: base[::2]),
    "reversed": ((10,), lambda base: base[::-1]),
    "reversed steps": ((31,), lambda base: base[-2:3:-3]),
    "column": ((10, 3), lambda base: base[:, 1]),
    "transposed": ((4, 3), lambda base: base.T),
    "transposed block": ((6, 5), lambda base: base[1:4, ::2].T),
    "axes moved": ((2, 3, 4), lambda base: np.moveaxis(base, 0, 1)),
    "flipped": ((3, 4), lambda base: base[::-1, ::-1]),
    "one element": ((10,), lambda base: base[3:4:2]),
}


@for_every_algorithm
def test_C11_strided_views(comm, algorithm):
    """As input, output and in place; what lies between the elements stays."""
    for label, (shape, cut) in VIEWS.items():
        gaps = np.ones(shape, bool)
        cut(gaps)[...] = False
        base, out = np.full(shape, -1.0), np.full(shape, -1.0)
        view = cut(base)
        view[...] = contribution(comm.rank, view.shape)
        before, wanted = base.copy(), total(comm.size, view.shape)
        assert (allreduce(comm, view, algorithm=algorithm) == wanted).all(), label
        allreduce(comm, view, cut(out), algorithm=algorithm)
        assert (base == before).all() and (cut(out) == wanted).all() and (out[gaps] == -1).all(), label
        allreduce(comm, MPI.IN_PLACE, view, algorithm=algorithm)
        assert (view == wanted).all() and (base[gaps] == -1).all(), label


@for_every_algorithm
def test_C11_fortran_order(comm, algorithm):
    """Ranks may hold different memory orders: elements meet by their place in the array."""
    array = contribution(comm.rank, (3, 5))
    mixed = np.asfortranarray(array) if comm.rank % 2 == 0 else array
    out = np.zeros((3, 5), order="F" if comm.rank % 3 == 0 else "C")
    assert (allreduce(comm, mixed, out, algorithm=algorithm) == total(comm.size, (3, 5))).all()
    allreduce(comm, MPI.IN_PLACE, mixed, algorithm=algorithm)
    assert (mixed == total(comm.size, (3, 5))).all()


@for_every_algorithm
def test_C12_one_element_with_a_stride(comm, algorithm):
    base = np.arange(10.0) + comm.rank
    wanted = comm.size * 3 + comm.size * (comm.size - 1) / 2
    assert allreduce(comm, base[3:4:2], algorithm=algorithm).tolist() == [wanted]
    allreduce(comm, MPI.IN_PLACE, base[3:4:2], algorithm=algorithm)
    assert base[3] == wanted and np.delete(base, 3).tolist() == np.delete(np.arange(10.0) + comm.rank, 3).tolist()


@every_algorithm
def test_C13_empty_arrays(comm, algorithm):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for op in hpcreduce.OPERATIONS:
            dtype = np.dtype(np.int64 if op.startswith("b") else np.float64)
            if not takes(algorithm, op, dtype):
                continue
            for shape in ((0,), (3, 0), (0, 5)):
                result = allreduce(comm, np.empty(shape, dtype), op=op, algorithm=algorithm)
                for array in result if isinstance(result, tuple) else [result]:
                    assert array.shape == shape
                if op in ("sum", "mean", "max"):
                    out = np.empty(shape, dtype)
                    assert result.dtype == dtype
                    assert allreduce(comm, MPI.IN_PLACE, out, op, algorithm=algorithm) is out


SCALARS = {
    "array": (lambda value: np.array(float(value)), np.ndarray, np.ndarray),
    "float32": (np.float32, np.float32, np.float32),
    "float64": (np.float64, np.float64, np.float64),
    "float16": (np.float16, np.float16, np.float16),
    "int8": (np.int8, np.int8, np.float64),
    "int": (int, int, float),
    "float": (float, float, float),
    "complex": (complex, complex, complex),
}


@for_every_algorithm
def test_C14_scalars(comm, algorithm):
    """A scalar comes back as the same kind of scalar, a 0-d array as a 0-d array; a mean of integers is a float."""
    size = comm.size
    for kind, (make, summed, averaged) in SCALARS.items():
        mine = make(comm.rank + 2)
        dtype = np.asarray(mine).dtype
        if takes(algorithm, "sum", dtype):
            result = allreduce(comm, mine, algorithm=algorithm)
            assert type(result) is summed and np.shape(result) == (), kind
            assert result == size * (size + 3) // 2
            out = np.zeros((), dtype)
            assert allreduce(comm, mine, out, algorithm=algorithm) is out and out == size * (size + 3) // 2
        if takes(algorithm, "mean", dtype):
            result = allreduce(comm, mine, op="mean", algorithm=algorithm)
            assert type(result) is averaged and np.shape(result) == (), kind
            assert result == (size + 3) / 2


def test_C14_scalar_bools_and_pairs(comm):
    last = comm.size - 1
    lonely = comm.rank == last
    assert allreduce(comm, lonely) == 1 and type(allreduce(comm, lonely)) is int
    assert allreduce(comm, lonely, op="lor") is True and allreduce(comm, lonely, op="land") is (last == 0)
    assert type(allreduce(comm, np.bool_(lonely))) is np.int64
    values = [allreduce(comm, make(comm.rank), op="maxloc") for make in (int, float, np.float32)]
    assert values == [(last, last)] * 3
    assert [type(value) for value, _ in values] == [int, float, np.float32]
    assert [type(rank) for _, rank in values] == [int, int, np.int64]


@every_algorithm
def test_C20_nan_on_any_rank(comm, algorithm):
    """``max`` and ``min`` give NaN, ``nanmax`` and ``nanmin`` leave it out, wherever it was."""
    size = comm.size
    others = {rank: [other for other in range(size) if other != rank] for rank in range(size)}
    for dtype in (np.float16, np.float32, np.float64, np.longdouble, samples.dtypes().get("bfloat16", np.float32)):
        for lost in range(size):
            array = np.array([comm.rank, 5, -comm.rank, comm.rank], dtype)
            if comm.rank == lost:
                array[[0, 2]] = np.nan
            for op, best in (("max", max), ("min", min)):
                if takes(algorithm, op, dtype):
                    result = allreduce(comm, array, op=op, algorithm=algorithm)
                    assert result.dtype == dtype and np.isnan(result[[0, 2]]).all()
                    assert result[[1, 3]].tolist() == [5, best(range(size))]
                if takes(algorithm, "nan" + op, dtype):
                    result = allreduce(comm, array, op="nan" + op, algorithm=algorithm)
                    if size > 1:
                        ranks = others[lost]
                        assert result.tolist() == [best(ranks), 5, best(-rank for rank in ranks), best(range(size))]
                    else:
                        assert np.isnan(result[[0, 2]]).all() and result[[1, 3]].tolist() == [5, 0]


@for_every_algorithm
def test_C20_nan_on_all_ranks_and_infinities(comm, algorithm):
    array = np.array([np.nan, -np.inf, np.inf, comm.rank])
    array[1:3] *= 1 if comm.rank == comm.size - 1 else 0.5  # infinite on every rank all the same
    for op in ("max", "min", "nanmax", "nanmin"):
        if takes(algorithm, op, np.float64):
            result = allreduce(comm, array, op=op, algorithm=algorithm)
            assert np.isnan(result[0])
            assert result[1:].tolist() == [-np.inf, np.inf, comm.size - 1 if "max" in op else 0]


def same_everywhere(comm, array):
    """Whether all ranks hold the same bytes, found out without the code under test."""
    digest = hashlib.sha256(array.tobytes()).digest()
    return comm.allgather(digest) == [digest] * comm.size


@every_algorithm
def test_C21_same_bits_on_all_ranks(comm, algorithm):
    rng = np.random.default_rng(comm.rank)
    for op, scale in (("sum", 1e4), ("mean", 1e4), ("prod", 1)):
        for dtype in (np.float16, np.float32, np.float64, np.complex64):
            for count in (1, comm.size + 1, 100003 if dtype is np.float32 else 5003):
                array = (rng.standard_normal(count) * scale).astype(dtype)
                if takes(algorithm, op, dtype):
                    with np.errstate(over="ignore"):
                        result = allreduce(comm, array, op=op, algorithm=algorithm)
                    assert same_everywhere(comm, result), f"{op}, {count} of {dtype.__name__}"


@pytest.mark.parametrize("algorithm", ["auto", *OWN])
def test_C21_same_bits_of_nan_and_zero_on_all_ranks(comm, algorithm):
    """NaNs with another sign and payload on each rank, and zeros of both signs; the libraries do not promise it."""
    for op in ("max", "nanmax") if algorithm == "auto" else ("sum", "max", "nanmax"):
        for count in (1, 8, 1000):
            rng = np.random.default_rng(comm.rank)
            array = np.where(rng.random(count) < 0.5, np.float32(0), np.float32(-0.0))
            lost = rng.random(count) < 0.7
            array.view(np.uint32)[lost] = 0x7FC00001 + comm.rank + (comm.rank % 2 << 31)
            assert np.isnan(array[lost]).all()
            assert same_everywhere(comm, allreduce(comm, array, op=op, algorithm=algorithm)), f"{op} of {count}"


@for_every_algorithm
def test_C25_mean_is_divided_by_the_number_of_ranks(comm, algorithm):
    for count in (7, 1, comm.size, 1009):
        index = np.arange(count)
        for dtype in (np.float32, np.float64, np.complex128):
            result = allreduce(comm, (comm.rank + 1 + index).astype(dtype), op="mean", algorithm=algorithm)
            assert result.dtype == dtype and (result == (comm.size + 1) / 2 + index).all()


@every_algorithm
def test_C26_one_rank(comm, algorithm):
    """The result of one rank is its input, to the last element."""
    alone = MPI.COMM_SELF.Dup()
    for op in hpcreduce.OPERATIONS:
        dtype = np.dtype(np.int64 if op.startswith("b") else np.float64)
        for count in range(34) if takes(algorithm, op, dtype) else ():
            array = contribution(comm.rank, count, dtype) - 3
            wanted = (array != 0).astype(dtype) if op.startswith("l") else array
            result = allreduce(alone, array, op=op, algorithm=algorithm)
            if op.endswith("loc"):
                result, ranks = result
                assert ranks.tolist() == [0] * count
            assert result.dtype == dtype and result.tolist() == wanted.tolist(), f"{op} of {count}"
    alone.Free()


@for_every_algorithm
def test_A06_half_precision_mean_does_not_overflow(comm, algorithm):
    index = np.arange(11)
    array = (40000 - 32 * index + 32 * (2 * comm.rank - comm.size + 1)).astype(np.float16)
    result = allreduce(comm, array, op="mean", algorithm=algorithm)
    assert result.dtype == np.float16 and (result == 40000 - 32 * index).all()


@for_every_algorithm
def test_A08_mean_of_integers(comm, algorithm):
    """A float64 that neither truncates nor wraps around."""
    size = comm.size
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"):
        if takes(algorithm, "mean", dtype):
            top = 1 if dtype == "bool" else 120
            array = np.array([comm.rank % 2, top, comm.rank == 0, comm.rank < 2]).astype(dtype)
            result = allreduce(comm, array, op="mean", algorithm=algorithm)
            assert result.dtype == np.float64
            assert result.tolist() == [size // 2 / size, top, 1 / size, min(2, size) / size]


@pytest.mark.parametrize("op", ["maxloc", "minloc"])
@pytest.mark.parametrize("algorithm", ["auto", *OWN])
def test_location_of_ties_and_nan(comm, algorithm, op):
    """The lowest rank of several, and NaN before all."""
    size, sign = comm.size, 1 if op == "maxloc" else -1
    index = np.arange(3 * size)
    for dtype in (np.float64, np.float32, np.float16, np.int32, np.uint8, bool):
        array = np.where((index + comm.rank) % size < 2, sign > 0, sign < 0).astype(dtype)
        everyone = np.array([np.where((index + rank) % size < 2, 1, 0) for rank in range(size)])
        values, ranks = allreduce(comm, array, op=op, algorithm=algorithm)
        assert values.dtype == dtype and ranks.dtype == np.int64
        assert (values == (sign > 0)).all() and (ranks == everyone.argmax(axis=0)).all()
    for first in range(size):
        array = np.array([np.nan if comm.rank >= first else 1e300 * sign, float(comm.rank * sign), np.nan])
        values, ranks = allreduce(comm, array, op=op, algorithm=algorithm)
        assert np.isnan(values).tolist() == [True, False, True] and ranks.tolist() == [first, size - 1, 0]


@pytest.mark.parametrize("algorithm", ["auto", *OWN])
def test_location_into_a_pair_of_buffers(comm, algorithm):
    array = (np.arange(12.0).reshape(3, 4) * 7 + comm.rank * 5) % 11
    everyone = np.array([(np.arange(12).reshape(3, 4) * 7 + rank * 5) % 11 for rank in range(comm.size)])
    pair = np.zeros((4, 3)).T, np.full((3, 8), -1)[:, ::2]
    assert allreduce(comm, array, pair, "maxloc", algorithm=algorithm) is pair
    assert (pair[0] == everyone.max(axis=0)).all() and (pair[1] == everyone.argmax(axis=0)).all()
    assert (pair[1].base.reshape(3, 8)[:, 1::2] == -1).all()
    ranks = np.zeros((3, 4), int)
    allreduce(comm, array, (array, ranks), "maxloc", algorithm=algorithm)
    assert (array == everyone.max(axis=0)).all() and (ranks == everyone.argmax(axis=0)).all()


def test_location_in_place(comm):
    values, ranks = (np.arange(6) * 7 + comm.rank * 5) % 11, np.full(6, -1)
    everyone = np.array([(np.arange(6) * 7 + rank * 5) % 11 for rank in range(comm.size)])
    allreduce(comm, MPI.IN_PLACE, (values, ranks), "minloc")
    assert (values == everyone.min(axis=0)).all() and (ranks == everyone.argmin(axis=0)).all()


POWERS = 10 ** np.arange(19)


def concatenate(a, b):
    """Write the decimal digits of `a` before those of `b`: associative, not commutative."""
    return a * POWERS[np.searchsorted(POWERS, b, side="right")] + b


def digits(rank, count):
    return (rank + np.arange(count)) % 9 + 1


def concatenated(size, count):
    return functools.reduce(concatenate, [digits(rank, count) for rank in range(size)])


@pytest.mark.parametrize("algorithm", ["auto", *ORDERED])
def test_callable_keeps_rank_order(comm, algorithm):
    size = comm.size
    for count, segment in ((1, None), (10, None), (10, 8), (1009, 100), (300_000, None)):
        result = allreduce(comm, digits(comm.rank, count), op=concatenate, algorithm=algorithm, segment=segment)
        assert (result == concatenated(size, count)).all()
    array = np.arange(7) + 10 * comm.rank
    assert (allreduce(comm, array, op=lambda a, b: a, algorithm=algorithm) == np.arange(7)).all()
    assert (allreduce(comm, array, op=lambda a, b: b, algorithm=algorithm) == np.arange(7) + 10 * (size - 1)).all()


def multiply(a, b):
    """Multiply the matrices ((p, q), (0, 1)), each written as p + q i."""
    return a.real * b.real + 1j * (a.real * b.imag + a.imag)


@pytest.mark.parametrize("algorithm", ["auto", *ORDERED])
def test_callable_matrix_product(comm, algorithm):
    index = np.arange(5)
    matrices = [(2 - (rank + index) % 2) + 1j * (rank + 1 + index) for rank in range(comm.size)]
    result = allreduce(comm, matrices[comm.rank], op=multiply, algorithm=algorithm)
    for place in range(5):
        product = np.eye(2)
        for matrix in matrices:
            product = product @ [[matrix[place].real, matrix[place].imag], [0, 1]]
        assert [[result[place].real, result[place].imag], [0, 1]] == product.tolist()


@pytest.mark.parametrize("algorithm", ["auto", *OWN])
def test_callable_said_to_be_commutative(comm, algorithm):
    def both(a, b):
        return np.maximum(a, b) + 0 * a

    both.commutative = True
    array = contribution(comm.rank, (comm.size + 2, 3))
    assert (allreduce(comm, array, op=both, algorithm=algorithm) == contribution(comm.size - 1, array.shape)).all()


def concatenate_buffers(a, b, datatype):
    a, b = (np.frombuffer(buffer, np.int64) for buffer in (a, b))
    b[:] = concatenate(a, b)


def add_buffers(a, b, datatype):
    a, b = (np.frombuffer(buffer, np.int64) for buffer in (a, b))
    b += a


@pytest.mark.parametrize("algorithm", ["auto", "mpi", *ORDERED])
def test_user_defined_op_keeps_rank_order(comm, algorithm):
    op = MPI.Op.Create(concatenate_buffers, commute=False)
    for count in (1, 10, 1009, 300_000):
        result = allreduce(comm, digits(comm.rank, count), op=op, algorithm=algorithm)
        assert (result == concatenated(comm.size, count)).all()
        array = digits(comm.rank, count)
        allreduce(comm, MPI.IN_PLACE, array, op, algorithm=algorithm)
        assert (array == concatenated(comm.size, count)).all()
    op.Free()


@every_algorithm
def test_user_defined_op_that_commutes(comm, algorithm):
    op = MPI.Op.Create(add_buffers, commute=True)
    for count in (1, comm.size + 1, 1009, 300_000):
        result = allreduce(comm, contribution(comm.rank, count, np.int64), op=op, algorithm=algorithm)
        assert (result == total(comm.size, count, np.int64)).all()
    op.Free()


def test_refusal_of_what_does_not_commute(comm):
    op = MPI.Op.Create(concatenate_buffers, commute=False)
    assert "ring" not in ORDERED
    for algorithm in set(OWN) - set(ORDERED):
        for given in (op, concatenate):
            with pytest.raises(ValueError, match=rf"{algorithm}.*not commutative"):
                hpcreduce.allreduce(comm, digits(comm.rank, 4), op=given, algorithm=algorithm)
    op.Free()
    assert allreduce(comm, 1) == comm.size
