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
    if is_in_place(sendbuf):
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


def memory(buffer: Any, name: str) -> Array:
    """Return the array that a buffer is; unlike `source`, refuse what would be copied into one."""
    if isinstance(buffer, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; pass a plain one")
    if isinstance(buffer, np.ndarray):
        return np.asarray(buffer)
    try:
        return np.asarray(memoryview(buffer))
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a writable array or buffer, found {type(buffer).__name__}") from None


def pair(source: Array, sendbuf: Any, recvbuf: Any, result: DType, located: bool) -> Given:
    """Check the receive buffer, or allocate it.

    Raises
    ------
    TypeError
        A receive buffer of another dtype, or not an array.
    ValueError
        One that is read-only, of another shape, or overlaps the send buffer partly.
    """
    if recvbuf is None:
        types = (result, RANK) if located else (result,)
        return Given(source, tuple([np.empty(source.shape, dtype) for dtype in types]), False)
    if located:
        return _pair_of_two(source, sendbuf, recvbuf, result)
    target = receiving(recvbuf, source, result)
    in_place = recvbuf is sendbuf or is_in_place(sendbuf) or _same(source, target)
    return Given(source, (target,), in_place)


def _pair_of_two(source: Array, sendbuf: Any, recvbuf: Any, result: DType) -> Given:
    """Check a receive buffer for values and ranks."""
    if not isinstance(recvbuf, (tuple, list)) or len(recvbuf) != 2:
        raise TypeError("the result is a pair (values, ranks): recvbuf must be None or a pair of arrays")
    values, ranks = receiving(recvbuf[0], source, result), receiving(recvbuf[1], source, RANK)
    if np.may_share_memory(values, ranks):
        raise ValueError("the arrays for values and ranks share memory; expected separate ones")
    same = [_same(source, values), _same(source, ranks)]  # both are looked at, since it refuses a partial overlap
    return Given(source, (values, ranks), recvbuf is sendbuf or is_in_place(sendbuf) or any(same))


def room(given: Given, work: DType) -> tuple[Array, bool]:
    """Return a one-dimensional array of type `work` to reduce in, and whether it is the target's own memory."""
    target = given.targets[0]
    if target.dtype is work or target.dtype == work:
        flags = target.flags
        if flags.c_contiguous and flags.aligned:
            return target.reshape(-1), True
    return np.empty(given.source.size, work), False


def sendable(given: Given, work: DType) -> bool:
    """Whether the library can read the contribution where it is."""
    source = given.source
    return not given.in_place and source.dtype is work and source.flags.c_contiguous and source.flags.aligned


def fill(array: Array, given: Given, rank: int) -> None:
    """Put this rank's contribution into the array."""
    source = given.source
    shaped = array if source.ndim == 1 else array.reshape(source.shape)
    if array.dtype.names:
        shaped["value"], shaped["rank"] = source, rank
    else:
        shaped[...] = source


def store(array: Array, given: Given) -> None:
    """Put the reduced array into the targets."""
    names = array.dtype.names
    if not names:
        target = given.targets[0]
        shaped = array if target.ndim == 1 else array.reshape(target.shape)
        if target.dtype == array.dtype:
            target[...] = shaped
        else:
            with np.errstate(over="ignore"):  # a sum of 16-bit floats may well be infinite
                target[...] = shaped
        return
    for name, target in zip(names, given.targets, strict=True):
        target[...] = array[name].reshape(target.shape)


def returned(given: Given, sendbuf: Any) -> Any:
    """Return the targets in the sender's own kind: arrays, NumPy scalars or Python numbers."""
    if isinstance(sendbuf, np.generic):
        values = tuple(target[()] for target in given.targets)
    elif isinstance(sendbuf, (bool, int, float, complex)):
        values = tuple(target.item() for target in given.targets)
    else:
        values = given.targets
    return values if len(values) > 1 else values[0]


def is_in_place(buffer: Any) -> bool:
    """Whether this is ``MPI.IN_PLACE``."""
    return type(buffer).__name__ == "InPlaceType"


def share(one: Array, other: Array) -> bool:
    """Whether the two have an element in common, or may, where that is hard to tell."""
    try:
        return np.shares_memory(one, other, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def receiving(buffer: Any, source: Array, dtype: DType) -> Array:
    """Return the array that a receive buffer is, for a result of `dtype` in the shape of `source`; raise as `pair`."""
    array = buffer if type(buffer) is np.ndarray else memory(buffer, "recvbuf")
    if array.dtype is not dtype and array.dtype != dtype and array.dtype.newbyteorder("=") != dtype.newbyteorder("="):
        raise TypeError(
            f"recvbuf has dtype {array.dtype}, expected {dtype}, the result type for an input of {source.dtype}"
        )
    if array.shape != source.shape:
        raise ValueError(f"recvbuf has shape {array.shape}, expected {source.shape}, the shape of sendbuf")
    flags = array.flags
    if not flags.writeable:
        raise ValueError("recvbuf is read-only; expected a writable array")
    if not flags.c_contiguous and _overlaps_itself(array):
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


def _same(source: Array, target: Array) -> bool:
    """Return whether the two are the same memory; raise ValueError if they share a part of it."""
    if source.base is None and target.base is None and source is not target:
        return False  # arrays that own their memory do not share it
    if not np.may_share_memory(source, target):
        return False
    start, other = (array.__array_interface__["data"][0] for array in (source, target))
    if start == other and (source.shape, source.strides, source.dtype) == (target.shape, target.strides, target.dtype):
        return True
    if share(source, target):
        raise ValueError("sendbuf and recvbuf overlap partly; expected the same array (in place) or separate ones")
    return False
