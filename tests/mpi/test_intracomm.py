"""The drop-in for mpi4py's communicator; the cases of `hpcreduce.allreduce` run on it too (fixture ``entry``)."""

import array as arrays
import gc
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import hpcreduce
from hpcreduce.runtime import wait

pytestmark = pytest.mark.mpi
ALGORITHMS = ["auto", *hpcreduce.ALGORITHMS]


@pytest.fixture
def world(comm):
    return hpcreduce.Intracomm(comm, timeout=60)


def mine(comm, count, dtype=np.float64):
    return np.asarray((comm.rank + 1) * (np.arange(count) + 1), dtype)


def total(comm, count, dtype=np.float64):
    return np.asarray(comm.size * (comm.size + 1) // 2 * (np.arange(count) + 1), dtype)


def test_is_a_real_communicator(comm, world):
    assert isinstance(world, MPI.Intracomm) and isinstance(world, MPI.Comm)
    assert world == comm and (world.rank, world.size) == (comm.rank, comm.size)
    assert world.Get_group() == comm.Get_group()
    assert world.allreduce(comm.rank) == comm.size * (comm.size - 1) // 2  # the pickling one is mpi4py's
    assert MPI.Comm.Compare(world, comm) == MPI.IDENT


def made(comm, world):
    group = comm.Get_group()
    yield "Dup", world.Dup()
    yield "Dup with hints", world.Dup(MPI.INFO_NULL)
    yield "Dup_with_info", world.Dup_with_info(MPI.INFO_NULL)
    yield "Clone", world.Clone()
    yield "Split", world.Split(0, -comm.rank)
    yield "Split_type", world.Split_type(MPI.COMM_TYPE_SHARED)
    yield "Create", world.Create(group)
    yield "Create_group", world.Create_group(group, 3)
    for call, arguments in (("Idup", ()), ("Idup_with_info", (MPI.INFO_NULL,))):
        duplicate, request = getattr(world, call)(*arguments)
        request.Wait()
        yield call, duplicate


@pytest.mark.parametrize("algorithm", ["auto", "tree"])
def test_type_and_settings_stay(comm, algorithm):
    world = hpcreduce.Intracomm(comm, algorithm=algorithm, timeout=33)
    for name, other in made(comm, world):
        assert type(other) is hpcreduce.Intracomm, name
        assert (other._algorithm, other._timeout) == (algorithm, 33), name
        again = other.Dup()
        out = np.zeros(5)
        for each in (other, again):
            each.Allreduce(mine(comm, 5), out)
            assert (out == total(comm, 5)).all(), name
        again.Free()
        other.Free()
        assert other == MPI.COMM_NULL
    assert type(world.Split(MPI.UNDEFINED)) is hpcreduce.Intracomm


def test_subclasses_stay_too(comm):
    class Mine(hpcreduce.Intracomm):
        def Allreduce(self, *arguments, **options):
            self.calls = getattr(self, "calls", 0) + 1
            super().Allreduce(*arguments, **options)

    duplicate = Mine(comm).Dup()
    out = np.zeros(3)
    duplicate.Allreduce(mine(comm, 3), out)
    assert type(duplicate) is Mine and duplicate.calls == 1 and (out == total(comm, 3)).all()
    duplicate.Free()


SPECS = {
    "array": lambda a: a,
    "list of array": lambda a: [a, a.size],
    "count and type": lambda a: [a, a.size, MPI.DOUBLE],
    "type": lambda a: [a, MPI.DOUBLE],
    "tuple": lambda a: (a, MPI.DOUBLE),
    "type by its letter": lambda a: [a, "d"],
    "count, letter": lambda a: [a, a.size, "d"],
    "fortran type": lambda a: [a, MPI.DOUBLE_PRECISION],
    "no count": lambda a: [a, None, MPI.DOUBLE],
    "count and displacement": lambda a: [a, (a.size, 0), MPI.DOUBLE],
    "four": lambda a: [a, a.size, 0, MPI.DOUBLE],
    "four without a count": lambda a: [a, None, None, MPI.DOUBLE],
    "bytes with a type": lambda a: [a.view(np.uint8), MPI.DOUBLE],
    "numpy integers": lambda a: [a, np.int64(a.size), MPI.DOUBLE],
}


@pytest.mark.parametrize("sent", SPECS)
@pytest.mark.parametrize("received", SPECS)
def test_buffer_specifications(comm, world, sent, received):
    out, array = np.full(7, -1.0), mine(comm, 7)
    assert world.Allreduce(SPECS[sent](array), SPECS[received](out), op=MPI.SUM) is None
    assert (out == total(comm, 7)).all() and (array == mine(comm, 7)).all()
    world.Allreduce(MPI.IN_PLACE, SPECS[received](array))
    assert (array == total(comm, 7)).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_part_of_a_buffer(comm, algorithm):
    """Counts and displacements in elements of the type; what lies outside stays."""
    world = hpcreduce.Intracomm(comm, algorithm=algorithm, timeout=60)
    for kind in (MPI.DOUBLE, "d"):
        array, out = mine(comm, 12), np.full(12, -1.0)
        world.Allreduce([array, (5, 3), kind], [out, 5, 6, kind])
        assert (out[6:11] == total(comm, 12)[3:8]).all() and (np.delete(out, range(6, 11)) == -1).all()
        world.Allreduce(MPI.IN_PLACE, [array, (4, 8), kind])
        assert (array[8:] == total(comm, 12)[8:]).all() and (array[:8] == mine(comm, 12)[:8]).all()
        world.Allreduce([array, 2, kind], [out, (2, 0), kind])
        assert (out[:2] == total(comm, 12)[:2]).all() and (out[2:6] == -1).all()
    memory, raw = bytearray(24), arrays.array("i", [comm.rank, 1])
    world.Allreduce([raw, MPI.INT], [memory, (2, 3), MPI.INT])
    assert arrays.array("i", bytes(memory)).tolist() == [0] * 3 + [comm.size * (comm.size - 1) // 2, comm.size, 0]


NUMBERS = """
    SIGNED_CHAR SHORT INT LONG LONG_LONG UNSIGNED_CHAR UNSIGNED UNSIGNED_LONG FLOAT DOUBLE LONG_DOUBLE INT8_T INT16_T
    INT32_T INT64_T UINT8_T UINT64_T C_FLOAT_COMPLEX C_DOUBLE_COMPLEX INTEGER REAL DOUBLE_COMPLEX AINT OFFSET COUNT
"""


def test_every_predefined_number_type(comm, world):
    for name in NUMBERS.split():
        datatype = getattr(MPI, name)
        dtype = np.dtype(datatype.tocode())
        array, out = mine(comm, 3, dtype), np.zeros(3, dtype)
        world.Allreduce([array, datatype], [out, datatype])
        assert (out == total(comm, 3, dtype)).all(), name


def test_shapes_may_differ_where_counts_agree(comm, world):
    array = mine(comm, 12).reshape((3, 4) if comm.rank % 2 else (2, 6))
    out = np.zeros((12,) if comm.rank % 3 else (4, 3))
    world.Allreduce(array, out)
    assert (out.reshape(-1) == total(comm, 12)).all()
    turned = np.asfortranarray(mine(comm, 12).reshape(3, 4)) if comm.rank % 2 else mine(comm, 12).reshape(3, 4)
    world.Allreduce(turned, out)  # elements meet by their place, whatever the memory order
    assert (out.reshape(-1) == total(comm, 12)).all()
    wide = np.zeros((12, 2))
    world.Allreduce(turned, wide[:, 1])
    assert (wide[:, 1] == total(comm, 12)).all() and (wide[:, 0] == 0).all()


def test_pair_types_go_to_the_library(comm, world):
    pair = np.array([(comm.rank % 2 * 5.0, comm.rank), (1.0, comm.rank)], [("value", "f8"), ("rank", "i4")])
    packed = np.zeros(2, np.dtype([("value", "f8"), ("rank", "i4")], align=True))
    aligned = packed.copy()
    aligned["value"], aligned["rank"] = pair["value"], pair["rank"]
    world.Allreduce([aligned, 2, MPI.DOUBLE_INT], [packed, 2, MPI.DOUBLE_INT], MPI.MAXLOC)
    first = 1 if comm.size > 1 else 0
    assert packed["rank"].tolist() == [first, 0] and packed["value"].tolist() == [5.0 * first, 1.0]
    twos = np.array([comm.rank, 7, 3, comm.rank], np.int32)
    found = np.zeros(4, np.int32)
    world.Allreduce([twos, 2, MPI.TWOINT], [found, 2, MPI.TWOINT], MPI.MINLOC)
    assert found.tolist() == [0, 7, 3, 0]


def test_derived_types_go_to_the_library(comm, world):
    """With an operation of the user's own; every second number counts."""

    def add(a, b, datatype):
        a, b = np.frombuffer(a, np.float64), np.frombuffer(b, np.float64)
        b[::2] += a[::2]

    every_second = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    op = MPI.Op.Create(add, commute=True)
    array, out = mine(comm, 5), np.full(5, -1.0)
    world.Allreduce([array, 1, every_second], [out, 1, every_second], op)
    assert (out[::2] == total(comm, 5)[::2]).all()
    op.Free()
    every_second.Free()


def test_user_defined_ops(comm):
    def first(a, b, datatype):
        np.frombuffer(b, np.int64)[:] = np.frombuffer(a, np.int64)

    def smallest(a, b, datatype):
        a, b = np.frombuffer(a, np.int64), np.frombuffer(b, np.int64)
        np.minimum(a, b, out=b)

    for algorithm in ALGORITHMS:  # ring cannot keep rank order: another one runs the first of them
        world = hpcreduce.Intracomm(comm, algorithm=algorithm, timeout=60)
        for function, commute, wanted in ((first, False, 0), (smallest, True, 0)):
            op = MPI.Op.Create(function, commute=commute)
            for count in (1, 9, 40_000):
                out = np.zeros(count, np.int64)
                world.Allreduce(np.arange(count) + comm.rank, out, op)
                assert (out == np.arange(count) + wanted).all()
            op.Free()


def test_names_and_functions_are_ops_too(comm, world):
    out = np.zeros(4)
    world.Allreduce(mine(comm, 4), out, "mean")
    assert (out * 2 == (comm.size + 1) * (np.arange(4) + 1)).all()
    world.Allreduce(mine(comm, 4), out, lambda a, b: b)
    assert (out == comm.size * (np.arange(4) + 1)).all()


def test_what_mpi_refuses_is_refused(comm, world):
    """By the library, or by mpi4py: the same errors as without the drop-in."""
    array = mine(comm, 4)
    for arguments in (
        (array, np.zeros(5)),  # counts differ
        ([array, 4, MPI.DOUBLE], [np.zeros(3), 3, MPI.DOUBLE]),
        (array.astype(complex), np.zeros(4, complex), MPI.MAX),
        (array, np.zeros(4), MPI.BAND),
        (array > 0, np.zeros(4, bool), MPI.SUM),
        ([array, -1, MPI.DOUBLE], np.zeros(4)),
        ([array], np.zeros(4)),
        ([1.0, 2.0], np.zeros(2)),
        (3.0, np.zeros(1)),
        (array, None),
        (array, MPI.IN_PLACE),
        (np.array(["a", "b"]), np.array(["a", "b"])),
        (array, np.zeros(4), MPI.OP_NULL),
        (array, np.zeros(4), None),
    ):
        with pytest.raises((MPI.Exception, TypeError, ValueError, KeyError, BufferError)):
            world.Allreduce(*arguments)
    assert world.allreduce(1) == comm.size
    out = np.zeros(4)
    world.Allreduce(array, out)
    assert (out == total(comm, 4)).all()


def test_bad_buffers_are_named(comm, world):
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    base = np.zeros(6)
    for arguments, kind, text in (
        (([mine(comm, 4), 5, MPI.DOUBLE], np.zeros(5)), ValueError, "5 elements of float64 .* buffer of 4"),
        (([mine(comm, 4), (3, 2), MPI.DOUBLE], np.zeros(3)), ValueError, "from element 2 on do not fit"),
        ((mine(comm, 3), frozen), ValueError, "read-only"),
        ((base[:4], base[2:]), ValueError, "overlap partly"),
        ((np.ma.ones(3), np.zeros(3)), TypeError, "masked arrays"),
        ((mine(comm, 3), np.ma.ones(3)), TypeError, "masked arrays"),
        (([np.ma.ones(3), MPI.DOUBLE], np.zeros(3)), TypeError, "masked arrays"),
        ((mine(comm, 4), np.zeros(3), "sum"), TypeError, "equal size"),
    ):
        with pytest.raises(kind, match=text):
            world.Allreduce(*arguments)


def test_bad_settings(comm):
    for options, kind in (
        ({"algorithm": "rings"}, ValueError),
        ({"algorithm": 3}, TypeError),
        ({"timeout": 0}, ValueError),
        ({"timeout": "1"}, TypeError),
    ):
        with pytest.raises(kind):
            hpcreduce.Intracomm(comm, **options)
    with pytest.raises(TypeError):
        hpcreduce.Intracomm("world")


def test_library_requests(comm, world):
    """`Iallreduce` and `Allreduce_init` are the library's, to be mixed with its other requests."""
    array, out, other = mine(comm, 3), np.zeros(3), np.zeros(3)
    request = world.Iallreduce(array, out)
    plan = world.Allreduce_init(array, other)
    assert type(request) is MPI.Request and type(plan) is MPI.Prequest
    plan.Start()
    MPI.Request.Waitall([request, plan])
    assert (out == total(comm, 3)).all() and (other == total(comm, 3)).all()
    plan.Free()


def test_null_and_closed(comm):
    """A handle that is gone is not touched: the library may crash on it."""
    for null in (hpcreduce.Intracomm(), hpcreduce.Intracomm(MPI.COMM_NULL)):
        with pytest.raises(ValueError, match="COMM_NULL"):
            null.Allreduce(np.zeros(1), np.zeros(1))
    plain = comm.Dup()
    for used in (False, True):
        ours, twin = hpcreduce.Intracomm(plain), hpcreduce.Intracomm(plain)
        if used:
            ours.Allreduce(np.zeros(1), np.zeros(1))
        plain.Free()
        for gone in (ours, twin):
            for call in (
                lambda gone=gone: gone.Allreduce(np.zeros(1), np.zeros(1)),
                lambda gone=gone: hpcreduce.allreduce(gone, 1),
                lambda gone=gone: hpcreduce.iallreduce(gone, 1),
                lambda gone=gone: hpcreduce.allreduce_init(gone, 1),
                gone.Free,
            ):
                with pytest.raises(ValueError, match="comm was freed"):
                    call()
        plain = comm.Dup()
    ours = hpcreduce.Intracomm(plain)
    ours.Allreduce(np.zeros(1), np.zeros(1))
    ours.Free()
    assert ours == MPI.COMM_NULL
    with pytest.raises(ValueError, match="freed"):
        ours.Allreduce(np.zeros(1), np.zeros(1))


@pytest.mark.parametrize("algorithm", ["mpi", "ring"])
def test_freed_with_operations_in_flight(comm, algorithm):
    """As MPI has it: the communicator goes when its last operation is complete."""
    fresh = comm.Dup()
    plan = hpcreduce.allreduce_init(fresh, mine(comm, 100_000), algorithm=algorithm, timeout=60)
    plan.Start()
    handle = hpcreduce.iallreduce(fresh, mine(comm, 50), algorithm=algorithm, timeout=60)
    fresh.Free()
    assert (plan.Wait() == total(comm, 100_000)).all() and (handle.Wait() == total(comm, 50)).all()
    assert not wait.in_flight
    with pytest.raises(ValueError, match="comm was freed"):
        plan.Start()
    plan.Free()


def test_mixes_with_the_functions(comm, world):
    """One private duplicate and one sequence of calls, whoever makes them."""
    for number in range(20):
        out = np.zeros(3)
        if (number + comm.rank) % 2:
            world.Allreduce(mine(comm, 3), out)
        else:
            hpcreduce.allreduce(comm, mine(comm, 3), out, timeout=60)
        assert (out == total(comm, 3)).all()


def test_objects_leave_nothing(comm):
    fresh = comm.Dup()
    for _ in range(200):
        ours = hpcreduce.Intracomm(fresh, timeout=60)
        ours.Allreduce(mine(comm, 2), np.zeros(2))
    state = weakref.ref(ours._state)
    del ours
    fresh.Free()
    gc.collect()
    assert state() is None
