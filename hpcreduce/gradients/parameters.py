"""What is known of a model's parameters, and how ranks that know different things find out. Pure: no MPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.gradients import tensors
from hpcreduce.runtime import lists
from hpcreduce.runtime.inquiry import named
from hpcreduce.runtime.operations import Array, DType, is_half

NAMED = 3
"""Parameters that an error names; of others it says how many they are."""


class Parameter(NamedTuple):
    """One parameter: an array, or a tensor of torch, and what it was when the averager was made."""

    label: str
    item: Any
    shape: tuple[int, ...]
    dtype: DType

    @property
    def work(self) -> DType:
        """The type that its gradients are summed in."""
        return np.dtype(np.float32) if is_half(self.dtype) else self.dtype

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"

    def trouble(self) -> str:
        """Return what has changed since, or an empty string."""
        shape = tuple(self.item.shape)
        if shape == self.shape:
            return ""
        return (
            f"parameter {self.label} has shape {shape}, expected {self.shape}, the one it had when the averager was "
            "made; make a new one"
        )


def read(params: Any, trained: bool = True) -> tuple[tuple[str, ...] | None, list[Parameter]]:
    """Return the sorted names, or `None`, and the parameters in that order.

    Raises
    ------
    TypeError
        Not a collection of arrays in host memory; if they are to be trained, of floating point or complex numbers.
    """
    names, items = lists.listed(params)
    labels = map(str, range(len(items))) if names is None else map(repr, names)
    parameters = [_parameter(label, item, trained) for label, item in zip(labels, items, strict=True)]
    if len({tensors.is_tensor(item) for item in items}) > 1:
        raise TypeError("parameters must be all arrays or all tensors, found both")
    return names, parameters


def _parameter(label: str, item: Any, trained: bool) -> Parameter:
    try:
        array = values(item)
    except TypeError as error:
        raise TypeError(f"parameter {label}: {error}") from None
    dtype = array.dtype.newbyteorder("=")
    if trained and dtype.kind not in "fc" and not is_half(dtype):
        raise TypeError(f"parameter {label}: gradients are floating point or complex numbers, found dtype {dtype}")
    return Parameter(label, item, tuple(array.shape), dtype)


def values(item: Any) -> Array:
    """Return the array that a parameter is, or the memory of a tensor as an array."""
    if tensors.is_tensor(item):
        return tensors.values(item)
    if hasattr(item, "__cuda_array_interface__"):
        raise TypeError(f"arrays in GPU memory are not supported, found {type(item).__name__}; copy it to the host")
    if not isinstance(item, np.ndarray) or isinstance(item, np.ma.MaskedArray):
        raise TypeError(f"expected a NumPy array or a tensor of torch, found {type(item).__name__}")
    return item


def like(names: tuple[str, ...] | None, count: int, gradients: Any) -> list[Any]:
    """Return gradients that are passed like the parameters, in the order of `read`.

    Raises
    ------
    TypeError, ValueError
        Another kind of collection, or other names or another number.
    """
    if isinstance(gradients, Mapping) != (names is not None):
        expected = f"a sequence of {count}" if names is None else "a mapping by name"
        raise TypeError(f"gradients must be {expected}, like params, found {type(gradients).__name__}")
    if names is not None:
        lists.check_names(names, gradients, "gradients")
        return [gradients[name] for name in names]
    found = list(gradients)
    if len(found) != count:
        raise ValueError(f"gradients must be {count} arrays or None, like params, found {len(found)}")
    return found


def described(parameters: Sequence[Parameter]) -> list[list[str]]:
    """Return label and kind of each."""
    return [[parameter.label, str(parameter)] for parameter in parameters]


def differences(descriptions: Sequence[dict[str, Any]]) -> str:
    """Return in words how the ranks' descriptions differ.

    A description has ``parameters`` as `described` returns them, and ``options``, a mapping.

    Examples
    --------
    >>> whole = {"parameters": [["'b'", "float64 (2,)"], ["'w'", "float64 (3,)"]], "options": {"wire": None}}
    >>> part = {"parameters": [["'w'", "float64 (3,)"]], "options": {"wire": None}}
    >>> differences([whole, part, whole])
    "parameter 'b': ranks 0,2 have float64 (2,); rank 1 has none"
    >>> differences([whole, whole | {"options": {"wire": "float16"}}])
    "option wire: rank 0 has None; rank 1 has 'float16'"
    """
    options = [{f"option {name}": repr(value) for name, value in each["options"].items()} for each in descriptions]
    kinds = [{f"parameter {label}": kind for label, kind in each["parameters"]} for each in descriptions]
    found = _unlike(options) + _unlike(kinds)
    more = f" (and {len(found) - NAMED} more)" if len(found) > NAMED else ""
    return ". ".join(found[:NAMED]) + more


def _unlike(ranks: Sequence[dict[str, str]]) -> list[str]:
    """Return what each key with different values on some ranks has on which."""
    found = []
    for key in dict.fromkeys(key for each in ranks for key in each):
        who: dict[str, list[int]] = {}
        for rank, each in enumerate(ranks):
            who.setdefault(each.get(key, "none"), []).append(rank)
        if len(who) > 1:
            texts = [
                f"{named(members)} {'has' if len(members) == 1 else 'have'} {kind}" for kind, members in who.items()
            ]
            found.append(f"{key}: {'; '.join(texts)}")
    return found
