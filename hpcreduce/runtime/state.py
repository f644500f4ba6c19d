"""What the ranks of a communicator share: private duplicates of it, prepared calls, message tags, and its failures.

Rules that hold here:

* Every message's tag comes from `Recorder.token`: ranks that disagree about a call, or one before it, do not match.
* Data travels on one duplicate, control messages on another. A failure breaks both; `State.recover` makes new ones.
* No environment variable is read after the communicator is opened.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from hpcreduce import lookup
from hpcreduce.algorithms.hierarchical import counterparts, layout
from hpcreduce.errors import BrokenCommunicatorError, CollectiveTimeoutError, HpcreduceError, PeerError, TableError
from hpcreduce.runtime import failures, memory, rooms, tablefiles, wait
from hpcreduce.runtime.arrays import Arrays
from hpcreduce.runtime.calls import Call
from hpcreduce.runtime.control import Control
from hpcreduce.runtime.engines import Engine
from hpcreduce.runtime.inquiry import Inquiry, named
from hpcreduce.runtime.pool import Pool
from hpcreduce.runtime.recorder import Recorder

CALLS = 64
"""Kinds of call that are kept prepared per communicator, the least recently used is dropped."""

SETTLE = 0.5e-3
"""Seconds between two looks for a verdict."""

_kept_alive: list[Any] = []  # requests and buffers of interrupted operations: the library may still write to them
_numbers = itertools.count(1)  # of the communicators that this rank opens
states: weakref.WeakSet[State] = weakref.WeakSet()  # of all communicators of this process
on_failure: list[Callable[[str], None]] = []  # called with a line that says what happened


class State:
    """What belongs to one communicator.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
        The private duplicate for data; no message of ours travels on the user's own.
    rank, size : int
    members : tuple of int
        The rank in COMM_WORLD of each rank.
    nodes : tuple of int
        Node of each rank, numbered in order of first appearance.
    tables : tuple of Table
        What was measured at this place, as rank 0 has read it; the same on all ranks.
    timeout : float
        Default time-out in seconds.
    in_place : object
        ``MPI.IN_PLACE``.
    identity : str
        The same on all ranks, and unlike that of any other communicator that they have.
    opened : bool
        The communicator is duplicated: all ranks have come to its first call.
    closed : str
        Why it is gone: it was freed, or MPI was finalized. Empty while it can be used.
    broken : str
        Why it cannot be used any more. Empty while it can.
    frozen : bool
        This rank has given up an operation, and waits for the verdict on it.
    thread : int
        The thread that used it last.
    recorder : Recorder
    engines : Pool
        The library's persistent requests.
    rooms : Pool
        Node-shared memory in which calls and plans reduce.
    mates : list of int
        The ranks of this node.
    counterparts : list of int
        The ranks at the same place in their nodes, if there are several nodes with equally many ranks, at least two.
    hosted : bool
        All hosts have memory for rooms.
    arrays : Arrays
        The node-shared arrays that the caller made.
    holders : set
        What holds requests of the library that must be freed before MPI ends; has ``release()``.
    """

    def __init__(self, comm: Any) -> None:
        self.timeout = wait.default_timeout()
        self.opened, self.frozen, self.closed, self.broken = False, False, "", ""
        self.calls: OrderedDict[Hashable, Call] = OrderedDict()
        self.recorder = Recorder()
        self.holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lock = threading.Lock()  # held by the one thread that is in a call
        self.rank, self.size = comm.rank, comm.size
        self.thread = threading.get_ident()
        self.identity = ""
        self.members: tuple[int, ...] = (0,)
        self.hosted, self.arrays = False, Arrays()
        self._untold = False  # a verdict that no call has raised yet
        self._recoveries = itertools.count(1)
        self.left = ""  # what the others were told when this rank left

    def open(self, comm: Any, timeout: float | None) -> None:
        """Duplicate `comm`, exchange the node map, and learn the measured tables; collective."""
        from mpi4py import MPI

        plain = MPI.Intracomm(comm)  # a duplicate has the type of what is duplicated
        self.enter()
        try:
            world = MPI.COMM_WORLD
            self.members = tuple(MPI.Group.Translate_ranks(plain.group, None, world.group))
            self.identity = f"first use by {named(self.members)}"  # for dumps, until there is a better one
            self.recorder.begin(0, "first use of the communicator")
            self._duplicate(plain, "first use of the communicator", timeout)
            self.recorder = Recorder()
            upper_bound: Any = world.Get_attr(MPI.TAG_UB)  # Open MPI tells it of this communicator only
            self._mask = (1 << ((upper_bound + 1).bit_length() - 1)) - 1
            self._exchange(MPI.Get_processor_name(), MPI.Get_library_version(), timeout)
            self._listen()
            self.opened = True
        except TableError:  # on all ranks, and nothing is under way: the next call may try again
            self.comm.Free()
            self._control_comm.Free()
            raise
        except BaseException as error:
            self.retire(error)
            raise
        finally:
            self.lock.release()

    def _duplicate(self, comm: Any, what: str, timeout: float | None) -> None:
        """Make the two private duplicates; collective."""
        from mpi4py import MPI

        self.in_place, self.library_error, self.status = MPI.IN_PLACE, MPI.Exception, MPI.Status()
        self.comm, request = comm.Idup()
        self._wait(request, f"{what} (MPI_Comm_idup)", timeout)
        self._control_comm, request = comm.Idup()
        self._wait(request, f"{what} (MPI_Comm_idup)", timeout)
        for duplicate in self.comm, self._control_comm:
            duplicate.Set_errhandler(MPI.ERRORS_RETURN)
        self.engines = Pool(lambda key, op: Engine(self.comm, self.in_place, key, op))
        self.rooms = Pool(self._furnish)

    def _exchange(self, host: str, version: str, timeout: float | None) -> None:
        """Learn the nodes of all ranks and the measured tables, and agree on an identity; collective."""
        library = lookup.family(version)
        offer = tablefiles.offer(library, self.size) if self.rank == 0 else b""
        numbers = next(_numbers), memory.usable(), len(offer)
        mine = hashlib.blake2b(host.encode(), digest_size=8).digest()
        mine += b"".join(int(number).to_bytes(8, "little") for number in numbers)
        theirs = self._gather(mine, "first use of the communicator (exchange of host names)", timeout)
        self.nodes = node_map([each[:8] for each in theirs])
        self.identity = f"{self.members[0]}.{int.from_bytes(theirs[0][8:16], 'little')}"
        self.hosted = all(each[16] for each in theirs)
        self.mates = layout(self.rank, self.size, self.nodes)[0]
        self.counterparts = counterparts(self.rank, self.size, self.nodes)
        told = bytearray(offer or int.from_bytes(theirs[0][24:], "little"))
        if told:
            request = self.comm.Ibcast(told, 0)
            self._wait(request, "first use of the communicator (exchange of the selection table)", timeout, told)
        place = lookup.Place(library, self.size, len(set(self.nodes)))
        self.tables = lookup.placed(tablefiles.accept(bytes(told)), place)

    @property
    def shareable(self) -> bool:
        """Whether all ranks are on one node, which has memory for rooms."""
        return self.hosted and len(self.mates) == self.size

    def _gather(self, mine: bytes, what: str, timeout: float | None) -> list[bytes]:
        """Return the bytes of all ranks; collective."""
        theirs, length = bytearray(len(mine) * self.size), len(mine)
        self._wait(self.comm.Iallgather(mine, theirs), what, timeout, mine, theirs)
        return [bytes(theirs[length * rank : length * (rank + 1)]) for rank in range(self.size)]

    def share(self, nbytes: int, what: str, timeout: float | None = None) -> list[Any]:
        """Make memory that this node's ranks share, and return that of each of them.

        Collective; all ranks must have agreed on it.

        Raises
        ------
        memory.NoRoomError
            On every rank, if any has none.
        """
        name, own = memory.create(nbytes)
        try:
            names = self._gather(name, what, timeout)
            memories = [own if rank == self.rank else memory.attach(names[rank], nbytes) for rank in self.mates]
            done = self._gather(bytes([None not in memories]), what, timeout)
        finally:
            memory.remove(name)
        without = [rank for rank, each in enumerate(names) if not any(each)]
        if without or not all(map(any, done)):
            without = without or [rank for rank, each in enumerate(done) if not any(each)]
            raise memory.NoRoomError(
                f"rank {self.rank}: {what}: {named(without)} cannot share {nbytes} bytes of memory in {memory.FOLDER}; "
                "free some there, or give it more room"
            )
        return memories

    def _furnish(self, stage: int) -> rooms.Room:
        try:
            return rooms.Room(self.share(rooms.size_of(stage), "memory for a sum in node-shared memory"), stage)
        except memory.NoRoomError:
            self.hosted = False
            self.calls.clear()
            raise

    def _listen(self) -> None:
        self.inquiry = Inquiry(self.rank, self.size, self.recorder, self._circumstances)
        self.control = Control(self._control_comm, self.inquiry, self.identity)

    def recover(self, timeout: float | None) -> None:
        """Make new private duplicates in place of those that a failure has spoilt; collective.

        The new ones are made from the duplicate for control messages, on which nothing but small messages was sent.

        Raises
        ------
        ValueError
            The communicator is gone.
        BrokenCommunicatorError
            It failed when it was duplicated.
        PeerError
            A rank has left.
        CollectiveTimeoutError
            Not all ranks came.
        """
        if self.closed or not self.opened:
            self.check()
        if not self.lock.acquire(False):
            raise failures.in_use(self.rank)
        try:
            self.condemn("recover() was called")
            self._untold = False
            self.calls.clear()
            _kept_alive.append((self.comm, self._control_comm, self.engines, self.control, self.rooms))
            self._duplicate(self._control_comm, "recover()", timeout)
            self.recorder = Recorder()
            self.identity = f"{self.identity.partition('+')[0]}+{next(self._recoveries)}"
            self._listen()
            self.frozen, self.broken = False, ""
        finally:
            self.lock.release()

    def close(self, reason: str) -> None:
        """Refuse new calls; operations in flight may still be waited for."""
        self.closed = reason
        for holder in list(self.holders):
            holder.release()
        self.calls.clear()
        self.arrays.clear()
        self._free_engines()

    def free(self) -> None:
        """Give the duplicates back, once nothing is in flight and unless messages of a failed operation may be."""
        self._free_engines()
        if self.opened and not self._busy() and not self.broken:
            self.opened = False
            self.control.poll()
            _kept_alive.extend(self.control.unsent())
            self.comm.Free()
            self._control_comm.Free()

    def _free_engines(self) -> None:
        if self.opened and not self._busy() and not self.broken:
            for engine in self.engines.drain():
                engine.request.Free()
            list(self.rooms.drain())

    def _busy(self) -> bool:
        return any(operation.state is self for operation in wait.in_flight)

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

    def tag(self, token: int) -> int:
        """Return the tag of the messages of a call, from the number that all ranks should share."""
        tag: int = token & self._mask
        return tag

    def check(self) -> None:
        """Raise if the communicator is gone, a call is going on, or one failed."""
        if self.closed:
            raise ValueError(f"rank {self.rank}: {self.closed}")
        if self.lock.locked():
            raise failures.in_use(self.rank)
        if self.broken:
            raise self._failure()

    def enter(self) -> None:
        """Claim the communicator for a call; whoever claims it releases `lock`."""
        if not self.lock.acquire(False):
            raise failures.in_use(self.rank)
        self.thread = threading.get_ident()
        if self.broken or self.frozen:
            try:
                if self.frozen and not self.broken:
                    attend(self)
                raise self._failure()
            finally:
                self.lock.release()

    def _failure(self) -> HpcreduceError:
        """Return what a call raises after a failure: the verdict once, if no call has raised it yet."""
        if self._untold and self.inquiry.verdict:
            self._untold = False
            return failures.judged(self.rank, self.waiting(), self.inquiry.verdict)
        if not self.opened:
            return failures.never_opened(self.rank, self.broken)
        return failures.broken(self.rank, self.broken)

    def condemn(self, reason: str = "") -> None:
        """End all operations here: there is a verdict, or a `reason` of this rank's own."""
        verdict = self.inquiry.verdict
        if not self.broken:
            self.broken = verdict.text if verdict else reason
            self._untold = verdict is not None
            if verdict:
                for note in on_failure:
                    note(failures.summary(verdict))
        for operation in [operation for operation in wait.in_flight if operation.state is self]:
            error = failures.judged(self.rank, "", verdict) if verdict else BrokenCommunicatorError(reason)
            operation.fail(error, tell=False)

    def give_up(self, reason: str, detail: str) -> None:
        """Touch no data any more, since something is wrong or it has lasted too long; the verdict follows."""
        self.inquiry.join(reason, time.monotonic(), detail)
        self._freeze()

    def _freeze(self) -> None:
        self.frozen = True
        self.withdraw()

    def withdraw(self) -> None:
        """Let no other rank rely on what is in flight here."""
        for operation in list(wait.in_flight):
            if operation.state is self:
                operation.withdraw()

    def listen(self, peers: Iterable[int], concerned: bool) -> None:
        """Take and answer control messages."""
        self.control.look(peers, concerned)
        if self.inquiry.frozen and not self.frozen:
            self._freeze()
        if self.inquiry.verdict and not self.broken:
            self.condemn()

    def glance(self) -> None:
        """Raise if a verdict has come, without waiting for one."""
        if self.left:
            self.left = ""
            self.inquiry.come_back()
            self.control.flush()
        self.control.poll()
        if self.inquiry.verdict:
            attend(self)

    def waiting(self) -> str:
        """Return what the operation waits for that the thread of this communicator waits for, in words."""
        waiter = wait.blocked.get(self.thread)
        return waiter.where() if waiter is not None and waiter.state is self else ""

    def fail(self, text: str) -> None:
        """Tell all ranks that this one, which raises an error of its own, has failed: they raise PeerError."""
        if self.opened and not self.closed:
            if self.inquiry.verdict is None:
                self.inquiry.fail(f"rank {self.rank} has failed:\n{text}")
                self.control.flush()
                self.condemn()
            self._untold = False

    def _circumstances(self) -> tuple[str, str]:
        """Return what this rank waits for here, and what elsewhere."""
        waiter = wait.blocked.get(self.thread)
        if waiter is None or waiter.state is self:
            return self.waiting(), ""
        return "", f"{waiter}, {waiter.where()}"

    def _wait(self, request: Any, what: str, timeout: float | None, *buffers: Any) -> None:
        """Wait for a request of this class's own."""
        try:
            wait.until(_Opening(self, request, what), self.timeout if timeout is None else timeout, wait.BLIND_GRACE)
        except BaseException as error:
            self.retire(error, request, buffers)
            raise

    def retire(self, error: BaseException, *alive: Any) -> None:
        """Refuse all further calls, since messages of the failed one may be under way; keep `alive` what they use."""
        _kept_alive.append(alive)
        self.calls.clear()
        self.broken = self.broken or str(error) or type(error).__name__


class _Opening:
    """A request of a state's own that is waited for."""

    def __init__(self, state: State, request: Any, what: str) -> None:
        self.state, self.request, self.what = state, request, what

    def __str__(self) -> str:
        return self.what

    def where(self) -> str:
        """Return what is waited for, in words."""
        return "waiting for other ranks"

    def step(self) -> int:
        """Test the request."""
        return 0 if self.request.Test() else 1

    def look(self) -> None:
        """Answer on other communicators; a rank that left this one, as far as it was open, does not come."""
        attend(None)
        state = self.state
        for each in list(states):
            if each.opened and not each.closed:
                each.control.poll()
                for rank, farewell in each.inquiry.gone.items():
                    if each.members[rank] in state.members:
                        lost = state.members.index(each.members[rank])
                        raise PeerError(f"rank {state.rank}: {self.what}: rank {lost} has left\n{farewell['why']}")

    def withdraw(self) -> None:
        """Nobody relies on it."""

    def expire(self, timeout: float) -> None:
        """Raise."""
        raise CollectiveTimeoutError(
            f"rank {self.state.rank}: {self.what}: waiting for other ranks: not finished after {timeout:g} s"
        )


def attend(own: State | None, peers: Iterable[int] = ()) -> None:
    """Take and answer control messages on the communicators of this thread; raise the verdict on `own`, if any.

    Once `own` has given up, this returns with its verdict only.
    """
    while True:
        thread = threading.get_ident()
        for each in list(states):
            if each.opened and not each.closed and not each.broken and (each is own or each.thread == thread):
                each.listen(peers if each is own else (), each is own or each.recorder.busy)
        if own is None or own.broken or not own.frozen:
            break
        time.sleep(SETTLE)
    if own is not None and own.broken:
        raise own._failure()


def node_map(hosts: list[bytes]) -> tuple[int, ...]:
    """Return the number of each rank's node, from the names of their hosts."""
    known = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    return tuple(known[host] for host in hosts)
