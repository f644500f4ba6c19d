"""Which files there are, and of what format: told by their content first, by their names where that says nothing."""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from hpcreduce.stats import arrays, arrowfiles, csvfiles, hdf5
from hpcreduce.stats.reading import Found, ReadOptions, SourceError

STDIN = "-"


class Format(NamedTuple):
    """How files of one format are looked at and read."""

    inspect: Callable[[str, ReadOptions], Found]
    read: Callable[..., Iterator[tuple[int, dict[str, Any], int]]]
    """By what was found, a place in it, columns that it has and the options: yields rows, columns and bytes read."""


FORMATS = {
    "Parquet": Format(arrowfiles.inspect_parquet, arrowfiles.read_parquet),
    "CSV": Format(csvfiles.inspect, csvfiles.read),
    "Arrow": Format(arrowfiles.inspect_ipc, arrowfiles.read_ipc),
    "Arrow stream": Format(arrowfiles.inspect_stream, arrowfiles.read_stream),
    "NPY": Format(arrays.inspect_npy, arrays.read),
    "NPZ": Format(arrays.inspect_npz, arrays.read),
    "compressed NPZ": Format(arrays.inspect_npz, arrays.read_compressed),
    "HDF5": Format(hdf5.inspect, hdf5.read),
}

_ENDINGS = {".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV", ".tsv": "CSV", ".tab": "CSV"}
_ENDINGS |= {".arrow": "Arrow", ".feather": "Arrow", ".ipc": "Arrow", ".arrows": "Arrow stream", ".npy": "NPY"}
_ENDINGS |= {".npz": "NPZ", ".h5": "HDF5", ".hdf5": "HDF5", ".hdf": "HDF5", ".he5": "HDF5", ".nc": "HDF5"}

_BEGINNINGS = {b"PAR1": "Parquet", b"ARROW1": "Arrow", b"\xff\xff\xff\xff": "Arrow stream", b"\x93NUMPY": "NPY"}
_BEGINNINGS |= {b"PK\x03\x04": "NPZ", b"PK\x05\x06": "NPZ", b"\x89HDF\r\n\x1a\n": "HDF5", b"\x1f\x8b": "CSV"}

_REFUSED = {
    b"PARE": "is encrypted Parquet, which is not read",
    b"FEA1": "is Feather of version 1; write it again as version 2",
    b"BZh": "is compressed by bzip2; of compressed files only .gz is read",
    b"\xfd7zXZ": "is compressed by xz; of compressed files only .gz is read",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; of compressed files only .gz is read",
    b"\xff\xfe": "is UTF-16 text; write it as UTF-8",
    b"\xfe\xff": "is UTF-16 text; write it as UTF-8",
}


def expand(given: Sequence[str]) -> list[str]:
    """Return the files that are meant, in canonical order: stdin first, then by their paths; each once.

    A path that exists is taken as it is, else as a pattern. A folder stands for all files in and below it whose names
    end like those of data, but for hidden ones and those beginning with ``_``.
    """
    files = set()
    for path in given:
        if path == STDIN:
            files.add(path)
            continue
        matched = [path] if os.path.lexists(path) else glob.glob(path, recursive=True)
        if not matched:
            raise SourceError(f"{path}: {'no file matches' if glob.has_magic(path) else os.strerror(errno.ENOENT)}")
        for match in matched:
            if os.path.isdir(match):
                inside = _inside(match)
                if not inside and len(matched) == 1:
                    raise SourceError(f"{match}: no file in the folder ends in {', '.join(_ENDINGS)} or these and .gz")
                files.update(map(os.path.normpath, inside))
            else:
                files.add(os.path.normpath(match))
    if not files:
        raise SourceError(f"no data files in {', '.join(given)}" if given else "no files given")
    return sorted(files, key=lambda path: (path != STDIN, path))


def _inside(folder: str) -> Iterator[str] | list[str]:
    def fail(error: OSError) -> None:
        raise SourceError(f"{error.filename}: {error.strerror}")

    found = []
    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] not in "._"]
        found += [os.path.join(place, name) for name in names if name[0] not in "._" and _expected(name)]
    return found


def _expected(name: str) -> str | None:
    return _ENDINGS.get(os.path.splitext(name.lower().removesuffix(".gz"))[1])


def inspect(path: str, options: ReadOptions, name: str) -> Found:
    """Look at a file, which is called `name` to people, or raise any error that reading it does."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise SourceError("is no regular file; what comes through a pipe is read from stdin, with -")
    with open(path, "rb") as file:
        begin = file.read(8)
    for magic, refusal in _REFUSED.items():
        if begin.startswith(magic) and not begin.startswith(b"\xff\xff\xff\xff"):
            raise SourceError(refusal)
    by_content = next((kind for magic, kind in _BEGINNINGS.items() if begin.startswith(magic)), None)
    expected = _expected(name)
    kind = by_content or ("HDF5" if expected == "HDF5" else "CSV")
    if by_content is None and expected not in (None, "CSV", "HDF5"):
        raise SourceError(f"is not {expected}: " + (f"it begins with {begin!r}" if begin else "it is empty"))
    found = FORMATS[kind].inspect(path, options)
    notes = found.notes
    if expected and kind != expected and {kind, expected} != {"Arrow", "Arrow stream"}:
        notes += (f"is {kind} by its content, and read as that",)
    return found._replace(path=name, where=path, notes=notes)
