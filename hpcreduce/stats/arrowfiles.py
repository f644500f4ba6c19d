"""Parquet files, and Arrow's own (IPC files, which Feather files are, and IPC streams).

Rules that hold here:

1. A Parquet file is cut at its row groups, an IPC file at its batches; neither is cut further, and a stream not at all.
   Files with fewer of these than there are ranks leave ranks idle.
2. Only the wanted columns are read. A row group is read in batches of about the block size, so a huge one needs no more
   memory than a small one; of an IPC file a batch is in memory as a whole.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from hpcreduce.stats import schema
from hpcreduce.stats.reading import Found, ReadOptions

WIDEST = 1 << 17
"""Rows that are read at a time at most: columns of that many numbers stay in a cache."""


def _types(arrow: Any, options: ReadOptions) -> tuple[dict[str, Any], tuple[str, ...]]:
    schema.distinct(arrow.names)
    types = {field.name: schema.plain(field.type) for field in arrow}
    unsupported = {field.name: str(field.type) for field in arrow if types[field.name] is None}
    notes = schema.supported(options.columns, unsupported)
    notes += tuple(
        f"column {field.name!r}: decimals are read as {schema.name(types[field.name])}"
        for field in arrow
        if str(field.type).startswith("decimal") and (options.columns is None or field.name in options.columns)
    )
    return {name: kind for name, kind in types.items() if kind is not None}, notes


def inspect_parquet(path: str, options: ReadOptions) -> Found:
    """Read the footer of a Parquet file."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        about = file.metadata
        types, notes = _types(file.schema_arrow, options)
        wanted = [name for name in types if options.columns is None or name in options.columns]
        paths = [about.schema.column(number).path for number in range(about.num_columns)]
        numbers = [number for number, path in enumerate(paths) if path in wanted]
        units = []
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            nbytes = sum(group.column(column).total_compressed_size for column in numbers)
            if group.num_rows:
                units.append((number, nbytes))
        rows = about.num_rows
    notes += () if rows else ("has no rows",)
    return Found(path, "Parquet", types, sum(nbytes for _, nbytes in units), rows, units=units, notes=notes)


@functools.lru_cache(maxsize=1)
def _footer(path: str, changed: int) -> Any:
    """Return the footer of a file, which is parsed once for all of its row groups that are read in turn."""
    from pyarrow import parquet

    return parquet.read_metadata(path)


def read_parquet(
    found: Found, place: int, columns: Sequence[str], options: ReadOptions
) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Read a row group: yield rows, columns and bytes read."""
    from pyarrow import parquet

    metadata = _footer(found.where, os.stat(found.where).st_mtime_ns)
    size = max(1, min(WIDEST, options.block // (8 * max(1, len(columns)))))
    with parquet.ParquetFile(found.where, metadata=metadata, buffer_size=1 << 18, pre_buffer=False) as file:
        for batch in file.iter_batches(size, [place], list(columns), use_threads=False):
            yield batch.num_rows, {name: batch.column(name) for name in columns}, 0


def inspect_ipc(path: str, options: ReadOptions) -> Found:
    """Read the schema and the number of batches of an IPC file."""
    import pyarrow as pa

    with pa.OSFile(path) as file:
        reader = pa.ipc.open_file(file)
        types, notes = _types(reader.schema, options)
        count, nbytes = reader.num_record_batches, file.size()
    units = [(number, nbytes * (number + 1) // count - nbytes * number // count) for number in range(count)]
    rows = None if count else 0
    return Found(path, "Arrow", types, nbytes if count else 0, rows, units=units, notes=notes or _no_rows(rows))


def _no_rows(rows: int | None) -> tuple[str, ...]:
    return ("has no rows",) if rows == 0 else ()


def read_ipc(
    found: Found, place: int, columns: Sequence[str], options: ReadOptions
) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Read a batch of an IPC file: yield rows, columns and bytes read."""
    import pyarrow as pa

    with pa.OSFile(found.where) as file:
        names = pa.ipc.open_file(file).schema.names
        file.seek(0)
        included = [names.index(name) for name in columns]
        reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False, included_fields=included))
        yield from _parts(reader.get_batch(place), columns)


def inspect_stream(path: str, options: ReadOptions) -> Found:
    """Read the schema of an IPC stream."""
    import pyarrow as pa

    with pa.OSFile(path) as file:
        types, notes = _types(pa.ipc.open_stream(file).schema, options)
        nbytes = file.size()
    return Found(path, "Arrow stream", types, nbytes, units=((None, nbytes),), notes=notes)


def read_stream(
    found: Found, place: None, columns: Sequence[str], options: ReadOptions
) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Read an IPC stream: yield rows, columns and bytes read."""
    import pyarrow as pa

    with pa.OSFile(found.where) as file:
        told = 0
        for batch in pa.ipc.open_stream(file, options=pa.ipc.IpcReadOptions(use_threads=False)):
            nbytes, told = file.tell() - told, file.tell()
            for rows, arrays, _ in _parts(batch, columns):
                yield rows, arrays, nbytes
                nbytes = 0


def _parts(batch: Any, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any], int]]:
    for start in range(0, batch.num_rows, WIDEST):
        part = batch.slice(start, WIDEST)
        yield part.num_rows, {name: part.column(name) for name in columns}, 0
