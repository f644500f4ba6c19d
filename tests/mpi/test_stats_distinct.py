"""Different and frequent values over ranks: counted exactly, or estimated the same way however the rows are spread."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from mpi4py import MPI

from hpcreduce.stats import describe, distinct

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif("MPICH" not in MPI.Get_library_version(), reason="the same under any library; run under MPICH"),
]


def table(count=1500):
    """Values of all kinds, some of them frequent."""
    random = np.random.default_rng(10)
    often = np.minimum(random.zipf(1.3, count), 2**40)
    return pa.table(
        {
            "whole": pa.array(often, mask=random.random(count) < 0.1),
            "huge": random.integers(2**63, 2**64 - 1, count, dtype=np.uint64),
            "float": np.where(np.arange(count) % 9 == 0, np.nan, often * 0.5 - 1.0),
            "text": [f"é{number}" for number in often.tolist()],
            "day": (often % 50).astype("M8[D]"),
            "flag": pa.array(often > 2, mask=random.random(count) < 0.1),
            "nothing": pa.nulls(count),
        }
    )


def spread(comm, whole):
    """Yield this rank's rows, for some ways to spread them."""
    count = len(whole)
    start, end = count * comm.rank // comm.size, count * (comm.rank + 1) // comm.size
    yield whole.slice(start, end - start)
    yield [whole.slice(start, 111) for start in range(111 * comm.rank, count, 111 * comm.size)] or None
    yield whole if comm.rank == comm.size - 1 else None


@pytest.mark.parametrize("most", [1 << 18, 300])
def test_different_and_frequent_values(monkeypatch, most):
    monkeypatch.setattr(distinct, "MOST", most)
    comm, whole = MPI.COMM_WORLD, table()
    told = []
    for mine in spread(comm, whole):
        found = describe(comm, mine, distinct=True, top=7).columns
        told.append({name: (column.distinct, column.top) for name, column in found.items()})
        for name, column in found.items():
            values = Counter(value for value in whole.column(name).to_pylist() if value is not None and value == value)
            few = len(values) <= most
            assert column.promises["distinct"] == ("exact" if few else "approximate")
            error = 0 if few else 5 * column.distinct_error * len(values)
            assert abs(column.distinct - len(values)) <= error, name
            expected = sorted(values.items(), key=lambda item: (-item[1], item[0]))[:7]
            expected = [
                (value.isoformat() if hasattr(value, "isoformat") else value, times) for value, times in expected
            ]
            assert column.top == expected, (name, most)
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("count", [0, 1, 100, 20_000, 500_000])
def test_estimates_keep_their_error(count):
    if MPI.COMM_WORLD.rank == 0:
        found = distinct.keys.mixed(np.arange(count, dtype=np.uint64))
        registers = np.zeros(1 << 14, np.uint8)
        np.maximum.at(registers, (found >> np.uint64(50)).astype(int), distinct._rank(found))
        assert abs(distinct.estimate(registers) - count) <= 4 * distinct.ERROR * count
