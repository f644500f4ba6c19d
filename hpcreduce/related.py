"""Collective operations that are halves of an all-reduce: the first half of a ring or a tree, or its second one."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from hpcreduce.algorithms import ALGORITHMS, RELATED, Algorithm
from hpcreduce.preparation import check_timeout
from hpcreduce.runtime import agreement, buffers, movers, operations
from hpcreduce.runtime.buffers import Given
from hpcreduce.runtime.calls import Call, fingerprint
from hpcreduce.runtime.operations import Array, DType, Operation
from hpcreduce.runtime.plan import Plan
from hpcreduce.runtime.program import compile_rounds
from hpcreduce.runtime.state import State
from hpcreduce.schedule import partition
from hpcreduce.selection import WINDOW, Choice, check_types, elements

_MOVE = Operation("move", np.copyto, "")  # nothing is combined


def reduce_scatter(
    comm: Any,
    sendbuf: Any,
    recvbuf: Any = None,
    op: Any = "sum",
    *,
    segment: int | None = None,
    timeout: float | None = None,
) -> Any:
    """Combine what every rank holds, and give each rank its part of the result; collective.

    Rank r gets the elements ``partition(count, size)[r]`` (`hpcreduce.schedule.partition`), in logical order: parts of
    equal length where `count` is a multiple of the number of ranks, as ``MPI_Reduce_scatter_block``.

    Parameters
    ----------
    comm, sendbuf, op, segment, timeout
        As for `hpcreduce.allreduce`. An operation that does not commute costs as much as an all-reduce by ``tree``.
    recvbuf : array, optional
        One-dimensional, of the length of this rank's part and the result's dtype; for ``maxloc`` and ``minloc`` a pair.

    Returns
    -------
    array, shape (length of the part,)
        `recvbuf` where it was given. ``maxloc`` and ``minloc``: a pair.

    Raises
    ------
    TypeError, ValueError, MismatchError, CollectiveTimeoutError, PeerError, BrokenCommunicatorError, HpcreduceError
        As `hpcreduce.allreduce`.
    """
    state = _state(comm, segment, timeout)
    operation = operations.resolve(op)
    if buffers.is_in_place(sendbuf):
        raise ValueError(
            "reduce_scatter has no form in place: sendbuf is the whole array, recvbuf one part of the result"
        )
    source = buffers.source(sendbuf, None, operation.locates)
    work, result = operation.types(source.dtype)
    part = partition(source.size, state.size)[state.rank]
    like = np.empty(part.length, source.dtype)
    targets = buffers.pair(like, like, recvbuf, result, operation.locates).targets
    array = np.empty(source.size, work)
    buffers.fill(array, Given(source, (), False), state.rank)
    row = RELATED["reduce_scatter"] if operation.commutative else ALGORITHMS["tree"]
    _run(state, row, "reduce_scatter", array, source.shape, source.dtype, operation, segment, timeout)
    buffers.store(array[slice(*part)], Given(source, targets, False))
    return targets if recvbuf is None and len(targets) > 1 else targets[0] if recvbuf is None else recvbuf


def allgather(
    comm: Any, sendbuf: Any, recvbuf: Any = None, *, segment: int | None = None, timeout: float | None = None
) -> Any:
    """Hand what every rank holds to all; collective.

    Parameters
    ----------
    comm, segment, timeout
        As for `hpcreduce.allreduce`.
    sendbuf : array_like or MPI.IN_PLACE
        What this rank contributes, of any dtype but object. Without `recvbuf` all ranks pass the same shape; parts of
        different lengths, as `reduce_scatter` may make them, need a `recvbuf` of the whole length.
    recvbuf : array, optional
        Of the same dtype; its elements, in logical order, are the ranks' contributions one after the other, and rank r
        contributes ``partition(recvbuf.size, size)[r]`` of them: what `reduce_scatter` leaves there. In place, the
        contribution is in `recvbuf` already.

    Returns
    -------
    array
        `recvbuf` where it was given; else of shape ``(size, *sendbuf.shape)``.

    Raises
    ------
    TypeError, ValueError, MismatchError, CollectiveTimeoutError, PeerError, BrokenCommunicatorError, HpcreduceError
        As `hpcreduce.allreduce`.
    """
    state = _state(comm, segment, timeout)
    source = _movable(buffers.source(sendbuf, recvbuf, False))
    if recvbuf is None:
        target = np.empty((state.size, *source.shape), source.dtype)
    else:
        whole = buffers.source(recvbuf, None, False)
        target = buffers.pair(whole, whole, recvbuf, source.dtype, False).targets[0]
    part = partition(target.size, state.size)[state.rank]
    in_place = recvbuf is not None and buffers.is_in_place(sendbuf)
    if not in_place and source.size != part.length:
        raise ValueError(
            f"rank {state.rank} contributes {part.length} of the {target.size} elements of recvbuf, "
            f"found {source.size} in sendbuf"
        )
    given = Given(target, (target,), True)
    array, home = buffers.room(given, target.dtype)
    if not home:
        buffers.fill(array, given, state.rank)
    if not in_place:
        array[slice(*part)] = source.reshape(-1)
    row = RELATED["allgather"]
    _run(state, row, "allgather", array, target.shape, target.dtype, _MOVE, segment, timeout)
    if not home:
        buffers.store(array, given)
    return target if recvbuf is None else recvbuf


def reduce(
    comm: Any,
    sendbuf: Any,
    recvbuf: Any = None,
    op: Any = "sum",
    root: int = 0,
    *,
    segment: int | None = None,
    timeout: float | None = None,
) -> Any:
    """Combine what every rank holds, and give rank `root` the result; collective.

    Parameters
    ----------
    comm, sendbuf, op, segment, timeout
        As for `hpcreduce.allreduce`.
    recvbuf : array, optional
        As for `hpcreduce.allreduce`, on `root`. Elsewhere it is looked at only where `sendbuf` is ``MPI.IN_PLACE``: it
        then holds the contribution, and is not changed.
    root : int
        The rank that gets the result.

    Returns
    -------
    array, NumPy scalar or Python number
        As of `hpcreduce.allreduce`; `None` on all ranks but `root`.

    Raises
    ------
    TypeError, ValueError, MismatchError, CollectiveTimeoutError, PeerError, BrokenCommunicatorError, HpcreduceError
        As `hpcreduce.allreduce`; ValueError too if `root` is no rank.
    """
    state = _state(comm, segment, timeout)
    root = _check_root(root, state.size)
    operation = operations.resolve(op)
    source = buffers.source(sendbuf, recvbuf, operation.locates)
    if state.rank != root:
        sendbuf, recvbuf = source, None
    _, result = operation.types(source.dtype)
    given = buffers.pair(source, sendbuf, recvbuf, result, operation.locates)
    row = RELATED["reduce"]
    call = _prepared(
        state, row, "reduce", source.shape, source.dtype, operation, segment,
        root=root, ordered=not operation.commutative,
    )  # fmt: skip
    value = Plan(state, call, operation, given, sendbuf, recvbuf, timeout).run()
    return value if state.rank == root else None


def bcast(comm: Any, buf: Any, root: int = 0, *, segment: int | None = None, timeout: float | None = None) -> Any:
    """Hand what rank `root` holds in `buf` to all, into their `buf`; collective.

    Parameters
    ----------
    comm, segment, timeout
        As for `hpcreduce.allreduce`.
    buf : array
        Of the same shape and dtype on all ranks (any dtype but object), in any layout; writable but on `root`. A buffer
        such as ``array.array`` will do, a scalar or a list will not.
    root : int
        The rank whose array counts.

    Returns
    -------
    array
        `buf`.

    Raises
    ------
    TypeError, ValueError, MismatchError, CollectiveTimeoutError, PeerError, BrokenCommunicatorError, HpcreduceError
        As `hpcreduce.allreduce`; ValueError too if `root` is no rank.
    """
    state = _state(comm, segment, timeout)
    root = _check_root(root, state.size)
    source = _movable(buffers.memory(buf, "buf"))  # no scalars and lists: what other ranks could not receive into
    if state.rank == root:
        array = np.ascontiguousarray(source).reshape(-1)
    else:
        given = buffers.pair(source, buf, buf, source.dtype, False)
        array, home = buffers.room(given, source.dtype)
    _run(state, RELATED["bcast"], "bcast", array, source.shape, source.dtype, _MOVE, segment, timeout, root=root)
    if state.rank != root and not home:
        buffers.store(array, given)
    return buf


def exchange(state: State, row: Algorithm, array: Array, **static: Any) -> None:
    """Run a schedule that only moves elements on a contiguous array, in place; collective."""
    _run(state, row, row.name, array, array.shape, array.dtype, _MOVE, None, None, **static)


def _state(comm: Any, segment: int | None, timeout: float | None) -> State:
    if timeout is not None:
        check_timeout(timeout)
    check_types("auto", segment)
    return agreement.state(comm, timeout)


def _check_root(root: Any, size: int) -> int:
    try:
        number = operator.index(root)
    except TypeError:
        raise TypeError(f"root must be a rank, found {root!r}") from None
    if not 0 <= number < size:
        raise ValueError(f"root must be a rank from 0 to {size - 1}, found {root!r}")
    return number


def _movable(array: Array) -> Array:
    if array.dtype.hasobject or not array.dtype.itemsize:
        raise TypeError(f"arrays of dtype {array.dtype} cannot be sent as bytes")
    return array


def _run(
    state: State,
    row: Algorithm,
    name: str,
    array: Array,
    shape: tuple[int, ...],
    dtype: DType,
    operation: Operation,
    segment: int | None,
    timeout: float | None,
    **static: Any,
) -> None:
    """Run the schedule on a contiguous one-dimensional array, in place."""
    call = _prepared(state, row, name, shape, dtype, operation, segment, **static)
    array = array if operation is not _MOVE else array.view(call.work)
    Plan(state, call, operation, Given(array, (array,), True), array, array, timeout).run()


def _prepared(
    state: State,
    row: Algorithm,
    name: str,
    shape: tuple[int, ...],
    dtype: DType,
    operation: Operation,
    segment: int | None,
    **static: Any,
) -> Call:
    """Return the prepared call, from those that are kept if it is there."""
    details = tuple(static.items())
    key = (name, shape, dtype, operation.name, operation.commutative, segment, details)
    call = state.call(key)
    if call is None:
        work = np.dtype(f"V{dtype.itemsize}") if operation is _MOVE else operation.types(dtype)[0]
        count = math.prod(shape)
        length = elements(segment, work, count, state.nodes)
        program = compile_rounds(row.rounds(state.rank, state.size, count, **static), length)  # type: ignore[misc]
        mark = fingerprint(name, operation.name, str(dtype), shape, length, details)
        what = [] if operation is _MOVE else [f"op {operation.name}"]
        what += [f"dtype {dtype}", f"shape {shape}", *(f"{key} {value}" for key, value in details if key != "ordered")]
        text = f"{name}({', '.join(what)})"
        choice = Choice(row, length, WINDOW, "the only one", static)
        call = Call(key, work, dtype, choice, mark, movers.messages(state, program, work, WINDOW), None, text)
        state.keep(call)
    return state.used(call)
