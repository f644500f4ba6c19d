"""What a schedule costs by the alpha-beta-gamma model: by simulation for any schedule, by a formula for some.

Rules that hold here:

* A message of n bytes takes ``alpha + beta n`` seconds and holds a port of its sender and one of its receiver all the
  time; a rank has `ports` of each, and sends and receives at once (full duplex). Reducing n bytes takes ``gamma n``.
  What may overlap is said in `hpcreduce.analysis.events`.
* A formula is for one port and equal links, and equals the simulation (a test holds that).

Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20 (1994),
doi:10.1016/S0167-8191(06)80021-9; Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), section 3, doi:10.1177/1094342005051521.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from hpcreduce.algorithms import Algorithm, schedule_of
from hpcreduce.algorithms.folding import levels, rest
from hpcreduce.algorithms.tree import depth
from hpcreduce.analysis import events, messages
from hpcreduce.analysis.events import Timing
from hpcreduce.analysis.messages import Message

MOST = 1e9
"""Seconds: the largest price of a message or byte."""


class Link(NamedTuple):
    """What a message takes: `alpha` seconds, and `beta` seconds for each byte."""

    alpha: float
    beta: float


def simulate(
    algorithm: str | Algorithm,
    size: int,
    count: int,
    *,
    alpha: float,
    beta: float,
    gamma: float = 0.0,
    itemsize: int = 8,
    ports: int = 1,
    segment: int | None = None,
    nodes: Sequence[int] | None = None,
    inside: Link | None = None,
    **static: Any,
) -> Timing:
    """Return the time of `algorithm` on `size` ranks for `count` elements.

    Parameters
    ----------
    algorithm : str or Algorithm
        A name in `ALGORITHMS` or `RELATED`, or a row.
    size, count : int
        Ranks, at least 1; elements, at least 0.
    alpha, beta, gamma : float
        Seconds per message, per byte sent and per byte reduced.
    itemsize : int
        Bytes per element.
    ports : int
        Messages that a rank sends at a time, and receives at a time.
    segment : int, optional
        Most elements of one message: spans travel in such pieces, one behind the other. By default they travel whole.
    nodes : sequence of int, optional
        The node of each rank, by default one for all; also handed to algorithms that ask for it.
    inside : Link, optional
        What messages between ranks of one node take; by default `alpha` and `beta` too. Needs `nodes`.
    **static
        The algorithm's other static keywords.

    Returns
    -------
    Timing
        Seconds, over all and for each rank, and the number of messages.

    Raises
    ------
    ValueError
        An unknown algorithm, or one that is no schedule; a number out of range; a node missing.
    ProofError
        A row whose messages do not match, or that makes no progress.

    Examples
    --------
    Four ranks, 1 us and 1 ns/B: six messages of a quarter of the array, 6 (1 + 2) us.

    >>> f"{simulate('ring', 4, 1000, alpha=1e-6, beta=1e-9).seconds:.3g}"
    '1.8e-05'
    """
    row = schedule_of(algorithm)
    _check(alpha=alpha, beta=beta, gamma=gamma)
    if inside:
        _check(**{f"inside.{name}": value for name, value in inside._asdict().items()})
    for name, value in ("itemsize", itemsize), ("ports", ports):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, found {value!r}")
    if nodes is None and inside:
        raise ValueError("inside needs nodes, the node of each rank")
    if nodes is not None and len(nodes) != size:
        raise ValueError(f"nodes must name the node of each of {size} ranks, found {len(nodes)}")
    where = tuple(nodes) if nodes is not None else (0,) * size
    programs = messages.compiled(row, size, count, segment, messages.placed(row, where, static))
    matched = messages.match(programs, itemsize)
    across = Link(alpha, beta)
    wire = _Fixed(where, across, inside or across)
    return events.run(programs, matched, wire, itemsize=itemsize, gamma=gamma, ports=ports)


def _check(**seconds: float) -> None:
    for name, value in seconds.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST:
            raise ValueError(f"{name} must be a number of seconds from 0 to {MOST:g}, found {value!r}")


class _Fixed:
    """Messages that take what their length says, whatever else is under way."""

    def __init__(self, nodes: Sequence[int], across: Link, inside: Link) -> None:
        self.nodes, self.across, self.inside = nodes, across, inside
        self.ends: list[tuple[float, int]] = []

    def begin(self, number: int, message: Message, now: float) -> None:
        link = self.inside if self.nodes[message.source] == self.nodes[message.target] else self.across
        heapq.heappush(self.ends, (now + (link.alpha + link.beta * message.nbytes), number))

    def soonest(self) -> float:
        return self.ends[0][0] if self.ends else math.inf

    def finish(self, now: float) -> list[int]:
        ended = []
        while self.ends and self.ends[0][0] <= now * events.SAME:
            ended.append(heapq.heappop(self.ends)[1])
        return ended


class _Prices(NamedTuple):
    """Functions of a number of elements: seconds for a message of them, and for reducing them."""

    send: Callable[[int], float]
    fold: Callable[[int], float]


def _ring(size: int, count: int, price: _Prices) -> float:
    """The longest chunk goes around twice, less one step, and is reduced on the first way: exact for every count."""
    chunk = -(-count // size)
    return (size - 1) * (2 * price.send(chunk) + price.fold(chunk))


def _tree(size: int, count: int, price: _Prices) -> float:
    """Up as `_gather` says, then one message a level down: exact for every size and count."""
    send, fold = price.send(count), price.fold(count)
    return _gather(size, send, fold) + depth(size) * send


def _gather(size: int, send: float, fold: float) -> float:
    """Return when the root of a binomial tree has reduced all, its children in the order of their distance.

    All children but the last head a full tree and are ready when a full tree is, the last one when the rest is.
    """
    last = depth(size) - 1
    if last < 0:
        return 0.0
    ready = [child * (send + fold) for child in range(last)] + [_gather(size - (1 << last), send, fold)]
    landed = done = 0.0
    for begin in ready:
        landed = max(landed, begin) + send  # they share one port in
        done = max(done, landed) + fold
    return done


def _recursive_doubling(size: int, count: int, price: _Prices) -> float:
    """A whole array a level; two more where ranks are folded, one of them reduced: exact for every size and count."""
    send, fold = price.send(count), price.fold(count)
    return levels(size) * (send + fold) + (2 * send + fold if rest(size) else 0.0)


def _rabenseifner(size: int, count: int, price: _Prices) -> float:
    """The larger half down, and up again; two more messages where ranks are folded: exact for every size and count."""
    total = 2 * price.send(count) + price.fold(count) if rest(size) else 0.0
    for level in range(1, levels(size) + 1):
        half = -(-count // (1 << level))
        total += 2 * price.send(half) + price.fold(half)
    return total


FORMS: Mapping[str, Callable[[int, int, _Prices], float]] = MappingProxyType(
    {"ring": _ring, "tree": _tree, "recursive_doubling": _recursive_doubling, "rabenseifner": _rabenseifner}
)
"""Name -> formula, of the algorithms that have one: ``formula(size, count, prices)`` returns seconds."""


def closed_form(
    name: str, size: int, nbytes: int, *, alpha: float, beta: float, gamma: float = 0.0, itemsize: int = 8
) -> float:
    """Return the seconds that an algorithm takes by its formula: one port, equal links, at once for any size.

    Parameters
    ----------
    name : str
        A name in `FORMS`.
    size : int
        Ranks, at least 1.
    nbytes : int
        Bytes per rank, a multiple of `itemsize`.
    alpha, beta, gamma : float
        Seconds per message, per byte sent and per byte reduced.
    itemsize : int
        Bytes per element; chunks are made of whole ones.

    Raises
    ------
    ValueError
        No formula for `name`; a number out of range.

    Notes
    -----
    With p ranks, n bytes, L = floor(lg p) and D = ceil(lg p); chunks and halves are rounded up to whole elements::

        ring                2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma
        tree                2D alpha + 2D n beta + D n gamma                        for p = 2^D, else at most that
        recursive_doubling  L (alpha + n beta + n gamma) [+ 2 (alpha + n beta) + n gamma unless p = 2^L]
        rabenseifner        2L alpha + (2^L-1)/2^L n (2 beta + gamma) [+ the same]

    Examples
    --------
    >>> f"{closed_form('ring', 100_000, 8_000_000, alpha=1e-6, beta=1e-10):.4g}"
    '0.2016'
    """
    if name not in FORMS:
        raise ValueError(f"no formula for algorithm {name!r}; expected one of {', '.join(FORMS)}; simulate() takes all")
    _check(alpha=alpha, beta=beta, gamma=gamma)
    for what, value, least in ("size", size, 1), ("nbytes", nbytes, 0), ("itemsize", itemsize, 1):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{what} must be a whole number of at least {least}, found {value!r}")
    if nbytes % itemsize:
        raise ValueError(f"nbytes must be a multiple of itemsize {itemsize}, found {nbytes}")
    prices = _Prices(lambda count: alpha + beta * itemsize * count, lambda count: gamma * itemsize * count)
    return FORMS[name](size, nbytes // itemsize, prices)
