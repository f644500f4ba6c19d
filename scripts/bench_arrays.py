"""Time node-shared arrays, private ones, and many small ones beside `comm.Allreduce`; all take turns.

    mpirun -n 3 python scripts/bench_arrays.py

Sums in place by prepared plans. A time is that of the slowest rank, medians; a ratio is the median over the rounds.
``copy`` is what it takes all ranks at once to `np.copyto` an array of that size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np

import hpcreduce
from hpcreduce.commands import run
from hpcreduce.commands.console import Console
from hpcreduce.measure import bench, environment
from hpcreduce.units import format_bytes

SIZES = (64 << 10, 1 << 20, 100 << 20)
MANY, LENGTH = 1000, 100


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=41, show_default=True, help="Of the smallest; larger: fewer.")
def arrays(rounds: int) -> int:
    """Time node-shared arrays and many small arrays beside the library."""
    console = Console()
    for name, value in {**environment.library(console.mpi), **environment.software()}.items():
        console.out(f"{name}: {value}")
    console.out(f"{console.comm.size} ranks, medians\n")
    for nbytes in SIZES:
        fewer = max(5, rounds // (1 + nbytes // (10 << 20)))
        of_size(console, nbytes, fewer, max(1, (4 << 20) // (nbytes + 4096)))
    of_many(console, rounds)
    return 0


def of_size(console: Console, nbytes: int, rounds: int, calls: int) -> None:
    """Time arrays of float64; the node-shared one has a communicator of its own, as if there were no other."""
    comm, in_place = console.comm, console.mpi.IN_PLACE
    plain, private, source, target = (np.ones(nbytes // 8) for _ in range(4))
    apart = comm.Dup()
    shared = hpcreduce.zeros(apart, nbytes // 8)
    with (
        hpcreduce.allreduce_init(comm, private, private) as first,
        hpcreduce.allreduce_init(apart, shared, shared) as second,
    ):
        ways = {
            "mpi": (plain, lambda: comm.Allreduce(in_place, plain)),
            "private": (private, lambda: once(first)),
            "shared": (shared, lambda: once(second)),
            "copy": (target, lambda: np.copyto(target, source)),
        }
        times = timed(comm, ways, rounds, calls)
    pairs = ("mpi", "private"), ("mpi", "shared"), ("private", "copy"), ("shared", "copy")
    say(console, format_bytes(nbytes), times, pairs)
    apart.Free()


def of_many(console: Console, rounds: int) -> None:
    """Time many small arrays of float32."""
    comm, in_place = console.comm, console.mpi.IN_PLACE
    small = [np.zeros(LENGTH, np.float32) for _ in range(MANY)]

    def one_by_one() -> None:
        for array in small:
            comm.Allreduce(in_place, array)

    with hpcreduce.Fused(comm, small) as plan:
        ways = {
            "calls": (small[0], one_by_one),
            "many": (small[0], lambda: hpcreduce.allreduce_many(comm, small)),
            "fused": (small[0], lambda: once(plan)),
        }
        times = timed(comm, ways, rounds, 1)
    say(console, f"{MANY} arrays of {LENGTH} float32", times, (("calls", "many"), ("calls", "fused")))


def once(plan: Any) -> None:
    """Run a plan."""
    plan.Start()
    plan.Wait()


def timed(
    comm: Any, ways: dict[str, tuple[np.ndarray, Callable[[], Any]]], rounds: int, calls: int
) -> dict[str, np.ndarray]:
    """Return the seconds of each way, round by round, after one to warm up."""
    turns = [[bench.seconds_of(comm, call, array, calls) for array, call in ways.values()] for _ in range(rounds + 1)]
    return dict(zip(ways, np.array(turns[1:]).T, strict=True))


def say(console: Console, what: str, times: dict[str, np.ndarray], pairs: Sequence[tuple[str, str]]) -> None:
    """Print medians and ratios."""
    told = [f"{name} {np.median(each) * 1e6:.1f} us" for name, each in times.items()]
    ratios = [f"{one} / {two} {np.median(times[one] / times[two]):.2f}" for one, two in pairs]
    console.out(f"{what}: {', '.join(told)}; {', '.join(ratios)}")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], arrays, "bench_arrays.py"))
