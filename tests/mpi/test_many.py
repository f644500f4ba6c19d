"""Many arrays at once: what `hpcreduce.allreduce` gives for each, in one all-reduce for all that are reduced alike."""

import operator
import re
import types

import numpy as np
import pytest
from mpi4py import MPI
from outcomes import all_raise, recovered

import hpcreduce
from hpcreduce import OPERATIONS, Fused, allreduce_many

pytestmark = pytest.mark.mpi
alone = MPI.COMM_WORLD.size == 1
DTYPES = ["?", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "g", "F", "D", ">f4", "m8[s]", "M8[s]"]
SHAPES = [(), (0,), (5,), (2, 3), (5,), (3, 0), (1, 2, 2), (2, 3)]


def contribution(rank, index, shape=(5,), dtype="f8"):
    """Small whole numbers that depend on rank, array and element, exact in every type, also as a product."""
    values = (np.arange(np.prod(shape, dtype=int)).reshape(shape) + index + rank) % 3 + 1
    return np.asarray(values).astype(np.int64).astype(dtype)


def equal(found, wanted):
    """Whether two results are alike: type, dtype, shape and values."""
    if isinstance(wanted, tuple):
        return isinstance(found, tuple) and all(map(equal, found, wanted))
    if type(found) is not type(wanted):
        return False
    one, other = np.asarray(found), np.asarray(wanted)
    return one.dtype == other.dtype and one.shape == other.shape and bool(np.array_equal(one, other))


def check(comm, arrays, op="sum", **options):
    """Compare with one call for each array."""
    ops = op if isinstance(op, list) else [op] * len(arrays)
    wanted = [hpcreduce.allreduce(comm, array, op=one, timeout=60) for array, one in zip(arrays, ops, strict=True)]
    found = allreduce_many(comm, arrays, op, timeout=60, **options)
    assert type(found) is list and len(found) == len(arrays)
    for index, (ours, other) in enumerate(zip(found, wanted, strict=True)):
        assert equal(ours, other), f"array {index}, {ops[index]}: expected {other!r}, found {ours!r}"


def test_every_operation_on_every_dtype(comm):
    for op, row in OPERATIONS.items():
        dtypes = [dtype for dtype in DTYPES if np.dtype(dtype).kind in row.kinds]
        check(comm, [contribution(comm.rank, i, SHAPES[i % 8], dtypes[i % len(dtypes)]) for i in range(28)], op)


def test_all_operations_at_once(comm):
    names = list(OPERATIONS)
    ops = [names[index * 7 % len(names)] for index in range(60)]
    check(comm, [contribution(comm.rank, i, SHAPES[i % 8], ("i4", "i8", "u1")[i % 3]) for i in range(60)], ops)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "mpi", "direct"])
def test_algorithms(comm, algorithm):
    arrays = [contribution(comm.rank, index, SHAPES[index % 8], ("f4", "i8")[index % 2]) for index in range(30)]
    check(comm, arrays, ["sum", "sum", "prod"] * 10, algorithm=algorithm, segment=16)


def test_bfloat16(comm):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    check(comm, [contribution(comm.rank, i, dtype=dtype) for i, dtype in enumerate((bfloat16, "f4", "f2"))], "mean")


def test_sixteen_bits_are_rounded_once(comm):
    halves = [np.full(3, 40000, "f2"), np.full(2, 2048 + 2 * (comm.rank == 0), "f2")]
    mean, total = allreduce_many(comm, halves, op=["mean", "sum"], timeout=60)
    assert mean.tolist() == [40000] * 3 and mean.dtype == np.float16
    assert total.tolist() == [float(np.float16(2048 * comm.size + 2))] * 2


def test_layouts_and_what_is_no_array(comm):
    whole = contribution(comm.rank, 0, (4, 6))
    arrays = [
        whole[::2],
        whole.T,
        whole[:, 1],
        whole[::-1],
        np.broadcast_to(whole[0], (3, 6)),
        np.asfortranarray(whole),
    ]
    check(comm, arrays)
    check(
        comm,
        [*arrays, comm.rank, 2.5, True, 1j, np.float32(comm.rank), np.int8(3), [1, 2, comm.rank], bytearray(b"ab")],
    )
    check(comm, [comm.rank + 1, np.float32(comm.rank), True, whole], ["maxloc", "mean", "sum", "minloc"])


def test_nan(comm):
    arrays = [np.array([1.0, np.nan if comm.rank == comm.size - 1 else comm.rank]) for _ in range(4)]
    largest, ignored, total, (values, ranks) = allreduce_many(
        comm, arrays, op=["max", "nanmax", "sum", "maxloc"], timeout=60
    )
    assert np.isnan(largest[1]) and np.isnan(total[1]) and np.isnan(values[1]) and ranks.tolist() == [0, comm.size - 1]
    assert ignored[1] == comm.size - 2 or alone


def test_operations_of_the_users_own(comm):
    """They are told apart by what they are, not by their names; those that do not commute keep the order of ranks."""
    first = MPI.Op.Create(lambda a, b, kind: None)  # leaves what is on the right
    larger = MPI.Op.Create(
        lambda a, b, kind: np.maximum(np.frombuffer(a), np.frombuffer(b), out=np.frombuffer(b)), commute=True
    )
    ops = [first, larger, np.maximum, operator.add, lambda a, b: a, "sum", MPI.MAX, np.hypot, first, np.maximum]
    check(comm, [contribution(comm.rank, index) for index in range(len(ops))], ops)

    def product(a, b):  # of 2 x 2 matrices: not element by element
        return (a.reshape(2, 2) @ b.reshape(2, 2)).reshape(a.shape)

    check(comm, [contribution(comm.rank, index, (2, 2)) for index in range(3)], product, algorithm="tree")
    first.Free()
    larger.Free()


def test_mappings_in_any_order(comm):
    names = [f"layer{index}" for index in range(12)]
    order = names[comm.rank :] + names[: comm.rank]
    arrays = {name: contribution(comm.rank, names.index(name), (names.index(name),)) for name in order}
    ops = {name: ("sum", "max", "mean")[names.index(name) % 3] for name in reversed(order)}
    found = allreduce_many(comm, arrays, ops, timeout=60)
    assert list(found) == order
    for name in names:
        assert equal(found[name], hpcreduce.allreduce(comm, arrays[name], op=ops[name], timeout=60)), name
    found = allreduce_many(comm, arrays, out=arrays, timeout=60)
    assert found is arrays
    for index, name in enumerate(names):
        assert (arrays[name] == sum(contribution(rank, index, (index,)) for rank in range(comm.size))).all()


def test_in_place_and_into_other_arrays(comm):
    arrays = [contribution(comm.rank, index, SHAPES[index % 8], ("f4", "f8")[index % 2]) for index in range(20)]
    arrays += [arrays[2].copy().reshape(5), np.empty((4, 2))[:, 0], np.empty((2, 3)).T]
    for array in arrays[-2:]:
        array[...] = comm.rank
    wanted = [hpcreduce.allreduce(comm, array, op="mean", timeout=60) for array in arrays]
    kept = [array.copy() for array in arrays]
    others = [np.empty_like(array) for array in arrays]
    assert allreduce_many(comm, arrays, "mean", out=others, timeout=60) is others
    assert all(map(equal, others, wanted)) and all(map(equal, arrays, kept))
    assert allreduce_many(comm, arrays, "mean", out=arrays, timeout=60) is arrays
    assert all(map(equal, arrays, wanted))
    values, ranks, mean = np.empty(5), np.empty(5, int), np.empty(3)
    mine = contribution(comm.rank, 1), np.arange(3) + comm.rank
    allreduce_many(comm, mine, ["maxloc", "mean"], out=[(values, ranks), mean], timeout=60)
    assert equal((values, ranks), hpcreduce.allreduce(comm, mine[0], op="maxloc", timeout=60))
    assert mean.tolist() == [index + (comm.size - 1) / 2 for index in range(3)]


def test_results_are_views_and_none_touches_another(comm):
    arrays = [contribution(comm.rank, index) for index in range(6)]
    found = allreduce_many(comm, arrays, timeout=60)
    again = allreduce_many(comm, arrays, timeout=60)
    found[1][:] = -1
    found[1] += found[2]
    for index in (0, 2, 3, 4, 5):
        assert equal(found[index], again[index]) and equal(arrays[index], contribution(comm.rank, index))
    assert not np.shares_memory(found[0], again[0])


def test_nothing(comm):
    for _ in range(3):
        assert allreduce_many(comm, [], timeout=60) == [] and allreduce_many(comm, {}, timeout=60) == {}
    check(comm, [np.empty(0), np.empty((2, 0))])


def counted(comm, monkeypatch, arrays, op):
    """Return the messages that this rank sends for these arrays, in bytes."""
    sent = []

    def stream(private, *arguments, **options):
        def isend(buffer, peer, tag):
            sent.append(buffer.nbytes)
            return private.Isend(buffer, peer, tag)

        return original(types.SimpleNamespace(Isend=isend, Irecv=private.Irecv), *arguments, **options)

    hpcreduce.allreduce(comm, 1.0, timeout=60)
    original = hpcreduce.runtime.movers.Stream
    with monkeypatch.context() as patch:
        patch.setattr(hpcreduce.runtime.movers, "Stream", stream)
        allreduce_many(comm, arrays, op, algorithm="recursive_doubling", timeout=60)
    return sent


@pytest.mark.parametrize(
    ("dtypes", "ops", "parts"),
    [
        (["f4"], ["sum"], {"f4"}),
        (["f4", "f2"], ["sum", "mean"], {"f4"}),
        (["?", "i8"], ["sum"], {"i8"}),
        (["i4", "f8"], ["mean"], {"f8"}),
        (["f4", "i8", "?"], ["land"], {"?"}),
    ],
)
def test_one_message_set_for_all_that_is_reduced_alike(comm, monkeypatch, dtypes, ops, parts):
    arrays = [contribution(comm.rank, i, (i % 7,), dtypes[i % len(dtypes)]) for i in range(100)]
    sent = counted(comm, monkeypatch, arrays, [ops[i % len(ops)] for i in range(100)])
    (part,) = parts
    total = sum(array.size for array in arrays)
    one = counted(comm, monkeypatch, [np.zeros(total, part)], ["sum" if part != "?" else "land"])
    assert sent == one


def test_messages_of_several_parts(comm, monkeypatch):
    arrays = [contribution(comm.rank, i, (9,), ("f4", "f8")[i % 2]) for i in range(100)]
    sent = counted(comm, monkeypatch, arrays, (["sum"] * 2 + ["max"] * 2) * 25)
    one = counted(comm, monkeypatch, arrays[:1], "sum")
    assert len(sent) == 4 * len(one)
    sent = counted(comm, monkeypatch, arrays[:9:2], max_of_two)
    assert len(sent) == 5 * len(
        counted(comm, monkeypatch, arrays[:1], max_of_two)
    )  # a function may not be element-wise


def max_of_two(a, b):
    return np.maximum(a, b)


max_of_two.commutative = True


def test_repeated_calls_prepare_nothing(comm, monkeypatch):
    arrays = [contribution(comm.rank, i, (i,), ("f4", "f8")[i % 2]) for i in range(10)]
    ops = ["sum", "max"] * 5
    first = allreduce_many(comm, arrays, ops, timeout=60)
    with monkeypatch.context() as patch:
        patch.setattr(hpcreduce.preparation, "prepare", None)
        patch.setattr(hpcreduce.runtime.lists, "arrange", None)
        assert all(map(equal, allreduce_many(comm, arrays, ops, timeout=60), first))


def test_more_parts_than_calls_are_kept(comm):
    arrays = [contribution(comm.rank, i, (i + 1,)) for i in range(70)]
    for _ in range(2):
        check(comm, arrays, max_of_two)


DIFFERENCES = {
    "number": (lambda arrays, ops: arrays.append(np.ones(4)), r"6 arrays.*7 arrays"),
    "none": (lambda arrays, ops: arrays.clear(), r"0 arrays"),
    "shape": (
        lambda arrays, ops: arrays.__setitem__(3, np.ones((2, 2))),
        r"0-5 sum float64 \(4,\).*3 sum float64 \(2, 2\)",
    ),
    "shapes of the same total": (
        lambda arrays, ops: arrays.__setitem__(slice(2, 4), [np.ones(3), np.ones(5)]),
        r"2 sum float64 \(3,\); 3 sum float64 \(5,\)",
    ),
    "dtype": (lambda arrays, ops: arrays.__setitem__(5, np.ones(4, "f4")), r"5 sum float32 \(4,\)"),
    "dtype that is reduced alike": (lambda arrays, ops: arrays.__setitem__(0, np.ones(4, ">f8")), r"0 sum >f8 \(4,\)"),
    "op": (lambda arrays, ops: ops.__setitem__(1, "max"), r"1 max float64 \(4,\)"),
    "op that is reduced alike": (lambda arrays, ops: ops.__setitem__(4, "mean"), r"4 mean float64 \(4,\)"),
}


@pytest.mark.skipif(alone, reason="needs ranks that differ")
@pytest.mark.parametrize("what", DIFFERENCES)
@pytest.mark.usefixtures("impatient")
def test_disagreements(comm, what):
    change, text = DIFFERENCES[what]
    arrays, ops = [np.ones(4) for _ in range(6)], ["sum"] * 7
    if comm.rank == comm.size - 1:
        change(arrays, ops)
    verdict = all_raise(comm, lambda: allreduce_many(comm, arrays, ops[: len(arrays)], timeout=20))
    assert "the ranks disagree" in verdict and "test_many.py" in verdict
    assert re.search(text, verdict, re.DOTALL), verdict
    assert recovered(comm)


@pytest.mark.skipif(alone, reason="needs ranks that differ")
@pytest.mark.usefixtures("impatient")
def test_disagreement_on_a_name(comm):
    arrays = {f"layer{index}": np.ones(4) for index in range(6)}
    if comm.rank == 0:
        arrays["layer2b"] = arrays.pop("layer2")
    verdict = all_raise(comm, lambda: allreduce_many(comm, arrays, timeout=20))
    assert "'layer2' sum" in verdict and "'layer2b' sum" in verdict
    assert recovered(comm)
    given = list(arrays.values()) if comm.rank == 0 else arrays
    assert "6 arrays: 0-5 sum" in all_raise(comm, lambda: allreduce_many(comm, given, timeout=20))


@pytest.mark.skipif(alone, reason="needs ranks that differ")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("place", [40, 799])
def test_disagreement_among_many_that_differ(comm, place):
    """What is far down the list is told too, or where it is."""
    arrays = [np.ones((index % 5 + 1, 2)) for index in range(800)]
    if comm.rank == 0:
        arrays[place] = np.ones((9, 9))
    verdict = all_raise(comm, lambda: allreduce_many(comm, arrays, timeout=20))
    assert (f"{place} sum float64 (9, 9)" if place == 40 else "-799 with check sum") in verdict
    assert max(map(len, verdict.splitlines())) < 450


@pytest.mark.skipif(alone, reason="needs ranks that differ")
@pytest.mark.usefixtures("impatient")
def test_disagreement_on_plans(comm):
    verdict = all_raise(comm, lambda: Fused(comm, [((3 + (comm.rank == 0),), "f4"), ((5,), "f4")], timeout=20).Start())
    assert "0 sum float32 (4,)" in verdict
    assert recovered(comm)

    def run():
        with Fused(comm, [((100_000 + 1 - (comm.rank == 0),), "f8")], algorithm="ring", timeout=20) as fused:
            fused.Start()
            fused.Wait()

    assert "Fused[1 array: 0 sum float64 (100000,)]" in all_raise(comm, run)
    assert recovered(comm)


class Unreadable:
    def __array__(self, dtype=None, copy=None):
        raise ValueError("no")


ONE = np.ones(3)
BAD = {
    "one array": ((ONE,), {}, TypeError, "arrays must be a sequence or a mapping of arrays, found ndarray"),
    "text": (("abc",), {}, TypeError, "found str"),
    "in place": ((MPI.IN_PLACE,), {}, TypeError, "found InPlaceType"),
    "element": (([ONE, None],), {}, TypeError, "array 1: op 'sum' does not take dtype object"),
    "element by name": (({"a": ONE, "b": "x"},), {}, TypeError, "array 'b': op 'sum' does not take dtype <U1"),
    "unreadable": (([ONE, ONE, Unreadable()],), {}, TypeError, "array 2: sendbuf is not an array: no"),
    "large": (([ONE, 2**70],), {}, ValueError, "array 1: the integer 1180591620717411303424 does not fit"),
    "masked": (([np.ma.ones(2)],), {}, TypeError, "array 0: masked arrays"),
    "dtype": (([ONE, ONE * 1j],), {"op": "max"}, TypeError, "array 1: op 'max' does not take dtype complex128"),
    "name": (({1: ONE},), {}, TypeError, "names of arrays must be strings, found 1"),
    "op": (([ONE],), {"op": "sun"}, ValueError, "unknown op 'sun'"),
    "one op": (([ONE, ONE],), {"op": ["sum", "sun"]}, ValueError, "array 1: unknown op 'sun'"),
    "no op": (([ONE, ONE],), {"op": [None, "sum"]}, TypeError, "array 0: op must be a name"),
    "few ops": (([ONE, ONE],), {"op": ["sum"]}, ValueError, "op has 1 entries for 2 arrays"),
    "ops by name": (([ONE],), {"op": {"a": "sum"}}, TypeError, "op is a dict, and arrays have no names"),
    "ops without names": (({"a": ONE},), {"op": ["sum"]}, TypeError, "op is a list, and arrays have names"),
    "names of ops": (({"a": ONE},), {"op": {"b": "sum"}}, ValueError, "'a' is missing, 'b' is no array"),
    "algorithm": (([ONE],), {"algorithm": "rings"}, ValueError, "unknown algorithm 'rings'"),
    "second part": (([ONE, ONE], ["sum", np.hypot]), {"algorithm": "ring"}, ValueError, "not commutative"),
    "segment": (([ONE],), {"segment": 0}, ValueError, "segment must be at least 1"),
    "timeout": (([ONE],), {"timeout": -1}, ValueError, "timeout must be above 0"),
    "out": (([ONE],), {"out": ONE}, TypeError, "out must be a sequence like arrays, found ndarray"),
    "out by name": (([ONE],), {"out": {"a": ONE}}, TypeError, "out must be a sequence like arrays, found dict"),
    "few outs": (([ONE, ONE],), {"out": [ONE]}, ValueError, "out has 1 entries for 2 arrays"),
    "dtype of out": (
        ([ONE],),
        {"out": [np.ones(3, int)]},
        TypeError,
        "array 0: recvbuf has dtype int64, expected float64",
    ),
    "shape of out": (({"a": ONE},), {"out": {"a": np.ones(4)}}, ValueError, "array 'a': recvbuf has shape"),
    "mean in place": (
        ([np.arange(3)],),
        {"op": "mean"},
        TypeError,
        "array 0: recvbuf has dtype int64, expected float64",
    ),
    "twice": (([ONE, ONE],), {"out": [ONE, ONE]}, ValueError, "array 0 and array 1 share memory"),
    "overlap": (([ONE, ONE],), {"out": [np.ones(6)[:3]] * 2}, ValueError, "array 0 and array 1 share memory"),
    "read-only": (
        ([np.broadcast_to(1.0, 3)],),
        {"out": [np.broadcast_to(1.0, 3)]},
        ValueError,
        "array 0: recvbuf is read",
    ),
}


@pytest.mark.parametrize("call", [allreduce_many, Fused])
def test_bad_input(comm, call):
    """Each rank refuses it by itself, before any message of the call."""
    for what, (arguments, options, error, text) in BAD.items():
        if what == "mean in place":
            options = options | {"out": arguments[0]}
        with pytest.raises(error) as raised:
            call(comm, *arguments, **options)
        assert text in str(raised.value), what
        assert hpcreduce.allreduce(comm, comm.rank, timeout=60) == comm.size * (comm.size - 1) // 2


def test_interleaved_targets_are_separate(comm):
    both = np.empty(10)
    both[...] = comm.rank
    allreduce_many(comm, [both[::2], both[1::2]], out=[both[::2], both[1::2]], timeout=60)
    assert (both == comm.size * (comm.size - 1) // 2).all()


@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_plans_compute_straight_into_their_arrays(comm, algorithm):
    shapes = [(5,), (2, 3), (), (1009,), (0,)]
    with Fused(comm, [(shape, "f4") for shape in shapes], "mean", algorithm=algorithm, timeout=60) as fused:
        for turn in range(5):
            for index, array in enumerate(fused.arrays):
                array[...] = contribution(comm.rank, index + turn, shapes[index], "f4")
            fused.Start()
            assert fused.active
            found = fused.Wait()
            assert not fused.active and fused.Test()
            for index, (ours, view) in enumerate(zip(found, fused.arrays, strict=True)):
                mine = contribution(comm.rank, index + turn, shapes[index], "f4")
                assert equal(ours, hpcreduce.allreduce(comm, mine, op="mean", timeout=60))
                assert np.shares_memory(ours, view) or not ours.size
    assert equal(found[0], fused.arrays[0])
    with pytest.raises(ValueError, match="freed"):
        fused.Start()


def test_plans_read_given_arrays_anew(comm):
    arrays = {"w": np.empty((2, 3), "f2"), "n": 2, "flags": np.empty(4, bool), "x": np.empty(3), "z": np.float32(7)}
    given = arrays | {"spec": ((4,), ">i4")}
    ops = {"w": "mean", "n": "sum", "flags": "sum", "x": "maxloc", "z": "max", "spec": "mean"}
    order = list(given)[comm.rank % 6 :] + list(given)[: comm.rank % 6]
    with Fused(comm, {name: given[name] for name in order}, ops, timeout=60) as fused:
        assert list(fused.arrays) == order
        assert [str(fused.arrays[name].dtype) for name in given] == [
            "float32",
            "int64",
            "int64",
            "float64",
            "float32",
            "float64",
        ]
        for turn in range(4):
            for index, name in enumerate(("w", "flags", "x")):
                arrays[name][...] = contribution(comm.rank, index + turn, arrays[name].shape, arrays[name].dtype)
            fused.arrays["spec"][...] = own = contribution(comm.rank, 9 + turn, (4,), ">i4")
            fused.Start()
            with pytest.raises(ValueError, match="active already"):
                fused.Start()
            with pytest.raises(ValueError, match="Wait comes before Free"):
                fused.Free()
            while turn % 2 and not fused.Test():
                pass
            found = fused.Wait()
            assert list(found) == order
            for name in given:
                mine = own if name == "spec" else given[name]
                assert equal(found[name], hpcreduce.allreduce(comm, mine, op=ops[name], timeout=60)), name
            assert all(map(equal, fused.Wait().values(), found.values()))


def test_plans_write_their_results(comm):
    arrays, out = [np.empty(5), np.empty(3, "f2")], [np.empty(5), np.empty(3, "f2")]
    with (
        Fused(comm, arrays, "mean", out=out, timeout=60) as other,
        Fused(comm, arrays, out=arrays, timeout=60) as inside,
    ):
        for turn in range(3):
            mine = [
                contribution(comm.rank, index + turn, array.shape, array.dtype) for index, array in enumerate(arrays)
            ]
            for array, values in zip(arrays, mine, strict=True):
                array[...] = values
            plans = (other, inside) if (comm.rank + turn) % 2 else (inside, other)
            for plan in plans:
                plan.Start()
            assert other.Wait() is out and inside.Wait() is arrays
            for index, values in enumerate(mine):
                assert equal(out[index], hpcreduce.allreduce(comm, values, op="mean", timeout=60))
                assert equal(arrays[index], hpcreduce.allreduce(comm, values, timeout=60))


def test_several_parts_of_the_users_own_in_one_plan(comm):
    ops = [max_of_two, max_of_two, lambda a, b: a, "bxor"]
    arrays = [contribution(comm.rank, index, (50,), "i8") for index in range(4)]
    with Fused(comm, arrays, ops, timeout=60) as fused:
        for _ in range(3):
            fused.Start()
            for found, array, op in zip(fused.Wait(), arrays, ops, strict=True):
                assert equal(found, hpcreduce.allreduce(comm, array, op=op, timeout=60))


def test_empty_plans_and_bad_specifications(comm):
    with Fused(comm, [], timeout=60) as fused:
        fused.Start()
        assert fused.Wait() == [] and fused.arrays == []
    for spec, error, text in [
        ((3, "f99"), TypeError, "array 1: "),
        (("x", "f4"), TypeError, "array 1: "),
        (((-1,), "f4"), ValueError, "array 1: "),
        ((3, "O"), TypeError, "array 1: op 'sum' does not take dtype object"),
    ]:
        with pytest.raises(error, match=text):
            Fused(comm, [(3, "f4"), spec], timeout=60)


def test_plans_leak_nothing(comm):
    for _ in range(60):
        with Fused(comm, [((3,), "f4"), ((3,), "f8")], timeout=60) as fused:
            fused.Start()
    assert not hpcreduce.runtime.wait.in_flight
