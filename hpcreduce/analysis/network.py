"""A network described by hosts and links: built from a short text, or read from a JSON file.

Rules that hold here:

* A link has two directions of `bandwidth` bytes/s each, and adds `latency` seconds to what crosses it.
* A message takes the way of the fewest links. Where several ways are as short, the target picks one: of k ways on, the
  one of number (target host modulo k), in the order of the description. Hosts pass on what is not for them (a torus).
* Ranks fill the hosts one after the other, `ranks_per_host` each. Ranks of one host do not use its links.

The JSON file (``bandwidth`` in bytes/s, all times in seconds; the last five fields may be missing)::

    {"hosts": ["a", "b"],
     "links": [{"a": "a", "b": "switch", "bandwidth": 12.5e9, "latency": 5e-7},
               {"a": "b", "b": "switch", "bandwidth": 12.5e9, "latency": 5e-7}],
     "ranks_per_host": 1, "alpha": 1e-6, "gamma": 1e-10, "inside": {"alpha": 5e-7, "beta": 1e-10}}

What `links` names and `hosts` does not is a switch. `alpha` is what a message costs beside the links' latency, `gamma`
what a byte costs to reduce, `inside` what a message between two ranks of one host takes, and per byte. A field
`gammas`, what a byte of each type costs to reduce, is passed over: predictions are for float64.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcreduce.analysis.cost import Link
from hpcreduce.errors import NetworkError

BANDWIDTH = 12.5e9
"""Bytes per second of a built network's links: 100 Gbit/s."""

LATENCY = 5e-7
"""Seconds of a built network's links."""

ALPHA, GAMMA, INSIDE = 1e-6, 1e-10, Link(5e-7, 1e-10)
"""Prices of messages where a description has none."""

MOST_HOSTS = 100_000
MOST_SECONDS = 1e6
MOST_BANDWIDTH = 1e18

_FORMS = "a JSON file, fat-tree:LEAFSxHOSTS or star:HOSTS"


class Cable(NamedTuple):
    """A link between two hosts or switches: bytes/s in each direction, and seconds."""

    a: str
    b: str
    bandwidth: float
    latency: float


class Network(NamedTuple):
    """Hosts, links, and what messages cost beside them; the fields are those of the JSON file."""

    hosts: tuple[str, ...]
    links: tuple[Cable, ...]
    ranks_per_host: int = 1
    alpha: float = ALPHA
    gamma: float = GAMMA
    inside: Link = INSIDE

    def place(self, ranks: int) -> tuple[int, ...]:
        """Return the number of the host of each rank.

        Raises
        ------
        NetworkError
            More ranks than places.
        ValueError
            Less than one rank.
        """
        if ranks < 1:
            raise ValueError(f"ranks must be at least 1, found {ranks}")
        if ranks > len(self.hosts) * self.ranks_per_host:
            raise NetworkError(
                f"{ranks} ranks have no place on {len(self.hosts)} hosts with ranks_per_host {self.ranks_per_host}; "
                f"expected at most {len(self.hosts) * self.ranks_per_host}"
            )
        return tuple(rank // self.ranks_per_host for rank in range(ranks))


class Routes:
    """The ways through a network. Directed link ``2 i`` leads from `a` to `b` of link i, ``2 i + 1`` back."""

    def __init__(self, network: Network) -> None:
        self.network = network
        names = dict.fromkeys(network.hosts) | dict.fromkeys(name for link in network.links for name in link[:2])
        self.names = list(names)
        number = {name: index for index, name in enumerate(self.names)}
        self.ways: list[list[tuple[int, int]]] = [[] for _ in names]  # node -> neighbours and the links there
        for index, link in enumerate(network.links):
            a, b = number[link.a], number[link.b]
            self.ways[a].append((b, 2 * index))
            self.ways[b].append((a, 2 * index + 1))
        self._far: dict[int, list[int]] = {}
        self._nearer: dict[int, dict[int, list[tuple[int, int]]]] = {}

    def distances(self, target: int) -> list[int]:
        """Return the fewest links from each node to host `target`, -1 where no way leads there."""
        if target not in self._far:
            far = [-1] * len(self.ways)
            far[target] = 0
            queue = deque([target])
            while queue:
                node = queue.popleft()
                for neighbour, _ in self.ways[node]:
                    if far[neighbour] < 0:
                        far[neighbour] = far[node] + 1
                        queue.append(neighbour)
            self._far[target], self._nearer[target] = far, {}
        return self._far[target]

    def path(self, source: int, target: int) -> list[int]:
        """Return the directed links from host to host, none if they are the same."""
        far, path = self.distances(target), []
        nearer = self._nearer[target]
        node = source
        while node != target:
            if node not in nearer:
                nearer[node] = [way for way in self.ways[node] if far[way[0]] == far[node] - 1]
            node, link = nearer[node][target % len(nearer[node])]
            path.append(link)
        return path


def read(text: str) -> Network:
    """Return the network that `text` names: ``fat-tree:8x16``, ``star:16``, or the path of a JSON file.

    ``fat-tree:LEAFSxHOSTS`` has LEAFS switches with HOSTS hosts each. Each is tied to a core that never blocks by an
    uplink of HOSTS times the hosts' bandwidth over `oversubscription` (default 1: full bisection), so many parallel
    cables count as one that is perfectly shared. ``star:HOSTS`` has one switch. Both take settings after commas:
    ``bandwidth``, ``latency``, ``ranks_per_host``, ``alpha``, ``gamma``, and the tree ``oversubscription``, as in
    ``fat-tree:8x16,oversubscription=4``.

    Raises
    ------
    NetworkError
        Naming the file or text, and the field.

    Examples
    --------
    >>> len(read("fat-tree:8x16").hosts)
    128
    """
    if text.startswith(("fat-tree:", "star:")):
        return _built(text)
    try:
        with open(text, "rb") as file:
            data = file.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NetworkError(f"cannot read network {text!r}: {reason}; expected {_FORMS}") from None
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise NetworkError(f"{text}: not JSON: {error}") from None
    return described(document, text)


def _built(text: str) -> Network:
    kind, rest = text.split(":", 1)
    shape, *settings = rest.split(",")
    known = ["bandwidth", "latency", "ranks_per_host", "alpha", "gamma"] + ["oversubscription"] * (kind == "fat-tree")
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})" if kind == "fat-tree" else r"(\d{1,6})", shape, re.ASCII)
    sizes = [int(size) for size in match.groups()] if match else []
    if not sizes or min(sizes) < 1 or sizes[0] * sizes[-1] ** (len(sizes) - 1) > MOST_HOSTS:
        raise NetworkError(f"{text}: expected fat-tree:LEAFSxHOSTS or star:HOSTS, with 1 to {MOST_HOSTS} hosts in all")
    values: dict[str, Any] = {"bandwidth": BANDWIDTH, "latency": LATENCY}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name not in known or not equals:
            raise NetworkError(f"{text}: unknown setting {setting!r}; expected NAME=VALUE with {', '.join(known)}")
        try:
            values[name] = int(value) if name == "ranks_per_host" else float(value)
        except ValueError:
            raise NetworkError(f"{text}: {name}: expected a number, found {value!r}") from None
    bandwidth = _number(values.pop("bandwidth"), 1, MOST_BANDWIDTH, "bandwidth", text)
    latency = _number(values.pop("latency"), 0, MOST_SECONDS, "latency", text)
    over = _number(values.pop("oversubscription", 1.0), 1e-3, 1e3, "oversubscription", text)
    leafs, each = sizes if kind == "fat-tree" else [1, sizes[0]]
    hosts = [f"host{number}" for number in range(leafs * each)]
    links = [Cable(host, f"leaf{number // each}", bandwidth, latency) for number, host in enumerate(hosts)]
    if leafs > 1:
        up = max(1.0, min(MOST_BANDWIDTH, each * bandwidth / over))
        links += [Cable(f"leaf{leaf}", "core", up, latency) for leaf in range(leafs)]
    return described({"hosts": hosts, "links": [link._asdict() for link in links]} | values, text)


def described(document: object, where: str) -> Network:
    """Return the network that a JSON document describes, checked; `where` names it in errors.

    Raises
    ------
    NetworkError
        A field that is missing, unknown, of a wrong type or out of range; a host that no link reaches.
    """
    fields = _fields(document, ("hosts", "links"), (*Network._fields, "gammas"), "the network", where)
    names = _list(fields["hosts"], "hosts", where)
    if not 1 <= len(names) <= MOST_HOSTS:
        raise NetworkError(f"{where}: hosts: expected 1 to {MOST_HOSTS} hosts, found {len(names)}")
    hosts = tuple(_name(name, f"hosts[{index}]", where) for index, name in enumerate(names))
    if len(set(hosts)) < len(hosts):
        twice = next(name for index, name in enumerate(hosts) if name in hosts[:index])
        raise NetworkError(f"{where}: hosts: {twice!r} stands there twice")
    links = tuple(
        _cable(link, f"links[{index}]", where) for index, link in enumerate(_list(fields["links"], "links", where))
    )
    seen: dict[frozenset[str], int] = {}
    for index, link in enumerate(links):
        first = seen.setdefault(frozenset(link[:2]), index)
        if first != index:
            raise NetworkError(
                f"{where}: links[{index}] ties {link.a!r} to {link.b!r} as links[{first}] does; add them up"
            )
    values: dict[str, Any] = {}
    if "ranks_per_host" in fields:
        each = fields["ranks_per_host"]
        if isinstance(each, bool) or not isinstance(each, int) or not 1 <= each <= MOST_HOSTS:
            raise NetworkError(
                f"{where}: ranks_per_host: expected a whole number from 1 to {MOST_HOSTS}, found {each!r}"
            )
        values["ranks_per_host"] = each
    values |= {
        name: _number(fields[name], 0, MOST_SECONDS, name, where) for name in ("alpha", "gamma") if name in fields
    }
    if "inside" in fields:
        inside = _fields(fields["inside"], Link._fields, Link._fields, "inside", where)
        values["inside"] = Link(
            *(_number(inside[name], 0, MOST_SECONDS, f"inside.{name}", where) for name in Link._fields)
        )
    network = Network(hosts, links, **values)
    far = Routes(network).distances(0)
    for host, distance in zip(hosts, far, strict=False):
        if distance < 0:
            alone = not any(host in link[:2] for link in links)
            raise NetworkError(
                f"{where}: links: host {host!r} has no link"
                if alone
                else f"{where}: links: no way leads from host {hosts[0]!r} to host {host!r}"
            )
    return network


def _cable(document: object, field: str, where: str) -> Cable:
    fields = _fields(document, Cable._fields, Cable._fields, field, where)
    a, b = (_name(fields[end], f"{field}.{end}", where) for end in "ab")
    if a == b:
        raise NetworkError(f"{where}: {field} ties {a!r} to itself")
    bandwidth = _number(fields["bandwidth"], 1, MOST_BANDWIDTH, f"{field}.bandwidth", where)
    return Cable(a, b, bandwidth, _number(fields["latency"], 0, MOST_SECONDS, f"{field}.latency", where))


def _fields(
    document: object, needed: Sequence[str], known: Sequence[str], field: str, where: str
) -> Mapping[str, object]:
    if not isinstance(document, dict):
        raise NetworkError(f"{where}: {field}: expected an object with {', '.join(known)}, found {_short(document)}")
    for name in document:
        if name not in known:
            raise NetworkError(f"{where}: {field}: unknown field {_short(name)}; expected {', '.join(known)}")
    for name in needed:
        if name not in document:
            raise NetworkError(f"{where}: {field}: the field {name!r} is missing")
    return document


def _list(value: object, field: str, where: str) -> list[object]:
    if not isinstance(value, list):
        raise NetworkError(f"{where}: {field}: expected a list, found {_short(value)}")
    return value


def _name(value: object, field: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise NetworkError(f"{where}: {field}: expected a name, found {_short(value)}")
    return value


def _number(value: object, least: float, most: float, field: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise NetworkError(f"{where}: {field}: expected a number from {least:g} to {most:g}, found {_short(value)}")
    return float(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
