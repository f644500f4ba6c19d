"""Inputs whose reduction is known exactly, in whatever order it is done, and that depend on rank *and* index.

Every rank can make every other rank's input, so each knows the result without a message. All inputs are small whole
numbers (complex: a whole number times a constant); results are computed from those in 64-bit integers, independent of
the operations under test. Reductions that propagate or ignore NaN and NaT get some.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.runtime.operations import OPERATIONS, Array, DType, is_half

_BITWISE = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
_EXTREME = ("max", "min", "nanmax", "nanmin", "maxloc", "minloc")


_PLAIN = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 longdouble "
    "complex64 complex128 clongdouble >i4 >f8"
)
NAMES = (*_PLAIN.split(" "), "datetime64", "timedelta64", "bfloat16")
"""Names of the kinds of array that are validated."""


def dtypes() -> dict[str, DType]:
    """Name -> dtype; bfloat16 is missing where ml_dtypes is."""
    special: dict[str, Any] = {"datetime64": "M8[us]", "timedelta64": "m8[us]"}
    try:
        from ml_dtypes import bfloat16

        special["bfloat16"] = bfloat16
    except ImportError:
        special["bfloat16"] = None
    return {name: np.dtype(kind) for name in NAMES if (kind := special.get(name, name)) is not None}


def applies(op: str, dtype: DType) -> bool:
    """Whether the operation takes the dtype."""
    try:
        OPERATIONS[op].types(dtype)
    except TypeError:
        return False
    return True


def mpi_has(op: str, dtype: DType) -> bool:
    """Whether MPI has this operation on this type, be its meaning ours in all cases or not."""
    known = ALGORITHMS["mpi"].pairs.get(op, "") + ("fdg" if op in ("max", "min") else "bBhH" if op == "sum" else "")
    return dtype.isnative and dtype.char in known


def make(op: str, dtype: DType, count: int, rank: int, size: int) -> Array:
    """Return what `rank` of `size` contributes: `count` elements of `dtype`."""
    index = np.arange(count, dtype=np.int64)
    values = _whole(op, dtype, index, rank, size)
    if dtype.kind == "c":
        return np.asarray(values * (1j if op == "prod" else 1 - 2j), dtype)
    return _lose(values.astype(dtype), _lost(op, dtype, index) & (index % size == rank))


def expected(op: str, dtype: DType, count: int, size: int) -> tuple[Array, ...]:
    """Return the exact result: one array, or values and ranks for ``maxloc`` and ``minloc``."""
    index = np.arange(count, dtype=np.int64)
    stack = np.array([_whole(op, dtype, index, rank, size) for rank in range(size)])
    result = OPERATIONS[op].types(dtype)[1]
    if op in _EXTREME:
        return _extreme(op, stack, index, _lost(op, dtype, index), result)
    if op in _BITWISE:
        whole = _BITWISE[op].reduce(stack, axis=0)
    elif op in ("land", "lor", "lxor"):
        true = (stack != 0).sum(axis=0)
        whole = {"land": true == size, "lor": true > 0, "lxor": true % 2 == 1}[op].astype(np.int64)
        return (whole.astype(result),)
    elif op == "prod":
        whole = stack.prod(axis=0)
    elif op == "mean":  # whole, but for bools
        whole = stack.sum(axis=0) / size if dtype.kind == "b" else stack.sum(axis=0) // size
    else:
        whole = stack.sum(axis=0)
    if dtype.kind == "c":
        return ((whole * ((1, 1j, -1, -1j)[size % 4] if op == "prod" else 1 - 2j)).astype(result),)
    return (whole.astype(result),)


def settled(op: str, dtype: DType, count: int, size: int) -> Array:
    """Return at which elements all MPI libraries agree: no NaN, and no overflow of a small integer."""
    index = np.arange(count, dtype=np.int64)
    if op != "sum" or dtype.itemsize > 2:
        return np.asarray(~_lost(op, dtype, index))
    total = sum(np.abs(_whole(op, dtype, index, rank, size)) for rank in range(size))
    return np.asarray(total <= _most(dtype))


def _whole(op: str, dtype: DType, index: Array, rank: int, size: int) -> Any:
    """Return the whole numbers behind a contribution."""
    mixed = (rank + 1) * (index + 1) + 3 * index + rank
    kind, brain = dtype.kind, dtype.name == "bfloat16"
    top = 256 if brain else 2048 if is_half(dtype) else 1 << 20  # whole numbers up to here are exact
    if op == "prod":  # at most six ranks double an element
        if kind == "b":
            return (mixed % 5 > 0) * np.int64(1)
        return np.where((rank + index) % size < 6, 2, 1 if kind == "u" else 1 - 2 * (mixed % 2))
    if op in ("land", "lor", "lxor"):
        true = {"land": mixed % (size + 2) > 0, "lor": mixed % (size + 2) == 0, "lxor": mixed % 2 == 1}[op]
        return true * np.int64(1) if kind == "b" else true * (1 + mixed % 5)
    if kind == "b":
        return mixed % 2
    if op == "mean":
        return size * (mixed % max(1, min(top, 1000, _most(dtype)) // size))
    if op == "sum" and kind not in "iu":
        return mixed % max(1, min(top, 1 << 20) // size)
    if op == "sum" or op in _BITWISE:
        return (mixed * 2654435761 * 40503).astype(dtype).astype(np.int64)  # the whole range of the type: wraps around
    spread = min(100 if dtype.itemsize == 1 or brain else 1000, _most(dtype))
    scattered = mixed * 7919 % spread
    return scattered if kind == "u" else scattered - spread // 2


def _most(dtype: DType) -> int:
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else 1 << 20


def _lost(op: str, dtype: DType, index: Array) -> Any:
    """Return at which elements one rank (`index` modulo `size`) contributes NaN or NaT."""
    can = op in _EXTREME and (dtype.kind in "fmM" or dtype.name == "bfloat16")
    return (index % 7 == 3) if can else np.zeros(index.shape, bool)


def _lose(values: Array, where: Array) -> Array:
    if where.any():
        values[where] = np.array("NaT", values.dtype) if values.dtype.kind in "mM" else np.nan
    return values


def _extreme(op: str, stack: Array, index: Array, lost: Array, result: DType) -> tuple[Array, ...]:
    size = len(stack)
    largest = op in ("max", "nanmax", "maxloc")
    if op.startswith("nan") and size > 1:
        stack[index[lost] % size, index[lost]] = np.iinfo(np.int64).min if largest else np.iinfo(np.int64).max
        lost = np.zeros_like(lost)
    best = stack.max(axis=0) if largest else stack.min(axis=0)
    values = _lose(best.astype(result), lost)
    if not op.endswith("loc"):
        return (values,)
    return values, np.where(lost, index % size, (stack == best).argmax(axis=0))


def same(found: Array, wanted: Array) -> Array:
    """Return element by element whether the two are equal, NaN and NaT equal to themselves."""
    return np.asarray((found == wanted) | (found != found) & (wanted != wanted))
