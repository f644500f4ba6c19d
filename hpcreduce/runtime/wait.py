"""The one place where this package waits.

Waiting tests a few times, then yields the core between tests (ranks may outnumber cores), then sleeps in short naps
once nothing has moved for a while. It ends at a deadline, and a signal handler (Ctrl-C) runs between two tests. Every
wait moves all operations that its thread has in flight.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from hpcreduce.errors import CollectiveTimeoutError

Progress: TypeAlias = Callable[[], int]
"""Moves what can be moved and returns how much is left."""

SPINS = 20
"""Tests before the first yield."""

GRACE = 50e-6
"""Seconds without progress before the first nap."""

BLIND_GRACE = 2e-3
"""The same for the library's own operations: they tell no progress, and get on only while they are asked."""


in_flight: dict[Any, int] = {}
"""Operations started and not seen complete -> the thread that started them; each has ``step()`` and ``state``."""


def move_others(own: Progress) -> None:
    """Move this thread's operations, but for the one whose ``step`` is `own`. One that fails tells whoever waits."""
    thread = threading.get_ident()
    for operation, starter in list(in_flight.items()):
        if starter == thread and operation.step != own:
            with contextlib.suppress(Exception):
                operation.step()


def until(progress: Progress, timeout: float, describe: Callable[[], str], grace: float = GRACE) -> None:
    """Call `progress` until it returns 0.

    Parameters
    ----------
    progress : callable
        Moves what can be moved and returns how many steps are left.
    timeout : float
        Seconds.
    describe : callable
        Says what is waited for; called for the error only.
    grace : float
        Seconds without progress before the first nap.

    Raises
    ------
    CollectiveTimeoutError
        When `timeout` seconds have passed.
    """
    for _ in range(SPINS):
        if not (left := progress()):
            return
    start = moved = time.monotonic()
    nap = 0.0
    turn = 0
    while True:
        if nap:
            time.sleep(nap)
        else:
            os.sched_yield()
            turn += 1
        if in_flight:
            move_others(progress)
        before, left = left, progress()
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
            raise CollectiveTimeoutError(f"{describe()}: not finished after {timeout:g} s")
