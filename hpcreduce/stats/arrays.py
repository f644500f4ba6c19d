"""Arrays in NPY, NPZ and HDF5 files as tables.

Rules that hold here:

1. Rows are the first axis. An array without field names of one or two dimensions has the columns 0, 1, 2, ...; a
   structured one of one dimension has its fields.
2. The members of an NPZ file are columns of one table, called by the members' names (a lone ``arr_0``, which has none,
   as in an NPY file); those of two dimensions are called NAME.0, NAME.1, ... So are the datasets of an HDF5 group.
3. All is read in ranges of rows with ordinary reads, in C order and in Fortran order, never by mapping memory. Members
   of compressed NPZ files are first unpacked to a temporary file without a name, by the one rank that reads them.
4. Pickled objects are refused, never loaded.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce import arrayfiles
from hpcreduce.stats import schema
from hpcreduce.stats.reading import Found, ReadOptions, SourceError


class Table(NamedTuple):
    """An array of rows somewhere in a file."""

    member: str
    """Its name in the file; empty: there is only this one."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    columns: dict[str, int | str | None]
    """Name -> number, field, or `None` for the whole of a one-dimensional array."""
    fortran: bool = False
    offset: int = 0
    """Of its data in the file."""


def columns(prefix: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, int | str | None]:
    """Return the columns of an array; `prefix` is its name, empty for arrays that have none."""
    if len(shape) > 2 or (dtype.names and len(shape) > 1):
        raise SourceError(f"{prefix or 'the array'} has the shape {shape}; rows of columns have one or two dimensions")
    if dtype.names:
        return {f"{prefix}.{name}" if prefix else name: name for name in dtype.names}
    if len(shape) < 2:
        return {prefix or "0": None}
    return {f"{prefix}.{number}" if prefix else str(number): number for number in range(shape[1])}


def arrange(path: str, name: str, tables: Sequence[Table], options: ReadOptions, cuttable: bool, grain: int) -> Found:
    """Return what is found in a file with these arrays."""
    types: dict[str, Any] = {}
    unsupported, kept = {}, []
    schema.distinct([column for table in tables for column in table.columns])
    for table in tables:
        for column, part in table.columns.items():
            if options.columns is not None and column not in options.columns:
                types[column] = None  # it is known, whatever it is
                continue
            dtype = table.dtype[part] if isinstance(part, str) else table.dtype
            types[column] = schema.from_numpy(dtype)
            if types[column] is None:
                unsupported[column] = str(dtype)
        if any(types[column] is not None for column in table.columns):
            kept.append(table)
    notes = schema.supported(options.columns, unsupported)
    lengths = {(table.shape or (1,))[0]: table for table in kept or tables[:1]}
    if len(lengths) > 1:
        (rows, one), (others, other) = list(lengths.items())[:2]
        raise SourceError(f"{one.member} has {rows} rows, but {other.member} {others}; choose columns of one length")
    rows = next(iter(lengths), 0)
    nbytes = sum(int(np.prod(table.shape, dtype=object)) * table.dtype.itemsize for table in kept)
    notes += () if rows else ("has no rows",)
    types = {column: kind for column, kind in types.items() if column not in unsupported}
    found = Found(path, name, types, nbytes, rows, layout=tuple(kept), notes=notes)
    return found._replace(extent=(0, rows), grain=grain) if cuttable else found._replace(units=(((0, rows), nbytes),))


def inspect_npy(path: str, options: ReadOptions) -> Found:
    """Read the header of an NPY file."""
    with open(path, "rb") as file:
        shape, fortran, dtype = arrayfiles.header(file)
        table = Table("", shape, dtype, columns("", shape, dtype), fortran, file.tell())
        _check_end(table, file.seek(0, os.SEEK_END))
    return arrange(path, "NPY", [table], options, True, 1)


def _check_end(table: Table, end: int) -> None:
    needed = table.offset + int(np.prod(table.shape, dtype=object)) * table.dtype.itemsize
    if end < needed:
        raise SourceError(f"the file is damaged or cut short: expected {needed} bytes, found {end}")


def inspect_npz(path: str, options: ReadOptions) -> Found:
    """Read the headers of the members of an NPZ file."""
    tables, stored = [], True
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        if not members:
            raise SourceError("a zip archive without NPY members, and of no other known format")
        for info in members:
            name = info.filename[:-4]
            with archive.open(info) as member:
                shape, fortran, dtype = arrayfiles.header(member)
                offset = member.tell()
            prefix = "" if len(members) == 1 and name == "arr_0" else name
            table = Table(name, shape, dtype, columns(prefix, shape, dtype), fortran, offset)
            if info.compress_type == zipfile.ZIP_STORED:
                file.seek(info.header_offset + 26)
                table = table._replace(offset=offset + file.tell() + 4 + sum(struct.unpack("<HH", file.read(4))))
                _check_end(table, end)
            else:
                stored = False
            tables.append(table)
    if not stored:
        return arrange(path, "NPZ", tables, options, False, 1)._replace(format="compressed NPZ")
    return arrange(path, "NPZ", tables, options, True, 1)


def read(
    found: Found, place: tuple[int, int], names: Sequence[str], options: ReadOptions
) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Read a range of rows of arrays that lie open in a file: yield rows, columns and bytes read."""
    with open(found.where, "rb", buffering=0) as file:
        yield from _ranges([(table, file) for table in found.layout], place, names, options)


def read_compressed(
    found: Found, place: tuple[int, int], names: Sequence[str], options: ReadOptions
) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Read all rows of the members of an NPZ file: yield rows, columns and bytes read."""
    with contextlib.ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(found.where))
        files = []
        for table in found.layout:
            if not set(names).intersection(table.columns):
                continue
            spool = stack.enter_context(tempfile.TemporaryFile())
            with archive.open(f"{table.member}.npy") as member:
                shutil.copyfileobj(member, spool, 1 << 20)
            spool.flush()
            with archive.open(f"{table.member}.npy") as member:
                arrayfiles.header(member)
                table = table._replace(offset=member.tell())
            files.append((table, spool))
        yield from _ranges(files, place, names, options)


def _ranges(
    tables: Sequence[tuple[Table, Any]], place: tuple[int, int], names: Sequence[str], options: ReadOptions
) -> Iterator[tuple[int, dict[str, Any], int]]:
    used = [(table, file) for table, file in tables if set(names).intersection(table.columns)]
    width = sum(_row_bytes(table) for table, _ in used)
    step = max(1, options.block // max(1, width))
    for start in range(*place, step):
        stop = min(start + step, place[1])
        arrays: dict[str, Any] = {}
        for table, file in used:
            arrays |= _rows(table, file, start, stop, names)
        yield stop - start, arrays, width * (stop - start)


def _row_bytes(table: Table) -> int:
    return table.dtype.itemsize * int(np.prod(table.shape[1:], dtype=object))


def _rows(table: Table, file: Any, start: int, stop: int, names: Sequence[str]) -> dict[str, Any]:
    wanted = {name: part for name, part in table.columns.items() if name in names}
    if table.fortran and len(table.shape) == 2:
        size, rows = table.dtype.itemsize, table.shape[0]
        return {
            name: _elements(file, table.offset + (int(part or 0) * rows + start) * size, stop - start, table.dtype)
            for name, part in wanted.items()
        }
    width = _row_bytes(table)
    count = (stop - start) * (table.shape[1] if len(table.shape) == 2 else 1)
    block = _elements(file, table.offset + start * width, count, table.dtype)
    if len(table.shape) == 2:
        block = block.reshape(stop - start, table.shape[1])
    return {name: pick(block, part) for name, part in wanted.items()}


def pick(block: Any, part: int | str | None) -> Any:
    """Return one column of some rows."""
    return block if part is None else block[part] if isinstance(part, str) else block[:, part]


def _elements(file: Any, offset: int, count: int, dtype: np.dtype[Any]) -> Any:
    array = np.empty(count, dtype)
    view: Any = memoryview(array.view(np.uint8).data) if dtype.itemsize and count else memoryview(b"")
    file.seek(offset)
    while view:
        got = file.readinto(view)
        if not got:
            raise SourceError(f"the file is damaged or cut short: it ends amid the array, at byte {file.tell()}")
        view = view[got:]
    return array
