"""From what the caller passes as many arrays to their layout, and from the results back.

All checks are done before any array is written. An error names the array.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from hpcreduce.runtime import buffers
from hpcreduce.runtime.buffers import Given
from hpcreduce.runtime.operations import OPERATIONS, Array, DType
from hpcreduce.runtime.parts import Layout, Way, arrange, label, way

NUMBERS = (np.generic, bool, int, float, complex)
"""What is no array, and gets a result of its own kind."""

_shape_of, _dtype_of = operator.attrgetter("shape"), operator.attrgetter("dtype")


def listed(arrays: Any) -> tuple[tuple[str, ...] | None, list[Any]]:
    """Return the sorted names, or `None`, and the arrays in that order."""
    if isinstance(arrays, Mapping):
        for name in arrays:
            if not isinstance(name, str):
                raise TypeError(f"the names of arrays must be strings, found {name!r}")
        names = tuple(sorted(arrays))
        return names, [arrays[name] for name in names]
    if _is_one(arrays):
        raise TypeError(
            f"arrays must be a sequence or a mapping of arrays, found {type(arrays).__name__}; "
            "hpcreduce.allreduce takes one array"
        )
    return None, list(arrays)


def _is_one(arrays: Any) -> bool:
    """Whether this is no collection: what gives its elements one by one is an array too."""
    if isinstance(arrays, (list, tuple)):
        return False
    if isinstance(arrays, (str, bytes, bytearray, memoryview)) or not isinstance(arrays, Iterable):
        return True
    try:
        memoryview(arrays)  # type: ignore[arg-type]
    except TypeError:
        return hasattr(arrays, "__array__")
    return True


def sources(names: tuple[str, ...] | None, items: list[Any]) -> list[Array]:
    """Return what this rank contributes, as arrays; `items` itself if it is arrays already."""
    if set(map(type, items)) <= {np.ndarray}:
        return items
    return [labelled(names, index, buffers.source, item, None, False) for index, item in enumerate(items)]


def labelled(names: tuple[str, ...] | None, index: int, check: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``check(*arguments)``; an error names the array."""
    try:
        return check(*arguments)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{label(names, index)}: {error}") from None


def laid_out(names: tuple[str, ...] | None, sources: list[Array], op: Any) -> Layout:
    """Return the layout of these arrays: from those that are kept, unless an operation is the user's own."""
    shapes, dtypes = tuple(map(_shape_of, sources)), tuple(map(_dtype_of, sources))
    if not isinstance(op, (list, tuple, Mapping)):
        one = way(op)
        if OPERATIONS.get(one.operation.name) is one.operation:
            return _kept(names, shapes, dtypes, one.operation.name)
        return arrange(names, shapes, dtypes, [one] * len(sources))
    ops = _each(names, len(sources), op)
    distinct: dict[int, Way] = {}
    for index, each in enumerate(ops):
        if id(each) not in distinct:
            distinct[id(each)] = labelled(names, index, way, each)
    ways = [distinct[id(each)] for each in ops]
    if all(OPERATIONS.get(each.operation.name) is each.operation for each in distinct.values()):
        return _kept(names, shapes, dtypes, tuple([each.operation.name for each in ways]))
    return arrange(names, shapes, dtypes, ways)


def _each(names: tuple[str, ...] | None, count: int, op: Any) -> list[Any]:
    """Return the operation of each array."""
    if isinstance(op, Mapping) != (names is not None):
        expected = "one op, or a sequence" if names is None else "one op, or a mapping with the same names"
        raise TypeError(
            f"op is a {type(op).__name__}, and arrays {'have' if names else 'have no'} names; expected {expected}"
        )
    if names is None:
        if len(op) != count:
            raise ValueError(f"op has {len(op)} entries for {count} arrays")
        return list(op)
    check_names(names, op, "op")
    return [op[name] for name in names]


def check_names(names: tuple[str, ...], other: Mapping[Any, Any], what: str) -> None:
    """Raise ValueError unless a mapping has these names."""
    missing = [name for name in names if name not in other]
    strange = [name for name in other if name not in names] if missing or len(other) > len(names) else []
    if missing or strange:
        wrong = [f"{name!r} is missing" for name in missing[:3]] + [f"{name!r} is no array" for name in strange[:3]]
        raise ValueError(f"{what} must have the names of the arrays: {', '.join(wrong)}")


@functools.lru_cache(maxsize=64)
def _kept(
    names: tuple[str, ...] | None,
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[DType, ...],
    ops: str | tuple[str, ...],
) -> Layout:
    """Return the layout for operations of the table."""
    rows = [ops] * len(shapes) if isinstance(ops, str) else ops
    known = {name: way(name) for name in set(rows)}
    return arrange(names, shapes, dtypes, [known[name] for name in rows])


def targets(
    names: tuple[str, ...] | None, items: list[Any], sources: list[Array], out: Any, layout: Layout
) -> list[tuple[Array, ...]]:
    """Return the arrays that the results are written to, checked."""
    if (names is not None) != isinstance(out, Mapping) or _is_one(out):
        raise TypeError(
            f"out must be a {'sequence' if names is None else 'mapping'} like arrays, found {type(out).__name__}"
        )
    if names is not None:
        check_names(names, out, "out")
    wanted = list(out) if names is None else [out[name] for name in names]
    if len(wanted) != len(items):
        raise ValueError(f"out has {len(wanted)} entries for {len(items)} arrays")
    targets: list[tuple[Array, ...]] = [()] * len(items)
    for part in layout.parts:
        for index in part.members:
            source, target, dtype = sources[index], wanted[index], layout.results[index]
            if part.operation.locates:
                given = labelled(names, index, buffers.pair, source, items[index], target, dtype, True)
                targets[index] = given.targets
            elif _fits(target, source, dtype):
                targets[index] = (target,)
            else:
                targets[index] = (labelled(names, index, buffers.receiving, target, source, dtype),)
    _check_apart(names, targets)
    return targets


def _fits(target: Any, source: Array, dtype: DType) -> bool:
    """Whether there is nothing that `buffers.receiving` would refuse: for most arrays, and in less time."""
    if type(target) is not np.ndarray or target.dtype != dtype or target.shape != source.shape:
        return False
    flags = target.flags
    return flags.writeable and flags.c_contiguous


def _check_apart(names: tuple[str, ...] | None, targets: list[tuple[Array, ...]]) -> None:
    """Raise ValueError if two of the arrays share memory."""
    arrays = [array for target in targets for array in target]
    if all(array.base is None for array in arrays) and len(set(map(id, arrays))) == len(arrays):
        return  # arrays that own their memory do not share it
    spans = []
    for index, target in enumerate(targets):
        for array in target:
            if array.size:
                low = high = array.__array_interface__["data"][0]
                for step, length in zip(array.strides, array.shape, strict=True):
                    low, high = low + min(0, step * (length - 1)), high + max(0, step * (length - 1))
                spans.append((low, high + array.itemsize, index, array))
    near: list[Any] = []
    for span in sorted(spans, key=lambda span: span[0]):
        near = [other for other in near if other[1] > span[0]]
        for other in near:
            if buffers.share(other[3], span[3]):
                first, second = sorted((other[2], span[2]))
                raise ValueError(
                    f"out: {label(names, first)} and {label(names, second)} share memory; expected separate arrays"
                )
        near.append(span)


def write(targets: list[tuple[Array, ...]], results: list[Any]) -> None:
    """Put the results where `targets` says."""
    for target, result in zip(targets, results, strict=True):
        if len(target) == 1:
            target[0][...] = result
        else:
            for array, values in zip(target, result, strict=True):
                array[...] = values


def returned(item: Any, result: Any) -> Any:
    """Return a result in the kind of what was passed: arrays, NumPy scalars or Python numbers."""
    if not isinstance(item, NUMBERS):
        return result
    targets = result if isinstance(result, tuple) else (result,)
    return buffers.returned(Given(targets[0], targets, False), item)


def like(arrays: Any, names: tuple[str, ...] | None, values: list[Any]) -> Any:
    """Return the values as a list, or by name in the order of `arrays`."""
    if names is None:
        return values
    by_name = dict(zip(names, values, strict=True))
    return {name: by_name[name] for name in arrays}
