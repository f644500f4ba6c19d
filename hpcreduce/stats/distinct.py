"""How many different values a column has, and which are the most frequent ones.

Rules that hold here:

1. Up to `MOST` different values are counted exactly. If there are more, their number is estimated by HyperLogLog, whose
   registers are the highest of all ranks: whether so, and the estimate, depend on the values alone.
2. The most frequent values are exact always. Beyond `MOST` values, rows are counted by a hash of their value first; the
   values of the fullest buckets are counted in a second pass, and in more if other buckets could still have a more
   frequent one.
3. NaN and missing values do not count; -0.0 is 0.0. Of equally frequent values the lower ones come first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcreduce.collectives import allreduce
from hpcreduce.objects import everyone
from hpcreduce.stats import keys, meeting
from hpcreduce.stats.batches import DATE, NUMBER, Column, Field
from hpcreduce.stats.groupsums import grown
from hpcreduce.stats.others import date, text

MOST = 1 << 18
"""Different values of all ranks that are counted exactly, and about as many are kept in a pass."""

_INDEX = 14
ERROR = 1.04 / math.sqrt(1 << _INDEX)
"""The standard error of an estimate, relatively: 0.8 %."""

_BUCKET = 16


def values(field: Field, column: Column) -> Any:
    """Return the values that count, as an Arrow array of one type for the field."""
    import pyarrow as pa

    if field.kind != NUMBER:
        return keys.array(field, column).drop_null()
    there = column.values if column.valid is None else column.values[column.valid]
    if field.dtype.startswith("float"):
        there = there.astype(np.float64, copy=False)
        return pa.array(there[~np.isnan(there)] + 0.0)
    return keys.array(field, Column(there))


def hashes(array: Any) -> np.ndarray:
    """Return the hashes of such values."""
    import pyarrow as pa

    return keys.hashes(pa.array(array.to_numpy().view(np.int64)) if pa.types.is_floating(array.type) else array)


class Counted:
    """What is known of the different values of a column."""

    def __init__(self, field: Field, top: int) -> None:
        self.field, self.top = field, top
        self.over = False
        self.registers = np.zeros(1 << _INDEX, np.uint8)
        self.buckets = np.zeros(1 << _BUCKET, np.int64)
        self.wanted: np.ndarray | None = None
        self.best: list[tuple[int, Any]] = []
        self.forget()

    def forget(self) -> None:
        """Forget the values that are kept."""
        self.known, self.counts = keys.Numbered(), np.zeros(0, np.int64)

    def add(self, column: Column) -> None:
        """Take in a batch."""
        import pyarrow as pa

        array = values(self.field, column)
        if self.wanted is not None:
            chosen = self.wanted[(hashes(array) >> np.uint64(64 - _BUCKET)).astype(np.int64)]
            array = array.filter(pa.array(chosen))
        self._count(array, None)
        if self.wanted is None and (self.over or len(self.known) > MOST):
            self._fold()

    def _count(self, array: Any, counts: np.ndarray | None) -> None:
        if len(array):
            numbers = self.known.add(array)
            self.counts = grown(self.counts, len(self.known))
            np.add.at(self.counts, numbers, 1 if counts is None else counts)

    def _fold(self) -> None:
        """Turn the values that are kept into registers and buckets."""
        self.over = True
        if len(self.known):
            found = hashes(self.known.known)
            np.maximum.at(self.registers, (found >> np.uint64(64 - _INDEX)).astype(np.int64), _rank(found))
            places = (found >> np.uint64(64 - _BUCKET)).astype(np.int64)
            np.add.at(self.buckets, places, self.counts[: found.size])
        self.forget()

    def meet(self, comm: Any) -> None:
        """Learn what all ranks have seen in the first pass; collective."""
        self.over, self.number = bool(allreduce(comm, int(self.over), op="max")), 0
        if not self.over:
            self._share(comm)
            self.number = int(allreduce(comm, len(self.known)))
            self.over = self.number > MOST
        if not self.over:
            self._rank_them(comm)
            return
        self._fold()
        self.registers = np.asarray(allreduce(comm, self.registers, op="max"))
        self.buckets = np.asarray(allreduce(comm, self.buckets))
        self.number = round(estimate(self.registers))
        if self.top:
            self._choose()

    def meet_again(self, comm: Any) -> None:
        """Learn what all ranks have counted in a further pass; collective."""
        self._share(comm)
        self._rank_them(comm)
        self._choose()

    def _share(self, comm: Any) -> None:
        """Hand each value to the rank of its hash; collective."""
        import pyarrow as pa

        if comm.size == 1:
            return
        parts: list[Any] = [None] * comm.size
        with meeting.together(comm):
            if len(self.known):
                owners = hashes(self.known.known) % np.uint64(comm.size)
                chosen = [np.flatnonzero(owners == rank) for rank in range(comm.size)]
                parts = [(self.known.known.take(pa.array(at)), self.counts[at]) for at in chosen]
        theirs = comm.alltoall(parts)
        with meeting.together(comm):
            self.forget()
            for part in theirs:
                if part is not None:
                    self._count(*part)

    def _rank_them(self, comm: Any) -> None:
        """Put the most frequent ones of all ranks together with those of earlier passes; collective."""
        mine: list[tuple[int, Any]] = []
        with meeting.together(comm):
            if self.top and len(self.known):
                mine = self._most_frequent()
        found = [each for theirs in everyone(comm, mine) for each in theirs]
        self.best = sorted([*self.best, *found], key=self._order)[: self.top]
        self.forget()

    def _order(self, each: tuple[int, Any]) -> tuple[int, Any]:
        return -each[0], (date if self.field.kind == DATE else text)(each[1])[0]

    def _most_frequent(self) -> list[tuple[int, Any]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        array, counts = self.known.known, self.counts[: len(self.known)]
        if counts.size > self.top:  # only those that can be among them
            least = np.partition(counts, counts.size - self.top)[counts.size - self.top]
            at = np.flatnonzero(counts >= least)
            array, counts = array.take(pa.array(at)), counts[at]
        table = pa.table(
            {"value": array.cast(pa.int8()) if pa.types.is_boolean(array.type) else array, "count": counts}
        )
        order = pc.sort_indices(table, [("count", "descending"), ("value", "ascending")])[: self.top]
        return [(int(counts[place]), array[place]) for place in order.to_pylist()]

    def _choose(self) -> None:
        """Choose the buckets whose values the next pass counts; none if no other could have a more frequent value."""
        if self.wanted is not None:
            self.buckets[self.wanted] = 0
        least = self.best[-1][0] if len(self.best) == self.top else 1
        order = np.argsort(-self.buckets, kind="stable")
        order = order[: max(1, MOST * (1 << _BUCKET) // max(1, 2 * self.number))]
        order = order[self.buckets[order] >= least]
        self.wanted = np.zeros(1 << _BUCKET, bool) if order.size else None
        if self.wanted is not None:
            self.wanted[order] = True

    @property
    def unfinished(self) -> bool:
        """Whether another pass is needed."""
        return self.wanted is not None

    def told(self) -> list[tuple[Any, int]]:
        """Return the most frequent values, and how often each is there."""
        tell = date if self.field.kind == DATE else text
        return [(tell(value)[1], count) for count, value in self.best]


def _rank(found: np.ndarray) -> np.ndarray:
    """Return the place of the first 1 among the bits after the index, from 1."""
    bits = 64 - _INDEX
    rest = (found & np.uint64((1 << bits) - 1)).astype(np.float64)
    return np.asarray((bits + 1 - np.frexp(rest)[1]).astype(np.uint8))


def estimate(registers: np.ndarray) -> float:
    """Return the number of different values (Ertl 2017, New cardinality estimation algorithms, section 4)."""
    bits, m = 64 - _INDEX, registers.size
    counts = np.bincount(registers, minlength=bits + 2).tolist()
    z = m * _tau(1 - counts[bits + 1] / m)
    for place in range(bits, 0, -1):
        z = 0.5 * (z + counts[place])
    z += m * _sigma(counts[0] / m)
    return m * m / (2 * math.log(2) * z)


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x, before = math.sqrt(x), z
        y *= 0.5
        z -= (1 - x) ** 2 * y
    return z / 3
