"""The text of CSV files: pieces of it, where its records begin, and blocks of whole records.

Rules that hold here:

1. Records end at the newline that ends the header: LF, also where a CR is before it; CR in files without LF.
2. A range of bytes has the records that begin in it. To find the first of them one has to know whether the range begins
   inside of quotes: each rank finds the effect of its own ranges on that, and all effects together tell it.
3. A block is longer than it was asked for only where one record is.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hpcreduce.stats import quoting
from hpcreduce.stats.quoting import CR, LF, QUOTE, Effect
from hpcreduce.stats.reading import Shard, SourceError

LONGEST = 1 << 28
"""Bytes of the longest record."""
SCAN = 1 << 22
"""Bytes that are searched for quotes at a time."""


class Layout(NamedTuple):
    """How the text of a file is made."""

    names: tuple[str, ...]
    delimiter: bytes
    newline: bytes
    start: int
    """Where the first record after the header begins, in bytes of text."""
    zipped: bool
    grouped: frozenset[str] = frozenset()
    """Columns of numbers that have marks between thousands."""


class Text:
    """The text of a file from some place on, in pieces that the caller asks for."""

    def __init__(self, path: str, zipped: bool, start: int = 0) -> None:
        self.raw = open(path, "rb", buffering=0)  # noqa: SIM115
        self.file: Any = gzip.GzipFile(fileobj=self.raw) if zipped else self.raw
        self.zipped = zipped
        if start:
            self.file.seek(start)

    def __enter__(self) -> Text:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def read(self, nbytes: int) -> bytes:
        """Return that many bytes, fewer only at the end."""
        parts = []
        while nbytes > 0 and (part := self.file.read(nbytes)):
            parts.append(part)
            nbytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def effect(path: str, layout: Layout, start: int, stop: int) -> Effect:
    """Return what a range of bytes does to "inside of quotes": all runs of quotes that begin in it."""
    total = Effect()
    with Text(path, False) as text:
        place, stop = _past_run(text, start), _past_run(text, stop)
        fresh = place == layout.start or _byte(text, place - 1) in (layout.delimiter, LF, CR)
        text.file.seek(place)
        held = b""
        while place < stop:
            part = text.read(min(SCAN, stop - place))
            if not part:
                break
            place += len(part)
            data = held + part
            held = b"" if place >= stop else data[len(data.rstrip(QUOTE)) :]
            data = data[: len(data) - len(held)]
            if data:
                total = total.then(quoting.runs(data, layout.delimiter, fresh).effect)
                fresh = data[-1:] in (layout.delimiter, LF, CR)
    return total


def _byte(text: Text, place: int) -> bytes:
    text.file.seek(place)
    return text.read(1)


def _past_run(text: Text, place: int) -> int:
    """Return where the run of quotes ends that goes on at a place, or the place."""
    if place and _byte(text, place - 1) == QUOTE:
        while (part := text.read(1 << 16)) and part[0] == QUOTE[0]:
            place += len(part) - len(part.lstrip(QUOTE))
            if part.strip(QUOTE):
                break
    return place


def follow(shards: Sequence[Shard], effects: Sequence[Effect | None]) -> list[Shard]:
    """Tell the shards of one file, by the effects of all of them, whether they begin and end inside of quotes."""
    inside, told = False, []
    for shard, change in zip(shards, effects, strict=True):
        (start, stop), before = shard.place, inside
        inside = change(inside) if change else False
        told.append(shard._replace(place=((start, before), (stop, inside))))
    return told


def record_start(text: Text, layout: Layout, place: int, inside: bool) -> int:
    """Return where the first record begins at or after a place, by whether a run that goes on there ends in quotes."""
    if place == layout.start:
        return place
    begin = _past_run(text, place)
    previous = _byte(text, begin - 1)
    if previous == layout.newline and not inside:
        return begin
    fresh = previous in (layout.delimiter, LF, CR)
    size = 1 << 16
    while True:
        text.file.seek(begin)
        data = text.read(size)
        end = quoting.first_end(data, layout.delimiter, layout.newline, inside, fresh)
        if end or len(data) < size:
            return begin + (end or len(data))
        if size > LONGEST:
            raise SourceError(f"{line(text, layout, place)}: a record is longer than {LONGEST >> 20} MiB")
        size *= 4


def blocks(path: str, layout: Layout, place: Any, size: int) -> Iterator[tuple[int, bytes, int]]:
    """Read whole records: yield where some begin, their text, and how many bytes of the file were read for them."""
    with Text(path, layout.zipped) as text:
        stop = None
        begin = layout.start
        if place is not None:
            (start, inside), (last, inside_last) = place
            begin, stop = (record_start(text, layout, *edge) for edge in ((start, inside), (last, inside_last)))
        text.file.seek(begin)
        held, told = b"", text.raw.tell()
        while True:
            want = max(size, len(held))
            part = text.read(want if stop is None else min(want, stop - begin - len(held)))
            data = held + part
            ended = len(part) < want
            end = len(data) if ended else quoting.last_end(data, layout.delimiter, layout.newline)
            if (ended and _unclosed(data, layout)) or len(data) - end > LONGEST:
                begin += quoting.last_end(data, layout.delimiter, layout.newline)
                raise SourceError(f"{line(text, layout, begin)}: a quote opens in this record that does not close")
            if end:
                yield begin, data[:end], text.raw.tell() - told
                told = text.raw.tell()
            if ended:
                return
            held, begin = data[end:], begin + end


def _unclosed(data: bytes, layout: Layout) -> bool:
    return bool(quoting.runs(data, layout.delimiter, True).inside(len(data), False))


def line(text: Text, layout: Layout, place: int) -> str:
    """Return the number of the line in which a place of the text is, in words."""
    text.file.seek(0)
    lines = 1
    while place > 0 and (part := text.read(min(SCAN, place))):
        lines += part.count(layout.newline)
        place -= len(part)
    return f"line {lines}"
