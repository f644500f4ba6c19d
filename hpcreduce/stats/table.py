"""What one rank has seen of a table, in one pass or two, and after meeting what all ranks have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.objects import everyone
from hpcreduce.stats import fast, figures, meeting, numbers
from hpcreduce.stats.batches import NUMBER, Batch, Field
from hpcreduce.stats.covariance import Pair
from hpcreduce.stats.distinct import Counted
from hpcreduce.stats.fast import FastNumbers, FastPair
from hpcreduce.stats.groups import Gathering
from hpcreduce.stats.histogram import Histogram
from hpcreduce.stats.numbers import Numbers, Rows
from hpcreduce.stats.others import Others
from hpcreduce.stats.powers import Powers
from hpcreduce.stats.product import Product
from hpcreduce.stats.quantiles import Quantiles
from hpcreduce.stats.wanted import Described, Summary, Wanted


class Seen(NamedTuple):
    """What is kept of one column of numbers, and what of it is asked for."""

    field: Field
    numbers: Numbers
    product: Product | None


class Shards:
    """The rows of each shard."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.counts = np.zeros(0, np.int64)

    def spread(self, shards: int) -> None:
        """Make room for the shards of all ranks."""
        self.counts = np.array([self.rows.get(shard, 0) for shard in range(shards)], np.int64)

    def integers(self) -> list[int]:
        """Return the integers that are added up over the ranks besides the counts: none."""
        return []

    def widths(self) -> list[int]:
        """Return their limbs."""
        return []

    def become(self, integers: list[int], counts: np.ndarray) -> None:
        """Become what all ranks have seen."""
        self.counts = np.trim_zeros(counts, "b")


class Table:
    """What one rank has seen of all columns, and after meeting what all have."""

    def __init__(self, schema: Sequence[Field], wanted: Wanted) -> None:
        self.schema, self.wanted = schema, wanted
        self.shards = Shards()
        self.seen = [self._seen(field) for field in schema if field.kind == NUMBER]
        self.others = {field.name: Others(field.kind) for field in schema if field.kind != NUMBER}
        self.whole_weights = True
        make = FastPair if wanted.fast else Pair
        chosen = [index for index, each in enumerate(self.seen) if each.field.name != wanted.weights]
        pairs = itertools.combinations(chosen if wanted.covariance else [], 2)
        self.pairs: list[Pair] = [make(x, y, wanted.weights is not None) for x, y in pairs]
        counted = schema if wanted.distinct or wanted.top else ()
        self.counted = {field.name: Counted(field, wanted.top) for field in counted}
        self.groups = Gathering(schema, wanted) if wanted.by else None
        self.powers: dict[int, Powers] = {}
        self.open: set[int] = set()  # the columns that the second pass is for, besides quantiles
        self.histograms: dict[int, Histogram] = {}
        self.unbinned: list[str] = []
        columns = len(self.seen) if wanted.quantiles else 0
        self.search = Quantiles(columns, wanted.quantiles, wanted.method, wanted.approx)
        if wanted.histogram is not None and not self.ranged:
            for index in range(len(self.seen)):
                self._histogram(index, *wanted.histogram[1:])

    @property
    def ranged(self) -> bool:
        """Whether histograms have the range of the values."""
        return self.wanted.histogram is not None and None in self.wanted.histogram[1:]

    def _seen(self, field: Field) -> Seen:
        weighted = self.wanted.weights not in (None, field.name)
        column = FastNumbers(weighted, self.wanted.moments) if self.wanted.fast else Numbers(weighted)
        return Seen(field, column, Product() if self.wanted.moments and not weighted else None)

    def _histogram(self, index: int, low: Any, high: Any) -> None:
        assert self.wanted.histogram is not None
        field = self.seen[index].field
        try:
            self.histograms[index] = Histogram(self.wanted.histogram[0], low, high, field.dtype)
        except ValueError:  # so many edges cannot be told apart, or the range is beyond float64
            self.unbinned.append(field.name)

    def names(self) -> list[str]:
        """Return the columns of the first pass."""
        names = [field.name for field in self.schema]
        return self._with_weights([*names, *(field.name for field in self.wanted.by if field.name not in names)])

    def _with_weights(self, names: list[str]) -> list[str]:
        weights = self.wanted.weights
        return names if weights is None or weights in names else [*names, weights]

    def _rows(self, batch: Batch, each: Seen) -> tuple[Rows, int]:
        weights = batch.columns[str(self.wanted.weights)] if each.numbers.weighted else None
        return numbers.counting(batch.columns[each.field.name], weights, batch.shard, batch.row)

    def add(self, batch: Batch) -> None:
        """Take in a batch of the first pass."""
        self.shards.rows[batch.shard] = self.shards.rows.get(batch.shard, 0) + batch.rows
        if self.wanted.weights is not None:
            self.whole_weights &= batch.columns[self.wanted.weights].values.dtype.kind != "f"
        found = []
        for index, each in enumerate(self.seen):
            there, null = self._rows(batch, each)
            each.numbers.null += null
            self.search.add(index, there.values)
            finite = each.numbers.add(there, batch.shard, batch.row)
            if self.pairs:
                found.append((there, finite))
            if each.product is not None:
                each.product.add(finite.values)
            if index in self.histograms:
                self.histograms[index].add(finite.values)
        for pair in self.pairs:
            pair.add(found[pair.x], found[pair.y], batch.rows, self.wanted.nan == "propagate")
        for name, other in self.others.items():
            other.add(batch.columns[name])
        for name, counted in self.counted.items():
            counted.add(batch.columns[name])
        if self.groups is not None:
            self.groups.add(batch)

    def meet(self, comm: Any) -> None:
        """Learn what the other ranks have seen in the first pass; collective."""
        told = everyone(comm, self._told())
        self.shards.spread(1 + max(shard for shard, *_ in told))
        self.whole_weights = all(whole for _, whole, *_ in told)
        for rank, (_, _, others, *_) in enumerate(told):
            for mine, theirs in zip(self.others.values(), others, strict=True):
                if rank != comm.rank:
                    mine.join(theirs)
        columns = [each.numbers for each in self.seen]
        products = [each.product for each in self.seen if each.product is not None]
        meeting.add_up(comm, [self.shards, *columns, *products, *self.pairs, *self.histograms.values()])
        tuples = iter(meeting.lowest(comm, [each for column in columns for each in column.tuples()]))
        for column in columns:
            column.low, column.high, column.first_minus, column.first_plus = list(itertools.islice(tuples, 4))
        fast.meet(columns, self.pairs, [floats for *_, floats in told])
        self.search.meet(comm)
        for counted in self.counted.values():
            counted.meet(comm)
        if self.groups is not None:
            self.groups.meet(comm)

    def _told(self) -> tuple[int, bool, list[Others], Any]:
        floats = fast.floats([each.numbers for each in self.seen], self.pairs)
        return max(self.shards.rows, default=-1), self.whole_weights, list(self.others.values()), floats

    def prepare(self) -> None:
        """Prepare the second pass."""
        for index, (field, column, _) in enumerate(self.seen):
            if not column.sums.rows:
                continue
            if self.wanted.moments and not self.wanted.fast and not (column.plus or column.minus):
                found = figures.totals(column, self.wanted.ddof, whole=False)
                self.powers[index] = Powers(column, found["mean"], found["std"] or 1.0)
            if self.ranged:
                ends = numbers.number(*column.low[:2]), numbers.number(*(-each for each in column.high[:2]))
                self._histogram(index, *map(np.dtype(field.dtype).type, ends))
        self.open = {*self.powers, *(self.histograms if self.ranged else ())}

    def again(self) -> list[str]:
        """Return the columns of the next pass; none: there is none."""
        names = [self.seen[index].field.name for index in self._needed()]
        names += [name for name, counted in self.counted.items() if counted.unfinished and name not in names]
        return self._with_weights(names) if names else []

    def _needed(self) -> list[int]:
        return sorted({*self.open, *self.search.columns()})

    def add_again(self, batch: Batch) -> None:
        """Take in a batch of a further pass."""
        for name, counted in self.counted.items():
            if counted.unfinished:
                counted.add(batch.columns[name])
        for index in self._needed():
            rows, _ = self._rows(batch, self.seen[index])
            self.search.add(index, rows.values)
            if index not in self.open:
                continue
            if rows.values.dtype.kind == "f" and not (finite := np.isfinite(rows.values)).all():
                rows = rows.where(finite)
            if index in self.powers:
                self.powers[index].add(rows)
            if self.ranged and index in self.histograms:
                self.histograms[index].add(rows.values)

    def meet_again(self, comm: Any) -> None:
        """Learn what the other ranks have seen in a further pass; collective."""
        if self.open:
            meeting.add_up(comm, [*self.powers.values(), *(self.histograms.values() if self.ranged else ())])
            self.open = set()
        self.search.meet(comm)
        for counted in self.counted.values():
            if counted.unfinished:
                counted.meet_again(comm)

    def summary(self, ranks: int) -> Summary:
        """Return what is told."""
        columns = {}
        for field in self.schema:
            if field.kind != NUMBER:
                columns[field.name] = figures.of_others(field, self.others[field.name])
        for index, (field, column, product) in enumerate(self.seen):
            told = figures.of_numbers(field, column, self.wanted, self.whole_weights)
            if self.wanted.moments:
                more = figures.of_moments(field, column, self.wanted, self.powers.get(index), product)
                told |= more | {"promises": told["promises"] | more["promises"]}
            if index in self.histograms:
                told["histogram"] = self.histograms[index].edges, self.histograms[index].counts
            if self.wanted.quantiles:
                more = figures.of_quantiles(field, self.search, index, told, self.wanted)
                told |= more | {"promises": told["promises"] | more["promises"]}
            columns[field.name] = figures.described(field, told)
        for name, counted in self.counted.items():
            columns[name] = figures.of_counted(columns[name], counted, self.wanted)
        matrix = None
        if self.wanted.covariance:
            matrix = self._matrix(columns)
        rows = self.shards.counts.tolist()
        ordered = {field.name: columns[field.name] for field in self.schema}
        return Summary(sum(rows), ranks, rows, ordered, matrix, unbinned=self.unbinned)

    def _matrix(self, columns: dict[str, Described]) -> tuple[list[str], np.ndarray]:
        """Return the names of the columns of numbers, and their covariances."""
        chosen = [index for index, each in enumerate(self.seen) if each.field.name != self.wanted.weights]
        names = [self.seen[index].field.name for index in chosen]
        variances = [columns[name].var for name in names]
        result = np.diag([math.nan if each is None else each for each in variances])
        for pair in self.pairs:
            x, y = chosen.index(pair.x), chosen.index(pair.y)
            value = pair.covariance(self.seen[pair.x].numbers, self.seen[pair.y].numbers, self.wanted.ddof)
            result[x, y] = result[y, x] = value
        return names, result
