"""The messages of a schedule: who sends how many bytes to whom, and when in the programs of both.

Rules that hold here:

* Any row with a generator of rounds will do; what it needs to know of places it gets as its static keyword ``nodes``.
* The k-th send to a rank meets the k-th receive from there, as MPI has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcreduce.algorithms import Algorithm
from hpcreduce.errors import ProofError
from hpcreduce.runtime.program import Program, compile_rounds
from hpcreduce.schedule import Send


class Message(NamedTuple):
    """One message: ranks, bytes, its place in the programs of both, and what it comes before (the less, the sooner)."""

    source: int
    target: int
    nbytes: int
    send: int
    recv: int
    priority: tuple[int, int, int]


def placed(row: Algorithm, nodes: Sequence[int], static: Mapping[str, Any]) -> dict[str, Any]:
    """Return the static keywords of a row, ``nodes`` among them where it has that."""
    return dict(static) | ({"nodes": tuple(nodes)} if "nodes" in row.static else {})


def messages_up_to(row: Algorithm, size: int, count: int, most: int, static: Mapping[str, Any]) -> int:
    """Return the number of messages of all ranks; counting ends beyond `most`."""
    assert row.rounds
    messages = 0
    for rank in range(size):
        for verbs in row.rounds(rank, size, count, **static):
            messages += sum(isinstance(verb, Send) for verb in verbs)
            if messages > most:
                return messages
    return messages


def compiled(
    row: Algorithm, size: int, count: int, segment: int | None = None, static: Mapping[str, Any] | None = None
) -> list[Program]:
    """Compile the rounds of every rank.

    Parameters
    ----------
    row : Algorithm
    size, count : int
        Ranks, at least 1; elements, at least 0.
    segment : int, optional
        Most elements of one message; by default spans travel whole.
    static : mapping, optional
        The algorithm's static keywords.

    Raises
    ------
    ValueError
        One of them is out of range.
    """
    whole = "a whole number of at least"
    for name, value, least in ("size", size, 1), ("count", count, 0), ("segment", 1 if segment is None else segment, 1):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be {whole} {least}, found {value!r}")
    assert row.rounds
    most = segment or max(1, count)
    return [compile_rounds(row.rounds(rank, size, count, **(static or {})), most) for rank in range(size)]


def match(programs: Sequence[Program], itemsize: int) -> list[Message]:
    """Return the messages of all ranks; the k-th send to a rank meets the k-th receive from there.

    Raises
    ------
    ProofError
        A send without its receive, or of another length.
    """
    expected: dict[tuple[int, int], deque[int]] = {}
    for target, program in enumerate(programs):
        for place, recv in enumerate(program.recvs):
            expected.setdefault((recv.peer, target), deque()).append(place)
    messages = []
    posted: dict[tuple[int, int], int] = {}
    for source, program in enumerate(programs):
        for index, send in enumerate(program.sends):
            waiting = expected.get((source, send.peer))
            if not waiting or programs[send.peer].recvs[waiting[0]].span.length != send.span.length:
                raise ProofError(f"rank {source}: {send} meets no receive of its length; see analysis.check.check")
            arrival = waiting.popleft()
            turn = programs[send.peer].rounds[arrival]
            place = posted[source, turn] = posted.get((source, turn), -1) + 1
            nbytes = send.span.length * itemsize
            messages.append(Message(source, send.peer, nbytes, index, arrival, (turn, place, source)))
    if left := [pair for pair, waiting in expected.items() if waiting]:
        raise ProofError(f"rank {left[0][1]} waits for a message that rank {left[0][0]} never sends")
    return messages
