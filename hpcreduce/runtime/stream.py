"""Run a compiled program on one buffer over point-to-point messages.

Rules that hold here:

* A stream is a state machine that `progress` moves; it never blocks, so that several can be in flight.
* It knows a communicator only as something with ``Isend`` and ``Irecv``: the proof runs this very class on a
  simulated one.
* It keeps scratch between runs, but nothing of the caller's buffer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.runtime.program import Program

CANCEL = 0.1
"""Seconds that a receive is given to be cancelled."""

Fold = Callable[[Any, Any, str], "Callable[[], bool] | None"]
"""``fold(target, landed, side)`` reduces into `target`; it returns `None`, or a callable that says when it is done."""


class SizeError(Exception):
    """A message is shorter than the schedule says."""


class _Step(NamedTuple):
    """A receive and what hangs on it; see `Program`. Without `landing` the data arrives in the caller's buffer."""

    nbytes: int
    peer: int
    start: int
    stop: int
    side: str
    landing: Any
    message: Any
    behind: int
    hazards: tuple[int, ...]
    after: tuple[int, ...]


class Stream:
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
    status : mpi4py.MPI.Status, optional
        Where the size of each message is looked up, for those that have one.
    codec : Codec, optional
        Translates between `dtype` and what travels. Then all that is received lands in scratch, and a part that is
        complete is finished before it is sent. For programs of algorithms in which one rank owns each element.
    empty : callable
        ``empty(shape, dtype)`` makes the scratch.

    Attributes
    ----------
    divided : bool
        As for `hpcreduce.runtime.shared`: never.
    """

    divided = False

    def __init__(
        self,
        comm: Any,
        program: Program,
        dtype: np.dtype[Any],
        window: int,
        *,
        codec: Any = None,
        status: Any = None,
        empty: Callable[..., Any] = np.empty,
    ) -> None:
        self.program, self.codec, self._status = program, codec, status
        self.busy = False
        self._isend, self._irecv = comm.Isend, comm.Irecv
        self._window = max(1, min(window, len(program.recvs)))
        longest = max((recv.span.length for recv in program.recvs if recv.side or codec), default=0)
        wire = codec.wire if codec else dtype
        scratch = empty((self._window, longest), wire)
        self._steps = []
        for index, (peer, span, side) in enumerate(program.recvs):
            landing = scratch[index % self._window, : span.length] if side or codec else None
            message = None if landing is None else landing.view(np.uint8)
            behind, hazards, after = program.behind[index], program.hazards[index], program.after[index]
            nbytes = span.length * wire.itemsize
            self._steps.append(_Step(nbytes, peer, *span, side or "", landing, message, behind, hazards, after))
        self._reset()

    def _reset(self) -> None:
        self._buffer: Any = None
        self._bytes: Any = None
        self._fold: Any = None
        self._tag = 0
        self._receiving: list[Any] = []
        self._sending: list[Any] = [None] * len(self.program.sends)
        self._folding: list[Callable[[], bool] | None] = []
        self._done = 0  # receives whose data is where it belongs
        self._sent = 0  # sends known to be complete, and all earlier ones

    def start(self, buffer: Any, fold: Fold, tag: int) -> None:
        """Begin to reduce `buffer`, a contiguous one-dimensional array, in place."""
        self.busy = True
        self._buffer, self._bytes = buffer, None if self.codec else buffer.view(np.uint8)
        self._fold, self._tag = fold, tag
        self._post()
        for index in self.program.first:
            self._send(index)

    def progress(self) -> int:
        """Do all that can be done now; return how many steps are left, 0 when the result is complete."""
        total = len(self._steps)
        before = -1
        while before != self._done < total:
            before = self._done
            self._land()
            self._post()
        sending, sent = self._sending, self._sent
        if self._done == total:
            while sent < len(sending) and sending[sent].Test():
                sent += 1
            self._sent = sent
        left = total - self._done + len(sending) - sent
        if not left:
            self._reset()
            self.busy = False
        return left

    def withdraw(self) -> None:
        """Do nothing any more that others rely on: they do not, but for messages that are sent."""

    def abandon(self) -> list[Any]:
        """Give up: cancel the receives, and return what must be kept alive while messages may still be under way."""
        canceled = [request for request in self._receiving if request]
        for request in canceled:
            request.Cancel()
        end = time.monotonic() + CANCEL
        with contextlib.suppress(Exception):  # such as for a message that did not fit
            while not all(request.Test() for request in canceled) and time.monotonic() < end:
                pass  # so that late data cannot land in the caller's buffer
        return [self._receiving, self._sending, self._buffer, self._steps]

    def peer(self) -> int | None:
        """Return the rank that the stream waits for, `None` at the end."""
        if self._done < len(self._steps):
            return self._steps[self._done].peer
        return self.program.sends[self._sent].peer if self._sent < len(self._sending) else None

    def where(self) -> str:
        """Return what the stream waits for, in words."""
        if self._done < len(self._steps):
            step = self._steps[self._done]
            return f"round {self.program.rounds[self._done]}, waiting for a message from rank {step.peer}"
        if self._sent < len(self._sending):
            return f"all received, waiting for rank {self.program.sends[self._sent].peer} to take a message"
        return "finished"

    def _post(self) -> None:
        """Post receives up to the window."""
        receiving, steps, done = self._receiving, self._steps, self._done
        for index in range(len(receiving), min(len(steps), done + self._window)):
            step = steps[index]
            message = step.message
            if message is None:
                if done < step.behind or not self._complete(step.hazards):
                    break
                message = self._slice(step.start, step.stop)
            receiving.append(self._irecv(message, step.peer, self._tag))

    def _land(self) -> None:
        """Reduce what has landed, in order, and let the sends go that waited for it."""
        receiving, folding, steps, status = self._receiving, self._folding, self._steps, self._status
        for index in range(len(folding), len(receiving)):
            request = receiving[index]
            step, event = steps[index], None
            if request is not None:
                if not request.Test(status):
                    break
                receiving[index] = None
                if status is not None and status.Get_count() != step.nbytes:
                    raise SizeError(
                        f"rank {step.peer} sent {status.Get_count()} bytes in round {self.program.rounds[index]}, "
                        f"expected {step.nbytes}"
                    )
            if step.landing is not None:
                if not self._complete(step.hazards):
                    break
                target = self._buffer[step.start : step.stop]
                event = self._fold(target, step.landing, step.side)
                if self.codec and step.side and step.after:
                    self.codec.finish(target)
            folding.append(event)
        while self._done < len(folding):
            event = folding[self._done]
            if event is not None and not event():
                break
            for index in steps[self._done].after:
                self._send(index)
            self._done += 1

    def _send(self, index: int) -> None:
        peer, (start, stop) = self.program.sends[index]
        message = self.codec.encode(self._buffer[start:stop]) if self.codec else self._slice(start, stop)
        self._sending[index] = self._isend(message.view(np.uint8), peer, self._tag)

    def _complete(self, sends: tuple[int, ...]) -> bool:
        sending = self._sending
        for index in sends:
            request = sending[index]
            if request is None or not request.Test():
                return False
        return True

    def _slice(self, start: int, stop: int) -> Any:
        size = self._buffer.itemsize
        return self._bytes[start * size : stop * size]
