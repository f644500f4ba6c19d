"""Exact quantiles in bounded memory: digit by digit of keys that have the order of the values.

Rules that hold here:

1. The key of a number is that of the float64 at or below it, as 64 bits that are ordered as the numbers are, and what
   is left of it (integers beyond 2^53). Its digits are four of 16 bits and the rest.
2. In a pass over the data, values are counted by their next digit, those of all columns and quantiles in one
   all-reduce; each rank wanted is then in one bin. Once the bins that matter hold few values, these are kept, in
   the next pass, and the further digits are counted in memory.
3. Which value a quantile is follows NumPy; between two values it is the float nearest to the exact point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.collectives import allreduce
from hpcreduce.stats import exact, kernels
from hpcreduce.stats.numbers import number
from hpcreduce.stats.quantilerules import METHODS, POINTS, between

DIGIT = 16
"""Bits of a digit."""

SKETCH = 18
"""Bits of the only digit that is counted for approximate quantiles: sign, exponent and 6 bits of the mantissa."""

ERROR = 2.0**-7
"""How far, relatively, an approximate quantile is from a value of its bin, at most; it is the middle of the
bin. Below 2^-1022 it may be 2^-1028 away."""

COLLECTED = 1 << 20
"""Values of all ranks that are kept at most: 8 MB if one rank has them all, 16 MB of integers beyond 2^53."""

COUNTED = 96
"""Bins whose next digit is counted in a pass, at most: 0.5 MB each."""

_TOP = 1 << 63


class Node(NamedTuple):
    """The values of a column that begin with some digits, among which there are ranks to be found."""

    column: int
    level: int
    """How many digits are known."""
    prefix: int
    """These digits."""
    before: int
    """How many values of the column are below all of these."""
    size: int
    ranks: tuple[int, ...]
    """Places among all values of the column."""


def split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return numbers as the float64 at or below each, and what is left of them; None: nothing.

    Examples
    --------
    >>> split(np.array([2**53 + 1, -(2**53) - 1, 5]))
    (array([ 9.00719925e+15, -9.00719925e+15,  5.00000000e+00]), array([1, 1, 0]))
    """
    if values.dtype.kind == "f" or values.dtype.itemsize < 8 or not values.size:
        return values.astype(np.float64, copy=False), None
    if max(abs(int(values.min())), abs(int(values.max()))) <= 1 << 53:
        return values.astype(np.float64), None
    size = values.view(np.uint64)
    if values.dtype.kind == "i":
        size = np.where(values < 0, np.uint64(0) - size, size)
    bits = np.frexp((size >> np.uint64(11)).astype(np.float64))[1] + 11
    rests = values & ((np.int64(1) << np.maximum(bits - 53, 0).astype(np.int64)) - 1).astype(values.dtype)
    return (values - rests).astype(np.float64), rests.astype(np.int64)


def keys(floats: np.ndarray) -> np.ndarray:
    """Return the keys of float64 values, in uint64."""
    bits = floats.view(np.uint64)
    negative = floats.view(np.int64) >> 63
    return bits ^ (negative.view(np.uint64) | np.uint64(_TOP))


class Quantiles:
    """The search for the values at some places of each of several columns."""

    def __init__(self, columns: int, quantiles: Sequence[float], method: str = "linear", approx: bool = False) -> None:
        self.quantiles, self.method, self.approx = quantiles, METHODS[method], approx
        self.point = method in POINTS and not approx
        self.sizes = [0] * columns
        """How many values each column has, NaN apart, after the first pass over it."""
        self.found: dict[tuple[int, int], tuple[int, int]] = {}
        """(column, rank) -> key and rest."""
        self.deep = np.zeros(columns, np.int64)  # values that have a rest
        self.waiting = [Node(column, 0, 0, 0, 0, ()) for column in range(columns)]
        self.kept: dict[int, list[tuple[np.ndarray, np.ndarray | None]]] = {}
        self.plan()

    def plan(self) -> None:
        """Choose what the next pass over the data does: which bins are counted, which are kept; the others wait."""
        self.collected: list[Node] = []
        total = 0
        for node in sorted(self.waiting, key=lambda node: (node.size, node)):
            if node.level and total + node.size <= COLLECTED:
                total += node.size
                self.collected.append(node)
        self._count([node for node in self.waiting if node not in self.collected])

    def _count(self, nodes: list[Node]) -> None:
        """Make ready for counting the next digit of some of these; the others wait."""
        counted, self.waiting = nodes[:COUNTED], nodes[COUNTED:]
        self.counted = counted
        bits = SKETCH if self.approx else DIGIT
        self.counts = np.zeros((len(counted), 1 << bits), np.int64)
        self.low = np.full(len(counted), 2**64 - 1, np.uint64)
        self.high = np.zeros(len(counted), np.uint64)
        self.roots = {node.column: row for row, node in enumerate(counted) if not node.level}
        self.work: dict[int, dict[int, list[tuple[int, int]]]] = {}
        rows = [*((row, node) for row, node in enumerate(counted) if node.level), *((-1, n) for n in self.collected)]
        for row, node in rows:
            self.work.setdefault(node.column, {}).setdefault(node.level, []).append((node.prefix, row))
        self.tables = {}
        for column, levels in self.work.items():
            self.tables[column] = np.zeros(1 << DIGIT, np.bool_)
            for level, prefixes in levels.items():
                for prefix, _ in prefixes:
                    shift = DIGIT * (level - 1)
                    self.tables[column][prefix >> shift] = True

    def columns(self) -> list[int]:
        """Return the columns that the next pass has to read."""
        return sorted({*self.roots, *self.work})

    def add(self, column: int, values: np.ndarray) -> None:
        """Take in values of a column, NaN too."""
        if column not in self.roots and column not in self.work:
            return
        floats, rests = split(values)
        if column in self.roots:
            row = self.roots[column]
            kernels.digits(floats, 64 - self.counts.shape[1].bit_length() + 1, self.counts[row])
            if rests is not None:
                self.deep[column] += int(np.count_nonzero(rests))
            return
        chosen = kernels.chosen(floats, self.tables[column])
        if chosen.size:
            self._refine(column, keys(floats[chosen]), None if rests is None else rests[chosen])

    def _refine(self, column: int, keys: np.ndarray, rests: np.ndarray | None) -> None:
        for level, pairs in self.work[column].items():
            pairs.sort()
            prefixes = np.array([prefix for prefix, _ in pairs], np.uint64)
            rows = np.array([row for _, row in pairs])
            heads = keys >> np.uint64(64 - DIGIT * level)
            at = np.minimum(np.searchsorted(prefixes, heads), len(pairs) - 1)
            hit = prefixes[at] == heads
            row = np.where(hit, rows[at], -2)
            if (keep := row == -1).any():
                self.kept.setdefault(column, []).append((keys[keep], None if rests is None else rests[keep]))
            if not (count := row >= 0).any():
                continue
            row, mine = row[count], keys[count]
            if level == 4:
                digits = np.zeros(row.size, np.int64) if rests is None else rests[count]
            else:
                digits = (mine >> np.uint64(48 - DIGIT * level) & np.uint64(0xFFFF)).astype(np.int64)
            np.add.at(self.counts.reshape(-1), (row << DIGIT) + digits, 1)
            np.minimum.at(self.low, row, mine)
            np.maximum.at(self.high, row, mine)

    def meet(self, comm: Any) -> None:
        """Learn what all ranks have counted, and count in memory what they have kept; collective."""
        deep = bool(self.roots)
        self._meet(comm, deep)
        while self.collected:
            nodes, later = self.collected, self.waiting
            self.collected = []
            self._count(nodes)
            beyond = self.waiting
            for column, parts in self.kept.items():
                if column in self.work:
                    for keys, rests in parts:
                        self._refine(column, keys, rests)
            self.waiting = []
            self._meet(comm, False)
            self.collected, self.waiting = [*beyond, *self.waiting], later
        self.kept = {}
        self.plan()

    def _meet(self, comm: Any, deep: bool) -> None:
        if not self.counted:
            return
        flat = np.concatenate([self.counts.reshape(-1), self.deep]) if deep else self.counts.reshape(-1)
        total = np.asarray(allreduce(comm, flat))
        if deep:
            self.deep = total[total.size - self.deep.size :]
        self.counts = total[: self.counts.size].reshape(self.counts.shape)
        equal: dict[int, int] = {}
        if any(node.level for node in self.counted):
            ends = np.asarray(allreduce(comm, np.concatenate([self.low, ~self.high]), op="min"))
            low, high = ends[: len(self.counted)], ~ends[len(self.counted) :]
            equal = {row: int(low[row]) for row in np.flatnonzero(low == high).tolist()}
        for row, node in enumerate(self.counted):
            self._descend(node, self.counts[row], equal.get(row))

    def _descend(self, node: Node, counts: np.ndarray, only: int | None) -> None:
        """Go on from a bin to those of its parts in which the ranks are; `only`: the key that all its values have."""
        ends = np.cumsum(counts)
        if not node.level:
            self.sizes[node.column] = int(ends[-1])
            node = node._replace(size=int(ends[-1]), ranks=tuple(self._ranks(node.column)))
        if only is not None and node.level < 4:
            self._known(node._replace(level=4, prefix=only))
            return
        digits = np.searchsorted(ends, np.array(node.ranks, np.int64) - node.before, side="right").tolist()
        for digit in dict.fromkeys(digits):
            ranks = tuple(rank for rank, theirs in zip(node.ranks, digits, strict=True) if theirs == digit)
            before = node.before + int(ends[digit] - counts[digit])
            if self.approx:
                self.found |= {(node.column, rank): (digit, 0) for rank in ranks}
            elif node.level == 4:
                self.found |= {(node.column, rank): (node.prefix, digit) for rank in ranks}
            else:
                prefix = node.prefix << DIGIT | digit
                self._known(Node(node.column, node.level + 1, prefix, before, int(counts[digit]), ranks))

    def _known(self, node: Node) -> None:
        if node.level == 4 and not self.deep[node.column]:
            self.found |= {(node.column, rank): (node.prefix, 0) for rank in node.ranks}
        else:
            self.waiting.append(node)

    def _places(self, column: int) -> list[tuple[int, float]]:
        return [self.method((self.sizes[column] - 1) * q) for q in self.quantiles]

    def _ranks(self, column: int) -> list[int]:
        if not self.sizes[column]:
            return []
        last = self.sizes[column] - 1
        found = {min(rank + step, last) for rank, part in self._places(column) for step in ((0, 1) if part else (0,))}
        return sorted(found)

    def told(self, column: int, whole: bool, low: Any = None, high: Any = None) -> list[int | float | None]:
        """Return the quantiles of a column; `whole`: they are of integers, `low`, `high`: its extremes."""
        if not self.sizes[column]:
            return [None] * len(self.quantiles)
        result: list[int | float | None] = []
        for rank, part in self._places(column):
            value = self._value(column, rank, low, high)
            if part:
                value = between(value, self._value(column, rank + 1, low, high), part)
            elif whole and self.point:
                value = int(value)
            result.append(value)
        return result

    def _value(self, column: int, rank: int, low: Any, high: Any) -> int | float:
        key, rest = self.found[column, rank]
        if not self.approx:
            return number(key - _TOP, rest)
        shift = 64 - SKETCH
        first, last = (exact.value(end - _TOP) for end in (key << shift, (key + 1 << shift) - 1))
        if not first or not last:
            return 0.0  # the bins at 0 hold nothing as large as 2^-1028
        middle = first + (last - first) / 2 if math.isfinite(first) and math.isfinite(last) else first
        return float(min(max(middle, low), high))
