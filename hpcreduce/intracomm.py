"""A drop-in for ``mpi4py.MPI.Intracomm``: its ``Allreduce`` is ours, all else is the library's."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from hpcreduce.preparation import admit, check_timeout, kind, prepare, run
from hpcreduce.runtime import agreement, buffers, operations, specs
from hpcreduce.runtime.calls import Call
from hpcreduce.runtime.operations import Array, Operation
from hpcreduce.runtime.state import State
from hpcreduce.selection import check_types, forbids, named


class Intracomm(MPI.Intracomm):
    """An mpi4py communicator whose ``Allreduce`` is run by this package.

    ``comm = hpcreduce.Intracomm(MPI.COMM_WORLD)`` is the one line that an mpi4py program changes. The new object stands
    for the same communicator, as ``MPI.Intracomm(comm)`` does: nothing is duplicated, and freeing either frees both.
    Communicators made from it by ``Dup``, ``Clone``, ``Idup``, ``Split``, ``Split_type``, ``Create`` and
    ``Create_group`` are of this type too, with the same settings. All other methods are mpi4py's; in particular
    ``Iallreduce`` and ``Allreduce_init`` are the library's own, since their requests are mixed with other MPI calls
    (`hpcreduce.iallreduce` and `hpcreduce.allreduce_init` are ours).

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        COMM_NULL, which is the default, is taken too; its ``Allreduce`` raises ValueError.
    algorithm : str
        What runs ``Allreduce`` where its restrictions allow it: a name in `hpcreduce.ALGORITHMS`, or ``auto``, which
        also takes what the algorithm cannot run.
    timeout : float, optional
        Seconds; by default ``HPCREDUCE_TIMEOUT``, or 600.
    check : bool
        As for `hpcreduce.allreduce`.

    Raises
    ------
    TypeError, ValueError
        An intercommunicator, an unknown algorithm, or a time-out that is not above 0.

    Examples
    --------
    ::

        from mpi4py import MPI
        import hpcreduce

        comm = hpcreduce.Intracomm(MPI.COMM_WORLD)
        comm.Allreduce(MPI.IN_PLACE, array, MPI.SUM)
    """

    _state: State | None = None
    _algorithm: str
    _timeout: float | None
    _check: bool

    def __new__(
        cls, comm: MPI.Comm | None = None, *, algorithm: str = "auto", timeout: float | None = None, check: bool = True
    ) -> Intracomm:
        """See the class; mpi4py makes communicators by ``__new__`` alone."""
        check_types(algorithm, None)
        if algorithm != "auto":
            named(algorithm)
        if timeout is not None:
            check_timeout(timeout)
        self = super().__new__(cls, comm)
        self._algorithm, self._timeout, self._check = algorithm, timeout, bool(check)
        if self != MPI.COMM_NULL:
            self._state = agreement.attached(self)
        return self

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        """Reduce to all, as MPI's; collective.

        Takes all buffer specifications of mpi4py, and more: arrays of any layout (in logical order), byte order and
        fixed-size number type. All ranks pass the same count, element type and operation; shapes may differ. Values
        mean what they mean in `hpcreduce.allreduce`: NaN wins, 16-bit floats are summed in float32, integers wrap.

        MPI's pair and derived datatypes, arrays in device memory, and what MPI refuses go to the library's own call.

        Parameters
        ----------
        sendbuf : buffer specification or MPI.IN_PLACE
        recvbuf : buffer specification
            May be `sendbuf` itself, which reduces in place.
        op : MPI.Op, str or callable
            As for `hpcreduce.allreduce`.

        Raises
        ------
        TypeError, ValueError
            Buffers that do not fit, or a communicator that was freed: before any message of this call is sent.
        MismatchError, CollectiveTimeoutError, PeerError, BrokenCommunicatorError, HpcreduceError
            As `hpcreduce.allreduce`.
        """
        state = self._ready()
        operation = operations.resolve(op)
        target = specs.array(recvbuf)
        source = target if sendbuf is MPI.IN_PLACE else specs.array(sendbuf)
        call = None
        if source is not None and target is not None and source.size == target.size:
            call = self._call(state, operation, source, target)
        if source is None or target is None or call is None:
            if not isinstance(op, MPI.Op):
                raise TypeError(
                    f"op {operation.name!r} needs two buffers of equal size and of a type that it can return"
                )
            return super().Allreduce(sendbuf, recvbuf, op)
        if source is not target and source.shape != target.shape:
            source = source.reshape(target.shape)
        given = buffers.pair(source, source, target, call.result, False)
        known = state.calls.get(call.key) is call
        call = state.used(call) if known else admit(state, call, operation, source.size, self._timeout)
        run(state, call, operation, given, source, target, self._timeout)
        return None

    def recover(self, timeout: float | None = None) -> None:
        """Make the communicator usable again after an error, once every rank has got one; collective.

        What was in flight on it is given up, and plans made before cannot be started any more. Needs all ranks: if one
        has left, make a communicator of the others with the means of MPI.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default that of the communicator.

        Raises
        ------
        ValueError
            It was freed.
        BrokenCommunicatorError
            It failed in its first use, or in a recovery.
        PeerError
            A rank has left.
        CollectiveTimeoutError
            Not all ranks came.

        Examples
        --------
        ::

            try:
                comm.Allreduce(MPI.IN_PLACE, array)
            except hpcreduce.HpcreduceError:
                comm.recover()  # every rank has got the error, and calls this
        """
        if timeout is not None:
            check_timeout(timeout)
        if self._state is None:
            raise ValueError("the communicator is COMM_NULL, or was never used")
        self._state.recover(self._timeout if timeout is None else timeout)

    def _ready(self) -> State:
        """Return the state of this communicator, opened; the first call is collective."""
        state = self._state
        if state is None:  # made by Idup
            state = self._state = agreement.attached(self)
        return agreement.opened(state, self, self._timeout)

    def _call(self, state: State, operation: Operation, source: Array, target: Array) -> Call | None:
        """Return the prepared call for these arrays, `None` if the library has to run it."""
        shape, dtype = (source.size,), source.dtype
        sharing = bool(state.arrays)
        key = kind("allreduce", operation, shape, dtype, self._algorithm, check=self._check, sharing=sharing)
        call = state.call(key)
        if call is None:
            try:
                work, result = operation.types(dtype)
            except TypeError:
                return None
            if operation.locates or result != dtype:
                return None
            if self._algorithm != "auto" and forbids(named(self._algorithm), operation, work):
                key = kind("allreduce", operation, shape, dtype, "auto", check=self._check, sharing=sharing)
                call = state.call(key)
            call = call or prepare(state, operation, key)
        return call if _equal_types(target.dtype, call.result) else None

    def _like_this(self, comm: MPI.Comm) -> Intracomm:
        return type(self)(comm, algorithm=self._algorithm, timeout=self._timeout, check=self._check)

    def Dup(self, info: MPI.Info | None = None) -> Intracomm:
        """Duplicate; collective."""
        return self._like_this(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Intracomm:
        """Duplicate with hints; collective."""
        return self._like_this(super().Dup_with_info(info))

    def Clone(self) -> Intracomm:
        """Duplicate; collective."""
        return self._like_this(super().Clone())

    def Idup(self, info: MPI.Info | None = None) -> tuple[Intracomm, MPI.Request]:
        """Duplicate; the new communicator can be used once the request is complete. Collective."""
        return self._later(*super().Idup(info))

    def Idup_with_info(self, info: MPI.Info) -> tuple[Intracomm, MPI.Request]:
        """Duplicate with hints; the new communicator can be used once the request is complete. Collective."""
        return self._later(*super().Idup_with_info(info))

    def _later(self, comm: Intracomm, request: MPI.Request) -> tuple[Intracomm, MPI.Request]:
        comm._algorithm, comm._timeout, comm._check = self._algorithm, self._timeout, self._check
        return comm, request

    def Split(self, color: int = 0, key: int = 0) -> Intracomm:
        """Split by colour and key; collective."""
        return self._like_this(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Intracomm:
        """Split by type, such as ``MPI.COMM_TYPE_SHARED``; collective."""
        return self._like_this(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Intracomm:
        """Make a communicator of a group; collective."""
        return self._like_this(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Intracomm:
        """Make a communicator of a group; collective over the group."""
        return self._like_this(super().Create_group(group, tag))

    def Free(self) -> None:
        """Free the communicator; collective."""
        if self._state is not None and self._state.closed:
            raise ValueError(f"the communicator is gone already: {self._state.closed}")
        super().Free()


def _equal_types(dtype: Any, other: Any) -> bool:
    return dtype is other or dtype.newbyteorder("=") == other.newbyteorder("=")
