"""The search for the best settings, on a clock and with times that the tests make up."""

from contextlib import contextmanager

import numpy as np
import pytest

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.lookup import Setting
from hpcreduce.measure.tournament import (
    CALL,
    CHECKED,
    LEAST,
    TWO_CALLS,
    Cell,
    Result,
    Stage,
    decide,
    estimate,
    previous,
    search,
    weight,
)
from hpcreduce.measure.tune import candidates

RING, TREE, CIRCULANT = Setting("ring", 65536, 2), Setting("tree", 65536, 2), Setting("circulant", 65536, 2)
F8, NODE = np.dtype(float), (0, 0, 0)


class Machine:
    """A clock, and settings whose times are made up: ``cost(setting, nbytes)``, with noise that is always the same."""

    def __init__(self, cost, noise=0.02):
        self.cost, self.time, self.noise = cost, 100.0, noise
        self.entered, self.random = [], np.random.default_rng(1)

    def now(self):
        return self.time

    @contextmanager
    def stage(self, cell):
        def seconds(setting):
            return self.cost(setting, cell.nbytes) * (1 + self.noise * self.random.random())

        def enter(setting):
            self.entered.append((cell, setting))
            self.time += 3 * seconds(setting)
            return seconds(setting)

        def turn(settings, calls):
            found = [seconds(setting) for setting in settings]
            self.time += calls * sum(found)
            return found

        yield Stage(enter, turn)

    def search(self, sizes, budget, **options):
        cells = [Cell("float64", nbytes) for nbytes in sizes]
        return search(cells, lambda cell: candidates(F8, NODE, cell.nbytes), self.stage, self.now, budget, **options)


def alike(setting, nbytes):
    """The library is best at small sizes, circulant with a segment of 256 KiB and a window of 4 at large ones."""
    seconds = 1e-5 + nbytes / 1e9
    if setting in (CALL, CHECKED):
        return seconds * (0.5 if nbytes < 1 << 20 else 2)
    if setting in TWO_CALLS:
        return 3 * seconds
    return seconds * (1 if setting in (Setting("circulant"), Setting("circulant", 256 << 10, 4)) else 1.3)


def test_the_best_is_found():
    machine = Machine(alike)
    results, left_out = machine.search([8, 1 << 10, 1 << 20, 16 << 20], 60)
    assert [result.setting for result in results] == [CHECKED] * 2 + [Setting("circulant", 256 << 10, 4)] * 2
    assert [result.own for result in results] == [Setting("circulant")] * 2 + [Setting("circulant", 256 << 10, 4)] * 2
    assert not left_out and not any(result.skipped for result in results)
    assert all(result.facts["turns"] >= LEAST for result in results)
    assert results[-1].facts["speed"] == pytest.approx(2, rel=0.05)
    assert results[0].facts["runner_up"] == Setting("circulant")._asdict() and "slower_than" not in results[0].facts


@pytest.mark.parametrize("budget", [0.5, 3.0, 40.0])
def test_the_budget_is_kept(budget):
    machine = Machine(alike)
    sizes = [8 << 3 * power for power in range(9)]
    results, left_out = machine.search(sizes, budget)
    spent = machine.time - 100
    longest = max(alike(setting, cell.nbytes) for cell, setting in machine.entered)
    assert spent <= 1.1 * budget + 3 * longest
    assert [result.cell.nbytes for result in results] + [cell.nbytes for cell in left_out] == sizes
    assert results[0].cell.nbytes == 8
    assert bool(left_out) == (budget < 40)


def test_what_is_very_slow_is_not_waited_for():
    """Tree takes a minute at 1 MiB: known from smaller sizes, it is not tried there, and that is told."""

    def cost(setting, nbytes):
        return (nbytes / 16384 if setting.algorithm == "tree" else 0) + alike(setting, nbytes)

    machine = Machine(cost)
    results, left_out = machine.search([64, 64 << 10, 1 << 20, 4 << 20], 40)
    assert machine.time - 100 <= 44 and not left_out
    assert not [cell for cell, setting in machine.entered if setting.algorithm == "tree" and cell.nbytes > 1 << 17]
    assert [result.skipped > 0 for result in results] == [False, False, True, True]
    assert results[-1].setting == Setting("circulant", 256 << 10, 4)


def test_a_slow_first_call_costs_itself_only():
    def cost(setting, nbytes):
        return 5.0 if setting.algorithm == "ring" else alike(setting, nbytes)

    machine = Machine(cost)
    results, left_out = machine.search([64, 1024], 10)
    assert (
        machine.time - 100 <= 11 + 15 and len([1 for _, setting in machine.entered if setting.algorithm == "ring"]) == 1
    )
    assert len(results) + len(left_out) == 2


def test_a_search_is_taken_up_again():
    kept = []
    machine = Machine(alike)
    machine.search([8, 1 << 20], 20, keep=kept.append)
    assert len(kept) == 2
    again = Machine(alike)
    results, _ = again.search([16 << 20], 20, before=kept)
    assert results[:2] == kept and {cell.nbytes for cell, _ in again.entered} == {16 << 20}
    assert results[2].setting == Setting("circulant", 256 << 10, 4)


def test_estimates_and_shares():
    results = [
        Result(Cell("float64", 64 << 10), RING, RING, {}, [(RING, 1.0), (TREE, 3.0), (CALL, 2.0)], 0),
        Result(Cell("float64", 128 << 10), RING, RING, {}, [(RING, 2.0)], 0),
        Result(Cell("float32", 128 << 10), RING, TREE, {}, [(CIRCULANT, 2.0)], 0),
    ]
    cell = Cell("float64", 256 << 10)
    new = Setting("ring", 1 << 20, 4)
    assert estimate(results, cell, [RING, TREE, CALL, CIRCULANT, new]) == {RING: 4.0, TREE: 12.0, CALL: 8.0, new: 4.0}
    assert previous(results, cell) == RING and previous(results, Cell("float32", 256 << 10)) == TREE
    assert previous(results, Cell("float64", 64 << 10)) is None
    assert weight(8) == weight(1 << 20) == 1 and weight(64 << 20) == 8


def test_candidates():
    small, large = candidates(F8, NODE, 1024), candidates(F8, NODE, 16 << 20)
    names = [name for name, row in ALGORITHMS.items() if row.rounds]
    assert [setting for setting in small if ALGORITHMS[setting.algorithm].rounds] == [Setting(name) for name in names]
    assert Setting("mpi") in small and large.count(Setting("mpi")) == 1
    assert len([setting for setting in large if setting.algorithm == "ring"]) == 6
    assert len(set(large)) == len(large)
    assert Setting("ring", 48 << 10, 4) in candidates(F8, (0, 1, 2), 16 << 20)
    assert Setting("ring", 256 << 10, 2) in candidates(F8, NODE, 128 << 10)
    assert Setting("ring", 1 << 20, 2) not in candidates(F8, NODE, 128 << 10)


def times(turns=25, noise=0.01, **medians):
    """Times around these medians (or pairs of a median and a noise), ``call`` and ``two`` for the library's calls."""
    settings = {"call": CALL, "mpi": CHECKED, "two": TWO_CALLS[0], "ring": RING, "tree": TREE, "circulant": CIRCULANT}
    found = {}
    for number, (name, median) in enumerate(medians.items()):
        median, width = median if isinstance(median, tuple) else (median, noise)
        found[settings[name]] = list(median * (1 + np.random.default_rng(number).uniform(-width, width, turns)))
    return found


def test_the_library_stays_unless_ours_is_better_beyond_noise():
    assert decide(times(call=1, mpi=1, ring=0.9), None)[:2] == (RING, RING)
    assert decide(times(call=1, mpi=1, ring=1.2), None)[:2] == (CHECKED, RING)
    assert decide(times(call=1, mpi=1, ring=0.99, noise=0.2), None)[:2] == (CHECKED, RING)


def test_among_ours_the_simplest_or_the_one_before_stays():
    assert decide(times(call=2, mpi=2, circulant=1, ring=1.001), None)[0] == RING
    assert decide(times(call=2, mpi=2, circulant=1.001, ring=1), CIRCULANT)[0] == CIRCULANT
    assert decide(times(call=2, mpi=2, circulant=1.2, ring=1), CIRCULANT)[0] == RING
    assert decide(times(call=2, mpi=2, circulant=1, ring=1.035), None)[0] == CIRCULANT
    assert decide(times(call=2, mpi=2, circulant=1, ring=(1.02, 0.2)), None)[0] == RING
    assert decide(times(call=9, mpi=9, circulant=1, ring=(1.5, 0.9)), None)[0] == CIRCULANT  # within noise, yet slow


def test_the_simplest_does_not_cost_the_lead_over_the_library():
    setting, own, _ = decide(times(call=1.03, mpi=1.03, circulant=1, ring=(1.03, 0.05)), None)
    assert setting == own == CIRCULANT


def test_no_cliff():
    setting, own, facts = decide(times(call=3, mpi=3, two=2, ring=2.5), None)
    assert (setting, facts["slower_than"]) == (RING, ["reduce+bcast"])
    setting, own, facts = decide(times(call=2.1, mpi=2.1, two=2, ring=(2, 0.3)), None)
    assert setting == own == RING and "slower_than" not in facts
    setting, _, facts = decide(times(call=1.0, mpi=2, two=1.5, ring=2.5), None)
    assert (setting, facts["slower_than"]) == (CHECKED, ["reduce+bcast"])
    setting, _, facts = decide(times(call=1, mpi=3, two=1.5, ring=2, tree=(4, 0.9)), None)
    assert (setting, facts["slower_than"]) == (RING, ["reduce+bcast"])  # tree is slow, though not for certain


def test_facts():
    _, _, facts = decide(times(call=3, mpi=2, two=9, ring=1, tree=1.5), None)
    assert facts["speed"] == pytest.approx(3, rel=0.03) and facts["low"] <= facts["speed"] <= facts["high"]
    assert (facts["turns"], facts["runner_up"]) == (25, TREE._asdict())
    assert facts["seconds"] == pytest.approx(1, rel=0.02)


def test_nothing_of_ours_was_tried():
    assert decide(times(call=1, mpi=1), None)[:2] == (CHECKED, None)
