"""Where the records of a CSV text begin, from any byte on, against a machine that reads byte by byte and csv."""

import csv
import io
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcreduce.stats import csvfiles, csvtext, quoting
from hpcreduce.stats.reading import ReadOptions, Shard, SourceError

TEXTS = st.lists(st.sampled_from([b'"', b'"', b",", b"\n", b"\r\n", b"\r", b"a"]), max_size=30).map(b"".join)


def machine(text):
    """Whether each place of a text is inside of quotes, and where it ends; one byte at a time."""
    states, state, fresh, place = [], "out", True, 0
    while place < len(text):
        byte = text[place : place + 1]
        states.append(state == "in")
        if state == "in":
            if byte == b'"' and text[place + 1 : place + 2] == b'"':
                place += 1
                states.append(True)
            elif byte == b'"':
                state = "out"
        elif byte == b'"' and fresh:
            state = "in"
        fresh = byte in (b",", b"\n", b"\r") and state == "out"
        place += 1
    return [*states, state == "in"]


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_inside_of_quotes_is_known_at_every_newline(text):
    inside = machine(text)
    found = quoting.runs(text, b",", True)
    newlines = [place for place in range(len(text)) if text[place] in b"\r\n"]
    assert [bool(found.inside(place, False)) for place in newlines] == [inside[place] for place in newlines]
    assert found.effect(False) == inside[-1]
    ends = [place + 1 for place in newlines if text[place] == 10 and not inside[place]]
    assert quoting.last_end(text, b",", b"\n") == (ends[-1] if ends else 0)
    assert quoting.first_end(text, b",", b"\n", False, True) == (ends[0] if ends else 0)


@given(TEXTS, TEXTS, TEXTS)
@settings(max_examples=200, deadline=None)
def test_effects_compose(first, second, third):
    parts, fresh, total = [part for part in (first, second, third) if part], True, quoting.Effect()
    for before, after in itertools.pairwise(parts):
        if before.endswith(b'"') and after.startswith(b'"'):  # no part begins amid a run
            return
    for part in parts:
        total = total.then(quoting.runs(part, b",", fresh).effect)
        fresh = part[-1:] in (b",", b"\n", b"\r")
    whole = quoting.runs(first + second + third, b",", True).effect
    assert [total(inside) for inside in (False, True)] == [whole(inside) for inside in (False, True)]


FIELDS = st.text(st.sampled_from('ab1",\r\n \u00e9'), max_size=6)
TABLES = st.integers(1, 3).flatmap(lambda width: st.lists(st.lists(FIELDS, min_size=width, max_size=width), max_size=6))


@st.composite
def files(draw):
    rows = draw(TABLES.filter(bool))
    text = io.StringIO()
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    quoting_ = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    writer = csv.writer(text, lineterminator=newline, quoting=quoting_)
    writer.writerow([f"column {number}" for number in range(len(rows[0]))])
    for row in rows:
        text.write(newline * draw(st.integers(0, 1)))
        writer.writerow(row)
    data = text.getvalue()
    return data if draw(st.booleans()) else data.removesuffix(newline)


def read_pieces(path, cuts, block):
    """Read a file cut at these bytes, as so many ranks do."""
    options = ReadOptions(block=block)
    found = csvfiles.inspect(path, options)
    if found.extent is None:
        return [[]]
    first, last = found.extent
    edges = [first, *sorted(min(max(cut, first), last) for cut in cuts), last]
    shards = [Shard(0, place, 0) for place in itertools.pairwise(edges)]
    effects = [csvtext.effect(path, found.layout, *shard.place) for shard in shards]
    told = csvtext.follow(shards, effects)
    found = found._replace(where=path, types=dict.fromkeys(found.types, "string"))
    return [list(rows_of(found, shard.place, options)) for shard in told]


def rows_of(found, place, options):
    for _, columns, _ in csvfiles.read(found, place, list(found.types), options):
        yield from zip(*(values.to_pylist() for values in columns.values()), strict=True)


@given(files(), st.lists(st.integers(0, 60), max_size=3), st.sampled_from([1, 7, 1000]))
@settings(max_examples=150, deadline=None)
def test_cut_anywhere_a_file_has_the_rows_that_pythons_csv_module_reads(tmp_path_factory, text, cuts, block):
    path = tmp_path_factory.getbasetemp() / "table.csv"
    path.write_bytes(text.encode())
    header, *rows = [tuple(field or None for field in row) for row in csv.reader(io.StringIO(text, newline="")) if row]
    if any(len(row) != len(header) for row in rows):  # a return that the writer did not quote
        with pytest.raises(SourceError, match=r"line [0-9]+: expected"):
            read_pieces(str(path), cuts, block)
        return
    assert [row for piece in read_pieces(str(path), cuts, block) for row in piece] == rows


SHAPES = {
    "quoted newlines": b'foo,bar\n"a",1\n"b",2\n"c\nd\ne\n",3\n"h",4\n',
    "doubled quotes": b'a,b\r\n"""",""""""\r\n"x""\n""y",",\n"\r\n1,2',
    "quotes that are none": b'a,b\n6" pipe,5"\nx"y"z,"1"2"\n"a\n"b,"\n"\n',
    "text of one quoted field": b'a\n"' + b"x\n" * 20 + b'"\n5\n',
    "a long run": b'a,b\n"' + b'"' * 20 + b'\n",1\n2,"' + b'""' * 9 + b'"\n',
    "a byte order mark and empty lines": b'\xef\xbb\xbf"a\n1",b\n\n\n1,2\n\n"3\n",4\n\n',
    "returns alone": b"a,b\r1,2\r3,4\r5,6",
}


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_every_cut_and_every_two_cuts(text, tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(text)
    whole = read_pieces(str(path), [], 1 << 20)[0]
    expected = list(csv.reader(io.StringIO(text.decode("utf-8-sig"), newline="")))
    assert whole == [tuple(field or None for field in row) for row in expected if row][1:]
    for cuts in [[cut] for cut in range(len(text) + 1)] + [[cut, cut + 5] for cut in range(0, len(text), 3)]:
        assert [row for piece in read_pieces(str(path), cuts, 1) for row in piece] == whole, cuts


def test_a_quote_that_never_closes_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b'a,b\n1,2\n3,"4\n5,6\n')
    for cuts in [], [10]:
        with pytest.raises(SourceError, match=r"^line 3: a quote opens in this record that does not close$"):
            read_pieces(str(path), cuts, 1 << 20)
