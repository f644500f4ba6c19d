"""The one place where this package waits.

Waiting tests a few times, then yields the core between tests (ranks may outnumber cores), then sleeps in short naps
once nothing has moved for a while. It ends at a deadline, and a signal handler (Ctrl-C) runs between two tests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hpcreduce.errors import CollectiveTimeoutError

SPINS = 20
"""Tests before the first yield."""

GRACE = 300e-6
"""Seconds without progress before the first nap."""


def until(progress: Callable[[], int], timeout: float, describe: Callable[[], str]) -> None:
    """Call `progress` until it returns 0.

    Parameters
    ----------
    progress : callable
        Moves what can be moved and returns how many steps are left.
    timeout : float
        Seconds.
    describe : callable
        Says what is waited for; called for the error only.

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
        before, left = left, progress()
        if not left:
            return
        if turn % 8 and left == before:
            continue  # look at the clock now and then only; while napping `turn` stands still at a multiple of 8
        now = time.monotonic()
        if left != before:
            moved = now
        idle = now - moved
        nap = 0.0 if idle < GRACE else 50e-6 if idle < 1 else 500e-6
        if now - start > timeout:
            raise CollectiveTimeoutError(f"{describe()}: not finished after {timeout:g} s")
