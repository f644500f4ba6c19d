"""Statistics over ranks: the same bits as those of all rows on one rank, however they are spread; records; errors."""

import functools
import math
import time
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from mpi4py import MPI

import hpcreduce
from hpcreduce.runtime import agreement
from hpcreduce.stats import Record, StatsError, check_record, compute, describe, kernels, meeting
from hpcreduce.stats.elements import Accumulators

pytestmark = pytest.mark.mpi


def table(count=403):
    """Columns of all kinds, with NaN, infinite and missing values, and of very different sizes."""
    random = np.random.default_rng(7)
    wild = random.standard_normal(count) * 2.0 ** random.integers(-600, 400, count)
    holes = random.standard_normal(count) * 100 + 1e9
    holes[[3, 100]] = np.nan
    columns = {
        "wild": pa.array(wild),
        "holes": pa.array(holes, mask=random.random(count) < 0.1),
        "single": pa.array(random.random(count).astype(np.float32)),
        "endless": pa.array(np.where(np.arange(count) == 70, np.inf, holes)),
        "huge": pa.array(random.integers(-(2**63), 2**63 - 1, count), mask=random.random(count) < 0.3),
        "small": pa.array(random.integers(0, 200, count).astype(np.uint8)),
        "times": pa.array(random.integers(0, 4, count), mask=random.random(count) < 0.05),
        "text": pa.array([f"é{index * 7919 % 1000}" for index in range(count)]),
        "day": pa.array(np.arange(count).astype("M8[D]")),
        "moment": pa.array((np.arange(count) * 10**9 + 5).astype("M8[ns]")),
        "flag": pa.array(random.random(count) < 0.5),
        "nothing": pa.nulls(count),
    }
    return pa.table(columns)


def figures(summary):
    """Return all that does not tell where rows are, as text with every bit."""
    columns = {name: column._replace(argmin=None, argmax=None) for name, column in summary.columns.items()}
    names, matrix = summary.covariance or ([], np.zeros(0))
    bits = {name: (repr(column), column.histogram and column.histogram[1].tolist()) for name, column in columns.items()}
    return summary.rows, bits, names, matrix.tobytes()


def cuts(size, count):
    """Yield ways to spread rows: evenly, all on the last rank, and raggedly, with empty ranks."""
    yield np.linspace(0, count, size + 1).astype(int).tolist()
    yield [0] * size + [count]
    yield [0, *sorted(index * index * 37 % 90 for index in range(1, size)), count]


WISHES = {
    "moments": {"moments": True, "covariance": True, "histogram": 13},
    "weights": {"moments": True, "covariance": True, "weights": "times", "ddof": 0},
    "propagate": {"nan": "propagate", "covariance": True, "histogram": (5, -10.0, 1e9)},
}


@pytest.mark.parametrize("wish", WISHES)
def test_S20_spread_and_algorithm_never_change_a_bit(comm, wish, monkeypatch):
    whole = table()
    once = figures(describe(MPI.COMM_SELF, whole, **WISHES[wish]))
    shuffled = whole.take(np.random.default_rng(1).permutation(len(whole)))
    for rows, ends in zip((whole, shuffled, shuffled), cuts(comm.size, len(whole)), strict=True):
        mine = rows.slice(ends[comm.rank], ends[comm.rank + 1] - ends[comm.rank])
        batches = mine.to_batches(max_chunksize=101)
        assert figures(describe(comm, batches or None, **WISHES[wish])) == once, ends
    for algorithm in ("ring", "recursive_doubling", "mpi") if wish == "propagate" else ():
        monkeypatch.setattr(meeting, "allreduce", functools.partial(hpcreduce.allreduce, algorithm=algorithm))
        assert figures(describe(comm, whole if comm.rank == comm.size - 1 else None, **WISHES[wish])) == once
    monkeypatch.setattr(kernels, "LATER", -1)
    assert figures(describe(comm, whole if comm.rank == 0 else None, **WISHES[wish])) == once


def test_figures_of_the_table(comm):
    whole = table()
    mine = whole.slice(comm.rank * 50, 50 if comm.rank < comm.size - 1 else len(whole))
    found = describe(comm, mine, moments=True, covariance=True)
    exactly = [Fraction(value) for value in whole["wild"].to_pylist()]
    mean = sum(exactly) / len(exactly)
    wild = found.columns["wild"]
    assert wild.mean == float(mean) and wild.sum == float(sum(exactly)) == math.fsum(exactly)
    assert wild.var == float(sum((each - mean) ** 2 for each in exactly) / (len(exactly) - 1))
    shard, row = wild.argmin
    assert wild.min == min(whole["wild"].to_pylist()) == whole["wild"][shard * 50 + row].as_py()
    huge = [value for value in whole["huge"].to_pylist() if value is not None]
    assert (found.columns["huge"].sum, found.columns["huge"].count) == (sum(huge), len(huge))
    assert (found.columns["huge"].min, found.columns["huge"].max) == (min(huge), max(huge))
    text, day, moment = (found.columns[name] for name in ("text", "day", "moment"))
    assert (text.min, text.max) == (min(whole["text"].to_pylist()), max(whole["text"].to_pylist()))
    assert (day.min, day.max) == ("1970-01-01", "1971-02-07")
    assert (moment.min, moment.max) == ("1970-01-01T00:00:00.000000005", "1970-01-01T00:06:42.000000005")
    assert (found.columns["flag"].min, found.columns["flag"].max, found.columns["nothing"].null) == (False, True, 403)
    names, matrix = found.covariance
    both = [
        pair for pair in zip(whole["huge"].to_pylist(), whole["single"].to_pylist(), strict=True) if pair[0] is not None
    ]
    xs, ys = ([Fraction(each) for each in side] for side in zip(*both, strict=True))
    n = len(both)
    expected = (sum(x * y for x, y in zip(xs, ys, strict=True)) - sum(xs) * sum(ys) / n) / (n - 1)
    assert matrix[names.index("huge"), names.index("single")] == float(expected)
    assert math.isnan(matrix[names.index("endless"), names.index("single")])
    shard, row = found.columns["endless"].argmax
    assert math.isnan(found.columns["endless"].var) and shard * 50 + row == 70


def spread(comm, *shards):
    """Return this rank's of these shards, which go to the ranks in turn."""
    return [np.asarray(shard) for shard in shards[comm.rank :: comm.size]] or None


def one(comm, *shards, **options):
    """Describe the only column of these shards."""
    return describe(comm, spread(comm, *shards), **options).columns["0"]


def test_S01_S21_variances(comm):
    found = one(comm, [1000000001.0], [1000000002.0], [1000000003.0])
    assert (found.var, found.std) == (1, 1)
    found = one(comm, *np.split(np.full(1000, 0.1), [17, 600]))
    assert (found.var, found.std) == (0, 0)


def test_S03_S05_S09_few_rows_and_none(comm):
    found = one(comm, np.zeros(0), [1.0, 2.0], np.zeros(0))
    assert (found.count, found.mean, found.var) == (2, 1.5, 0.5)
    found = one(comm, [7.0])
    assert (found.var, found.std, found.mean) == (None, None, 7)
    assert one(comm, [7.0], ddof=0).var == 0
    data = {"x": np.array([np.nan] * comm.rank), "y": np.ones(comm.rank)}
    empty = describe(comm, data, moments=True, covariance=True)
    x = empty.columns["x"]
    assert (x.count, x.sum, x.mean, x.var, x.min, x.max, x.skewness, x.product) == (0, 0, *[None] * 6)
    assert empty.columns["y"].sum == empty.rows == comm.size * (comm.size - 1) // 2
    assert math.isnan(empty.covariance[1][0, 1])
    assert describe(comm, None).columns == {}


def test_S10_S22_means(comm):
    for shards in ([[1.0, np.nan], [3.0]], [[3.0], [np.nan, 1.0]]):
        found = one(comm, *shards)
        assert (found.count, found.nan, found.sum, found.mean, found.min, found.max) == (2, 1, 4, 2, 1, 3)
    assert one(comm, [1, 1, 1, 1], [5]).mean == 1.8


def test_S12_S14_histograms(comm):
    edges, counts = one(comm, [1.0] * 10, histogram=(2, 0, 1)).histogram
    assert (edges.tolist(), counts.tolist()) == ([0, 0.5, 1], [0, 10])
    edges, counts = one(comm, np.arange(10), np.arange(90, 100), histogram=10).histogram
    assert counts.tolist() == [10, 0, 0, 0, 0, 0, 0, 0, 0, 10] and (edges[0], edges[-1]) == (0, 99)
    for dtype in (np.float64, np.float32, np.int16, np.uint64):
        values = (np.random.default_rng(5).random(2000) * 1000).astype(dtype)
        edges, counts = one(comm, *np.split(values, [1, 900, 900]), histogram=37).histogram
        wanted = np.histogram(values.astype(np.float64) if dtype == np.float32 else values, 37)
        assert counts.tolist() == wanted[0].tolist() and edges.tolist() == wanted[1].tolist()


def test_S17_S18_D02_sums_do_not_wrap(comm):
    found = one(comm, [9223372036854775807], [1])
    assert (found.sum, found.mean) == (9223372036854775808, 4.611686018427388e18)
    assert one(comm, *[np.array([200], np.uint8)] * 3).sum == 600
    found = one(comm, np.full(100, 255, np.int16), np.full(156, 255, np.int16))
    assert (found.mean, found.sum) == (255, 65280)
    assert one(comm, *[np.array([60000], np.float16)] * 2).mean == 60000


def test_products(comm):
    assert one(comm, [1, 2, 3], [4, 5, -6], moments=True).product == -720
    found = one(comm, [1.5, 2.5], [1e300, 1e-300, 7.0], moments=True).product
    assert abs(found / 26.25 - 1) <= 2**-52
    assert one(comm, [2.0**600, 2.0**600], [2.0**-700, 2.0**-490], moments=True).product == 1024
    assert (
        one(comm, [3.0, 0.0], [-1.0], moments=True).product == 0
        and one(comm, [1e200] * 3, moments=True).product == np.inf
    )


def test_fast_is_near(comm):
    mine = np.random.default_rng(comm.rank).standard_normal((50 * comm.rank + 40, 3)) + 10
    options = {"moments": True, "covariance": True}
    near, exactly = describe(comm, mine, fast=True, **options), describe(comm, mine, **options)
    for name, column in exactly.columns.items():
        for figure in ("sum", "mean", "var", "std", "skewness", "sample_skewness", "kurtosis", "sample_kurtosis"):
            assert math.isclose(
                getattr(near.columns[name], figure), getattr(column, figure), rel_tol=1e-9, abs_tol=1e-9
            )
            assert near.columns[name].promises[figure] == "approximate"
        assert (near.columns[name].min, near.columns[name].argmax) == (column.min, column.argmax)
    assert np.allclose(near.covariance[1], exactly.covariance[1], 1e-9)
    whole = one(comm, [2**62, 2**62], [2**62], fast=True)
    assert whole.sum == 3 << 62


def test_what_travels_does_not_grow_with_the_rows(comm, monkeypatch):
    sizes = []

    def counted(comm, array, *arguments, **options):
        sizes.append(np.asarray(array).nbytes)
        return hpcreduce.allreduce(comm, array, *arguments, **options)

    monkeypatch.setattr(meeting, "allreduce", counted)
    for rows in (10, 10_000):
        sizes.append(0)
        describe(comm, np.arange(3.0 * rows).reshape(rows, 3) + comm.rank)
    assert sizes[: len(sizes) // 2] == sizes[len(sizes) // 2 :] and sum(sizes) < 2 * 3 * 2500


def wrong(comm, data, text, **options):
    with pytest.raises((StatsError, TypeError), match=text):
        describe(comm, data, **options)


def test_errors_reach_every_rank(comm):
    last, good = comm.size - 1, np.ones((2, 2))
    on_last = functools.partial(lambda bad, usual: bad if comm.rank == last else usual)
    wrong(comm, on_last(np.ones((2, 2, 2)), good), "one or two dimensions")
    wrong(comm, on_last("text", good), "cannot describe a batch of type str")
    wrong(comm, on_last(np.ones(2, complex), good), "cannot describe values of type complex128")
    wrong(comm, on_last({"a": [1], "b": [1, 2]}, good), "differ in length")
    wrong(comm, {"x": np.ones(3), "w": np.array([1.0, on_last(-2.0, 1.0), 1.0])}, "weight is -2.0", weights="w")
    wrong(comm, {"x": np.ones(1)}, "no column 'w' for the weights; found x", weights="w")
    wrong(comm, iter([good]), "iterator can be read only once", moments=True)
    assert describe(comm, iter([good])).rows == 2 * comm.size

    def failing():
        yield good
        if comm.rank == last:
            raise OSError("the disk is on fire")

    with pytest.raises(OSError, match="on fire"):
        describe(comm, failing)
    for options in ({"ddof": -1}, {"nan": "ignore"}, {"histogram": 0}, {"histogram": (3, 1.0, None)}):
        with pytest.raises(ValueError, match=r"must be|needs"):
            describe(comm, good, **options)
    if comm.size > 1:
        wrong(comm, {on_last("b", "a"): np.ones(1)}, f"rank 0 has the columns a, rank {last} has b")
        text = {"x": on_last(np.array(["t"]), np.ones(1))}
        wrong(comm, text, f"the rows of rank {last}: column 'x' has the type text, but in the rows of rank 0 float64")
        signs = {"x": on_last(np.array([-1]), np.ones(1, np.uint64))}
        wrong(comm, signs, "column 'x' has the type int64, but in the rows of rank 0 uint64")


def test_options_that_differ_are_named_on_every_rank(comm):
    if comm.size == 1:
        pytest.skip("for 2 ranks")
    for name, value, other in ("ddof", 0, 1), ("moments", True, False), ("by", "a", ()), ("histogram", 5, None):
        with pytest.raises(ValueError, match=rf"describe\(\): {name} is .* on rank 0, but .* on rank {comm.size - 1}"):
            describe(comm, {"a": [1, 2]}, **{name: value if comm.rank < comm.size - 1 else other})


def test_masked_values_are_missing(comm):
    first = comm.rank == 0
    data = {
        "x": np.ma.array([1.0, 2.0, np.nan], mask=[False, not first, True]),
        "text": np.ma.array(["c", "b", "a"], mask=[False, False, first]),
    }
    found = describe(comm, data).columns
    assert (found["x"].count, found["x"].null, found["x"].nan) == (comm.size + 1, 2 * comm.size - 1, 0)
    assert (found["x"].sum, found["x"].max) == (comm.size + 2, 2)
    assert (found["text"].null, found["text"].min) == (1, "b" if comm.size == 1 else "a")


def test_bins_that_float64_cannot_tell_apart(comm):
    data = {"t": np.int64(1764 * 10**15) + np.arange(2), "x": np.array([-1e308, 1e308]), "y": np.arange(2.0)}
    found = describe(comm, data, histogram=50)
    assert found.unbinned == ["t", "x"] and found.columns["t"].histogram is None
    assert found.columns["t"].sum == comm.size * (2 * 1764 * 10**15 + 1)
    assert found.columns["y"].histogram[1].sum() == 2 * comm.size


def extent(values):
    return np.array([values.size]), np.array([values.min(initial=np.inf), -values.max(initial=-np.inf)])


LARGEST = Record(
    extent, lambda a, b: (a[0] + b[0], np.minimum(a[1], b[1])), lambda state: (int(state[0][0]), -state[1][1])
)


def test_a_rank_without_rows_waits_for_those_who_read(comm, monkeypatch):
    """For longer than the time-out of a collective call."""
    monkeypatch.setattr(agreement.state(comm), "timeout", 0.2)

    def batches():
        if comm.rank == comm.size - 1:
            time.sleep(0.5)
            yield np.arange(5.0)

    summary = describe(comm, batches)
    assert (
        agreement.state(comm)
        .recorder.completed()[-1]
        .at.endswith("in test_a_rank_without_rows_waits_for_those_who_read")
    )
    assert (summary.rows, summary.columns["0"].sum) == (5, 10.0)


def test_records(comm):
    check_record(LARGEST)
    batches = [np.arange(5.0) + 10 * comm.rank, np.zeros(1)] if comm.rank != 1 else []
    rows = 6 * (comm.size - (comm.size > 1))
    assert compute(comm, LARGEST, batches) == (rows, 4.0 + 10 * max(rank for rank in range(comm.size) if rank != 1))
    words = Record(
        lambda text: np.array([text], "S3"),
        lambda a, b: np.char.add(a, b).astype("S3"),
        lambda state: state[0].decode(),
    )
    if comm.size <= 3:
        assert compute(comm, words, [chr(97 + comm.rank)]) == "abc"[: comm.size]  # in the order of the ranks

    def explode(a, b):
        raise RuntimeError("no way")

    with pytest.raises(StatsError, match="no rank has a batch"):
        compute(comm, LARGEST, [])
    if comm.size > 1:
        with pytest.raises(RuntimeError, match="no way"):
            compute(comm, LARGEST._replace(combine=explode), [np.ones(2)])
        with pytest.raises(StatsError, match="states differ"):
            compute(comm, Record(np.copy, np.add, float), [np.ones(1 + comm.rank)])
    assert compute(comm, LARGEST, [np.ones(2)]) == (2 * comm.size, 1.0)


def test_records_that_are_none():
    for combine, text in (
        (lambda a, b: (a[0] + b[0], a[1]), "not commutative"),
        (lambda a, b: (a[0] - b[0], np.minimum(a[1], b[1])), "not associative"),
        (lambda a, b: (a[0] + b[0] + 1, np.minimum(a[1], b[1])), "not the identity"),
        (lambda a, b: (np.add(a[0], b[0], out=a[0]), np.minimum(a[1], b[1])), "changes the states"),
        (lambda a, b: (a[0] + b[0], np.append(a[1], b[1])), "other shapes or types"),
    ):
        with pytest.raises(StatsError, match=text):
            check_record(LARGEST._replace(combine=combine))
    mean = Record(lambda values: np.array([values.sum(), values.size]), np.add, lambda state: state[0] / state[1])
    with pytest.raises(StatsError, match="not associative"):
        check_record(mean)
    check_record(mean, tolerance=1e-9)


def test_elements_of_arrays(comm):
    random = np.random.default_rng(comm.rank)
    mine = random.standard_normal((comm.rank, 50)) * 2.0 ** random.integers(-300, 300, (comm.rank, 50))
    sums = Accumulators(np.dtype(float), 50)
    sums.add(mine)
    sums.meet(comm)
    everyone = np.concatenate(comm.allgather(mine))
    assert (
        sums.result().tolist() == [float(sum(map(Fraction, column))) for column in everyone.T.tolist()]
        or comm.size == 1
    )
