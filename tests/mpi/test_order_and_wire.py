"""``order="rank"`` and ``wire=``: rounded once, the same bits on every rank, and what travels."""

import fractions
import itertools

import numpy as np
import pytest
from mpi4py import MPI

import hpcreduce
from hpcreduce.measure import samples

pytestmark = pytest.mark.mpi
FLOATS = (np.float32, np.float64, np.longdouble, np.complex64, np.complex128, np.float16, ">f8")


def allreduce(comm, *arguments, **options):
    return hpcreduce.allreduce(comm, *arguments, timeout=60, **options)


def wild(rank, count, dtype=np.float64, seed=0):
    """Numbers of very different sizes that cancel in part, from a rank's own stream."""
    rng = np.random.default_rng([rank, seed])
    dtype = np.dtype(dtype)
    span = 3 if dtype.itemsize == 2 else 20
    values = rng.standard_normal(count) * 2.0 ** rng.integers(-span, span, count)
    if dtype.kind == "c":
        values = values + 1j * rng.standard_normal(count)
    return values.astype(dtype)


def bits(array):
    """Bytes that count: the padding of long doubles does not."""
    return array.tobytes() if array.dtype.char not in "gG" else repr(array.tolist()).encode()


def same_everywhere(comm, array):
    return comm.allgather(bits(array)) == [bits(array)] * comm.size


def exactly(comm, count, divisor=1, seed=0):
    """Float64 sums, rounded once, by exact fractions."""
    columns = zip(*(wild(rank, count, seed=seed) for rank in range(comm.size)), strict=True)
    return np.array([float(sum(map(fractions.Fraction, column)) / divisor) for column in columns])


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_rank_order_is_rounded_once(comm, op):
    for count in (0, 1, comm.size, 101):
        wanted = exactly(comm, count, comm.size if op == "mean" else 1)
        result = allreduce(comm, wild(comm.rank, count), op=op, order="rank")
        assert (result == wanted).all() and same_everywhere(comm, result)


def test_rank_order_where_the_plain_sum_loses_everything(comm):
    """1e16, 1, 1, ..., -1e16: a plain sum in any order may lose the ones."""
    last = comm.size - 1
    value = {0: 1e16, last: -1e16}.get(comm.rank, 1.0) if comm.size > 1 else 0.0
    result = allreduce(comm, np.full(7, value), order="rank")
    assert (result == max(0, comm.size - 2)).all()
    if comm.size > 2:
        mean = allreduce(comm, np.full(7, value), op="mean", order="rank")
        assert (mean == (comm.size - 2) / comm.size).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_rank_order_does_not_depend_on_segment_or_start(comm, dtype):
    """The same bits for every segment, in place or not, alone or again."""
    array = wild(comm.rank, 1009, dtype)
    first = allreduce(comm, array, order="rank")
    assert first.dtype == array.dtype and same_everywhere(comm, first)
    for segment, again in itertools.product((None, 64, 1000), range(2)):
        other = allreduce(comm, array, order="rank", segment=segment)
        assert bits(other) == bits(first), (segment, again)
    copy = array.copy()
    allreduce(comm, MPI.IN_PLACE, copy, order="rank", algorithm="direct")
    assert bits(copy) == bits(first)
    with hpcreduce.allreduce_init(comm, array, order="rank", timeout=60) as plan:
        for _ in range(3):
            plan.Start()
            assert bits(plan.Wait()) == bits(first)
    assert bits(hpcreduce.iallreduce(comm, array, order="rank", timeout=60).Wait()) == bits(first)


def test_rank_order_on_a_split_into_nodes(comm, monkeypatch):
    """The bits do not change with the node map."""
    array = wild(comm.rank, 1009)
    first = allreduce(comm, array, order="rank")
    other = comm.Dup()
    monkeypatch.setattr(hpcreduce.runtime.state, "node_map", lambda hosts: tuple(range(len(hosts))))
    assert allreduce(other, array, order="rank").tobytes() == first.tobytes()
    other.Free()


def test_rank_order_of_infinities_and_nan(comm):
    array = np.array([1.0, np.inf if comm.rank == 0 else 1, np.nan if comm.rank == comm.size - 1 else 1, 1e308])
    array = np.append(array, [np.inf if comm.rank % 2 else -np.inf])
    result = allreduce(comm, array, order="rank")
    assert result[0] == comm.size and result[1] == np.inf and np.isnan(result[2])
    assert result[3] == (np.inf if comm.size > 1 else 1e308)
    assert np.isnan(result[4]) if comm.size > 1 else result[4] == -np.inf
    mean = allreduce(comm, array, op="mean", order="rank")
    assert mean[0] == 1 and mean[1] == np.inf and np.isnan(mean[2])


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "nanmax", "lor", "bor", "maxloc"])
def test_rank_order_of_everything_else(comm, op):
    for name, dtype in samples.dtypes().items():
        if samples.applies(op, dtype):
            result = allreduce(comm, samples.make(op, dtype, 23, comm.rank, comm.size), op=op, order="rank")
            wanted = samples.expected(op, dtype, 23, comm.size)
            for found, want in zip(result if isinstance(result, tuple) else (result,), wanted, strict=True):
                assert found.dtype == want.dtype and samples.same(found, want).all(), name


def wires():
    dtypes = samples.dtypes()
    return {name: dtypes[name] for name in ("bfloat16", "float16") if name in dtypes}


@pytest.mark.parametrize("wire", wires())
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_wire_rounds_contributions_and_result_once(comm, wire, dtype, op):
    kind, work = wires()[wire], np.float64 if dtype is np.float64 else np.float32
    for count in (0, 1, comm.size + 1, 1009):
        inputs = [(wild(rank, count) / 2**8).astype(dtype) for rank in range(comm.size)]
        total = np.zeros(count, work)
        for each in inputs:
            total = total + each.astype(kind).astype(work)
        wanted = (total / (comm.size if op == "mean" else 1)).astype(work).astype(kind).astype(dtype)
        for segment in (None, 64):
            result = allreduce(comm, inputs[comm.rank].copy(), op=op, wire=wire, segment=segment)
            assert result.dtype == dtype and same_everywhere(comm, result)
            step = np.abs(wanted.astype(float)) * (2.0**-7 if wire == "bfloat16" else 2.0**-10) + 2.0**-20
            assert (np.abs(result.astype(float) - wanted.astype(float)) <= step).all()  # another order of the sum
        whole = np.full(count, float(comm.rank + 1), dtype)  # exact on either wire
        result = allreduce(comm, whole, op=op, wire=wire)
        assert (result == comm.size * (comm.size + 1) / 2 / (comm.size if op == "mean" else 1)).all()


@pytest.mark.parametrize("wire", wires())
def test_wire_and_order_together(comm, wire):
    """Rounded once at the end, from a sum in doubled precision: exact numbers."""
    kind = wires()[wire]
    inputs = [wild(rank, 101, np.float32) / np.float32(2**8) for rank in range(comm.size)]
    exact = [
        sum(fractions.Fraction(float(value)) for value in column)
        for column in zip(*(each.astype(kind).astype(float) for each in inputs), strict=True)
    ]
    result = allreduce(comm, inputs[comm.rank], wire=wire, order="rank")
    assert (result == np.array([float(value) for value in exact]).astype(kind).astype(np.float32)).all()


def test_half_precision_mean_does_not_overflow_on_its_wire(comm):
    array = np.full(11, 40000, np.float32)
    assert (allreduce(comm, array, op="mean", wire="float16") == 40000).all()


def test_wire_keeps_nan_and_infinity(comm):
    array = np.array([np.nan if comm.rank == 0 else 1, 1e30 if comm.rank == 0 else 0, 2], np.float32)
    result = allreduce(comm, array, op="max", wire="float16")
    assert np.isnan(result[0]) and result[1:].tolist() == [np.inf, 2]


class Spy:
    """A communicator that counts the bytes that are sent."""

    def __init__(self, comm):
        self.comm, self.sent = comm, 0

    def Isend(self, message, peer, tag):
        self.sent += message.nbytes
        return self.comm.Isend(message, peer, tag)

    def __getattr__(self, name):
        return getattr(self.comm, name)


def test_narrow_wires_halve_the_traffic(comm, monkeypatch):
    spies = []
    stream = hpcreduce.runtime.movers.Stream
    monkeypatch.setattr(
        hpcreduce.runtime.movers,
        "Stream",
        lambda comm, *a, **k: (spies.append(Spy(comm)), stream(spies[-1], *a, **k))[1],
    )
    array = np.ones(1000, np.float32)
    for options in ({}, {"wire": "float16"}, {"order": "rank"}):
        allreduce(comm, array, algorithm="direct", **options)
    plain, narrow, ordered = (spy.sent for spy in spies)
    assert narrow * 2 == plain == ordered and (plain > 0) == (comm.size > 1)


def test_what_makes_no_sense_is_refused(comm):
    for options, kind, text in (
        ({"order": "ranks"}, ValueError, "unknown order 'ranks', expected 'rank'"),
        ({"wire": "float8"}, ValueError, "unknown wire 'float8', expected one of bfloat16, float16"),
        ({"order": "rank", "algorithm": "ring"}, ValueError, "order 'rank' needs algorithm 'direct', found 'ring'"),
        ({"wire": "float16", "algorithm": "mpi"}, ValueError, "wire 'float16' needs algorithm 'direct', found 'mpi'"),
        ({"order": "rank", "op": "prod"}, ValueError, "sums and means, found op 'prod'"),
        ({"wire": "float16", "op": "maxloc"}, ValueError, "wire 'float16' is for floating point"),
        ({"wire": 16}, ValueError, "unknown wire"),
        ({"wire": ""}, ValueError, "unknown wire ''"),
        ({"order": ""}, ValueError, "unknown order ''"),
        ({"order": 0}, ValueError, "unknown order 0"),
    ):
        with pytest.raises(kind, match=text):
            allreduce(comm, np.ones(3), **options)
    for dtype in (np.int32, np.complex64, bool):
        with pytest.raises(ValueError, match="wire 'float16' is for floating point"):
            allreduce(comm, np.ones(3, dtype), wire="float16")
    assert allreduce(comm, 1) == comm.size
