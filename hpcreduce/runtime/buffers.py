"""From what the caller passes to one contiguous array of the work type, and back.

Rules that hold here:

* The memory order of an array is never part of a call: arrays are presented in logical C order.
* The work array is the caller's own memory where type and layout allow it, so that a call in place copies nothing.
* All checks are done before any array is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.runtime.operations import Array, DType, Operation


class Presented(NamedTuple):
    """A checked pair of buffers.

    Attributes
    ----------
    source : numpy.ndarray
        What this rank contributes.
    targets : tuple of numpy.ndarray
        Where the result goes: one array, or values and ranks.
    work, result : numpy.dtype
    returned : callable
        Gives the object to return once the targets hold the result.
    """

    source: Array
    targets: tuple[Array, ...]
    work: DType
    result: DType
    returned: Callable[[], Any]

    @property
    def in_place(self) -> bool:
        """Whether source and target are the same memory."""
        return len(self.targets) == 1 and _same(self.source, self.targets[0])


def present(sendbuf: Any, recvbuf: Any, operation: Operation) -> Presented:
    """Check the caller's buffers.

    Raises
    ------
    TypeError
        A dtype that the operation does not take, or something that is not an array.
    ValueError
        A receive buffer that is read-only, of another shape, or overlaps the send buffer partly.
    """
    if _is_in_place(sendbuf):
        if recvbuf is None:
            raise ValueError("sendbuf is MPI.IN_PLACE, so recvbuf must be the array to reduce; found None")
        sendbuf = recvbuf
    source = _source(sendbuf)
    work, result = operation.types(source.dtype)
    types = (result, work["rank"]) if operation.locates else (result,)
    if recvbuf is None:
        targets = tuple(np.empty(source.shape, dtype) for dtype in types)
        return Presented(source, targets, work, result, lambda: _like(sendbuf, targets))
    given = recvbuf if operation.locates and isinstance(recvbuf, (tuple, list)) else (recvbuf,)
    if len(given) != len(types):
        raise TypeError(
            f"op {operation.name!r} returns a pair (values, ranks): recvbuf must be None or a pair of arrays"
        )
    targets = tuple(_target(buffer, source, dtype) for buffer, dtype in zip(given, types, strict=True))
    return Presented(source, targets, work, result, lambda: recvbuf)


def load(given: Presented, rank: int) -> Array:
    """Return the work array of this rank, one-dimensional, filled with its contribution."""
    target = given.targets[0]
    if given.work.names:
        work = np.empty(given.source.shape, given.work)
        work["value"], work["rank"] = given.source, rank
        return work.reshape(-1)
    fits = target.dtype == given.work and target.flags.c_contiguous and target.flags.aligned
    work = target if fits else np.empty(given.source.shape, given.work)
    if not (fits and given.in_place):
        np.copyto(work, given.source, casting="unsafe")
    return work.reshape(-1)


def store(work: Array, given: Presented) -> None:
    """Put the result into the targets."""
    fields = [work[name] for name in given.work.names] if given.work.names else [work]
    for field, target in zip(fields, given.targets, strict=True):
        if not np.may_share_memory(field, target):
            np.copyto(target, field.reshape(target.shape), casting="unsafe")


def _is_in_place(buffer: Any) -> bool:
    return type(buffer).__name__ == "InPlaceType"


def _source(buffer: Any) -> Array:
    if hasattr(buffer, "__cuda_array_interface__"):
        raise TypeError(f"arrays in GPU memory are not supported, found {type(buffer).__name__}; copy it to the host")
    if isinstance(buffer, np.ma.MaskedArray):
        raise TypeError("masked arrays are not supported, since the mask would be lost; fill or compress the array")
    if isinstance(buffer, int) and not isinstance(buffer, bool):
        try:
            return np.asarray(buffer, dtype=np.int64)
        except OverflowError:
            raise ValueError(f"the integer {buffer} does not fit into int64") from None
    try:
        return np.asarray(buffer)
    except ValueError as error:
        raise TypeError(f"sendbuf is not an array: {error}") from None


def _target(buffer: Any, source: Array, dtype: DType) -> Array:
    array = buffer if isinstance(buffer, np.ndarray) else _from_memory(buffer)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("recvbuf is a masked array; pass a plain one")
    if array.dtype.newbyteorder("=") != dtype.newbyteorder("="):
        raise TypeError(
            f"recvbuf has dtype {array.dtype}, expected {dtype}, the result type for an input of {source.dtype}"
        )
    if array.shape != source.shape:
        raise ValueError(f"recvbuf has shape {array.shape}, expected {source.shape}, the shape of sendbuf")
    if not array.flags.writeable:
        raise ValueError("recvbuf is read-only; expected a writable array")
    if any(step == 0 and length > 1 for step, length in zip(array.strides, array.shape, strict=True)):
        raise ValueError("recvbuf has elements that share memory (a stride of 0); expected an array without")
    if not _same(source, array) and _overlap(source, array):
        raise ValueError("sendbuf and recvbuf overlap partly; expected the same array (in place) or separate ones")
    return array


def _from_memory(buffer: Any) -> Array:
    try:
        return np.asarray(memoryview(buffer))
    except (TypeError, ValueError):
        raise TypeError(
            f"recvbuf must be a writable array or buffer, found {type(buffer).__name__}"
        ) from None


def _same(a: Array, b: Array) -> bool:
    return (
        a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
        and (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
    )


def _overlap(a: Array, b: Array) -> bool:
    if not np.may_share_memory(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=100_000))
    except np.exceptions.TooHardError:
        return True


def _like(sendbuf: Any, targets: tuple[Array, ...]) -> Any:
    """Return the targets in the caller's own kind: arrays, NumPy scalars or Python numbers."""
    if isinstance(sendbuf, np.generic):
        values = tuple(target[()] for target in targets)
    elif isinstance(sendbuf, (bool, int, float, complex)):
        values = tuple(target.item() for target in targets)
    else:
        values = targets
    return values if len(values) > 1 else values[0]
