"""From mpi4py's buffer specifications to NumPy arrays.

A specification is a buffer, or ``[buffer, count, type]``, ``[buffer, type]``, ``[buffer, count]``,
``[buffer, (count, displacement), type]`` or ``[buffer, count, displacement, type]``; counts and displacements are in
elements. What cannot be told as an array of numbers in host memory (pair and derived datatypes, device memory) is left
to the library, and so is what it refuses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcreduce.runtime.operations import Array, DType

_types: dict[int, DType] = {}


def array(spec: Any) -> Array | None:
    """Return the elements that a specification names, as an array of their memory; `None` for what is not ours.

    Raises
    ------
    TypeError
        A masked array: its mask would be lost.
    ValueError
        The count or the displacement reaches beyond the buffer.
    """
    if type(spec) is np.ndarray:
        return spec
    if not isinstance(spec, (list, tuple)):
        return _from_buffer(spec)
    parts = _parts(spec)
    if parts is None:
        return None
    buffer, count, displacement, datatype = parts
    base = _from_buffer(buffer)
    dtype = base.dtype if base is not None and datatype is None else _dtype(datatype)
    if base is None or dtype is None or not base.flags.c_contiguous:
        return None
    elements = base.nbytes // dtype.itemsize
    if count is None:
        count = elements - displacement
        if base.nbytes % dtype.itemsize:
            return None
    if min(count, displacement) < 0:
        return None
    if displacement + count > elements:
        raise ValueError(
            f"{count} elements of {dtype} from element {displacement} on do not fit into a buffer of {elements}"
        )
    start, stop = displacement * dtype.itemsize, (displacement + count) * dtype.itemsize
    return base.reshape(-1).view(np.uint8)[start:stop].view(dtype)


def _parts(spec: Any) -> tuple[Any, int | None, int, Any] | None:
    """Return buffer, count, displacement and datatype."""
    count: Any = None
    displacement: Any = 0
    datatype: Any = None
    if len(spec) == 2:
        buffer, second = spec
        if hasattr(second, "Get_extent") or isinstance(second, str):
            datatype = second
        else:
            count = second
    elif len(spec) == 3:
        buffer, count, datatype = spec
    elif len(spec) == 4:
        buffer, count, displacement, datatype = spec
    else:
        return None
    if isinstance(count, (tuple, list)) and len(count) == 2:
        count, displacement = count
    displacement = 0 if displacement is None else displacement
    if not isinstance(displacement, (int, np.integer)) or not isinstance(count, (int, np.integer, type(None))):
        return None
    return buffer, None if count is None else int(count), int(displacement), datatype


def _from_buffer(buffer: Any) -> Array | None:
    if isinstance(buffer, np.ma.MaskedArray):
        raise TypeError("masked arrays are not supported, since the mask would be lost; fill or compress the array")
    if isinstance(buffer, np.ndarray):
        return np.asarray(buffer)
    try:
        return np.asarray(memoryview(buffer))
    except (TypeError, ValueError):
        return None


def _dtype(datatype: Any) -> DType | None:
    """Return the NumPy type of a predefined MPI datatype of numbers."""
    from mpi4py import MPI

    if not _types:
        for name, value in vars(MPI).items():
            if isinstance(value, MPI.Datatype) and value and not name.startswith(("LOGICAL", "BYTE", "PACKED")):
                _add(value)
    if isinstance(datatype, str):
        try:
            datatype = MPI.Datatype.fromcode(datatype)
        except (ValueError, KeyError):
            return None
    return _types.get(datatype.handle) if isinstance(datatype, MPI.Datatype) else None


def _add(datatype: Any) -> None:
    try:
        dtype = np.dtype(datatype.tocode())
    except (ValueError, TypeError):  # no single number
        return
    if dtype.kind in "biufc" and dtype.itemsize == datatype.Get_size():
        _types[datatype.handle] = dtype
