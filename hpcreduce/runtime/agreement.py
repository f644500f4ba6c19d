"""What the ranks of a communicator share: a private duplicate of it, a sequence number, plans, and message tags.

Rules that hold here:

* The state of a communicator lives in an MPI attribute of it and is freed with it. Nothing depends on that happening.
* Every message's tag comes from `tag`. Ranks that disagree about a call, or about which call it is, do not match.
* No environment variable is read after the state is made.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.errors import BrokenCommunicatorError, HpcreduceError
from hpcreduce.runtime import wait
from hpcreduce.runtime.engines import Engine, Engines
from hpcreduce.runtime.stream import Stream
from hpcreduce.selection import Choice

DEFAULT_TIMEOUT = 600.0
"""Seconds that a collective may take, unless ``timeout=`` or ``HPCREDUCE_TIMEOUT`` says otherwise."""

CALLS = 64
"""Kinds of call that are kept prepared per communicator, the least recently used is dropped."""

_kept_alive: list[Any] = []  # requests and buffers of interrupted operations: the library may still write to them
_running: list[int] = []  # the key of our attribute, while MPI runs
_kinds: set[type] = set()  # types known to be communicators without a state of their own
_states: weakref.WeakSet[State] = weakref.WeakSet()


class Call(NamedTuple):
    """One kind of call, prepared: the same for every call of this shape, dtype, op and algorithm.

    Attributes
    ----------
    key : hashable
        What is kept under this key stands for all calls of this kind.
    work, result : numpy.dtype
    choice : Choice
    fingerprint : int
        32 bits of what the ranks must agree on.
    stream : Stream or None
        None where the library's own call runs it.
    op : mpi4py.MPI.Op or None
        What that call is given; `None` for an operation of the user's own, which belongs to one call only.
    text : str
        The call in words.
    codec : Codec or None
        Where messages have another type than what is reduced in.
    plan : Plan or None
        For small arrays that the library reduces: a persistent plan that takes all calls of this kind in turn.
    """

    key: Hashable
    work: Any
    result: Any
    choice: Choice
    fingerprint: int
    stream: Stream | None
    op: Any
    text: str
    codec: Any = None
    plan: Any = None

    def __str__(self) -> str:
        return self.text

    def stale(self) -> bool:
        """Whether the stream is in flight, or the table has another algorithm under this name by now."""
        row = self.choice.algorithm
        return self.stream is not None and (self.stream.busy or ALGORITHMS.get(row.name, row) is not row)


class State:
    """What belongs to one communicator.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
        The private duplicate; no message of ours travels on the user's own.
    rank, size : int
    nodes : tuple of int
        Node of each rank, numbered in order of first appearance.
    timeout : float
        Default time-out in seconds.
    in_place : object
        ``MPI.IN_PLACE``.
    opened : bool
        The communicator is duplicated: all ranks have come to its first call.
    closed : str
        Why it is gone: it was freed, or MPI was finalized. Empty while it can be used.
    plans : int
        Persistent plans made so far.
    engines : Engines
        The library's persistent requests that plans use in turn.
    holders : set
        What holds requests of the library that must be freed before MPI ends; has ``release()``.
    leaky : bool
        The library does not give back what a persistent request held.
    """

    def __init__(self, comm: Any) -> None:
        self.timeout = default_timeout()
        self.opened, self.closed, self.broken = False, "", ""
        self.calls: OrderedDict[Hashable, Call] = OrderedDict()
        self.sequence = self.plans = 0
        self.holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lock = threading.Lock()  # held by the one thread that is in a call
        self.rank, self.size = comm.rank, comm.size

    def open(self, comm: Any, timeout: float | None) -> None:
        """Duplicate `comm` and exchange the node map; collective."""
        from mpi4py import MPI

        self.in_place, self._band = MPI.IN_PLACE, MPI.BAND
        self.leaky = MPI.Get_library_version().startswith("Open MPI")
        plain = MPI.Intracomm(comm)  # a duplicate has the type of what is duplicated
        self.enter()
        try:
            self.comm, request = plain.Idup()
            self._wait(request, "first use of the communicator (MPI_Comm_idup)", timeout)
            self.comm.Set_errhandler(MPI.ERRORS_RETURN)
            self.engines = Engines(self.comm, self.in_place)
            upper_bound: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)  # Open MPI tells it of this communicator only
            self._mask = (1 << ((upper_bound + 1).bit_length() - 1)) - 1
            self.nodes = self._node_map(MPI.Get_processor_name(), timeout)
            self.opened = True
        except BaseException as error:
            self.retire(error)
            raise
        finally:
            self.lock.release()

    def engine(self, count: int, dtype: Any, op: Any) -> Engine:
        """Return an engine that no plan uses on any rank; collective."""
        return self.engines.borrow(count, dtype, op, self._all_of)

    def _all_of(self, mask: int) -> int:
        """Return the bits that are set on every rank; collective."""
        bits = np.array([mask])
        self._wait(self.comm.Iallreduce(self.in_place, bits, self._band), "a new plan", None, bits)
        return int(bits[0])

    def close(self, reason: str) -> None:
        """Refuse new calls; operations in flight may still be waited for."""
        self.closed = reason
        for holder in list(self.holders):
            holder.release()
        self.calls.clear()
        self._free_engines()

    def free(self) -> None:
        """Give the duplicate back, once nothing is in flight and unless messages of a failed operation may be."""
        self._free_engines()
        if self.opened and not self._busy() and not self.broken:
            self.opened = False
            self.comm.Free()

    def _free_engines(self) -> None:
        if self.opened and not self._busy() and not self.broken:
            self.engines.free()

    def _busy(self) -> bool:
        return any(operation.state is self for operation in wait.in_flight)

    def _node_map(self, host: str, timeout: float | None) -> tuple[int, ...]:
        mine = hashlib.blake2b(host.encode(), digest_size=8).digest()
        hosts = bytearray(8 * self.size)
        request = self.comm.Iallgather(mine, hosts)
        self._wait(request, "first use of the communicator (exchange of host names)", timeout, mine, hosts)
        names = [bytes(hosts[8 * rank : 8 * rank + 8]) for rank in range(self.size)]
        known = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return tuple(known[name] for name in names)

    def call(self, key: Hashable) -> Call | None:
        """Return what is kept under `key`, if it is still true and not in use."""
        call = self.calls.get(key)
        return None if call is None or (call.stream is not None and call.stale()) else call

    def used(self, call: Call) -> Call:
        """Note that a call that is kept is made now: by all ranks, or they would not drop the same one."""
        self.calls.move_to_end(call.key)
        return call

    def keep(self, call: Call) -> Call:
        """Keep a prepared call that is made now, and drop the one that was not made for longest if they are many."""
        self.calls[call.key] = call
        if len(self.calls) > CALLS:
            self.calls.popitem(last=False)
        return self.used(call)

    def next_tag(self, fingerprint: int) -> int:
        """Return the tag of the messages of the next collective, which all ranks should describe alike."""
        self.sequence += 1
        return self.tag(fingerprint, self.sequence)

    def tag(self, fingerprint: int, sequence: int) -> int:
        """Return the tag of the messages of one collective."""
        return tag(fingerprint, sequence, self._mask)

    def check(self) -> None:
        """Raise if the communicator is gone, a call is going on, or one was cut off."""
        if self.closed:
            raise ValueError(f"rank {self.rank}: {self.closed}")
        if self.lock.locked():
            raise self._in_use()
        if self.broken:
            raise self._is_broken()

    def enter(self) -> None:
        """Claim the communicator for a call; whoever claims it releases `lock`."""
        if not self.lock.acquire(False):
            raise self._in_use()
        if self.broken:
            self.lock.release()
            raise self._is_broken()

    def _in_use(self) -> HpcreduceError:
        return HpcreduceError(
            f"rank {self.rank}: a call on this communicator is going on, in another thread or around this one; "
            "use a communicator per thread (comm.Dup())"
        )

    def _is_broken(self) -> BrokenCommunicatorError:
        way_out = (
            "a duplicate, made by all ranks (comm.Dup())"
            if self.opened
            else "a duplicate of another communicator: MPI is still busy duplicating this one"
        )
        return BrokenCommunicatorError(
            f"rank {self.rank}: this communicator cannot be used any more, since an earlier operation was "
            f"interrupted ({self.broken}); go on with {way_out}"
        )

    def _wait(self, request: Any, what: str, timeout: float | None, *buffers: Any) -> None:
        """Wait for a request of this class's own."""
        try:
            wait.until(
                lambda: 0 if request.Test() else 1,
                self.timeout if timeout is None else timeout,
                lambda: f"rank {self.rank}: {what}: waiting for other ranks",
                wait.BLIND_GRACE,
            )
        except BaseException as error:
            self.retire(error, request, buffers)
            raise

    def retire(self, error: BaseException, *alive: Any) -> None:
        """Refuse all further calls, since messages of the failed one may be under way; keep `alive` what they use."""
        _kept_alive.append(alive)
        self.calls.clear()
        self.broken = str(error) or type(error).__name__


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
        _states.add(found)
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
    _running.append(MPI.Comm.Create_keyval(delete_fn=_close))
    at_end = MPI.Comm.Create_keyval(delete_fn=_close_all)
    MPI.COMM_SELF.Set_attr(at_end, None)  # deleting it is the first thing that MPI_Finalize does


def _close(comm: Any, keyval: int, found: State) -> None:
    found.close("comm was freed, or MPI finalized")
    found.free()


def _close_all(comm: Any, keyval: int, nothing: None) -> None:
    _running.clear()
    for found in list(_states):
        found.close("MPI was finalized")


def fingerprint(*description: Hashable) -> int:
    """Return 32 bits of what a call is."""
    return zlib.crc32(repr(description).encode())


def tag(fingerprint: int, sequence: int, mask: int) -> int:
    """Return the tag of every message of the collective number `sequence`; `mask` keeps it below TAG_UB."""
    return (fingerprint ^ (sequence * 0x9E3779B1)) & mask


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
