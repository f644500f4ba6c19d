"""Compile one rank's rounds into a streamed program: pure, integers in, integers out.

Rules that hold here:

* Spans are cut into segments. Receives complete in the order of the program; sends to one peer leave in schedule order.
* A send waits for the last write of a span that it overlaps. An empty send waits for all receives of earlier rounds,
  so that nobody returns from a call that another rank has not entered.
* A write waits until every earlier send of an overlapping span is complete. A plain receive writes as soon as it is
  posted, so it is posted no sooner than that, nor before earlier writes of its span are done.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from hpcreduce.schedule import Recv, Round, Send, Span


class Program(NamedTuple):
    """What one rank does, as a stream of segments.

    Attributes
    ----------
    recvs, sends : tuple
        The segments in the order in which they are posted.
    first : tuple of int
        Sends that leave at the start.
    after : tuple of tuple of int
        For each receive, the sends that leave once it is done.
    hazards : tuple of tuple of int
        For each receive, the sends that must be complete before it writes.
    behind : tuple of int
        For each receive, how many receives must be done before it is posted.
    rounds : tuple of int
        For each receive, the number of its round.
    """

    recvs: tuple[Recv, ...]
    sends: tuple[Send, ...]
    first: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    hazards: tuple[tuple[int, ...], ...]
    behind: tuple[int, ...]
    rounds: tuple[int, ...]


def segments(span: Span, most: int) -> list[Span]:
    """Cut `span` into the fewest near-equal segments of at most `most` elements; an empty span stays one segment."""
    start, stop = span
    pieces = max(1, -(-(stop - start) // most))
    edges = [start + (stop - start) * piece // pieces for piece in range(pieces + 1)]
    return [Span(*edge) for edge in pairwise(edges)]


def compile_rounds(rounds: Iterable[Round], segment: int) -> Program:
    """Compile one rank's rounds for segments of at most `segment` elements.

    The work is linear in the number of segments: what is known of each stretch of the array between two segment
    borders is its last write and the sends of it since.
    """
    cut = [[verb._replace(span=piece) for verb in verbs for piece in segments(verb.span, segment)] for verbs in rounds]
    borders = sorted({edge for verbs in cut for verb in verbs for edge in verb.span})
    place = {edge: index for index, edge in enumerate(borders)}
    writer = [-1] * len(borders)
    readers: list[list[int]] = [[] for _ in borders]

    recvs: list[Recv] = []
    sends: list[Send] = []
    number: list[int] = []
    first: list[int] = []
    after: list[list[int]] = []
    hazards: list[tuple[int, ...]] = []
    behind: list[int] = []
    latest: dict[int, int] = {}  # peer -> what its last send waits for

    for index, verbs in enumerate(cut):
        earlier = len(recvs) - 1
        for send in (verb for verb in verbs if isinstance(verb, Send)):
            cells = range(place[send.span.start], place[send.span.stop])
            cause = max((writer[cell] for cell in cells), default=earlier)
            cause = latest[send.peer] = max(cause, latest.get(send.peer, -1))
            (first if cause < 0 else after[cause]).append(len(sends))
            for cell in cells:
                readers[cell].append(len(sends))
            sends.append(send)
        for recv in (verb for verb in verbs if isinstance(verb, Recv)):
            cells = range(place[recv.span.start], place[recv.span.stop])
            hazards.append(tuple(sorted({send for cell in cells for send in readers[cell]})))
            behind.append(0 if recv.side else 1 + max((writer[cell] for cell in cells), default=-1))
            for cell in cells:
                writer[cell] = len(recvs)
                readers[cell] = []
            recvs.append(recv)
            after.append([])
            number.append(index)

    return Program(
        recvs=tuple(recvs),
        sends=tuple(sends),
        first=tuple(first),
        after=tuple(map(tuple, after)),
        hazards=tuple(hazards),
        behind=tuple(behind),
        rounds=tuple(number),
    )
