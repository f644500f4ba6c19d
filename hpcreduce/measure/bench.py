"""Time algorithms beside MPI_Allreduce in one run, interleaved.

Rules that hold here:

* A time is the slowest rank's, from a barrier on, in seconds per call. Calls that take microseconds are timed several
  in a row (at most `MOST_CALLS`), since a clock and a barrier are no more precise than they last.
* Caches are warm, or all are cold: then each call is timed by itself, after every rank has swept its caches.
* All contenders take turns in each iteration, each time in another order, so that a drift of the machine's speed meets
  them alike; the ratio to the library is the median over the iterations.
* Every contender's first result is checked against exact values that depend on rank and index.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.collectives import allreduce, allreduce_init
from hpcreduce.errors import HpcreduceError
from hpcreduce.measure import samples
from hpcreduce.measure.rivals import LIBRARY, RIVALS
from hpcreduce.runtime.operations import OPERATIONS, Array
from hpcreduce.units import format_bytes, format_rate, format_seconds

MOST_CALLS = 50
"""Calls in a row that are timed together, as far as they take a millisecond."""

BLOCK = 65521
"""Elements after which inputs repeat: a prime, so that chunks and segments that are swapped do not look alike."""


class Row(NamedTuple):
    """One algorithm at one size.

    Attributes
    ----------
    algorithm : str
        ``mpi`` is ``comm.Allreduce``.
    nbytes : int
        Bytes of the array that each rank passes.
    dtype, op : str
    ranks : int
    median_s, p10_s, p90_s : float
        Median and percentiles over the iterations, seconds.
    low_s, high_s : float
        95 % bootstrap interval of the median, seconds.
    algbw, busbw : float
        Bytes per second as nccl-tests define them: ``nbytes / median_s``, and that times ``2 (p - 1) / p``.
    ratio_to_mpi : float or None
        Median over the iterations of time / time of ``mpi``; below 1 is faster. `None` where MPI lacks the operation.
    """

    algorithm: str
    nbytes: int
    dtype: str
    op: str
    ranks: int
    median_s: float
    p10_s: float
    p90_s: float
    low_s: float
    high_s: float
    algbw: float
    busbw: float
    ratio_to_mpi: float | None


def compare(
    comm: Any,
    algorithms: Sequence[str],
    nbytes: int,
    *,
    dtype: str = "float64",
    op: str = "sum",
    iterations: int | None = None,
    warmup: int = 1,
    one_off: bool = False,
    sweep: Callable[[], object] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Time the algorithms and their rivals at one size; collective.

    In place where the result's dtype is the input's. Ours run as prepared plans (`hpcreduce.allreduce_init`).

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    algorithms : sequence of str
        Contenders beside the library, ours or of `RIVALS`; their sessions are open, and none of them refuses.
    nbytes : int
        Size of the array in bytes; rounded up to whole elements.
    dtype, op : str
        Names in `samples.NAMES` and `OPERATIONS`.
    iterations : int, optional
        By default as many as two seconds allow, from 5 to 15.
    warmup : int
        Calls of each contender before its first iteration, beside the one whose result is checked.
    one_off : bool
        Time ``allreduce()`` instead of prepared plans.
    sweep : callable, optional
        Called on every rank before each timed call, outside of what is timed; calls are then timed one at a time.
    progress : callable, optional
        Called with the iterations done and in all.

    Returns
    -------
    list of Row
        The library's first, if MPI has such an operation; the same on every rank.

    Raises
    ------
    HpcreduceError
        A contender gave a wrong result.
    """
    kind = samples.dtypes()[dtype]
    count = -(-nbytes // kind.itemsize)
    array = np.empty(count, kind)
    result = OPERATIONS[op].types(kind)[1]
    target = array if result == kind else np.empty(count, result)
    with ExitStack() as plans:
        contenders: dict[str, Callable[[], Any]] = {}
        for name in [LIBRARY] * samples.mpi_has(op, kind) + list(algorithms):
            contenders[name] = (
                RIVALS[name].make(comm, array, op, plans)
                if name in RIVALS
                else _ours(comm, array, target, op, name, one_off, plans)
            )
        first = {}
        for name, call in contenders.items():
            check_first(comm, call, array, target, op, name)
            first[name] = seconds_of(comm, call, array, max(1, warmup), sweep)
        fastest = max(min(first.values()), 1e-6)
        calls = 1 if sweep else max(1, min(MOST_CALLS, round(1e-3 / fastest)))
        if iterations is None:
            iterations = max(5, min(15, int(2.0 / (calls * sum(first.values()))))) | 1
        times = _take_turns(comm, contenders, array, iterations, calls, sweep, progress)
    return [_row(name, array.nbytes, dtype, op, comm.size, mine, times.get(LIBRARY)) for name, mine in times.items()]


def affordable(comm: Any, sizes: Sequence[int], ranks_per_node: int) -> list[int]:
    """Return the sizes whose arrays take at most a quarter of the free memory of every node; collective."""
    from mpi4py import MPI

    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    room = comm.allreduce(free // (4 * ranks_per_node), MPI.MIN)
    return [size for size in sizes if size <= room]


def _ours(
    comm: Any, array: Array, target: Array, op: str, algorithm: str, one_off: bool, plans: ExitStack
) -> Callable[[], Any]:
    if one_off:
        return lambda: allreduce(comm, array, target, op, algorithm=algorithm)
    plan = plans.enter_context(allreduce_init(comm, array, target, op, algorithm=algorithm))

    def call() -> None:
        plan.Start()
        plan.Wait()

    return call


def check_first(comm: Any, call: Callable[[], Any], array: Array, target: Array, op: str, name: str) -> None:
    """Run it once, on inputs whose result is known; raise HpcreduceError on every rank if it is wrong on any."""
    given = samples.make(op, array.dtype, min(BLOCK, array.size), comm.rank, comm.size)
    (wanted,) = samples.expected(op, array.dtype, given.size, comm.size)
    keep = samples.settled(op, array.dtype, given.size, comm.size) if name in RIVALS else np.ones(given.size, bool)
    for start in range(0, array.size, BLOCK):
        array[start : start + BLOCK] = given[: array.size - start]
    call()
    right = all(
        (samples.same(block, wanted[: block.size]) | ~keep[: block.size]).all()
        for block in (target[start : start + BLOCK] for start in range(0, target.size, BLOCK))
    )
    wrong = [rank for rank, good in enumerate(comm.allgather(right)) if not good]
    if wrong:
        raise HpcreduceError(f"{name}: wrong {op} of {array.nbytes} bytes on ranks {wrong}; nothing was timed")


def _take_turns(
    comm: Any,
    contenders: dict[str, Callable[[], Any]],
    array: Array,
    iterations: int,
    calls: int,
    sweep: Callable[[], object] | None,
    progress: Callable[[int, int], None] | None,
) -> dict[str, list[float]]:
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(iterations):
        place = turn % len(names)
        for name in names[place:] + names[:place]:
            times[name].append(seconds_of(comm, contenders[name], array, calls, sweep))
        if progress:
            progress(turn + 1, iterations)
    return times


def seconds_of(
    comm: Any, call: Callable[[], Any], array: Array, calls: int, sweep: Callable[[], object] | None = None
) -> float:
    """Return the slowest rank's seconds per call."""
    from mpi4py import MPI

    array.fill(1)
    if sweep:
        sweep()
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    mine = time.perf_counter() - start
    return float(comm.allreduce(mine, MPI.MAX)) / calls


def _row(
    name: str, nbytes: int, dtype: str, op: str, ranks: int, mine: list[float], library: list[float] | None
) -> Row:
    low, high = interval(mine)
    median, p10, p90 = (float(value) for value in np.percentile(mine, [50, 10, 90]))
    ratio = None if library is None else float(np.median(np.array(mine) / np.array(library)))
    busbw = nbytes / median * 2 * (ranks - 1) / ranks
    return Row(name, nbytes, dtype, op, ranks, median, p10, p90, low, high, nbytes / median, busbw, ratio)


def interval(times: Sequence[float], resamples: int = 1000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median (percentile method, always the same resamples).

    >>> interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    drawn = np.random.default_rng(0).choice(np.asarray(times), (resamples, len(times)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(low), float(high)


def table(rows: Sequence[Row], chosen: Callable[[int], str], detailed: bool = False) -> Iterator[str]:
    """Yield the lines of a table; `chosen` says which algorithm ``auto`` takes at a size."""
    shown = any(row.algorithm == "auto" for row in rows)
    spread = f"{'p10':>11}{'p90':>11}{'95 % CI of median':>23}" if detailed else ""
    algbw = f"{'algbw':>12}" if detailed else ""

    def title(row: Row) -> str:
        return f"auto: {chosen(row.nbytes)}" if row.algorithm == "auto" else row.algorithm

    width = max([20, *(len(title(row)) for row in rows)])
    yield f"{'size':>9}  {'algorithm':<{width}}{'time':>11}{spread}{algbw}{'bus bandwidth':>16}{'speed vs mpi':>14}"
    for nbytes in dict.fromkeys(row.nbytes for row in rows):
        group = [row for row in rows if row.nbytes == nbytes]
        fastest = min(group, key=lambda row: row.median_s if row.ratio_to_mpi is None else row.ratio_to_mpi)
        for row in group:
            size = format_bytes(nbytes) if row is group[0] else ""
            taken = not shown and row.algorithm == chosen(nbytes)
            marks = (" <- fastest" if row is fastest else "") + (" (auto)" if taken else "")
            bandwidth = format_rate(row.busbw) if row.busbw else "-"
            if detailed:
                likely = f"{format_seconds(row.low_s)} - {format_seconds(row.high_s)}"
                spread = f"{format_seconds(row.p10_s):>11}{format_seconds(row.p90_s):>11}{likely:>23}"
                algbw = f"{format_rate(row.algbw):>12}"
            speed = "-" if row.ratio_to_mpi is None else f"{1 / row.ratio_to_mpi:.2f}x"
            yield (
                f"{size:>9}  {title(row):<{width}}{format_seconds(row.median_s):>11}{spread}{algbw}{bandwidth:>16}"
                f"{speed:>14}{marks}"
            )
