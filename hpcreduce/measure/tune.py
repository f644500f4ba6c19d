"""The stage of a tournament: candidates, a clock that is the same on all ranks, and plans that are timed on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.collectives import allreduce_init
from hpcreduce.lookup import LIBRARY, Entry, Place, Setting, Table
from hpcreduce.measure import bench, samples
from hpcreduce.measure.rivals import RIVALS
from hpcreduce.measure.tournament import CALL, ENTRY, TWO_CALLS, Cell, Stage
from hpcreduce.runtime import agreement
from hpcreduce.runtime.operations import OPERATIONS, Array, DType
from hpcreduce.runtime.state import State
from hpcreduce.selection import SHARED, forbids

SEGMENTS = {True: (64 << 10, 256 << 10, 1 << 20), False: (16 << 10, 48 << 10, 256 << 10)}
"""Bytes of the segments that are tried, if all ranks are on one node, and if not."""

WINDOWS = (2, 4)


def candidates(dtype: DType, nodes: Sequence[int], nbytes: int) -> list[Setting]:
    """Return what may be chosen for a sum of `nbytes` bytes of `dtype`; what no segment cuts stands there once."""
    segments, found = SEGMENTS[len(set(nodes)) == 1], []
    for name, row in ALGORITHMS.items():
        if forbids(row, OPERATIONS["sum"], dtype) or (name == SHARED and len(set(nodes)) > 1):
            continue
        if row.rounds is None or nbytes <= segments[0]:
            found.append(Setting(name))
            continue
        cutting = [segment for segment in segments if segment < nbytes]
        found += [Setting(name, segment, window) for segment in cutting for window in WINDOWS]
        if len(cutting) < len(segments):
            found.append(Setting(name, segments[len(cutting)], WINDOWS[0]))
    return found


def clock(comm: Any) -> float:
    """Return rank 0's seconds; collective."""
    return float(comm.bcast(time.monotonic()))


@contextmanager
def stage(comm: Any, cell: Cell) -> Iterator[Stage]:
    """Yield the stage on which settings reduce an array of this size in place; collective."""
    kind = samples.dtypes()[cell.dtype]
    array = np.empty(cell.nbytes // kind.itemsize, kind)
    calls: dict[Setting, Callable[[], Any]] = {}
    with ExitStack() as plans:

        def enter(setting: Setting) -> float:
            calls[setting] = call = _call(comm, array, setting, plans)
            bench.check_first(comm, call, array, array, "sum", _name(setting))
            bench.seconds_of(comm, call, array, 1)
            return min(bench.seconds_of(comm, call, array, 1) for _ in range(ENTRY - 2))

        def turn(settings: Sequence[Setting], number: int) -> list[float]:
            return [bench.seconds_of(comm, calls[setting], array, number) for setting in settings]

        yield Stage(enter, turn)


def _name(setting: Setting) -> str:
    return LIBRARY if setting == CALL else str(setting)


def _call(comm: Any, array: Array, setting: Setting, plans: ExitStack) -> Callable[[], Any]:
    if setting == CALL or setting in TWO_CALLS:
        return RIVALS[_name(setting)].make(comm, array, "sum", plans)
    state = agreement.state(comm)
    with forced(state, setting, array.itemsize):
        plan = plans.enter_context(allreduce_init(comm, array, array, algorithm=setting.algorithm))

    def call() -> None:
        plan.Start()
        plan.Wait()

    return call


@contextmanager
def forced(state: State, setting: Setting, itemsize: int) -> Iterator[None]:
    """Let calls that ask for this setting's algorithm take its segment and window; the same on all ranks."""
    tables = state.tables
    place = Place("any", state.size, len(set(state.nodes)))
    state.tables = (Table("tune", (Entry(place, itemsize, 0, setting),)),)
    try:
        yield
    finally:
        state.tables = tables
