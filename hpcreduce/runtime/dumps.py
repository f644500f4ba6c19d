"""Dumps of the flight recorders into ``HPCREDUCE_DUMP_DIR``: on an error, on SIGUSR1, and on SIGTERM.

A rank inside a call of C, such as a plain MPI call, dumps when it comes back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from typing import Any

from hpcreduce.runtime import recorder
from hpcreduce.runtime.state import State, on_failure, states

_place: list[Any] = []  # folder, rank and size in COMM_WORLD, once it is known


def install(folder: str, rank: int, size: int) -> None:
    """Prepare to write dumps to `folder`, if it is not empty; signals are caught in the main thread only."""
    if not folder or _place:
        return
    _place.extend([os.path.abspath(folder), rank, size])
    on_failure.append(write)
    if threading.current_thread() is threading.main_thread():
        for number in signal.SIGUSR1, signal.SIGTERM:
            _chain(number)


def _chain(number: signal.Signals) -> None:
    """Dump at this signal, and then do what was to be done before."""
    previous = signal.getsignal(number)

    def handle(received: int, frame: Any) -> None:
        write(number.name)
        if callable(previous):
            previous(received, frame)
        elif number == signal.SIGTERM and previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(number, handle)


def write(reason: str) -> None:
    """Write this rank's dump, if a folder is known; a dump that cannot be written is no error of the program."""
    if not _place:
        return
    folder, rank, size = _place
    now = time.time()
    document = {
        "version": recorder.VERSION,
        "rank": rank,
        "size": size,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": now,
        "reason": reason,
        "stack": recorder.stack(lambda module: module in (__name__, recorder.__name__)),
        "communicators": [_communicator(each, now) for each in list(states) if each.identity],
    }
    path = os.path.join(folder, f"rank-{rank}.json")
    partial = f"{path}.{os.getpid()}.part"
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        with open(partial, "w") as file:
            json.dump(document, file, indent=1)
        os.replace(partial, path)


def _communicator(state: State, now: float) -> dict[str, Any]:
    offset = now - time.monotonic()
    pending = {entry.order for entry in state.recorder.pending}
    waiting = state.waiting()
    return {
        "id": state.identity,
        "rank": state.rank,
        "members": list(state.members),
        "broken": state.broken,
        "calls": [
            {
                "order": list(entry.order),
                "what": entry.what,
                "fingerprint": entry.fingerprint,
                "at": entry.at,
                "started": entry.started + offset,
                "pending": entry.order in pending,
                "waiting": waiting if entry.order in pending else "",
            }
            for entry in state.recorder.all()
        ],
    }
