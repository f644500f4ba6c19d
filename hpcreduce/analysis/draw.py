"""Draw a schedule: as a table of rank by round in text, and as a diagram of ranks over time in SVG.

Chunks are ``partition(count, size)``, whatever the algorithm cuts. A span that is no union of whole chunks is written
in elements. The text is made for a fixed width, so that it fits into a docstring.
"""

from __future__ import annotations

import inspect
import textwrap
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from hpcreduce.algorithms import Algorithm, schedule_of
from hpcreduce.analysis import diagram
from hpcreduce.analysis.diagram import Message
from hpcreduce.schedule import LEFT, RIGHT, Recv, Round, Send, Span, partition
from hpcreduce.units import plural

WIDTH = 112
"""Columns of the text: a line of a docstring is at most 120 long, and an example in it is indented by 8."""

_GAP = 3
_MOST_DIGITS = 9
"""Up to this many ranks several chunks are written digit by digit, ``023``; beyond, as a range."""

_MARKS = {RIGHT: "+{}<{}", LEFT: "{}+<{}", None: "={}<{}"}
_MEANINGS = {
    RIGHT: "+c<r: receive c from r, store mine op theirs",
    LEFT: "c+<r: receive c from r, store theirs op mine",
    None: "=c<r: receive c from r, overwrite",
}
_EFFECTS = {RIGHT: "stores mine op theirs", LEFT: "stores theirs op mine", None: "overwrites"}


def text(algorithm: str | Algorithm, size: int, count: int | None = None, **static: Any) -> str:
    """Return the rounds of all ranks as a table, with a title above it and what its signs mean below it.

    Parameters
    ----------
    algorithm : str or Algorithm
        A name in `ALGORITHMS` or `RELATED`, or a row.
    size : int
        Ranks, at least 1.
    count : int, optional
        Elements, at least 0; by default one for each rank, so that each chunk is one element.
    **static
        The algorithm's static keywords.

    Returns
    -------
    str
        Lines of at most 112 columns if a cell is no longer than that. Rounds that do not fit beside the others stand in
        a table below. In a cell sends come first; sends, and receives, keep the order of the round.

    Raises
    ------
    ValueError
        An unknown algorithm, one that is no schedule, or a number out of range, which is named.

    Examples
    --------
    >>> print(text("ring", 3))
    ring: 3 ranks, 3 elements in 3 chunks, 4 rounds, 12 messages
    round   0          1          2          3
    rank 0  0>1 +2<2   2>1 +1<2   1>1 =0<2   0>1 =2<2
    rank 1  1>2 +0<0   0>2 +2<0   2>2 =1<0   1>2 =0<0
    rank 2  2>0 +1<1   1>0 +0<1   0>0 =2<1   2>0 =1<1
    c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs; =c<r: receive c from r, overwrite
    """
    drawn = _drawn(algorithm, size, count, static)
    cells = [[drawn.chunks.cell(verbs) for verbs in rounds] for rounds in drawn.schedule]
    return "\n".join([drawn.title, *_table(cells), *_legend(drawn)])


def svg(algorithm: str | Algorithm, size: int, count: int | None = None, **static: Any) -> str:
    """Return a diagram of the messages as an SVG document: ranks from top to bottom, rounds from left to right.

    A label at the sender says what is sent, and an arrow of its colour leads to the receiver. Solid with a filled head:
    it is reduced into what the receiver has; dashed with an open head: it overwrites that. An arrow that spans several
    rounds is sent in the first of them and received in the last.

    Parameters
    ----------
    algorithm, size, count, **static
        As in `text`.

    Returns
    -------
    str
        Each message is a group of class ``message`` and ``reduce`` or ``copy``, with attributes ``data-source``,
        ``data-target`` and ``data-round`` (of the send).

    Raises
    ------
    ValueError
        As in `text`, and for a message that is sent and not received, or received and not sent.
    """
    drawn = _drawn(algorithm, size, count, static)
    return diagram.render(drawn.title, size, len(drawn.schedule[0]), list(_messages(drawn)))


class _Chunks:
    """Names of spans."""

    def __init__(self, count: int, size: int) -> None:
        self.whole, self.size = Span(0, count), size
        self.full = [chunk.length > 0 for chunk in partition(count, size)]
        filled = [(number, chunk) for number, chunk in enumerate(partition(count, size)) if chunk.length]
        self.starts = {chunk.start: number for number, chunk in filled}
        self.stops = {chunk.stop: number for number, chunk in filled}

    def numbers(self, span: Span) -> list[int]:
        """Return the chunks, empty ones left out, that `span` is the union of, or nothing if it is no such union."""
        first, last = self.starts.get(span.start), self.stops.get(span.stop)
        if not span.length or first is None or last is None:
            return []
        return [number for number in range(first, last + 1) if self.full[number]]

    def name(self, span: Span) -> str:
        """Return how `span` is written."""
        if not span.length:
            return "-"
        if span == self.whole:
            return "all"
        numbers = self.numbers(span)
        if not numbers:
            return f"[{span.start}:{span.stop}]"
        if len(numbers) == 1 or self.size <= _MOST_DIGITS:
            return "".join(map(str, numbers))
        return f"{numbers[0]}-{numbers[-1]}"

    def cell(self, verbs: Round) -> str:
        """Return how a round is written."""
        sends = [f"{self.name(verb.span)}>{verb.peer}" for verb in verbs if isinstance(verb, Send)]
        recvs = [_MARKS[verb.side].format(self.name(verb.span), verb.peer) for verb in verbs if isinstance(verb, Recv)]
        return " ".join(sends + recvs) or "."


class _Drawn(NamedTuple):
    title: str
    chunks: _Chunks
    schedule: list[list[Round]]


def _drawn(algorithm: str | Algorithm, size: int, count: int | None, static: dict[str, Any]) -> _Drawn:
    """Check what was asked for and let all ranks yield their rounds, the same number on each."""
    row = schedule_of(algorithm)
    assert row.rounds
    if size < 1:
        raise ValueError(f"ranks must be at least 1, found {size}")
    count = size if count is None else count
    if count < 0:
        raise ValueError(f"count must be at least 0, found {count}")
    _check_static(row, size, static)
    schedule = [list(row.rounds(rank, size, count, **static)) for rank in range(size)]
    longest = max(map(len, schedule))
    schedule = [rounds + [()] * (longest - len(rounds)) for rounds in schedule]
    sent = sum(isinstance(verb, Send) for rounds in schedule for verbs in rounds for verb in verbs)
    given = ", ".join(f"{key}={_plain(value)}" for key, value in static.items())
    title = (
        f"{row.name}{f' ({given})' if given else ''}: {plural(size, 'rank')}, {plural(count, 'element')} in "
        f"{plural(size, 'chunk')}, {plural(longest, 'round')}, {plural(sent, 'message')}"
    )
    return _Drawn(title, _Chunks(count, size), schedule)


def _check_static(row: Algorithm, size: int, static: dict[str, Any]) -> None:
    assert row.rounds is not None
    for key in static:
        if key not in row.static:
            takes = f"; it takes {' and '.join(row.static)}" if row.static else ""
            raise ValueError(f"{row.name} takes no {key}{takes}")
    parameters = inspect.signature(row.rounds).parameters
    for key in row.static:
        if key not in static and key in parameters and parameters[key].default is inspect.Parameter.empty:
            raise ValueError(f"{row.name} needs {key}, which is missing")
    if "root" in static and not (isinstance(static["root"], int) and 0 <= static["root"] < size):
        raise ValueError(f"root must be a rank from 0 to {size - 1}, found {static['root']}")
    if nodes := static.get("nodes"):
        if len(nodes) != size:
            raise ValueError(f"nodes must name a node for each of {plural(size, 'rank')}, found {len(nodes)}")
        if not all(isinstance(node, int) for node in nodes):
            raise ValueError(f"nodes must be integers, found {_plain(nodes)}")


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _table(cells: list[list[str]]) -> list[str]:
    """Return the lines of the table, cut into tables of equally many rounds where it would be too wide."""
    names = [["round", *(f"rank {rank}" for rank in range(len(cells)))]]
    columns = [[str(index), *column] for index, column in enumerate(zip(*cells, strict=True))]
    for tables in range(1, len(columns) + 1):
        per = -(-len(columns) // tables)
        starts = range(0, len(columns), per)
        blocks = [_lines(names + columns[start : start + per]) for start in starts]
        if per == 1 or max(len(line) for block in blocks for line in block) <= WIDTH:
            return [line for block in blocks for line in ["", *block]][1:]
    return _lines(names)


def _lines(columns: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    return [
        (f"{name:<{widths[0]}}  " + (" " * _GAP).join(map(str.ljust, cells, widths[1:]))).rstrip()
        for name, *cells in rows
    ]


def _legend(drawn: _Drawn) -> list[str]:
    """Explain the signs that occur."""
    verbs = [verb for rounds in drawn.schedule for verbs in rounds for verb in verbs]
    if not verbs:
        return []
    sides = {verb.side for verb in verbs if isinstance(verb, Recv)}
    signs = ["c>r: send chunk c to rank r"]
    signs += [meaning for side, meaning in _MEANINGS.items() if side in sides]
    if any(not verbs for rounds in drawn.schedule for verbs in rounds):
        signs.append(".: nothing")
    names = {drawn.chunks.name(verb.span): verb.span for verb in verbs if isinstance(verb, Send)}
    names |= {drawn.chunks.name(verb.span): verb.span for verb in verbs}
    if "all" in names:
        signs.append("all: the whole array")
    if "-" in names:
        signs.append("-: an empty message")
    for name, span in names.items():
        if name != "all" and len(numbers := drawn.chunks.numbers(span)) > 1:
            signs.append(f"{name}: chunks {numbers[0]} {'and' if len(numbers) == 2 else 'to'} {numbers[-1]}")
            break
    if any(name.startswith("[") for name in names):
        signs.append("[a:b]: elements a to b-1")
    whole = [sign.replace(" ", "\0") for sign in signs]  # a line ends between signs only
    return (
        textwrap.fill("; ".join(whole), WIDTH, break_long_words=False, break_on_hyphens=False)
        .replace("\0", " ")
        .splitlines()
    )


def _messages(drawn: _Drawn) -> Iterable[Message]:
    """Match sends and receives, first in first out per pair of ranks."""
    waiting: dict[tuple[int, int], deque[tuple[int, Recv]]] = {}
    for rank, rounds in enumerate(drawn.schedule):
        for index, verbs in enumerate(rounds):
            for verb in verbs:
                if isinstance(verb, Recv):
                    waiting.setdefault((verb.peer, rank), deque()).append((index, verb))
    for rank, rounds in enumerate(drawn.schedule):
        for index, verbs in enumerate(rounds):
            for verb in verbs:
                if isinstance(verb, Send):
                    if not waiting.get((rank, verb.peer)):
                        raise ValueError(f"rank {rank}, round {index}: rank {verb.peer} does not receive what it sends")
                    landed, recv = waiting[rank, verb.peer].popleft()
                    yield Message(
                        rank,
                        verb.peer,
                        index,
                        landed,
                        recv.side is not None,
                        drawn.chunks.name(verb.span),
                        tuple(drawn.chunks.numbers(verb.span)),
                        _EFFECTS[recv.side],
                    )
    for (source, target), left in waiting.items():
        if left:
            raise ValueError(f"rank {target}, round {left[0][0]}: rank {source} does not send what it receives")
