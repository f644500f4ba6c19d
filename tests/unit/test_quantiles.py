"""Quantiles: those of NumPy, however few values may be kept or counted at a time, compiled or not."""

import math
from fractions import Fraction

import numpy as np
import pytest

from hpcreduce.stats import kernels, quantiles
from hpcreduce.stats.quantilerules import METHODS, POINTS, between, check
from hpcreduce.stats.quantiles import Quantiles

WANTED = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999, 1)


def columns():
    """Columns of many kinds: wild, tied, beyond 2^53, with NaN and infinite values, empty."""
    random = np.random.default_rng(8)
    return [
        random.standard_normal(807) * 10.0 ** random.integers(-300, 300, 807),
        random.integers(0, 2, 600),
        random.integers(-(2**63), 2**63 - 1, 600),
        np.array([2**53 + 1, -(2**53) - 1, 5, 2**60 + 3, 2**60 + 1]),
        random.integers(2**63, 2**64 - 1, 999, dtype=np.uint64),
        np.array([1.0, np.nan, np.inf, -np.inf, -0.0, 5e-324]),
        np.zeros(0),
        random.standard_normal(400).astype(np.float32),
        np.full(9, -3.5),
    ]


def search(data, method="linear", approx=False):
    """Return a search that has found all, and how many passes it took."""
    found, passes = Quantiles(len(data), WANTED, method, approx), 0
    while wanted := found.columns():
        passes += 1
        for column in wanted:
            for part in np.array_split(data[column], 3):
                found.add(column, part)
        found.meet(None)
    return found, passes


@pytest.fixture(params=["numpy", "compiled"])
def alone(monkeypatch, request):
    """One rank, which needs no MPI."""
    monkeypatch.setattr(quantiles, "allreduce", lambda comm, array, op="sum": array)
    monkeypatch.setattr(kernels, "LATER", 0 if request.param == "compiled" else 2**60)


@pytest.mark.parametrize("collected, counted, most", [(1 << 22, 96, 2), (80, 5, 9), (0, 3, 99)])
def test_quantiles_are_those_of_numpy(monkeypatch, alone, collected, counted, most):
    monkeypatch.setattr(quantiles, "COLLECTED", collected)
    monkeypatch.setattr(quantiles, "COUNTED", counted)
    data = columns()
    for method in METHODS if collected > 80 else ("linear", "nearest"):
        found, passes = search(data, method)
        assert passes <= most
        for column, values in enumerate(data):
            told = found.told(column, values.dtype.kind in "iu")
            there = values[~np.isnan(values)]
            if not there.size:
                assert told == [None] * len(WANTED)
                continue
            ordered = np.sort(there).tolist()
            for q, value in zip(WANTED, told, strict=True):
                place = (there.size - 1) * q
                if method in POINTS:
                    expected = np.quantile(there, q, method=method).item()
                    assert value == expected and type(value) is type(expected), (method, column, q)
                elif np.isfinite(there.astype(float)).all():
                    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
                    part = place % 1 if method == "linear" else 0.5
                    exact = Fraction(low) + (Fraction(high) - Fraction(low)) * Fraction(part)
                    assert value in (float(exact), exact), (method, column, q)
                    assert np.isclose(value, np.quantile(there, q, method=method), rtol=1e-15, atol=0)


def test_approximate_quantiles_keep_their_error(alone):
    data = [column for column in columns() if np.isfinite(column.astype(float)).all() and column.size]
    found, passes = search(data, approx=True)
    assert passes == 1
    for column, values in enumerate(data):
        ordered = np.sort(values).astype(float)
        for q, value in zip(WANTED, found.told(column, False, ordered[0], ordered[-1]), strict=True):
            place = (values.size - 1) * q
            near = ordered[math.floor(place)], ordered[math.ceil(place)]
            error = quantiles.ERROR * max(map(abs, near)) + 2.0**-1028
            assert near[0] - error <= value <= near[1] + error, (column, q)


def test_between_infinite_values():
    assert between(-math.inf, 1.0, 0.5) == -math.inf and between(1.0, math.inf, 0.5) == math.inf
    assert math.isnan(between(-math.inf, math.inf, 0.5)) and between(math.inf, math.inf, 0.5) == math.inf


def test_what_there_is_not_is_refused():
    for wanted, method in (((1.5,), "linear"), ((-0.1,), "linear"), ((math.nan,), "linear"), ((0.5,), "median")):
        with pytest.raises(ValueError, match="found"):
            check(wanted, method)
