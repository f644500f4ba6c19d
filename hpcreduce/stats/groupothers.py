"""What is known of a column that is not one of numbers in each of many groups: counts, the lowest and the highest."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcreduce.stats.batches import DATE
from hpcreduce.stats.groupsums import grown
from hpcreduce.stats.others import date, text

_PENDING = 1 << 17
"""Extremes of texts that are kept before they are compared."""


class GroupedOthers:
    """Count, missing values and extremes of each group."""

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
        self.counts[:, 0] += np.bincount(groups[there], minlength=len(self.counts))
        self.counts[:, 1] += np.bincount(groups[~there], minlength=len(self.counts))
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

    def told(self, kind: str, groups: int) -> dict[str, Any]:
        """Return the figures of each group."""
        self.settle()
        low: list[Any] = [None] * groups
        high: list[Any] = [None] * groups
        tell = date if kind == DATE else text
        for mine, lowest, highest in self.pending:
            for group, first, last in zip(mine.tolist(), lowest, highest, strict=True):
                low[group], high[group] = tell(first)[1], tell(last)[1]
        count, null = self.counts[:groups].T
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
