"""What the reduction operations mean: the types they take, work in and return, and how two arrays are combined.

Rules that hold here:

* One table, `OPERATIONS`. Dispatch, ``--help``, errors and tests read it.
* Three types: the caller's, the *work* type that is reduced and travels, and the result's. 16-bit floats work in
  float32 and are rounded once, at the end. A mean divides once, after the last reduction.
* Integer sums and products keep their type and wrap around as NumPy's do. Sum and product of bools are int64; the mean
  of integers and bools is float64. ``max`` and ``min`` propagate NaN (and NaT); ``nanmax`` and ``nanmin`` ignore it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.schedule import RIGHT

Array = np.ndarray[Any, np.dtype[Any]]
DType = np.dtype[Any]

_KINDS = {
    "b": "bool",
    "i": "int",
    "u": "uint",
    "f": "float (float16, bfloat16, float32, float64, longdouble)",
    "c": "complex",
    "m": "timedelta64",
    "M": "datetime64",
}
RANK = np.dtype(np.int64)
"""Type of the ranks that ``maxloc`` and ``minloc`` return."""


class Operation(NamedTuple):
    """One row of `OPERATIONS`.

    Attributes
    ----------
    name : str
    combine : callable
        ``combine(a, b, out=out)`` stores ``a op b``; `out` is `a`, and `b` may be lost.
    kinds : str
        The kinds of dtype that the operation takes (NumPy's letters; bfloat16 counts as ``f``).
    work, result : str
        How the work and the result type follow from the caller's: ``same``, ``wide`` (bool to int64), ``mean`` (bool
        and integers to float64), ``bool``, ``pair``.
    library : str or MPI.Op
        Name of the library's constant, a user's own MPI.Op, or empty.
    commutative : bool
    """

    name: str
    combine: Callable[..., object]
    kinds: str
    work: str = "same"
    result: str = "same"
    library: Any = ""
    commutative: bool = True

    @property
    def divides(self) -> bool:
        """Whether the result is divided by the number of ranks."""
        return self.work == "mean"

    @property
    def predefined(self) -> bool:
        """Whether it is a row of `OPERATIONS`, whose functions leave their second operand alone."""
        return isinstance(self.library, str) and bool(self.library)

    @property
    def locates(self) -> bool:
        """Whether the result is a pair of values and ranks."""
        return self.work == "pair"

    def fold(self, target: Array, landed: Array, side: str) -> None:
        """Reduce `landed`, which is lost, into `target` from the given side.

        The output is always the first operand: NumPy may swap the operands of a sum depending on which one it is, and
        then two ranks that combine the same values would differ in the bits of a NaN.
        """
        if side == RIGHT:
            self.combine(target, landed, out=target)
        else:
            self.combine(landed, target, out=landed)
            np.copyto(target, landed)

    def types(self, dtype: DType) -> tuple[DType, DType]:
        """Return the work and the result type for arrays of `dtype`, or raise TypeError."""
        kind = _kind(dtype)
        if kind not in self.kinds:
            raise TypeError(
                f"op {self.name!r} does not take dtype {dtype}; it takes "
                + ", ".join(text for letter, text in _KINDS.items() if letter in self.kinds)
            )
        work = np.dtype(np.float32) if is_half(dtype) else dtype.newbyteorder("=")
        if self.work == "pair":
            return np.dtype([("value", work), ("rank", RANK)], align=True), dtype
        return _rule(self.work, kind, work), _rule(self.result, kind, dtype)


def predefined(operation: Operation) -> Any:
    """Return the ``MPI.Op`` constant of the operation, `None` for an operation of the user's own."""
    from mpi4py import MPI

    return getattr(MPI, operation.library) if isinstance(operation.library, str) else None


def divide(work: Array, size: float) -> None:
    """Divide the sums in `work` by the number of ranks, or the sum of their weights, in place."""
    if work.dtype.kind == "c":  # part by part: dividing complex numbers rounds more than once
        work = work.view(work.real.dtype)
    np.true_divide(work, size, out=work, casting="unsafe")


def _rule(rule: str, kind: str, dtype: DType) -> DType:
    if rule == "bool":
        return np.dtype(bool)
    if rule == "wide" and kind == "b":
        return np.dtype(np.int64)
    if rule == "mean" and kind in "biu":
        return np.dtype(np.float64)
    return dtype


def is_half(dtype: DType) -> bool:
    """Whether `dtype` is a 16-bit float."""
    return dtype.itemsize == 2 and (dtype.kind == "f" or dtype.name == "bfloat16")


def _kind(dtype: DType) -> str:
    return "f" if dtype.name == "bfloat16" else dtype.kind


def _pairs(better: Callable[[Array, Array], Array]) -> Callable[[Array, Array, Array], None]:
    """Combine (value, rank) pairs: the better value wins, NaN or NaT before all, then the lower rank."""

    def combine(a: Array, b: Array, out: Array) -> None:
        x, y = a["value"], b["value"]
        x_lost, y_lost = x != x, y != y  # NaN and NaT differ from themselves
        lower = b["rank"] < a["rank"]
        take = np.where(x_lost | y_lost, y_lost & (lower | ~x_lost), better(y, x) | ((x == y) & lower))
        np.copyto(out, np.where(take, b, a))

    return combine


_REAL = "biufmM"
OPERATIONS: dict[str, Operation] = {
    row.name: row
    for row in (
        Operation("sum", np.add, "biufcm", "wide", "wide", "SUM"),
        Operation("mean", np.add, "biufcm", "mean", "mean", "SUM"),
        Operation("prod", np.multiply, "biufc", "wide", "wide", "PROD"),
        Operation("max", np.maximum, _REAL, library="MAX"),
        Operation("min", np.minimum, _REAL, library="MIN"),
        Operation("nanmax", np.fmax, _REAL, library="MAX"),
        Operation("nanmin", np.fmin, _REAL, library="MIN"),
        Operation("land", np.logical_and, "biufc", "bool", library="LAND"),
        Operation("lor", np.logical_or, "biufc", "bool", library="LOR"),
        Operation("lxor", np.logical_xor, "biufc", "bool", library="LXOR"),
        Operation("band", np.bitwise_and, "biu", library="BAND"),
        Operation("bor", np.bitwise_or, "biu", library="BOR"),
        Operation("bxor", np.bitwise_xor, "biu", library="BXOR"),
        Operation("maxloc", _pairs(np.greater), _REAL, "pair", library="MAXLOC"),
        Operation("minloc", _pairs(np.less), _REAL, "pair", library="MINLOC"),
    )
}
"""Name -> row."""

_PREDEFINED = tuple(name for name, row in OPERATIONS.items() if name not in ("mean", "nanmax", "nanmin"))
_ALIASES = {
    "logical_and": "land",
    "logical_or": "lor",
    "logical_xor": "lxor",
    "bitwise_and": "band",
    "bitwise_or": "bor",
    "bitwise_xor": "bxor",
}


def resolve(op: Any) -> Operation:
    """Return the operation that `op` names.

    Parameters
    ----------
    op : str, MPI.Op or callable
        A name in `OPERATIONS`; a predefined or user-defined ``MPI.Op``; or a function ``f(a, b) -> c`` of arrays, taken
        as non-commutative unless it has a true attribute ``commutative``.

    Raises
    ------
    ValueError
        An unknown name.
    TypeError
        Neither a name, nor an MPI.Op, nor a callable.
    """
    if isinstance(op, str):
        try:
            return OPERATIONS[_ALIASES.get(op, op)]
        except KeyError:
            raise ValueError(f"unknown op {op!r}; expected one of {', '.join(OPERATIONS)}") from None
    if hasattr(op, "Reduce_local") or type(op).__module__.startswith("mpi4py"):
        return _from_mpi(op)
    if any(op is builtin for builtin in (builtins.sum, builtins.max, builtins.min)):
        raise TypeError(f"op is the Python function {op.__name__}; write op={op.__name__!r}")
    if callable(op):
        return _from_callable(op)
    raise TypeError(f"op must be a name, an MPI.Op or a callable of two arrays, found {type(op).__name__}")


_by_handle: dict[int, Operation] = {}  # predefined operations have fixed handles


def _from_mpi(op: Any) -> Operation:
    if type(op).__name__ == "Op" and (found := _by_handle.get(op.handle)):
        return found
    from mpi4py import MPI

    if not _by_handle:
        _by_handle.update({getattr(MPI, OPERATIONS[name].library).handle: OPERATIONS[name] for name in _PREDEFINED})
        return _from_mpi(op)
    if not isinstance(op, MPI.Op) or op in (MPI.OP_NULL, MPI.REPLACE, MPI.NO_OP):
        raise ValueError(f"op {op} does not reduce; expected one of {', '.join(OPERATIONS)} or an MPI.Op of your own")

    def combine(a: Array, b: Array, out: Array) -> None:
        op.Reduce_local(a, b)  # leaves its result in its second argument
        np.copyto(out, b)

    return Operation("user-defined MPI.Op", combine, "biufc", library=op, commutative=op.Is_commutative())


def _from_callable(function: Callable[[Any, Any], Any]) -> Operation:
    def combine(a: Array, b: Array, out: Array) -> None:
        value = np.asarray(function(a, b))
        if value.shape != out.shape:
            raise ValueError(f"op returned shape {value.shape} for two arrays of shape {out.shape}")
        np.copyto(out, value, casting="same_kind")

    name = f"callable {getattr(function, '__name__', type(function).__name__)}"
    return Operation(name, combine, "biufcmM", commutative=bool(getattr(function, "commutative", False)))
