"""What a schedule takes on a described network, where messages that share a link slow each other down.

Rules that hold here:

* A message first waits for `alpha` and the latencies of its links, then flows: all flows share the links' bandwidth
  max-min fairly, anew whenever one begins or ends. Between ranks of one host it takes what `inside` says.
* What a rank sends and receives at a time, and what waits for what, is as in `hpcreduce.analysis.events`: alone on
  equal links, a schedule takes what `hpcreduce.analysis.cost.simulate` says.

Bertsekas and Gallager, "Data Networks", 2nd edition 1992, section 6.5.2 (max-min fairness); Casanova et al.,
"Versatile, scalable, and accurate simulation of distributed applications and platforms", J. Parallel Distrib. Comput.
74 (2014), doi:10.1016/j.jpdc.2014.06.008 (flows as fluids).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcreduce.algorithms import ALGORITHMS, Algorithm
from hpcreduce.analysis import events, messages
from hpcreduce.analysis.events import SAME, Timing
from hpcreduce.analysis.messages import Message
from hpcreduce.analysis.network import Network, Routes

MOST_MESSAGES = 100_000
"""Messages of the largest schedule that is followed."""

_REMEMBERED = 4096

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


class Prediction(NamedTuple):
    """Seconds that an algorithm takes for `nbytes` bytes per rank."""

    algorithm: str
    nbytes: int
    ranks: int
    seconds: float


def compare(
    network: Network,
    ranks: int,
    sizes: Sequence[int],
    algorithms: Sequence[str] | None = None,
    *,
    itemsize: int = 8,
    ports: int = 1,
    most: int = MOST_MESSAGES,
    left_out: Callable[[str, int, str], None] = lambda name, nbytes, reason: None,
) -> list[Prediction]:
    """Predict algorithms side by side.

    Parameters
    ----------
    network : Network
    ranks : int
        At least 1; they fill the hosts one after the other.
    sizes : sequence of int
        Bytes per rank, each rounded up to whole elements.
    algorithms : sequence of str, optional
        Names in `ALGORITHMS`; by default all schedules.
    itemsize : int
        Bytes per element.
    ports : int
        Messages that a rank sends at a time, and receives at a time.
    most : int
        Schedules of more messages are left out.
    left_out : callable
        Called as ``left_out(name, nbytes, reason)`` for each of those.

    Returns
    -------
    list of Prediction
        By size, then by algorithm.

    Raises
    ------
    NetworkError
        More ranks than places.
    ValueError
        An unknown algorithm; a number out of range.
    """
    hosts = network.place(ranks)
    rows = [messages.row_of(name) for name in algorithms or [name for name, row in ALGORITHMS.items() if row.rounds]]
    counts = list(dict.fromkeys(-(-nbytes // itemsize) for nbytes in sizes))
    routes = Routes(network)
    predictions = []
    for count in counts:
        for row in rows:
            static = messages.placed(row, hosts, {})
            if messages.messages_up_to(row, ranks, count, most, static) > most:
                left_out(row.name, count * itemsize, f"more than {most} messages among {ranks} ranks")
            else:
                seconds = _time(row, routes, hosts, count, itemsize, ports, None, {}).seconds
                predictions.append(Prediction(row.name, count * itemsize, ranks, seconds))
    return predictions


def predict(
    algorithm: str | Algorithm,
    network: Network,
    ranks: int,
    count: int,
    *,
    itemsize: int = 8,
    ports: int = 1,
    segment: int | None = None,
    hosts: Sequence[int] | None = None,
    **static: Any,
) -> Timing:
    """Return the time of one algorithm on `network`.

    Parameters
    ----------
    algorithm : str or Algorithm
        A name in `ALGORITHMS` or `RELATED`, or a row.
    network : Network
    ranks, count : int
        Ranks, at least 1, which fill the hosts one after the other; elements, at least 0.
    itemsize : int
        Bytes per element.
    ports : int
        Messages that a rank sends at a time, and receives at a time.
    segment : int, optional
        Most elements of one message. By default spans travel whole.
    hosts : sequence of int, optional
        The number of each rank's host. By default ranks fill the hosts one after the other.
    **static
        The algorithm's static keywords; ``nodes`` is what the network says.

    Returns
    -------
    Timing
        Seconds, over all and for each rank, and the number of messages.

    Raises
    ------
    NetworkError
        More ranks than places.
    ValueError
        An unknown algorithm, or one that is no schedule; a number out of range.

    Examples
    --------
    Two of four ranks on one link of 1 GB/s: 1 us and twice 0.5 us, and 1 MB, there and back.

    >>> from hpcreduce.analysis.network import read
    >>> star = read("star:2,bandwidth=1e9,gamma=0")
    >>> f"{predict('tree', star, 2, 125_000).seconds:.6g}"
    '0.002004'
    """
    row = messages.row_of(algorithm)
    if hosts is not None and (len(hosts) != ranks or not all(0 <= host < len(network.hosts) for host in hosts)):
        raise ValueError(
            f"hosts must name one of {len(network.hosts)} hosts for each of {ranks} ranks, found {hosts!r}"
        )
    placed = network.place(ranks) if hosts is None else hosts
    return _time(row, Routes(network), placed, count, itemsize, ports, segment, static)


def _time(
    row: Algorithm,
    routes: Routes,
    hosts: Sequence[int],
    count: int,
    itemsize: int,
    ports: int,
    segment: int | None,
    static: dict[str, Any],
) -> Timing:
    for name, value in ("itemsize", itemsize), ("ports", ports):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, found {value!r}")
    programs = messages.compiled(row, len(hosts), count, segment, messages.placed(row, hosts, static))
    matched = messages.match(programs, itemsize)
    wire = _Fluid(routes, hosts, matched)
    return events.run(programs, matched, wire, itemsize=itemsize, gamma=routes.network.gamma, ports=ports)


def fair_rates(paths: Indices, flows: Floats, capacity: Floats) -> Floats:
    """Return the max-min fair rate of each flow.

    Parameters
    ----------
    paths : array of int, shape (n, longest)
        The links of each kind of flow, filled up with ``len(capacity)``; at least one each.
    flows : array of float, shape (n,)
        How many flows of each kind there are.
    capacity : array of float, shape (links,)
        Bytes per second of each link.

    Returns
    -------
    array of float, shape (n,)
        Bytes per second of one flow of each kind: none can get more without one that has as little getting less.

    Notes
    -----
    Progressive filling, many links at a time: a link whose share is the smallest on the ways of all its flows fixes
    them, whatever happens elsewhere.

    Examples
    --------
    Three flows: on link 0, on link 1, and on both.

    >>> fair_rates(np.array([[0, 2], [1, 2], [0, 1]]), np.ones(3), np.array([10.0, 4.0])).tolist()
    [8.0, 2.0, 2.0]
    """
    links = len(capacity)
    left = np.append(capacity, math.inf)
    rates = np.zeros(len(paths))
    unfixed = np.arange(len(paths))
    longest = paths.shape[1]
    while len(unfixed):
        ways = paths[unfixed]
        load = np.bincount(ways.ravel(), np.repeat(flows[unfixed], longest), links + 1)
        share = np.divide(left, load, out=np.full(links + 1, math.inf), where=load > 0)
        least = share[ways].min(axis=1)
        smallest = np.full(links + 1, math.inf)  # on each link, of what its flows get at most
        np.minimum.at(smallest, ways.ravel(), np.repeat(least, longest))
        fixes = share <= smallest
        fixes[links] = False
        fixed = fixes[ways].any(axis=1)
        rates[unfixed[fixed]] = least[fixed]
        used = np.repeat(least[fixed] * flows[unfixed[fixed]], longest)
        left -= np.bincount(ways[fixed].ravel(), used, links + 1)
        np.maximum(left, 0, out=left)
        unfixed = unfixed[~fixed]
    return rates


class _Fluid:
    """The messages under way as flows: those between the same hosts are one kind."""

    def __init__(self, routes: Routes, hosts: Sequence[int], matched: Sequence[Message]) -> None:
        network = routes.network
        self.network, self.matched = network, matched
        ends = [(hosts[message.source], hosts[message.target]) for message in matched]
        kinds = {pair: index for index, pair in enumerate(dict.fromkeys(pair for pair in ends if pair[0] != pair[1]))}
        self.kind = [kinds.get(pair, -1) for pair in ends]
        ways = [routes.path(*pair) for pair in kinds]
        self.capacity = np.repeat(np.array([link.bandwidth for link in network.links], float), 2)
        self.paths: Indices = np.full((len(ways), max(map(len, ways), default=1)), len(self.capacity), np.intp)
        for index, way in enumerate(ways):
            self.paths[index, : len(way)] = way
        self.delay = [network.alpha + sum(network.links[link // 2].latency for link in way) for way in ways]
        self.known: dict[bytes, tuple[Indices, Floats]] = {}
        self.delayed: list[tuple[float, int]] = []  # when a message begins to flow, or ends if it never does
        self.since = 0.0
        self.flowing: Indices = np.empty(0, np.intp)
        self.left, self.rate, self.ends = np.empty(0), np.empty(0), np.empty(0)  # at `since`; bytes/s; seconds

    def begin(self, number: int, message: Message, now: float) -> None:
        kind, inside = self.kind[number], self.network.inside
        delay = inside.alpha + inside.beta * message.nbytes if kind < 0 else self.delay[kind]
        heapq.heappush(self.delayed, (now + delay, number))

    def soonest(self) -> float:
        delayed = self.delayed[0][0] if self.delayed else math.inf
        return min(delayed, float(self.ends.min())) if len(self.ends) else delayed

    def finish(self, now: float) -> list[int]:
        ended: list[int] = []
        joining: list[int] = []
        while self.delayed and self.delayed[0][0] <= now * SAME:
            number = heapq.heappop(self.delayed)[1]
            flows = self.kind[number] >= 0 and self.matched[number].nbytes
            (joining if flows else ended).append(number)
        over = self.ends <= now * SAME
        if over.any() or joining:
            ended += self.flowing[over].tolist()
            self._share(now, ~over, joining)
        return ended

    def _share(self, now: float, staying: NDArray[np.bool_], joining: list[int]) -> None:
        """Let flows end and begin, and share the links anew."""
        left = self.left - self.rate * (now - self.since)
        new = np.array([self.matched[number].nbytes for number in joining], float)
        self.flowing = np.concatenate([self.flowing[staying], np.array(joining, np.intp)])
        self.left = np.concatenate([np.maximum(left[staying], 0), new])
        before = np.concatenate([self.rate[staying], np.zeros(len(joining))])
        ends = np.concatenate([self.ends[staying], np.zeros(len(joining))])
        self.since = now
        self.rate = self._rates()
        self.ends = np.where(self.rate == before, ends, now + self.left / self.rate)  # so that no rounding adds up

    def _rates(self) -> Floats:
        kind = np.array([self.kind[number] for number in self.flowing.tolist()], np.intp)
        present, which, flows = np.unique(kind, return_inverse=True, return_counts=True)
        key = present.tobytes() + flows.tobytes()
        if key not in self.known:
            if len(self.known) >= _REMEMBERED:
                self.known.clear()
            self.known[key] = (present, fair_rates(self.paths[present], flows.astype(float), self.capacity))
        return self.known[key][1][which]
