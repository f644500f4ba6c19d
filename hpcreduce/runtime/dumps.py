"""Dumps of the flight recorders into ``HPCREDUCE_DUMP_DIR``: on an error, on SIGUSR1, and on SIGTERM.

A rank inside a call of C, such as a plain MPI call, dumps when it comes back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from hpcreduce.runtime import launch, recorder
from hpcreduce.runtime.state import State, on_failure, states

_folder: list[str] = []  # once it is known
_handlers: dict[int, Any] = {}  # ours
_failed: list[str] = []  # the error of which a dump tells: what follows from it must not replace it


def install(folder: str) -> None:
    """Prepare to write dumps to `folder`, if it is not empty; signals are caught in the main thread only.

    A dump of an earlier job, which would be taken for this one's, is removed.
    """
    if not folder or _folder:
        return
    _folder.append(os.path.abspath(folder))
    on_failure.append(write)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(_folder[0], f"rank-{launch.rank(os.environ)}.json"))
    catch_signals()


def catch_signals() -> None:
    """Dump at signals too, if a folder is known, before what the program has set up to be done then."""
    if _folder and threading.current_thread() is threading.main_thread():
        for number in signal.SIGUSR1, signal.SIGTERM:
            if signal.getsignal(number) is not _handlers.get(number):
                _chain(number)


def _whoami() -> tuple[int, int]:
    """Return rank and size of COMM_WORLD, by the launcher's word before MPI runs."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
    rank = launch.rank(os.environ)
    return rank, max([rank + 1, *(len(each.members) for each in list(states))])


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

    _handlers[number] = handle
    signal.signal(number, handle)


def write(reason: str) -> None:
    """Write this rank's dump, if a folder is known; a dump that cannot be written is no error of the program."""
    if not _folder or (_failed and reason != signal.SIGUSR1.name):
        return
    if not reason.startswith("SIG"):
        _failed.append(reason)
    (rank, size), folder = _whoami(), _folder[0]
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
        "broken": state.broken.partition("\n")[0],
        "calls": [
            {
                "order": list(entry.order),
                "what": recorder.short(entry.what),
                "fingerprint": entry.fingerprint,
                "at": entry.at,
                "started": entry.started + offset,
                "pending": entry.order in pending,
                "waiting": waiting if entry.order in pending else "",
            }
            for entry in state.recorder.all()
        ],
    }
