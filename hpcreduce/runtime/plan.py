"""A collective operation bound to its buffers: start it, test it, wait for it.

Rules that hold here:

* One mechanism: the blocking call, the nonblocking one and the persistent one are all a `Plan`.
* Every wait moves all operations that this thread has in flight (`hpcreduce.runtime.wait`), so that two ranks may wait
  for two operations in opposite order.
* An operation that fails retires its communicator's state; buffers that messages may still use are kept alive.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from hpcreduce.runtime import agreement, buffers, operations, wait
from hpcreduce.runtime.agreement import Call, State
from hpcreduce.runtime.buffers import Given
from hpcreduce.runtime.operations import Operation


class Plan:
    """An all-reduce that is bound to its buffers; made by `hpcreduce.allreduce_init` and `hpcreduce.iallreduce`.

    ``Start`` reads the send buffer, ``Test`` and ``Wait`` move this and all other operations in flight, and ``Wait``
    returns the result. A plan of `allreduce_init` can be started again and again; use it in a ``with`` block, or call
    ``Free``. Between ``Start`` and ``Wait`` no blocking MPI call may wait for the same ranks.

    Attributes
    ----------
    active : bool
        The operation is started and not seen complete.
    """

    def __init__(
        self,
        state: State,
        call: Call,
        operation: Operation,
        given: Given,
        sendbuf: Any,
        recvbuf: Any,
        timeout: float | None,
        number: int | None = None,
    ) -> None:
        self.active = False
        self._state, self._call, self._operation, self._given = state, call, operation, given
        self._buffers = sendbuf, recvbuf
        self._timeout = state.timeout if timeout is None else timeout
        self._work = buffers.room(given, call.work)
        self._request: Any = None
        self._failure: BaseException | None = None
        self._freed = False
        self._starts = 0
        self._mark: int | None = (
            None  # a persistent plan has a fingerprint of its own: ranks may start plans in any order
        )
        self._persistent: Any = None  # the library's own persistent request
        if number is not None and call.stream:
            self._mark = agreement.fingerprint(call.fingerprint, number)
        elif number is not None:
            self._persistent = self._library("Allreduce_init")

    def Start(self) -> None:
        """Start the operation; collective, but needs no other rank to return.

        Raises
        ------
        ValueError
            The plan was freed, or is active already.
        """
        self._check()
        if self.active:
            raise ValueError("the plan is active already; Wait comes before the next Start")
        with self._state.claimed():
            self._begin()
            wait.in_flight().append(self._step)

    def Test(self) -> bool:
        """Move all operations in flight; return whether this one is complete."""
        self._check()
        if self.active:
            with self._state.claimed():
                wait.move_others(self._step)
                self._step()
        return not self.active

    def Wait(self) -> Any:
        """Wait until the operation is complete, and return its result as `hpcreduce.allreduce` does.

        Raises
        ------
        CollectiveTimeoutError
            The time-out passed, counted from here.
        """
        self._check()
        if self.active:
            with self._state.claimed():
                self._finish()
        return buffers.returned(self._given, *self._buffers)

    def Free(self) -> None:
        """Give back what the plan holds; a plan that is active cannot be freed."""
        if self.active and not self._state.broken:
            raise ValueError("the plan is active; Wait comes before Free")
        if self._persistent is not None and not self.active:
            self._persistent.Free()
        self._freed = True
        self._persistent = self._work = self._given = self._buffers = None  # type: ignore[assignment]

    def __enter__(self) -> Plan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.active and error is None:
            self.Wait()
        if not (self.active or self._freed):
            self.Free()

    def run(self) -> Any:
        """Start the operation, wait for its end, and return its result: the blocking call."""
        with self._state.claimed():
            self._begin()
            self._finish()
        return buffers.returned(self._given, *self._buffers)

    def _begin(self) -> None:
        """Load the send buffer and send the first messages."""
        stream = self._call.stream
        buffers.fill(self._work, self._given, self._state.rank)
        self.active = True
        try:
            if stream:
                stream.start(self._work, self._operation.fold, self._tag())
            elif self._persistent is not None:
                self._persistent.Start()
                self._request = self._persistent
            else:
                self._request = self._library("Iallreduce")
        except BaseException as error:
            self._fail(error)
            raise

    def _finish(self) -> None:
        """Wait for the end of the operation."""
        try:
            wait.until(self._step, self._timeout, self._where)
        except BaseException as error:
            self._fail(error)
            raise

    def _step(self) -> int:
        """Do what can be done now; return how much is left, 0 when the result is where it belongs."""
        stream = self._call.stream
        try:
            left = stream.progress() if stream else 0 if self._request.Test() else 1
            if not left:
                self._complete()
        except BaseException as error:
            self._fail(error)
            raise
        return left

    def _complete(self) -> None:
        if self._operation.divides:
            operations.divide(self._work, self._state.size)
        buffers.store(self._work, self._given)
        self.active = False
        wait.forget(self._step)

    def _tag(self) -> int:
        if self._mark is None:
            return self._state.next_tag(self._call.fingerprint)
        self._starts += 1
        return self._state.tag(self._mark, self._starts)

    def _library(self, call: str) -> Any:
        """Return the request of one of the library's own calls, in place."""
        from mpi4py import MPI

        op = self._operation.library
        return getattr(self._state.comm, call)(
            MPI.IN_PLACE, self._work, getattr(MPI, op) if isinstance(op, str) else op
        )

    def _where(self) -> str:
        stream = self._call.stream
        where = stream.where() if stream else "waiting for other ranks to enter it"
        return f"rank {self._state.rank}: {self._call}: {where}"

    def _check(self) -> None:
        if self._freed:
            raise ValueError("the plan was freed")
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            wait.forget(self._step)
            parts = self._call.stream.abandon() if self._call.stream else []
            self._state.retire(error, parts, self._request, self._work)
