"""Run a compiled program on one buffer over point-to-point messages.

Rules that hold here:

* The plan is a state machine that `progress` moves; it never blocks, so that several can be in flight.
* It knows a communicator only as something with ``Isend`` and ``Irecv``: the proof runs this very class on a
  simulated one.
* It keeps scratch between runs, but nothing of the caller's buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcreduce.runtime.program import Program

Fold = Callable[[Any, Any, str], "Callable[[], bool] | None"]
"""``fold(target, landed, side)`` reduces into `target`; it returns `None`, or a callable that says when it is done."""


class Plan:
    """A program with the scratch that it needs, for arrays of one dtype on one communicator.

    Parameters
    ----------
    comm : object
        Has ``Isend(buffer, peer, tag)`` and ``Irecv(buffer, peer, tag)``, whose requests have ``Test()``.
    program : Program
        What this rank does.
    dtype : numpy.dtype
        Type of the elements that are reduced and that travel.
    window : int
        How many receives are posted ahead, at least 1. Scratch is `window` segments.
    empty : callable
        ``empty(shape, dtype)`` makes the scratch.
    """

    def __init__(
        self, comm: Any, program: Program, dtype: np.dtype[Any], window: int, *, empty: Callable[..., Any] = np.empty
    ) -> None:
        self.comm = comm
        self.program = program
        self.window = max(1, min(window, len(program.recvs)))
        self.busy = False
        scratch = empty((self.window, program.scratch), dtype)
        self._landing = [  # where the data of each receive arrives; None: in the caller's buffer itself
            scratch[index % self.window, : recv.span.length] if recv.side else None
            for index, recv in enumerate(program.recvs)
        ]
        self._reset()

    def _reset(self) -> None:
        self._buffer: Any = None
        self._bytes: Any = None
        self._fold: Fold | None = None
        self._tag = 0
        self._receiving: list[Any] = []
        self._sending: list[Any] = [None] * len(self.program.sends)
        self._folding: list[Callable[[], bool] | None] = []
        self._done = 0  # receives that are folded and whose fold is done
        self._sent = 0  # sends known to be complete, all earlier ones included

    def start(self, buffer: Any, fold: Fold, tag: int) -> None:
        """Begin to reduce `buffer`, a contiguous one-dimensional array, in place."""
        self.busy = True
        self._buffer, self._bytes = buffer, buffer.view(np.uint8)
        self._fold, self._tag = fold, tag
        self._post()
        for index in self.program.first:
            self._send(index)

    def progress(self) -> int:
        """Do all that can be done now; return how many steps are left, 0 when the result is complete."""
        while self._land() | self._finish() | self._post():
            pass
        left = len(self.program.recvs) - self._done
        if not left:
            while self._sent < len(self._sending) and self._sending[self._sent].Test():
                self._sent += 1
            left = len(self._sending) - self._sent
            if not left:
                self._reset()
                self.busy = False
        return left

    def abandon(self) -> list[Any]:
        """Give up: cancel the receives, and return what must be kept alive while messages may still be under way."""
        requests = [*self._receiving, *filter(None, self._sending)]
        for request in self._receiving:
            if request:
                request.Cancel()
        return [requests, self._buffer, self._landing]

    def where(self) -> str:
        """Return what the plan waits for, in words."""
        recvs, done = self.program.recvs, self._done
        if done < len(recvs):
            return f"round {self.program.rounds[done]}, waiting for a message from rank {recvs[done].peer}"
        return f"all received, waiting for rank {self.program.sends[self._sent].peer} to take a message"

    def _post(self) -> bool:
        """Post receives up to the window."""
        program, receiving = self.program, self._receiving
        start = len(receiving)
        for index in range(start, min(len(program.recvs), self._done + self.window)):
            peer, span, _ = program.recvs[index]
            landing = self._landing[index]
            if landing is None and (self._done < program.behind[index] or not self._complete(program.hazards[index])):
                break
            message = self._slice(span) if landing is None else landing.view(np.uint8)
            receiving.append(self.comm.Irecv(message, peer, self._tag))
        return len(receiving) > start

    def _land(self) -> bool:
        """Reduce what has landed, in order."""
        program, receiving, folding = self.program, self._receiving, self._folding
        start = len(folding)
        for index in range(start, len(receiving)):
            if not receiving[index].Test():
                break
            landing, event = self._landing[index], None
            if landing is not None:
                if not self._complete(program.hazards[index]):
                    break
                _, (low, high), side = program.recvs[index]
                event = self._fold(self._buffer[low:high], landing, side)  # type: ignore[misc, arg-type]
            folding.append(event)
        return len(folding) > start

    def _finish(self) -> bool:
        """Let the sends go that waited for a write which is done."""
        start = self._done
        for event in self._folding[start:]:
            if event is not None and not event():
                break
            for index in self.program.after[self._done]:
                self._send(index)
            self._done += 1
        return self._done > start

    def _send(self, index: int) -> None:
        peer, span = self.program.sends[index]
        self._sending[index] = self.comm.Isend(self._slice(span), peer, self._tag)

    def _complete(self, sends: tuple[int, ...]) -> bool:
        sending = self._sending
        return all(sending[index] is not None and sending[index].Test() for index in sends)

    def _slice(self, span: tuple[int, int]) -> Any:
        size = self._buffer.itemsize
        return self._bytes[span[0] * size : span[1] * size]
