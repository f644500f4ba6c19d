"""How this process leaves: it tells the other ranks, which may wait for it.

An early exit looks fine to mpirun, and MPI_Finalize does not tell the others either.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import traceback
from types import TracebackType
from typing import Any

from hpcreduce.runtime import dumps
from hpcreduce.runtime.inquiry import PARTING
from hpcreduce.runtime.state import on_failure, states

PATIENCE = 2.0
"""Seconds that a rank that failed gives the others to leave by themselves, before it ends the job."""

BRIEFLY = 0.3
"""The same where it cannot tell them anything, so that those who fail as well can say why."""

MOST = 8000
"""Characters of a traceback that are sent."""

_failure: list[str] = []  # the traceback of the exception that ends this process


def watch() -> None:
    """Tell the others when this process ends, or dies of an exception; without MPI nothing happens."""
    dumps.install(os.environ.get("HPCREDUCE_DUMP_DIR", ""))
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        if not hasattr(sys, "ps1"):  # at a prompt the process goes on
            _failure[:] = [describe(error)]
            with contextlib.suppress(Exception):
                say_goodbye()
                for note in on_failure:
                    note(f"{kind.__name__}: {error}".splitlines()[0])

    def leave() -> None:
        error = getattr(sys, "last_value", None)
        if error is not None and sys.excepthook is not hook and not _failure and not hasattr(sys, "ps1"):
            _failure[:] = [describe(error)]  # a hook of the user's own did not call ours
        with contextlib.suppress(Exception):
            part()
            if _failure:
                end_job()

    sys.excepthook = hook
    atexit.register(leave)


def describe(error: BaseException, skip: int = 0, inside: bool = False) -> str:
    """Return the traceback of an exception, without its middle if it is long.

    But for the `skip` outermost places; or, `inside` the calls that it is on its way out of, with those.
    """
    trace = error.__traceback__
    for _ in range(skip):
        trace = trace.tb_next if trace else None
    lines = traceback.format_exception(type(error), error, trace)
    if inside:
        lines[1:1] = traceback.format_stack(trace.tb_frame.f_back if trace else None)
    text = "".join(lines).rstrip()
    return text if len(text) <= MOST else f"{text[: MOST // 4]}\n...\n{text[-MOST // 2 :]}"


def tell(error: BaseException) -> None:
    """Tell the other ranks of all communicators that this one has failed."""
    if _mpi():
        for state in list(states):
            state.fail(describe(error))


def say_goodbye() -> None:
    """Tell the other ranks of all communicators that this one leaves, and why if it fails."""
    if not _mpi():
        return
    why = _failure[0] if _failure else ""
    for state in list(states):
        if state.opened and not state.closed and state.left != (why or "done"):
            state.left = why or "done"
            state.withdraw()
            state.control.poll()
            state.inquiry.leave(why, time.time())
            state.control.flush()


def part() -> None:
    """Say goodbye, and take that of the others, as far as they leave now: MPICH prints what nobody has taken."""
    say_goodbye()
    end = time.monotonic() + PARTING
    left = [state for state in list(states) if state.left == "done" and not state.closed and not state.broken]
    while time.monotonic() < end:
        for state in left:
            state.control.poll()
        left = [state for state in left if not state.inquiry.parted]
        if not left:
            break
        time.sleep(0.001)


def end_job(status: int = 1) -> None:
    """Return once all other ranks have left; end the job if they do not within `PATIENCE`: they may wait for us."""
    mpi = _mpi()
    if not mpi or mpi.COMM_WORLD.size == 1:
        return
    say_goodbye()
    told = any(state.opened for state in list(states))
    end = time.monotonic() + (PATIENCE if told else BRIEFLY)
    while not _alone(mpi.COMM_WORLD.size):
        if time.monotonic() > end:
            for stream in sys.stdout, sys.stderr:
                with contextlib.suppress(Exception):
                    stream.flush()
            mpi.COMM_WORLD.Abort(status)
        time.sleep(0.005)


def _alone(size: int) -> bool:
    """Whether all other ranks of COMM_WORLD are known to have left."""
    gone: set[int] = set()
    for state in list(states):
        if state.opened and not state.closed:
            state.control.poll()
            gone.update(state.members[rank] for rank in state.inquiry.gone)
    return len(gone) >= size - 1


def _mpi() -> Any:
    """Return the module ``mpi4py.MPI`` while MPI runs."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    return mpi if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() else None
