"""Spans, rounds and the compiled program."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.runtime.program import compile_rounds, segments
from hpcreduce.schedule import RIGHT, Recv, Send, Span, partition


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_partition_covers_all_elements_evenly(count, parts):
    spans = partition(count, parts)
    assert len(spans) == parts
    assert [index for span in spans for index in range(*span)] == list(range(count))
    assert max(span.length for span in spans) - min(span.length for span in spans) <= 1


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 50))
def test_segments_cover_a_span(start, length, most):
    pieces = segments(Span(start, start + length), most)
    assert pieces[0].start == start and pieces[-1].stop == start + length
    assert all(a.stop == b.start for a, b in pairwise(pieces))
    assert len(pieces) == max(1, -(-length // most))
    assert all(piece.length <= most for piece in pieces)


@pytest.mark.parametrize(
    ("a", "b", "overlap"),
    [((0, 2), (2, 4), False), ((0, 3), (2, 4), True), ((1, 1), (0, 4), False), ((0, 4), (1, 2), True)],
)
def test_overlap(a, b, overlap):
    assert Span(*a).overlaps(Span(*b)) == Span(*b).overlaps(Span(*a)) == overlap


def test_ring_rounds_are_the_ones_in_the_paper():
    rounds = list(ALGORITHMS["ring"].rounds(0, 3, 6))
    assert rounds[0] == (Recv(2, Span(4, 6), RIGHT), Send(1, Span(0, 2)))
    assert rounds[2] == (Recv(2, Span(0, 2), None), Send(1, Span(2, 4)))
    assert [verb.span for verbs in rounds for verb in verbs if isinstance(verb, Send)] == [
        Span(0, 2),
        Span(4, 6),
        Span(2, 4),
        Span(0, 2),
    ]


@pytest.mark.parametrize("name", [name for name, row in ALGORITHMS.items() if row.rounds])
def test_one_rank_does_nothing(name):
    assert [verb for verbs in ALGORITHMS[name].rounds(0, 1, 5) for verb in verbs] == []


def test_a_send_waits_for_the_last_write_of_its_span():
    program = compile_rounds(ALGORITHMS["ring"].rounds(0, 3, 9), 9)
    assert program.first == (0,)
    assert program.after == ((1,), (2,), (3,), ())


def test_a_write_waits_for_earlier_sends_of_its_span():
    whole = Span(0, 4)
    program = compile_rounds([(Send(1, whole),), (Recv(1, whole, RIGHT),), (Recv(1, Span(0, 2), None),)], 2)
    assert program.hazards == ((0,), (1,), ())
    assert program.behind == (0, 0, 1)  # the plain receive is posted after the reduction into its span is done


def test_an_empty_send_waits_for_earlier_rounds():
    program = compile_rounds(ALGORITHMS["ring"].rounds(0, 4, 0), 1)
    assert program.first == (0,)
    assert program.after == ((1,), (2,), (3,), (4,), (5,), ())


def test_compiling_is_linear_in_the_number_of_segments():
    """Count work, not seconds: each stretch of the array is looked at once per verb."""
    program = compile_rounds(ALGORITHMS["ring"].rounds(0, 8, 80_000), 10)
    assert len(program.recvs) == len(program.sends) == 14 * 1000
    assert sum(map(len, program.hazards)) <= len(program.recvs)
