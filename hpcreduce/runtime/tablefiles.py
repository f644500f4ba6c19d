"""The files of measured tables: the user's own and those of the package. Only rank 0 of a communicator looks.

The user's own is ``HPCREDUCE_TABLE`` (empty: none), else ``hpcreduce/table.json`` in ``XDG_CONFIG_HOME`` or
``~/.config``, if there is one. Each process reads it once. What it has no entry for is looked up in the built-in ones.
"""

from __future__ import annotations

import functools
import os
import stat
import zlib
from pathlib import Path

from hpcreduce import lookup
from hpcreduce.errors import TableError
from hpcreduce.lookup import Table

BUILT_IN = "built-in table"

_OFFER, _ERROR = b"+", b"-"


def offer(library: str, ranks: int) -> bytes:
    """Return what rank 0 tells the others, for `accept`: the tables for so many ranks, or what is wrong with them.

    Nothing if there is nothing to tell.
    """
    try:
        tables = lookup.near(all_tables(), library, ranks)
    except TableError as error:
        return _ERROR + str(error).encode()
    if not any(table.entries for table in tables):
        return b""
    return _OFFER + zlib.compress(lookup.pack(tables), 1)


@functools.lru_cache(maxsize=16)
def accept(data: bytes) -> tuple[Table, ...]:
    """Return the tables that rank 0 has told.

    Raises
    ------
    TableError
        The user's table is wrong, or cannot be read.
    """
    if data[:1] == _ERROR:
        raise TableError(data[1:].decode())
    if not data:
        return ()
    return tuple(lookup.unpack(zlib.decompress(data[1:])))


def all_tables() -> list[Table]:
    """Return the user's own table, if there is one, and the built-in ones; raise TableError as `accept`."""
    found = own()
    if isinstance(found, str):
        raise TableError(found)
    return [*([found] if found else []), *built_in()]


@functools.cache
def own() -> Table | str | None:
    """Return the user's own table, or what is wrong with it."""
    path = os.environ.get("HPCREDUCE_TABLE")
    if path == "":
        return None
    try:
        asked = path is not None
        if path is None:
            folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
            path = os.path.join(folder, "hpcreduce", "table.json")
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise ValueError("not a regular file")
            with open(path, "rb") as file:
                data = file.read()
        except (FileNotFoundError, NotADirectoryError):
            if not asked:
                return None
            raise
        return lookup.table(path, lookup.parse(data, path)[1])
    except (OSError, ValueError) as error:
        if isinstance(error, TableError):
            return str(error)
        reason = getattr(error, "strerror", None) or error
        return f"cannot read the table {path!r}: {reason}; expected what python -m hpcreduce tune -o FILE writes"


@functools.cache
def built_in() -> list[Table]:
    """Return the tables that come with the package."""
    folder = Path(__file__).parent.parent / "tables"
    entries = [
        entry for path in sorted(folder.glob("*.json")) for entry in lookup.parse(path.read_bytes(), str(path))[1]
    ]
    return [lookup.table(BUILT_IN, entries)]
