"""A collective operation bound to its buffers: start it, test it, wait for it.

Rules that hold here:

* One mechanism: the blocking call, the nonblocking one and the persistent one are all a `Plan`.
* Every wait moves all operations that this thread has in flight (`hpcreduce.runtime.wait`), so that two ranks may wait
  for two operations in opposite order.
* An operation that fails retires its communicator's state; buffers that messages may still use are kept alive.
"""

from __future__ import annotations

from threading import get_ident
from types import TracebackType
from typing import Any

import numpy as np

from hpcreduce.runtime import agreement, buffers, operations, wait
from hpcreduce.runtime.agreement import Call, State
from hpcreduce.runtime.buffers import Given
from hpcreduce.runtime.operations import Operation
from hpcreduce.runtime.wait import in_flight

ENGINE_BELOW = 64 << 10
"""Bytes up to which a persistent plan copies its buffers into an engine and back, where the library leaks requests."""


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
    _engine: Any = None  # that it belongs to, if it is not this plan's alone
    _failure: BaseException | None = None
    _starts = 0
    _mark: int | None = None  # a persistent plan's own fingerprint: ranks may start plans in any order

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
        self._codec = call.codec
        if call.codec:
            self._work, home = np.empty(given.source.size, call.work), False
        else:
            self._work, home = buffers.room(given, call.work)
        self._loads = not (home and given.in_place)  # the contribution must be brought into the work array
        self._stores = not home
        self._divides = operation.divides and not call.codec

    @classmethod
    def reusable(cls, state: State, call: Call, operation: Operation, count: int) -> Plan:
        """Return a persistent plan for `rerun`: its work array is its own, so that any buffers can take their turn."""
        array = np.empty(count, call.work)
        plan = cls(state, call, operation, Given(array, (array,), True), array, array, None).persist()
        plan._loads = plan._stores = True
        return plan

    def persist(self) -> Plan:
        """Prepare to be started more than once; collective where the library runs it."""
        state, call = self.state, self._call
        if self._stream:
            state.plans += 1
            self._mark = agreement.fingerprint(call.fingerprint, state.plans)
            return self
        if state.leaky and call.op and self._work.nbytes <= ENGINE_BELOW:
            self._engine = state.engine(self._work.size, call.work, call.op)
            self._work, self._request = self._engine.array, self._engine.request
            self._loads = self._stores = True
        else:
            self._share()
            self._request = state.comm.Allreduce_init(*self._arguments())
            state.holders.add(self)
        self._persistent = True
        return self

    def Start(self) -> None:
        """Start the operation; collective, but needs no other rank to return.

        Raises
        ------
        ValueError
            The plan was freed, is active already, or its communicator is gone.
        """
        state = self.state
        if self.active or self._failure is not None or state.closed:
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

    def Test(self) -> bool:
        """Move all operations in flight; return whether this one is complete."""
        if self._failure is not None:
            raise self._failure
        if self.active:
            self.state.enter()
            try:
                wait.move_others(self.step)
                self.step()
            finally:
                self.state.lock.release()
        return not self.active

    def Wait(self) -> Any:
        """Wait until the operation is complete, and return its result as `hpcreduce.allreduce` does.

        Raises
        ------
        CollectiveTimeoutError
            The time-out passed, counted from here.
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
        if self._persistent and not self.active:
            self._persistent = False
            if self._engine:
                self._engine.used = False
            else:
                self._request.Free()

    def __del__(self) -> None:
        if self._persistent and (self._engine or not self.state.closed):
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
        self.active = True
        try:
            if self._persistent:
                self._request.Start()
            elif self._stream:
                self._stream.start(self._work, (self._codec or self._operation).fold, self._tag())
            else:
                self._request = self.state.comm.Iallreduce(*self._arguments())
        except BaseException as error:
            self._fail(error)
            raise

    def _finish(self) -> None:
        """Wait for the end of the operation."""
        try:
            wait.until(self.step, self._timeout, self._where, wait.GRACE if self._stream else wait.BLIND_GRACE)
        except BaseException as error:
            self._fail(error)
            raise

    def step(self) -> int:
        """Do what can be done now; return how much is left, 0 when the result is where it belongs."""
        try:
            if self._stream:
                if left := self._stream.progress():
                    return left
            elif not self._request.Test():
                return 1
            self._complete()
        except BaseException as error:
            self._fail(error)
            raise
        return 0

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
        if self.state.closed:
            self.release()
            self.state.free()

    def _tag(self) -> int:
        if self._mark is None:
            return self.state.next_tag(self._call.fingerprint)
        self._starts += 1
        return self.state.tag(self._mark, self._starts)

    def _arguments(self) -> tuple[Any, Any, Any]:
        """Return what the library's own call takes."""
        source = self.state.in_place if self._source is None else self._source
        return source, self._work, self._call.op or self._operation.library

    def _where(self) -> str:
        where = self._stream.where() if self._stream else "waiting for other ranks to enter it"
        return f"rank {self.state.rank}: {self._call}: {where}"

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            in_flight.pop(self, None)
            parts = self._stream.abandon() if self._stream else []
            self.state.retire(error, parts, self._request, self._work, self._source)
