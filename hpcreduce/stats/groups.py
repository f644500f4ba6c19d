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
from hpcreduce.stats import exact, figures, kernels, keys, meeting
from hpcreduce.stats.batches import NUMBER, Batch, Column, Field
from hpcreduce.stats.groupothers import GroupedOthers
from hpcreduce.stats.groupsums import MINUS, NAN, NULL, PLUS, ROWS, Grouped, grown
from hpcreduce.stats.others import date, text
from hpcreduce.stats.wanted import EXACT, ROUNDED, Groups, Wanted

_FIGURES = ("count", "null", "nan", "sum", "mean", "std", "var", "min", "max")
_PENDING = 1 << 22
"""Values of rows that are kept before their groups are sought."""
_MANY = 1 << 12
"""Groups beyond which rows are sorted by them, since what is known of so many does not stay in a processor's cache."""


class Part(NamedTuple):
    """Some groups of one rank."""

    keys: list[Any]
    rows: np.ndarray
    columns: list[Grouped | GroupedOthers]


class Gathering:
    """What one rank knows of groups."""

    def __init__(self, schema: Sequence[Field], wanted: Wanted) -> None:
        self.by, self.wanted = wanted.by, wanted
        self.fields = [field for field in schema if field.name not in [key.name for key in wanted.by]]
        self.start()

    def start(self) -> None:
        """Forget all groups."""
        self.pending: list[Batch] = []
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
        if self.pending and self._types(batch) != self._types(self.pending[0]):
            self._settle()
        self.pending.append(batch)
        if sum(batch.rows for batch in self.pending) * (len(self.by) + len(self.fields)) > _PENDING:
            self._settle()

    def _types(self, batch: Batch) -> list[Any]:
        return [batch.columns[field.name].values.dtype for field in self.fields if field.kind == NUMBER]

    def _settle(self) -> None:
        """Seek the groups of the rows that are pending, all together: each time takes as long as there are groups."""
        import pyarrow as pa

        batches, self.pending = self.pending, []
        if not batches:
            return
        parts = ([keys.array(field, batch.columns[field.name]) for batch in batches] for field in self.by)
        groups = self._numbered([pa.concat_arrays(arrays) for arrays in parts])
        self.rows += np.bincount(groups, minlength=len(self.rows))
        many = len(self.keys) > _MANY
        order = kernels.ordered(groups, len(self.rows)) if many else np.zeros(0, np.int64)
        parts_of_rows = [groups[order]] if many else np.split(groups, np.cumsum([batch.rows for batch in batches])[:-1])
        for field, state in zip(self.fields, self.columns, strict=True):
            columns = [batch.columns[field.name] for batch in batches]
            if not isinstance(state, Grouped):
                state.add(groups, pa.concat_arrays([keys.array(field, column) for column in columns]))
                continue
            for theirs, column in zip(parts_of_rows, [_sorted_by(columns, order)] if many else columns, strict=True):
                state.add(theirs, column.values, column.valid)

    def _part(self, arrays: Sequence[Any], groups: np.ndarray) -> Part:
        import pyarrow as pa

        return Part(
            [array.take(pa.array(groups)) for array in arrays],
            self.rows[groups],
            [column.part(groups) for column in self.columns],
        )

    def meet(self, comm: Any) -> None:
        """Hand each group to its rank; collective."""
        parts: list[Part | None] = [None] * comm.size
        with meeting.together(comm):
            self._settle()
            if len(self.keys) and comm.size > 1:
                arrays = self.keys.arrays()
                owners = keys.together(arrays) % np.uint64(comm.size)
                parts = [self._part(arrays, np.flatnonzero(owners == rank)) for rank in range(comm.size)]
        if comm.size == 1:
            return
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
                mine = self.keys.arrays(), self.rows[:count], columns
        found = [theirs for theirs in everyone(comm, mine) if theirs is not None]
        by, names = [field.name for field in self.by], [field.name for field in self.fields]
        promises = {field.name: _promises(field) for field in self.fields}
        if not found:
            return Groups(by, [[] for _ in by], [], {name: {} for name in names}, promises)
        arrays, rows, parts = zip(*found, strict=True)
        sorted_keys, order = _sorted([list(each) for each in zip(*arrays, strict=True)])
        told = {
            name: {figure: _arranged([part[index][figure] for part in parts], order) for figure in parts[0][index]}
            for index, name in enumerate(names)
        }
        return Groups(by, sorted_keys, _arranged(rows, order), told, promises)


def _sorted_by(columns: Sequence[Column], order: np.ndarray) -> Column:
    """Return numbers of one type, given in parts, in that order."""
    values = np.concatenate([column.values for column in columns])[order]
    if all(column.valid is None for column in columns):
        return Column(values)
    parts = [np.ones(len(each.values), bool) if each.valid is None else each.valid for each in columns]
    return Column(values, np.concatenate(parts)[order])


def _arranged(parts: Sequence[Any], order: np.ndarray) -> list[Any]:
    """Return the values of all ranks in order, as Python's; None for what is masked."""
    if not any(isinstance(part, list) for part in parts):
        return list(np.ma.concatenate(parts)[order].tolist())  # type: ignore[no-untyped-call]
    flat = [value for part in parts for value in (part if isinstance(part, list) else part.tolist())]
    return [flat[place] for place in order.tolist()]


def _promises(field: Field) -> dict[str, str]:
    if field.kind != NUMBER:
        return dict.fromkeys(("count", "null", "min", "max"), EXACT)
    rounded = {"mean", "std", "var"} if figures.integral(field) else {"sum", "mean", "std", "var"}
    return {name: ROUNDED if name in rounded else EXACT for name in _FIGURES}


def _sorted(columns: Sequence[Sequence[Any]]) -> tuple[list[list[Any]], np.ndarray]:
    """Return columns of keys, each given in parts, in the order of the keys as Python has them, and that order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = [pa.concat_arrays(parts) for parts in columns]
    names = [str(index) for index in range(len(whole))]
    comparable = [each.cast(pa.int8()) if pa.types.is_boolean(each.type) else each for each in whole]
    table = pa.table(dict(zip(names, comparable, strict=True)))
    order = pc.sort_indices(table, [(name, "ascending") for name in names])  # what is missing comes last
    return [_plain(array.take(order)) for array in whole], order.to_numpy()


def _plain(array: Any) -> list[Any]:
    """Return keys as Python's values."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_large_string(kind):
        return list(array.to_pylist())
    tell = date if pa.types.is_temporal(kind) else text
    return [tell(each)[1] if each.is_valid else None for each in array]


def _of_numbers(state: Grouped, wanted: Wanted, groups: int) -> dict[str, Any]:
    """Return the figures of a column of numbers for each group."""
    counts = state.counts[:groups]
    rows, plus, minus = counts[:, ROWS], counts[:, PLUS] > 0, counts[:, MINUS] > 0
    told = state.spreads(groups, wanted.ddof)
    for name, keys_of, high in ("min", state.low, False), ("max", state.high, True):
        beyond, other = (plus, minus) if high else (minus, plus)
        found = np.ma.masked_array(state.extreme(keys_of[:groups]), (rows == 0) & ~plus & ~minus)
        if not state.whole:
            end = math.inf if high else -math.inf
            found[(rows == 0) & other] = -end
            found[beyond] = end
        told[name] = found
    if not state.whole:
        negative = (rows > 0) & (state.high[:groups] == exact.key(-0.0))  # values that are all -0.0, or below
        for name in "sum", "mean":
            told[name][negative & (told[name] == 0)] = -0.0
        endless = np.where(plus & minus, math.nan, np.where(plus, math.inf, -math.inf))
        for name in "sum", "mean", "std", "var":
            told[name][plus | minus] = endless[plus | minus] if name in ("sum", "mean") else math.nan
        if wanted.nan == "propagate":
            for values in told.values():
                values[counts[:, NAN] > 0] = math.nan
    told |= {"count": rows + counts[:, PLUS] + counts[:, MINUS], "null": counts[:, NULL], "nan": counts[:, NAN]}
    return {name: told[name] for name in _FIGURES}
