"""What ``auto`` takes for a call, why, and what each algorithm would cost there. No MPI is needed for the pure part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.analysis import messages
from hpcreduce.analysis.cost import Link
from hpcreduce.analysis.network import Cable, Network, read
from hpcreduce.analysis.predict import predict
from hpcreduce.lookup import Table, to_json
from hpcreduce.runtime import agreement, buffers, operations
from hpcreduce.runtime.operations import Operation
from hpcreduce.selection import choose, forbids
from hpcreduce.units import plural

MOST_MESSAGES = 20_000
"""Messages of a schedule up to which its time is predicted."""


class Model(NamedTuple):
    """Prices of a message: `across` nodes and `inside` one, and seconds per byte reduced.

    Ranks of one node share one link, of the bandwidth 1 / ``across.beta``. The defaults are typical of a 100 Gbit/s
    network and of shared memory; ``python -m hpcreduce fit`` measures yours, `read_model` reads what it has written.
    """

    across: Link = Link(15e-6, 1 / 12e9)
    inside: Link = Link(6e-6, 1 / 6e9)
    gamma: float = 1 / 8e9

    def network(self, nodes: int) -> Network:
        """Return `nodes` hosts around one switch with these prices."""
        hosts = tuple(f"node {node}" for node in range(nodes))
        links = tuple(Cable(host, "switch", 1 / max(self.across.beta, 1e-18), 0.0) for host in hosts if nodes > 1)
        return Network(hosts, links, alpha=self.across.alpha, gamma=self.gamma, inside=self.inside)


def read_model(path: str) -> Model:
    """Return the prices that a network file has; its slowest link counts.

    Raises
    ------
    NetworkError
        Naming the file and the field.
    """
    found = read(path)
    across = Model().across
    if found.links:
        slowest = min(link.bandwidth for link in found.links)
        across = Link(found.alpha + 2 * max(link.latency for link in found.links), 1 / slowest)
    return Model(across, found.inside, found.gamma)


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
    """What ``auto`` takes (`algorithm`), why, in messages of how many bytes, and how many posted ahead; the entry of a
    table that decided, with its ``source``, or `None` where the rules did; and a line per algorithm.
    """

    ranks: int
    nodes: int
    nbytes: int
    dtype: str
    op: str
    algorithm: str
    reason: str
    segment: int
    window: int
    entry: dict[str, Any] | None
    lines: list[Line]

    def __str__(self) -> str:
        decided = "" if self.entry else " (by the rules: no table decides here)"
        head = (
            f"{self.op} of {self.nbytes} bytes of {self.dtype} on {plural(self.ranks, 'rank')}, "
            f"{plural(self.nodes, 'node')}: auto takes {self.algorithm}: {self.reason}{decided}"
        )
        width = max(len(line.algorithm) for line in self.lines)
        rows = [head, f"{'':{width}}  {'rounds':>7}  {'most bytes sent':>15}  {'predicted':>10}"]
        for line in self.lines:
            mark = "  <- auto" if line.algorithm == self.algorithm else ""
            if line.refusal:
                rows.append(f"{line.algorithm:{width}}  {line.refusal}")
                continue
            time = (
                "too long"
                if line.rounds and line.seconds is None
                else "-"
                if line.seconds is None
                else f"{line.seconds * 1e6:.4g} us"
            )
            rounds, nbytes = ("-" if number is None else str(number) for number in (line.rounds, line.nbytes))
            rows.append(f"{line.algorithm:{width}}  {rounds:>7}  {nbytes:>15}  {time:>10}{mark}")
        return "\n".join(rows)


def explain(comm: Any, array: Any, op: Any = "sum", model: Model | str | None = None) -> Explanation:
    """Return what `hpcreduce.allreduce` of such an array does, and what each algorithm would cost; print it.

    Collective on the first use of the communicator, else local.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    array : array_like
    op : str, MPI.Op or callable
        As for `hpcreduce.allreduce`.
    model : Model or str, optional
        Prices of messages, or the file that ``python -m hpcreduce fit`` has written them to.

    Raises
    ------
    TypeError, ValueError
        As `hpcreduce.allreduce`; for a `model` that is neither, or a file that is wrong.

    Examples
    --------
    ::

        print(hpcreduce.explain(comm, gradient, op="mean"))
    """
    if isinstance(model, str):
        model = read_model(model)
    elif model is not None and not isinstance(model, Model):
        raise TypeError(f"model must be a Model or the name of a file, found {type(model).__name__}")
    operation = operations.resolve(op)
    source = buffers.source(array, None, operation.locates)
    state = agreement.state(comm)
    return explanation(state.nodes, source.size, source.dtype, operation, model or Model(), state.tables)


def explanation(
    nodes: Sequence[int],
    count: int,
    dtype: np.dtype[Any],
    operation: Operation,
    model: Model,
    tables: Sequence[Table] = (),
) -> Explanation:
    """Explain a reduction of `count` elements on ranks whose nodes are `nodes`, with these measured tables. Pure."""
    work, _ = operation.types(dtype)
    choice = choose("auto", None, operation, work, count, tuple(nodes), tables)
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
    segment, hit = choice.segment * work.itemsize, choice.hit
    entry = to_json(hit.entry) | {"source": hit.source, "until": hit.until} if hit else None
    return Explanation(
        size,
        len(set(nodes)),
        count * dtype.itemsize,
        str(dtype),
        operation.name,
        choice.algorithm.name,
        choice.reason,
        segment,
        choice.window,
        entry,
        lines,
    )


def _seconds(name: str, nodes: Sequence[int], count: int, itemsize: int, model: Model) -> float | None:
    row, size = ALGORITHMS[name], len(nodes)
    static = messages.placed(row, tuple(nodes), {})
    if messages.messages_up_to(row, size, count, MOST_MESSAGES, static) > MOST_MESSAGES:
        return None
    network = model.network(max(nodes) + 1)
    return predict(name, network, size, count, itemsize=itemsize, hosts=nodes).seconds
