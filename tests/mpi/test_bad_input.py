"""Wrong calls of `hpcreduce.allreduce`.

Each raises TypeError or ValueError on the rank that makes it, says what is allowed, writes nothing, sends nothing, and
leaves the communicator in working order.
"""

import decimal
import re
import time
import types

import numpy as np
import pytest
from mpi4py import MPI
from numpy.lib.stride_tricks import as_strided

import hpcreduce
from hpcreduce.runtime import agreement
from hpcreduce.runtime.state import CALLS

pytestmark = pytest.mark.mpi
OPS = "expected one of " + ", ".join(hpcreduce.OPERATIONS)
NAMES = "expected auto, " + ", ".join(hpcreduce.ALGORITHMS)
NUMBERS = "it takes bool, int, uint, float"


def works(comm):
    mine = np.arange(5.0) * (comm.rank + 1)
    total = comm.size * (comm.size + 1) // 2 * np.arange(5.0)
    return (hpcreduce.allreduce(comm, mine, algorithm="ring", timeout=60) == total).all()


def wrong(name, error, words, *arguments, **options):
    """Describe a wrong call, the error that it should raise and what that should say."""
    return types.SimpleNamespace(
        name=name, error=error, words=words, arguments=arguments, options={"timeout": 5} | options
    )


def complaints(comm, cases):
    """Make wrong calls and list those that are not refused as they should be."""
    found = []
    for case in cases:
        try:
            hpcreduce.allreduce(comm, *case.arguments, **case.options)
        except Exception as error:
            if type(error) is not case.error or not re.search(case.words, str(error)):
                found.append(f"{case.name}: {type(error).__name__}: {error}")
        else:
            found.append(f"{case.name}: no error")
    return found


X = np.arange(6.0)
ARGUMENTS = [
    wrong("unknown op", ValueError, f"unknown op 'median'; {OPS}", X, op="median"),
    wrong("op in capitals", ValueError, OPS, X, op="SUM"),
    wrong("op None", TypeError, "op must be a name", X, op=None),
    wrong("op number", TypeError, "op must be a name", X, op=3),
    wrong("op list", TypeError, "op must be a name", X, op=["sum"]),
    wrong("op array", TypeError, "op must be a name", X, op=X),
    wrong("op of Python", TypeError, "write op='max'", X, op=max),
    wrong("op null", ValueError, OPS, X, op=MPI.OP_NULL),
    wrong("op that replaces", ValueError, OPS, X, op=MPI.REPLACE),
    wrong("op that is another handle", ValueError, OPS, X, op=MPI.DOUBLE),
    wrong("op in place of output", TypeError, "recvbuf must be a writable array or buffer, found str", X, "sum"),
    wrong("constant in place of output", TypeError, "recvbuf must be a writable array or buffer, found Op", X, MPI.SUM),
    wrong("unknown algorithm", ValueError, f"unknown algorithm 'rings'; {NAMES}", X, algorithm="rings"),
    wrong("algorithm None", TypeError, "algorithm must be a name, found NoneType", X, algorithm=None),
    wrong("algorithm list", TypeError, "algorithm must be a name, found list", X, algorithm=["ring"]),
    wrong("segment 0", ValueError, "segment must be at least 1 byte, found 0", X, segment=0),
    wrong("segment negative", ValueError, "segment must be at least 1 byte, found -8", X, segment=-8),
    wrong("segment float", TypeError, "segment must be a whole number of bytes, found 8.5", X, segment=8.5),
    wrong("segment bool", TypeError, "segment must be a whole number of bytes, found True", X, segment=True),
    wrong("segment text", TypeError, "segment must be a whole number of bytes, found '8'", X, segment="8"),
    wrong("segment list", TypeError, "segment must be a whole number of bytes", X, segment=[8]),
    wrong("timeout 0", ValueError, "timeout must be above 0 seconds, found 0", X, timeout=0),
    wrong("timeout negative", ValueError, "timeout must be above 0 seconds, found -1", X, timeout=-1.0),
    wrong("timeout NaN", ValueError, "timeout must be above 0 seconds, found nan", X, timeout=float("nan")),
    wrong("timeout text", TypeError, "timeout must be a number of seconds, found '5'", X, timeout="5"),
    wrong("timeout bool", TypeError, "timeout must be a number of seconds, found True", X, timeout=True),
]

MASKED = np.ma.masked_array(X, [False, True] * 3)
FAR = types.SimpleNamespace(
    __cuda_array_interface__={"shape": (6,), "typestr": "<f8", "data": (0, False), "version": 3}
)
INPUTS = [
    wrong("None", TypeError, f"object; {NUMBERS}", None),
    wrong("object array", TypeError, f"object; {NUMBERS}", np.array([1.0, None])),
    wrong("records", TypeError, rf"dtype \[\('a', '<f8'\).*{NUMBERS}", np.zeros(2, [("a", "f8"), ("b", "i4")])),
    wrong("text", TypeError, f"<U5; {NUMBERS}", np.array(["three"])),
    wrong("string", TypeError, f"<U3; {NUMBERS}", "sum"),
    wrong("bytes", TypeError, f"S3; {NUMBERS}", b"abc"),
    wrong("decimal", TypeError, f"object; {NUMBERS}", decimal.Decimal(3)),
    wrong("dictionary", TypeError, f"object; {NUMBERS}", {"a": 1}),
    wrong("ragged list", TypeError, "sendbuf is not an array", [[1], [2, 3]]),
    wrong("list with text", TypeError, NUMBERS, [1, "two"]),
    wrong("buffer and type", TypeError, "sendbuf is not an array", [X, MPI.DOUBLE]),
    wrong("large integer", ValueError, "9223372036854775808 does not fit into int64", 2**63),
    wrong("masked array", TypeError, "masked arrays are not supported", MASKED),
    wrong("masked array in place", TypeError, "masked arrays are not supported", MPI.IN_PLACE, MASKED),
    wrong("array on a GPU", TypeError, "GPU memory.*host", FAR),
    wrong("dates have no sum", TypeError, "datetime64.*it takes bool", X.astype("M8[s]")),
    wrong("complex has no order", TypeError, "'max' does not take dtype complex128; it takes", X * 1j, op="max"),
    wrong("floats have no bits", TypeError, "dtype float64; it takes bool, int, uint$", X, op="bor"),
    wrong("in place of nothing", ValueError, "IN_PLACE, so recvbuf must be the array", MPI.IN_PLACE),
]


def read_only(array):
    array.flags.writeable = False
    return array


OUT = np.zeros(12)
SQUARE = np.zeros((3, 3))
INTS = np.arange(6)
OUTPUTS = [
    wrong("read-only", ValueError, "read-only; expected a writable", X, read_only(np.zeros(6))),
    wrong("read-only in place", ValueError, "read-only; expected a writable", MPI.IN_PLACE, read_only(np.zeros(6))),
    wrong("bytes", ValueError, "read-only; expected a writable", X.astype("u1"), bytes(6)),
    wrong("too short", ValueError, r"shape \(5,\), expected \(6,\)", X, OUT[:5]),
    wrong("too long", ValueError, r"shape \(12,\), expected \(6,\)", X, OUT),
    wrong("other shape of one size", ValueError, r"shape \(2, 3\), expected \(6,\)", X, OUT[:6].reshape(2, 3)),
    wrong("shape that would broadcast", ValueError, r"shape \(1, 6\), expected \(6,\)", X, OUT[:6].reshape(1, 6)),
    wrong("array for a scalar", ValueError, r"shape \(1,\), expected \(\)", 3.0, OUT[:1]),
    wrong("other dtype", TypeError, "dtype float32, expected float64", X, np.zeros(6, "f4")),
    wrong("signed for unsigned", TypeError, "dtype int64, expected uint64", INTS.astype("u8"), np.zeros(6, "i8")),
    wrong("integers for a mean", TypeError, "dtype int64, expected float64", INTS, np.zeros(6, "i8"), op="mean"),
    wrong("mean in place", TypeError, "dtype int64, expected float64", MPI.IN_PLACE, INTS, op="mean"),
    wrong("sum of bools in place", TypeError, "dtype bool, expected int64", MPI.IN_PLACE, np.ones(3, bool)),
    wrong("list", TypeError, "recvbuf must be a writable array or buffer, found list", X, [0.0] * 6),
    wrong("list in place", TypeError, "recvbuf must be a writable array or buffer, found list", MPI.IN_PLACE, [1.0]),
    wrong("number", TypeError, "recvbuf must be a writable array or buffer, found float", 3.0, 0.0),
    wrong("masked", TypeError, "recvbuf is a masked array", X, np.ma.zeros(6)),
    wrong("overlap", ValueError, "overlap partly; expected", OUT[:6], OUT[2:8]),
    wrong("overlap of steps", ValueError, "overlap partly; expected", OUT[:6], OUT[::2]),
    wrong("overlap with the reverse", ValueError, "overlap partly; expected", OUT, OUT[::-1]),
    wrong("overlap with the transpose", ValueError, "overlap partly; expected", SQUARE, SQUARE.T),
    wrong("overlap of types", ValueError, "overlap partly; expected", INTS, INTS.view("f8"), op="mean"),
    wrong("one element for all", ValueError, "share memory", X, as_strided(np.zeros(1), (6,), (0,))),
    wrong("one array for a pair", TypeError, r"pair \(values, ranks\)", X, OUT[:6], op="maxloc"),
    wrong("three for a pair", TypeError, r"pair \(values, ranks\)", X, (OUT[:6], INTS, INTS), op="maxloc"),
    wrong("ranks of another type", TypeError, "dtype float64, expected int64", X, (OUT[:6], OUT[6:]), op="maxloc"),
]
CASES = {"arguments": ARGUMENTS, "inputs": INPUTS, "outputs": OUTPUTS}


@pytest.mark.parametrize("kind", CASES)
def test_wrong_calls_are_refused(comm, kind):
    assert works(comm)
    assert complaints(comm, CASES[kind]) == []
    assert works(comm)


@pytest.mark.parametrize("kind", CASES)
def test_first_call_is_wrong(comm, kind):
    assert complaints(comm, CASES[kind]) == []
    assert works(comm)


def test_one_rank_is_wrong(comm):
    """It is told at once, without a message to the others, and is in step with them afterwards."""
    accepted, slowest = [], 0.0
    for rank in range(min(comm.size, 3)):
        assert works(comm)
        if comm.rank == rank:
            start = time.monotonic()
            accepted += [text for cases in CASES.values() for text in complaints(comm, cases) if "no error" in text]
            slowest = time.monotonic() - start
        assert works(comm)
    assert accepted == []
    assert slowest < 2


def test_output_that_overlaps_itself(comm):
    with pytest.raises(ValueError, match=r"share memory|overlap"):
        hpcreduce.allreduce(comm, np.ones((3, 3)), as_strided(np.zeros(5), (3, 3), (8, 8)), timeout=10)


def test_output_that_is_twice_the_same(comm):
    out = np.zeros(8, int)
    for pair in ((out[:6], out[:6]), (out[:6], out[2:])):
        with pytest.raises(ValueError, match=r"share memory|overlap"):
            hpcreduce.allreduce(comm, INTS, pair, "minloc", timeout=10)


def test_nothing_is_written_by_a_refused_call(comm):
    before = np.arange(6.0) + comm.rank
    for options in ({"op": "median"}, {"algorithm": "rings"}, {"segment": 0}, {"timeout": -1}, {"op": "maxloc"}):
        out, mine = before.copy(), before.copy()
        for arguments in ((mine, out), (MPI.IN_PLACE, out)):
            with pytest.raises((TypeError, ValueError)):
                hpcreduce.allreduce(comm, *arguments, **options)
            assert (out == before).all() and (mine == before).all()
    assert works(comm)


@pytest.mark.parametrize("segment", [True, 1.0])
def test_segment_is_refused_however_often_it_was_right(comm, segment):
    """``True == 1 == 1.0``, which must not find what was prepared for 1."""
    for _ in range(2):
        assert hpcreduce.allreduce(comm, comm.rank, segment=1, timeout=60) == comm.size * (comm.size - 1) // 2
        with pytest.raises(TypeError, match="segment must be a whole number of bytes"):
            hpcreduce.allreduce(comm, comm.rank, segment=segment, timeout=10)


def test_library_refuses_where_its_meaning_is_another(comm):
    """And says what to do, which works."""
    index = np.arange(5)
    for op, dtype in [
        *((op, dtype) for op in ("max", "min", "nanmax", "nanmin") for dtype in ("f2", "f4", "f8", "g", "m8[s]")),
        *(("sum", dtype) for dtype in ("i1", "u1", "i2", "u2", "m8[s]")),
        *((op, dtype) for op in ("maxloc", "minloc") for dtype in ("i4", "f8")),
    ]:
        mine = index.astype(dtype)
        with pytest.raises(ValueError, match=rf"'mpi' does not give our meaning of op '{op}'.*algorithm='auto'"):
            hpcreduce.allreduce(comm, mine, op=op, algorithm="mpi", timeout=10)
        result = hpcreduce.allreduce(comm, mine, op=op, timeout=60)
        values = result[0] if op.endswith("loc") else result
        assert (values == mine * (comm.size if op == "sum" else 1)).all()
    with pytest.raises(ValueError, match=r"'mpi' .*op 'callable add'.*use algorithm='auto'"):
        hpcreduce.allreduce(comm, mine, op=np.add, algorithm="mpi", timeout=10)
    assert works(comm)


def test_buffers_that_do_not_overlap_are_taken(comm):
    """Though they lie within each other, or beside each other."""
    base = np.arange(12.0)
    hpcreduce.allreduce(comm, base[::2], base[1::2], timeout=60)
    assert (base[1::2] == comm.size * np.arange(0, 12, 2)).all() and (base[::2] == np.arange(0, 12, 2)).all()
    table = np.arange(12.0).reshape(4, 3)
    hpcreduce.allreduce(comm, table[:, 0], table[:, 2], timeout=60)
    assert (table[:, 2] == comm.size * np.arange(0, 12, 3)).all() and (table[:, 1] == np.arange(1, 12, 3)).all()
    hpcreduce.allreduce(comm, base[:6], base[6:], timeout=60)
    assert (base[6:] == comm.size * base[:6]).all()


def test_refused_calls_of_new_kinds_leave_ranks_in_step(comm):
    """What one rank alone is refused changes nothing that all ranks count on: prepared calls, their order, requests."""
    kinds = range(1, CALLS + 40)
    for turn in range(2):
        if comm.rank == turn % comm.size:
            for count in (*kinds, *reversed(kinds)):
                for recvbuf in (np.zeros(count + 1), np.zeros(count, np.int8)):
                    with pytest.raises((TypeError, ValueError)):
                        hpcreduce.allreduce(comm, np.ones(count), recvbuf, timeout=60)
                    with pytest.raises((TypeError, ValueError)):
                        hpcreduce.allreduce_init(comm, np.ones(count), recvbuf, timeout=60)
        for count in kinds:
            assert hpcreduce.allreduce(comm, np.ones(count), timeout=60).tolist() == [comm.size] * count
        with hpcreduce.allreduce_init(comm, np.ones(3), timeout=60) as plan:
            handle = hpcreduce.iallreduce(comm, np.full(3, 2.0), timeout=60)
            plan.Start()
            assert handle.Wait().tolist() == [2 * comm.size] * 3 and plan.Wait().tolist() == [comm.size] * 3


@pytest.fixture(params=["before", "after"])
def first_use(request, monkeypatch):
    """Whether this process has used the package on any communicator."""
    if request.param == "before":
        monkeypatch.setattr(agreement, "_running", [])
    else:
        assert hpcreduce.allreduce(MPI.COMM_SELF, 1, timeout=60) == 1


def test_null_and_freed_communicators(comm, first_use):
    freed = comm.Dup()
    if agreement._running:
        assert works(freed)
    freed.Free()
    for gone in (MPI.COMM_NULL, freed):
        with pytest.raises(ValueError, match=r"COMM_NULL.*freed.*not a member"):
            hpcreduce.allreduce(gone, 1.0, timeout=10)


def test_intercommunicator(comm, first_use):
    if comm.size == 1:
        pytest.skip("an intercommunicator needs two ranks")
    half = comm.Split(comm.rank % 2)
    between = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    with pytest.raises(ValueError, match=r"intercommunicator.*Merge"):
        hpcreduce.allreduce(between, 1.0, timeout=10)
    merged = between.Merge()
    assert hpcreduce.allreduce(merged, 1, timeout=60) == comm.size
    for made in (merged, between, half):
        made.Free()


NO_COMMUNICATORS = {
    "None": None,
    "number": 3,
    "text": "world",
    "array": np.zeros(3),
    "the module": MPI,
    "the class": MPI.Intracomm,
    "a method": MPI.COMM_WORLD.Dup,
    "datatype": MPI.INT,
    "op": MPI.SUM,
    "group": MPI.GROUP_EMPTY,
    "info": MPI.INFO_NULL,
}


def test_what_is_no_communicator(comm, first_use):
    words = "comm must be a communicator such as mpi4py.MPI.COMM_WORLD, found"
    cases = [wrong(name, TypeError, words, X) for name in NO_COMMUNICATORS]
    found = [complaints(NO_COMMUNICATORS[case.name], [case]) for case in cases]
    assert found == [[]] * len(cases)


def test_arguments_in_the_wrong_order(comm):
    with pytest.raises(TypeError, match=r"comm must be a communicator .* found ndarray"):
        hpcreduce.allreduce(np.arange(3.0), comm, timeout=10)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_timeout_in_the_environment(comm, monkeypatch, text):
    monkeypatch.setenv("HPCREDUCE_TIMEOUT", text)
    with pytest.raises(ValueError, match=f"HPCREDUCE_TIMEOUT must be a number of seconds above 0, found '{text}'"):
        hpcreduce.allreduce(comm, 1.0)
    monkeypatch.setenv("HPCREDUCE_TIMEOUT", "")
    assert works(comm)


def test_ranks_are_not_mixed_up_by_refused_calls(comm):
    """Rank r makes r wrong calls; the sequence of right ones is the same on all."""
    assert works(comm)
    for turn in range(3):
        for _ in range(comm.rank):
            with pytest.raises(ValueError, match="unknown op"):
                hpcreduce.allreduce(comm, 1, op="median")
        assert hpcreduce.allreduce(comm, comm.rank + turn, timeout=60) == sum(range(turn, turn + comm.size))
