"""Element-wise reduction of array files: which arrays there are, who reads which, and folding a share.

Rules that hold here:

* An array file is an NPY file, or an NPZ file with named members; the content decides, not the name. Pickled objects
  are refused, never loaded.
* Headers are read and compared before any data is.
* Arrays are read in blocks, so that a rank holds one result and a block, not the files.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from hpcreduce.runtime.operations import Array, DType, Operation

BLOCK = 1 << 20
"""Elements that are read at a time."""

READ_ERRORS = (MemoryError, OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, NotImplementedError)
"""What reading a damaged file may raise."""


class Member(NamedTuple):
    """One array in a file; `name` is empty for an NPY file."""

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.path}:{self.name}" if self.name else self.path


class Group(NamedTuple):
    """The arrays that are reduced to one, which is called `name` in an NPZ output; `shape` is that of the result."""

    name: str
    members: list[Member]
    shape: tuple[int, ...]
    dtype: DType
    total: int


class FileError(Exception):
    """A file that cannot be read, or does not fit the others; the text names it."""


def inspect(path: str) -> list[Member]:
    """Read the headers of the arrays in a file."""
    try:
        with open(path, "rb") as file:
            start = file.read(6)
            if start == b"\x93NUMPY":
                file.seek(0)
                return [Member(path, "", *_header(file))]
        if start[:4] not in (b"PK\x03\x04", b"PK\x05\x06"):
            raise ValueError("neither an NPY nor an NPZ file")
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            if not names:
                raise ValueError("holds no array")
            return [Member(path, name[:-4], *_member_header(archive, name)) for name in names]
    except READ_ERRORS as error:
        raise FileError(f"{path}: {reason(error)}") from None


def _member_header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], DType]:
    with archive.open(name) as file:
        return _header(file)


def _header(file: Any) -> tuple[tuple[int, ...], DType]:
    shape, _, dtype = header(file)
    return shape, dtype


def header(file: Any) -> tuple[tuple[int, ...], bool, DType]:
    """Return shape, whether it is in Fortran order, and dtype of the array that begins here in a file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("holds pickled Python objects, which are never loaded")
    return shape, fortran, dtype


def arrange(members: Sequence[Member], by_name: bool, axis: int | None) -> list[Group]:
    """Sort the arrays into groups and check that those of a group fit together.

    Parameters
    ----------
    members : sequence of Member
        In the order of the files.
    by_name : bool
        One group per member name, which every file must have; else one group of all.
    axis : int or None
        Reduce along this axis too; lengths along it may differ.
    """
    named: dict[str, list[Member]] = {}
    for member in members:
        named.setdefault(member.name if by_name else "", []).append(member)
    if by_name:
        _check_names(members, named)
    return [_group(name, found, axis) for name, found in named.items()]


def _check_names(members: Sequence[Member], named: dict[str, list[Member]]) -> None:
    have: dict[str, set[str]] = {}
    for member in members:
        if not member.name:
            raise FileError(f"{member.path}: an NPY file has no named members; write the result to an .npy file")
        have.setdefault(member.path, set()).add(member.name)
    for path, names in have.items():
        if lacking := sorted(set(named) - names):
            raise FileError(f"{path}: lacks the member {lacking[0]!r} that {named[lacking[0]][0].path} has")


def _group(name: str, members: list[Member], axis: int | None) -> Group:
    first = members[0]
    for member in members:
        if axis is not None and not -len(member.shape) <= axis < len(member.shape):
            raise FileError(f"{member}: has shape {member.shape}, so there is no axis {axis}")
        if member.dtype.newbyteorder("=") != first.dtype.newbyteorder("="):
            raise FileError(f"{member}: dtype {member.dtype} differs from dtype {first.dtype} of {first}")
        if _without(member.shape, axis) != _without(first.shape, axis):
            but = "" if axis is None else f" in more than axis {axis}"
            hint = "" if axis is not None else "; if the files are stacks of records, use --axis 0"
            raise FileError(f"{member}: shape {member.shape} differs{but} from shape {first.shape} of {first}{hint}")
    filled = [member for member in members if axis is None or member.shape[axis]]
    if not filled:
        raise FileError(f"{first}: all files are empty along axis {axis}, there is nothing to reduce")
    total = len(filled) if axis is None else sum(member.shape[axis] for member in filled)
    return Group(name, filled, _without(first.shape, axis), first.dtype, total)


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    if axis is None:
        return shape
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]


def fold(
    members: Sequence[Member],
    shape: tuple[int, ...],
    operation: Operation,
    work: DType,
    axis: int | None,
    step: Callable[[], None],
) -> Array:
    """Reduce arrays to one of type `work` and the given shape, block by block; `step` is called after each."""
    try:
        result = np.empty(shape, work)
    except (MemoryError, ValueError):
        raise FileError(f"{members[0]}: there is not enough memory for an array of shape {shape}") from None
    fresh = True
    for member in members:
        try:
            with _opened(member) as array:
                if axis is None:
                    _fold_whole(result, array, operation, fresh)
                else:
                    _fold_along(result, np.moveaxis(array, axis, 0), operation, fresh)
        except READ_ERRORS as error:
            raise FileError(f"{member}: {reason(error)}") from None
        fresh = False
        step()
    return result


def rows(member: Member, axis: int | None, piece: tuple[slice, ...]) -> Iterator[Array]:
    """Yield what `piece` takes of an array, or of the arrays along an axis, as rows of two-dimensional blocks."""
    try:
        with _opened(member) as array:
            stack = array[None] if axis is None else np.moveaxis(array, axis, 0)
            count = stack[(slice(0, 1), *piece)].size
            step = max(1, BLOCK // max(1, count))
            for start in range(0, len(stack), step):
                block = stack[(slice(start, start + step), *piece)]
                yield block.reshape(len(block), count)
    except READ_ERRORS as error:
        raise FileError(f"{member}: {reason(error)}") from None


def _fold_whole(result: Array, array: Array, operation: Operation, fresh: bool) -> None:
    if not array.ndim:
        result, array = result.reshape(1), array.reshape(1)
    for rows in _blocks(array):
        if fresh:
            result[rows] = array[rows]
        else:
            operation.combine(result[rows], array[rows].astype(result.dtype), out=result[rows])


def _fold_along(result: Array, array: Array, operation: Operation, fresh: bool) -> None:
    reduce: Any = operation.combine
    for rows in _blocks(array):
        part = reduce.reduce(array[rows].astype(result.dtype), axis=0, dtype=result.dtype)
        result[...] = part if fresh else reduce(result, part)
        fresh = False


def _blocks(array: Array) -> Iterator[slice]:
    rows = max(1, BLOCK // max(1, array[:1].size))
    for start in range(0, len(array), rows):
        yield slice(start, start + rows)


@contextlib.contextmanager
def _opened(member: Member) -> Iterator[Array]:
    if member.name:
        with np.load(member.path, allow_pickle=False) as archive:
            yield archive[member.name]
    elif 0 in member.shape:
        yield np.load(member.path, allow_pickle=False)
    else:
        yield np.load(member.path, allow_pickle=False, mmap_mode="r")


def write(file: BinaryIO, results: Iterator[tuple[str, Array]], by_name: bool) -> None:
    """Write the results as they come: one as NPY, or all as NPZ members."""
    if not by_name:
        for _, array in results:
            np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
        return
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in results:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def reason(error: BaseException) -> str:
    """Say in a line why a file cannot be read."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if "mmap length" in str(error) or "truncated" in str(error) or isinstance(error, (EOFError, zipfile.BadZipFile)):
        return f"the file is damaged or cut short ({error or type(error).__name__})"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
