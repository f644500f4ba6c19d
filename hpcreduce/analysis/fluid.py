"""Messages as flows that share the links of a network max-min fairly: a wire for `hpcreduce.analysis.events`.

Bertsekas and Gallager, "Data Networks", 2nd edition 1992, section 6.5.2 (max-min fairness); Casanova et al.,
"Versatile, scalable, and accurate simulation of distributed applications and platforms", J. Parallel Distrib. Comput.
74 (2014), doi:10.1016/j.jpdc.2014.06.008 (flows as fluids).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpcreduce.analysis.events import SAME
from hpcreduce.analysis.messages import Message
from hpcreduce.analysis.network import Routes

_REMEMBERED = 4096

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


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


class Fluid:
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
        """See `events.Wire`."""
        kind, inside = self.kind[number], self.network.inside
        delay = inside.alpha + inside.beta * message.nbytes if kind < 0 else self.delay[kind]
        heapq.heappush(self.delayed, (now + delay, number))

    def soonest(self) -> float:
        """See `events.Wire`."""
        delayed = self.delayed[0][0] if self.delayed else math.inf
        return min(delayed, float(self.ends.min())) if len(self.ends) else delayed

    def finish(self, now: float) -> list[int]:
        """See `events.Wire`."""
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
