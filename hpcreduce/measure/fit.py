"""Measure what messages and reductions cost here, for `hpcreduce.analysis`: alpha, beta and gamma.

A message is priced as the executor sends it. Alpha: two ranks hand an empty message to and fro in one program, many
times. Beta: one sends long arrays to the other; what a longer one takes more is what its bytes take. Two ranks of one
node give `inside`, two of different nodes the rest. Reductions are timed for each type.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcreduce.algorithms import RELATED
from hpcreduce.errors import HpcreduceError
from hpcreduce.measure import samples
from hpcreduce.related import exchange
from hpcreduce.runtime import agreement
from hpcreduce.runtime.operations import OPERATIONS
from hpcreduce.schedule import RIGHT, Recv, Rounds, Send, Span

LONG = (1 << 20, 8 << 20)
"""Bytes of the two arrays whose times differ by what bytes take."""

FASTEST = 1e-12
"""Seconds per byte (1 TB/s) that no message takes; less is noise."""

TURNS = 100
"""Empty messages each way in a row."""

FOLDED = 1 << 18
"""Bytes that are reduced at a time: a segment."""

DTYPES = ("int32", "int64", "float16", "bfloat16", "float32", "float64", "complex128")


def to_and_fro(rank: int, size: int, count: int) -> Rounds:
    """Yield the rounds of two ranks that hand an empty message to each other, `TURNS` times each way."""
    empty, other = Span(0, 0), 1 - rank
    for turn in range(2 * TURNS):
        yield (Send(other, empty),) if turn % 2 == rank else (Recv(other, empty, None),)


def one_way(rank: int, size: int, count: int) -> Rounds:
    """Yield the rounds of two ranks, of which the first sends the whole array, and gets an empty message back."""
    whole, empty, other = Span(0, count), Span(0, 0), 1 - rank
    if rank == 0:
        yield (Send(other, whole),)
        yield (Recv(other, empty, None),)
    else:
        yield (Recv(other, whole, None),)
        yield (Send(other, empty),)


def measure(comm: Any, host: str, repeats: int = 7) -> dict[str, Any]:
    """Return the prices as a network description (see `hpcreduce.analysis.network`); collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        At least two ranks.
    host : str
        Name of this rank's host.
    repeats : int
        Measurements of each kind; the least time counts.

    Returns
    -------
    dict
        ``hosts``, ``links`` (from each host to one switch), ``ranks_per_host``, ``alpha``, ``gamma``, ``inside``, and
        ``gammas`` by dtype. Prices that could not be measured here, for want of a second rank or node, are missing.

    Raises
    ------
    HpcreduceError
        On all ranks: the times make no sense, since the machine was busy.
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
    found = None
    if comm.rank in pair:
        alpha = _time(part, to_and_fro, 0, repeats) / (2 * TURNS)
        short, long = (_time(part, one_way, nbytes, repeats) for nbytes in LONG)
        found = alpha, (long - short) / (LONG[1] - LONG[0])
    part.Free()
    alpha, beta = comm.bcast(found, root=min(pair))
    if beta < FASTEST:
        raise HpcreduceError(
            "the measurement was disturbed: longer messages took no longer; try again, or --repeats 30"
        )
    return alpha, beta


def _time(part: Any, rounds: Callable[[int, int, int], Rounds], nbytes: int, repeats: int) -> float:
    """Return the least seconds of a program of two ranks, as the first one sees it: noise only adds."""
    state = agreement.state(part)
    row = RELATED["bcast"]._replace(name=rounds.__name__, rounds=rounds, static=())
    array = np.zeros(nbytes, np.uint8)
    found = []
    for _ in range(repeats + 1):  # the first one warms up
        part.Barrier()
        start = time.perf_counter()
        exchange(state, row, array)
        found.append(time.perf_counter() - start)
    return min(found[1:])


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
