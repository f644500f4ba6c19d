"""Statistics of each group of rows: those that have the same values in some columns.

Rules that hold here:

1. Each rank adds up the groups that it sees. Then each group goes, by the hash of its key, to one rank, which joins
   what all have seen of it and rounds: any number of groups is shared out. All ranks get the figures in the end.
2. Groups stand in the order of their keys: numbers by size, text by code points, false before true, and what is
   missing last.
3. Figures keep what they promise for whole columns. Weights, covariances, histograms and moments are not told of
   groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.objects import everyone
from hpcreduce.stats import exact, figures, keys, meeting
from hpcreduce.stats.batches import DATE, NUMBER, Batch, Field
from hpcreduce.stats.groupsums import MINUS, NAN, NULL, PLUS, ROWS, Grouped, grown
from hpcreduce.stats.others import date, text
from hpcreduce.stats.wanted import EXACT, ROUNDED, Groups, Wanted

_FIGURES = ("count", "null", "nan", "sum", "mean", "std", "var", "min", "max")
_PENDING = 1 << 17
"""Extremes of texts that are kept before they are compared."""


class GroupedOthers:
    """What is known of a column that is not one of numbers in each group."""

    def __init__(self) -> None:
        self.counts = np.zeros((0, 2), np.int64)  # of values, and of missing ones
        self.pending: list[tuple[np.ndarray, Any, Any]] = []
        self.waiting = 0

    def grow(self, groups: int) -> None:
        """Make room for more groups."""
        self.counts = grown(self.counts, groups)

    def add(self, groups: np.ndarray, values: Any) -> None:
        """Take in an Arrow array, each value of the group of that number."""
        there = values.is_valid().to_numpy(zero_copy_only=False)
        np.add.at(self.counts, (groups, (~there).astype(np.int64)), 1)
        if there.any():
            values = values.drop_null()
            self._note(*_extremes(groups[there], values, values))

    def _note(self, groups: np.ndarray, low: Any, high: Any) -> None:
        self.pending.append((groups, low, high))
        self.waiting += groups.size
        if self.waiting > _PENDING + 2 * len(self.counts):
            self.settle()

    def settle(self) -> None:
        """Compare what is pending, so that there is one lowest and one highest value for each group."""
        import pyarrow as pa

        if len(self.pending) > 1:
            groups, low, high = zip(*self.pending, strict=True)
            self.pending = [_extremes(np.concatenate(groups), pa.concat_arrays(low), pa.concat_arrays(high))]
        self.waiting = 0

    def join(self, groups: np.ndarray, other: GroupedOthers) -> None:
        """Take in what is known of other groups, which have these numbers here."""
        self.counts[groups] += other.counts
        for theirs, low, high in other.pending:
            self._note(groups[theirs], low, high)

    def part(self, groups: np.ndarray) -> GroupedOthers:
        """Return what is known of some groups, which are numbered anew."""
        import pyarrow as pa

        self.settle()
        found = GroupedOthers()
        found.counts = self.counts[groups]
        anew = np.full(len(self.counts), -1)
        anew[groups] = np.arange(groups.size)
        for mine, low, high in self.pending:
            at = np.flatnonzero(anew[mine] >= 0)
            found.pending.append((anew[mine[at]], low.take(pa.array(at)), high.take(pa.array(at))))
        return found

    def told(self, kind: str, groups: int) -> dict[str, list[Any]]:
        """Return the figures of each group."""
        self.settle()
        low: list[Any] = [None] * groups
        high: list[Any] = [None] * groups
        tell = date if kind == DATE else text
        for mine, lowest, highest in self.pending:
            for group, first, last in zip(mine.tolist(), lowest, highest, strict=True):
                low[group], high[group] = tell(first)[1], tell(last)[1]
        count, null = self.counts[:groups].T.tolist()
        return {"count": count, "null": null, "min": low, "max": high}


def _extremes(groups: np.ndarray, low: Any, high: Any) -> tuple[np.ndarray, Any, Any]:
    """Return the groups, and for each the lowest of its values in `low` and the highest of those in `high`."""
    there, at = np.unique(groups, return_inverse=True)
    return there, _extreme(at, there.size, low, np.minimum), _extreme(at, there.size, high, np.maximum)


def _extreme(at: np.ndarray, groups: int, values: Any, which: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = values.dictionary_encode()
    values = encoded.dictionary.cast(pa.int8()) if pa.types.is_boolean(values.type) else encoded.dictionary
    order = pc.sort_indices(values).to_numpy().astype(np.int64)
    places = np.empty(order.size, np.int64)
    places[order] = np.arange(order.size)
    found = np.full(groups, order.size if which is np.minimum else -1)
    which.at(found, at, places[encoded.indices.to_numpy()])
    return encoded.dictionary.take(pa.array(order[found]))


class Part(NamedTuple):
    """Some groups of one rank."""

    keys: list[Any]
    rows: np.ndarray
    columns: list[Grouped | GroupedOthers]


class Gathering:
    """What one rank knows of groups."""

    def __init__(self, schema: Sequence[Field], wanted: Wanted) -> None:
        self.by, self.wanted = wanted.by, wanted
        self.fields = [field for field in schema if field.name not in wanted.by]
        self.start()

    def start(self) -> None:
        """Forget all groups."""
        self.keys = keys.Keys(len(self.by))
        self.rows = np.zeros(0, np.int64)
        self.columns: list[Grouped | GroupedOthers] = [
            Grouped(field.dtype) if field.kind == NUMBER else GroupedOthers() for field in self.fields
        ]

    def _numbered(self, arrays: Sequence[Any]) -> np.ndarray:
        """Return the numbers of the groups with these keys, and make room for them."""
        groups = self.keys.add(arrays)
        self.rows = grown(self.rows, len(self.keys))
        for column in self.columns:
            column.grow(len(self.keys))
        return groups

    def add(self, batch: Batch) -> None:
        """Take in rows."""
        groups = self._numbered([keys.array(name, batch.columns[name]) for name in self.by])
        np.add.at(self.rows, groups, 1)
        for field, state in zip(self.fields, self.columns, strict=True):
            column = batch.columns[field.name]
            if isinstance(state, Grouped):
                state.add(groups, column.values, column.valid)
            else:
                state.add(groups, keys.array(field.name, column))

    def _part(self, arrays: Sequence[Any], groups: np.ndarray) -> Part:
        import pyarrow as pa

        return Part(
            [array.take(pa.array(groups)) for array in arrays],
            self.rows[groups],
            [column.part(groups) for column in self.columns],
        )

    def meet(self, comm: Any) -> None:
        """Hand each group to its rank; collective."""
        if comm.size == 1:
            return
        parts: list[Part | None] = [None] * comm.size
        with meeting.together(comm):
            if len(self.keys):
                arrays = self.keys.arrays()
                owners = keys.together(arrays) % np.uint64(comm.size)
                parts = [self._part(arrays, np.flatnonzero(owners == rank)) for rank in range(comm.size)]
        theirs = comm.alltoall(parts)
        with meeting.together(comm):
            self.start()
            for part in theirs:
                if part is not None and part.rows.size:
                    groups = self._numbered(part.keys)
                    self.rows[groups] += part.rows
                    for mine, other in zip(self.columns, part.columns, strict=True):
                        mine.join(groups, other)

    def told(self, comm: Any) -> Groups:
        """Return the figures of all groups, in the order of their keys; collective."""
        mine: Any = None
        with meeting.together(comm):
            if count := len(self.keys):
                columns = [
                    _of_numbers(state, self.wanted, count)
                    if isinstance(state, Grouped)
                    else state.told(field.kind, count)
                    for field, state in zip(self.fields, self.columns, strict=True)
                ]
                mine = self.keys.arrays(), self.rows[:count].tolist(), columns
        parts_of_all = [theirs for theirs in everyone(comm, mine) if theirs is not None]
        names = [field.name for field in self.fields]
        promises = {field.name: _promises(field) for field in self.fields}
        if not parts_of_all:
            return Groups(list(self.by), [[] for _ in self.by], [], {name: {} for name in names}, promises)
        arrays, rows, parts = zip(*parts_of_all, strict=True)
        sorted_keys, order = _sorted([list(each) for each in zip(*arrays, strict=True)])

        def arranged(lists: Sequence[list[Any]]) -> list[Any]:
            flat = [value for part in lists for value in part]
            return [flat[place] for place in order]

        told = {
            name: {figure: arranged([part[index][figure] for part in parts]) for figure in parts[0][index]}
            for index, name in enumerate(names)
        }
        return Groups(list(self.by), sorted_keys, arranged(rows), told, promises)


def _promises(field: Field) -> dict[str, str]:
    if field.kind != NUMBER:
        return dict.fromkeys(("count", "null", "min", "max"), EXACT)
    rounded = {"mean", "std", "var"} if figures.integral(field) else {"sum", "mean", "std", "var"}
    return {name: ROUNDED if name in rounded else EXACT for name in _FIGURES}


def _sorted(columns: Sequence[Sequence[Any]]) -> tuple[list[list[Any]], list[int]]:
    """Return columns of keys, each given in parts, in the order of the keys as Python has them, and that order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = [pa.concat_arrays(parts) for parts in columns]
    names = [str(index) for index in range(len(whole))]
    comparable = [each.cast(pa.int8()) if pa.types.is_boolean(each.type) else each for each in whole]
    table = pa.table(dict(zip(names, comparable, strict=True)))
    order = pc.sort_indices(table, [(name, "ascending") for name in names])  # what is missing comes last
    return [[_key(each) for each in array.take(order)] for array in whole], order.to_pylist()


def _key(scalar: Any) -> Any:
    import pyarrow as pa

    if not scalar.is_valid:
        return None
    return date(scalar)[1] if pa.types.is_temporal(scalar.type) else text(scalar)[1]


def _of_numbers(state: Grouped, wanted: Wanted, groups: int) -> dict[str, list[Any]]:
    """Return the figures of a column of numbers for each group."""
    counts = state.counts[:groups]
    rows, plus, minus = counts[:, ROWS], counts[:, PLUS], counts[:, MINUS]
    sums, means, variances, deviations = map(list, zip(*state.spreads(groups, wanted.ddof), strict=True))
    told = {"sum": sums, "mean": means, "std": deviations, "var": variances}
    told |= {"min": state.extreme(state.low[:groups]), "max": state.extreme(state.high[:groups])}
    if not state.whole:  # values that are all -0.0
        for group in np.flatnonzero((rows > 0) & (state.high[:groups] == exact.key(-0.0))).tolist():
            if not sums[group]:
                sums[group] = means[group] = -0.0
    for group in np.flatnonzero(rows == 0).tolist():
        told["min"][group] = told["max"][group] = None
    for group in np.flatnonzero(plus + minus).tolist():
        both, sign = bool(plus[group] and minus[group]), math.inf if plus[group] else -math.inf
        sums[group] = means[group] = math.nan if both else sign
        deviations[group] = variances[group] = math.nan
        if minus[group]:
            told["min"][group] = -math.inf
        if plus[group]:
            told["max"][group] = math.inf
        if not rows[group]:
            told["min"][group] = -math.inf if minus[group] else math.inf
            told["max"][group] = math.inf if plus[group] else -math.inf
    if wanted.nan == "propagate":
        for group in np.flatnonzero(counts[:, NAN]).tolist():
            for values in told.values():
                values[group] = math.nan
    told |= {"count": (rows + plus + minus).tolist(), "null": counts[:, NULL].tolist(), "nan": counts[:, NAN].tolist()}
    return {name: told[name] for name in _FIGURES}
