"""Groups and quantiles over ranks: exact, and the same however the rows are spread."""

import math
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from mpi4py import MPI

from hpcreduce.stats import StatsError, describe
from hpcreduce.stats.exact import ratio, root

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif("MPICH" not in MPI.Get_library_version(), reason="the same under any library; run under MPICH"),
]
QUANTILES = (0.0, 0.25, 0.5, 0.99)


def table(count=233):
    """Keys of all kinds, each with missing ones, and values."""
    random = np.random.default_rng(9)
    holes = [random.random(count) < 0.1 for _ in range(4)]
    return pa.table(
        {
            "text": pa.array([f"é{number % 7}" for number in range(count)], mask=holes[0]),
            "whole": pa.array(random.integers(-2, 3, count), mask=holes[1]),
            "day": pa.array(random.integers(0, 5, count).astype("M8[D]"), mask=holes[2]),
            "flag": pa.array(random.random(count) < 0.5, mask=holes[3]),
            "wild": random.standard_normal(count) * 2.0 ** random.integers(-600, 400, count),
            "huge": pa.array(random.integers(-(2**63), 2**63 - 1, count), mask=random.random(count) < 0.3),
            "spotted": np.where(np.arange(count) % 40 == 3, np.nan, random.standard_normal(count)),
        }
    )


def expected(values):
    """Return the figures of some values, by fractions."""
    null, there = values.count(None), [value for value in values if value is not None and value == value]
    told = {"count": len(there), "null": null, "nan": len(values) - null - len(there)}
    whole = all(isinstance(value, int) for value in there)
    exact = list(map(Fraction, there))
    total, count = sum(exact, Fraction(0)), len(exact)
    told["sum"] = int(total) if whole and count else ratio(total.numerator, total.denominator)
    mean = var = std = None
    if count:
        mean = ratio((total / count).numerator, (total / count).denominator)
    if count > 1:
        spread = (sum(value * value for value in exact) - total * total / count) / (count - 1)
        var, std = ratio(spread.numerator, spread.denominator), root(spread.numerator, spread.denominator)
    told |= {"mean": mean, "var": var, "std": std}
    return told | {"min": min(there, default=None), "max": max(there, default=None)}


def spread(comm, whole):
    """Yield this rank's rows, for some ways to spread them."""
    count = len(whole)
    for ends in ([count * rank // comm.size for rank in range(comm.size + 1)], [0] * comm.size + [count]):
        yield whole.slice(ends[comm.rank], ends[comm.rank + 1] - ends[comm.rank])
    yield [whole.slice(start, 5) for start in range(5 * comm.rank, count, 5 * comm.size)] or None


@pytest.mark.parametrize("by", ["text", "whole", "flag", ("day", "text"), ("whole", "flag", "day")], ids=str)
def test_every_figure_of_every_group(by):
    comm, whole = MPI.COMM_WORLD, table()
    names = [by] if isinstance(by, str) else list(by)
    rows = list(zip(*(whole.column(name).to_pylist() for name in names), strict=True))
    keys = sorted(set(rows), key=lambda key: [(value is None, value if value is not None else 0) for value in key])
    iso = [[value.isoformat() if hasattr(value, "isoformat") else value for value in key] for key in keys]
    figures = {
        (name, key): expected(
            [value for value, other in zip(whole.column(name).to_pylist(), rows, strict=True) if other == key]
        )
        for name in ("wild", "huge", "spotted")
        for key in (keys if comm.rank == 0 else ())
    }
    for mine in spread(comm, whole):
        groups = describe(comm, mine, by=by).groups
        assert comm.bcast(repr(groups)) == repr(groups)
        if comm.rank:
            continue
        assert [list(key) for key in zip(*groups.keys, strict=True)] == iso and groups.by == names
        assert groups.rows == [rows.count(key) for key in keys]
        for name in "wild", "huge", "spotted":
            for index, key in enumerate(keys):
                for figure, value in figures[name, key].items():
                    found = groups.columns[name][figure][index]
                    assert found == value and (type(found) is type(value) or found == 0), (name, key, figure)
        for name in {"text", "day", "flag"} - {*names}:
            values = whole.column(name).to_pylist()
            for index, key in enumerate(keys):
                there = [value for value, other in zip(values, rows, strict=True) if other == key and value is not None]
                ends = [min(there, default=None), max(there, default=None)]
                ends = [value.isoformat() if hasattr(value, "isoformat") else value for value in ends]
                assert [groups.columns[name][figure][index] for figure in ("min", "max")] == ends
                assert groups.columns[name]["count"][index] == len(there)


def test_quantiles_over_ranks():
    comm, whole = MPI.COMM_WORLD, table()
    for mine in spread(comm, whole):
        found = describe(comm, mine, quantiles=QUANTILES, method="lower").columns
        median = describe(comm, mine, quantiles=(0.5,)).columns
        for name in "wild", "huge", "spotted":
            values = np.array([each for each in whole.column(name).to_pylist() if each is not None and each == each])
            assert found[name].quantiles == dict(
                zip(QUANTILES, np.quantile(values, QUANTILES, method="lower").tolist(), strict=True)
            )
            ordered = sorted(values.tolist())
            low, high = (Fraction(ordered[place]) for place in ((len(ordered) - 1) // 2, len(ordered) // 2))
            middle = (low + high) / 2
            assert median[name].quantiles[0.5] in (ratio(middle.numerator, middle.denominator), middle)


def test_what_does_not_go_is_told_on_every_rank():
    comm, whole = MPI.COMM_WORLD, table()
    mine = whole if comm.rank == comm.size - 1 else None
    for wishes, said in (
        ({"by": "nowhere"}, "no column 'nowhere'"),
        ({"by": "wild"}, "groups are by text"),
        ({"by": "text", "weights": "huge"}, "no weights"),
        ({"quantiles": (2,)}, "from 0 to 1"),
    ):
        with pytest.raises((StatsError, ValueError), match=said):
            describe(comm, mine, **wishes)


def test_no_rows_make_no_groups():
    groups = describe(MPI.COMM_WORLD, table().slice(0, 0), by="text").groups
    assert (groups.rows, groups.keys) == ([], [[]])


@pytest.mark.skipif(not find_spec("scipy"), reason="SciPy, which brings the certified tables, is not installed")
def test_certified_analyses_of_variance():
    comm = MPI.COMM_WORLD
    folder = Path(find_spec("scipy").origin).parent / "stats" / "tests" / "data" / "nist_anova"
    for path in sorted(folder.glob("*.dat")):
        lines = path.read_text().splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("Data:"))
        rows = [line.split() for line in lines[start:] if len(line.split()) == 2 and not line.startswith("Data")]
        rows = [(int(float(key)), float(value)) for key, value in rows if _number(key) and _number(value)]
        between, within = (
            float(next(line.split()[place] for line in lines if line.startswith(name)))
            for name, place in (("Between", 3), ("Within", 3))
        )
        mine = rows[comm.rank :: comm.size]
        data = {"group": np.array([k for k, _ in mine], int), "y": np.array([y for _, y in mine], float)}
        found = describe(comm, data, by="group", ddof=0)
        y = found.groups.columns["y"]
        assert comm.bcast(repr(found)) == repr(found)
        if comm.rank:
            continue
        exact = {}
        for key, value in rows:
            exact.setdefault(key, []).append(int(math.ldexp(value, 60)))  # nothing is lost
        sums = {key: (len(values), sum(values), sum(each * each for each in values)) for key, values in exact.items()}
        count, total = len(rows), sum(each for _, each, _ in sums.values())
        ssw = sum(Fraction(squares - Fraction(each**2, n), 4**60) for n, each, squares in sums.values())
        ssb = Fraction(sum(Fraction(each**2, n) for n, each, _ in sums.values()) - Fraction(total**2, count), 4**60)
        assert y["mean"] == [float(Fraction(each, n << 60)) for _, (n, each, _) in sorted(sums.items())]
        told = sum(Fraction(var) * count for var, count in zip(y["var"], y["count"], strict=True))
        assert math.isclose(told, ssw, rel_tol=1e-14)
        overall = Fraction(found.columns["y"].var) * count - told
        assert math.isclose(overall, ssb, rel_tol=1e-9)
        if not path.name.startswith(("SmLs07", "SmLs08", "SmLs09")):  # whose data are rounded to float64
            assert math.isclose(float(ssb), between, rel_tol=1e-9) and math.isclose(told, within, rel_tol=1e-9)


def _number(text):
    return text.replace(".", "", 1).replace("-", "", 1).isdigit()
