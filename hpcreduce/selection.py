"""Which algorithm runs a call, with which segment and window, and why. Pure: no MPI, no clock, no environment.

The rules for ``auto`` were measured with both MPI libraries and float64 sums, on one node and on several at 200 Mbit/s;
README has the tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hpcreduce.algorithms import ALGORITHMS, Algorithm
from hpcreduce.algorithms.hierarchical import inner
from hpcreduce.runtime.head import layout
from hpcreduce.runtime.memory import FOLDER
from hpcreduce.runtime.operations import Operation
from hpcreduce.runtime.shared import TINY

LIBRARY_BELOW = 512 << 10
"""Bytes below which the library's own call wins, where its meaning is ours: copied into an engine of the library's and
back, which is what makes it safe."""

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
    """What runs a call: the table row, elements per segment, receives posted ahead, the reason, and static keywords."""

    algorithm: Algorithm
    segment: int
    window: int
    reason: str
    static: dict[str, Any]


def choose(
    algorithm: str,
    segment: int | None,
    operation: Operation,
    work: np.dtype[Any],
    count: int,
    nodes: tuple[int, ...],
    blocking: bool = True,
    shareable: bool = False,
) -> Choice:
    """Choose for an array of `count` elements of type `work` on ``len(nodes)`` ranks.

    Parameters
    ----------
    algorithm : str
        A name in `ALGORITHMS`, ``hierarchical:NAME`` with what runs across nodes, or ``auto``.
    segment : int or None
        Largest message in bytes; `None`: by the place.
    operation : Operation
    work : numpy.dtype
        The type that travels.
    count : int
    nodes : tuple of int
        Node of each rank.
    blocking : bool
        The call waits for its end, or is a persistent plan: others go without ``shared``, and ``auto`` without ``mpi``.
    shareable : bool
        All ranks share a node that has memory for them.

    Raises
    ------
    TypeError, ValueError
        An unknown algorithm, one that its restrictions forbid here, or a segment below 1.
    """
    check_types(algorithm, segment)
    across = algorithm.partition(":")[2]
    if algorithm == "auto":
        name, reason = _automatic(operation, work, count * work.itemsize, nodes, blocking, shareable)
        row = ALGORITHMS[name]
    else:
        row, reason = named(algorithm), "asked for"
        if row.name == "shared" and not shareable:
            raise ValueError(
                f"algorithm 'shared' needs all ranks on one node, where they can share memory in {FOLDER}; use "
                "algorithm='auto'"
            )
        if row.name == "shared" and not blocking:
            raise ValueError("algorithm 'shared' cannot run iallreduce; use allreduce_init, or algorithm='auto'")
        if refusal := forbids(row, operation, work):
            raise ValueError(f"algorithm {algorithm!r} {refusal}; use algorithm='auto'")
    static: dict[str, Any] = {"nodes": nodes} if "nodes" in row.static else {}
    if across:
        static["across"] = across
    return Choice(row, elements(segment, work, count, nodes), WINDOW, reason, static)


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
    operation: Operation, work: np.dtype[Any], nbytes: int, nodes: tuple[int, ...], blocking: bool, shareable: bool
) -> tuple[str, str]:
    ranks, number = len(nodes), len(set(nodes))
    here = blocking and shareable
    if here and nbytes <= TINY:
        return "shared", f"up to {TINY >> 10} KiB memory that all ranks share is fastest"
    below = NETWORK_BELOW if number > 1 else LIBRARY_BELOW
    library = not forbids(ALGORITHMS["mpi"], operation, work) and (here or layout(operation, work, ranks))
    if blocking and nbytes < below and library:
        return "mpi", f"below {below >> 10} KiB the library's own call is fastest"
    if here and nbytes < SHARED_BELOW:
        return "shared", f"below {SHARED_BELOW >> 10} KiB memory that all ranks share is the next best"
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
