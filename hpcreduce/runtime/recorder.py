"""The flight recorder: what this rank started on one communicator, and what of it is not complete.

It costs less than a microsecond per call, and keeps the last `REMEMBERED` calls.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, NamedTuple

KEPT = 64
"""Calls that a dump tells of at most, besides those that are pending."""

REMEMBERED = 1024
"""Calls that are remembered, so that a rank far ahead can still be asked."""

_SPREAD = 0x9E3779B1  # odd: starts of one plan have tokens far apart

VERSION = 1
"""Of the format of dumps."""

SHORT = 300
"""Characters of the description of a call, where it is told."""

PLANS = 128
"""Persistent plans whose number of starts is remembered."""

_OURS = {
    f"hpcreduce.{name}"
    for name in (
        *("collectives", "preparation", "many", "related", "sharing", "intracomm", "objects"),
        *("runtime.plan", "runtime.state", "runtime.agreement"),
        *(f"gradients.{name}" for name in ("averager", "buckets", "replicas", "reports", "step", "tensors")),
        *(f"stats.{name}" for name in ("describe", "elements", "meeting", "moments", "records", "sources", "table")),
    )
}
"""Modules whose calls are told by the line that called them."""


class Entry(NamedTuple):
    """One collective operation that was started.

    Attributes
    ----------
    order : tuple of int
        (0, number of the call on the communicator), or (number of the persistent plan, number of its start). The
        operation of the same order is the same on every rank, or the ranks disagree.
    fingerprint : int
        What the ranks must agree on.
    what : str
        The call in words.
    code, instruction
        Where it was called.
    started : float
        By the monotonic clock.
    """

    order: tuple[int, int]
    fingerprint: int
    what: str
    code: CodeType
    instruction: int
    started: float

    @property
    def at(self) -> str:
        """File and line of the call."""
        lines = self.code.co_lines()
        line = next((line for first, last, line in lines if first <= self.instruction < last), None)
        return place(self.code, line or self.code.co_firstlineno)


class Recorder:
    """The calls of one rank on one communicator.

    Attributes
    ----------
    sequence : int
        Calls made so far, but for starts of persistent plans.
    plans : int
        Persistent plans made so far.
    starts : dict
        Plan -> how often it was started, for the latest plans.
    token : int
        A number that the ranks share for the call begun last if all before it were the same on them too: it goes into
        the tags of its messages. For the start of a persistent plan it depends on this plan alone.
    again : bool
        The next call is the one that was begun last: so far ranks have only made sure that they mean the same.
    ended : float
        When the last one was completed, by the monotonic clock; 0 before.
    away : float
        Seconds from there to the start of the latest.
    """

    def __init__(self) -> None:
        self.sequence = self.plans = 0
        self.starts: dict[int, int] = {}
        self.kept: deque[tuple[Any, ...]] = deque(maxlen=REMEMBERED)
        self._pending: dict[tuple[int, int], tuple[Any, ...]] = {}
        self.ended = self.away = 0.0
        self.token = self._chain = 0
        self.again = False

    def plan(self) -> int:
        """Return the number of a new persistent plan."""
        self.plans += 1
        self.starts[self.plans] = 0
        if len(self.starts) > PLANS:
            self.starts.pop(next(iter(self.starts)))
        return self.plans

    def begin(self, fingerprint: int, what: str, plan: int = 0, start: int = 0) -> tuple[int, int]:
        """Note that a call is made, and return its order; `plan` is 0 but for the start of a persistent plan."""
        if plan:
            self.starts[plan] = start
            self.token = fingerprint + start * _SPREAD
        else:
            if self.again:
                self.again = False
            else:
                self.sequence += 1
            start = self.sequence
            self.token = self._chain = hash((self._chain, fingerprint))
        order = plan, start
        frame = sys._getframe(3)
        while frame.f_globals.get("__name__") in _OURS and frame.f_back is not None:
            frame = frame.f_back
        now = time.monotonic()
        self.away = now - self.ended
        entry = (order, fingerprint, what, frame.f_code, frame.f_lasti, now)
        self.kept.append(entry)
        self._pending[order] = entry
        return order

    def complete(self, order: tuple[int, int]) -> None:
        """Note that a call is complete."""
        del self._pending[order]
        self.ended = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether something is pending."""
        return bool(self._pending)

    @property
    def pending(self) -> list[Entry]:
        """What is not complete, in the order in which it was started."""
        return [Entry(*entry) for entry in list(self._pending.values())]

    def completed(self) -> list[Entry]:
        """Return the last calls that are complete, the oldest first."""
        return [Entry(*entry) for entry in list(self.kept)[-KEPT:] if entry[0] not in self._pending]

    def all(self) -> list[Entry]:
        """Return what is pending or was begun lately, the oldest first."""
        late = [Entry(*entry) for entry in list(self.kept)[-KEPT:]]
        orders = {entry.order for entry in late}
        return [entry for entry in self.pending if entry.order not in orders] + late

    def known(self) -> dict[tuple[int, int], Entry]:
        """Return all calls that are remembered, by their order."""
        return {entry[0]: Entry(*entry) for entry in [*self._pending.values(), *self.kept]}


def name(order: Sequence[int]) -> str:
    """Return the order of a call in words."""
    plan, number = order
    return f"plan {plan}, start {number}" if plan else f"#{number}"


def short(text: str, around: int = 0) -> str:
    """Return a description that is not longer than `SHORT`, and has what stands around a character of a longer one.

    >>> text = short("f(" + "; ".join(map(str, range(1000))) + ")", around=2000)
    >>> text[:20], text[70:88], text[-8:], len(text)
    ('f(0; 1; 2; 3; 4; 5; ', ' ... 421; 422; 423', '4; 46...', 300)
    """
    if len(text) <= SHORT:
        return text
    start = text.rfind("; ", 0, around) + 2  # descriptions of many things have semicolons between them
    quarter = SHORT // 4
    if start < 2 * quarter:
        return text[: SHORT - 3] + "..."
    return f"{text[: quarter - 5]} ... {text[start : start + 3 * quarter - 3]}..."


def place(code: CodeType, line: int) -> str:
    """Return file, line and function in words."""
    name = os.path.basename(code.co_filename)
    inside = "" if code.co_name == "<module>" else f" in {code.co_name}"
    return f"{name}:{line}{inside}"


def stack(skip: Callable[[str], bool] = lambda module: False) -> list[str]:
    """Return where the main thread is, the innermost place last, without the modules to `skip`."""
    import threading

    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    places = []
    while frame is not None:
        if not skip(frame.f_globals.get("__name__", "")):
            places.append(place(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return places[::-1]
