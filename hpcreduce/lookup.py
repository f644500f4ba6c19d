"""Tables of what was measured to be fastest, and how a call finds its entry. Pure: no MPI, no clock, no environment.

A table is JSON that ``python -m hpcreduce tune`` writes::

    {"format": 1, "about": {...},
     "entries": [{"library": "MPICH", "ranks": 3, "nodes": 1, "itemsize": 8, "from": 1048576,
                  "algorithm": "ring", "segment": 262144, "window": 2, "speed": 1.43}]}

An entry holds for arrays of `from` bytes on, up to the next one. `segment` (bytes) and `window` may be null: by the
rules of `hpcreduce.selection`. Where `algorithm` is what some calls cannot take, ``own`` says which of our schedules is
best: {"algorithm", "segment", "window"}. `about` is free. The other fields are what was measured: `seconds`, `speed`
(beside ``comm.Allreduce``) and its 95 % interval `low` to `high`, `turns`, ``runner_up`` (as ``own``), and
``slower_than``, a list of what the library does faster in two calls.

How a call finds its entry:

* The library must be the same: its name without a version. For other libraries there is none.
* Ranks must be placed alike: all on one node; on several, one each; on several, and several on some.
* The nearest number of ranks counts, at most twice as many or half as few; then the nearest number of nodes; then the
  nearest size of an element. Near is by ratio; of two as near, the smaller.
* Of those, the entry with the largest `from` that the array reaches.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.errors import TableError
from hpcreduce.units import format_bytes, plural

FORMAT = 1
NEAR = 2
"""Times as many ranks, or as few, up to which a measurement counts."""

LIBRARIES = re.compile(r"(Open MPI|CRAY MPICH|MPICH|MVAPICH\d*|Intel\(R\) MPI|Spectrum MPI)\D*(\d[\w.]*)")
"""Name and version in what MPI_Get_library_version says."""

LIBRARY = "mpi"
"""The algorithm that is the library's own call."""

MOST = 1 << 60


class Setting(NamedTuple):
    """What runs a call: `segment` in bytes and `window`, or `None` for the rules."""

    algorithm: str
    segment: int | None = None
    window: int | None = None

    def __str__(self) -> str:
        if self.segment is None and self.window is None:
            return self.algorithm
        segment = "-" if self.segment is None else format_bytes(self.segment)
        return f"{self.algorithm} {segment}/{self.window or '-'}"


class Place(NamedTuple):
    """Where something was measured."""

    library: str
    ranks: int
    nodes: int

    @property
    def layout(self) -> str:
        """How the ranks are placed."""
        if self.ranks == 1:
            return "alone"
        return "one node" if self.nodes == 1 else "one each" if self.ranks == self.nodes else "several each"


class Entry(NamedTuple):
    """One entry of a table: `setting` was the best from `start` bytes on, `own` the best of our own schedules."""

    place: Place
    itemsize: int
    start: int
    setting: Setting
    own: Setting | None = None
    facts: Mapping[str, Any] = {}


class Table(NamedTuple):
    """Entries, and where they are from: a file, or ``built-in``."""

    source: str
    entries: tuple[Entry, ...]


class Hit(NamedTuple):
    """An entry that was found, the file that it is from, and the bytes at which the next one begins, if any."""

    entry: Entry
    source: str
    until: int | None

    def describe(self) -> str:
        """Return the entry in words."""
        entry, facts = self.entry, self.entry.facts
        place = entry.place
        ends = f"from {format_bytes(entry.start)} on" if self.until is None else None
        where = ends or f"{format_bytes(entry.start)} to {format_bytes(self.until or 0)}"
        text = (
            f"{self.source}: {place.library}, {plural(place.ranks, 'rank')} on {plural(place.nodes, 'node')}, elements "
            f"of {plural(entry.itemsize, 'byte')}, {where}: {entry.setting} is best"
        )
        if "speed" in facts:
            text += f", {facts['speed']:.2f} x mpi"
        if "low" in facts and "high" in facts:
            text += f" ({facts['low']:.2f} to {facts['high']:.2f})"
        if facts.get("slower_than"):
            text += f", though slower than the library's {' and '.join(facts['slower_than'])}"
        return text


def family(version: str) -> str:
    r"""Return the library's name without a version, from what MPI_Get_library_version says.

    >>> family("Open MPI v5.0.11, package: ..."), family("MPICH Version:      5.0.2\nMPICH Release date: ...")
    ('Open MPI', 'MPICH')
    """
    text = version.strip("\0 \n")
    match = LIBRARIES.search(text.splitlines()[0] if text else "")
    return match[1] if match else text[:60]


def near(tables: Iterable[Table], library: str, ranks: int) -> list[Table]:
    """Return what of the tables may count for so many ranks of this library."""
    return [
        Table(
            table.source,
            tuple(
                entry
                for entry in table.entries
                if entry.place.library == library and ranks <= NEAR * entry.place.ranks <= NEAR * NEAR * ranks
            ),
        )
        for table in tables
    ]


def placed(tables: Iterable[Table], place: Place) -> tuple[Table, ...]:
    """Return what of the tables counts at this place, by the rules above; those of which nothing does are left out."""
    found = []
    for table in near(tables, place.library, place.ranks):
        places = {entry.place for entry in table.entries if entry.place.layout == place.layout}
        if places and place.layout != "alone":
            far = {one: (_far(one.ranks, place.ranks), _far(one.nodes, place.nodes), one) for one in places}
            best = min(places, key=far.__getitem__)
            found.append(Table(table.source, tuple(entry for entry in table.entries if entry.place == best)))
    return tuple(found)


def find(tables: Iterable[Table], itemsize: int, nbytes: int) -> Iterator[Hit]:
    """Yield the entry of each table (see `placed`) that counts for an array of so many bytes."""
    for table in tables:
        nearest = min(
            {entry.itemsize for entry in table.entries}, key=lambda one: (_far(one, itemsize), one), default=0
        )
        ordered = sorted((entry for entry in table.entries if entry.itemsize == nearest), key=lambda entry: entry.start)
        reached = [entry for entry in ordered if entry.start <= nbytes]
        if reached:
            rest = ordered[len(reached) :]
            yield Hit(reached[-1], table.source, rest[0].start if rest else None)


def _far(one: int, other: int) -> float:
    return abs(math.log(one / other))


def parse(data: bytes, where: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return `about` and the entries of a table, all checked; `where` names the file in errors.

    Raises
    ------
    TableError
        With the file, the field, what was expected and what was found.
    """
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise TableError(f"{where}: not JSON: {' '.join(str(error).split())}") from None
    fields = _fields(document, "the table", ("format", "about", "entries"), (), where)
    if fields["format"] != FORMAT or isinstance(fields["format"], bool):
        raise TableError(f"{where}: format: expected {FORMAT}, found {_short(fields['format'])}")
    if not isinstance(fields["about"], dict):
        raise TableError(f"{where}: about: expected an object, found {_short(fields['about'])}")
    if not isinstance(fields["entries"], list):
        raise TableError(f"{where}: entries: expected a list, found {_short(fields['entries'])}")
    seen: dict[tuple[Any, ...], int] = {}
    for index, entry in enumerate(fields["entries"]):
        _check(entry, f"entries[{index}]", where)
        first = seen.setdefault((key(entry), entry["from"]), index)
        if first != index:
            raise TableError(f"{where}: entries[{index}]: expected another place or size than that of entries[{first}]")
    return fields["about"], fields["entries"]


def key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what entries of one series have in common."""
    return entry["library"], entry["ranks"], entry["nodes"], entry["itemsize"]


def table(source: str, entries: Iterable[Mapping[str, Any]]) -> Table:
    """Return the table that these entries of a file make, which `parse` has checked."""
    return Table(source, tuple(map(_entry, entries)))


def pack(tables: Sequence[Table]) -> bytes:
    """Return the tables as bytes that `unpack` reads on another rank."""
    return json.dumps([[table.source, [to_json(entry) for entry in table.entries]] for table in tables]).encode()


def unpack(data: bytes) -> list[Table]:
    """Return what `pack` was given."""
    return [table(source, entries) for source, entries in json.loads(data.decode())]


def to_json(entry: Entry) -> dict[str, Any]:
    """Return the entry as it stands in a file."""
    fields = {**entry.place._asdict(), "itemsize": entry.itemsize, "from": entry.start, **entry.setting._asdict()}
    return fields | ({"own": entry.own._asdict()} if entry.own else {}) | dict(entry.facts)


_NEEDED = ("library", "ranks", "nodes", "itemsize", "from", "algorithm", "segment", "window")
_FACTS = ("seconds", "speed", "low", "high", "turns", "runner_up", "slower_than")


def _entry(fields: Mapping[str, Any]) -> Entry:
    own = fields.get("own")
    return Entry(
        Place(fields["library"], fields["ranks"], fields["nodes"]),
        fields["itemsize"],
        fields["from"],
        Setting(fields["algorithm"], fields["segment"], fields["window"]),
        Setting(**own) if own else None,
        {name: fields[name] for name in _FACTS if name in fields},
    )


def _check(document: object, field: str, where: str) -> None:
    fields = _fields(document, field, _NEEDED, ("own", *_FACTS), where)
    if not isinstance(fields["library"], str) or not fields["library"]:
        raise TableError(f"{where}: {field}.library: expected a name, found {_short(fields['library'])}")
    ranks = _whole(fields["ranks"], 1, MOST, f"{field}.ranks", where)
    _whole(fields["nodes"], 1, ranks, f"{field}.nodes", where)
    _whole(fields["itemsize"], 1, 1 << 20, f"{field}.itemsize", where)
    _whole(fields["from"], 0, MOST, f"{field}.from", where)
    _setting(fields, field, where)
    for name in "own", "runner_up":
        if name in fields:
            _setting(_fields(fields[name], f"{field}.{name}", Setting._fields, (), where), f"{field}.{name}", where)
    if fields.get("own", {}).get("algorithm") == LIBRARY:
        raise TableError(f"{where}: {field}.own.algorithm: expected one of our schedules, found {LIBRARY!r}")
    for name in "seconds", "speed", "low", "high":
        if name in fields:
            value = fields[name]
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MOST:
                raise TableError(f"{where}: {field}.{name}: expected a number above 0, found {_short(value)}")
    if "turns" in fields:
        _whole(fields["turns"], 1, MOST, f"{field}.turns", where)
    words = fields.get("slower_than", [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise TableError(f"{where}: {field}.slower_than: expected a list of texts, found {_short(words)}")


def _setting(fields: Mapping[str, Any], field: str, where: str) -> None:
    if not isinstance(fields["algorithm"], str) or fields["algorithm"] not in ALGORITHMS:
        raise TableError(
            f"{where}: {field}.algorithm: expected one of {', '.join(ALGORITHMS)}, found {_short(fields['algorithm'])}"
        )
    for name, most in ("segment", MOST), ("window", 1024):
        if fields[name] is not None:
            _whole(fields[name], 1, most, f"{field}.{name}", where)


def _fields(document: object, field: str, needed: Sequence[str], more: Sequence[str], where: str) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise TableError(f"{where}: {field}: expected an object with {', '.join(needed)}, found {_short(document)}")
    for name in document:
        if name not in needed and name not in more:
            raise TableError(f"{where}: {field}: unknown field {_short(name)}; expected {', '.join([*needed, *more])}")
    for name in needed:
        if name not in document:
            raise TableError(f"{where}: {field}: the field {name!r} is missing")
    return document


def _whole(value: object, least: int, most: int, field: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        limit = f"from {least} on" if most == MOST else f"from {least} to {most}"
        raise TableError(f"{where}: {field}: expected a whole number {limit}, found {_short(value)}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
