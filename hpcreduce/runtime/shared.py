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

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
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

BLOCK = 256 << 10
"""Bytes that are combined at a time: they stay in the processor's cache meanwhile."""

ACROSS_PIECE = 4 << 20
"""The same where a piece crosses a network before the next one is staged."""

SMALLEST = 4 << 10
"""Bytes of the smallest stage."""

SETTLE = 0.05
"""Seconds in which a rank that has seen all others there tells that it goes on."""

_GONE = 1 << 63  # in a word: said no more
_HERE, _DONE, _PLACE, _ENTERED = 0, 2, 4, 6  # words of a line, two of each, which take turns


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


def capacity(nbytes: int, across: bool = False) -> int:
    """Return the bytes of a stage in the room for arrays of `nbytes`: a power of two."""
    return 1 << (min(ACROSS_PIECE if across else PIECE, max(SMALLEST, nbytes)) - 1).bit_length()


def size_of(stage: int) -> int:
    """Return the bytes of a rank's memory of a room."""
    return LINE + STAGES * stage


class _Exchange:
    """What rules both ways to reduce in a room; moved like a `hpcreduce.runtime.stream.Stream`.

    Parameters
    ----------
    room : Room
    rank, count : int
    dtype : numpy.dtype
    reads : bool
        The operation leaves what it combines alone, so that it can read other ranks' memory.
    fence : callable or None
        Orders this rank's memory accesses for the others.
    mates : sequence of int
        The ranks of the communicator that are in the room; `rank` is a place among them.

    Attributes
    ----------
    divided : bool
        What was reduced last is divided as well, where that is wanted.
    """

    divided = False

    def __init__(
        self,
        room: Room,
        rank: int,
        count: int,
        dtype: np.dtype[Any],
        *,
        reads: bool = True,
        fence: Any = None,
        mates: Sequence[int] = (),
    ) -> None:
        self._room, self._rank, self._count, self._dtype = room, rank, count, dtype
        self._reads, self._fence, self._mates = reads, fence, mates or range(len(room.lines))
        self._line, self._others = room.lines[rank], [other for other in range(len(room.lines)) if other != rank]
        length = len(room.stages[0][0]) // dtype.itemsize
        stages = zip(*room.stages, strict=True)
        self._views = [[stage[: length * dtype.itemsize].view(dtype) for stage in each] for each in stages]
        self._length = max(1, length)
        self.busy = False
        self._buffer: Any = None
        self._fold: Any = None
        self._tag, self._missing = 0, -1
        self._left = self._told = 0  # the one only tells whether anything moved, the other where it was said last
        self._withdrawn = False

    def abandon(self) -> list[Any]:
        """Give up, and return what must be kept alive."""
        return [self._room, self._buffer]

    def peer(self) -> int | None:
        """Return the rank that is waited for, `None` before that is known."""
        return None if self._missing < 0 else self._mates[self._missing]

    def where(self) -> str:
        """Return what is waited for, in words."""
        return f"waiting in node-shared memory for rank {self.peer()}"

    def withdraw(self) -> None:
        """Take back that this rank is there, since it gives up; it gets on no more."""
        if self.busy and not self._withdrawn:
            self._withdrawn = True
            if self._told:
                self._line[_HERE + (self._told & 1)] |= _GONE

    def _begin(self, buffer: Any, fold: Fold, tag: int) -> None:
        self.busy = True
        self._buffer, self._fold, self._tag = buffer, fold, tag
        self._left, self._missing = 1 << 60, -1
        self._withdrawn, self._told = False, 0

    def _next(self) -> int:
        self._room.turn += 1
        return self._room.turn

    def _say(self, what: int, turn: int) -> None:
        """Tell the others, who may then read what this rank wrote before."""
        if self._fence:
            self._fence()
        self._line[what + (turn & 1)] = turn << 32 | self._tag
        if what == _HERE:
            self._told = turn

    def _said(self, what: int, turn: int, others: Sequence[int]) -> bool:
        """Return whether all those ranks have said so."""
        word, place, lines = turn << 32 | self._tag, what + (turn & 1), self._room.lines
        for other in others:
            if (said := lines[other][place]) != word:
                if other != self._missing and said != word | _GONE:
                    self._missing, self._left = other, self._left - 1
                return False
        if self._fence:
            self._fence()
        return True

    def _reduce(self, target: Any, views: Iterable[Any]) -> None:
        """Reduce the views into the target, one after the other."""
        for view in views:
            self._fold(target, view if self._reads else view.copy(), RIGHT)


class Tiny(_Exchange):
    """An all-reduce in which every rank combines everything itself, in rank order."""

    _turn = 0

    def __init__(self, room: Room, rank: int, count: int, dtype: np.dtype[Any], **options: Any) -> None:
        super().__init__(room, rank, count, dtype, **options)
        self._parts = [[view[:count] for view in views] for views in self._views]

    def start(self, buffer: Any, fold: Fold, tag: int) -> None:
        """Begin to reduce `buffer`, a contiguous one-dimensional array, in place."""
        self._begin(buffer, fold, tag)
        self._turn = turn = self._next()
        self._parts[turn % STAGES][self._rank][...] = buffer
        self._say(_HERE, turn)

    def progress(self) -> int:
        """Do all that can be done now; return how many steps are left, 0 when the result is complete."""
        turn = self._turn
        if self._withdrawn or not self._said(_HERE, turn, self._others):
            return self._left
        buffer, parts = self._buffer, self._parts[turn % STAGES]
        if self._rank:
            buffer[...] = parts[0]
        self._reduce(buffer, parts[1:])
        self.busy, self._buffer = False, None
        return 0


class Met(_Exchange):
    """The library's own blocking call, made once all ranks are known to be about to make the same one.

    So it has a deadline, and ranks that disagree never come to it. A rank that has said that it is there may be relied
    on: if it gives up, it takes that back, unless another one goes on already. For blocking calls only: of two that are
    in flight, ranks could go on with different ones, and wait for each other.

    Parameters
    ----------
    room, rank, count, dtype
        As above.
    call : callable
        ``call(buffer)`` reduces in place.
    """

    _turn = 0
    _over = False

    def __init__(
        self,
        room: Room,
        rank: int,
        count: int,
        dtype: np.dtype[Any],
        *,
        call: Callable[[Any], object],
        **options: Any,
    ) -> None:
        super().__init__(room, rank, count, dtype, **options)
        self._call = call

    def start(self, buffer: Any, fold: Fold, tag: int) -> None:
        """Begin to reduce `buffer`, a contiguous one-dimensional array, in place."""
        self._begin(buffer, fold, tag)
        self._turn, self._over = self._next(), False

    def progress(self) -> int:
        """Do all that can be done now; return how many steps are left, 0 when the result is complete."""
        if not self._over:
            if not self._told and not self._withdrawn:
                self._say(_HERE, self._turn)
            if self._withdrawn or not (self._said(_HERE, self._turn, self._others) or self._entered()):
                return self._left
            self._enter()
        self.busy, self._buffer = False, None
        return 0

    def withdraw(self) -> None:
        """Do not go on, unless another rank does."""
        if self._over or self._withdrawn or not self.busy:
            return
        super().withdraw()
        if not self._told:
            return
        end = time.monotonic() + SETTLE
        while not self._entered():
            if time.monotonic() > end:
                return
            time.sleep(1e-3)
        self._enter()

    def abandon(self) -> list[Any]:
        """Give up, and return what must be kept alive."""
        self.withdraw()
        return super().abandon()

    def _entered(self) -> bool:
        """Return whether any other rank has gone on, as it does when all are there."""
        word, place = self._turn << 32 | self._tag, _ENTERED + (self._turn & 1)
        return any(self._room.lines[other][place] == word for other in self._others)

    def _enter(self) -> None:
        self._say(_ENTERED, self._turn)
        self._over = True
        self._call(self._buffer)


class Shared(_Exchange):
    """An all-reduce in which every rank combines its own chunk.

    Parameters
    ----------
    room, rank, count, dtype, reads, fence, mates
        As above.
    ordered : bool
        Contributions must be combined in rank order.
    arrays : Arrays, optional
        Node-shared arrays of the communicator: they are reduced where they are, if all ranks pass such arrays.
    otherwise : Stream or Met, optional
        What runs if they do not; by default the stages are used.
    divide : callable, optional
        Divides what is reduced where it is, block by block: the whole is not read again for it.
    across : callable, optional
        ``across(count)`` returns the stream that combines a chunk with those of the other nodes.
    """

    def __init__(
        self,
        room: Room,
        rank: int,
        count: int,
        dtype: np.dtype[Any],
        *,
        ordered: bool = False,
        arrays: Any = None,
        otherwise: Any = None,
        divide: Callable[[Any], None] | None = None,
        across: Callable[[int], Stream] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(room, rank, count, dtype, **options)
        self._ordered, self._arrays, self._otherwise = ordered, arrays, otherwise
        self._divide = divide
        self._pieces = partition(count, max(1, -(-count // self._length)))
        self._chunks = [partition(piece.length, len(room.lines)) for piece in self._pieces]
        self._block = max(1, BLOCK // dtype.itemsize)
        self._work: Iterator[None] = iter(())
        self._running: Any = None
        self._last: tuple[Callable[[], Any], int, int] = (lambda: None), -1, 0
        self._reduced: tuple[list[int], list[tuple[Any, list[Any]]]] = [], []
        lengths = {chunks[rank].length for chunks in self._chunks}
        self._across = {length: across(length) for length in lengths} if across else {}

    def start(self, buffer: Any, fold: Fold, tag: int) -> None:
        """Begin to reduce `buffer`, a contiguous one-dimensional array, in place."""
        self._begin(buffer, fold, tag)
        self.divided = False
        self._work = self._run()
        next(self._work, None)

    def progress(self) -> int:
        """Do all that can be done now; return how many steps are left, 0 when the result is complete."""
        if self._withdrawn or next(self._work, self) is not self:
            return self._left
        self.busy, self._buffer = False, None
        return 0

    def abandon(self) -> list[Any]:
        """Give up, and return what must be kept alive."""
        return [*super().abandon(), self._running.abandon() if self._running else None]

    def withdraw(self) -> None:
        """Take back that this rank is there; what runs in its place may have to go on."""
        if self._running:
            self._running.withdraw()
        else:
            super().withdraw()

    def peer(self) -> int | None:
        """Return the rank that is waited for."""
        peer: int | None = self._running.peer() if self._running else super().peer()
        return peer

    def where(self) -> str:
        """Return what is waited for, in words."""
        text: str = self._running.where() if self._running else super().where()
        return text

    def _run(self) -> Iterator[None]:
        """Yield wherever another rank has to come first."""
        if self._arrays is not None:
            turn, place = self._next(), self._place()
            self._line[_PLACE + (turn & 1)] = place
            self._say(_HERE, turn)
            if place or not self._otherwise:
                while not self._said(_HERE, turn, self._others):
                    yield
                places = [line[_PLACE + (turn & 1)] for line in self._room.lines]
                if all(places):
                    yield from self._in_place(turn, places)
                    return
            if self._otherwise:
                yield from self._hand_over(self._otherwise, self._buffer)
                return
        yield from self._in_stages()

    def _place(self) -> int:
        """Return the place of the buffer in the node-shared arrays; mostly it is the buffer of the last time."""
        buffer, (known, version, place) = self._buffer, self._last
        if known() is not buffer or version != self._arrays.version:
            place = self._arrays.place(buffer)
            self._last = weakref.ref(buffer), self._arrays.version, place
        return place

    def _in_stages(self) -> Iterator[None]:
        """Stage, combine and fetch piece by piece; each piece has an exchange of its own."""
        turn = self._bring(0)
        for index, (piece, chunks) in enumerate(zip(self._pieces, self._chunks, strict=True)):
            views, data = self._views[turn % STAGES], self._buffer[piece.start : piece.stop]
            while not self._said(_HERE, turn, self._others):
                yield
            start, stop = chunks[self._rank]
            for first in range(start, stop, self._block):
                last = min(first + self._block, stop)
                target = data[first:last]
                if self._ordered and self._rank:
                    target[...] = views[0][first:last]
                order = range(1, len(views)) if self._ordered else self._others
                self._reduce(target, (views[other][first:last] for other in order))
                if not self._across:
                    views[self._rank][first:last] = target
            if self._across:
                yield from self._hand_over(self._across[stop - start], data[start:stop])
                views[self._rank][start:stop] = data[start:stop]
            self._say(_DONE, turn)
            following = self._bring(index + 1) if index + 1 < len(self._pieces) else 0
            for other in self._others:
                while not self._said(_DONE, turn, (other,)):
                    yield
                start, stop = chunks[other]
                data[start:stop] = views[other][start:stop]
            turn = following

    def _bring(self, index: int) -> int:
        """Stage what others combine of a piece."""
        turn = self._next()
        stage, piece = self._views[turn % STAGES][self._rank], self._pieces[index]
        data, own = self._buffer[piece.start : piece.stop], self._chunks[index][self._rank]
        for start, stop in [(0, piece.length)] if self._ordered else [(0, own.start), (own.stop, piece.length)]:
            stage[start:stop] = data[start:stop]
        self._say(_HERE, turn)
        return turn

    def _in_place(self, turn: int, places: list[int]) -> Iterator[None]:
        """Combine this rank's chunk of all arrays where they are, in rank order, and write it to all."""
        if places != self._reduced[0]:
            self._reduced = places, self._blocks(places)
        for target, others in self._reduced[1]:
            self._reduce(target, others)
            if self._divide:
                self._divide(target)
            for other in others:
                other[...] = target
        self.divided = True
        self._say(_DONE, turn)
        while not self._said(_DONE, turn, self._others):
            yield

    def _blocks(self, places: list[int]) -> list[tuple[Any, list[Any]]]:
        """Return this rank's chunk of all arrays, block by block: that of the first rank's, and of the others'."""
        nbytes = self._count * self._dtype.itemsize
        views = [self._arrays.memory(rank, place, nbytes).view(self._dtype) for rank, place in enumerate(places)]
        start, stop = partition(self._count, len(views))[self._rank]
        edges = [*range(start, stop, self._block), stop]
        blocks = [[view[first:last] for view in views] for first, last in pairwise(edges)]
        return [(target, others) for target, *others in blocks]

    def _hand_over(self, stream: Any, buffer: Any) -> Iterator[None]:
        self._running = stream
        stream.start(buffer, self._fold, self._tag)
        before = 0
        while left := stream.progress():
            if left != before:
                before, self._left = left, self._left - 1
            yield
        self._running = None
