"""Exact sums against fractions, both ways; states added up as ranks do it, in any grouping; NIST's values."""

import json
import math
import os
import statistics
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcreduce.stats import exact, figures, kernels, loops, numbers
from hpcreduce.stats.batches import NUMBER, Column, Field
from hpcreduce.stats.numbers import Numbers
from hpcreduce.stats.wanted import Wanted

NIST = json.loads((Path(__file__).parents[1] / "data" / "nist_univariate.json").read_text())["datasets"]
EDGES = [0.0, -0.0, 5e-324, -5e-324, 2.2e-308, 1e-170, -1e-170, 0.1, 1.0, 1e16, 1e200, -1e200, sys.float_info.max]
finite = st.sampled_from(EDGES) | st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture(params=["numba", "numpy"])
def way(request, monkeypatch):
    """Both ways to sum."""
    monkeypatch.setattr(kernels, "LATER", -1 if request.param == "numba" else 1 << 62)


def whole(*factors):
    """Sum products of integers, in units of 2^-1074 for each factor."""
    integers = [[units(value) for value in factor.tolist()] for factor in factors]
    return sum(map(math.prod, zip(*integers, strict=True)))


def units(value):
    """Return a value in units of 2^-1074, by the fraction that Python takes it for."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << 1074) // denominator


def wild(seed, count=2000):
    """Values of all bits that are finite, and the edges."""
    bits = np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64).view(np.float64)
    return np.concatenate([bits[np.isfinite(bits)][: count - 200], EDGES * 2, np.linspace(-1, 1, 100)])[: count - 200]


def test_sums_over_the_whole_range(way):
    x, y, z = wild(1), wild(2), wild(3)
    found = kernels.squares(x)
    assert (found.sum, found.squares) == (whole(x), whole(x, x))
    assert (exact.value(found.low), exact.value(found.high), found.special) == (x.min(), x.max(), 0)
    assert kernels.products(x, y) == whole(x, y)
    assert kernels.triples(x, y, z) == whole(x, y, z)


def test_sums_that_nearly_fill_the_bins(way):
    """The most values before bins are emptied, all with all bits set, of one sign and exponent."""
    count = kernels._MOST + 3
    x = np.full(count, np.nextafter(2.0, 0))
    mantissa = (1 << 53) - 1
    found = kernels.squares(x)
    assert found.sum == count * mantissa << 1022 and found.squares == count * mantissa**2 << 2044
    assert kernels.products(x, -x) == -count * mantissa**2 << 2044
    assert kernels.triples(x, -x, x) == -count * mantissa**3 << 3066


def like(random, top, binades, count, sign):
    """Values of full mantissas whose exponents lie in so many binades, the highest `top`."""
    mantissas = np.where(random.random(count) < 0.5, 2.0**53 - 1, 2.0**52 + 1)
    mantissas *= sign or random.choice([-1, 1], count)
    return np.ldexp(mantissas, (top - 52 - random.integers(0, binades, count)).astype(np.int32))


@pytest.mark.parametrize("top", [-1022, -998, -997, 0, 1023])
@pytest.mark.parametrize("binades", [1, 25, 26, 40])
def test_sums_of_values_of_like_size(way, top, binades):
    """Up to and beyond the range that three digits hold, over blocks that are full and not, with zeros among them."""
    random = np.random.default_rng(binades)
    for count, sign in (2047, 1), (2048, -1), (5000, 0):
        values = like(random, top, binades, count, sign)
        values[::7] = 0
        found = kernels.squares(values)
        assert (found.sum, found.squares) == (whole(values), whole(values, values))
        assert (exact.value(found.low), exact.value(found.high), found.special) == (values.min(), values.max(), 0)
        values[3] = np.inf
        rest = np.delete(values, 3)
        assert kernels.squares(values)[:2] == (whole(rest), whole(rest, rest)) and kernels.squares(values).special == 1


def test_infinite_values_and_nan_are_left_out(way):
    found = kernels.squares(np.array([np.nan, 1.5, np.inf, -0.0, -np.inf, -np.nan]))
    assert found.special == 4 and found.sum == 3 << 1073 and found.squares == 9 << 2146
    assert (exact.value(found.low), math.copysign(1, exact.value(found.low)), exact.value(found.high)) == (0, -1, 1.5)
    assert kernels.squares(np.full(3, np.nan))[:2] == (0, 0) and kernels.squares(np.zeros(0)) == kernels.NOTHING


@given(st.lists(finite, max_size=30))
def test_sum_is_that_of_fsum(values):
    total = kernels.squares(np.array(values)).sum
    try:
        wanted = math.fsum(values)
    except OverflowError:  # on the way
        wanted = exact.ratio(*sum(map(Fraction, values)).as_integer_ratio())
    assert exact.ratio(total, 1 << 1074) == wanted


@given(st.integers(), st.integers(min_value=1, max_value=10**30))
def test_ratio_and_root_are_the_nearest(numerator, denominator):
    exactly = Fraction(numerator, denominator)
    for found, power, wanted in (
        (exact.ratio(numerator, denominator), 1, exactly),
        (exact.root(abs(numerator), denominator), 2, abs(exactly)),
    ):
        size = abs(Fraction(found))
        lower, upper = (Fraction(math.nextafter(float(size), end)) for end in (0.0, math.inf))
        assert ((lower + size) / 2) ** power <= abs(wanted) <= ((size + upper) / 2) ** power or not size == wanted == 0


def test_rounding_at_the_ends_of_the_range():
    assert exact.ratio(1, 2**1075) == 0 and exact.ratio(3, 2**1075) == 2 * 5e-324  # ties to even
    assert exact.ratio(2**1024 - 2**970, 1) == math.inf and exact.ratio(2**1024 - 2**970 - 1, 1) == sys.float_info.max
    assert exact.root(2**2046, 1) == 2.0**1023 and exact.root(1, 2**2148) == 5e-324


@given(st.integers(-(2**2000), 2**2000), st.integers(1, 7))
def test_limbs_can_be_added(number, parts):
    limbs = sum(exact.to_limbs(number - part, exact.width(1)) for part in range(parts))
    assert exact.from_limbs(limbs) == parts * number - parts * (parts - 1) // 2


def test_limbs_of_as_many_ranks_as_there_may_be():
    for number in (2**2160 - 1, -(2**2160)):
        limbs = exact.to_limbs(number, exact.width(1))
        assert exact.from_limbs(limbs) == number
        assert max(map(abs, limbs.tolist())) <= 2**32  # 2^31 of them fit


def test_integers_beyond_float64_are_two_parts():
    for values in (np.array([2**63 - 1, -(2**63), 2**53 + 1, -5]), np.array([2**64 - 1, 7], np.uint64)):
        parts = exact.parts(values)
        assert len(parts) == 2
        assert [int(a) + int(b) for a, b in zip(*parts, strict=True)] == values.tolist()


def merged(parts, wanted=Wanted(), weights=None, dtype="float64"):  # noqa: B008
    """Return what ranks that have these parts tell: their limbs are added, as an all-reduce does it."""
    states = []
    for shard, part in enumerate(parts):
        state = Numbers(weights is not None)
        mine = None if weights is None else Column(weights[shard])
        rows, state.null = numbers.counting(Column(part), mine, shard, 0)
        state.add(rows, shard, 0)
        states.append(state)
    limbs = sum(exact.pack(state.integers(), state.widths()) for state in states)
    result = Numbers(weights is not None)
    result.become(exact.unpack(limbs, result.widths()), result.counts)
    lowest = [min(each) for each in zip(*(state.tuples() for state in states), strict=True)]
    result.low, result.high, result.first_minus, result.first_plus = lowest
    field = Field("x", NUMBER, dtype)
    return figures.described(field, figures.of_numbers(field, result, wanted, whole_weights=True))


def told(described):
    """Return the figures with their bits, but for where the extremes are."""
    figures = described.sum, described.mean, described.var, described.std, described.min, described.max
    return described.count, described.nan, *(each if each is None else float(each).hex() for each in figures)


special = finite | st.sampled_from([math.nan, math.inf, -math.inf])


@given(st.lists(special, min_size=1, max_size=40), st.randoms(use_true_random=False), st.integers(1, 7))
def test_S20_order_and_parts_never_change_a_bit(values, random, ranks):
    once = told(merged([np.array(values)]))
    shuffled = random.sample(values, len(values))
    cuts = sorted(random.choices(range(len(values) + 1), k=ranks - 1))  # some parts are empty
    assert told(merged(np.split(np.array(shuffled), cuts))) == once


@given(st.lists(finite, min_size=2, max_size=30))
def test_moments_are_those_of_fractions(values):
    found = merged([np.array(values)])
    fractions = list(map(Fraction, values))
    mean = sum(fractions) / len(fractions)
    variance = sum((each - mean) ** 2 for each in fractions) / (len(fractions) - 1)
    assert found.mean == exact.ratio(*mean.as_integer_ratio())
    assert found.var == exact.ratio(*variance.as_integer_ratio())
    assert found.std == exact.root(*variance.as_integer_ratio())
    if variance < 2**1000:
        assert math.isclose(found.std, statistics.stdev(fractions), rel_tol=1e-15)
    assert (found.min, found.max) == (min(values), max(values))


def test_squares_that_float64_does_not_hold():
    assert merged([np.array([1e200, -1e200])]).std == math.sqrt(2) * 1e200
    assert merged([np.array([1e-170, -1e-170])]).std == exact.root(*(2 * Fraction(1e-170) ** 2).as_integer_ratio()) > 0
    assert merged([np.array([5e-324, 0.0])]).mean == 0 and merged([np.array([5e-324, 1e-323])]).mean == 1e-323
    assert merged([np.array([1.7e308] * 3)]).sum == math.inf and merged([np.array([1.7e308] * 3)]).mean == 1.7e308


def test_negative_zero():
    assert str(merged([np.array([-0.0]), np.array([-0.0, -0.0])]).sum) == "-0.0"
    assert str(merged([np.array([-0.0]), np.array([0.0])]).sum) == "0.0"
    both = merged([np.array([0.0, -0.0])])
    assert (str(both.min), both.argmin, str(both.max), both.argmax) == ("-0.0", (0, 1), "0.0", (0, 0))


def test_infinite_values_follow_the_standard():
    one, both = merged([np.array([1.0, math.inf])]), merged([np.array([math.inf, -math.inf]), np.array([2.0])])
    assert (one.count, one.sum, one.mean, one.max, one.argmax, one.min) == (2, math.inf, math.inf, math.inf, (0, 1), 1)
    assert all(map(math.isnan, (one.var, one.std, both.sum, both.mean, both.var)))
    assert (both.count, both.min, both.max, both.argmin) == (3, -math.inf, math.inf, (0, 1))
    lone = merged([np.array([-math.inf])])
    assert (lone.min, lone.max, lone.sum) == (-math.inf, -math.inf, -math.inf)


@pytest.mark.parametrize("first", [0, 1])
def test_S10_nan_is_counted_apart(first):
    parts = [np.array([1.0, math.nan]), np.array([3.0])]
    found = merged([parts[first], parts[1 - first]])
    assert (found.count, found.nan, found.sum, found.mean, found.min, found.max) == (2, 1, 4, 2, 1, 3)
    found = merged([parts[first], parts[1 - first]], Wanted(nan="propagate"))
    assert (found.count, found.nan) == (2, 1) and found.argmin is None
    assert all(map(math.isnan, (found.sum, found.mean, found.var, found.std, found.min, found.max)))


def test_S01_variance_at_a_large_offset():
    found = merged([np.array([1000000001.0]), np.array([1000000002.0]), np.array([1000000003.0])])
    assert (found.var, found.std) == (1, 1)


def test_S21_variance_of_a_constant():
    for parts in (np.split(np.full(1000, 0.1), [17, 600]), [np.full(10, 1e200)]):
        found = merged(parts)
        assert (found.var, found.std) == (0, 0)


def test_S17_D02_sums_of_integers_do_not_wrap():
    found = merged([np.array([2**63 - 1]), np.array([1])], dtype="int64")
    assert (found.sum, found.mean, found.promises["sum"]) == (2**63, 4.611686018427388e18, "exact")
    found = merged([np.full(3, 200, np.uint8)], dtype="uint8")
    assert (found.sum, type(found.sum), found.max) == (600, int, 200)
    found = merged([np.array([2**64 - 1, 2**64 - 2], np.uint64), np.array([-(2**63)])], dtype="float64")
    assert (found.min, found.max) == (-(2.0**63), 2.0**64) and found.var == float(
        statistics.variance(map(Fraction, (2**64 - 1, 2**64 - 2, -(2**63))))
    )
    found = merged([np.array([2**53]), np.array([2**53 + 1]), np.array([2**53 + 2])], dtype="int64")
    assert (found.min, found.max, found.argmax, found.std) == (2**53, 2**53 + 2, (2, 0), 1)


def test_S18_mean_of_narrow_types():
    found = merged([np.full(100, 255, np.int16), np.full(156, 255, np.int16)], dtype="int16")
    assert (found.mean, found.sum) == (255, 255 * 256)
    assert merged([np.array([60000, 60000], np.float16)], dtype="float16").mean == 60000


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 5)), min_size=2, max_size=20))
def test_weights_say_how_often_a_row_occurs(pairs):
    values, times = (np.array(each) for each in zip(*pairs, strict=True))
    weighted = merged([values], weights=[times], dtype="int64")
    repeated = merged([np.repeat(values, times)], dtype="int64")
    assert weighted.count == np.count_nonzero(times)
    for name in ("sum", "mean", "var", "std", "min", "max"):
        assert getattr(weighted, name) == getattr(repeated, name), name


@pytest.mark.parametrize("name", NIST)
def test_nist_to_the_digits_that_can_be_reached(name):
    given = NIST[name]
    values = np.array(list(map(float, given["values"])))
    found = merged(np.split(values, [len(values) // 3, len(values) // 2]))
    assert told(found) == told(merged([values]))
    n, mean = len(values), Fraction(kernels.squares(values).sum, len(values) << 1074)
    lagged = Fraction(kernels.products(values[:-1], values[1:]), 1 << 2148)
    ends = Fraction(values[0]) + Fraction(values[-1])
    squares = Fraction(kernels.squares(values).squares, 1 << 2148) - n * mean**2
    r1 = (lagged - mean * (2 * n * mean - ends) + (n - 1) * mean**2) / squares
    digits = {"mean": found.mean, "sd": found.std, "r1": r1}
    for figure, value in digits.items():
        wanted = Fraction(given[figure])
        error = abs(Fraction(value) - wanted) / abs(wanted)
        reached = -math.log10(error) if error else 17
        best = {"mean": 15, "sd": given["best_lre_from_float64"], "r1": given["best_lre_from_float64"] - 0.4}[figure]
        assert reached >= min(best - 0.15, 14.5), figure


def test_loops_are_kept_where_the_package_cannot_be_written(tmp_path):
    """Compiled by several at once, in a folder of the user's own, and read again; else in one for temporary files."""
    program = (
        "import numpy as np; from hpcreduce.stats import compiled, kernels, loops; kernels.LATER = 0; x = np.ones(5);"
        "assert kernels.products(x, x) == 5 << 2148;"
        "print(sum(compiled.loop('products').stats.cache_hits.values()))"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "HPCREDUCE_NUMBA": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)

    def start(**more):
        command = [sys.executable, "-c", program]
        return subprocess.Popen(command, env=environment | more, stdout=subprocess.PIPE, text=True)

    for each in [start(), start()]:
        each.communicate(timeout=100)
        assert each.returncode == 0
    assert list(tmp_path.glob("hpcreduce/*/*/*.nbc")) and not list(Path(loops.__file__).parent.glob("**/*.nbc"))
    (tmp_path / "tmp").mkdir()
    last, elsewhere = start(), start(XDG_CACHE_HOME="/proc/nowhere", TMPDIR=str(tmp_path / "tmp"))
    assert last.communicate(timeout=100)[0].strip() == "1" and last.returncode == 0
    assert elsewhere.communicate(timeout=100)[0].strip() == "0" and elsewhere.returncode == 0
    assert list(tmp_path.glob("tmp/hpcreduce-*/*/*/*.nbc"))
