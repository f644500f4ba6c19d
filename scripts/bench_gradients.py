"""Time `GradientAverager.average` beside what else a training loop could call, interleaved, in milliseconds.

    mpirun -n 2 python scripts/bench_gradients.py

Rivals: one ``comm.Allreduce`` per parameter, and, where torch is installed, all-reduces over gloo of buckets of 25 MiB,
all in flight at once, as torch's DistributedDataParallel does it. All divide by the number of ranks. A time is that of
the slowest rank; ``average(...)`` is the call that is passed arrays, which it copies.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time

import click
import numpy as np

import hpcreduce
from hpcreduce.commands import run
from hpcreduce.commands.console import Console
from hpcreduce.gradients.averager import BUCKET_BYTES
from hpcreduce.measure import environment, gloo


@click.command()
@click.option("--parameters", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--elements", type=click.IntRange(1), default=25_000_000, show_default=True, help="Of all together.")
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True)
def bench(parameters: int, elements: int, rounds: int) -> int:
    """Time the average of the gradients of a model, float32, beside rivals."""
    console = Console()
    comm = console.comm
    shapes = sizes(parameters, elements)
    arrays = [np.full(size, comm.rank + index % 5, np.float32) for index, size in enumerate(shapes)]
    with contextlib.ExitStack() as stack:
        averager = stack.enter_context(hpcreduce.GradientAverager(comm, arrays))
        calls = {
            "average()": averager.average,
            "average(...)": lambda: averager.average(arrays),
            "comm.Allreduce": lambda: per_parameter(console, arrays),
        }
        if reason := gloo.missing(comm):
            console.note(f"note: gloo is left out: {reason}")
        else:
            stack.enter_context(gloo.group(comm))
            buckets = [np.ones(size, np.float32) for size in cut(shapes)]
            calls["gloo, 25 MiB"] = lambda: bucketed(comm.size, buckets)
        times = timed(comm, calls, rounds)
    console.out(f"{parameters} parameters, {sum(shapes)} float32, {comm.size} ranks, median of {rounds} rounds")
    for name, value in {**environment.library(console.mpi), **environment.software()}.items():
        console.out(f"{name}: {value}")
    ours = times["average()"]
    for name, seconds in times.items():
        console.out(f"{name:<16}{seconds * 1e3:9.2f} ms   {seconds / ours:5.2f} x average()")
    return 0


def sizes(parameters: int, elements: int) -> list[int]:
    """Return sizes of parameters, mixed as in a network: from a few to a million elements.

    >>> sizes(4, 850)
    [10, 40, 160, 640]
    """
    shares = [4 ** (index % 10) for index in range(parameters)]
    return [max(1, share * elements // sum(shares)) for share in shares]


def cut(shapes: list[int]) -> list[int]:
    """Return the sizes of buckets that hold parameters of these sizes."""
    buckets = [0]
    for size in reversed(shapes):
        if buckets[-1] and 4 * (buckets[-1] + size) > BUCKET_BYTES:
            buckets.append(0)
        buckets[-1] += size
    return buckets


def per_parameter(console: Console, arrays: list[np.ndarray]) -> None:
    """Average each array by the library's call."""
    for array in arrays:
        console.comm.Allreduce(console.mpi.IN_PLACE, array)
        array /= console.comm.size


def bucketed(size: int, buckets: list[np.ndarray]) -> None:
    """Average the buckets over gloo."""
    import torch
    import torch.distributed as distributed

    work = [distributed.all_reduce(torch.from_numpy(bucket), async_op=True) for bucket in buckets]
    for each, bucket in zip(work, buckets, strict=True):
        each.wait()
        bucket /= size


def timed(comm: object, calls: dict[str, object], rounds: int) -> dict[str, float]:
    """Return the median over rounds of each call's time on the slowest rank."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 2):
        for name, call in calls.items():
            comm.Barrier()
            start = time.perf_counter()
            call()
            own = time.perf_counter() - start
            slowest = max(comm.allgather(own))
            if turn > 1:  # two to warm up
                times[name].append(slowest)
    return {name: statistics.median(each) for name, each in times.items()}


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], bench, "bench_gradients.py"))
