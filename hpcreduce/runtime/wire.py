"""Reductions whose messages have another type than what is reduced in: narrow wires, and sums in doubled precision.

For the algorithm `direct`, in which one rank owns each element: it gets every contribution as it is, and hands out
results. So a contribution is rounded to the wire's type once, and so is the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hpcreduce.runtime.operations import Array, DType, Operation, divide, is_half

NAMES = ("bfloat16", "float16")
"""Types that can be asked for as a wire."""


class Codec(NamedTuple):
    """How contributions get into the work array, onto the wire, and out again.

    Attributes
    ----------
    operation : Operation
    work, wire : numpy.dtype
        A work type with fields ``high`` and ``low`` is a sum in doubled precision: their sum, unevaluated.
    size : int
        Number of ranks, for means.
    """

    operation: Operation
    work: Any
    wire: Any
    size: int

    @property
    def doubled(self) -> bool:
        """Whether sums are held in two parts."""
        return self.work.names is not None

    def load(self, work: Array, source: Array) -> None:
        """Put a contribution into the work array, as it looks to the others."""
        with np.errstate(over="ignore"):
            values = source.reshape(-1).astype(self.wire)
        if self.doubled:
            work["high"], work["low"] = values, 0
        else:
            work[...] = values

    def encode(self, work: Array) -> Array:
        """Return a part of the work array, which is a contribution or a finished result, as it travels."""
        return np.ascontiguousarray(work["high"] if self.doubled else work, self.wire)

    def fold(self, target: Array, landed: Array, side: str) -> None:
        """Reduce what has landed into the target; an empty side overwrites."""
        if self.doubled:
            if side:
                add(target["high"], target["low"], landed)
            else:
                target["high"], target["low"] = landed, 0
        elif side:
            self.operation.fold(target, landed.astype(self.work), side)
        else:
            target[...] = landed

    def finish(self, work: Array) -> None:
        """Round a complete part of the work array to what travels, after the division of a mean."""
        if self.doubled:
            high, low = work["high"], work["low"]
            work["high"] = quotient(high, low, self.size) if self.operation.divides else high + low
            work["low"] = 0
        else:
            if self.operation.divides:
                divide(work, self.size)
            with np.errstate(over="ignore"):
                work[...] = work.astype(self.wire)

    def store(self, work: Array, target: Array) -> None:
        """Put the finished work array into the target."""
        target[...] = (work["high"] if self.doubled else work).reshape(target.shape)


def add(high: Array, low: Array, values: Array) -> None:
    """Add to an unevaluated sum, in place: the error of each addition is exact, and is added to the low part.

    Knuth's two-sum; Ogita, Rump and Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26 (2005),
    doi:10.1137/030601818. Infinities and NaN keep their meaning: the low part of such a sum stays out of it.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        total = high + values
        part = total - high
        error = (high - (total - part)) + (values - part)
        low += np.where(np.isfinite(error), error, 0)
    high[...] = total


def quotient(high: Array, low: Array, size: int) -> Array:
    """Return the unevaluated sum divided by a small whole number, rounded once (but in the rarest of cases)."""
    if high.dtype.kind == "c":
        result = np.empty_like(high)
        result.real, result.imag = quotient(high.real, low.real, size), quotient(high.imag, low.imag, size)
        return result
    with np.errstate(invalid="ignore", over="ignore"):
        first = (high + low) / size
        scale = high.dtype.type(2 ** ((np.finfo(high.dtype).nmant + 2) // 2) + 1)
        upper = first * scale - (first * scale - first)  # Dekker's split, so that the product by `size` is exact
        rest = ((high - upper * size) - (first - upper) * size) + low
        result = first + rest / size
    return np.where(np.isfinite(result), result, first)


def codec(operation: Operation, dtype: DType, order: str | None, wire: str | None, size: int) -> Codec | None:
    """Return the codec for arrays of `dtype`, or `None` where plain `direct` does what is asked for.

    Raises
    ------
    TypeError, ValueError
        An order or a wire that makes no sense for the operation or the type.
    """
    work, _ = operation.types(dtype)
    floating = dtype.kind in "fc" or is_half(dtype)
    if wire and (not floating or dtype.kind == "c" or operation.work not in ("same", "wide", "mean")):
        raise ValueError(
            f"wire {wire!r} is for floating point and its sums, means, products and extremes, found op "
            f"{operation.name!r} of {dtype}"
        )
    if order and floating and operation.name == "prod":
        raise ValueError("order 'rank' is for sums and means, found op 'prod'; products are not rounded once")
    exact = order and floating and operation.name in ("sum", "mean")
    if not (wire or exact):
        return None
    travels = _named(wire) if wire else dtype if dtype.name == "bfloat16" else dtype.newbyteorder("=")
    return Codec(operation, _wider(work) if exact else work, travels, size)


def check(order: object, wire: object) -> None:
    """Raise ValueError for what is no order or no wire."""
    if order not in (None, "rank"):
        raise ValueError(f"unknown order {order!r}, expected 'rank' or None")
    if wire is not None and wire not in NAMES:
        raise ValueError(f"unknown wire {wire!r}, expected one of {', '.join(NAMES)}, or None")


def _named(wire: str) -> DType:
    if wire == "float16":
        return np.dtype(np.float16)
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise ValueError("wire 'bfloat16' needs the package ml_dtypes: pip install ml_dtypes") from None
    dtype: DType = np.dtype(bfloat16)
    return dtype


def _wider(work: DType) -> DType:
    """Return a type of at least twice the digits."""
    if work == np.float32:
        return np.dtype(np.float64)
    if work == np.complex64:
        return np.dtype(np.complex128)
    return np.dtype([("high", work), ("low", work)])
