"""What ``auto`` takes for a call, why, and what each algorithm would cost there. No MPI is needed for the pure part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.analysis import cost, messages
from hpcreduce.analysis.cost import Link
from hpcreduce.runtime import agreement, buffers, operations
from hpcreduce.runtime.operations import Operation
from hpcreduce.selection import choose, forbids

MOST_MESSAGES = 200_000
"""Messages of a schedule up to which its time is predicted."""


class Model(NamedTuple):
    """Prices of a message: `across` nodes and `inside` one, and seconds per byte reduced.

    The defaults were fitted on one 2-core x86-64 machine with shared memory (`inside`) and are typical of a 100 Gbit/s
    network (`across`); ``python -m hpcreduce fit`` measures yours.
    """

    across: Link = Link(15e-6, 1 / 12e9)
    inside: Link = Link(6e-6, 1 / 6e9)
    gamma: float = 1 / 8e9


class Line(NamedTuple):
    """One algorithm.

    Attributes
    ----------
    algorithm : str
    rounds : int or None
    nbytes : int or None
        The most that one rank sends.
    seconds : float or None
        Predicted; `None` for what is no schedule, or too long to be simulated.
    refusal : str
        Why it cannot run here; empty if it can.
    """

    algorithm: str
    rounds: int | None
    nbytes: int | None
    seconds: float | None
    refusal: str


class Explanation(NamedTuple):
    """What ``auto`` takes (`algorithm`), why, in messages of how many bytes, and a line per algorithm."""

    ranks: int
    nodes: int
    nbytes: int
    dtype: str
    op: str
    algorithm: str
    reason: str
    segment: int
    lines: list[Line]

    def __str__(self) -> str:
        head = (
            f"{self.op} of {self.nbytes} bytes of {self.dtype} on {self.ranks} rank{'s' * (self.ranks > 1)}, "
            f"{self.nodes} node{'s' * (self.nodes > 1)}: auto takes {self.algorithm}: {self.reason}"
        )
        width = max(len(line.algorithm) for line in self.lines)
        rows = [head, f"{'':{width}}  {'rounds':>7}  {'most bytes sent':>15}  {'predicted':>10}"]
        for line in self.lines:
            mark = "  <- auto" if line.algorithm == self.algorithm else ""
            if line.refusal:
                rows.append(f"{line.algorithm:{width}}  {line.refusal}")
                continue
            time = "-" if line.seconds is None else f"{line.seconds * 1e6:.4g} us"
            rounds, nbytes = ("-" if number is None else str(number) for number in (line.rounds, line.nbytes))
            rows.append(f"{line.algorithm:{width}}  {rounds:>7}  {nbytes:>15}  {time:>10}{mark}")
        return "\n".join(rows)


def explain(comm: Any, array: Any, op: Any = "sum", model: Model | None = None) -> Explanation:
    """Return what `hpcreduce.allreduce` of such an array does, and what each algorithm would cost; print it.

    Collective on the first use of the communicator, else local.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    array : array_like
    op : str, MPI.Op or callable
        As for `hpcreduce.allreduce`.
    model : Model, optional
        Prices of messages.

    Raises
    ------
    TypeError, ValueError
        As `hpcreduce.allreduce`.

    Examples
    --------
    ::

        print(hpcreduce.explain(comm, gradient, op="mean"))
    """
    operation = operations.resolve(op)
    source = buffers.source(array, None, operation.locates)
    return explanation(agreement.state(comm).nodes, source.size, source.dtype, operation, model or Model())


def explanation(
    nodes: Sequence[int], count: int, dtype: np.dtype[Any], operation: Operation, model: Model
) -> Explanation:
    """Explain a reduction of `count` elements on ranks whose nodes are `nodes`. Pure."""
    work, _ = operation.types(dtype)
    choice = choose("auto", None, operation, work, count, tuple(nodes))
    size = len(nodes)
    lines = []
    for name, row in ALGORITHMS.items():
        refusal = forbids(row, operation, work)
        if row.rounds is None or refusal:
            lines.append(Line(name, None, None, None, refusal))
            continue
        static = {"nodes": tuple(nodes)} if "nodes" in row.static else {}
        assert row.round_count and row.volume
        sent = max(row.volume(rank, size, count, **static) for rank in range(size)) * work.itemsize
        rounds = row.round_count(size, count, **static)
        lines.append(Line(name, rounds, sent, _seconds(name, nodes, count, work.itemsize, model), ""))
    segment = choice.segment * work.itemsize
    return Explanation(
        size,
        len(set(nodes)),
        count * dtype.itemsize,
        str(dtype),
        operation.name,
        choice.algorithm.name,
        choice.reason,
        segment,
        lines,
    )


def _seconds(name: str, nodes: Sequence[int], count: int, itemsize: int, model: Model) -> float | None:
    row, size = ALGORITHMS[name], len(nodes)
    static = messages.placed(row, tuple(nodes), {})
    if messages.messages_up_to(row, size, count, MOST_MESSAGES, static) > MOST_MESSAGES:
        return None
    alpha, beta = model.across
    timing = cost.simulate(
        name,
        size,
        count,
        alpha=alpha,
        beta=beta,
        gamma=model.gamma,
        itemsize=itemsize,
        nodes=nodes,
        inside=model.inside,
    )
    return timing.seconds
