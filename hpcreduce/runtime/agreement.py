"""From a communicator to its state.

Rules that hold here:

* The state of a communicator lives in an MPI attribute of it and is freed with it. Nothing depends on that happening.
* No environment variable is read after the first communicator is used, and ``HPCREDUCE_TABLE`` once at most, by rank 0.
"""

from __future__ import annotations

import os
from typing import Any

from hpcreduce.runtime import departure, dumps, launch
from hpcreduce.runtime.state import State, states

_running: list[int] = []  # the key of our attribute, while MPI runs
_kinds: set[type] = set()  # types known to be communicators without a state of their own


def state(comm: Any, timeout: float | None = None) -> State:
    """Return the state of `comm`; the first call on a communicator is collective.

    Raises
    ------
    TypeError
        `comm` is not a communicator.
    ValueError
        `comm` is COMM_NULL, freed, or an intercommunicator, or MPI is finalized.
    BrokenCommunicatorError, HpcreduceError
        An earlier call on it was cut off, or one is going on.
    """
    found: State | None = comm.Get_attr(_running[0]) if type(comm) in _kinds and _running and comm else None
    return opened(attached(comm) if found is None else found, comm, timeout)


def opened(found: State, comm: Any, timeout: float | None) -> State:
    """Return the state, ready for a call; opening it is collective. Raises as `state`."""
    if not found.opened or found.broken or found.closed:
        found.check()
        found.open(comm, timeout)
    return found


def attached(comm: Any) -> State:
    """Return the state of `comm`, and attach one first if it has none; not collective. Raises as `state`."""
    known: State | None = getattr(comm, "_state", None)
    if known is not None:  # an `Intracomm` must not touch a handle that was freed
        return known
    if type(comm) not in _kinds:
        _check_kind(comm)
    if not comm:
        raise ValueError("comm is COMM_NULL: it was freed, or this rank is not a member of the group it was made for")
    if not _running:
        _begin()
    found: State | None = comm.Get_attr(_running[0])
    if found is None:
        if comm.Is_inter():
            raise ValueError("comm is an intercommunicator; expected an intracommunicator (comm.Merge() makes one)")
        found = State(comm)
        comm.Set_attr(_running[0], found)
        states.add(found)
    return found


def _check_kind(comm: Any) -> None:
    if not hasattr(comm, "Is_inter") or isinstance(comm, type):
        raise TypeError(f"comm must be a communicator such as mpi4py.MPI.COMM_WORLD, found {type(comm).__name__}")
    if not hasattr(comm, "_state"):
        _kinds.add(type(comm))


def _begin() -> None:
    """Prepare for states; raise ValueError if MPI is not running."""
    from mpi4py import MPI

    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise ValueError("MPI is not running: it was finalized, or not initialized yet")
    launch.check(MPI.COMM_WORLD.size, os.environ)
    dumps.catch_signals()
    _running.append(MPI.Comm.Create_keyval(delete_fn=_close))
    at_end = MPI.Comm.Create_keyval(delete_fn=_close_all)
    MPI.COMM_SELF.Set_attr(at_end, None)  # deleting it is the first thing that MPI_Finalize does


def _close(comm: Any, keyval: int, found: State) -> None:
    found.close("comm was freed, or MPI finalized")
    if _running:  # MPI_Finalize frees the duplicates itself; MPICH cannot free one that a message waits on
        found.free()


def _close_all(comm: Any, keyval: int, nothing: None) -> None:
    _running.clear()
    departure.part()
    for found in list(states):
        found.close("MPI was finalized")
