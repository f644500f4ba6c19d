"""Rooms: flags and stages in memory that the ranks of a node share, and how ranks wait for each other there.

Rules that hold here:

* A rank writes its own line of flags only. What it says there is the number of the exchange in this room and the token
  of the call (`Recorder.token`), so that ranks that disagree about a call, or one before it, wait for each other.
* A rank has three stages in turn, and brings its part of the next exchange before it has fetched all of this one. Where
  it uses a stage again, three exchanges later, all others have entered the one before, and so fetched all of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.runtime.stream import Fold
from hpcreduce.schedule import RIGHT

LINE = 64
"""Bytes of a rank's line of flags, and what its stages are aligned to."""

TINY = 4 << 10
"""Bytes up to which a call is mostly the time of its exchange of flags."""

REDUNDANT = 256 << 10
"""Bytes of all ranks' arrays together up to which every rank reduces all of it itself: one exchange instead of two."""

STAGES = 3
"""Stages of a rank in a room."""

PIECE = 256 << 10
"""Bytes that are staged at a time."""

ACROSS_PIECE = 4 << 20
"""The same where a piece crosses a network before the next one is staged."""

SMALLEST = 4 << 10
"""Bytes of the smallest stage."""

GONE = 1 << 63
"""In a word: said no more."""

HERE, DONE, PLACE, ENTERED = 0, 2, 4, 6
"""Words of a line, two of each, which take turns."""


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


def redundant(nbytes: int, ranks: int) -> bool:
    """Return whether each rank reduces all of such an array itself."""
    return nbytes * ranks <= REDUNDANT


def worth_a_look(nbytes: int, ranks: int) -> bool:
    """Return whether it pays to find out if such arrays are node-shared: that takes an exchange of its own."""
    return nbytes > TINY and (ranks == 2 or not redundant(nbytes, ranks))


def size_of(stage: int) -> int:
    """Return the bytes of a rank's memory of a room."""
    return LINE + STAGES * stage


class Seat(NamedTuple):
    """A rank's place in a room, and how a call behaves there.

    Attributes
    ----------
    room : Room
    mates : sequence of int
        The ranks of the communicator that are in the room.
    rank : int
        The place of this rank among them.
    reads : bool
        The operation leaves what it combines alone, so that it can read other ranks' memory.
    fence : callable or None
        Orders this rank's memory accesses for the others.
    """

    room: Room
    mates: Sequence[int]
    rank: int
    reads: bool
    fence: Any


class Exchange:
    """What rules all ways to reduce in a room; moved like a `hpcreduce.runtime.stream.Stream`.

    Parameters
    ----------
    seat : Seat
    count : int
    dtype : numpy.dtype

    Attributes
    ----------
    divided : bool
        What was reduced last is divided as well, where that is wanted.
    """

    divided = False

    def __init__(self, seat: Seat, count: int, dtype: np.dtype[Any]) -> None:
        self._room, self._mates, self._rank, self._reads, self._fence = seat
        self._count, self._dtype = count, dtype
        self._line = seat.room.lines[seat.rank]
        self._others = [other for other in range(len(seat.mates)) if other != seat.rank]
        length = len(seat.room.stages[0][0]) // dtype.itemsize
        stages = zip(*seat.room.stages, strict=True)
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
                self._line[HERE + (self._told & 1)] |= GONE

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
        if what == HERE:
            self._told = turn

    def _said(self, what: int, turn: int, others: Sequence[int]) -> bool:
        """Return whether all those ranks have said so."""
        word, place, lines = turn << 32 | self._tag, what + (turn & 1), self._room.lines
        for other in others:
            if (said := lines[other][place]) != word:
                if other != self._missing and said != word | GONE:
                    self._missing, self._left = other, self._left - 1
                return False
        if self._fence:
            self._fence()
        return True

    def _reduce(self, target: Any, views: Iterable[Any]) -> None:
        """Reduce the views into the target, one after the other."""
        for view in views:
            self._fold(target, view if self._reads else view.copy(), RIGHT)
