"""All-reduce in memory that the ranks of a node share: no message, and about as much traffic as a copy.

Rules that hold here:

* A rank writes its own line of flags only. What it says there is the number of the exchange in this room and the token
  of the call (`Recorder.token`), so that ranks that disagree about a call, or one before it, wait for each other.
* A rank has three stages in turn, and brings its part of the next exchange before it has fetched all of this one. Where
  it uses a stage again, three exchanges later, all others have entered the one before, and so fetched all of the first.
* An element is combined by one rank, its own contribution first unless the order counts, or by all alike in rank order:
  every rank gets the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcreduce.runtime.stream import Fold, Stream
from hpcreduce.schedule import RIGHT, partition

LINE = 64
"""Bytes of a rank's line of flags, and what its stages are aligned to."""

TINY = 4 << 10
"""Bytes up to which every rank reduces all of the array itself, which takes one exchange of flags instead of two."""

STAGES = 3
"""Stages of a rank in a room."""

PIECE = 256 << 10
"""Bytes that are staged at a time."""

BLOCK = 32 << 10
"""Bytes that are combined at a time: they stay in the processor's cache meanwhile."""

SMALLEST = 4 << 10
"""Bytes of the smallest stage."""

_HERE, _DONE, _PLACE = 0, 2, 4  # words of a line, two of each, which take turns


class Room:
    """Flags and three stages per rank, in the memory of each; for one operation at a time.

    Attributes
    ----------
    lines : list of memoryview
        The words of each rank's line.
    stages : list
        Of `STAGES` arrays of bytes per rank.
    turn : int
        Exchanges there have been here.
    used : bool
        A plan has it.
    """

    def __init__(self, memories: Sequence[Any], stage: int) -> None:
        arrays = [np.frombuffer(memory, np.uint8) for memory in memories]
        self.lines = [memoryview(memory)[:LINE].cast("Q") for memory in memories]
        starts = [LINE + stage * number for number in range(STAGES)]
        self.stages = [[array[start : start + stage] for start in starts] for array in arrays]
        self.turn, self.used = 0, True


def capacity(nbytes: int) -> int:
    """Return the bytes of a stage in the room for arrays of `nbytes`: a power of two."""
    return 1 << (min(PIECE, max(SMALLEST, nbytes)) - 1).bit_length()


def size_of(stage: int) -> int:
    """Return the bytes of a rank's memory of a room."""
    return LINE + STAGES * stage


class Shared:
    """An all-reduce in a room; moved like a `hpcreduce.runtime.stream.Stream`.

    Parameters
    ----------
    room : Room
    rank, count : int
    dtype : numpy.dtype
    ordered : bool
        Contributions must be combined in rank order.
    reads : bool
        The operation leaves what it combines alone, so that it can read other ranks' memory.
    fence : callable or None
        Orders this rank's memory accesses for the others.
    arrays : Arrays, optional
        Node-shared arrays of the communicator: they are reduced where they are, if all ranks pass such arrays.
    otherwise : Stream, optional
        What runs if they do not; by default the stages are used.
    """

    def __init__(
        self,
        room: Room,
        rank: int,
        count: int,
        dtype: np.dtype[Any],
        *,
        ordered: bool = False,
        reads: bool = True,
        fence: Any = None,
        arrays: Any = None,
        otherwise: Stream | None = None,
    ) -> None:
        self._room, self._rank, self._count, self._dtype = room, rank, count, dtype
        self._ordered, self._reads, self._fence = ordered, reads, fence
        self._arrays, self._otherwise = arrays, otherwise
        size = len(room.lines)
        self._line, self._others = room.lines[rank], [other for other in range(size) if other != rank]
        length = len(room.stages[0][0]) // dtype.itemsize
        stages = zip(*room.stages, strict=True)
        self._views = [[stage[: length * dtype.itemsize].view(dtype) for stage in each] for each in stages]
        self._pieces = partition(count, max(1, -(-count // max(1, length))))
        self._chunks = [partition(piece.length, size) for piece in self._pieces]
        self._block = max(1, BLOCK // dtype.itemsize)
        self._tiny = count * dtype.itemsize <= TINY
        self.busy = False
        self._reset()

    def _reset(self) -> None:
        self._buffer: Any = None
        self._fold: Any = None
        self._work: Iterator[None] = iter(())
        self._running: Stream | None = None
        self._left, self._missing = 0, -1
        self._tag = 0

    def start(self, buffer: Any, fold: Fold, tag: int) -> None:
        """Begin to reduce `buffer`, a contiguous one-dimensional array, in place."""
        self.busy = True
        self._buffer, self._fold, self._tag = buffer, fold, tag
        self._left, self._missing = 1 << 60, -1
        self._work = self._run()
        next(self._work, None)

    def progress(self) -> int:
        """Do all that can be done now; return how many steps are left, 0 when the result is complete."""
        if next(self._work, self) is not self:
            return self._left
        self._reset()
        self.busy = False
        return 0

    def abandon(self) -> list[Any]:
        """Give up, and return what must be kept alive."""
        return [self._room, self._buffer, self._running.abandon() if self._running else None]

    def peer(self) -> int | None:
        """Return the rank that is waited for."""
        return self._running.peer() if self._running else self._missing

    def where(self) -> str:
        """Return what is waited for, in words."""
        if self._running:
            return self._running.where()
        return f"waiting in node-shared memory for rank {self._missing}"

    def _run(self) -> Iterator[None]:
        """Yield wherever another rank has to come first."""
        if self._arrays is not None:
            place = self._arrays.place(self._buffer)
            turn = self._say(_HERE, self._next(), place)
            if place or not self._otherwise:
                while not self._said(_HERE, turn, self._others):
                    yield
                places = [line[_PLACE + (turn & 1)] for line in self._room.lines]
                if all(places):
                    yield from self._in_place(turn, places)
                    return
            if self._otherwise:
                yield from self._hand_over(self._otherwise)
                return
        if self._tiny:
            yield from self._by_all()
        else:
            yield from self._by_owners()

    def _next(self) -> int:
        self._room.turn += 1
        return self._room.turn

    def _say(self, what: int, turn: int, place: int = 0) -> int:
        """Tell the others, who may then read what this rank wrote before."""
        parity = turn & 1
        if place:
            self._line[_PLACE + parity] = place
        elif self._arrays is not None and what == _HERE:
            self._line[_PLACE + parity] = 0
        if self._fence:
            self._fence()
        self._line[what + parity] = turn << 32 | self._tag
        return turn

    def _said(self, what: int, turn: int, others: Sequence[int]) -> bool:
        """Return whether all those ranks have said so."""
        word, place, lines = turn << 32 | self._tag, what + (turn & 1), self._room.lines
        for other in others:
            if lines[other][place] != word:
                if other != self._missing:
                    self._missing, self._left = other, self._left - 1
                return False
        if self._fence:
            self._fence()
        return True

    def _combine(self, target: Any, views: list[Any], start: int, stop: int, ordered: bool) -> None:
        """Combine that stretch of all views in `target`, which holds this rank's own."""
        order: Sequence[int] = self._others
        if ordered:
            if self._rank:
                np.copyto(target, views[0][start:stop])
            order = range(1, len(views))
        for other in order:
            landed = views[other][start:stop]
            self._fold(target, landed if self._reads else landed.copy(), RIGHT)

    def _by_all(self) -> Iterator[None]:
        buffer, turn, count = self._buffer, self._next(), self._count
        views = self._views[turn % STAGES]
        np.copyto(views[self._rank][:count], buffer)
        self._say(_HERE, turn)
        while not self._said(_HERE, turn, self._others):
            yield
        self._combine(buffer, views, 0, count, True)

    def _by_owners(self) -> Iterator[None]:
        """Stage, combine and fetch piece by piece; each piece has an exchange of its own."""
        turn = self._bring(0)
        for index, (piece, chunks) in enumerate(zip(self._pieces, self._chunks, strict=True)):
            views, data = self._views[turn % STAGES], self._buffer[piece.start : piece.stop]
            while not self._said(_HERE, turn, self._others):
                yield
            start, stop = chunks[self._rank]
            for first in range(start, stop, self._block):
                last = min(first + self._block, stop)
                self._combine(data[first:last], views, first, last, self._ordered)
                np.copyto(views[self._rank][first:last], data[first:last])
            self._say(_DONE, turn)
            following = self._bring(index + 1) if index + 1 < len(self._pieces) else 0
            for other in self._others:
                while not self._said(_DONE, turn, (other,)):
                    yield
                start, stop = chunks[other]
                np.copyto(data[start:stop], views[other][start:stop])
            turn = following

    def _bring(self, index: int) -> int:
        """Stage what others combine of a piece."""
        turn = self._next()
        stage, piece = self._views[turn % STAGES][self._rank], self._pieces[index]
        data, own = self._buffer[piece.start : piece.stop], self._chunks[index][self._rank]
        parts = [(0, piece.length)] if self._ordered else [(0, own.start), (own.stop, piece.length)]
        for start, stop in parts:
            np.copyto(stage[start:stop], data[start:stop])
        return self._say(_HERE, turn)

    def _in_place(self, turn: int, places: list[int]) -> Iterator[None]:
        """Combine this rank's chunk of all arrays where they are, and write it to all."""
        nbytes = self._count * self._dtype.itemsize
        views = [self._arrays.memory(rank, place, nbytes).view(self._dtype) for rank, place in enumerate(places)]
        start, stop = partition(self._count, len(views))[self._rank]
        for first in range(start, stop, self._block):
            last = min(first + self._block, stop)
            target = views[0][first:last]
            for view in views[1:]:
                landed = view[first:last]
                self._fold(target, landed if self._reads else landed.copy(), RIGHT)
            for view in views[1:]:
                np.copyto(view[first:last], target)
        self._say(_DONE, turn)
        while not self._said(_DONE, turn, self._others):
            yield

    def _hand_over(self, stream: Stream) -> Iterator[None]:
        self._running = stream
        stream.start(self._buffer, self._fold, self._tag)
        while left := stream.progress():
            self._left = left
            yield
        self._running = None
