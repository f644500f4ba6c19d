"""The library's own blocking call, made once all ranks of a node are known to be about to make the same one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcreduce.runtime.rooms import ENTERED, HERE, Exchange, Seat
from hpcreduce.runtime.stream import Fold

SETTLE = 0.05
"""Seconds in which a rank that has seen all others there tells that it goes on."""


class Met(Exchange):
    """The library's own blocking call, made once all ranks are known to be about to make the same one.

    So it has a deadline, and ranks that disagree never come to it. A rank that has said that it is there may be relied
    on: if it gives up, it takes that back, unless another one goes on already. For blocking calls only: of two that are
    in flight, ranks could go on with different ones, and wait for each other.

    Parameters
    ----------
    seat, count, dtype
        As for `Exchange`.
    call : callable
        ``call(buffer)`` reduces in place.
    """

    _turn = 0
    _over = False

    def __init__(self, seat: Seat, count: int, dtype: np.dtype[Any], call: Callable[[Any], object]) -> None:
        super().__init__(seat, count, dtype)
        self._call = call

    def start(self, buffer: Any, fold: Fold, tag: int) -> None:
        """Begin to reduce `buffer`, a contiguous one-dimensional array, in place."""
        self._begin(buffer, fold, tag)
        self._turn, self._over = self._next(), False

    def progress(self) -> int:
        """Do all that can be done now; return how many steps are left, 0 when the result is complete."""
        if not self._over:
            if not self._told and not self._withdrawn:
                self._say(HERE, self._turn)
            if self._withdrawn or not (self._said(HERE, self._turn, self._others) or self._entered()):
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
        word, place = self._turn << 32 | self._tag, ENTERED + (self._turn & 1)
        return any(self._room.lines[other][place] == word for other in self._others)

    def _enter(self) -> None:
        self._say(ENTERED, self._turn)
        self._over = True
        self._call(self._buffer)
