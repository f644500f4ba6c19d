"""Sums, extremes and keys of groups on one rank: exact, compiled or not, whatever the sizes of the values."""

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from hpcreduce.stats import kernels, keys
from hpcreduce.stats.exact import ratio, root
from hpcreduce.stats.groupsums import Grouped

RANDOM = np.random.default_rng(3)
WILD = RANDOM.standard_normal(900) * 10.0 ** RANDOM.integers(-300, 300, 900)
COLUMNS = {
    "wild": (WILD, "float64"),
    "special": (np.array([1.5, np.nan, np.inf, -np.inf, -0.0, 5e-324, 1.7e308, 0.0] * 20), "float64"),
    "single": (RANDOM.standard_normal(500).astype(np.float32), "float32"),
    "huge": (RANDOM.integers(-(2**63), 2**63 - 1, 700), "int64"),
    "unsigned": (RANDOM.integers(0, 2**64 - 1, 700, dtype=np.uint64), "uint64"),
    "bytes in an unsigned column": (RANDOM.integers(0, 255, 500).astype(np.uint8), "uint64"),
    "bytes": (RANDOM.integers(-128, 127, 500).astype(np.int8), "int8"),
}


@pytest.mark.parametrize("later", [2**60, 0], ids=["numpy", "compiled"])
@pytest.mark.parametrize("name", COLUMNS)
def test_sums_of_groups_are_exact(monkeypatch, name, later):
    monkeypatch.setattr(kernels, "LATER", later)
    values, dtype = COLUMNS[name]
    random = np.random.default_rng(4)
    groups, valid = random.integers(0, 7, values.size), random.random(values.size) < 0.9
    ranks = Grouped(dtype), Grouped(dtype)
    for index, rows in enumerate(np.array_split(np.arange(values.size), 6)):
        ranks[index % 2].grow(7)
        ranks[index % 2].add(groups[rows], values[rows], valid[rows])
    both = Grouped(dtype)
    both.grow(8)
    for rank in ranks:
        both.join(np.arange(1, 8), rank.part(np.arange(7)))
    low, high = both.extreme(both.low), both.extreme(both.high)
    sums, squares = both.sums.integers(np.arange(8)), both.squares.integers(np.arange(8))
    for group in range(7):
        mine = values[(groups == group) & valid]
        finite = mine[np.isfinite(mine)]
        exact = [Fraction(value.item()) for value in finite]
        special = [np.isnan(mine).sum(), (mine == np.inf).sum(), (mine == -np.inf).sum()]
        counts = [finite.size, (~valid[groups == group]).sum(), *special]
        assert both.counts[group + 1].tolist() == counts
        assert sums[group + 1] << both.sums.unit == sum(exact) * 2**1074
        assert squares[group + 1] << both.squares.unit == sum(value * value for value in exact) * 2**2148
        assert (low[group + 1], high[group + 1]) == (finite.min(), finite.max())


HARD = {
    "offset": 1e9 + RANDOM.random(900),
    "far offset": 2.0**52 + RANDOM.integers(0, 3, 900),
    "halves": RANDOM.integers(-(2**53), 2**53, 900).astype(float),
    "signs": RANDOM.standard_normal(900) * RANDOM.choice([1.0, 2.0**-40, 2.0**60], 900),
    "few": RANDOM.integers(-1, 2, 900) * 0.1,
    "tiny": RANDOM.standard_normal(900) * 2.0**-540,
    "subnormal": RANDOM.integers(-9, 9, 900) * 5e-324,
    "vast": RANDOM.standard_normal(900) * 2.0**1022,
    "wild": RANDOM.standard_normal(900) * 2.0 ** RANDOM.integers(-1000, 1000, 900),
    "whole": RANDOM.integers(-(2**40), 2**40, 900),
    "huge": RANDOM.integers(-(2**63), 2**63 - 1, 900),
}


@pytest.mark.parametrize("name", HARD)
def test_figures_of_many_groups_are_rounded_once(name):
    """Groups of 0 to 90 values: whether doubled precision is sure or not, the nearest float is told."""
    values, groups = HARD[name], np.sort((RANDOM.random(900) ** 2 * 90).astype(np.int64))
    for ddof in (0, 1) if name == "offset" else (1,):
        column = Grouped(str(values.dtype))
        column.grow(90)
        column.add(groups, values, None)
        told = {
            figure: found.tolist() if hasattr(found, "tolist") else found
            for figure, found in column.spreads(90, ddof).items()
        }
        for group in range(90):
            mine = [Fraction(value) for value in values[groups == group].tolist()]
            total, n = sum(mine, Fraction(0)), len(mine)
            assert told["sum"][group] == (total if values.dtype.kind == "i" else ratio(*total.as_integer_ratio()))
            mean = ratio(*(total / n).as_integer_ratio()) if n else None
            var = std = None
            if n > ddof:
                spread = (sum(value * value for value in mine) - total * total / n) / (n - ddof)
                var, std = ratio(*spread.as_integer_ratio()), root(*spread.as_integer_ratio())
            assert [told[figure][group] for figure in ("mean", "var", "std")] == [mean, var, std], group


def test_doubled_precision_is_mostly_sure(monkeypatch):
    """Else it would be no gain."""
    column, left = Grouped("float64"), []
    column.grow(90)
    column.add(np.arange(900) % 90, np.append(HARD["offset"][1:] % 1 + 1e5, 0.0), None)
    monkeypatch.setattr(column, "_rounded", lambda groups, ddof: left.extend(groups) or [(0,) * 4] * len(left))
    column.spreads(90, 1)
    assert len(left) < 9


def test_keys_are_numbered_as_they_come():
    seen = keys.Keys(3)
    text = pa.array(["b", None, "a", "b", "a"], pa.large_string())
    whole = pa.array([1, 2, None, 1, 2])
    flag = pa.array([True, None, False, True, False])
    assert seen.add([text, whole, flag]).tolist() == [0, 1, 2, 0, 3]
    assert seen.add([text.take([4, 1, 4]), whole.take([4, 1, 0]), flag.take([4, 1, 4])]).tolist() == [3, 1, 4]
    found = [array.to_pylist() for array in seen.arrays()]
    assert found == [["b", None, "a", "a", "a"], [1, 2, None, 2, 1], [True, None, False, False, False]]


def test_hashes_depend_on_the_values_alone():
    text = pa.array(["", "a", "ab", "ba", None, "é" * 50])
    whole = keys.hashes(text)
    assert len(set(whole.tolist())) == 6
    for kind in pa.large_string(), pa.string():
        assert keys.hashes(text.cast(kind)[2:]).tolist() == whole[2:].tolist()
    program = (
        "import pyarrow as pa; from hpcreduce.stats import keys; print(keys.hashes(pa.array(['ab', 'ba'])).tolist())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert said.stdout.strip() == str(whole[2:4].tolist())
