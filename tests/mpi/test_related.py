"""reduce_scatter, allgather, reduce and bcast, against exact values and against MPI's own calls."""

import functools

import numpy as np
import pytest
from mpi4py import MPI

import hpcreduce
from hpcreduce.measure import samples
from hpcreduce.schedule import partition

pytestmark = pytest.mark.mpi
COUNTS = (0, 1, 2, 7, 12, 1009, 300_000)


def mine(comm, shape, dtype=np.float64, rank=None):
    index = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    rank = comm.rank if rank is None else rank
    return np.asarray((rank + 1) * (index + 1) + rank, dtype)


def total(comm, shape, dtype=np.float64):
    return np.asarray(sum(mine(comm, shape, np.int64, rank) for rank in range(comm.size)), dtype)


def part(comm, count):
    return slice(*partition(count, comm.size)[comm.rank])


@pytest.mark.parametrize("segment", [None, 24])
def test_reduce_scatter(comm, segment):
    for count in COUNTS[: 6 if segment else 7]:
        array, own = mine(comm, count), part(comm, count)
        out = np.full(own.stop - own.start, -1.0)
        assert hpcreduce.reduce_scatter(comm, array, out, segment=segment, timeout=60) is out
        result = hpcreduce.reduce_scatter(comm, array, segment=segment, timeout=60)
        lengths = [span.length for span in partition(count, comm.size)]
        reference = np.full(own.stop - own.start, -1.0)
        comm.Reduce_scatter(array, reference, lengths)
        for found in (out, result, reference):
            assert (found == total(comm, count)[own]).all()
        assert (array == mine(comm, count)).all()


@pytest.mark.parametrize("op", hpcreduce.OPERATIONS)
def test_reduce_scatter_and_reduce_of_every_op(comm, op):
    for name, dtype in samples.dtypes().items():
        if samples.applies(op, dtype):
            array, own = samples.make(op, dtype, 23, comm.rank, comm.size), part(comm, 23)
            wanted = samples.expected(op, dtype, 23, comm.size)
            result = hpcreduce.reduce_scatter(comm, array, op=op, timeout=60)
            for found, want in zip(result if isinstance(result, tuple) else (result,), wanted, strict=True):
                assert found.dtype == want.dtype and samples.same(found, want[own]).all(), name
            root = 1 % comm.size
            result = hpcreduce.reduce(comm, array, op=op, root=root, timeout=60)
            if comm.rank != root:
                assert result is None
                continue
            for found, want in zip(result if isinstance(result, tuple) else (result,), wanted, strict=True):
                assert found.dtype == want.dtype and samples.same(found, want).all(), name


def last(a, b):
    return b


def test_rank_order_is_kept(comm):
    for count in (1, 10, 1009):
        array = mine(comm, count)
        wanted = mine(comm, count, rank=comm.size - 1)
        assert (hpcreduce.reduce_scatter(comm, array, op=last, timeout=60) == wanted[part(comm, count)]).all()
        for root in range(comm.size):
            result = hpcreduce.reduce(comm, array, op=last, root=root, timeout=60)
            assert (result == wanted).all() if comm.rank == root else result is None


@pytest.mark.parametrize("segment", [None, 24])
def test_reduce(comm, segment):
    for count in COUNTS[: 6 if segment else 7]:
        for root in {0, 1 % comm.size, comm.size - 1}:
            array, out, reference = mine(comm, count), np.full(count, -1.0), np.full(count, -1.0)
            result = hpcreduce.reduce(comm, array, out, root=root, segment=segment, timeout=60)
            comm.Reduce(array, reference, root=root)
            if comm.rank == root:
                assert result is out and (out == total(comm, count)).all() and (out == reference).all()
            else:
                assert result is None and (out == -1).all()
            assert (array == mine(comm, count)).all()
            sendbuf = MPI.IN_PLACE if comm.rank in (root, comm.size // 2) else array
            hpcreduce.reduce(comm, sendbuf, array, root=root, segment=segment, timeout=60)
            assert (array == (total(comm, count) if comm.rank == root else mine(comm, count))).all()


def test_reduce_of_scalars_and_views(comm):
    size = comm.size
    assert hpcreduce.reduce(comm, comm.rank, timeout=60) == (size * (size - 1) // 2 if comm.rank == 0 else None)
    array = mine(comm, (4, 6))
    found = hpcreduce.reduce(comm, array.T[::2], op="mean", timeout=60)
    assert found is None if comm.rank else (found * size == total(comm, (4, 6)).T[::2]).all()


@pytest.mark.parametrize("segment", [None, 24])
def test_allgather(comm, segment):
    for shape in ((0,), (1,), (5,), (2, 3), (), (100_000,)):
        array = mine(comm, shape)
        result = hpcreduce.allgather(comm, array, segment=None if shape == (100_000,) else segment, timeout=60)
        reference = np.empty((comm.size, *shape))
        comm.Allgather(array, reference)
        assert result.shape == (comm.size, *shape) and (result == reference).all()
        assert all((result[rank] == mine(comm, shape, rank=rank)).all() for rank in range(comm.size))


def test_allgather_undoes_reduce_scatter(comm):
    for count in COUNTS:
        chunk = hpcreduce.reduce_scatter(comm, mine(comm, count), timeout=60)
        out, wide = np.full(count, -1.0), np.full((count, 2), -1.0)
        assert hpcreduce.allgather(comm, chunk, out, timeout=60) is out and (out == total(comm, count)).all()
        hpcreduce.allgather(comm, chunk, wide[:, 1], timeout=60)
        assert (wide[:, 1] == total(comm, count)).all() and (wide[:, 0] == -1).all()
        out[:] = -1
        out[part(comm, count)] = chunk
        hpcreduce.allgather(comm, MPI.IN_PLACE, out, timeout=60)
        assert (out == total(comm, count)).all()


ANY = {
    "float64": lambda count: np.arange(count) * 1.5,
    "structured": lambda count: np.array([(index, index + 0.5) for index in range(count)], [("a", "i2"), ("b", "f8")]),
    "text": lambda count: np.array([f"text {index}" for index in range(count)], "U12"),
    "big-endian": lambda count: np.arange(count).astype(">i4"),
    "bool": lambda count: np.arange(count) % 3 == 0,
    "dates": lambda count: np.arange(count).astype("M8[D]"),
}


@pytest.mark.parametrize("kind", ANY)
def test_bcast_and_allgather_of_any_dtype(comm, kind):
    for count in (0, 1, 1000):
        wanted = ANY[kind](count)
        for root in range(comm.size):
            array = wanted.copy() if comm.rank == root else np.zeros_like(wanted)
            assert hpcreduce.bcast(comm, array, root, timeout=60) is array
            assert (array == wanted).all()
        gathered = hpcreduce.allgather(comm, wanted[::-1] if comm.rank % 2 else wanted, timeout=60)
        for rank in range(comm.size):
            assert (gathered[rank] == (wanted[::-1] if rank % 2 else wanted)).all()


@pytest.mark.parametrize("segment", [None, 24])
def test_bcast(comm, segment):
    for count in COUNTS[: 6 if segment else 7]:
        for root in {0, 1 % comm.size, comm.size - 1}:
            array, reference = mine(comm, count), mine(comm, count)
            frozen = array[:]
            frozen.flags.writeable = comm.rank != root
            hpcreduce.bcast(comm, frozen, root, segment=segment, timeout=60)
            comm.Bcast(reference, root)
            assert (array == mine(comm, count, rank=root)).all() and (array == reference).all()


def test_bcast_of_views(comm):
    root = comm.size - 1
    base = np.full((6, 4), -1.0)
    view = base[::2].T if comm.rank % 2 else base.reshape(4, 6)[:, ::2]
    wanted = mine(comm, (4, 3), rank=root)
    if comm.rank == root:
        view[...] = wanted
    hpcreduce.bcast(comm, view, root, timeout=60)
    assert (view == wanted).all() and (base == -1).sum() == 12


def test_prepared_calls_are_kept(comm):
    for _ in range(3):
        hpcreduce.bcast(comm, np.zeros(5), timeout=60)
        hpcreduce.reduce_scatter(comm, np.zeros(5), timeout=60)
        hpcreduce.allreduce(comm, np.zeros(5), algorithm="ring", timeout=60)
    state = hpcreduce.runtime.agreement.state(comm)
    assert len(state.calls) == 3


def test_bad_input(comm):
    frozen = np.zeros(comm.size)
    frozen.flags.writeable = False
    last_rank = comm.size - 1
    one = np.zeros(1)
    calls = functools.partial
    for call, kind, text in (
        (calls(hpcreduce.reduce, comm, one, root=comm.size), ValueError, f"from 0 to {last_rank}, found {comm.size}"),
        (calls(hpcreduce.bcast, comm, one, root=-1), ValueError, "root must be a rank"),
        (calls(hpcreduce.bcast, comm, one, root="0"), TypeError, "root must be a rank"),
        (calls(hpcreduce.bcast, comm, np.array([None])), TypeError, "dtype object"),
        (calls(hpcreduce.bcast, comm, comm.rank), TypeError, "buf must be a writable array or buffer, found int"),
        (calls(hpcreduce.bcast, comm, [1.0] if comm.rank else None), TypeError, "array or buffer, found"),
        (calls(hpcreduce.allgather, comm, np.array([None])), TypeError, "dtype object"),
        (calls(hpcreduce.allgather, comm, one, np.zeros(comm.size * 2)), ValueError, "found 1 in sendbuf"),
        (calls(hpcreduce.allgather, comm, one, np.zeros(comm.size, int)), TypeError, "expected float64"),
        (calls(hpcreduce.allgather, comm, one, frozen), ValueError, "read-only"),
        (calls(hpcreduce.reduce_scatter, comm, np.zeros(comm.size), np.zeros(2)), ValueError, r"expected \(1,\)"),
        (calls(hpcreduce.reduce_scatter, comm, MPI.IN_PLACE, one), ValueError, "no form in place"),
        (calls(hpcreduce.reduce_scatter, comm, one, op="average"), ValueError, "unknown op"),
        (calls(hpcreduce.reduce_scatter, comm, one, segment=1.5), TypeError, "segment"),
        (calls(hpcreduce.bcast, comm, one, segment=0), ValueError, "segment"),
        (calls(hpcreduce.bcast, comm, one, timeout=-1), ValueError, "timeout"),
        (calls(hpcreduce.bcast, MPI.COMM_NULL, one), ValueError, "COMM_NULL"),
        (calls(hpcreduce.reduce, None, one), TypeError, "communicator"),
    ):
        with pytest.raises(kind, match=text):
            call()
    assert hpcreduce.allreduce(comm, 1, timeout=60) == comm.size
