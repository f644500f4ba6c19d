"""Measure what messages and reductions cost here, for `hpcreduce.analysis`: alpha, beta and gamma.

A message is priced as the executor sends it: two ranks hand an array to and fro in one program, many times. Two ranks
of one node give `inside`, two of different nodes the rest. Reductions are timed for each type.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from hpcreduce.algorithms import RELATED
from hpcreduce.measure import samples
from hpcreduce.related import exchange
from hpcreduce.runtime import agreement
from hpcreduce.runtime.operations import OPERATIONS
from hpcreduce.schedule import RIGHT, Recv, Rounds, Send, Span

SIZES = (0, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
"""Bytes of the messages that are timed."""

FOLDED = 1 << 18
"""Bytes that are reduced at a time: a segment."""

DTYPES = ("int32", "int64", "float16", "bfloat16", "float32", "float64", "complex128")


def to_and_fro(rank: int, size: int, count: int, turns: int = 10) -> Rounds:
    """Yield the rounds of two ranks that hand the whole array to each other, `turns` times each way."""
    whole, other = Span(0, count), 1 - rank
    for turn in range(2 * turns):
        yield (Send(other, whole),) if turn % 2 == rank else (Recv(other, whole, None),)


def measure(comm: Any, host: str, repeats: int = 7) -> dict[str, Any]:
    """Return the prices as a network description (see `hpcreduce.analysis.network`); collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        At least two ranks.
    host : str
        Name of this rank's host.
    repeats : int
        Measurements of each size; the median counts.

    Returns
    -------
    dict
        ``hosts``, ``links`` (from each host to one switch), ``ranks_per_host``, ``alpha``, ``gamma``, ``inside``, and
        ``gammas`` by dtype. Prices that could not be measured here, for want of a second rank or node, are missing.
    """
    nodes = agreement.state(comm).nodes
    hosts = list(dict.fromkeys(comm.allgather(host)))
    number = len(set(nodes))
    together = next(([one, two] for one in range(comm.size) for two in range(one) if nodes[one] == nodes[two]), None)
    apart = [nodes.index(0), nodes.index(1)] if number > 1 else None
    inside = _line(comm, together, repeats) if together else None
    across = _line(comm, apart, repeats) if apart else None
    gammas = comm.bcast({name: _gamma(name, repeats) for name in DTYPES if name in samples.dtypes()})
    names = hosts if len(hosts) == number else [f"node {node}" for node in range(number)]
    description: dict[str, Any] = {"hosts": names, "links": []}
    description["ranks_per_host"] = max(nodes.count(node) for node in set(nodes))
    description["gamma"] = gammas["float64"]
    if inside:
        description["inside"] = {"alpha": inside[0], "beta": inside[1]}
    if across:
        description["alpha"] = across[0]
        description["links"] = [
            {"a": name, "b": "switch", "bandwidth": 1 / across[1], "latency": 0.0} for name in names
        ]
    return description | {"gammas": gammas}


def _line(comm: Any, pair: list[int], repeats: int) -> tuple[float, float]:
    """Return alpha and beta of the messages between two ranks; the same on all."""
    part = comm.Split(0 if comm.rank in pair else 1, comm.rank)
    times = []
    if comm.rank in pair:
        row = RELATED["bcast"]._replace(name="to_and_fro", rounds=to_and_fro, static=("turns",))
        for nbytes in SIZES:
            times.append(_time(part, row, nbytes, repeats))
    part.Free()
    return comm.bcast(line(SIZES, times) if times else None, root=pair[0])  # type: ignore[no-any-return]


def _time(part: Any, row: Any, nbytes: int, repeats: int) -> float:
    """Return the seconds of one message."""
    state = agreement.state(part)
    array = np.zeros(nbytes, np.uint8)
    turns = 100 if nbytes < 64 << 10 else 5
    found = []
    for _ in range(repeats + 1):  # the first one warms up
        part.Barrier()
        start = time.perf_counter()
        exchange(state, row, array, turns=turns)
        found.append((time.perf_counter() - start) / (2 * turns))
    return statistics.median(found[1:])


def line(sizes: tuple[int, ...], seconds: list[float]) -> tuple[float, float]:
    """Return alpha and beta of ``seconds = alpha + beta size`` with the least relative errors, neither below 0.

    >>> alpha, beta = line((0, 1000, 100000), [1e-6, 2e-6, 101e-6])
    >>> round(alpha * 1e6, 6), round(beta * 1e9, 6)
    (1.0, 1.0)
    """
    weight = 1 / np.asarray(seconds)
    matrix = np.stack([weight, np.asarray(sizes) * weight], axis=1)
    alpha, beta = np.linalg.lstsq(matrix, np.ones(len(sizes)), rcond=None)[0]
    if alpha < 0:
        alpha = min(seconds)
    return float(alpha), float(max(beta, 1e-15))


def _gamma(name: str, repeats: int) -> float:
    """Return the seconds that a byte of this type takes to be added to a sum, on this rank."""
    dtype = samples.dtypes()[name]
    operation = OPERATIONS["sum"]
    work = operation.types(dtype)[0]
    target, landed = np.ones(FOLDED // work.itemsize, work), np.ones(FOLDED // work.itemsize, work)
    found = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        operation.fold(target, landed, RIGHT)
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:]) / target.nbytes
