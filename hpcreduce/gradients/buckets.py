"""Gradients side by side in buckets, each of which is one all-reduce.

The order of parameters is the reverse of that in which the model has them: the last ones get their gradients first, and
their bucket is under way while the others are computed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from hpcreduce import sharing
from hpcreduce.collectives import allreduce_init
from hpcreduce.gradients.parameters import Parameter
from hpcreduce.runtime.operations import Array, DType, divide, is_half
from hpcreduce.runtime.rooms import worth_a_look
from hpcreduce.runtime.state import State
from hpcreduce.units import plural


class Options(NamedTuple):
    """How all buckets of an averager are reduced; as for `hpcreduce.allreduce`."""

    algorithm: str
    wire: str | None
    order: str | None
    timeout: float | None


def arrange(parameters: Sequence[Parameter], order: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """Return the members of each bucket: neighbours in `order` of one dtype, up to so many bytes, one at least.

    Examples
    --------
    >>> single, double = np.dtype("f4"), np.dtype("f8")
    >>> some = [Parameter(str(index), None, (10,), single if index < 4 else double) for index in range(6)]
    >>> arrange(some, [5, 3, 2, 4, 1, 0], 120)
    [[5], [3, 2, 1], [4], [0]]
    """
    full: list[list[int]] = []
    filling: dict[DType, tuple[list[int], int]] = {}
    for index in order:
        parameter = parameters[index]
        nbytes = math.prod(parameter.shape) * parameter.dtype.itemsize
        members, used = filling.get(parameter.dtype, ([], 0))
        if members and used + nbytes > bucket_bytes:
            full.append(members)
            members, used = [], 0
        filling[parameter.dtype] = [*members, index], used + nbytes
    return full + [members for members, _ in filling.values()]


class Bucket:
    """Gradients of some parameters, side by side.

    Attributes
    ----------
    members : list of int
        Numbers of the parameters.
    views : list of numpy.ndarray
        The gradient of each, in `home`.
    home : numpy.ndarray
        All of them.
    waiting : set of int
        Members whose gradients are not there yet.
    started : bool
    """

    def __init__(self, comm: Any, state: State, parameters: Sequence[Parameter], members: list[int], options: Options):
        self.members, self.started = members, False
        self.waiting = set(members)
        first = parameters[members[0]]
        counts = [math.prod(parameters[index].shape) for index in members]
        count, work = sum(counts), first.work
        algorithm, wire, order, timeout = options
        self.shared: Array | None = None
        takes = algorithm in ("auto", "shared") and not (wire or order)
        if takes and state.shareable and state.size > 1 and worth_a_look(count * work.itemsize, state.size):
            with contextlib.suppress(MemoryError):  # on all ranks alike
                self.shared = sharing.empty(comm, count, work, timeout=timeout)
        self.work = np.zeros(count, work) if self.shared is None else self.shared
        self.work.fill(0)
        self.home = np.zeros(count, first.dtype) if is_half(first.dtype) else self.work
        self._slices = [slice(stop - length, stop) for stop, length in zip(accumulate(counts), counts, strict=True)]
        shapes = [parameters[index].shape for index in members]
        self.views = [self.home[each].reshape(shape) for each, shape in zip(self._slices, shapes, strict=True)]
        self.plan = allreduce_init(
            comm, self.work, self.work, "mean", algorithm=algorithm, wire=wire, order=order, timeout=timeout
        )

    def start(self, weight: float) -> dict[int, str]:
        """Start to sum the gradients times this rank's weight; return which are not finite."""
        if self.work is not self.home:
            self.work[...] = self.home
        found = self._not_finite() if weight else {}
        if not weight:
            self.work.fill(0)  # NaN too
        elif weight != 1:
            self.work *= weight
        self.plan.Start()
        self.started = True
        return found

    def _not_finite(self) -> dict[int, str]:
        """Return the numbers of the gradients that have NaN or infinities, and how many."""
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.vdot(self.work, self.work)):  # one pass, which may overflow
                return {}
        found = {}
        for index, each in zip(self.members, self._slices, strict=True):
            values = self.work[each]
            lost, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
            if lost or infinite:
                found[index] = f"{lost} NaN and {infinite} infinities in {plural(values.size, 'element')}"
        return found

    def finish(self, total: float, size: int) -> None:
        """Wait for the means over ranks, and divide them by the mean of their weights."""
        self.plan.Wait()
        if total != size:
            divide(self.work, total / size)
        self.waiting, self.started = set(self.members), False

    def settle(self, scale: float) -> None:
        """Scale the averages, and round them to the dtype of the gradients."""
        if scale != 1:
            self.work *= scale
        if self.work is not self.home:
            with np.errstate(over="ignore"):
                self.home[...] = self.work

    def norm(self) -> float:
        """Return the Euclidean norm of the averages."""
        with np.errstate(over="ignore", invalid="ignore"):
            squares = float(np.vdot(self.work, self.work).real)
            if 1e-30 < squares < math.inf or not self.work.size:
                return math.sqrt(squares)
            largest = float(np.abs(self.work).max())
            if not 0 < largest < math.inf:
                return largest
            scaled = self.work / largest  # squares of these neither overflow nor vanish
            return largest * math.sqrt(float(np.vdot(scaled, scaled).real))

    def free(self) -> None:
        """Give back the plan and the memory; the views stay valid."""
        self.plan.Free()
        if self.shared is not None:
            sharing.free(self.shared)
            self.shared = None
