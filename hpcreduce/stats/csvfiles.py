"""CSV files: a header, then records; cut into ranges of bytes on record boundaries, read in blocks of whole records.

Rules that hold here:

1. The first line that is not empty names the columns. Empty lines do not count. Each record has as many fields as the
   header; a field may be missing only by being empty.
2. The types of a file's columns are found from all of its records, never from the first ones: int64, float64, bool
   (true, false), date, time, timestamp, else text. What decides is the set of values, not how they are cut.
3. A rank holds 1 MiB of text and its columns at a time, and 4 MiB of text while it looks for quotes: some 30 MB beside
   Python and the libraries, whatever the size of the file; more only where one record is longer than that.
4. Text is UTF-8, with or without a byte order mark. A gzip file is read as a stream, by one rank.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcreduce.stats import csvtypes, quoting, schema
from hpcreduce.stats.csvtext import LONGEST, Layout, Text, blocks, line
from hpcreduce.stats.quoting import CR, LF, QUOTE
from hpcreduce.stats.reading import NULLS, Found, ReadOptions, SourceError
from hpcreduce.units import plural

BOM = b"\xef\xbb\xbf"

MOST = 1 << 20
"""Bytes of text that are read at a time at most; more are no faster."""

TRUE, FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]


def inspect(path: str, options: ReadOptions) -> Found:
    """Read the header of a file."""
    import pyarrow as pa

    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
        nbytes = file.seek(0, os.SEEK_END)
    delimiter = (options.delimiter or ("\t" if re.search(r"\.(tsv|tab)(\.gz)?$", path, re.I) else ",")).encode()
    with Text(path, zipped) as text:
        head, begin, end, newline = _head(text, delimiter)
        last = not text.read(1)
    if b"\0" in head[:4096]:
        raise SourceError("holds bytes that are no text, and is of no known format")
    if begin == len(head):
        return Found(path, "CSV", {}, 0, rows=0, notes=("is empty",))
    names = _names(head[begin:end], delimiter.decode())
    layout = Layout(names, delimiter, newline, end, zipped)
    notes = _doubts(names)
    types = dict.fromkeys(names, pa.null())
    if last and not head[end:].strip(CR + LF):
        return Found(path, "CSV", types, 0, rows=0, layout=layout, notes=("has no rows, only a header", *notes))
    if zipped:
        if not path.lower().endswith(".gz"):
            notes = ("is compressed by gzip, and read as what is in it", *notes)
        return Found(path, "CSV", types, nbytes, units=((None, nbytes),), layout=layout, notes=notes)
    return Found(path, "CSV", types, nbytes - end, extent=(end, nbytes), layout=layout, notes=notes)


def _doubts(names: Sequence[str]) -> tuple[str, ...]:
    """Return what a header looks like that is none, or one with another delimiter."""
    if len(names) == 1 and (marks := [mark for mark in ";\t|" if mark in names[0]]):
        mark = "tab" if marks[0] == "\t" else marks[0]
        return (f"has one column {names[0]!r}: if {mark} stands between its fields, use --delimiter '{mark}'",)
    if all(re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", name) for name in names):
        return ("has only numbers in its first line, which is taken for the names of the columns",)
    return ()


def _head(text: Text, delimiter: bytes) -> tuple[bytes, int, int, bytes]:
    """Return the beginning of a text, where the header begins and ends in it, and the newline that ends records."""
    head = b""
    while True:
        part = text.read(max(1 << 16, len(head)))
        head += part
        rest = head.removeprefix(BOM).lstrip(CR + LF)
        begin = len(head) - len(rest)
        newline = LF if LF in rest else CR
        end = quoting.first_end(rest, delimiter, newline, False, True)
        if end and (newline == LF or not part or len(head) >= 1 << 20):  # a CR may be the first half of a CR LF
            return head, begin, begin + end, newline
        if not part:
            return head, begin, len(head), LF
        if len(head) > LONGEST:
            raise SourceError(f"the header is longer than {LONGEST >> 20} MiB: is a quote missing?")


def _names(line: bytes, delimiter: str) -> tuple[str, ...]:
    try:
        fields = next(csv.reader(io.StringIO(line.decode(), newline=""), delimiter=delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"the header is no UTF-8 text with {delimiter!r} between fields ({error})") from None
    names = tuple(field or str(number) for number, field in enumerate(fields))
    schema.distinct(names)
    return names


def parse(
    path: str,
    layout: Layout,
    begin: int,
    data: bytes,
    columns: Sequence[str],
    types: dict[str, Any],
    options: ReadOptions,
) -> Any:
    """Return a table of whole records; the types of those columns that `types` lacks are inferred."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    nulls = NULLS if options.null_values is None else options.null_values
    try:
        return arrow.read_csv(
            pa.BufferReader(data),
            arrow.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(layout.names)),
            arrow.ParseOptions(delimiter=layout.delimiter.decode(), newlines_in_values=QUOTE in data),
            arrow.ConvertOptions(
                column_types=types,
                include_columns=list(columns),
                null_values=["", *nulls],
                true_values=TRUE,
                false_values=FALSE,
                strings_can_be_null=True,
                decimal_point=options.decimal,
            ),
        )
    except pa.ArrowInvalid as error:
        with Text(path, layout.zipped) as text:
            raise SourceError(_trouble(text, layout, begin, data, str(error))) from None


def _trouble(text: Text, layout: Layout, begin: int, data: bytes, reason: str) -> str:
    """Say what is wrong with some records that pyarrow refused."""
    first = int(line(text, layout, begin).split()[1])
    lines = io.StringIO(data.decode(errors="replace"), newline="")
    reader = csv.reader(lines, delimiter=layout.delimiter.decode())
    done = 0
    try:
        for fields in reader:
            if fields and len(fields) != len(layout.names):
                hint = " (is there a delimiter at the end?)"
                if fields[-1] or len(fields) < len(layout.names):
                    hint = "".join(f"; the file {doubt}" for doubt in _doubts(layout.names))
                return f"line {first + done}: expected {plural(len(layout.names), 'field')}, found {len(fields)}{hint}"
            done = reader.line_num
    except csv.Error:
        pass
    return f"in or after line {first}: {reason.splitlines()[0]}"


def infer(
    found: Found, place: Any, columns: Sequence[str], options: ReadOptions, progress: Callable[[int], None]
) -> dict[str, str]:
    """Read a shard to see what its columns are."""
    import pyarrow as pa

    seen = dict.fromkeys(columns, "null")
    layout: Layout = found.layout
    for begin, data, nbytes in blocks(found.where, layout, place, min(options.block, MOST)):
        table = parse(found.where, layout, begin, data, columns, {}, options)
        for name in columns:

            def text(name: str = name, begin: int = begin, data: bytes = data) -> Any:
                return parse(found.where, layout, begin, data, [name], {name: pa.string()}, options).column(name)

            if seen[name] != "string" or table.schema.field(name).type != pa.string():
                seen[name] = csvtypes.join(seen[name], csvtypes.kind(table.column(name), options, text))
        progress(nbytes)
    return seen


def read(
    found: Found, place: Any, columns: Sequence[str], options: ReadOptions
) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Read a shard: yield rows, columns and bytes read."""
    import pyarrow as pa

    layout: Layout = found.layout
    types = {name: pa.string() if name in layout.grouped else found.types[name] for name in columns}
    for begin, data, nbytes in blocks(found.where, layout, place, min(options.block, MOST)):
        table = parse(found.where, layout, begin, data, columns or layout.names[:1], types, options)
        arrays = {name: _whole(table.column(name)) for name in columns}
        for name in layout.grouped.intersection(columns):
            arrays[name] = csvtypes.ungroup(
                arrays[name], options.thousands or ",", options.decimal, str(found.types[name])
            )
        yield table.num_rows, arrays, nbytes


def _whole(values: Any) -> Any:
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
