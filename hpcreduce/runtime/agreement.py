"""What the ranks of a communicator share: a private duplicate of it, a sequence number, plans, and message tags.

Rules that hold here:

* The state of a communicator lives in an MPI attribute of it and is freed with it. Nothing depends on that happening.
* Every message's tag comes from `tag`. Ranks that disagree about a call, or about which call it is, do not match.
* No environment variable is read after the state is made.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.errors import BrokenCommunicatorError, HpcreduceError
from hpcreduce.runtime import wait
from hpcreduce.runtime.stream import Stream
from hpcreduce.selection import Choice

DEFAULT_TIMEOUT = 600.0
"""Seconds that a collective may take, unless ``timeout=`` or ``HPCREDUCE_TIMEOUT`` says otherwise."""

CALLS = 64
"""Kinds of call that are kept prepared per communicator, the least recently used is dropped."""

_kept_alive: list[Any] = []  # requests and buffers of interrupted operations: the library may still write to them
_keyvals: list[int] = []


class Call(NamedTuple):
    """One kind of call, prepared: the same for every call of this shape, dtype, op and algorithm.

    Attributes
    ----------
    work, result : numpy.dtype
    choice : Choice
    fingerprint : int
        32 bits of what the ranks must agree on.
    stream : Stream or None
        None where the library's own call runs it.
    text : str
        The call in words.
    """

    work: Any
    result: Any
    choice: Choice
    fingerprint: int
    stream: Stream | None
    text: str

    def __str__(self) -> str:
        return self.text

    def stale(self) -> bool:
        """Whether the stream is in flight, or the table has another algorithm under this name by now."""
        row = self.choice.algorithm
        return (self.stream is not None and self.stream.busy) or ALGORITHMS.get(row.name) is not row


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
    """

    def __init__(self, comm: Any) -> None:
        self.timeout = default_timeout()
        self.broken = ""
        self.calls: OrderedDict[Hashable, Call] = OrderedDict()
        self.sequence = 0
        self.plans = 0  # persistent plans made so far
        self.lock = threading.Lock()  # held by the one thread that is in a call
        self.rank, self.size = comm.rank, comm.size

    def open(self, comm: Any, timeout: float | None) -> None:
        """Duplicate `comm` and exchange the node map; collective."""
        from mpi4py import MPI

        self.comm, request = comm.Idup()
        self._wait(request, "MPI_Comm_idup", timeout)
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        upper_bound: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)  # Open MPI tells it of this communicator only
        self._mask = (1 << ((upper_bound + 1).bit_length() - 1)) - 1
        self.nodes = self._node_map(MPI.Get_processor_name(), timeout)

    def _node_map(self, host: str, timeout: float | None) -> tuple[int, ...]:
        mine = hashlib.blake2b(host.encode(), digest_size=8).digest()
        hosts = bytearray(8 * self.size)
        request = self.comm.Iallgather(mine, hosts)
        self._wait(request, "exchange of host names", timeout, mine, hosts)
        names = [bytes(hosts[8 * rank : 8 * rank + 8]) for rank in range(self.size)]
        known = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return tuple(known[name] for name in names)

    def call(self, key: Hashable, prepare: Callable[[], Call]) -> Call:
        """Return what is kept under `key` if it is still true and not in use, or prepare it."""
        call = self.calls.get(key)
        if call is None or call.stale():
            call = self.calls[key] = prepare()
            if len(self.calls) > CALLS:
                self.calls.popitem(last=False)
        self.calls.move_to_end(key)
        return call

    def next_tag(self, fingerprint: int) -> int:
        """Return the tag of the messages of the next collective, which all ranks should describe alike."""
        self.sequence += 1
        return self.tag(fingerprint, self.sequence)

    def tag(self, fingerprint: int, sequence: int) -> int:
        """Return the tag of the messages of one collective."""
        return tag(fingerprint, sequence, self._mask)

    def check(self) -> None:
        """Raise if a call is going on, or one was cut off."""
        if self.lock.locked():
            raise HpcreduceError(
                f"rank {self.rank}: a call on this communicator is going on, in another thread or around this one; "
                "use a communicator per thread (comm.Dup())"
            )
        if self.broken:
            raise BrokenCommunicatorError(
                f"rank {self.rank}: this communicator cannot be used any more, since an earlier operation was "
                f"interrupted ({self.broken}); go on with {self._way_out()}"
            )

    def _way_out(self) -> str:
        if hasattr(self, "nodes"):
            return "a duplicate, made by all ranks (comm.Dup())"
        return "a duplicate of another communicator: MPI is still busy duplicating this one"

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the communicator during a call, or raise as `check`."""
        self.check()
        with self.lock:
            yield

    def _wait(self, request: Any, what: str, timeout: float | None, *buffers: Any) -> None:
        """Wait for a request that opens the communicator."""
        try:
            wait.until(
                lambda: 0 if request.Test() else 1,
                self.timeout if timeout is None else timeout,
                lambda: f"rank {self.rank}: first use of the communicator ({what}): waiting for other ranks",
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
        `comm` is COMM_NULL, freed, or an intercommunicator.
    BrokenCommunicatorError, HpcreduceError
        An earlier call on it was cut off, or one is going on.
    """
    found = comm.Get_attr(_keyvals[0]) if _keyvals and _usable(comm) else None
    if found is None:
        found = _make(comm, timeout)
    else:
        found.check()
    return found


def _usable(comm: Any) -> bool:
    if not hasattr(comm, "Is_inter") or isinstance(comm, type):
        raise TypeError(f"comm must be a communicator such as mpi4py.MPI.COMM_WORLD, found {type(comm).__name__}")
    if not comm:
        raise ValueError("comm is COMM_NULL: it was freed, or this rank is not a member of the group it was made for")
    return True


def _make(comm: Any, timeout: float | None) -> State:
    from mpi4py import MPI

    _usable(comm)
    if comm.Is_inter():
        raise ValueError("comm is an intercommunicator; expected an intracommunicator (comm.Merge() makes one)")
    if not _keyvals:
        _keyvals.append(MPI.Comm.Create_keyval(delete_fn=_free))
    made = State(comm)
    with made.lock:
        comm.Set_attr(_keyvals[0], made)  # before it is open: a state that broke meanwhile stays, and says so
        try:
            made.open(comm, timeout)
        except BaseException as error:
            made.retire(error)
            raise
    return made


def _free(comm: Any, keyval: int, found: State) -> None:
    found.calls.clear()
    if not found.broken:
        found.comm.Free()


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
