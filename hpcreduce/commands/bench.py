"""``bench``: the algorithms beside MPI_Allreduce and other rivals, size by size."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Callable
from typing import Any

import click

import hpcreduce
from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.commands.console import PICTURES, CommandError, Console, Names, Sizes, need, to_json
from hpcreduce.errors import FiguresError
from hpcreduce.measure import bench, cache, comparison, environment, gloo, rivals, samples
from hpcreduce.measure.bench import Row
from hpcreduce.measure.rivals import LIBRARY, RIVALS
from hpcreduce.runtime import agreement
from hpcreduce.runtime.operations import OPERATIONS
from hpcreduce.selection import choose, forbids
from hpcreduce.units import format_bytes, plural

_OWN = ["auto", *(name for name, row in ALGORITHMS.items() if row.rounds)]
_SHORT = {"rivals": list(RIVALS), "all": [*_OWN, *RIVALS]}
_SIZES = "8,1K,16K,256K,1M,4M,16M,64M"
_OPS = [name for name, row in OPERATIONS.items() if not row.locates]
_DTYPES = [name for name in samples.NAMES if name not in ("datetime64", "timedelta64")]
_HELP = {
    "algorithms": (
        f"Of {', '.join(_OWN)}; by default these. And rivals: "
        + ", ".join(f"{name} ({row.description})" for name, row in RIVALS.items())
        + ". rivals: all of those that can do it here; all: these too. mpi is timed in any case, if it can do it."
    ),
    "sizes": "Bytes per rank, rounded up to whole elements, or a range 8:256M.",
    "dtype": f"Of {', '.join(_DTYPES)}; by default float64.",
    "op": f"Of {', '.join(_OPS)}; by default sum.",
    "cold": (
        "Before each timed call every rank reads a quarter more memory than its last-level cache holds (if the system "
        f"does not say how much that is: {format_bytes(cache.UNKNOWN)}). Calls are timed one at a time."
    ),
    "compare": (
        "Show what changed since a run that --json has written, in the JSON under comparison. Exit status 1 if "
        "anything is slower: the 95 % intervals are apart, and the medians by more than "
        f"{comparison.CHANGE:.0%}."
    ),
}


@click.command("bench")
@click.option(
    "--algorithms",
    type=Names("algorithm", lambda: ["auto", *ALGORITHMS, *(name for name in RIVALS if name != LIBRARY), *_SHORT]),
    default=",".join(_OWN),
    help=_HELP["algorithms"],
)
@click.option("--sizes", type=Sizes(), default=_SIZES, show_default=True, help=_HELP["sizes"])
@click.option("--dtype", type=click.Choice(_DTYPES), default="float64", metavar="NAME", help=_HELP["dtype"])
@click.option("--op", type=click.Choice(_OPS), default="sum", metavar="NAME", help=_HELP["op"])
@click.option("--iterations", type=click.IntRange(1, 1_000_000), default=25, show_default=True)
@click.option("--warmup", type=click.IntRange(0, 1_000_000), default=3, show_default=True)
@click.option("--one-off", is_flag=True, help="Time allreduce() instead of prepared plans.")
@click.option("--cold", is_flag=True, help=_HELP["cold"])
@click.option("--compare", "old_path", metavar="OLD.json", help=_HELP["compare"])
@click.option("--json", "json_path", metavar="FILE|-", help="Write the figures as JSON, seconds and bytes per second.")
@click.option("--csv", "csv_path", metavar="FILE", help="Write the figures as CSV.")
@click.option("--plot", "plot_path", metavar="FILE.png|svg|pdf", help="Draw latency, bus bandwidth and ratio.")
def bench_command(
    algorithms: list[str],
    sizes: list[int],
    dtype: str,
    op: str,
    iterations: int,
    warmup: int,
    one_off: bool,
    cold: bool,
    old_path: str | None,
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
) -> int:
    """Time the algorithms beside MPI_Allreduce and other rivals.

    All take turns in each iteration; a time is the slowest rank's. K, M and G are powers of 1024. algbw is size / time,
    busbw that times 2(p-1)/p, as nccl-tests define them. A wrong result ends the run.
    """
    if "-" in (csv_path, plot_path):
        raise click.UsageError("--csv and --plot need a file; only --json can go to stdout")
    _check(algorithms, dtype, op, plot_path)
    console = Console()
    old = _read(console, old_path) if old_path else None
    names = _contenders(console, algorithms, dtype, op)
    if plot_path:
        need("matplotlib", "--plot")
    settings: dict[str, Any] = {"iterations": iterations, "warmup": warmup, "one_off": one_off}
    with contextlib.ExitStack() as stack:
        paths = {path for path in (json_path, csv_path, plot_path) if path and path != "-"}
        files = {path: stack.enter_context(console.output(path)) for path in sorted(paths)}
        sweep = _sweep(console) if cold else None
        rows = _measure(console, names, sizes, dtype=dtype, op=op, sweep=sweep, **settings)
        facts = _facts(console, names, cold, **settings)
        figures = facts | {"rows": [row._asdict() for row in rows]}
        found = comparison.compare(old, comparison.figures(figures, "this run")) if old else None
        if found:
            figures["comparison"] = comparison.document(found)
        document = to_json(figures)
        if console.first:
            if json_path and json_path != "-":
                files[json_path].write(f"{document}\n".encode())
            if csv_path:
                files[csv_path].write(_csv(rows).encode())
            if plot_path:
                _plot(rows, f"{_place(facts)}: {op} of {dtype}, {_mode(facts)}", files[plot_path], plot_path)
    if json_path == "-":
        console.out(document)
    else:
        _show(console, rows, facts, dtype, op)
        for line in comparison.lines(found) if found else ():
            console.out(line)
    return int(found is not None and found.count("slower") > 0)


def _check(algorithms: list[str], dtype: str, op: str, plot_path: str | None) -> None:
    """Raise for what cannot be timed on any machine."""
    known = samples.dtypes()
    if dtype not in known:
        raise CommandError(f"dtype {dtype} needs the package ml_dtypes: pip install ml_dtypes")
    if not samples.applies(op, known[dtype]):
        raise click.UsageError(f"op {op} does not take dtype {dtype}")
    if plot_path and not plot_path.endswith(PICTURES):
        raise click.UsageError(f"the picture {plot_path} must end in {', '.join(PICTURES)}")
    work = OPERATIONS[op].types(known[dtype])[0]
    for name in algorithms:
        row = ALGORITHMS.get(name) if name != LIBRARY else None
        if row and (refusal := forbids(row, OPERATIONS[op], work)):
            raise click.UsageError(f"algorithm {name} {refusal}")


def _read(console: Console, path: str) -> comparison.Figures:
    """Return the old figures, which only the first rank reads; collective."""
    found: comparison.Figures | None = None
    reason = ""
    if console.first:
        try:
            found = comparison.read(path)
        except FiguresError as error:
            reason = f"--compare {error}"
    reason = console.comm.bcast(reason)
    if reason:
        raise click.UsageError(f"{reason}; expected a file that bench --json has written")
    figures: comparison.Figures = console.comm.bcast(found)
    return figures


def _contenders(console: Console, algorithms: list[str], dtype: str, op: str) -> list[str]:
    """Return what is timed beside the library: what was named, and what a shorthand stands for, if it can do this."""
    kind = samples.dtypes()[dtype]
    names = []
    for name in dict.fromkeys(name for given in algorithms for name in _SHORT.get(given, [given])):
        refusal = rivals.refusal(console.comm, name, op, kind) if name in RIVALS and name != LIBRARY else ""
        if refusal and name in algorithms:
            raise click.UsageError(f"algorithm {name} cannot be timed: {refusal}")
        if refusal:
            console.note(f"note: {name} is left out: {refusal}")
        elif name != LIBRARY:
            names.append(name)
    if not names and not samples.mpi_has(op, kind):
        raise click.UsageError(f"MPI has no {op} of {dtype}, and no other algorithm is asked for")
    return names


def _sweep(console: Console) -> Callable[[], object]:
    """Return what leaves this rank's caches cold; collective."""
    nbytes = cache.swept(cache.last_level())
    most = console.comm.allreduce(nbytes, console.mpi.MAX)
    if not bench.affordable(console.comm, [most], _crowd(console)):
        raise CommandError(
            f"--cold reads {format_bytes(most)} on each rank, more than a quarter of a node's free memory; start fewer "
            "ranks on a node"
        )
    return cache.sweeper(nbytes)


def _crowd(console: Console) -> int:
    return max(environment.places(console.comm, console.mpi.Get_processor_name()).values())


def _measure(
    console: Console, names: list[str], sizes: list[int], *, dtype: str, op: str, **settings: Any
) -> list[Row]:
    comm = console.comm
    item = samples.dtypes()[dtype].itemsize
    sizes = list(dict.fromkeys(-(-size // item) * item for size in sizes))
    fitting = bench.affordable(comm, sizes, _crowd(console))
    if left_out := [format_bytes(size) for size in sizes if size not in fitting]:
        reason = "they take more than a quarter of a node's free memory"
        if not fitting:
            raise CommandError(f"no size can be timed: {', '.join(left_out)}: {reason}")
        console.note(f"note: left out, since {reason}: {', '.join(left_out)}")
    rows = []
    with contextlib.ExitStack() as sessions, console.progress("timing") as progress:
        for name in names:
            if name in RIVALS:
                sessions.enter_context(RIVALS[name].session(comm))
        for done, nbytes in enumerate(fitting):

            def move(turn: int, turns: int, done: int = done) -> None:
                progress(done * turns + turn, len(fitting) * turns)

            rows += bench.compare(comm, names, nbytes, dtype=dtype, op=op, progress=move, **settings)
    return rows


def _facts(
    console: Console, names: list[str], cold: bool, *, iterations: int, warmup: int, one_off: bool
) -> dict[str, Any]:
    facts = {
        "hpcreduce": hpcreduce.__version__,
        "library": environment.library(console.mpi)["MPI library"],
        "machine": environment.machine(),
        "ranks": console.comm.size,
        "nodes": len(environment.places(console.comm, console.mpi.Get_processor_name())),
        "mode": "one-off" if one_off else "plan",
        "cache": "cold" if cold else "warm",
        "iterations": iterations,
        "warmup": warmup,
    }
    return facts | ({"torch": gloo.version()} if "gloo" in names else {})


def _place(facts: dict[str, Any]) -> str:
    return f"{facts['library']}, {plural(facts['ranks'], 'rank')} on {plural(facts['nodes'], 'node')}"


def _mode(facts: dict[str, Any]) -> str:
    mode = "allreduce() one by one" if facts["mode"] == "one-off" else "prepared plans"
    return f"{mode}, caches cold" if facts["cache"] == "cold" else mode


def _csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(rows)
    return text.getvalue()


def _plot(rows: list[Row], title: str, file: Any, path: str) -> None:
    from hpcreduce.measure import plots

    plots.benchmark(rows, title, file, path.rsplit(".", 1)[1])


def _show(console: Console, rows: list[Row], facts: dict[str, Any], dtype: str, op: str) -> None:
    state = agreement.state(console.comm)
    kind = samples.dtypes()[dtype]
    work = OPERATIONS[op].types(kind)[0]

    def chosen(nbytes: int) -> str:
        count = nbytes // kind.itemsize
        return choose("auto", None, OPERATIONS[op], work, count, state.nodes, state.tables).algorithm.name

    console.out(
        f"{_place(facts)}: {op} of {dtype}, {_mode(facts)} beside comm.Allreduce (mpi); time of the slowest rank, "
        f"median of {facts['iterations']}; speed: median over the iterations of time of mpi / time"
    )
    for line in bench.table(rows, chosen, detailed=True):
        console.out(line)
