"""Find the fastest algorithm, segment and window for each size, within a budget of time.

Rules that hold here:

* Each size and type is a *cell* with a share of the time that is left. Every fourth size comes first (`spread`), so
  that a short budget covers small and large arrays alike. In a cell all candidates that fit in are tried, the slower
  half leaves again and again, and the last few meet in a final of interleaved turns (`hpcreduce.measure.bench`).
* What a candidate takes is estimated from smaller sizes before it is tried. What does not fit into the time is left
  out, and that is told.
* Only what is beyond noise counts: the 95 % bootstrap interval of the median ratio, turn by turn. The library's own
  call stays unless ours is faster, the schedule of the size before unless another one is, and else the first in the
  table of algorithms wins: so tables are smooth.
* A choice that is slower than two calls of the library, reduce and bcast or reduce_scatter and allgather, makes way for
  one that is not, and is no slower than it.

Nothing here knows MPI: `search` is given a clock that is the same on all ranks, and a stage to time settings on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.lookup import LIBRARY, Setting
from hpcreduce.measure import bench

CALL = Setting("comm.Allreduce")
"""The library's call as a program would make it: what speeds refer to."""

CHECKED = Setting(LIBRARY)
"""The library's call as `hpcreduce.allreduce` makes it."""

TWO_CALLS = (Setting("reduce+bcast"), Setting("reduce_scatter+allgather"))
"""What a program could do in its place, with the library."""

ENTRY = 4
"""Calls that it takes to try a candidate: the one that is checked, a warm-up, and two of which the faster counts."""

LEAST, MOST = 7, 51
"""Turns of a final: with fewer there is no verdict."""

FINALISTS = 3
HOPELESS = 4.0
"""Times the fastest schedule's time from which a candidate is not timed again."""

ENTERING, HALVING = 0.4, 0.7
"""Parts of a cell's time after which no candidate is tried any more, and after which the final begins."""

SAME, TIE = 1.02, 1.05
"""Ratios of medians up to which a candidate is as fast, be that beyond noise or not, and from which it is slower."""

LATENCY = 64 << 10
"""Bytes below which a call takes about as long for less."""


class Cell(NamedTuple):
    """One size of one type."""

    dtype: str
    nbytes: int


class Result(NamedTuple):
    """What came of a cell.

    Attributes
    ----------
    cell : Cell
    setting : Setting
        What is best.
    own : Setting or None
        The best of our own schedules.
    facts : dict
        What was measured, as a table has it.
    seconds : list of (Setting, float)
        What all that were tried take.
    skipped : int
        Candidates that were not tried for want of time.
    """

    cell: Cell
    setting: Setting
    own: Setting | None
    facts: dict[str, Any]
    seconds: list[tuple[Setting, float]]
    skipped: int


class Stage(NamedTuple):
    """``enter(setting)`` checks a setting and returns its seconds, ``turn(settings, calls)`` times them once."""

    enter: Callable[[Setting], float]
    turn: Callable[[Sequence[Setting], int], list[float]]


class Outcome(NamedTuple):
    """The times of the final, turn by turn, what all that were tried take, and who was not tried."""

    times: dict[Setting, list[float]]
    seconds: dict[Setting, float]
    skipped: list[Setting]


def search(
    cells: Sequence[Cell],
    choices: Callable[[Cell], Sequence[Setting]],
    stage: Callable[[Cell], AbstractContextManager[Stage]],
    now: Callable[[], float],
    budget: float,
    before: Sequence[Result] = (),
    keep: Callable[[Result], None] = lambda result: None,
) -> tuple[list[Result], list[Cell]]:
    """Search each cell for its best setting, in `budget` seconds by the clock `now`.

    Parameters
    ----------
    cells : sequence of Cell
        In the order in which they are measured, such as that of `spread`.
    choices : callable
        What may be chosen for a cell.
    stage : callable
        Context manager of the stage of a cell.
    now : callable
        Seconds; the same on all ranks.
    budget : float
    before : sequence of Result
        What an earlier run has found, of other cells.
    keep : callable
        Is given each result at once.

    Returns
    -------
    list of Result, list of Cell
        What was found, `before` included, and which cells were left out for want of time; in rising order of size.
    """
    last = now() + budget
    results, left_out = list(before), []
    for index, cell in enumerate(cells):
        own = [setting for setting in choices(cell) if setting.algorithm != LIBRARY]
        library = [setting for setting in choices(cell) if setting.algorithm == LIBRARY]
        estimates = estimate(results, cell, [CALL, *library, *TWO_CALLS, *own])
        incumbent = [setting for setting in own if setting == previous(results, cell)]
        ahead = incumbent or sorted(own, key=lambda setting: estimates.get(setting, math.inf))[:1]
        always = [CALL, *library, *ahead, *TWO_CALLS]
        start = now()
        if start + (ENTRY + LEAST) * sum(estimates.get(setting, 0.0) for setting in always) > last:
            left_out.append(cell)
            continue
        weights = [weight(each.nbytes) for each in cells[index:]]
        end = start + (last - start) * weights[0] / sum(weights)
        with stage(cell) as (enter, turn):
            others = [setting for setting in own if setting not in ahead]
            outcome = tournament(always, others, estimates, end, last, Stage(enter, turn), now)
        if min(map(len, outcome.times.values()), default=0) < LEAST:
            left_out.append(cell)
            continue
        setting, best, facts = decide(outcome.times, incumbent[0] if incumbent else None)
        results.append(Result(cell, setting, best, facts, list(outcome.seconds.items()), len(outcome.skipped)))
        keep(results[-1])
    results.sort(key=lambda result: result.cell.nbytes)
    return results, sorted(left_out, key=lambda cell: cell.nbytes)


def spread(sizes: Sequence[int]) -> list[int]:
    """Return the sizes in the order in which they are measured: every fourth and the last, and then those between.

    >>> spread([1, 2, 4, 8, 16, 32])
    [1, 16, 32, 2, 4, 8]
    """
    first = [size for index, size in enumerate(sizes) if index % 4 == 0 or index == len(sizes) - 1]
    return first + [size for size in sizes if size not in first]


def weight(nbytes: int) -> float:
    """Return the share of the time that a size gets, beside that of a small one: large arrays need more.

    >>> weight(8), weight(4 << 20), weight(256 << 20)
    (1.0, 2.0, 16.0)
    """
    return max(1.0, math.sqrt(nbytes / (1 << 20)))


def previous(results: Sequence[Result], cell: Cell) -> Setting | None:
    """Return the best schedule of the next smaller size that was measured."""
    smaller = [result for result in results if result.cell.dtype == cell.dtype and result.cell.nbytes < cell.nbytes]
    return max(smaller, key=lambda result: result.cell.nbytes).own if smaller else None


def estimate(results: Sequence[Result], cell: Cell, settings: Sequence[Setting]) -> dict[Setting, float]:
    """Return the seconds that settings are expected to take, from smaller sizes; unknown ones are missing.

    Time goes with size from `LATENCY` on. A segment that is new counts as the best one of its algorithm.
    """
    known: dict[Setting, float] = {}
    for result in sorted(results, key=lambda result: result.cell.nbytes):
        nbytes = result.cell.nbytes
        if result.cell.dtype == cell.dtype and nbytes < cell.nbytes:
            growth = 1 + (cell.nbytes - nbytes) / max(nbytes, LATENCY)
            known |= {setting: seconds * growth for setting, seconds in result.seconds}
    best: dict[str, float] = {}
    for setting, seconds in known.items():
        best[setting.algorithm] = min(seconds, best.get(setting.algorithm, seconds))
    return {setting: known.get(setting, best[setting.algorithm]) for setting in settings if setting.algorithm in best}


def tournament(
    always: Sequence[Setting],
    others: Sequence[Setting],
    estimates: dict[Setting, float],
    end: float,
    last: float,
    stage: Stage,
    now: Callable[[], float],
) -> Outcome:
    """Let the settings meet until `end`, or at `last` if there is no verdict yet; see the head of this file."""
    start = now()
    seconds: dict[Setting, float] = {}
    skipped = []
    spent = 0.0  # seconds on a candidate, beside its calls
    idle = 0.0  # the same of a turn, for each setting
    limit = last
    for setting in [*always, *sorted(others, key=lambda setting: estimates.get(setting, 0.0))]:
        begun = now()
        if setting not in always:  # leave the time for a final of those who are there already
            limit = min(
                start + ENTERING * (end - start),
                last - LEAST * _batch(seconds) * sum(seconds[one] for one in always if one in seconds),
            )
        if begun + spent + ENTRY * estimates.get(setting, 0.0) > limit:
            skipped.append(setting)
            continue
        seconds[setting] = stage.enter(setting)
        spent = max(0.0, now() - begun - ENTRY * seconds[setting])
    ours = [setting for setting in others if setting in seconds]
    fastest = min((seconds[setting] for setting in ours), default=0.0)
    field = [setting for setting in ours if seconds[setting] <= HOPELESS * fastest]
    calls = _batch(seconds)
    reserve = LEAST * calls * (sum(seconds.get(setting, 0.0) for setting in always) + FINALISTS * fastest)
    middle = min(start + HALVING * (end - start), last - reserve)

    def fits(settings: Sequence[Setting], limit: float) -> bool:
        return now() + sum(calls * seconds[setting] + idle for setting in settings) <= limit

    def play(found: dict[Setting, list[float]]) -> None:
        """Time all once, each time in another order."""
        nonlocal idle
        begun = now()
        settings = list(found)
        place = len(found[settings[0]]) % len(settings)
        settings = settings[place:] + settings[:place]
        measured = stage.turn(settings, calls)
        for setting, each in zip(settings, measured, strict=True):
            found[setting].append(each)
        idle = max(0.0, now() - begun - calls * sum(measured)) / len(settings)

    turns = 2
    while len(field) > FINALISTS:
        found: dict[Setting, list[float]] = {setting: [] for setting in field}
        while len(found[field[0]]) < turns and fits(field, middle):
            play(found)
        seconds |= {setting: statistics.median(times) for setting, times in found.items() if times}
        field = sorted(field, key=seconds.__getitem__)[: max(FINALISTS, len(field) // 2)]
        turns *= 2
    final = [*(setting for setting in always if setting in seconds), *field]
    times: dict[Setting, list[float]] = {setting: [] for setting in final}
    if all(setting in seconds for setting in always):
        while (done := len(times[final[0]])) < MOST and fits(final, last if done < LEAST else end):
            play(times)
        seconds |= {setting: statistics.median(found) for setting, found in times.items() if found}
    return Outcome(times, seconds, skipped)


def _batch(seconds: dict[Setting, float]) -> int:
    """Return how many calls are timed together."""
    return max(1, min(bench.MOST_CALLS, round(1e-3 / max(min(seconds.values(), default=1.0), 1e-6))))


def decide(
    times: dict[Setting, list[float]], incumbent: Setting | None
) -> tuple[Setting, Setting | None, dict[str, Any]]:
    """Return what is chosen, the best of our own schedules, and what was measured, from the times of a final.

    `incumbent` is the schedule of the size before.
    """

    def ratio(one: Setting, other: Setting) -> tuple[float, float, float]:
        ratios = (np.array(times[one]) / np.array(times[other])).tolist()
        return (statistics.median(ratios), *bench.interval(ratios))

    def losing(one: Setting) -> list[str]:
        """Return which two calls of the library are faster."""
        return [two.algorithm for two in TWO_CALLS if two in times and ratio(one, two)[1] > 1]

    ours = [setting for setting in times if setting.algorithm in ALGORITHMS and setting.algorithm != LIBRARY]
    ours.sort(
        key=lambda setting: (list(ALGORITHMS).index(setting.algorithm), -(setting.segment or 0), setting.window or 0)
    )
    by_speed = sorted(ours, key=lambda setting: ratio(setting, CALL)[0])
    own = None
    if ours:
        best = by_speed[0]
        equal = [one for one in ours if ratio(one, best)[0] <= (TIE if ratio(one, best)[1] <= 1 else SAME)]
        own = incumbent if incumbent in equal else equal[0]
        if CHECKED in times:
            own = next((one for one in (own, best) if ratio(one, CHECKED)[2] < 1), own)
    won = own is not None and (CHECKED not in times or ratio(own, CHECKED)[2] < 1)
    setting = own if own is not None and won else CHECKED
    if losing(setting):
        able = [one for one in [*([CHECKED] if CHECKED in times else []), *ours] if ratio(one, setting)[0] <= 1]
        setting = min((one for one in able if not losing(one)), key=lambda one: ratio(one, CALL)[0], default=setting)
        own = own if setting == CHECKED else setting
    speeds = [1 / one for one in ratio(setting, CALL)]
    facts: dict[str, Any] = {
        "seconds": _rounded(statistics.median(times[setting])),
        "speed": _rounded(speeds[0]),
        "low": _rounded(speeds[2]),
        "high": _rounded(speeds[1]),
        "turns": len(times[setting]),
    }
    rest = [one for one in [*([CHECKED] if CHECKED in times else []), *by_speed] if one != setting]
    if rest:
        facts["runner_up"] = min(rest, key=lambda one: ratio(one, CALL)[0])._asdict()
    if slower := losing(setting):
        facts["slower_than"] = slower
    return setting, own, facts


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
