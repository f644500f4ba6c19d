"""One step: what this rank brings to the next average, and what travels besides the buckets.

An error on this rank alone keeps no other waiting: it is kept here, the rank takes part with zeros, and raises it when
all know.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcreduce.collectives import allreduce_init, check_weight
from hpcreduce.gradients import tensors
from hpcreduce.gradients.parameters import Parameter, like
from hpcreduce.runtime.operations import Array

_WEIGHT, _TROUBLES, _FIRST = 0, 1, 2  # in the head; then one count per parameter


class Step:
    """What this rank has for the next average.

    Attributes
    ----------
    there : numpy.ndarray of bool
        Which gradients it has.
    lost : dict
        Numbers of gradients that are not finite, and what they have.
    error : Exception or None
        The first one, which is raised once all ranks know.
    weight : float or None
        What its gradients count for; settled once a bucket leaves.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = parameters
        self.there = np.zeros(len(parameters), bool)
        self.lost: dict[int, str] = {}
        self.error: Exception | None = None
        self.weight: float | None = None

    def bring(
        self,
        names: tuple[str, ...] | None,
        gradients: Any,
        weight: float | None,
        max_norm: float | None,
        wire: str | None,
    ) -> list[Any] | None:
        """Check the arguments of `GradientAverager.average`, and return the gradients in our order."""
        try:
            for parameter in self._parameters:
                if trouble := parameter.trouble():
                    raise ValueError(trouble)
            if max_norm is not None and not (isinstance(max_norm, numbers.Real) and max_norm > 0):
                raise ValueError(f"max_norm must be a number above 0, found {max_norm!r}")
            if weight is not None:
                check_for(weight, wire)
                if self.weight not in (None, float(weight)):
                    raise ValueError("buckets have left with another weight; set averager.weight before backward()")
                self.weight = float(weight)
            return None if gradients is None else like(names, len(self._parameters), gradients)
        except (TypeError, ValueError) as error:
            self.error = self.error or error
        return [None] * len(self._parameters)

    def claim(self, weight: float | None, wire: str | None) -> float:
        """Return the weight of this step, which is `weight` unless it is settled."""
        if self.weight is None:
            try:
                check_for(weight, wire)
                self.weight = 1.0 if weight is None else float(weight)
            except (TypeError, ValueError) as error:
                self.error, self.weight = self.error or error, 0.0
        return self.weight

    def fetch(self, index: int, home: Array, given: Sequence[Any] | None, grads: tensors.Gradients | None) -> None:
        """Bring a gradient home: zeros if there is none."""
        there = False
        try:
            if grads:
                if given is not None and self.error is None:
                    raise TypeError("the gradients of tensors are their grad; call average() without")
                there = self.error is None and grads.fetch(index)
            elif given is None:
                there = True
            elif given[index] is not None:
                array = np.asarray(given[index])
                if array.shape != home.shape:
                    raise ValueError(f"found shape {array.shape}, expected {home.shape}")
                np.copyto(home, array, casting="same_kind")
                there = True
        except (TypeError, ValueError, RuntimeError) as error:  # torch raises the last one for wrong shapes
            kind = TypeError if isinstance(error, TypeError) else ValueError
            self.error = self.error or kind(f"the gradient of parameter {self._parameters[index].label}: {error}")
        if not there:
            home.fill(0)
        self.there[index] = there


class Head:
    """The sum over ranks of weights, of troubles, and of how many have each gradient.

    Attributes
    ----------
    total : float
        The sum of the weights.
    troubled : bool
        Some rank has an error, or gradients that are not finite.
    there : numpy.ndarray of bool
        Which gradients any rank has.
    """

    def __init__(self, comm: Any, count: int, timeout: float | None) -> None:
        self._array = np.zeros(_FIRST + count)
        self._plan = allreduce_init(comm, self._array, self._array, timeout=timeout)

    def combine(self, step: Step) -> None:
        """Sum what the ranks have; collective."""
        array = self._array
        array[_WEIGHT], array[_TROUBLES] = step.weight or 0.0, bool(step.error or step.lost)
        array[_FIRST:] = step.there
        self._plan.Start()
        self._plan.Wait()
        self.total, self.troubled, self.there = float(array[_WEIGHT]), bool(array[_TROUBLES]), array[_FIRST:] > 0

    def free(self) -> None:
        """Give back the plan."""
        self._plan.Free()


def check_for(weight: float | None, wire: str | None) -> None:
    """Raise if this is no weight, or one that the wire could not hold."""
    if weight is not None:
        check_weight(weight)
        if wire == "float16":
            raise ValueError("wire 'float16' takes no weights, which it could not hold; use wire='bfloat16'")
