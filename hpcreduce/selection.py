"""Which algorithm runs a call, with which segment and window, and why. Pure: no MPI, no clock, no environment.

``auto`` goes by measured tables (`hpcreduce.lookup`) where they have an entry for the place whose algorithm can run the
call. The rules here are for all else. They were measured with both MPI libraries and float64 sums, on one node and on
several at 200 Mbit/s; README has the tables.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.algorithms import ALGORITHMS, Algorithm
from hpcreduce.algorithms.hierarchical import inner
from hpcreduce.lookup import LIBRARY, Hit, Setting, Table, find
from hpcreduce.runtime.head import layout
from hpcreduce.runtime.operations import Operation
from hpcreduce.runtime.rooms import REDUNDANT, redundant

FEW_RANKS = 8
"""Ranks up to which each may as well reduce all of a tiny array itself."""

SHARED = "shared"
"""Name of the algorithm in memory that the ranks of one node share."""

LIBRARY_BELOW = 512 << 10
"""Bytes below which the library's own call wins, where its meaning is ours."""

SHARED_BELOW = 1 << 20
"""Bytes below which the memory that the ranks of one node share wins."""

NETWORK_BELOW = 64 << 10
"""The same where ranks are on several nodes."""

FEW_ROUNDS_BELOW = 16 << 10
"""Bytes below which, on several nodes, nothing but the number of rounds counts."""

RING_CHUNK = 64 << 10
"""Bytes per rank from which even traffic beats few rounds."""

MEMORY_SEGMENTS = (256 << 10, 1 << 20)
"""Bytes of the shortest and the longest segment where all ranks share a node; a quarter of a chunk in between."""

NETWORK_SEGMENT = 48 << 10
"""Bytes of a segment where they do not: short enough to be sent without asking the receiver first (over TCP, Open MPI
asks from 64 KiB on), since that question would queue behind the data that goes the same way."""

LONGEST_SEGMENT = 1 << 30
"""Bytes that no message exceeds."""

WINDOW = 2
"""Receives posted ahead."""


class Choice(NamedTuple):
    """What runs a call: the row of `ALGORITHMS`, elements per segment, receives posted ahead, the reason, and static
    keywords; and the entry of a measured table that decided, if one did.
    """

    algorithm: Algorithm
    segment: int
    window: int
    reason: str
    static: dict[str, Any]
    hit: Hit | None = None


def choose(
    algorithm: str,
    segment: int | None,
    operation: Operation,
    work: np.dtype[Any],
    count: int,
    nodes: tuple[int, ...],
    tables: Sequence[Table] = (),
    without: Collection[str] = (),
) -> Choice:
    """Choose for an array of `count` elements of type `work` on ``len(nodes)`` ranks.

    Parameters
    ----------
    algorithm : str
        A name in `ALGORITHMS`, ``hierarchical:NAME`` with what runs across nodes, or ``auto``.
    segment : int or None
        Largest message in bytes; `None`: as measured, or by the place.
    operation : Operation
    work : numpy.dtype
        The type that travels.
    count : int
    nodes : tuple of int
        Node of each rank.
    tables : sequence of Table
        What was measured at this place (`hpcreduce.lookup.placed`); the first that has an entry counts.
    without : collection of str
        Algorithms that ``auto`` may not take here.

    Raises
    ------
    TypeError, ValueError
        An unknown algorithm, one that its restrictions forbid here, or a segment below 1.
    """
    check_types(algorithm, segment)
    across = algorithm.partition(":")[2]
    if algorithm == "auto":
        setting, hit, reason = _automatic(operation, work, count * work.itemsize, nodes, tables, without)
    else:
        if refusal := forbids(named(algorithm), operation, work):
            raise ValueError(f"algorithm {algorithm!r} {refusal}; use algorithm='auto'")
        setting, hit, reason = _asked(algorithm, work, count * work.itemsize, tables)
    row = ALGORITHMS[setting.algorithm]
    static: dict[str, Any] = {"nodes": nodes} if "nodes" in row.static else {}
    if across:
        static["across"] = across
    longest = elements(setting.segment if segment is None else segment, work, count, nodes)
    return Choice(row, longest, setting.window or WINDOW, reason, static, hit)


def forbids(row: Algorithm, operation: Operation, work: np.dtype[Any]) -> str:
    """Return why the row's restrictions forbid it, or an empty string."""
    if not (row.keeps_order or operation.commutative):
        return f"combines ranks out of order, and op {operation.name!r} is not commutative"
    if row.name == "mpi" and not operation.library:
        return f"cannot run op {operation.name!r}"
    if row.pairs and isinstance(operation.library, str) and work.char not in row.pairs.get(operation.name, ""):
        return f"does not give our meaning of op {operation.name!r} on {work}"
    return ""


def check_types(algorithm: object, segment: object) -> None:
    """Raise TypeError for arguments of `choose` that could not even be looked up."""
    if not isinstance(algorithm, str):
        raise TypeError(f"algorithm must be a name, found {type(algorithm).__name__}")
    if segment is not None and (isinstance(segment, bool) or not isinstance(segment, (int, np.integer))):
        raise TypeError(f"segment must be a whole number of bytes, found {segment!r}")


def named(algorithm: str) -> Algorithm:
    """Return the row of that name, or raise ValueError; ``hierarchical:ring`` says what runs across nodes."""
    name, colon, across = algorithm.partition(":")
    if name not in ALGORITHMS or (colon and "across" not in ALGORITHMS[name].static):
        raise ValueError(f"unknown algorithm {algorithm!r}; expected auto, {', '.join(ALGORITHMS)}")
    if colon:
        inner(across)
    return ALGORITHMS[name]


def _automatic(
    operation: Operation,
    work: np.dtype[Any],
    nbytes: int,
    nodes: tuple[int, ...],
    tables: Sequence[Table],
    without: Collection[str],
) -> tuple[Setting, Hit | None, str]:
    """Return what ``auto`` takes, the entry that says so, and the reason."""

    def allowed(name: str) -> bool:
        if name in without or name not in ALGORITHMS or forbids(ALGORITHMS[name], operation, work):
            return False
        if name == SHARED:
            return len(set(nodes)) == 1
        return name != LIBRARY or allowed(SHARED) or layout(operation, work, len(nodes)) is not None

    for hit in find(tables, work.itemsize, nbytes):
        for setting in hit.entry.setting, hit.entry.own:
            if setting and allowed(setting.algorithm):
                other = "" if setting is hit.entry.setting else f"; {setting} of what can run this"
                return setting, hit, f"{hit.describe()}{other}"
    name, reason = _by_rules(operation, nbytes, nodes, allowed(LIBRARY), allowed(SHARED))
    return Setting(name), None, reason


def _asked(
    algorithm: str, work: np.dtype[Any], nbytes: int, tables: Sequence[Table]
) -> tuple[Setting, Hit | None, str]:
    """Return how an algorithm that is asked for runs: as measured, if an entry says that."""
    for hit in find(tables, work.itemsize, nbytes):
        for setting in hit.entry.setting, hit.entry.own:
            if setting and setting.algorithm == algorithm:
                return setting, hit, "asked for"
    return Setting(named(algorithm).name), None, "asked for"


def _by_rules(
    operation: Operation, nbytes: int, nodes: tuple[int, ...], library: bool, shared: bool
) -> tuple[str, str]:
    ranks, number = len(nodes), len(set(nodes))
    few = ranks <= FEW_RANKS
    if shared and redundant(nbytes, ranks) and few:
        return SHARED, f"up to {REDUNDANT // ranks >> 10} KiB memory that all ranks share is fastest"
    below = NETWORK_BELOW if number > 1 else LIBRARY_BELOW
    if nbytes < below and library:
        return LIBRARY, f"below {below >> 10} KiB the library's own call is fastest"
    if shared and nbytes < SHARED_BELOW and (few or not redundant(nbytes, ranks)):
        return SHARED, f"below {SHARED_BELOW >> 10} KiB memory that all ranks share is the next best"
    if not operation.commutative:
        return "tree", f"op {operation.name!r} is not commutative, and tree keeps rank order"
    if 1 < number < ranks:
        return "hierarchical", "nodes have several ranks, and this sends least between them"
    if nbytes >= RING_CHUNK * ranks:
        return "ring", f"from {RING_CHUNK >> 10} KiB per rank on even traffic wins"
    if number == 1:
        return "tree", f"below {RING_CHUNK >> 10} KiB per rank few rounds win"
    if nbytes < FEW_ROUNDS_BELOW:
        return "recursive_doubling", f"below {FEW_ROUNDS_BELOW >> 10} KiB the fewest rounds win"
    return "circulant", f"below {RING_CHUNK >> 10} KiB per rank little traffic in few rounds wins"


def elements(segment: int | None, work: np.dtype[Any], count: int, nodes: tuple[int, ...]) -> int:
    """Return the elements of the longest segment."""
    if segment is None:
        shortest, longest = MEMORY_SEGMENTS
        quarter = 1 << (count * work.itemsize // (4 * len(nodes))).bit_length() >> 1
        segment = min(longest, max(shortest, quarter)) if len(set(nodes)) == 1 else NETWORK_SEGMENT
    elif segment < 1:
        raise ValueError(f"segment must be at least 1 byte, found {segment}")
    return max(1, min(int(segment), LONGEST_SEGMENT) // work.itemsize)
