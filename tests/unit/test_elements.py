"""Element-wise exact sums against fractions: every kind of float, the ends of ranges, integers that do not fit."""

import math
from fractions import Fraction

import numpy as np
import pytest

from hpcreduce.stats import elements, exact
from hpcreduce.stats.elements import Accumulators, RangeError, pieces

FLOATS = ("f2", "f4", "f8")


def wild(dtype, rows, count=150):
    """Rows of values of all bits that are finite, with subnormal, largest and ordinary ones."""
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    random = np.random.default_rng(rows)
    found = random.integers(0, np.iinfo(bits).max, (rows, count), bits, endpoint=True).view(dtype)
    found = np.where(np.isfinite(found), found, 1).astype(dtype)
    found[:, :20] = random.integers(0, 5, (rows, 20)).astype(bits).view(dtype)
    found[:, 20:24] = np.finfo(dtype).max
    found[1:, 22] = np.finfo(dtype).smallest_subnormal
    found[:, 24:60] = random.standard_normal((rows, 36))
    return found


def nearest(exactly, dtype):
    """Round a fraction: a float64 as Python does it, others to the nearer neighbour, or the even one."""
    double = exact.ratio(exactly.numerator, exactly.denominator)
    if np.dtype(dtype) == np.float64:
        return double
    about = np.finfo(dtype)
    if abs(exactly) >= Fraction(float(about.max)) + Fraction(2) ** (about.maxexp - about.nmant - 2):
        return math.copysign(math.inf, double)
    with np.errstate(over="ignore"):
        near = np.array(double).astype(dtype)
        around = [near, np.nextafter(near, np.array(np.inf, dtype)), np.nextafter(near, np.array(-np.inf, dtype))]

    def rank(value):
        return abs(Fraction(float(value)) - exactly), int(value.view(f"u{value.itemsize}")) & 1

    return float(min((value for value in around if np.isfinite(value)), key=rank))


@pytest.mark.parametrize("dtype", FLOATS)
def test_each_element_is_the_nearest(dtype):
    for rows in (1, 2, 5):
        values = wild(dtype, rows)
        for divisor in (None, rows, 7, 2**32 - 1):
            sums = Accumulators(np.dtype(dtype), values.shape[1])
            sums.add(values[:1])
            sums.add(values[1:].astype(f">{dtype}"))
            found = sums.result(divisor)
            assert found.dtype == dtype
            for at, column in enumerate(values.T.tolist()):
                assert found[at] == nearest(sum(map(Fraction, column)) / (divisor or 1), dtype), (at, column, divisor)


def test_sums_that_a_plain_one_loses():
    sums = Accumulators(np.dtype(float), 2)
    for row in ([1e16, 1e308], [1.0, 1e308], [-1e16, -1e308], [1.0, -1e308]):
        sums.add(np.array([row]))
        sums._carry()  # as often as it may be
    assert sums.result().tolist() == [2.0, 0.0]


def test_special_values_and_signs_of_zero():
    rows = np.array([[np.inf, np.inf, np.nan, -0.0, -0.0, 1.0, -np.inf], [1.0, -np.inf, 1.0, -0.0, 0.0, -1.0, 1e308]])
    for divisor in (None, 2):
        sums = Accumulators(rows.dtype, 7)
        sums.add(rows)
        found = sums.result(divisor)
        assert list(map(str, found.tolist())) == ["inf", "nan", "nan", "-0.0", "0.0", "0.0", "-inf"]


def test_complex_numbers_are_pairs():
    rows = np.array([[1e16 + 1j, 3 - 0.5j], [1 + 2j, 1e-30], [-1e16, -3 + 0.5j]], np.complex128)
    sums = Accumulators(rows.dtype, 2)
    sums.add(rows)
    assert sums.result().tolist() == [1 + 3j, 1e-30 + 0j] and sums.result(3).tolist() == [1 / 3 + 1j, 1e-30 / 3]


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8", "u8"])
def test_integers(dtype):
    about = (0, 1) if dtype == "?" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    rows = np.random.default_rng(3).integers(about[0], about[1], (5, 40), np.dtype(dtype), endpoint=True)
    sums = Accumulators(rows.dtype, 40)
    sums.add(rows)
    exactly = [sum(map(int, column)) for column in rows.T]
    assert sums.result(5).tolist() == [exact.ratio(each, 5) for each in exactly]
    wanted = elements.result_type(np.dtype(dtype), False)
    fits = [np.iinfo(wanted).min <= each <= np.iinfo(wanted).max for each in exactly]
    if all(fits):
        assert sums.result().tolist() == exactly and sums.result().dtype == wanted
    else:
        with pytest.raises(RangeError, match=f"element {fits.index(False)} is {exactly[fits.index(False)]}"):
            sums.result()


def test_pieces_follow_each_other():
    for shape in ((), (0, 3), (7,), (5, 4, 3), (1, 1, 50)):
        array = np.arange(math.prod(shape)).reshape(shape)
        for most in (1, 500, 1500, 5000):
            cut = [array[piece].reshape(-1) for piece in pieces(shape, np.dtype(float), most)]
            assert np.array_equal(np.concatenate(cut), array.reshape(-1))
            assert max(map(len, cut)) <= max(1, most // 69)


def test_other_types_are_refused():
    for dtype in ("g", "M8[s]", "m8[s]", "V2", "U3"):
        with pytest.raises(TypeError, match="exact sums are of"):
            elements.result_type(np.dtype(dtype), False)
