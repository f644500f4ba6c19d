"""``tune``: measure which algorithm, segment and window are best here, for ``auto``.

While it runs, what was found so far stands in FILE.partial, which is written whole after each size; --resume reads it.
FILE itself is written at the end, whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import click
import numpy as np

from hpcreduce import lookup
from hpcreduce.commands.console import CommandError, Console, Duration, Names, Sizes, to_json, whole_file
from hpcreduce.errors import TableError
from hpcreduce.lookup import Entry, Place, Setting
from hpcreduce.measure import bench, environment, samples, tournament, tune
from hpcreduce.measure.tournament import Cell, Result
from hpcreduce.runtime import agreement
from hpcreduce.units import format_bytes, format_duration, plural

_DTYPES = [
    name
    for name in samples.NAMES
    if name not in ("datetime64", "timedelta64", "bfloat16")
    and np.dtype(name).itemsize > 2
    and samples.mpi_has("sum", np.dtype(name))
]
_PARTIAL = ".partial"
_SMALLEST = 8
"""Bytes of a smallest size up to which it stands for all that is smaller."""


@click.command("tune")
@click.option("-o", "--output", required=True, metavar="FILE", help="The table; other entries that it has are kept.")
@click.option("--budget", type=Duration(), default="120s", show_default=True, metavar="TIME", help="90, 90s, 2m, 1.5h.")
@click.option("--sizes", type=Sizes(), default="8:256M", show_default=True, help="Bytes per rank, or a range.")
@click.option(
    "--dtype",
    "dtypes",
    type=Names("dtype", lambda: _DTYPES),
    default="float64,float32",
    show_default=True,
    metavar="NAMES",
    help=f"Of {', '.join(_DTYPES)}; one of each size of an element.",
)
@click.option("--resume", is_flag=True, help="Go on with what an interrupted run has left in FILE.partial.")
def tune_command(output: str, budget: float, sizes: list[int], dtypes: list[str], resume: bool) -> int:
    """Measure what is best here, for auto.

    For each size a tournament of algorithms, segments and windows, beside comm.Allreduce and what the library does in
    two calls. HPCREDUCE_TABLE=FILE, or ~/.config/hpcreduce/table.json, makes the table count. --budget is the time that
    is measured; what does not fit into it is left out, and named.
    """
    kinds = samples.dtypes()
    dtypes = list(dict.fromkeys(dtypes))
    if len({kinds[dtype].itemsize for dtype in dtypes}) < len(dtypes):
        raise click.UsageError(f"expected one dtype of each size of an element, found {', '.join(dtypes)}")
    console = Console()
    comm = console.comm
    if comm.size < 2:
        raise CommandError("one rank has nobody to reduce with; tune needs two at least: mpirun -n 2 ...")
    state = agreement.state(comm)
    library = environment.library(console.mpi)["MPI library"]
    place = Place(lookup.family(console.mpi.Get_library_version()), comm.size, len(set(state.nodes)))
    run = {
        "library": library,
        "ranks": place.ranks,
        "nodes": place.nodes,
        "dtypes": dtypes,
        "budget": budget,
        "cores": os.cpu_count(),
        **environment.software(),
    }
    about, entries = _table(console, output)
    cells = _cells(console, sizes, dtypes)
    before = _before(console, output, run, resume)
    with console.output(output) as file:
        results, left_out = _search(console, output, run, budget, cells, before)
        if not results:
            raise CommandError(f"nothing was measured: {format_duration(budget)} are too short; give a longer --budget")
        if file:
            document = _merged(about, entries, place, run, results)
            file.write(f"{to_json(document)}\n".encode())
    if console.first:
        with contextlib.suppress(OSError):
            os.unlink(output + _PARTIAL)
    _show(console, run, place, results, left_out)
    return 0


def _table(console: Console, path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what the table has already, on every rank; collective."""
    errors = []
    found: Any = ({}, [])
    if console.first and os.path.lexists(path):
        try:
            if not os.path.isfile(path):
                raise CommandError(f"cannot write {path}: not a regular file")
            with open(path, "rb") as file:
                found = lookup.parse(file.read(), path)
        except TableError as error:
            errors.append(f"{error}; move the file away, or name another one")
        except (OSError, CommandError) as error:
            errors.append(f"cannot read {path}: {error.strerror}" if isinstance(error, OSError) else str(error))
    console.agree(errors)
    return console.comm.bcast(found)  # type: ignore[no-any-return]


def _cells(console: Console, sizes: list[int], dtypes: list[str]) -> list[Cell]:
    """Return what is to be measured, in that order; collective."""
    crowd = max(environment.places(console.comm, console.mpi.Get_processor_name()).values())
    fitting = bench.affordable(console.comm, sizes, crowd)
    if left_out := [format_bytes(size) for size in sizes if size not in fitting]:
        reason = "they take more than a quarter of a node's free memory"
        if not fitting:
            raise CommandError(f"no size can be timed: {', '.join(left_out)}: {reason}")
        console.note(f"note: left out, since {reason}: {', '.join(left_out)}")
    kinds = samples.dtypes()
    cells = {
        Cell(dtype, -(-size // kinds[dtype].itemsize) * kinds[dtype].itemsize): None
        for size in tournament.spread(sorted(fitting))
        for dtype in dtypes
    }
    return list(cells)


def _before(console: Console, output: str, run: dict[str, Any], resume: bool) -> list[Result]:
    """Return what an interrupted run has left, if that is asked for; collective."""
    path, errors = output + _PARTIAL, []
    found: list[Result] = []
    if console.first and os.path.exists(path):
        if resume:
            try:
                with open(path, "rb") as file:
                    found = _read(file.read(), path, run)
            except (OSError, TableError) as error:
                errors.append(f"cannot go on: {error}; without --resume all is measured anew")
        else:
            console.note(f"note: {path}, left by an interrupted run, is overwritten; --resume would go on with it")
    elif resume:
        console.note(f"note: there is no {path} to go on with; all is measured anew")
    console.agree(errors)
    return console.comm.bcast(found)  # type: ignore[no-any-return]


def _read(data: bytes, path: str, run: dict[str, Any]) -> list[Result]:
    """Return the results of a partial file, which must be of the same run."""
    try:
        document = json.loads(data.decode())
        there = dict(document["run"])
        results = [
            Result(
                Cell(*result["cell"]),
                Setting(*result["setting"]),
                Setting(*result["own"]) if result["own"] else None,
                dict(result["facts"]),
                [(Setting(*setting), float(seconds)) for setting, seconds in result["seconds"]],
                int(result["skipped"]),
            )
            for result in document["results"]
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise TableError(f"{path}: expected what an interrupted run leaves there, found something else") from None
    for name in run:
        if name != "budget" and there.get(name) != run[name]:
            raise TableError(f"{path}: {name}: expected {run[name]!r} as in this run, found {there.get(name)!r}")
    return results


def _keep(console: Console, path: str, run: dict[str, Any], results: list[Result]) -> None:
    """Write what was found so far; collective."""
    with console.told(path):
        if console.first:
            with whole_file(path) as file:
                file.write(to_json({"run": run, "results": [result._asdict() for result in results]}).encode())


def _search(
    console: Console, output: str, run: dict[str, Any], budget: float, cells: Sequence[Cell], before: list[Result]
) -> tuple[list[Result], list[Cell]]:
    comm, kinds = console.comm, samples.dtypes()
    nodes = agreement.state(comm).nodes
    done = [result for result in before if result.cell in cells]
    ahead = [cell for cell in cells if cell not in {result.cell for result in done}]
    found = list(done)
    if done:
        console.note(f"note: {plural(len(done), 'measurement')} of the interrupted run are kept")
    with console.progress("tuning") as progress:
        progress(len(found), len(cells))
        _keep(console, output + _PARTIAL, run, found)

        def keep(result: Result) -> None:
            found.append(result)
            _keep(console, output + _PARTIAL, run, found)
            progress(len(found), len(cells))

        return tournament.search(
            ahead,
            lambda cell: tune.candidates(kinds[cell.dtype], nodes, cell.nbytes),
            partial(tune.stage, comm),
            partial(tune.clock, comm),
            budget,
            done,
            keep,
        )


def _merged(
    about: dict[str, Any],
    entries: list[dict[str, Any]],
    place: Place,
    run: dict[str, Any],
    results: list[Result],
) -> dict[str, Any]:
    """Return the table with these results in place of all that it had for the same place and element size."""
    kinds = samples.dtypes()
    least = {
        dtype: min(result.cell.nbytes for result in results if result.cell.dtype == dtype)
        for dtype in run["dtypes"]
        if any(result.cell.dtype == dtype for result in results)
    }
    new = []
    for cell, setting, own, facts, _, _ in results:
        start = 0 if cell.nbytes == least[cell.dtype] <= _SMALLEST else cell.nbytes
        new.append(lookup.to_json(Entry(place, kinds[cell.dtype].itemsize, start, setting, own, facts)))
    replaced = {lookup.key(entry) for entry in new}
    kept = [entry for entry in entries if lookup.key(entry) not in replaced]
    same = {name: run[name] for name in ("library", "ranks", "nodes", "dtypes")}
    earlier = about.get("runs") if isinstance(about.get("runs"), list) else []
    runs = [one for one in earlier or [] if not (isinstance(one, dict) and same.items() <= one.items())]
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    document = {
        "format": lookup.FORMAT,
        "about": {**about, "runs": [*runs, {"when": when, **run}]},
        "entries": sorted([*kept, *new], key=lambda entry: (lookup.key(entry), entry["from"])),
    }
    lookup.parse(json.dumps(document).encode(), "the new table")
    return document


def _show(console: Console, run: dict[str, Any], place: Place, results: list[Result], left_out: list[Cell]) -> None:
    console.out(
        f"{run['library']}, {plural(place.ranks, 'rank')} on {plural(place.nodes, 'node')}: what auto takes from each "
        "size on\n(algorithm segment/window), and its speed beside comm.Allreduce"
    )
    for line in _lines(run["dtypes"], results):
        console.out(line)
    if few := [result for result in results if result.skipped]:
        where = ", ".join(f"{result.skipped} at {format_bytes(result.cell.nbytes)}" for result in few)
        console.note(f"note: candidates that were not tried, for want of time: {where}")
    if left_out:
        where = ", ".join(f"{format_bytes(cell.nbytes)} of {cell.dtype}" for cell in left_out)
        console.note(f"note: not measured, since the budget of {format_duration(run['budget'])} was spent: {where}")


def _lines(dtypes: Sequence[str], results: Sequence[Result]) -> Iterator[str]:
    for dtype in dtypes:
        yield f"{dtype}"
        yield f"{'size':>9}  {'choice':<28}{'speed':>9}  runner-up"
        for result in results:
            if result.cell.dtype != dtype:
                continue
            other = result.facts.get("runner_up")
            size, speed = format_bytes(result.cell.nbytes), f"{result.facts['speed']:.2f}x"
            yield f"{size:>9}  {result.setting!s:<28}{speed:>9}  {Setting(**other) if other else '-'}".rstrip()
            if slower := result.facts.get("slower_than"):
                yield f"{'':>11}slower than the library's {', '.join(slower)}"
