"""Drawings: exact tables, every row for many rank counts, and diagrams whose arrows are the messages."""

import inspect
import re
import textwrap
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hpcreduce.algorithms import ALGORITHMS, RELATED
from hpcreduce.analysis import draw
from hpcreduce.analysis.diagram import COLOURS, SEVERAL
from hpcreduce.schedule import LEFT, RIGHT, Recv, Send, Span, partition

ROWS = {name: row for name, row in (ALGORITHMS | RELATED).items() if row.rounds}
SVG = "{http://www.w3.org/2000/svg}"


def static(row, size):
    """What a row needs beyond rank, size and count: here, two nodes."""
    return {"nodes": tuple(rank * 2 // size for rank in range(size))} if "nodes" in row.static else {}


def own(rounds, **fields):
    """Return a row with these rounds."""
    return ALGORITHMS["ring"]._replace(name="own", rounds=rounds, round_count=None, volume=None, **fields)


def body(table):
    """Return the cells of a table: those of round 0, of round 1, ..., by rank."""
    lines = [line for line in table.splitlines() if line.startswith("rank ")]
    return [re.split(r" {2,}", line)[1:] for line in lines]


def test_ring():
    assert draw.text("ring", 2, 6) == textwrap.dedent(
        """\
        ring: 2 ranks, 6 elements in 2 chunks, 2 rounds, 4 messages
        round   0          1
        rank 0  0>1 +1<1   1>1 =0<1
        rank 1  1>0 +0<0   0>0 =1<0
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs; =c<r: receive c from r, overwrite"""
    )


def test_tree():
    assert draw.text("tree", 3) == textwrap.dedent(
        """\
        tree: 3 ranks, 3 elements in 3 chunks, 4 rounds, 4 messages
        round   0        1        2        3
        rank 0  +all<1   +all<2   all>2    all>1
        rank 1  all>0    .        .        =all<0
        rank 2  .        all>0    =all<0   .
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs; =c<r: receive c from r, overwrite;
        .: nothing; all: the whole array"""
    )


def test_both_sides_and_several_chunks():
    assert draw.text("rabenseifner", 4).splitlines()[1:] == [
        "round   0            1          2          3",
        "rank 0  23>1 +01<1   1>2 +0<2   0>2 =1<2   01>1 =23<1",
        "rank 1  01>0 23+<0   3>3 +2<3   2>3 =3<3   23>0 =01<0",
        "rank 2  23>3 +01<3   0>0 1+<0   1>0 =0<0   01>3 =23<3",
        "rank 3  01>2 23+<2   2>1 3+<1   3>1 =2<1   23>2 =01<2",
        "c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs;",
        "c+<r: receive c from r, store theirs op mine; =c<r: receive c from r, overwrite; 23: chunks 2 and 3",
    ]


def test_spans_that_are_no_whole_chunks_and_empty_ones():
    table = draw.text("rabenseifner", 6, 13)
    assert body(table)[0][1:3] == ["345>2 +012<2", "[3:6]>4 +[0:3]<4"]
    assert "[a:b]: elements a to b-1" in table
    assert body(draw.text("ring", 3, 1)) == [
        ["->1 +all<2", "all>1 +-<2", "->1 =-<2", "->1 =all<2"],
        ["->2 +-<0", "->2 +all<0", "all>2 =-<0", "->2 =-<0"],
        ["all>0 +-<1", "->0 +-<1", "->0 =all<1", "all>0 =-<1"],
    ]
    assert "-: an empty message" in draw.text("ring", 3, 1)


def test_empty_chunks_are_not_named():
    def rounds(rank, size, count):
        yield (Send(1, Span(0, 2)),) if rank == 0 else (Recv(0, Span(0, 2), None),) if rank == 1 else ()

    assert [chunk.length for chunk in partition(3, 5)] == [0, 1, 0, 1, 1]
    assert body(draw.text(own(rounds), 5, 3))[:2] == [["13>1"], ["=13<0"]]


def test_ranges_beyond_nine_ranks():
    assert body(draw.text("rabenseifner", 8))[0][0] == "4567>1 +0123<1"
    table = draw.text("rabenseifner", 16)
    assert body(table)[0][0] == "8-15>1 +0-7<1" and "; 8-15: chunks 8 to 15" in table.replace("\n", " ")
    assert body(draw.text("ring", 12))[11][0] == "11>0 +10<10"


def test_several_peers_in_a_round():
    def rounds(rank, size, count):
        """Send a chunk to each, in the order of distance; then hand the own one to all."""
        chunk, peers = partition(count, size), [(rank + step) % size for step in range(1, size)]
        yield tuple(Recv(peer, chunk[rank], RIGHT if rank < peer else LEFT) for peer in peers) + tuple(
            Send(peer, chunk[peer]) for peer in peers
        )
        yield tuple(Send(peer, chunk[rank]) for peer in peers) + tuple(Recv(p, chunk[p], None) for p in peers)

    assert body(draw.text(own(rounds), 3)) == [
        ["1>1 2>2 +0<1 +0<2", "0>1 0>2 =1<1 =2<2"],
        ["2>2 0>0 +1<2 1+<0", "1>2 1>0 =2<2 =0<0"],
        ["0>0 1>1 2+<0 2+<1", "2>0 2>1 =0<0 =1<1"],
    ]
    groups, root = arrows(draw.svg(own(rounds), 4))
    assert len(groups) == 24
    labels = [text.text for text in root.iter(f"{SVG}text") if text.text.isdigit()]
    # Three ranks send each chunk in round 0, its owner sends it to all under one label in round 1; and the legend.
    assert Counter(labels) == {str(chunk): 3 + 1 + 1 for chunk in range(4)}


def test_wide_tables_are_cut_into_equal_parts():
    lines = draw.text("ring", 8).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("round")] == ["0", "7"]
    assert max(map(len, lines)) <= draw.WIDTH
    rounds = [line.split()[1:] for line in draw.text("ring", 20).splitlines() if line.startswith("round")]
    assert [int(number) for part in rounds for number in part] == list(range(38))


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_drawn(name, size):
    row = ROWS[name]
    for count in (None, 0, 1, 2 * size + 3):
        for root in {0, size - 1} if "root" in row.static else [None]:
            words = static(row, size) | ({} if root is None else {"root": root})
            table, document = draw.text(name, size, count, **words), draw.svg(name, size, count, **words)
            elements = size if count is None else count
            schedule = [list(row.rounds(rank, size, elements, **words)) for rank in range(size)]
            verbs = [verb for rounds in schedule for verbs in rounds for verb in verbs]
            assert all(line == line.rstrip() and len(line) <= draw.WIDTH for line in table.splitlines())
            assert table.count("<") - table.splitlines()[-1].count("<") <= len(verbs)
            assert len(body(table)) % size == 0
            check_arrows(document, schedule)


def arrows(document):
    """Return the groups of a diagram's messages, and its root."""
    root = ElementTree.fromstring(document)
    return [group for group in root.iter(f"{SVG}g") if "message" in group.get("class", "").split()], root


def check_arrows(document, schedule):
    """Check that there is one arrow per message, between the right ranks, and that its form says what it does."""
    groups, root = arrows(document)
    sent = [
        (rank, verb.peer, index)
        for rank, rounds in enumerate(schedule)
        for index, verbs in enumerate(rounds)
        for verb in verbs
        if isinstance(verb, Send)
    ]
    received = [
        (verb.peer, rank, "copy" if verb.side is None else "reduce")
        for rank, rounds in enumerate(schedule)
        for verbs in rounds
        for verb in verbs
        if isinstance(verb, Recv)
    ]
    ends = [tuple(int(group.get(f"data-{key}")) for key in ("source", "target", "round")) for group in groups]
    assert Counter(ends) == Counter(sent)
    kinds = [(*end[:2], group.get("class").split()[1]) for end, group in zip(ends, groups, strict=True)]
    assert Counter(kinds) == Counter(received)
    for group in groups:
        solid = group.get("class") == "message reduce"
        assert (group.find(f"{SVG}polygon") is not None) == solid
        assert (group.find(f"{SVG}polyline") is None) == solid
        assert (group.find(f"{SVG}line").get("stroke-dasharray") is None) == solid
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"


def test_arrows_begin_and_end_at_their_ranks():
    groups, root = arrows(draw.svg("ring", 4))
    heights = {
        text.text: float(text.get("y")) - 4
        for text in root.iter(f"{SVG}text")
        if re.fullmatch(r"(rank|round) \d", text.text)
    }
    assert [name for name in heights if name.startswith("round")] == [f"round {index}" for index in range(6)]
    for group in groups:
        line, head = group.find(f"{SVG}line"), group.find(f"{SVG}polygon")
        head = group.find(f"{SVG}polyline") if head is None else head
        tip = head.get("points").split()[1].split(",")
        assert float(line.get("y1")) == heights[f"rank {group.get('data-source')}"]
        assert float(tip[1]) == heights[f"rank {group.get('data-target')}"]
        assert float(line.get("x1")) < float(tip[0])


def test_arrows_have_the_colour_of_their_chunk_and_say_what_they_do():
    for group in arrows(draw.svg("ring", 4))[0]:
        rank, index = int(group.get("data-source")), int(group.get("data-round"))
        chunk = (rank - index + (index > 2)) % 4 if index < 3 else (rank + 1 - (index - 3)) % 4
        assert group.find(f"{SVG}line").get("stroke") == COLOURS[chunk]
        effect = "stores mine op theirs" if index < 3 else "overwrites"
        assert group.find(f"{SVG}title").text == (
            f"round {index}: rank {rank} sends {chunk} to rank {(rank + 1) % 4}, which {effect}"
        )
    assert {group.find(f"{SVG}line").get("stroke") for group in arrows(draw.svg("tree", 4))[0]} == {SEVERAL}


def test_every_arrow_has_a_tip_of_its_own():
    for name in "circulant", "direct":
        groups = arrows(draw.svg(name, 5))[0]
        heads = [group.find(f"{SVG}polygon") for group in groups] + [group.find(f"{SVG}polyline") for group in groups]
        tips = [head.get("points").split()[1] for head in heads if head is not None]
        assert len(tips) == len(set(tips)) == len(groups)


def test_legend_explains_what_occurs():
    def said(name, size, count=None):
        return {text.text for text in arrows(draw.svg(name, size, count))[1].iter(f"{SVG}text")}

    reduces, copies = "combined with what the receiver has", "overwrites what the receiver has"
    assert {reduces, copies, "chunk"} <= said("ring", 4)
    assert copies not in said("reduce_scatter", 4) and reduces not in said("allgather", 4)
    assert "the whole array" in said("tree", 4) and "chunk" not in said("tree", 4)
    assert "several chunks in one message" in said("rabenseifner", 4)
    assert "an empty message" in said("ring", 4, 1)
    assert any("no whole chunks" in text for text in said("rabenseifner", 6, 13))


def test_a_message_that_is_received_later_ends_there():
    def rounds(rank, size, count):
        whole = Span(0, count)
        if rank == 0:
            yield (Send(1, whole),)
        else:
            yield from [(), (), (Recv(0, whole, None),)]

    (group,), root = arrows(draw.svg(own(rounds), 2))
    tip = float(group.find(f"{SVG}polyline").get("points").split()[1].split(",")[0])
    assert tip > float(next(text for text in root.iter(f"{SVG}text") if text.text == "round 2").get("x"))
    assert body(draw.text(own(rounds), 2)) == [["all>1", ".", "."], [".", ".", "=all<0"]]


def test_lost_messages_are_refused():
    def deaf(rank, size, count):
        yield (Send(1, Span(0, count)),) if rank == 0 else ()

    def lonely(rank, size, count):
        yield (Recv(0, Span(0, count), RIGHT),) if rank else ()

    assert body(draw.text(own(deaf), 2)) == [["all>1"], ["."]]
    with pytest.raises(ValueError, match="rank 0, round 0: rank 1 does not receive"):
        draw.svg(own(deaf), 2)
    with pytest.raises(ValueError, match="rank 1, round 0: rank 0 does not send"):
        draw.svg(own(lonely), 2)


@pytest.mark.parametrize(
    ("arguments", "words", "message"),
    [
        (("rong", 4), {}, "unknown algorithm 'rong'; expected one of ring, tree"),
        (("mpi", 4), {}, "'mpi' is no schedule"),
        (("ring", 0), {}, "ranks must be at least 1, found 0"),
        (("ring", 4, -1), {}, "count must be at least 0, found -1"),
        (("ring", 4), {"root": 1}, "ring takes no root"),
        (("bcast", 4), {"ordered": True}, "bcast takes no ordered; it takes root"),
        (("bcast", 4), {"root": 4}, "root must be a rank from 0 to 3, found 4"),
        (("bcast", 4), {"root": -1}, "root must be a rank from 0 to 3, found -1"),
    ],
)
def test_bad_input_is_refused(arguments, words, message):
    for make in draw.text, draw.svg:
        with pytest.raises(ValueError, match=message):
            make(*arguments, **words)


def test_static_keywords_are_checked_and_handed_on():
    def rounds(rank, size, count, nodes):
        return iter([(Send(nodes[1], Span(0, count)),) if rank == 0 else ()])

    row = own(rounds, static=("nodes",))
    assert body(draw.text(row, 3, nodes=(0, 2, 2)))[0] == ["all>2"]
    assert draw.text(row, 3, nodes=(0, 2, 2)).startswith("own (nodes=0,2,2): 3 ranks")
    for nodes, message in (
        ((0, 1), "nodes must name a node for each of 3 ranks, found 2"),
        ((0, "x", 1), "nodes must be integers, found 0,x,1"),
    ):
        with pytest.raises(ValueError, match=message):
            draw.text(row, 3, nodes=nodes)
    with pytest.raises(ValueError, match="own needs nodes"):
        draw.text(row, 3)
    assert draw.text("reduce", 3, root=2).startswith("reduce (root=2): 3 ranks, 3 elements in 3 chunks, 3 rounds")
    assert "2 rounds" in draw.text("reduce", 3, root=2, ordered=False)


@pytest.mark.parametrize("name", ROWS)
def test_docstrings_have_the_drawing_for_four_ranks(name):
    """Of a new algorithm, paste what ``python -m hpcreduce draw NAME --ranks 4`` prints."""
    expected = textwrap.indent(draw.text(name, 4, **static(ROWS[name], 4)), "    ")
    assert expected in inspect.getdoc(ROWS[name].rounds)


def test_readme_has_the_drawings():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for name in "ring", "tree":
        assert textwrap.indent(draw.text(name, 4), "    ") in readme
