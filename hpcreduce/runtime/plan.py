"""A collective operation bound to its buffers: start it, test it, wait for it.

Rules that hold here:

* One mechanism: the blocking call, the nonblocking one and the persistent one are all a `Plan`.
* Every wait moves all operations that this thread has in flight (`hpcreduce.runtime.wait`), so that two ranks may wait
  for two operations in opposite order.
* An operation that fails breaks its communicator, and tells the other ranks; buffers that messages may still use are
  kept alive.
"""

from __future__ import annotations

import time
from threading import get_ident
from types import TracebackType
from typing import Any

import numpy as np

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.runtime import buffers, departure, engines, movers, operations, wait
from hpcreduce.runtime.buffers import Given
from hpcreduce.runtime.calls import Call, fingerprint
from hpcreduce.runtime.engines import Engine
from hpcreduce.runtime.operations import OPERATIONS, Operation
from hpcreduce.runtime.program import compile_rounds
from hpcreduce.runtime.rooms import Room
from hpcreduce.runtime.state import State, attend
from hpcreduce.runtime.stream import SizeError
from hpcreduce.runtime.wait import in_flight

GLANCE = 63
"""A call looks for a verdict that was given without this rank when its number has none of these bits, or when this rank
was away for long."""


class Plan:
    """An all-reduce that is bound to its buffers; made by `hpcreduce.allreduce_init` and `hpcreduce.iallreduce`.

    ``Start`` reads the send buffer, ``Test`` and ``Wait`` move this and all other operations in flight, and ``Wait``
    returns the result. A plan of `allreduce_init` can be started again and again; use it in a ``with`` block, or call
    ``Free``. Between ``Start`` and ``Wait`` no blocking MPI call may wait for the same ranks.

    Attributes
    ----------
    active : bool
        The operation is started and not seen complete.
    state : State
        What belongs to its communicator.
    """

    active = False
    _source: Any = None  # the send buffer, where the library reads it itself
    _request: Any = None
    _persistent = False  # the request is one of the library's persistent ones
    _own = False  # and this plan's alone
    _borrowed: Engine | Room | None = None  # what nothing else uses meanwhile
    _message: Any = None  # the array of that engine: head and work array
    _head: Any = None
    _totals: Any = None  # what the head is if all ranks mean the same
    _failure: BaseException | None = None
    _plan = _starts = 0  # number of a persistent plan, and of its starts: ranks may start plans in any order
    _order = (0, 0)
    _left = -1  # by the last test, which saw that something moved at `_moved`
    _moved = 0.0

    def __init__(
        self,
        state: State,
        call: Call,
        operation: Operation,
        given: Given,
        sendbuf: Any,
        recvbuf: Any,
        timeout: float | None,
    ) -> None:
        self.state, self._call, self._operation, self._stream = state, call, operation, call.stream
        self._given, self._sendbuf, self._recvbuf = given, sendbuf, recvbuf
        self._timeout = state.timeout if timeout is None else timeout
        self._codec, self._mark, self._comm = call.codec, call.fingerprint, state.comm
        self._fold = (call.codec or operation).fold
        if call.codec:
            self._work, home = np.empty(given.source.size, call.work), False
        else:
            self._work, home = buffers.room(given, call.work)
        self._loads = not (home and given.in_place)  # the contribution must be brought into the work array
        self._stores = not home
        self._divides = operation.divides and not call.codec

    @classmethod
    def reusable(cls, state: State, call: Call, operation: Operation, count: int) -> Plan:
        """Return a plan for `rerun`, so that any buffers can take their turn in the same work array."""
        array = np.empty(count, call.work)
        plan = cls(state, call, operation, Given(array, (array,), True), array, array, None)
        if call.engine:
            plan._work_in(state.engines.blocking[call.engine], count)
        plan._loads = plan._stores = True
        return plan

    def persist(self) -> Plan:
        """Prepare to be started more than once; collective where the library runs it."""
        state, call = self.state, self._call
        self._plan = state.recorder.plan()
        self._mark = fingerprint(call.fingerprint, self._plan)
        if call.room:
            common = agree(state, call, self._timeout, state.rooms.free_ones(call.room))
            self._borrowed = room = state.rooms.borrow(call.room, common)
            self._stream = movers.exchange(state, call, self._operation, room, self._work.size)
        elif self._stream:
            return self
        elif call.engine:
            common = agree(state, call, self._timeout, state.engines.free_ones(call.engine))
            self._borrowed = state.engines.borrow(call.engine, common, call.op)
            self._work_in(self._borrowed, self._work.size)  # type: ignore[arg-type]
        else:
            agree(state, call, self._timeout)
            self._share()
            self._request = state.comm.Allreduce_init(*self._arguments())
            state.holders.add(self)
            self._persistent = self._own = True
        return self

    def _work_in(self, engine: Engine, count: int) -> None:
        """Use the engine's array and request."""
        self._head = self._call.head
        first = engines.offset(self._head, count, self._call.work.itemsize)
        self._message, self._request, self._persistent = engine.array, engine.request, True
        self._work = engine.array[first : first + count]
        self._loads = self._stores = True

    def Start(self) -> None:
        """Start the operation; collective, but needs no other rank to return.

        Raises
        ------
        ValueError
            The plan was freed, is active already, or its communicator is gone.
        """
        state = self.state
        if self.active or self._failure is not None or state.closed or self._comm is not state.comm:
            self._refuse()
        state.enter()
        try:
            self._begin()
            in_flight[self] = get_ident()
        finally:
            state.lock.release()

    def _refuse(self) -> None:
        """Raise what keeps this plan from being started."""
        if self._failure is not None:
            raise self._failure
        if self.active:
            raise ValueError("the plan is active already; Wait comes before the next Start")
        self.state.check()
        raise ValueError("the plan was made before recover(); make a new one")

    def Test(self) -> bool:
        """Move all operations in flight; return whether this one is complete."""
        if self._failure is not None:
            raise self._failure
        if self.active:
            self.state.enter()
            try:
                wait.move_others(self)
                self._watch(self.step())
            finally:
                self.state.lock.release()
        return not self.active

    def _watch(self, left: int) -> None:
        """Look around if nothing has moved for long, though this operation was tested."""
        now = time.monotonic()
        if left != self._left:
            self._left, self._moved = left, now
        elif left and now - self._moved > wait.LOOK:
            self._moved = now - wait.LOOK + wait.PAUSE
            self.look()

    def Wait(self) -> Any:
        """Wait until the operation is complete, and return its result as `hpcreduce.allreduce` does.

        Raises
        ------
        CollectiveTimeoutError
            The time-out passed, counted from here.
        MismatchError, PeerError
            As `hpcreduce.allreduce`.
        """
        if self._failure is not None:
            raise self._failure
        if self.active:
            self.state.enter()
            try:
                self._finish()
            finally:
                self.state.lock.release()
        if self._recvbuf is not None:
            return self._recvbuf
        return buffers.returned(self._given, self._sendbuf)

    def Free(self) -> None:
        """Give back what the plan holds; a plan that is active cannot be freed."""
        if self.active and not self.state.broken:
            raise ValueError("the plan is active; Wait comes before Free")
        self.release()
        self._failure = ValueError("the plan was freed")
        self._work = self._source = self._given = self._sendbuf = self._recvbuf = None  # type: ignore[assignment]

    def release(self) -> None:
        """Give back the library's request, if there is one that is not active."""
        if self.active:
            return
        if self._borrowed:
            self._borrowed.used, self._borrowed = False, None
        elif self._own:
            self._own = False
            self._request.Free()

    def __del__(self) -> None:
        if self._borrowed or (self._own and not self.state.closed):
            self.release()

    def __enter__(self) -> Plan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.active and error is None:
            self.Wait()
        if not self.active and self._failure is None:
            self.Free()

    def run(self) -> Any:
        """Start the operation, wait for its end, and return its result: the blocking call."""
        if not self._stream:
            if self._call.checked:
                agree(self.state, self._call, self._timeout)
                self.state.recorder.again = True
            self._share()
        self.state.enter()
        try:
            self._begin()
            self._finish()
        finally:
            self.state.lock.release()
        return buffers.returned(self._given, self._sendbuf) if self._recvbuf is None else self._recvbuf

    def rerun(self, given: Given, sendbuf: Any, recvbuf: Any, timeout: float | None) -> Any:
        """Reduce other buffers of the same kind in the work array of this persistent plan, and let go of them."""
        state = self.state
        state.enter()
        try:
            self._given = given
            self._timeout = state.timeout if timeout is None else timeout
            self._begin()
            self._finish()
        finally:
            self._given = None  # type: ignore[assignment]
            state.lock.release()
        return buffers.returned(given, sendbuf) if recvbuf is None else recvbuf

    def _share(self) -> None:
        """Let the library read the send buffer itself, if it can: the caller leaves it alone meanwhile."""
        if not self._stores and buffers.sendable(self._given, self._call.work):
            self._source, self._loads = self._given.source, False

    def _begin(self) -> None:
        """Load the send buffer and send the first messages."""
        if self._codec:
            self._codec.load(self._work, self._given.source)
        elif self._loads:
            buffers.fill(self._work, self._given, self.state.rank)
        state = self.state
        if self._plan:
            self._starts += 1
        self._order = order = state.recorder.begin(self._mark, self._call.text, self._plan, self._starts)
        self.active = True
        try:
            if not order[1] & GLANCE or state.recorder.away > wait.LOOK or state.left:
                state.glance()
            if self._stream:
                self._stream.start(self._work, self._fold, state.tag(state.recorder.token))
            elif self._persistent:
                if self._head:
                    self._totals = self._head.write(self._message, state.recorder.token)
                self._request.Start()
            else:
                self._request = state.comm.Iallreduce(*self._arguments())
        except BaseException as error:
            self.fail(error)
            raise

    def _finish(self) -> None:
        """Wait for the end of the operation."""
        try:
            if self.step():
                wait.until(self, self._timeout, wait.GRACE if self._stream else wait.BLIND_GRACE)
        except BaseException as error:
            self.fail(error)
            raise

    def step(self) -> int:
        """Do what can be done now; return how much is left, 0 when the result is where it belongs."""
        if self.state.frozen:  # given up: what arrived cannot be right, and must not become a result
            return 1
        try:
            if self._stream:
                if left := self._stream.progress():
                    return left
            elif not self._request.Test():
                return 1
            elif self._head and not self._head.agrees(self._message, self._totals):
                return self._accuse("the heads of the ranks' arrays differ")
            self._complete()
        except (self.state.library_error, SizeError) as error:
            return self._accuse(str(error))
        except BaseException as error:
            self.fail(error)
            raise
        return 0

    def _accuse(self, trouble: str) -> int:
        """Give up, since this arrived that cannot be right; the verdict comes while it is waited for."""
        self.state.give_up("mismatch", trouble)
        return 1

    def _complete(self) -> None:
        if self._divides:
            operations.divide(self._work, self.state.size)
        if self._codec:
            if self.state.size == 1:
                self._codec.finish(self._work)
            self._codec.store(self._work, self._given.targets[0])
        elif self._stores:
            buffers.store(self._work, self._given)
        self.active = False
        in_flight.pop(self, None)
        self.state.recorder.complete(self._order)
        if self.state.closed:
            self.release()
            self.state.free()

    def _arguments(self) -> tuple[Any, Any, Any]:
        """Return what the library's own call takes."""
        source = self.state.in_place if self._source is None else self._source
        return source, self._work, self._call.op or self._operation.library

    def __str__(self) -> str:
        return self._call.text

    def where(self) -> str:
        """Return what it waits for, in words."""
        return self._stream.where() if self._stream else "waiting for other ranks to enter it"

    def look(self) -> None:
        """Find out with the other ranks why nothing moves; raise what is found."""
        peer = self._stream.peer() if self._stream else None
        attend(self.state, () if peer is None else (peer,))

    def withdraw(self) -> None:
        """Let no other rank rely on this operation, unless one does already: then it is complete."""
        if self._stream:
            self._stream.withdraw()

    def expire(self, timeout: float) -> None:
        """Give up, since the time-out has passed; raise the verdict."""
        self.state.give_up("timeout", f"not finished after {timeout:g} s")
        self.look()

    def fail(self, error: BaseException, tell: bool = True) -> None:
        """End with this error; `tell` the other ranks, unless they know."""
        if self._failure is None:
            self._failure = error
            in_flight.pop(self, None)
            parts = self._stream.abandon() if self._stream else []
            self.state.retire(error, parts, self._request, self._message, self._work, self._source)
            if tell:
                self.state.fail(departure.describe(error, inside=True))


def agree(state: State, call: Call, timeout: float | None, bits: int = 0) -> int:
    """Meet all ranks that are about to make the same `call`, and return the bits that all pass; collective.

    Raises
    ------
    MismatchError
        Another rank makes another call. And what else a collective operation raises.
    """
    array = np.array([bits])
    row = ALGORITHMS["recursive_doubling"]
    program = compile_rounds(row.rounds(state.rank, state.size, 1), 1)  # type: ignore[misc]
    stream = movers.messages(state, program, array.dtype, 1)
    own = call._replace(work=array.dtype, result=array.dtype, stream=stream, codec=None, engine=None, head=None)
    Plan(state, own, OPERATIONS["band"], Given(array, (array,), True), array, array, timeout).run()
    return int(array[0])
