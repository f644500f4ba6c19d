"""All-reduce in memory that the ranks of a node share: no message, and about as much traffic as a copy.

An element is combined by one rank, its own contribution first unless the order counts, or by all alike in rank order:
every rank gets the same bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from hpcreduce.runtime.rooms import DONE, HERE, PLACE, STAGES, Exchange, Seat
from hpcreduce.runtime.stream import Fold, Stream
from hpcreduce.schedule import partition

BLOCK = 256 << 10
"""Bytes that are combined at a time: they stay in the processor's cache meanwhile."""


class Redundant(Exchange):
    """An all-reduce in which every rank combines everything itself, in rank order."""

    _turn = 0

    def __init__(self, seat: Seat, count: int, dtype: np.dtype[Any]) -> None:
        super().__init__(seat, count, dtype)
        self._parts = [[view[:count] for view in views] for views in self._views]

    def start(self, buffer: Any, fold: Fold, tag: int) -> None:
        """Begin to reduce `buffer`, a contiguous one-dimensional array, in place."""
        self._begin(buffer, fold, tag)
        self._turn = turn = self._next()
        self._parts[turn % STAGES][self._rank][...] = buffer
        self._say(HERE, turn)

    def progress(self) -> int:
        """Do all that can be done now; return how many steps are left, 0 when the result is complete."""
        turn = self._turn
        if self._withdrawn or not self._said(HERE, turn, self._others):
            return self._left
        buffer, parts = self._buffer, self._parts[turn % STAGES]
        if self._rank:
            buffer[...] = parts[0]
        self._reduce(buffer, parts[1:])
        self.busy, self._buffer = False, None
        return 0


class Shared(Exchange):
    """An all-reduce in which every rank combines its own chunk.

    Parameters
    ----------
    seat, count, dtype
        As for `Exchange`.
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
        seat: Seat,
        count: int,
        dtype: np.dtype[Any],
        *,
        ordered: bool = False,
        arrays: Any = None,
        otherwise: Any = None,
        divide: Callable[[Any], None] | None = None,
        across: Callable[[int], Stream] | None = None,
    ) -> None:
        super().__init__(seat, count, dtype)
        self._ordered, self._arrays, self._otherwise = ordered, arrays, otherwise
        self._divide = divide
        self._pieces = partition(count, max(1, -(-count // self._length)))
        self._chunks = [partition(piece.length, len(seat.mates)) for piece in self._pieces]
        self._block = max(1, BLOCK // dtype.itemsize)
        self._work: Iterator[None] = iter(())
        self._running: Any = None
        self._last: tuple[Callable[[], Any], int, int] = (lambda: None), -1, 0
        self._reduced: tuple[list[int], list[tuple[Any, list[Any]]]] = [], []
        lengths = {chunks[seat.rank].length for chunks in self._chunks}
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
            self._line[PLACE + (turn & 1)] = place
            self._say(HERE, turn)
            if place or not self._otherwise:
                while not self._said(HERE, turn, self._others):
                    yield
                places = [line[PLACE + (turn & 1)] for line in self._room.lines]
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
            while not self._said(HERE, turn, self._others):
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
            self._say(DONE, turn)
            following = self._bring(index + 1) if index + 1 < len(self._pieces) else 0
            for other in self._others:
                while not self._said(DONE, turn, (other,)):
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
        self._say(HERE, turn)
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
        self._say(DONE, turn)
        while not self._said(DONE, turn, self._others):
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
