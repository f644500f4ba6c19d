"""What a schedule takes on a described network, where messages that share a link slow each other down.

Rules that hold here:

* A message first waits for `alpha` and the latencies of its links, then flows: all flows share the links' bandwidth
  max-min fairly, anew whenever one begins or ends. Between ranks of one host it takes what `inside` says.
* What a rank sends and receives at a time, and what waits for what, is as in `hpcreduce.analysis.events`: alone on
  equal links, a schedule takes what `hpcreduce.analysis.cost.simulate` says.

Flows are `hpcreduce.analysis.fluid`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hpcreduce.algorithms import ALGORITHMS, Algorithm, schedule_of
from hpcreduce.analysis import events, messages
from hpcreduce.analysis.events import Timing
from hpcreduce.analysis.fluid import Fluid
from hpcreduce.analysis.network import Network, Routes

MOST_MESSAGES = 100_000
"""Messages of the largest schedule that is followed."""


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
    rows = [schedule_of(name) for name in algorithms or [name for name, row in ALGORITHMS.items() if row.rounds]]
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
    row = schedule_of(algorithm)
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
    wire = Fluid(routes, hosts, matched)
    return events.run(programs, matched, wire, itemsize=itemsize, gamma=routes.network.gamma, ports=ports)
