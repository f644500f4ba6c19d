"""Averaging gradients: every rank gets what one process would compute on all samples."""

import warnings

import numpy as np
import pytest
from mpi4py import MPI
from outcomes import outcomes

import hpcreduce
from hpcreduce import GradientAverager, allreduce
from hpcreduce.runtime import agreement, wait

pytestmark = pytest.mark.mpi
alone = MPI.COMM_WORLD.size == 1
SHAPES = {"w": (3, 4), "b": (), "large": (300, 7), "none": (0,), "v": (5,)}


def gradient(rank, name, turn=0, dtype="f8"):
    """Small whole numbers that depend on rank, name and element."""
    shape = SHAPES[name]
    values = (np.arange(np.prod(shape, dtype=int)).reshape(shape) + len(name) + turn) % 7 * (rank + 1)
    return np.asarray(values).astype(dtype)


def parameters(comm, dtype="f8"):
    """Like a model's, in an order of this rank's own."""
    names = list(SHAPES)
    order = names[comm.rank % 5 :] + names[: comm.rank % 5]
    return {name: np.zeros(SHAPES[name], dtype) for name in order}


def same(found, wanted):
    return found.dtype == wanted.dtype and found.shape == wanted.shape and bool((found == wanted).all())


OPTIONS = [{}, {"bucket_bytes": 100}, {"algorithm": "ring", "bucket_bytes": 64}, {"order": "rank"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_mean_over_ranks(comm, options):
    for dtype in ("f8", "f4", "f2", "F"):
        average_four_times(comm, dtype, options)
    assert not wait.in_flight and not agreement.state(comm).arrays


def average_four_times(comm, dtype, options):
    params = parameters(comm, dtype)
    with GradientAverager(comm, params, timeout=60, **options) as averager:
        assert list(averager.grads) == list(params)
        for turn in range(4):
            for name, view in averager.grads.items():
                view[...] = gradient(comm.rank, name, turn, dtype)
            if turn % 2:
                for name in sorted(params, reverse=True):  # buckets leave as they fill
                    averager.ready(name)
            found = averager.average()
            assert list(found) == list(params)
            calls = agreement.state(comm).recorder.completed()
            assert all(call.at.endswith("in average_four_times") for call in calls[-len(params) :]), calls
            for name, array in found.items():
                total = sum(gradient(rank, name, turn) for rank in range(comm.size))
                assert same(array, np.asarray(total / comm.size).astype(dtype)), name
                assert np.shares_memory(array, averager.grads[name]) or not array.size


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_equal_to_one_process_over_the_union_of_the_batches(comm, dtype):
    """A linear model of real numbers; rank r has 3r + 1 samples, or none on the second rank."""
    counts = [0 if rank == 1 else 3 * rank + 1 for rank in range(comm.size)]
    random = np.random.default_rng(5)
    samples, targets = (
        random.normal(size=(sum(counts), 6)).astype(dtype),
        random.normal(size=(sum(counts), 2)).astype(dtype),
    )
    weights = {"w": random.normal(size=(6, 2)).astype(dtype), "b": random.normal(size=2).astype(dtype)}

    def gradients(rows):
        error = samples[rows] @ weights["w"] + weights["b"] - targets[rows]
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mean of no samples
            return {"w": samples[rows].T @ error / np.dtype(dtype).type(len(error)), "b": error.mean(axis=0)}

    first = sum(counts[: comm.rank])
    mine, whole = slice(first, first + counts[comm.rank]), slice(None)
    with GradientAverager(comm, weights, timeout=60) as averager:
        found = averager.average(gradients(mine), weight=counts[comm.rank])
        for name, wanted in gradients(whole).items():
            tolerance = 1e-12 if dtype == "f8" else 1e-6
            assert np.abs(found[name] - wanted).max() <= tolerance * np.abs(wanted).max()
            assert found[name].dtype == dtype


@pytest.mark.skipif(MPI.COMM_WORLD.size != 3, reason="for 3 ranks")
def test_A01_unequal_batches(comm):
    mine, weight = np.array([0.7, 0.8, 0.9][comm.rank]), [256, 256, 10][comm.rank]
    with GradientAverager(comm, {"g": mine}, timeout=60) as averager:
        assert abs(averager.average({"g": mine}, weight=weight)["g"] - 393 / 522) < 1e-15
        assert abs(averager.average({"g": mine})["g"] - 0.8) < 1e-15
    found = allreduce(comm, float(mine), op="mean", weight=weight, timeout=60)
    assert isinstance(found, float) and abs(found - 393 / 522) < 1e-15


def test_weighted_means(comm):
    """The sum of weight times array, over that of the weights: exact where those are."""
    size, rank = comm.size, comm.rank
    total = size * (size + 1) // 2
    wanted = sum((each + 1) * (np.arange(12) + each) for each in range(size)) / total
    for dtype, result in ((">f8", ">f8"), ("i4", "f8"), ("?", "f8"), ("D", "D"), ("g", "g")):
        for options in ({}, {"algorithm": "ring", "segment": 16}, {"order": "rank"}):
            mine = (np.arange(12) + rank).astype(dtype)
            kept = mine.copy()
            found = allreduce(comm, mine.reshape(3, 4).T, op="mean", weight=rank + 1, timeout=60, **options)
            other = wanted if dtype != "?" else sum((r + 1) * (np.arange(12) + r > 0) for r in range(size)) / total
            assert found.dtype == np.dtype(result) and np.allclose(found, other.reshape(3, 4).T, rtol=1e-15, atol=0)
            assert (mine == kept).all()
    mine = np.full(2000, np.nan if rank == 0 and size > 1 else 40000, "f2")  # weight 0 contributes nothing
    out = np.empty(2000, "f2")
    assert allreduce(comm, mine, out, "mean", weight=float(rank > 0 or size == 1), timeout=60) is out
    assert (out == 40000).all()
    assert allreduce(comm, MPI.IN_PLACE, out, "mean", weight=2, timeout=60) is out and (out == 40000).all()
    assert allreduce(comm, np.float32(rank), op="mean", weight=1, timeout=60) == np.float32((size - 1) / 2)


def test_weights_that_make_no_sense(comm):
    for options, kind, text in (
        ({"op": "sum"}, ValueError, "weight is for op 'mean', found op 'sum'"),
        ({"weight": -1}, ValueError, "finite and not below 0, found -1"),
        ({"weight": np.inf}, ValueError, "finite and not below 0, found inf"),
        ({"weight": "2"}, TypeError, "weight must be a number, found '2'"),
        ({"weight": True}, TypeError, "weight must be a number, found True"),
        ({"wire": "float16"}, ValueError, "wire 'float16' would round the weights"),
        ({"weight": 0}, ValueError, "the weights of all ranks are 0"),
    ):
        with pytest.raises(kind, match=text):
            allreduce(comm, np.ones(3), **{"op": "mean", "weight": 1, "timeout": 60} | options)
    with pytest.raises(TypeError, match="means of numbers, found dtype timedelta64"):
        allreduce(comm, np.ones(3, "m8[s]"), op="mean", weight=1)
    if not alone:
        options = {"weight": 1.0} if comm.rank else {}
        found = outcomes(comm, lambda: allreduce(comm, np.ones(3), op="mean", timeout=20, **options))
        assert {outcome.error for outcome in found} == {"MismatchError"} and "mean with weights" in found[0].text


@pytest.mark.skipif(alone, reason="needs a second rank")
def test_A02_no_gradient_on_one_rank(comm):
    """It counts as zero; what no rank has is None."""
    params = {"w": np.zeros(2), "b": np.zeros(1), "frozen": np.zeros(3)}
    mine = [{"w": [1.0, 1.0], "b": [2.0]}, {"w": [3.0, 3.0], "b": None}][min(comm.rank, 1)]
    with GradientAverager(comm, params, timeout=20) as averager:
        for _ in range(2):
            found = averager.average(mine | {"frozen": None})
            assert found["w"].tolist() == [3 - 2 / comm.size] * 2 and found["b"].tolist() == [2 / comm.size]
            assert found["frozen"] is None


@pytest.mark.skipif(alone, reason="needs a second rank")
def test_A04_ranks_with_other_parameters(comm):
    """Each rank raises, naming the parameter; the communicator can be used on."""

    def differ(name, change):
        def work():
            params = {each: np.zeros(SHAPES[each]) for each in SHAPES}
            options = change(params) or {} if comm.rank == 1 else {}
            GradientAverager(comm, params, timeout=20, **options)

        found = outcomes(comm, work)
        assert [outcome.error for outcome in found] == ["MismatchError"] * comm.size, found
        assert all(name in outcome.text for outcome in found), found
        assert all(outcome.text.startswith(f"rank {rank}: ") for rank, outcome in enumerate(found))
        return found[0].text

    rest = hpcreduce.allreduce(comm, 1, timeout=20)
    assert "rank 1 has none" in differ("parameter 'b'", lambda params: params.pop("b") and None)
    assert "rank 1 has float64 (9,)" in differ("parameter 'v'", lambda params: params.update(v=np.zeros(9)))
    assert "rank 1 has float32 (5,)" in differ("parameter 'v'", lambda params: params.update(v=np.zeros(5, "f4")))
    assert "have none" in differ("parameter 'x'", lambda params: params.update(x=np.zeros(5))) or comm.size == 2
    assert "option wire" in differ("wire", lambda params: {"wire": "float16"})
    found = outcomes(comm, lambda: GradientAverager(comm, {"i": np.zeros(2, int if comm.rank else float)}, timeout=20))
    assert [each.error for each in found] == ["PeerError"] + ["TypeError"] * (comm.size - 1)
    assert all("parameter 'i': gradients are floating point" in each.text for each in found)
    assert hpcreduce.allreduce(comm, 1, timeout=20) == rest


def test_A06_half_precision(comm):
    with GradientAverager(comm, [np.zeros(5, "f2"), np.zeros(2)], timeout=60) as averager:
        half, double = averager.average([np.full(5, 40000, "f2"), [comm.rank, 1e300]], weight=3)
        assert half.dtype == np.float16 and (half == 40000).all()
        assert double[0] == (comm.size - 1) / 2 and abs(double[1] / 1e300 - 1) < 1e-15
    for wire in ("float16", *(["bfloat16"] if hpcreduce_has_bfloat16() else [])):
        with GradientAverager(comm, [np.zeros(5, "f4")], wire=wire, timeout=60) as averager:
            assert (averager.average([np.full(5, 40960, "f4")])[0] == 40960).all()


def hpcreduce_has_bfloat16():
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def test_A08_integers(comm):
    found = allreduce(comm, np.array([comm.rank + 1], np.int32), op="mean", weight=1, timeout=60)
    assert found.dtype == np.float64 and found[0] == (comm.size + 1) / 2
    with pytest.raises(
        TypeError, match="parameter 0: gradients are floating point or complex numbers, found dtype int32"
    ):
        GradientAverager(comm, [np.zeros(1, np.int32)], timeout=60)


def test_a_narrow_wire(comm):
    """Sums in float32 of what was rounded once; weights are not rounded."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    size = comm.size
    inputs = [np.random.default_rng(rank).normal(size=1001).astype("f4") for rank in range(size)]
    weights = [257 + 3 * rank for rank in range(size)]
    with GradientAverager(comm, {"w": np.zeros(1001, "f4")}, wire="bfloat16", timeout=60) as averager:
        averager.weight = weights[comm.rank]
        found = averager.average({"w": inputs[comm.rank]})["w"].astype(float)
        wanted = sum(
            (each * np.float32(weight)).astype(ml_dtypes.bfloat16).astype(float)
            for each, weight in zip(inputs, weights, strict=True)
        ) / sum(weights)
        assert (np.abs(found - wanted) <= 2**-8 * np.abs(wanted) + 1e-6).all()
        assert len(set(comm.allgather(found.tobytes()))) == 1
    with pytest.raises(ValueError, match="takes no weights"):
        GradientAverager(comm, [np.zeros(3)], wire="float16", weight=2, timeout=60)


def test_clipping_by_the_norm_of_all(comm):
    params = [np.zeros(2, "f4"), np.zeros(3), np.zeros(1, "f2")]
    with GradientAverager(comm, params, bucket_bytes=8, timeout=60) as averager:
        mine = [np.array([3.0, 0.0]) * (comm.rank + 1), np.array([0.0, 4.0, 0.0]) * (comm.rank + 1), np.zeros(1)]
        found, mean = averager.average(mine, max_norm=1.0), (comm.size + 1) / 2
        assert averager.norm == 5 * mean and found[2].dtype == np.float16
        assert np.allclose(found[0], [0.6, 0]) and np.allclose(found[1], [0, 0.8, 0])
        assert averager.average(mine, max_norm=5 * mean)[1].tolist() == [0, 4 * mean, 0]
        big = averager.average([np.array([3e30, 0.0]), [0, 4e30, 0], None], max_norm=1.0)
        assert np.allclose(averager.norm, 5e30) and np.allclose(big[0], [0.6, 0])
        for bad in (0, "1", np.nan):
            with pytest.raises(ValueError, match="max_norm must be a number above 0"):
                averager.average(mine, max_norm=bad)


def test_gradients_that_are_not_finite(comm):
    last = comm.size - 1
    mine = {
        "w": np.ones(3),
        "b": np.array([1, np.nan if comm.rank == last else 2, -np.inf if comm.rank == last else 3]),
    }
    params = {"w": np.zeros(3), "b": np.zeros(3)}
    said = f"gradients are not finite: parameter 'b' on rank {last} (1 NaN and 1 infinities in 3 elements)"
    with GradientAverager(comm, params, timeout=60) as averager:
        for _ in range(2):
            found = outcomes(comm, lambda: averager.average(mine))
            assert [each.error for each in found] == ["NonFiniteError"] * comm.size, found
            assert all(said in each.text and each.ranks == (last,) for each in found), found
        assert averager.average({"w": np.ones(3), "b": None})["w"].tolist() == [1, 1, 1]
    for policy in ("skip", "keep"):
        with (
            GradientAverager(comm, params, nonfinite=policy, timeout=60) as averager,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            found = averager.average(mine)
            assert [str(each.message).startswith(said) for each in caught] == ([True] if comm.rank == 0 else [])
            assert (found is None) == (policy == "skip")
            assert found is None or (found["w"].tolist() == [1, 1, 1] and np.isnan(found["b"][1]))
    with GradientAverager(comm, [np.zeros(2, "f4")], nonfinite="skip", timeout=60) as averager:
        assert (
            averager.average([np.full(2, 1e38)])[0].tolist() == [np.float32(1e38)] * 2 or comm.size > 3
        )  # one pass overflows


def test_what_one_rank_alone_does_wrong_reaches_all(comm):
    last = comm.rank == comm.size - 1
    params = {"w": np.zeros(4), "b": np.zeros(2)}
    good = {"w": np.ones(4), "b": np.ones(2)}
    cases = [
        ({"w": np.ones(3), "b": None}, {}, "ValueError", "gradient of parameter 'w': found shape (3,), expected (4,)"),
        ({"w": np.ones(4)}, {}, "ValueError", "gradients must have the names of the arrays: 'b' is missing"),
        (good | {"c": None}, {}, "ValueError", "'c' is no array"),
        ([np.ones(4), None], {}, "TypeError", "gradients must be a mapping by name"),
        ({"w": np.ones(4) * 1j, "b": None}, {}, "TypeError", "gradient of parameter 'w'"),
        (good, {"weight": -1}, "ValueError", "weight must be finite and not below 0"),
    ]
    with GradientAverager(comm, params, timeout=20) as averager:
        for gradients, options, error, text in cases:
            found = outcomes(
                comm, lambda g=gradients, o=options: averager.average(g if last else good, **(o if last else {}))
            )
            assert [each.error for each in found] == ["PeerError"] * (comm.size - 1) + [error], found
            assert all(text in each.text for each in found), found
            assert all(each.ranks == (comm.size - 1,) for each in found[:-1])
        if last:
            params["w"].resize(7, refcheck=False)
        found = outcomes(comm, averager.average)
        assert all("parameter 'w' has shape (7,), expected (4,)" in each.text for each in found), found
        assert all(each.error for each in found)
        if last:
            params["w"].resize(4, refcheck=False)
        assert averager.average(good)["b"].tolist() == [1, 1]
        with pytest.raises(ValueError, match="weights of all ranks are 0"):
            averager.average(good, weight=0)
        with averager.no_sync(), pytest.raises(ValueError, match=r"average\(\) inside of no_sync"):
            averager.average(good)
        with pytest.raises(ValueError, match="no parameter 'x'"):
            averager.ready("x")
        averager.ready("w")
        with pytest.raises(ValueError, match=r"parameter 'w' got another gradient before average\(\)"):
            averager.ready("w")
        averager.average()
    for call in (averager.average, averager.broadcast_parameters, averager.check_replicas, averager.zero_grad):
        with pytest.raises(ValueError, match="the GradientAverager is closed"):
            call()
    averager.close()
    for options, kind, text in (
        ({"bucket_bytes": 0}, ValueError, "at least 1"),
        ({"bucket_bytes": 1.5}, TypeError, "whole number of bytes"),
        ({"nonfinite": "ignore"}, ValueError, "one of raise, skip, keep"),
        ({"wire": "f8"}, ValueError, "unknown wire"),
        ({"algorithm": "rings"}, ValueError, "unknown algorithm"),
        ({"timeout": 0}, ValueError, "timeout"),
    ):
        with pytest.raises(kind, match=text):
            GradientAverager(comm, params, **options)
    for bad in (np.zeros(3), 3, {1: np.zeros(3)}, [3.0], [np.ma.zeros(3)]):
        with pytest.raises(TypeError):
            GradientAverager(comm, bad)
    with GradientAverager(comm, [], timeout=20) as averager:
        assert averager.average() == [] and averager.grads == []


def test_broadcast_and_drifted_replicas(comm):
    root, last = comm.size // 2, comm.size - 1
    params = {"w": np.full((2, 3), comm.rank, "f4").T, "b": np.full((), float(comm.rank))}
    seen = {"steps": np.array(comm.rank)}
    with GradientAverager(comm, params, others=seen, timeout=20) as averager:
        averager.broadcast_parameters(root)
        assert (params["w"] == root).all() and params["b"] == root and seen["steps"] == root
        assert [averager.check_replicas(every=2) for _ in range(4)] == [False, True, False, True]
        params["w"][1, 1] += comm.rank == last
        found = outcomes(comm, averager.check_replicas)
        assert [each.error for each in found] == ["" if alone else "ReplicaError"] * comm.size
        if not alone:
            assert all(f"the replicas differ: parameter 'w' on rank {last}" in each.text for each in found), found
            assert all(each.ranks == (last,) for each in found)
        for bad in (0, True, 1.5):
            with pytest.raises(ValueError, match="every must be a whole number"):
                averager.check_replicas(bad)


def test_buckets_of_node_shared_memory_without_room(comm, monkeypatch):
    monkeypatch.setattr(hpcreduce.gradients.buckets.sharing, "empty", refuse)
    with GradientAverager(comm, [np.zeros(5000)], timeout=20) as averager:
        found = averager.average([np.arange(5000) * (comm.rank + 1.0)])[0]
        assert (found == np.arange(5000) * (comm.size + 1) / 2).all()


def refuse(*arguments, **options):
    raise MemoryError
