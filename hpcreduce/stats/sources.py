"""Data files as all ranks see them: which there are, what columns they have, who reads what.

Rules that hold here:

1. Rank 0 says which files there are; each rank looks at its share of them; all know what was found, and cut and share
   out alike.
2. An error of one rank is raised by all of them, and of several errors that of the first file.
3. Files are read in blocks, columns of a batch at a time, by one thread per rank.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from hpcreduce import arrayfiles
from hpcreduce.objects import everyone
from hpcreduce.stats import csvfiles, csvtext, csvtypes, formats, schema, shards
from hpcreduce.stats.batches import Batch, Field
from hpcreduce.stats.formats import FORMATS, STDIN
from hpcreduce.stats.meeting import together
from hpcreduce.stats.reading import Found, ReadOptions, Shard, SourceError

__all__ = ["ReadOptions", "Shard", "Source", "SourceError", "find"]

MOST_NAMES = 3
"""Columns that a note names."""

SILENCE = 30.0
"""Seconds that stdin may be silent where its end may never come."""


class Source(NamedTuple):
    """Files that have been looked at, cut into shards, and shared out; all but `mine` is the same on every rank."""

    comm: Any
    files: list[str]
    """In canonical order: sorted, each once. ``-`` is stdin."""
    schema: list[Field]
    """The wanted columns."""
    notes: list[str]
    """What the user should know, to be printed once: files without rows, columns that are left out, ..."""
    shards: list[Shard]
    """Numbered over all files, those of one file in the order of its rows."""
    mine: list[int]
    """The numbers of the shards that this rank reads."""
    options: ReadOptions
    found: list[Found]
    types: dict[str, Any]
    """The Arrow types of the wanted columns."""
    spool: Any
    """Rank 0's copy of stdin, which is gone with this."""

    @property
    def nbytes(self) -> int:
        """Bytes that all ranks together read in one pass over all columns."""
        return sum(shard.nbytes for shard in self.shards)

    def batches(
        self, columns: Sequence[str] | None = None, progress: Callable[[int], None] | None = None
    ) -> Iterator[Batch]:
        """Read this rank's shards; not collective. Each call reads anew.

        Numbers come in the type that their file has them in, which may be narrower than that of the field: of an int64
        and a float64 file, neither is rounded. What stands where a value is missing is not defined.

        Parameters
        ----------
        columns : sequence of str, optional
            Those of the schema that are wanted; by default all. Every batch has each of them.
        progress : callable, optional
            Is called with the bytes that this rank has read since the last call, `nbytes` of all ranks in the end.

        Raises
        ------
        SourceError
            On this rank only; `order` is the number of the shard.
        """
        names = list(self.types) if columns is None else list(columns)
        for number in self.mine:
            shard, row, left = self.shards[number], 0, self.shards[number].nbytes
            found = self.found[shard.file]
            here = [name for name in names if name in found.types]
            with _told(found.path, number):
                for rows, arrays, nbytes in FORMATS[found.format].read(found, shard.place, here, self.options):
                    if rows:
                        yield Batch(number, row, rows, {name: self._column(name, arrays, rows) for name in names})
                    row += rows
                    nbytes = min(nbytes, left)
                    left -= nbytes
                    if progress and nbytes:
                        progress(nbytes)
            if progress and left:
                progress(left)

    def _column(self, name: str, arrays: dict[str, Any], rows: int) -> Any:
        kind = self.types[name]
        return schema.column(arrays[name], kind) if name in arrays else schema.missing(rows, kind)


@contextlib.contextmanager
def _told(path: str, order: int) -> Iterator[None]:
    """Turn what reading a file may raise into SourceError."""
    import pyarrow as pa

    failures = (*arrayfiles.READ_ERRORS, pa.ArrowException, zlib.error, struct.error, RuntimeError)
    try:
        yield
    except SourceError as error:
        raise SourceError(f"{path}: {error}", order) from None
    except failures as error:
        raise SourceError(f"{path}: {arrayfiles.reason(error)}", order) from None


def find(
    comm: Any,
    files: Sequence[str],
    options: ReadOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Source:
    """Look for data files and see what is in them; collective.

    pyarrow is told, for the whole process, to use one thread.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    files : sequence of str
        Paths, patterns (``*``, ``?``, ``[...]``, ``**``), folders (all data files in and below them) and ``-``, stdin
        of rank 0. Those of rank 0 count. A file that is named twice is read once.
    options : ReadOptions, optional
    progress : callable, optional
        Is called with the bytes done and the bytes to do on this rank, while it reads CSV files for the types of their
        columns.

    Raises
    ------
    SourceError
        On every rank, with the same text.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise SourceError("reading tables needs the package pyarrow: pip install 'hpcreduce[stats]'") from None
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    options = options or ReadOptions()
    paths, spool = _paths(comm, files)
    found = _inspect(comm, paths, options, spool)
    names = schema.choose(found, options)
    if not names:
        why = "".join(f" ({note})" for note in found[0].notes if note.startswith("left out"))
        raise SourceError(f"{paths[0]}{' and the others' if paths[1:] else ''}: there are no columns of data{why}")
    pieces = shards.cut(found, comm.size, options.smallest)
    kept = [number for number, path in enumerate(paths) if path == STDIN]
    owners = shards.share(pieces, comm.size, kept)
    mine = [number for number, owner in enumerate(owners) if owner == comm.rank]
    pieces = _follow(comm, found, pieces, mine)
    found = _infer(comm, found, pieces, mine, names, options, progress)
    names = [name for name in names if any(name in here.types for here in found)]
    fields, types = schema.agree(found, names)
    notes = _notes(found, names)
    return Source(comm, paths, fields, notes, pieces, mine, options, found, dict(zip(names, types, strict=True)), spool)


def _paths(comm: Any, files: Sequence[str]) -> tuple[list[str], Any]:
    paths: list[str] = []
    spool = None
    with together(comm):
        if comm.rank == 0:
            paths = formats.expand(files)
            if STDIN in paths:
                spool = tempfile.TemporaryFile()  # noqa: SIM115
                with _told("stdin", 0):
                    _copy(sys.stdin.buffer, spool)
    return everyone(comm, paths)[0], spool


def _copy(stdin: Any, spool: Any) -> None:
    """Copy stdin to its end, for which nobody can wait under mpirun of Open MPI 5.0: it does not pass it on."""
    patience = SILENCE if "OMPI_COMM_WORLD_SIZE" in os.environ else None
    while patience is None or select.select([stdin], [], [], patience)[0]:
        data = stdin.read1(1 << 20)
        if not data:
            spool.flush()
            return
        spool.write(data)
    raise SourceError(
        f"no data and no end for {patience:g} s. mpirun of Open MPI 5.0 does not pass on that its stdin has ended: "
        "name a file, or start without mpirun"
    )


def _inspect(comm: Any, paths: Sequence[str], options: ReadOptions, spool: Any) -> list[Found]:
    own = []
    with together(comm):
        for number in range(comm.rank, len(paths), comm.size):  # stdin comes first, so rank 0 takes it
            path = name = paths[number]
            if name == STDIN:
                path, name = f"/proc/self/fd/{spool.fileno()}", "stdin"
            with _told(name, number):
                own.append((number, formats.inspect(path, options, name)))
    entries = [entry for theirs in everyone(comm, own) for entry in theirs]
    return [found for _, found in sorted(entries, key=lambda entry: entry[0])]


def _follow(comm: Any, found: Sequence[Found], pieces: list[Shard], mine: Sequence[int]) -> list[Shard]:
    """Tell the ranges of CSV files whether they begin inside of quotes."""
    ranges: dict[int, list[int]] = {}
    for number, shard in enumerate(pieces):
        if found[shard.file].format == "CSV" and shard.place is not None:
            ranges.setdefault(shard.file, []).append(number)
    if not ranges:
        return pieces
    own = {}
    with together(comm):
        for number in mine:
            shard = pieces[number]
            if len(ranges.get(shard.file, ())) > 1:
                here = found[shard.file]
                with _told(here.path, number):
                    own[number] = csvtext.effect(here.where, here.layout, *shard.place)
    effects = {number: effect for theirs in everyone(comm, own) for number, effect in theirs.items()}
    told = list(pieces)
    for numbers in ranges.values():
        follow = csvtext.follow([pieces[number] for number in numbers], [effects.get(number) for number in numbers])
        told[numbers[0] : numbers[-1] + 1] = follow
    return told


def _infer(
    comm: Any,
    found: list[Found],
    pieces: Sequence[Shard],
    mine: Sequence[int],
    names: Sequence[str],
    options: ReadOptions,
    progress: Callable[[int, int], None] | None,
) -> list[Found]:
    """Find the types of the columns of CSV files."""
    if not any(here.format == "CSV" for here in found):
        return found
    to_do = [number for number in mine if found[pieces[number].file].format == "CSV"]
    total, done, end = sum(pieces[number].nbytes for number in to_do), 0, 0

    def step(nbytes: int) -> None:
        nonlocal done
        done = min(done + nbytes, end)
        if progress:
            progress(done, total)

    own: dict[int, dict[str, str]] = {}
    with together(comm):
        for number in to_do:
            shard = pieces[number]
            here = found[shard.file]
            end += shard.nbytes
            wanted = [name for name in names if name in here.types]
            with _told(here.path, number):
                seen = csvfiles.infer(here, shard.place, wanted, options, step)
            step(end - done)
            own[shard.file] = csvtypes.join_all(own.get(shard.file, {}), seen)
    seen_by_all: dict[int, dict[str, str]] = {}
    for theirs in everyone(comm, own):
        for file, seen in theirs.items():
            seen_by_all[file] = csvtypes.join_all(seen_by_all.get(file, {}), seen)
    result = list(found)
    for file, seen in sorted(seen_by_all.items()):
        with _told(found[file].path, file):
            result[file] = csvtypes.typed(found[file], seen, options)
    return result


def _notes(found: Sequence[Found], names: Sequence[str]) -> list[str]:
    """Return what is worth a note, each once."""
    files: dict[str, list[str]] = {}
    for here in found:
        lacking = [name for name in names if name not in here.types] if here.rows != 0 else []
        more = f" and {len(lacking) - MOST_NAMES} more" if len(lacking) > MOST_NAMES else ""
        some = ", ".join(map(repr, lacking[:MOST_NAMES]))
        absent = [f"has no column {some}{more}, whose values count as missing there"] if lacking else []
        for note in (*here.notes, *absent):
            files.setdefault(note, []).append(here.path)
    return [f"{paths[0]}{f' and {len(paths) - 1} more' if paths[1:] else ''}: {note}" for note, paths in files.items()]
