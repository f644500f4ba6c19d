"""The one place where this package waits.

Waiting tests a few times, then yields the core between tests (ranks may outnumber cores), then sleeps in short naps
once nothing has moved for a while. It looks around when nothing has moved for long, ends at a deadline, and a signal
handler (Ctrl-C) runs between two tests. Every wait moves all operations that its thread has in flight.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, Protocol

DEFAULT_TIMEOUT = 600.0
"""Seconds that a collective may take, unless ``timeout=`` or ``HPCREDUCE_TIMEOUT`` says otherwise."""

SPINS = 20
"""Tests before the first yield."""

GRACE = 50e-6
"""Seconds without progress before the first nap."""

BLIND_GRACE = 2e-3
"""The same for the library's own operations: they tell no progress, and get on only while they are asked."""

LOOK = 0.05
"""Seconds without progress before the first look around."""

PAUSE = 0.01
"""Seconds between two looks."""


class Waiter(Protocol):
    """What is waited for; its text says what it is, and `state` is its communicator's."""

    state: Any

    def where(self) -> str:
        """Return what it waits for itself, in words."""

    def step(self) -> int:
        """Move what can be moved, and return how much is left, 0 at the end."""

    def look(self) -> None:
        """Look why nothing moves; raise to end the wait."""

    def withdraw(self) -> None:
        """Let no other rank rely on this one any more, unless one does already; the last step follows."""

    def expire(self, timeout: float) -> None:
        """The time-out has passed: raise."""


in_flight: dict[Any, int] = {}
"""Operations started and not seen complete -> the thread that started them; each has ``step()`` and ``state``."""

blocked: dict[int, Waiter] = {}
"""Thread -> what it waits for."""


def move_others(own: Waiter) -> None:
    """Move this thread's operations, but for `own`. One that fails tells whoever waits for it."""
    thread = threading.get_ident()
    for operation, starter in list(in_flight.items()):
        if starter == thread and operation is not own and not operation.state.frozen:
            with contextlib.suppress(Exception):
                operation.step()


def until(waiter: Waiter, timeout: float, grace: float = GRACE) -> None:
    """Wait until nothing is left to do.

    Parameters
    ----------
    waiter : Waiter
    timeout : float
        Seconds; then `waiter` raises what says so.
    grace : float
        Seconds without progress before the first nap.
    """
    step = waiter.step
    for _ in range(SPINS):
        if not (left := step()):
            return
    thread = threading.get_ident()
    outer = blocked.get(thread)
    blocked[thread] = waiter
    try:
        _until(waiter, left, timeout, grace)
    finally:
        if outer is None:
            del blocked[thread]
        else:
            blocked[thread] = outer


def _until(waiter: Waiter, left: int, timeout: float, grace: float) -> None:
    step = waiter.step
    start = moved = time.monotonic()
    looked = 0.0
    nap = 0.0
    turn = 0
    while True:
        if nap:
            time.sleep(nap)
        else:
            os.sched_yield()
            turn += 1
        if in_flight:
            move_others(waiter)
        before, left = left, step()
        if not left:
            return
        if turn % 8 and left == before:
            continue  # look at the clock now and then only; while napping `turn` stands still at a multiple of 8
        now = time.monotonic()
        if left != before:
            moved = now
        idle = now - moved
        nap = 0.0 if idle < grace else 50e-6 if idle < 1 else 500e-6
        if now - start > timeout:
            waiter.withdraw()
            if not step():
                return
            waiter.expire(timeout)
        elif idle > LOOK and now - looked > PAUSE:
            looked = now
            waiter.look()


def default_timeout() -> float:
    """Return the default time-out in seconds: ``HPCREDUCE_TIMEOUT``, or 600."""
    text = os.environ.get("HPCREDUCE_TIMEOUT", "")
    try:
        seconds = float(text) if text else DEFAULT_TIMEOUT
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"HPCREDUCE_TIMEOUT must be a number of seconds above 0, found {text!r}")
    return seconds
