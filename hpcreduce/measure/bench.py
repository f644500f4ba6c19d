"""Time algorithms beside MPI_Allreduce in one run, interleaved.

A time is the slowest rank's, after a barrier, in seconds per call; a row holds the median over the repetitions. All
contenders take turns in each repetition, so that a drift of the machine's speed meets them alike, and the ratio to the
library is the median over those turns.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.collectives import allreduce
from hpcreduce.errors import HpcreduceError

DTYPE = np.dtype(np.float64)
LIBRARY = "mpi"
"""Name of the contender that is ``comm.Allreduce`` itself."""


class Row(NamedTuple):
    """One algorithm at one size.

    Attributes
    ----------
    algorithm : str
        ``mpi`` is ``comm.Allreduce`` as a program would call it.
    nbytes : int
    seconds : float
        Median time of the slowest rank.
    busbw : float
        Bus bandwidth in bytes per second: ``nbytes / seconds * 2 (p - 1) / p``, as nccl-tests define it.
    ratio_to_mpi : float
        Median over the interleaved turns of time / time of ``mpi``; below 1 is faster.
    """

    algorithm: str
    nbytes: int
    seconds: float
    busbw: float
    ratio_to_mpi: float


def compare(comm: Any, algorithms: Sequence[str], nbytes: int, *, budget: float = 2.0) -> list[Row]:
    """Time float64 sums in place of `nbytes` bytes; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    algorithms : sequence of str
        Contenders beside the library.
    nbytes : int
        Size of the array in bytes.
    budget : float
        Seconds to spend, as far as five repetitions allow.

    Returns
    -------
    list of Row
        The library's first; the same on every rank.

    Raises
    ------
    HpcreduceError
        A contender gave a wrong result.
    """
    array = np.empty(max(1, nbytes // DTYPE.itemsize), DTYPE)
    contenders = {LIBRARY: _library(comm, array)} | {name: _ours(comm, array, name) for name in algorithms}
    first = {
        name: _time(comm, call, lambda: _fill(array, comm.rank), 1, _verify(comm, array, name))
        for name, call in contenders.items()
    }
    calls = max(1, min(50, round(1e-3 / max(min(first.values()), 1e-6))))
    turns = max(5, min(15, int(budget / (calls * sum(first.values()))))) | 1
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, call in contenders.items():
            times[name].append(_time(comm, call, lambda: array.fill(1.0), calls))
    share = 2 * (comm.size - 1) / comm.size
    rows = []
    for name, ours in times.items():
        seconds = statistics.median(ours)
        ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, times[LIBRARY], strict=True))
        rows.append(Row(name, array.nbytes, seconds, array.nbytes / seconds * share, ratio))
    return rows


def affordable(comm: Any, sizes: Sequence[int], ranks_per_node: int) -> list[int]:
    """Return the sizes whose arrays take at most a quarter of the free memory of every node; collective."""
    from mpi4py import MPI

    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    room = comm.allreduce(free // (4 * ranks_per_node), MPI.MIN)
    return [size for size in sizes if size <= room]


def _library(comm: Any, array: Any) -> Callable[[], Any]:
    from mpi4py import MPI

    return lambda: comm.Allreduce(MPI.IN_PLACE, array, MPI.SUM)


def _ours(comm: Any, array: Any, algorithm: str) -> Callable[[], Any]:
    return lambda: allreduce(comm, array, array, "sum", algorithm=algorithm)


def _fill(array: Any, rank: int) -> None:
    """Fill with whole numbers that depend on rank and index, block by block to spare memory."""
    for start in range(0, array.size, 1 << 16):
        block = array[start : start + (1 << 16)]
        block[:] = (rank + 1) * _pattern(start, block.size)


def _pattern(start: int, count: int) -> Any:
    return np.arange(start, start + count) % 1009 + 1


def _verify(comm: Any, array: Any, name: str) -> Callable[[], None]:
    def verify() -> None:
        total = comm.size * (comm.size + 1) // 2
        right = all(
            (array[start : start + (1 << 16)] == total * _pattern(start, min(1 << 16, array.size - start))).all()
            for start in range(0, array.size, 1 << 16)
        )
        wrong = [rank for rank, good in enumerate(comm.allgather(right)) if not good]
        if wrong:
            raise HpcreduceError(f"{name}: wrong sum of {array.nbytes} bytes on ranks {wrong}")

    return verify


def _time(
    comm: Any,
    call: Callable[[], Any],
    prepare: Callable[[], None],
    calls: int,
    verify: Callable[[], None] | None = None,
) -> float:
    """Return the slowest rank's seconds per call."""
    from mpi4py import MPI

    prepare()
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    mine = time.perf_counter() - start
    if verify:
        verify()
    return float(comm.allreduce(mine, MPI.MAX)) / calls


def table(rows: Sequence[Row], chosen: Callable[[int], str]) -> Iterator[str]:
    """Yield the lines of a table; `chosen` says which algorithm ``auto`` takes at a size."""
    yield f"{'size':>9}  {'algorithm':<20}{'time':>11}{'bus bandwidth':>16}{'speed vs mpi':>14}"
    for nbytes in dict.fromkeys(row.nbytes for row in rows):
        group = [row for row in rows if row.nbytes == nbytes]
        fastest = min(group, key=lambda row: row.ratio_to_mpi)
        for row in group:
            size = format_bytes(nbytes) if row is group[0] else ""
            marks = (" <- fastest" if row is fastest else "") + (" (auto)" if row.algorithm == chosen(nbytes) else "")
            bandwidth = format_rate(row.busbw) if row.busbw else "-"
            yield (
                f"{size:>9}  {row.algorithm:<20}{format_seconds(row.seconds):>11}{bandwidth:>16}"
                f"{1 / row.ratio_to_mpi:>13.2f}x{marks}"
            )


def format_bytes(nbytes: int) -> str:
    """Return the size in units of 1024.

    >>> format_bytes(8), format_bytes(64 << 10), format_bytes(100 << 20)
    ('8 B', '64 KiB', '100 MiB')
    """
    for unit, shift in ("GiB", 30), ("MiB", 20), ("KiB", 10):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):g} {unit}"
    return f"{nbytes} B"


def format_rate(rate: float) -> str:
    """Return the rate, given in bytes per second, with three digits.

    >>> format_rate(2.471e9), format_rate(64.0e6), format_rate(1234.0)
    ('2.47 GB/s', '64.0 MB/s', '1.23 kB/s')
    """
    for unit, scale in ("GB/s", 1e9), ("MB/s", 1e6):
        if rate >= scale:
            return f"{rate / scale:#.3g} {unit}"
    return f"{rate / 1e3:#.3g} kB/s"


def format_seconds(seconds: float) -> str:
    """Return the time with four digits.

    >>> format_seconds(3.21e-6), format_seconds(0.0456)
    ('3.210 us', '45.60 ms')
    """
    for unit, scale in ("us", 1e-6), ("ms", 1e-3):
        if seconds < 1000 * scale:
            return f"{seconds / scale:#.4g} {unit}"
    return f"{seconds:#.4g} s"
