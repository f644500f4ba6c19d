"""``reduce``: the element-wise sum, mean, maximum, ... of array files, spread over the ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import click
import numpy as np

from hpcreduce import arrayfiles
from hpcreduce.arrayfiles import FileError, Group, Member
from hpcreduce.collectives import allreduce
from hpcreduce.commands.console import CommandError, Console
from hpcreduce.runtime.operations import OPERATIONS, Operation, divide
from hpcreduce.stats import elements
from hpcreduce.units import plural


@click.command("reduce")
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option("--op", type=click.Choice(["sum", "mean", "max", "min", "prod"]), required=True)
@click.option("-o", "--output", required=True, metavar="OUT.npy|OUT.npz", help="Written whole or not at all.")
@click.option("--axis", type=int, help="Reduce along this axis too; the files' lengths along it may differ.")
@click.option("--member", help="Take only this member of NPZ files.")
@click.option("--exact", is_flag=True, help="Sum exactly and round once; sum and mean only.")
def reduce_command(
    files: tuple[str, ...], op: str, output: str, axis: int | None, member: str | None, exact: bool
) -> int:
    """Reduce array files element by element.

    Each rank reads its share of the files (NPY, or NPZ with named members).

    OUT.npy: all arrays of all files become one. OUT.npz: the files' members of the same name become one each (the
    average of checkpoints). Arrays that are reduced together have the same dtype and the same shape, but for --axis.

    With --exact the result is the float nearest to the exact sum or mean of each element: the same bits for any number
    of ranks and any order of files. Sums of integers are int64 or uint64, and an error where that does not hold them.
    Each rank takes up to 300 MB, and the result on the first.
    """
    if exact and op not in ("sum", "mean"):
        raise click.UsageError(f"--exact goes with --op sum or mean, found {op}")
    if not output.endswith((".npy", ".npz")):
        raise click.UsageError(f"the output {output} must end in .npy or .npz")
    console = Console()
    by_name = output.endswith(".npz")
    with console.output(output) as file:
        groups = _groups(console, files, member, by_name, axis)
        with console.progress("reducing") as progress:
            reduce = _reduce_exactly if exact else _reduce
            results = reduce(console, groups, OPERATIONS[op], axis, progress)
            _write(console, output, file, results, by_name)
    arrays = sum(len(group.members) for group in groups)
    dtype = (_exact_type if exact else _result_type)(OPERATIONS[op], groups[0])
    what = f"{len(groups)} members" if by_name else f"shape {groups[0].shape}, dtype {dtype}"
    records = "" if axis is None else f" ({groups[0].total} records)"
    how = "exact " if exact else ""
    console.out(f"{output}: {how}{op} of {plural(arrays, 'array')}{records} in {plural(len(files), 'file')}, {what}")
    return 0


def _groups(
    console: Console, files: tuple[str, ...], member: str | None, by_name: bool, axis: int | None
) -> list[Group]:
    """Read the headers, each rank its share, and check that the arrays fit together."""
    mine: list[tuple[int, list[Member]]] = []
    errors = []
    for index in range(console.comm.rank, len(files), console.comm.size):
        try:
            mine.append((index, arrayfiles.inspect(files[index])))
        except FileError as error:
            errors.append(str(error))
    console.agree(errors)
    everyone = [entry for theirs in console.comm.allgather(mine) for entry in theirs]
    inspected = sorted(everyone, key=lambda entry: entry[0])
    found = [array for _, arrays in inspected for array in arrays]
    if member is not None:
        for index, arrays in inspected:
            if member not in (array.name for array in arrays):
                names = ", ".join(array.name for array in arrays if array.name) or "no named members"
                raise CommandError(f"{files[index]}: has no member {member!r}; it has {names}")
        found = [array for array in found if array.name == member]
    try:
        return arrayfiles.arrange(found, by_name, axis)
    except FileError as error:
        raise CommandError(str(error)) from None


def _types(operation: Operation, group: Group) -> tuple[Any, Any]:
    try:
        return operation.types(group.dtype)
    except TypeError as error:
        raise CommandError(f"{group.members[0]}: {error}") from None


def _result_type(operation: Operation, group: Group) -> Any:
    return _types(operation, group)[1]


def _exact_type(operation: Operation, group: Group) -> Any:
    try:
        return elements.result_type(group.dtype.newbyteorder("="), operation.divides)
    except TypeError as error:
        raise CommandError(f"{group.members[0]}: {error}") from None


def _reduce_exactly(
    console: Console, groups: list[Group], operation: Operation, axis: int | None, progress: Any
) -> Iterator[tuple[str, Any]]:
    """Yield name and result of each group, piece by piece summed exactly; the result is there on rank 0."""
    comm = console.comm
    dtypes = [_exact_type(operation, group) for group in groups]
    work = [(group, list(elements.pieces(group.shape, group.dtype))) for group in groups]
    total, done = sum(len(group.members[comm.rank :: comm.size]) * len(pieces) for group, pieces in work), 0
    for (group, pieces), dtype in zip(work, dtypes, strict=True):
        found = []
        for piece in pieces:
            sums = elements.Accumulators(group.dtype.newbyteorder("="), _size(group.shape, piece))
            errors = []
            try:
                for member in group.members[comm.rank :: comm.size]:
                    for rows in arrayfiles.rows(member, axis, piece):
                        sums.add(rows)
                    done += 1
                    progress(done, total)
            except FileError as error:
                errors.append(str(error))
            console.agree(errors)
            sums.meet(comm)
            try:
                values = sums.result(group.total if operation.divides else None)
            except elements.RangeError as error:  # on every rank
                raise CommandError(f"{group.members[0]}: {error}") from None
            if console.first:
                found.append(values)
        yield group.name, np.concatenate(found).reshape(group.shape).astype(dtype, copy=False) if found else None


def _size(shape: tuple[int, ...], piece: tuple[slice, ...]) -> int:
    return math.prod(len(range(*each.indices(length))) for length, each in zip(shape, piece, strict=True))


def _reduce(
    console: Console, groups: list[Group], operation: Operation, axis: int | None, progress: Any
) -> Iterator[tuple[str, Any]]:
    """Yield name and result of each group; the result is there on the ranks that had a share, rank 0 among them."""
    comm, done = console.comm, 0
    communicators = {comm.size: comm}
    shares = sum(len(group.members[comm.rank :: comm.size]) for group in groups)

    def step() -> None:
        nonlocal done
        done += 1
        progress(done, shares)

    for group in groups:
        work, result = _types(operation, group)
        share = group.members[comm.rank :: comm.size]
        array, errors = None, []
        try:
            array = arrayfiles.fold(share, group.shape, operation, work, axis, step) if share else None
        except FileError as error:
            errors.append(str(error))
        console.agree(errors)
        busy = min(comm.size, len(group.members))
        if busy not in communicators:
            communicators[busy] = comm.Split(0 if share else console.mpi.UNDEFINED, comm.rank)
        if array is not None:
            allreduce(communicators[busy], array, array, "sum" if operation.divides else operation.name)
            if operation.divides:
                divide(array, group.total)
            array = array.astype(result, copy=False)
        yield group.name, array


def _write(console: Console, output: str, file: Any, results: Iterator[tuple[str, Any]], by_name: bool) -> None:
    """Let rank 0 write what all ranks reduce together."""
    with console.told(output):
        try:
            if console.first:
                arrayfiles.write(file, results, by_name)
        finally:
            for _ in results:  # the other ranks, and rank 0 after a failure, still take part
                pass
