"""The proof: it accepts the algorithms, and refuses every planted bug."""

import importlib
import re
from pathlib import Path

import pytest

from hpcreduce.algorithms import ALGORITHMS, RELATED
from hpcreduce.algorithms.tree import tree_reduce
from hpcreduce.analysis.check import check
from hpcreduce.errors import ProofError
from hpcreduce.runtime.program import compile_rounds
from hpcreduce.schedule import LEFT, RIGHT, Recv, Send, Span, partition

double_tree = importlib.import_module("hpcreduce.algorithms.double_tree")  # the package has a function of this name
SCHEDULES = [name for name, row in ALGORITHMS.items() if row.rounds]
RING, TREE = ALGORITHMS["ring"], ALGORITHMS["tree"]
UNCOUNTED = RING._replace(round_count=None, volume=None)


def counts(size):
    return sorted({0, 1, size - 1, size, size + 1, 2 * size + 3})


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("size", range(1, 33))
def test_every_algorithm_is_proven(name, size):
    for count in counts(size):
        proof = check(name, size, count)
        assert proof.rounds == ALGORITHMS[name].round_count(size, count)
        assert proof.runs >= (4 if size > 2 and count > size else 1)


def node_maps(size):
    """One node; blocks; ragged blocks; round robin; a node of its own for each rank."""
    ragged = [0, 0, 0, 1, *[2 + (rank - 4) // 4 for rank in range(4, size)]][:size]
    return [
        (0,) * size,
        tuple(rank // 2 for rank in range(size)),
        ragged,
        [rank % 3 for rank in range(size)],
        range(size),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 13, 16])
def test_hierarchical_is_proven_for_any_node_map(size):
    for nodes in node_maps(size):
        for count in (1, 2 * size + 3):
            check("hierarchical", size, count, nodes=nodes)


@pytest.mark.parametrize("across", [name for name in SCHEDULES if name != "hierarchical"])
def test_hierarchical_is_proven_with_every_algorithm_across_nodes(across):
    for size in (3, 6, 8):
        for nodes in node_maps(size):
            check("hierarchical", size, size + 1, nodes=nodes, across=across)


def test_hierarchical_sends_the_least_across_nodes():
    """Nobody but the first rank of a node talks to another one."""
    nodes = [0, 0, 0, 1, 2, 2, 2, 2]
    for rank in range(8):
        for verbs in ALGORITHMS["hierarchical"].rounds(rank, 8, 100, nodes=nodes):
            assert all(nodes[verb.peer] == nodes[rank] or {rank, verb.peer} <= {0, 3, 4} for verb in verbs)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 16, 31, 32, 33])
def test_double_tree_is_proven_in_many_pieces(size, monkeypatch):
    monkeypatch.setattr(double_tree, "PIECE", 3)
    for count in (5, 40, 70):
        assert double_tree.pieces(count) > 1
        check("double_tree", size, count, segments=(1, None))


def test_double_tree_has_complementary_trees():
    """At most one rank is an inner one in both trees; each tree reaches every rank."""
    for size in range(2, 200):
        places = [double_tree.trees(rank, size) for rank in range(size)]
        inner = [sum(bool(place.children) for place in both) for both in places]
        assert sum(number == 2 for number in inner) <= 1, size
        for tree in range(2):
            children = [child for both in places for child in both[tree].children]
            assert len(children) == size - 1 == len(set(children)), size
            assert max(both[tree].level for both in places) == double_tree.levels(size), size
            for rank, both in enumerate(places):
                assert all(places[child][tree].parent == rank for child in both[tree].children)


def test_circulant_has_no_cliff():
    """Just below, at and above a power of two: rounds differ by two at most, and the volume is the least possible."""
    for power in range(2, 7):
        sizes = (2**power - 1, 2**power, 2**power + 1)
        proofs = [check("circulant", size, 3 * size, segments=(None,), windows=(1,)) for size in sizes]
        assert [proof.rounds for proof in proofs] == [2 * power, 2 * power, 2 * power + 2]
        assert [proof.volume for proof in proofs] == [6 * (size - 1) for size in sizes]


def test_direct_sends_contributions_and_then_results():
    """Narrow wires rely on it: nothing is sent that is not a contribution or complete."""
    for size in range(2, 9):
        for rank in range(size):
            (given, gathered), own = ALGORITHMS["direct"].rounds(rank, size, 20), partition(20, size)[rank]
            reduced = [verb.peer for verb in given if isinstance(verb, Recv) and verb.side and verb.span == own]
            assert sorted(reduced) == [peer for peer in range(size) if peer != rank]
            assert not any(verb.span.overlaps(own) for verb in given if isinstance(verb, Send))
            assert {verb.span for verb in gathered if isinstance(verb, Send)} == {own}
            assert not any(isinstance(verb, Recv) and verb.side for verb in gathered)


def test_restrictions_on_static_keywords():
    for nodes in ([0], [0] * 5):
        with pytest.raises(ValueError, match=r"nodes names the nodes of . ranks, expected 4"):
            check("hierarchical", 4, 8, nodes=nodes)
    for across in ("hierarchical", "mpi", "rings"):
        with pytest.raises(ValueError, match="across"):
            check("hierarchical", 4, 8, across=across)


@pytest.mark.parametrize("name", RELATED)
@pytest.mark.parametrize("size", range(1, 18))
def test_every_related_operation_is_proven(name, size):
    for count in counts(size):
        for root in sorted({0, 1 % size, size // 2, size - 1}) if "root" in RELATED[name].static else [None]:
            for ordered in (True, False) if "ordered" in RELATED[name].static else [None]:
                static = {"root": root, "ordered": ordered}
                check(name, size, count, **{key: value for key, value in static.items() if value is not None})


def test_related_operations_must_reach_their_goal():
    def too_short(rounds):
        return lambda *arguments, **static: list(rounds(*arguments, **static))[:-1]

    def elsewhere(rounds):
        return lambda rank, size, count, **static: rounds((rank + 1) % size, size, count, **static)

    for row in RELATED.values():
        for change in too_short, elsewhere:
            wrong = row._replace(rounds=change(row.rounds), round_count=None, volume=None)
            with pytest.raises(ProofError, match=r"\[1|\[4"):
                check(wrong, 4, 9)
        assert check(row, 4, 9).runs
    with pytest.raises(ProofError, match=r"\[5\].*rank order"):
        check(RELATED["reduce"]._replace(rounds=lambda *a, **k: tree_reduce(*a, root=2, ordered=False)), 4, 9, root=2)
    with pytest.raises(ProofError, match="more than the contribution of rank"):
        check(RELATED["allgather"]._replace(rounds=ALGORITHMS["ring"].rounds, round_count=None, volume=None), 4, 9)


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("size", [*range(33, 65), 127, 128, 129])
def test_every_algorithm_is_proven_for_many_ranks(name, size):
    for count in (0, size + 1, 2 * size + 3):
        check(name, size, count, segments=(1, None), windows=(1, 3))


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("size", [255, 256, 257, 1000, 1024])
def test_every_algorithm_is_proven_for_a_thousand_ranks(name, size):
    check(name, size, size + 1, segments=(None,), windows=(2,))


def test_the_worked_example_of_a_new_algorithm():
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    try:
        exec(example, {})
        for size in range(1, 10):
            for count in counts(size):
                check("chain", size, count)
    finally:
        ALGORITHMS.pop("chain")


def test_tree_and_ring_have_the_counts_of_the_literature():
    for size in range(2, 33):
        count = 7 * size
        ring, tree = (check(name, size, count, segments=(None,), windows=(1,)) for name in ("ring", "tree"))
        assert (ring.rounds, ring.volume) == (2 * (size - 1), 2 * (size - 1) * count // size)
        assert (tree.rounds, tree.volume) == (2 * (size - 1).bit_length(), count * (size - 1).bit_length())


def refuse(rounds, size, count, *expected, row=RING, **options):
    """Assert that the proof refuses `rounds`, naming one of the properties."""
    with pytest.raises(ProofError) as caught:
        check(row._replace(rounds=rounds), size, count, **options)
    assert any(f"[{number}" in str(caught.value) for number in expected), caught.value


def edited(change, row=RING):
    """Return the rounds of a right algorithm after `change(list of rounds, rank, size)`."""

    def rounds(rank, size, count):
        yield from change(list(row.rounds(rank, size, count)), rank, size)

    return rounds


def test_planted_wrong_first_chunk():
    def rounds(rank, size, count):
        chunk = partition(count, size)
        right, left = (rank + 1) % size, (rank - 1) % size
        for side, first in (RIGHT, rank), (None, rank):  # the all-gather starts at the wrong chunk
            for step in range(size - 1):
                yield Recv(left, chunk[(first - step - 1) % size], side), Send(right, chunk[(first - step) % size])

    refuse(rounds, 4, 8, 4)


def test_rounds_that_are_no_tuples_are_named():
    for wrong in (Send(0, Span(0, 4)), None, 3, (Send(1, Span(0, 4)), "x")):
        with pytest.raises(ProofError, match=r"rank 0, round 0: expected .*Send"):
            check(UNCOUNTED._replace(rounds=lambda rank, size, count, wrong=wrong: [wrong]), 2, 4)
    with pytest.raises(ValueError, match="unknown algorithm 'nope'; expected one of ring"):
        check("nope", 2, 4)


def test_planted_extra_round():
    refuse(edited(lambda rounds, rank, size: [*rounds, rounds[-1]]), 4, 8, 6)
    refuse(edited(lambda rounds, rank, size: [rounds[0], *rounds]), 4, 8, 4, row=UNCOUNTED)


def test_planted_missing_round():
    refuse(edited(lambda rounds, rank, size: rounds[:-1]), 4, 8, 6)
    refuse(edited(lambda rounds, rank, size: rounds[:-1]), 4, 8, 4, row=UNCOUNTED)


def test_planted_wrong_peer():
    def change(rounds, rank, size):
        return [(recv, Send((rank + 2) % size, send.span)) for recv, send in rounds]

    refuse(edited(change), 4, 8, 1, 2)
    refuse(edited(lambda rounds, rank, size: [(recv, Send(rank, send.span)) for recv, send in rounds]), 4, 8, 1)
    refuse(edited(lambda rounds, rank, size: [(recv, Send(size, send.span)) for recv, send in rounds]), 4, 8, 1)


def test_planted_blocking_order():
    def change(rounds, rank, size):
        return [part for recv, send in rounds for part in ((send,), (recv,))]

    refuse(edited(change), 3, 8, "1, 2", row=RING._replace(round_count=None))


def test_planted_dropped_tail():
    def rounds(rank, size, count):
        yield from RING.rounds(rank, size, count - count % size)

    refuse(rounds, 4, 9, 4, 6)
    refuse(rounds, 4, 9, 4, row=RING._replace(volume=None))


def test_planted_power_of_two_only():
    def rounds(rank, size, count):
        distance = 1
        while distance < size:
            peer, side = rank ^ distance, RIGHT if rank & distance == 0 else LEFT
            if peer < size:
                yield Recv(peer, Span(0, count), side), Send(peer, Span(0, count))
            distance *= 2

    row = TREE._replace(round_count=None, volume=None)
    assert check(row._replace(rounds=rounds), 8, 5).runs
    refuse(rounds, 6, 5, 4, row=row)


def test_planted_missing_broadcast():
    def change(rounds, rank, size):
        return rounds[: len(rounds) // 2]

    refuse(edited(change, TREE), 4, 5, 4, row=TREE._replace(round_count=None, volume=None))


def test_planted_swapped_slots():
    def change(rounds, rank, size):
        """File two finished chunks in each other's slot, and still hand on the right data."""
        if rank:
            return rounds
        (recv, send), (last, forward) = rounds[-2:]
        here, there = recv.span, last.span
        swapped = (recv._replace(span=there), send), (last._replace(span=here), forward._replace(span=there))
        return [*rounds[:-2], *swapped]

    refuse(edited(change), 4, 8, 4)


def test_planted_two_sends_to_one_peer_swapped():
    def pair(rank, size, count):
        """Two ranks exchange the halves of an array in one round each way."""
        half, rest = partition(count, 2)
        peer = 1 - rank
        if rank == 0:
            yield Recv(peer, half, RIGHT), Recv(peer, rest, RIGHT)
            yield Send(peer, half), Send(peer, rest)
        else:
            yield Send(peer, half), Send(peer, rest)
            yield Recv(peer, half, None), Recv(peer, rest, None)

    row = UNCOUNTED
    assert check(row._replace(rounds=pair), 2, 8).runs

    def swapped(rank, size, count):
        for verbs in pair(rank, size, count):
            yield verbs[::-1] if isinstance(verbs[0], Send) and rank == 1 else verbs

    refuse(swapped, 2, 8, 4, row=row)

    def compiler(rounds, segment):
        """Compile so that two sends to one peer leave in the wrong order."""
        program = compile_rounds(rounds, segment)
        return program._replace(first=program.first[1::-1] + program.first[2:])

    refuse(pair, 2, 8, 4, row=row, compiler=compiler)


def test_a_compiler_that_forgets_hazards_is_refused():
    def compiler(rounds, segment):
        program = compile_rounds(rounds, segment)
        return program._replace(hazards=((),) * len(program.recvs), behind=(0,) * len(program.recvs))

    def exchange(rank, size, count):
        """Reduce into the span that is being sent: legal for rounds, a hazard for the program."""
        whole, peer = Span(0, count), 1 - rank
        yield Recv(peer, whole, RIGHT if rank == 0 else LEFT), Send(peer, whole)

    row = UNCOUNTED._replace(rounds=exchange)
    assert check(row, 2, 8).runs
    with pytest.raises(ProofError, match=r"\[3, 7\]"):
        check(row, 2, 8, compiler=compiler)


def test_a_compiler_that_sends_too_early_is_refused():
    def compiler(rounds, segment):
        program = compile_rounds(rounds, segment)
        return program._replace(first=tuple(range(len(program.sends))), after=((),) * len(program.recvs))

    with pytest.raises(ProofError, match=r"\[4\]|\[3, 7\]"):
        check("ring", 3, 9, compiler=compiler)


def test_ranks_that_combine_in_different_ways_are_refused():
    def exchange(rank, size, count):
        whole, peer = Span(0, count), 1 - rank
        yield Recv(peer, whole, RIGHT), Send(peer, whole)

    refuse(exchange, 2, 3, 5, row=UNCOUNTED)


def test_rank_order_is_checked_where_it_is_claimed():
    with pytest.raises(ProofError, match=r"\[5\].*rank order"):
        check(RING._replace(keeps_order=True), 3, 6)


def test_overlapping_receive_is_refused():
    def rounds(rank, size, count):
        yield Recv(1 - rank, Span(0, count), None), Send(1 - rank, Span(0, count))

    refuse(rounds, 2, 3, 3, row=UNCOUNTED)


def test_unequal_sizes_are_refused():
    def rounds(rank, size, count):
        yield Recv(1 - rank, Span(0, count), RIGHT), Send(1 - rank, Span(0, count - rank))

    refuse(rounds, 2, 3, 1, row=UNCOUNTED)


@pytest.mark.parametrize(("size", "count"), [(0, 1), (-1, 1), (1, -1)])
def test_bad_numbers_are_refused(size, count):
    with pytest.raises(ValueError, match="found"):
        check("ring", size, count)


def test_the_library_is_no_schedule():
    with pytest.raises(ValueError, match="no schedule"):
        check("mpi", 2, 2)
