"""Networks, their descriptions, fair shares of links, and the predictions made of them."""

import json
import random
import time
from fractions import Fraction

import numpy as np
import pytest

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.analysis.cost import Link, simulate
from hpcreduce.analysis.fluid import fair_rates
from hpcreduce.analysis.network import Cable, Network, Routes, described, read
from hpcreduce.analysis.predict import Prediction, compare, predict
from hpcreduce.errors import NetworkError
from hpcreduce.schedule import RIGHT, Recv, Send, Span

SCHEDULES = [name for name, row in ALGORITHMS.items() if row.rounds]
RING = ALGORITHMS["ring"]


def network(hosts, *cables, **options):
    """Return a network of links ``(a, b, bandwidth)`` or ``(a, b, bandwidth, latency)`` where nothing else costs."""
    links = tuple(Cable(*cable, *[0.0] * (4 - len(cable))) for cable in cables)
    return Network(tuple(hosts), links, **{"alpha": 0.0, "gamma": 0.0, "inside": Link(0.0, 0.0)} | options)


def flows(net, *pairs, **options):
    """Return when each rank is done if rank a sends `nbytes` to rank b, for each (a, b, nbytes), all at once."""
    top = max(nbytes for _, _, nbytes in pairs)

    def rounds(rank, size, count):
        for a, b, nbytes in pairs:
            verb = Send(b, Span(0, nbytes)) if rank == a else Recv(a, Span(0, nbytes), None) if rank == b else None
            if verb:
                yield (verb,)

    row = RING._replace(name="made", rounds=rounds, static=())
    return predict(row, net, len(net.hosts) * net.ranks_per_host, top, itemsize=1, **options).ranks


def dumbbell(middle=1.0, **options):
    """Return two pairs of hosts, whose switches are tied by a link of bandwidth `middle`."""
    ends = [(host, switch, 10.0) for host, switch in zip("abcd", "ssSS", strict=True)]
    return network("abcd", *ends, ("s", "S", middle), **options)


def test_two_flows_on_a_link_get_half_each():
    assert flows(dumbbell(), (0, 2, 12)) == (12, 0, 12, 0)
    assert flows(dumbbell(), (0, 2, 12), (1, 3, 12)) == (24, 24, 24, 24)


def test_the_directions_of_a_link_are_two():
    assert flows(dumbbell(), (0, 2, 12), (3, 1, 12)) == (12, 12, 12, 12)


def test_what_a_flow_leaves_goes_to_the_others():
    """Both send 12 by 24; then the long one is alone for its other 24."""
    assert flows(dumbbell(), (0, 2, 12), (1, 3, 36)) == (24, 48, 24, 48)


def test_a_flow_that_comes_later():
    """0 sends to 2, alone until 1 s: 3 left take 6 s, by when 1, which sends to 4 until then, has 1 left."""
    net = dumbbell()
    net = net._replace(hosts=(*net.hosts, "e"), links=(*net.links, Cable("e", "s", 10.0, 0.0)))
    assert flows(net, (0, 2, 4), (1, 4, 10), (1, 3, 4)) == (7, 8, 7, 8, 1)


def test_a_slow_link_leaves_the_rest_of_a_fast_one():
    """1 sends to 3 at 1 and to 0 at 9 meanwhile, which takes 10/9 s; then 0 sends to 2, and they share the middle."""
    done = flows(dumbbell(), (1, 0, 10), (1, 3, 4), (0, 2, 4), ports=2)
    assert done == pytest.approx((8, 62 / 9, 8, 62 / 9), rel=1e-12)


def test_latency_and_alpha_come_first():
    net = network("ab", ("a", "s", 2.0, 3.0), ("b", "s", 4.0, 5.0), alpha=7.0)
    assert flows(net, (0, 1, 8)) == (7 + 3 + 5 + 8 / 2,) * 2
    assert flows(net, (0, 1, 0)) == (15, 15)


def test_ports_share_a_link():
    """One after the other, or both at half the speed."""
    star = network("abc", *[(host, "s", 1.0) for host in "abc"])
    assert flows(star, (0, 1, 6), (0, 2, 6)) == (12, 6, 12)
    assert flows(star, (0, 1, 6), (0, 2, 6), ports=2) == (12, 12, 12)


def test_ranks_of_one_host_do_not_use_its_links():
    net = network("ab", ("a", "b", 1.0), ranks_per_host=2, inside=Link(1.0, 0.25))
    assert net.place(4) == (0, 0, 1, 1) and net.place(3) == (0, 0, 1)
    assert flows(net, (0, 1, 8), (2, 3, 4)) == (3, 3, 2, 2)
    assert flows(net, (0, 2, 8), (1, 3, 8)) == (16, 16, 16, 16)
    with pytest.raises(
        NetworkError, match=r"5 ranks have no place on 2 hosts with ranks_per_host 2; expected at most 4"
    ):
        net.place(5)
    with pytest.raises(ValueError, match="ranks must be at least 1, found 0"):
        predict("ring", net, 0, 1)


def test_hosts_reach_the_algorithms_that_ask():
    def rounds(rank, size, count, nodes):
        assert nodes == (0, 0, 1, 1)
        return RING.rounds(rank, size, count)

    net = network("ab", ("a", "b", 1.0), ranks_per_host=2)
    assert predict(RING._replace(rounds=rounds, static=("nodes",)), net, 4, 8).seconds > 0


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("size", [1, 2, 5, 8, 13])
def test_without_contention_the_simulation_says_the_same(name, size):
    """Of each switch and of a tree with full bisection, where the ways inside a leaf cost no less."""
    price = {"alpha": 1e-6, "beta": 1 / 2e9, "gamma": 3e-10}
    for count in 0, 7, 50 * size + 3:
        alone = simulate(name, size, count, nodes=tuple(range(size)), **price)
        star = read("star:13,bandwidth=2e9,latency=2.5e-7,alpha=5e-7,gamma=3e-10")
        assert predict(name, star, size, count).ranks == pytest.approx(alone.ranks, rel=1e-12)


def test_full_bisection_and_oversubscription():
    """A ring never crosses a leaf's uplink twice at once; at the last level of doubling all of a leaf do."""
    settings = "bandwidth=1e9,latency=0,alpha=1e-6,gamma=0"
    price = {"alpha": 1e-6, "beta": 1e-9}
    full, half, thin = (read(f"fat-tree:4x8,{settings},oversubscription={over}") for over in (1, 2, 8))
    count = 32 * 1000
    for name in SCHEDULES:
        alone = simulate(name, 32, count, nodes=tuple(range(32)), **price).seconds
        assert predict(name, full, 32, count).seconds >= alone * (1 - 1e-12)
    for name in "ring", "tree", "recursive_doubling", "rabenseifner":
        alone = simulate(name, 32, count, **price).seconds
        assert predict(name, full, 32, count).seconds == pytest.approx(alone, rel=1e-12)
    for net in half, thin:
        ring = simulate("ring", 32, count, **price).seconds
        assert predict("ring", net, 32, count).seconds == pytest.approx(ring, rel=1e-12)
    beta = 8 * count * 1e-9
    for net, slower in (half, 2), (thin, 8):
        seconds = predict("recursive_doubling", net, 32, count).seconds
        assert seconds == pytest.approx(5e-6 + (3 + 2 * slower) * beta, rel=1e-12)


def test_the_tree_that_is_built():
    net = read("fat-tree:2x3,oversubscription=1.5,bandwidth=10,latency=1,ranks_per_host=2,alpha=2,gamma=3")
    assert net.hosts == tuple(f"host{number}" for number in range(6)) and len(net.links) == 8
    assert net.links[3] == Cable("host3", "leaf1", 10.0, 1.0) and net.links[7] == Cable("leaf1", "core", 20.0, 1.0)
    assert (net.ranks_per_host, net.alpha, net.gamma) == (2, 2.0, 3.0)
    routes = Routes(net)
    assert routes.path(0, 0) == [] and routes.path(0, 2) == [0, 5] and routes.path(0, 5) == [0, 12, 15, 11]
    assert len(read("star:4").links) == 4 and len(read("fat-tree:1x4").links) == 4 and read("star:1").place(1) == (0,)


def test_targets_are_spread_over_equal_ways():
    """Two leafs, two spines: what goes to different hosts of a leaf takes different spines."""
    cables = [(host, leaf, 1.0) for host, leaf in zip("abcd", "llmm", strict=True)]
    cables += [(leaf, spine, 1.0) for leaf in "lm" for spine in "xy"]
    net = network("abcd", *cables)
    assert flows(net, (0, 2, 6), (1, 3, 6)) == (6, 6, 6, 6)
    assert flows(net, (0, 2, 6), (2, 1, 6), (1, 3, 6)) == flows(net, (0, 2, 6), (2, 1, 6), (1, 3, 6))


def test_hosts_pass_on():
    line = network("abc", ("a", "b", 1.0, 1.0), ("b", "c", 2.0, 1.0))
    assert flows(line, (0, 2, 4)) == (6, 0, 6)


def oracle(paths, capacity):
    """Fill all flows evenly; fix those of the one link that is full first; and again. Exact."""
    left = {link: Fraction(value) for link, value in enumerate(capacity)}
    rates = [None] * len(paths)
    while None in rates:
        crossing = {link: [f for f, path in enumerate(paths) if rates[f] is None and link in path] for link in left}
        link = min((link for link in left if crossing[link]), key=lambda link: left[link] / len(crossing[link]))
        share = left[link] / len(crossing[link])
        for flow in crossing[link]:
            rates[flow] = share
            for other in paths[flow]:
                left[other] -= share
    return rates


@pytest.mark.parametrize("seed", range(60))
def test_shares_are_max_min_fair(seed):
    draw = random.Random(seed)
    links, kinds = draw.randint(1, 9), draw.randint(1, 12)
    capacity = [draw.randint(1, 20) for _ in range(links)]
    ways = [draw.sample(range(links), draw.randint(1, min(4, links))) for _ in range(kinds)]
    number = [draw.randint(1, 3) for _ in range(kinds)]
    longest = max(map(len, ways))
    paths = np.array([way + [links] * (longest - len(way)) for way in ways])
    rates = fair_rates(paths, np.array(number, float), np.array(capacity, float)).tolist()
    each = [kind for kind in range(kinds) for _ in range(number[kind])]
    expected = oracle([ways[kind] for kind in each], capacity)
    assert [rates[kind] for kind in each] == pytest.approx([float(rate) for rate in expected], rel=1e-12)
    for way, rate in zip(ways, rates, strict=True):  # each has a full link where nobody gets more
        beside = {link: [rates[kind] for kind in each if link in ways[kind]] for link in way}
        assert any(
            sum(others) == pytest.approx(capacity[link]) and rate >= max(others) * (1 - 1e-12)
            for link, others in beside.items()
        )


def test_compare():
    star = read("star:4")
    rows = compare(star, 4, [1, 8, 1000], ["ring", "tree"])
    assert [row[:3] for row in rows] == [(name, n, 4) for n in (8, 1000) for name in ("ring", "tree")]
    assert rows[3] == Prediction("tree", 1000, 4, predict("tree", star, 4, 125).seconds)
    assert {row.algorithm for row in compare(star, 2, [8])} == set(SCHEDULES)


def test_long_schedules_are_left_out_with_a_reason():
    said = []
    rows = compare(
        read("star:30"), 30, [8, 800], ["ring", "tree"], most=1739, left_out=lambda *about: said.append(about)
    )
    assert [row.algorithm for row in rows] == ["tree", "tree"]  # a ring has 30 * 58 = 1740
    assert said == [("ring", n, "more than 1739 messages among 30 ranks") for n in (8, 800)]
    assert len(compare(read("star:30"), 30, [8], ["ring"], most=1740)) == 1


def test_many_ranks_take_no_more_than_a_while():
    start = time.monotonic()
    compare(read("fat-tree:8x16,oversubscription=2"), 128, [1000], ["ring"])
    rows = compare(read("fat-tree:32x32"), 1024, [1 << 20], ["tree", "recursive_doubling", "rabenseifner"])
    assert len(rows) == 3
    assert time.monotonic() - start < 240


GOOD = {
    "hosts": ["a", "b"],
    "links": [
        {"a": "a", "b": "s", "bandwidth": 1e9, "latency": 0},
        {"a": "b", "b": "s", "bandwidth": 1, "latency": 1e-6},
    ],
}


def test_a_file(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(GOOD))
    assert read(str(path)) == Network(("a", "b"), (Cable("a", "s", 1e9, 0.0), Cable("b", "s", 1.0, 1e-6)))
    more = {"ranks_per_host": 3, "alpha": 0, "gamma": 1e-9, "inside": {"alpha": 1, "beta": 2}}
    path.write_text(json.dumps(GOOD | more))
    assert read(str(path))[2:] == (3, 0.0, 1e-9, Link(1.0, 2.0))


LINK = GOOD["links"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": None}, "hosts: expected a list, found None"),
        ({"hosts": []}, "hosts: expected 1 to 100000 hosts, found 0"),
        ({"hosts": ["a", 1]}, r"hosts\[1\]: expected a name, found 1"),
        ({"hosts": ["a", "b", "a"]}, "hosts: 'a' stands there twice"),
        ({"hosts": ["a", "b", "c"]}, "links: host 'c' has no link"),
        ({"links": GOOD["links"][:1]}, "links: host 'b' has no link"),
        ({"links": [LINK, GOOD["links"][1] | {"b": "t"}]}, "links: no way leads from host 'a' to host 'b'"),
        ({"links": [LINK, LINK | {"a": "s", "b": "a"}]}, r"links\[1\] ties 's' to 'a' as links\[0\] does"),
        ({"links": [LINK | {"b": "a"}]}, r"links\[0\] ties 'a' to itself"),
        ({"links": [[]]}, r"links\[0\]: expected an object with a, b, bandwidth, latency, found \[\]"),
        ({"links": [{"a": "a", "b": "b", "latency": 0}]}, r"links\[0\]: the field 'bandwidth' is missing"),
        ({"links": [LINK | {"speed": 1}]}, r"links\[0\]: unknown field 'speed'"),
        ({"links": [LINK | {"a": 7}]}, r"links\[0\].a: expected a name, found 7"),
        ({"links": [LINK | {"bandwidth": 0}]}, r"links\[0\].bandwidth: expected a number from 1 .*, found 0"),
        ({"links": [LINK | {"bandwidth": -5}]}, r"links\[0\].bandwidth: .* found -5"),
        ({"links": [LINK | {"bandwidth": "1e9"}]}, r"links\[0\].bandwidth: .* found '1e9'"),
        ({"links": [LINK | {"bandwidth": True}]}, r"links\[0\].bandwidth: .* found True"),
        ({"links": [LINK | {"bandwidth": 10**400}]}, r"links\[0\].bandwidth: .* found 1000.*\.\.\."),
        ({"links": [LINK | {"latency": -1e-9}]}, r"links\[0\].latency: .* found -1e-09"),
        ({"links": [LINK | {"latency": float("nan")}]}, r"links\[0\].latency: .* found nan"),
        ({"ranks_per_host": 0}, "ranks_per_host: .* found 0"),
        ({"ranks_per_host": 1.5}, "ranks_per_host: .* found 1.5"),
        ({"alpha": -1}, "alpha: .* found -1"),
        ({"gamma": None}, "gamma: .* found None"),
        ({"inside": 1}, "inside: expected an object with alpha, beta, found 1"),
        ({"inside": {"alpha": 1}}, "inside: the field 'beta' is missing"),
        ({"inside": {"alpha": 1, "beta": -1}}, "inside.beta: .* found -1"),
        ({"host": []}, "the network: unknown field 'host'; expected hosts, links, ranks_per_host, alpha"),
    ],
)
def test_wrong_files_are_refused(tmp_path, change, words):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(NetworkError, match=words) as caught:
        read(str(path))
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1", "null x", "\x00", "[" * 100_000, "9" * 5000])
def test_what_is_not_json(tmp_path, text):
    path = tmp_path / "net.json"
    path.write_text(text)
    with pytest.raises(NetworkError, match=r"net.json: not JSON: "):
        read(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(NetworkError, match=r"net.json: not JSON: "):
        read(str(path))


def test_other_refusals(tmp_path):
    with pytest.raises(NetworkError, match="the network: expected an object with hosts, links"):
        described([], "here")
    with pytest.raises(NetworkError, match="the field 'links' is missing"):
        described({"hosts": ["a"]}, "here")
    for text in str(tmp_path), str(tmp_path / "none"), "fat-trees:1x1", "":
        with pytest.raises(NetworkError, match=r"cannot read network .*expected a JSON file, fat-tree"):
            read(text)
    for text, words in (
        ("fat-tree:8", "expected fat-tree:LEAFSxHOSTS or star:HOSTS"),
        ("fat-tree:0x4", "with 1 to 100000 hosts"),
        ("fat-tree:1000x1000", "with 1 to 100000 hosts"),
        ("star:2x2", "expected fat-tree"),
        ("star:2,bandwidth", "unknown setting 'bandwidth'; expected NAME=VALUE with bandwidth, latency"),
        ("star:2,oversubscription=2", "unknown setting"),
        ("star:2,bandwidth=x", "bandwidth: expected a number, found 'x'"),
        ("star:2,bandwidth=-1", "bandwidth: expected a number from 1"),
        ("star:2,latency=inf", "latency: expected a number from 0"),
        ("fat-tree:2x2,oversubscription=0", "oversubscription: expected a number from 0.001"),
        ("star:2,ranks_per_host=1.5", "ranks_per_host: expected a number, found '1.5'"),
        ("star:2,ranks_per_host=0", "ranks_per_host: expected a whole number"),
        ("star:2,alpha=-1", "alpha: expected"),
    ):
        with pytest.raises(NetworkError, match=words):
            read(text)
    with pytest.raises(ValueError, match="unknown algorithm 'rings'"):
        compare(read("star:2"), 2, [8], ["rings"])
    for name, value in ("ports", 0), ("itemsize", 0), ("segment", 0), ("count", -1):
        with pytest.raises(ValueError, match=f"{name} must be"):
            predict("ring", read("star:2"), 2, **{"count": 1} | {name: value})


def test_segments_shorten_a_chain():
    """Two hops, two pieces: three turns of half the array."""
    line = network("abc", ("a", "b", 1.0), ("b", "c", 1.0))
    whole = Span(0, 8)

    def rounds(rank, size, count):
        yield from [(Recv(rank - 1, whole, RIGHT),)] * (rank > 0)
        yield from [(Send(rank + 1, whole),)] * (rank < 2)

    row = RING._replace(rounds=rounds)
    assert predict(row, line, 3, 8, itemsize=1).seconds == 16
    assert predict(row, line, 3, 8, itemsize=1, segment=4).seconds == 12
