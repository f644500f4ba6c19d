"""From what the caller passes to one contiguous array of the work type, and back.

Rules that hold here:

* The memory order of an array is never part of a call: arrays are presented in logical C order.
* The work array is the caller's own memory where type and layout allow it, so that a call in place copies nothing.
* All checks are done before any array is written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hpcreduce.runtime.operations import RANK, Array, DType


class Given(NamedTuple):
    """A checked pair of buffers.

    Attributes
    ----------
    source : numpy.ndarray
        What this rank contributes.
    targets : tuple of numpy.ndarray
        Where the result goes: one array, or values and ranks.
    in_place : bool
        Source and target are the same memory.
    """

    source: Array
    targets: tuple[Array, ...]
    in_place: bool


def source(sendbuf: Any, recvbuf: Any, located: bool) -> Array:
    """Return what this rank contributes, as an array.

    Raises
    ------
    TypeError
        Something that is not an array of numbers in host memory.
    ValueError
        ``MPI.IN_PLACE`` without a receive buffer, or an integer that does not fit into int64.
    """
    if type(sendbuf) is np.ndarray:
        return sendbuf
    if _is_in_place(sendbuf):
        if recvbuf is None:
            raise ValueError("sendbuf is MPI.IN_PLACE, so recvbuf must be the array to reduce; found None")
        first = recvbuf[0] if located and isinstance(recvbuf, (tuple, list)) and recvbuf else recvbuf
        return source(first, None, located)
    if hasattr(sendbuf, "__cuda_array_interface__"):
        raise TypeError(f"arrays in GPU memory are not supported, found {type(sendbuf).__name__}; copy it to the host")
    if isinstance(sendbuf, np.ma.MaskedArray):
        raise TypeError("masked arrays are not supported, since the mask would be lost; fill or compress the array")
    if isinstance(sendbuf, int) and not isinstance(sendbuf, bool):
        try:
            return np.asarray(sendbuf, dtype=np.int64)
        except OverflowError:
            raise ValueError(f"the integer {sendbuf} does not fit into int64") from None
    try:
        return np.asarray(sendbuf)
    except ValueError as error:
        raise TypeError(f"sendbuf is not an array: {error}") from None


def pair(source: Array, sendbuf: Any, recvbuf: Any, result: DType, located: bool) -> Given:
    """Check the receive buffer, or allocate it.

    Raises
    ------
    TypeError
        A receive buffer of another dtype, or not an array.
    ValueError
        One that is read-only, of another shape, or overlaps the send buffer partly.
    """
    types = (result, RANK) if located else (result,)
    if recvbuf is None:
        return Given(source, tuple(np.empty(source.shape, dtype) for dtype in types), False)
    given = recvbuf if located and isinstance(recvbuf, (tuple, list)) else (recvbuf,)
    if len(given) != len(types):
        raise TypeError("the result is a pair (values, ranks): recvbuf must be None or a pair of arrays")
    targets = tuple(_target(buffer, source, dtype) for buffer, dtype in zip(given, types, strict=True))
    if len(targets) > 1 and np.may_share_memory(targets[0], targets[1]):
        raise ValueError("the arrays for values and ranks share memory; expected separate ones")
    if recvbuf is sendbuf or _is_in_place(sendbuf):
        return Given(source, targets, True)
    same = [_same(source, target) for target in targets]  # all are looked at, since it refuses a partial overlap
    return Given(source, targets, any(same))


def room(given: Given, work: DType) -> Array:
    """Return the array that is to be reduced, one-dimensional and of type `work`: the target's memory, or a new one."""
    target = given.targets[0]
    fits = target.dtype == work and target.flags.c_contiguous and target.flags.aligned
    return target.reshape(-1) if fits else np.empty(given.source.size, work)


def fill(array: Array, given: Given, rank: int) -> None:
    """Put this rank's contribution into the array, unless it is there."""
    source = given.source
    if array.dtype.names:
        pairs = array.reshape(source.shape)
        pairs["value"], pairs["rank"] = source, rank
    elif not (given.in_place and np.may_share_memory(array, source)):
        np.copyto(array.reshape(source.shape), source, casting="unsafe")


def store(array: Array, given: Given) -> None:
    """Put the reduced array into the targets, unless it is their memory."""
    fields = [array[name] for name in array.dtype.names] if array.dtype.names else [array]
    for field, target in zip(fields, given.targets, strict=True):
        if not np.may_share_memory(field, target):
            np.copyto(target, field.reshape(target.shape), casting="unsafe")


def returned(given: Given, sendbuf: Any, recvbuf: Any) -> Any:
    """Return the receive buffer, or the targets in the sender's own kind: arrays, NumPy scalars or Python numbers."""
    if recvbuf is not None:
        return recvbuf
    if isinstance(sendbuf, np.generic):
        values = tuple(target[()] for target in given.targets)
    elif isinstance(sendbuf, (bool, int, float, complex)):
        values = tuple(target.item() for target in given.targets)
    else:
        values = given.targets
    return values if len(values) > 1 else values[0]


def _is_in_place(buffer: Any) -> bool:
    return type(buffer).__name__ == "InPlaceType"


def _target(buffer: Any, source: Array, dtype: DType) -> Array:
    if isinstance(buffer, np.ma.MaskedArray):
        raise TypeError("recvbuf is a masked array; pass a plain one")
    array = np.asarray(buffer) if isinstance(buffer, np.ndarray) else _from_memory(buffer)
    if array.dtype != dtype and array.dtype.newbyteorder("=") != dtype.newbyteorder("="):
        raise TypeError(
            f"recvbuf has dtype {array.dtype}, expected {dtype}, the result type for an input of {source.dtype}"
        )
    if array.shape != source.shape:
        raise ValueError(f"recvbuf has shape {array.shape}, expected {source.shape}, the shape of sendbuf")
    if not array.flags.writeable:
        raise ValueError("recvbuf is read-only; expected a writable array")
    if not array.flags.c_contiguous and _overlaps_itself(array):
        raise ValueError("recvbuf has elements that share memory; expected an array without")
    return array


def _overlaps_itself(array: Array) -> bool:
    """Return whether two elements share memory, or may, as far as the strides tell."""
    reach = array.itemsize
    for step, length in sorted((abs(step), length) for step, length in zip(array.strides, array.shape, strict=True)):
        if length > 1 and step < reach:
            return bool(array.size)
        reach += step * (length - 1)
    return False


def _from_memory(buffer: Any) -> Array:
    try:
        return np.asarray(memoryview(buffer))
    except (TypeError, ValueError):
        raise TypeError(f"recvbuf must be a writable array or buffer, found {type(buffer).__name__}") from None


def _same(source: Array, target: Array) -> bool:
    """Return whether the two are the same memory; raise ValueError if they share a part of it."""
    if not np.may_share_memory(source, target):
        return False
    start, other = (array.__array_interface__["data"][0] for array in (source, target))
    if start == other and (source.shape, source.strides, source.dtype) == (target.shape, target.strides, target.dtype):
        return True
    try:
        shared = np.shares_memory(source, target, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        shared = True
    if shared:
        raise ValueError("sendbuf and recvbuf overlap partly; expected the same array (in place) or separate ones")
    return False
