"""Figures of two runs of ``bench``, side by side: what got slower, what got faster.

Rules that hold here:

* Rows are compared that have the same algorithm, size, dtype, op and number of ranks.
* One is slower or faster only where the 95 % intervals of the two medians are apart, and the medians differ by more
  than `CHANGE`. All else is noise until shown otherwise.
* Pure: figures come from JSON documents, and differences go to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hpcreduce.errors import FiguresError
from hpcreduce.fields import Fields, load
from hpcreduce.units import format_bytes, format_seconds, plural

CHANGE = 0.05
"""Part of the old median by which the new one must differ."""

FACTS = ("hpcreduce", "library", "machine", "torch", "ranks", "nodes", "mode", "cache", "iterations", "warmup")
"""What is said of a run beside its rows."""

MOST_SECONDS = 1e9


class Key(NamedTuple):
    """What must be the same in two rows."""

    algorithm: str
    nbytes: int
    dtype: str
    op: str
    ranks: int


class Timing(NamedTuple):
    """Median, and the ends of its 95 % interval, in seconds."""

    median: float
    low: float
    high: float


class Figures(NamedTuple):
    """A run: where its figures are from, its facts, as texts, and its rows."""

    where: str
    facts: dict[str, str]
    rows: dict[Key, Timing]


class Change(NamedTuple):
    """A row of both runs; `ratio` is new / old, `verdict` is ``slower``, ``faster`` or `None`."""

    key: Key
    old: float
    new: float
    ratio: float
    verdict: str | None


class Comparison(NamedTuple):
    """Two runs: where the old one is from, rows of both, rows of one, and facts that differ, as (name, old, new)."""

    where: str
    changes: list[Change]
    only_old: list[Key]
    only_new: list[Key]
    facts: list[tuple[str, str, str]]

    def count(self, verdict: str) -> int:
        """Return how many rows got this verdict."""
        return sum(change.verdict == verdict for change in self.changes)


def read(path: str) -> Figures:
    """Return the figures in a file that ``bench --json`` has written.

    Raises
    ------
    FiguresError
        It cannot be read, or has none.
    """
    return figures(load(path, path, FiguresError), path)


def figures(document: object, where: str) -> Figures:
    """Return the figures in a JSON document, checked; `where` names it in errors.

    Raises
    ------
    FiguresError
        A field is missing, of a wrong type or out of range; a row stands there twice.
    """
    top = Fields(document, where, FiguresError)
    facts = {name: _fact(top, name) for name in FACTS if name in top.document}
    rows: dict[Key, Timing] = {}
    for fields in top.objects("rows"):
        nbytes, ranks = (fields.whole(name, 1) for name in ("nbytes", "ranks"))
        key = Key(fields.text("algorithm"), nbytes, fields.text("dtype"), fields.text("op"), ranks)
        if key in rows:
            raise FiguresError(f"{fields.where}: a second row of {_group(key)} at {format_bytes(key.nbytes)}")
        rows[key] = Timing(*(_seconds(fields, name) for name in ("median_s", "low_s", "high_s")))
    return Figures(where, facts, rows)


def _fact(top: Fields, name: str) -> str:
    return top.text(name) if isinstance(top.value(name), str) else str(top.whole(name))


def _seconds(fields: Fields, name: str) -> float:
    return fields.number(name, "seconds", 1e-12, MOST_SECONDS)


def verdict(old: Timing, new: Timing) -> str | None:
    """Return whether the new timing is slower or faster, as far as that is certain.

    >>> verdict(Timing(1.0, 0.9, 1.1), Timing(1.3, 1.2, 1.4))
    'slower'
    >>> verdict(Timing(1.0, 0.9, 1.1), Timing(0.7, 0.6, 0.8))
    'faster'
    >>> verdict(Timing(1.0, 0.9, 1.1), Timing(1.3, 1.0, 1.4))  # the intervals overlap
    >>> verdict(Timing(1.0, 0.99, 1.01), Timing(1.04, 1.03, 1.05))  # 4 %
    """
    if abs(new.median / old.median - 1) <= CHANGE:
        return None
    return "slower" if new.low > old.high else "faster" if new.high < old.low else None


def compare(old: Figures, new: Figures) -> Comparison:
    """Return what differs between two runs; rows in the order of the new one.

    >>> row = Key("ring", 8, "float64", "sum", 2)
    >>> before = Figures("old.json", {"ranks": "2"}, {row: Timing(4.0, 3.0, 5.0)})
    >>> found = compare(before, Figures("this run", {"ranks": "2"}, {row: Timing(1.0, 0.9, 1.1)}))
    >>> [(change.ratio, change.verdict) for change in found.changes], found.facts
    ([(0.25, 'faster')], [])
    """
    changes = []
    for key, mine in new.rows.items():
        if theirs := old.rows.get(key):
            ratio = mine.median / theirs.median
            changes.append(Change(key, theirs.median, mine.median, ratio, verdict(theirs, mine)))
    facts = [(name, *(run.facts.get(name, "not said") for run in (old, new))) for name in FACTS]
    return Comparison(
        old.where,
        changes,
        [key for key in old.rows if key not in new.rows],
        [key for key in new.rows if key not in old.rows],
        [(name, before, now) for name, before, now in facts if before != now],
    )


def document(found: Comparison) -> dict[str, Any]:
    """Return what `compare` has found as a JSON document.

    Keys: ``file``; ``slower``, ``faster`` (numbers of rows); ``facts`` (name -> {``old``, ``new``}, those that differ);
    ``rows`` (`Key`, ``old_median_s``, ``new_median_s``, ``ratio`` new / old, ``verdict``: slower, faster or null);
    ``only_old``, ``only_new`` (a `Key` each).
    """
    return {
        "file": found.where,
        "slower": found.count("slower"),
        "faster": found.count("faster"),
        "facts": {name: {"old": old, "new": new} for name, old, new in found.facts},
        "rows": [
            {
                **change.key._asdict(),
                "old_median_s": change.old,
                "new_median_s": change.new,
                "ratio": change.ratio,
                "verdict": change.verdict,
            }
            for change in found.changes
        ],
        "only_old": [key._asdict() for key in found.only_old],
        "only_new": [key._asdict() for key in found.only_new],
    }


def lines(found: Comparison) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"\nbeside {found.where} (old): medians of the slowest rank's time; ratio: new / old"
    if found.facts:
        yield "not the same: " + "; ".join(f"{name}: {old} -> {new}" for name, old, new in found.facts)
    width = max([len("algorithm"), *(len(change.key.algorithm) for change in found.changes)])
    if found.changes:
        yield f"{'size':>9}  {'algorithm':<{width}}{'old':>11}{'new':>11}{'ratio':>8}"
    for change in found.changes:
        mark = f"  {change.verdict}" if change.verdict else ""
        yield (
            f"{format_bytes(change.key.nbytes):>9}  {change.key.algorithm:<{width}}{format_seconds(change.old):>11}"
            f"{format_seconds(change.new):>11}{change.ratio:>8.2f}{mark}"
        )
    for where, keys in ((found.where, found.only_old), ("this run", found.only_new)):
        for group, sizes in _sizes(keys).items():
            yield f"only in {where}: {group}: {', '.join(map(format_bytes, sizes))}"
    yield (
        f"{plural(len(found.changes), 'row')} compared: {found.count('slower')} slower, {found.count('faster')} faster "
        f"(95 % intervals apart, medians more than {CHANGE:.0%} apart)"
    )


def _sizes(keys: list[Key]) -> Mapping[str, list[int]]:
    sizes: dict[str, list[int]] = {}
    for key in keys:
        sizes.setdefault(_group(key), []).append(key.nbytes)
    return sizes


def _group(key: Key) -> str:
    return f"{key.algorithm}, {key.op} of {key.dtype} on {plural(key.ranks, 'rank')}"
