"""The alpha-beta-gamma model: cases computed by hand, ports, links, hazards, segments, and the formulas."""

import math
import time

import pytest

from hpcreduce.algorithms import ALGORITHMS, RELATED
from hpcreduce.analysis.cost import FORMS, Link, closed_form, simulate
from hpcreduce.errors import ProofError
from hpcreduce.schedule import LEFT, RIGHT, Recv, Send, Span

SCHEDULES = [name for name, row in ALGORITHMS.items() if row.rounds]
RING = ALGORITHMS["ring"]
EXACT = {"alpha": 1.0, "beta": 0.5, "gamma": 0.25, "itemsize": 4}  # sums of these are exact: 4 elements cost 9 and 4


def row(*programs):
    """Return a row whose rank r has the rounds ``programs[r]``."""
    return RING._replace(name="made", rounds=lambda rank, size, count: iter(programs[rank]), static=())


def made(*programs, count=4, **options):
    return simulate(row(*programs), len(programs), count, **EXACT | options)


WHOLE = Span(0, 4)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_has_a_time(name):
    assert simulate(name, 1, 10, **EXACT).seconds == 0
    for size in 2, 3, 5, 8:
        for count in 0, 1, 2 * size + 1:
            timing = simulate(name, size, count, alpha=1, beta=0)
            assert timing.seconds >= (size - 1).bit_length()  # so long does it take to hear from all
            assert timing.seconds == max(timing.ranks) and len(timing.ranks) == size and timing.messages >= size - 1
            volume = simulate(name, size, count, alpha=0, beta=1, itemsize=1)
            assert volume.seconds >= 2 * (size - 1) * count / size * (1 - 1e-9)  # nobody does with less, in one port


def test_an_exchange():
    timing = simulate("recursive_doubling", 2, 4, **EXACT)
    assert timing == (9 + 4, (13, 13), 2)


def test_a_ring_of_three():
    """Chunks of 4 elements: 9 s each of 4 times, and 4 s to reduce, twice."""
    assert simulate("ring", 3, 12, **EXACT).seconds == 4 * 9 + 2 * 4


def test_a_tree_of_five():
    """0 has reduced 1 at 13; 2, which has reduced 3, arrives at 22; 4 waits for the port and arrives at 31."""
    timing = simulate("tree", 5, 4, **EXACT)
    up = 31 + 4
    assert timing.ranks == (up + 27, up + 27, up + 27, up + 27, up + 9)
    assert timing.messages == 8


def test_ports_out_and_in():
    scatter = [[tuple(Send(peer, WHOLE) for peer in range(1, 5))], *[[(Recv(0, WHOLE, None),)]] * 4]
    gather = [[tuple(Recv(peer, WHOLE, RIGHT) for peer in range(1, 5))], *[[(Send(0, WHOLE),)]] * 4]
    for ports, turns in (1, 4), (2, 2), (3, 2), (4, 1), (9, 1):
        assert made(*scatter, ports=ports).seconds == turns * 9
        assert made(*gather, ports=ports, gamma=0.0).seconds == turns * 9
    assert made(*scatter).ranks == (36, 9, 18, 27, 36)
    assert made(*gather).ranks == (36 + 4, 9, 18, 27, 36)  # reduced while the next one is received
    assert made(*gather, ports=4).seconds == 9 + 4 * 4


def test_both_ways_at_once_is_free():
    both = [[(Send(1, WHOLE), Recv(1, WHOLE, RIGHT))], [(Send(0, WHOLE), Recv(0, WHOLE, LEFT))]]
    assert made(*both).seconds == 9 + 4


def test_a_message_overtakes_one_that_cannot_go():
    """Rank 0 sends to 1, which is busy with what 2 sends, and to 3."""
    busy = [
        [(Send(1, Span(0, 4)), Send(3, Span(4, 8)))],
        [(Recv(2, Span(4, 8), None),), (Recv(0, Span(0, 4), None),)],
        [(Send(1, Span(4, 8)),)],
        [(Recv(0, Span(4, 8), None),)],
    ]
    assert made(*busy, count=8).ranks == (18, 18, 9, 9)


def test_inside_and_across_nodes():
    """Up: inside 3, reduce 4, across 9, reduce 4; down: across 9, inside 3."""
    nodes = [7, 7, 3, 3]
    assert simulate("tree", 4, 4, nodes=nodes, inside=Link(1, 0.125), **EXACT).seconds == 3 + 4 + 9 + 4 + 9 + 3
    assert simulate("tree", 4, 4, nodes=nodes, **EXACT) == simulate("tree", 4, 4, **EXACT)
    crossed = simulate("tree", 4, 4, nodes=[0, 1, 0, 1], inside=Link(1, 0.125), **EXACT)
    assert crossed.seconds == 9 + 4 + 3 + 4 + 3 + 9


def test_nodes_reach_the_algorithms_that_ask():
    def rounds(rank, size, count, nodes):
        assert nodes == (0, 0, 1)
        return RING.rounds(rank, size, count)

    asks = RING._replace(rounds=rounds, static=("nodes",))
    assert simulate(asks, 3, 12, nodes=[0, 0, 1], **EXACT).seconds == 44


def test_static_keywords():
    assert simulate("bcast", 4, 4, root=2, **EXACT).seconds == 2 * 9
    assert simulate("reduce", 4, 4, root=2, ordered=False, **EXACT).seconds == 2 * (9 + 4)
    assert set(RELATED) >= {"bcast", "reduce"}


def test_writes_wait_for_sends():
    """Rank 0 sends its array away, then gets another: a plain receive begins when the old one has gone, a reduction
    lands meanwhile and is done after that."""
    for side, seconds in (None, 9 + 9), (RIGHT, 9 + 4):
        timing = made([(Send(1, WHOLE),), (Recv(2, WHOLE, side),)], [(Recv(0, WHOLE, None),)], [(Send(0, WHOLE),)])
        assert timing.seconds == seconds
    apart = made(
        [(Send(1, Span(0, 4)),), (Recv(2, Span(4, 8), None),)],
        [(Recv(0, Span(0, 4), None),)],
        [(Send(0, Span(4, 8)),)],
        count=8,
    )
    assert apart.seconds == 9


def test_sends_wait_for_the_span_only():
    """Rank 1 passes on the half that it has, while the other is still under way."""
    low, high = Span(0, 4), Span(4, 8)
    chain = [
        [(Send(1, low),), (Send(1, high),)],
        [(Recv(0, low, None),), (Recv(0, high, None),), (Send(2, low),), (Send(2, high),)],
        [(Recv(1, low, None),), (Recv(1, high, None),)],
    ]
    assert made(*chain, count=8).ranks == (18, 27, 27)


@pytest.mark.parametrize("pieces", [1, 2, 4, 8])
def test_segments_follow_each_other(pieces):
    """Down a chain of 4 ranks: the last segment begins `pieces - 1` segments late and takes 3 hops."""
    whole = Span(0, 16)
    chain = [
        [(Recv(rank - 1, whole, None),)] * (rank > 0) + [(Send(rank + 1, whole),)] * (rank < 3) for rank in range(4)
    ]
    timing = made(*chain, count=16, segment=16 // pieces)
    assert timing.seconds == (3 + pieces - 1) * (1 + 0.5 * 64 / pieces)
    assert timing.messages == 3 * pieces


def test_ranks_are_not_in_step():
    """Pairs that never meet end apart."""
    pairs = [
        [(Send(1, WHOLE),)],
        [(Recv(0, WHOLE, None),)],
        [(Send(3, Span(0, 0)),)],
        [(Recv(2, Span(0, 0), None),)],
    ]
    assert made(*pairs).ranks == (9, 9, 1, 1)


def test_rounding_decides_nothing():
    """Prices that are no binary fractions, and an odd size: still the exact count of each."""
    for name in SCHEDULES:
        fine, coarse = (simulate(name, 7, 91, alpha=1e-6 * k, beta=3e-10 * k, gamma=7e-11 * k) for k in (1, 1024))
        assert coarse.seconds == pytest.approx(1024 * fine.seconds, rel=1e-12)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("size", range(1, 65))
def test_formulas_equal_the_simulation(name, size):
    """Uneven counts, and prices where latency, bandwidth or reduction prevails."""
    prices = ((1e-6, 1e-9, 3e-10), (0.0, 1.0, 0.0), (1.0, 1.0, 3.0)) if size < 20 else ((1.0, 0.5, 0.25),)
    for alpha, beta, gamma in prices:
        for count in {0, 7, size, 3 * size - 1, 8 * size} if size < 20 else {3 * size - 1}:
            price = {"alpha": alpha, "beta": beta, "gamma": gamma}
            assert closed_form(name, size, 8 * count, **price) == pytest.approx(
                simulate(name, size, count, **price).seconds, rel=1e-12
            )


def test_formulas_are_those_of_the_literature():
    p, n = 16, 16 * 1024
    a, b, c = 2.0**-20, 2.0**-30, 2.0**-32
    price = {"alpha": a, "beta": b, "gamma": c}
    share = n * (p - 1) // p
    assert closed_form("ring", p, n, **price) == pytest.approx(30 * a + share * (2 * b + c), rel=1e-12)
    assert closed_form("tree", p, n, **price) == pytest.approx(4 * (2 * a + n * (2 * b + c)), rel=1e-12)
    assert closed_form("recursive_doubling", p, n, **price) == pytest.approx(4 * (a + n * (b + c)), rel=1e-12)
    assert closed_form("rabenseifner", p, n, **price) == pytest.approx(8 * a + share * (2 * b + c), rel=1e-12)


def test_formulas_take_any_number_of_ranks_at_once():
    start = time.monotonic()
    for name in FORMS:
        for size in 99_999, 100_000, 1 << 20:
            assert 0 < closed_form(name, size, 1 << 30, alpha=1e-6, beta=1e-10, gamma=1e-10) < 100
    assert time.monotonic() - start < 10


def test_bad_arguments():
    price = {"alpha": 1.0, "beta": 1.0}
    for words, size, count, options in (
        ("size must be a whole number of at least 1, found 0", 0, 1, {}),
        ("size must be .* found True", True, 1, {}),
        ("count must be .* at least 0, found -1", 2, -1, {}),
        ("alpha must be .* found -1", 2, 1, {"alpha": -1}),
        ("beta must be .* found nan", 2, 1, {"beta": math.nan}),
        ("gamma must be .* found inf", 2, 1, {"gamma": math.inf}),
        ("gamma must be .* found '1'", 2, 1, {"gamma": "1"}),
        ("itemsize must be .* found 0", 2, 1, {"itemsize": 0}),
        ("ports must be .* found 0", 2, 1, {"ports": 0}),
        ("segment must be .* found 0", 2, 1, {"segment": 0}),
        ("nodes must name the node of each of 2 ranks, found 3", 2, 1, {"nodes": [0, 0, 0]}),
        ("inside needs nodes", 2, 1, {"inside": Link(1, 1)}),
        ("inside.beta must be .* found -1", 2, 1, {"nodes": [0, 0], "inside": Link(1, -1)}),
    ):
        with pytest.raises(ValueError, match=words):
            simulate("ring", size, count, **price | options)
    for name, words in ("rings", "unknown algorithm 'rings'; expected one of ring, "), ("mpi", "'mpi' is no schedule"):
        with pytest.raises(ValueError, match=words):
            simulate(name, 2, 1, **price)
    for words, arguments in (
        ("no formula for algorithm 'mpi'", ("mpi", 2, 8)),
        ("size must be", ("ring", 0, 8)),
        ("nbytes must be", ("ring", 2, -8)),
        ("nbytes must be a multiple of itemsize 8, found 9", ("ring", 2, 9)),
    ):
        with pytest.raises(ValueError, match=words):
            closed_form(*arguments, **price)


def test_rows_that_never_end_are_refused():
    send, recv = Send(1, WHOLE), Recv(0, WHOLE, None)
    for words, programs in (
        ("meets no receive", ([(send,)], [])),
        ("meets no receive", ([(send,)], [(Recv(0, Span(0, 3), None),)])),
        ("rank 1 waits for a message that rank 0 never sends", ([], [(recv,)])),
        ("no progress: rank 0", ([(Recv(1, WHOLE, None),), (send,)], [(recv,), (Send(0, WHOLE),)])),
    ):
        with pytest.raises(ProofError, match=words):
            made(*programs)
