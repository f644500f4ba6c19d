"""``bench``: the algorithms beside MPI_Allreduce, size by size."""

from __future__ import annotations

import contextlib
import csv
import io
from typing import Any

import click

import hpcreduce
from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.commands.console import PICTURES, CommandError, Console, Names, Sizes, need_matplotlib, to_json
from hpcreduce.measure import bench, environment, samples
from hpcreduce.measure.bench import Row
from hpcreduce.runtime import agreement
from hpcreduce.runtime.operations import OPERATIONS
from hpcreduce.selection import choose, forbids
from hpcreduce.units import format_bytes, plural

_OWN = [name for name, row in ALGORITHMS.items() if row.rounds]
_SIZES = "8,1K,16K,256K,1M,4M,16M,64M"
_OPS = [name for name, row in OPERATIONS.items() if not row.locates]
_DTYPES = [name for name in samples.NAMES if name not in ("datetime64", "timedelta64")]
_HELP = {
    "sizes": "Bytes per rank, rounded up to whole elements, or a range 8:256M.",
    "dtype": f"Of {', '.join(_DTYPES)}; by default float64.",
    "op": f"Of {', '.join(_OPS)}; by default sum.",
}


@click.command("bench")
@click.option(
    "--algorithms",
    type=Names("algorithm", lambda: ["auto", *ALGORITHMS]),
    default=",".join(["auto", *_OWN]),
    help=f"Of auto, {', '.join(_OWN)}; by default all. mpi, which is comm.Allreduce, is timed too if it can do that.",
)
@click.option("--sizes", type=Sizes(), default=_SIZES, show_default=True, help=_HELP["sizes"])
@click.option("--dtype", type=click.Choice(_DTYPES), default="float64", metavar="NAME", help=_HELP["dtype"])
@click.option("--op", type=click.Choice(_OPS), default="sum", metavar="NAME", help=_HELP["op"])
@click.option("--iterations", type=click.IntRange(1, 1_000_000), default=25, show_default=True)
@click.option("--warmup", type=click.IntRange(0, 1_000_000), default=3, show_default=True)
@click.option("--one-off", is_flag=True, help="Time allreduce() instead of prepared plans.")
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
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
) -> int:
    """Time the algorithms beside MPI_Allreduce.

    All take turns in each iteration; a time is the slowest rank's. K, M and G are powers of 1024. algbw is size / time,
    busbw that times 2(p-1)/p, as nccl-tests define them. A wrong result ends the run.
    """
    if "-" in (csv_path, plot_path):
        raise click.UsageError("--csv and --plot need a file; only --json can go to stdout")
    names = _check(algorithms, dtype, op, plot_path)
    console = Console()
    if plot_path:
        need_matplotlib()
    with contextlib.ExitStack() as stack:
        paths = {path for path in (json_path, csv_path, plot_path) if path and path != "-"}
        files = {path: stack.enter_context(console.output(path)) for path in sorted(paths)}
        rows = _measure(console, names, sizes, dtype, op, iterations, warmup, one_off)
        facts = _facts(console, iterations, warmup, one_off)
        document = to_json(facts | {"rows": [row._asdict() for row in rows]})
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
    return 0


def _check(algorithms: list[str], dtype: str, op: str, plot_path: str | None) -> list[str]:
    """Return the contenders beside the library, or raise for what cannot be timed."""
    known = samples.dtypes()
    if dtype not in known:
        raise CommandError(f"dtype {dtype} needs the package ml_dtypes: pip install ml_dtypes")
    if not samples.applies(op, known[dtype]):
        raise click.UsageError(f"op {op} does not take dtype {dtype}")
    if plot_path and not plot_path.endswith(PICTURES):
        raise click.UsageError(f"the picture {plot_path} must end in {', '.join(PICTURES)}")
    work = OPERATIONS[op].types(known[dtype])[0]
    names = [name for name in dict.fromkeys(algorithms) if name != bench.LIBRARY]
    for name in names:
        if name != "auto" and (refusal := forbids(ALGORITHMS[name], OPERATIONS[op], work)):
            raise click.UsageError(f"algorithm {name} {refusal}")
    if not names and not samples.mpi_has(op, known[dtype]):
        raise click.UsageError(f"MPI has no {op} of {dtype}, and no other algorithm is asked for")
    return names


def _measure(
    console: Console,
    names: list[str],
    sizes: list[int],
    dtype: str,
    op: str,
    iterations: int,
    warmup: int,
    one_off: bool,
) -> list[Row]:
    comm = console.comm
    crowd = max(environment.places(comm, console.mpi.Get_processor_name()).values())
    fitting = bench.affordable(comm, sizes, crowd)
    if left_out := [format_bytes(size) for size in sizes if size not in fitting]:
        reason = "they take more than a quarter of a node's free memory"
        if not fitting:
            raise CommandError(f"no size can be timed: {', '.join(left_out)}: {reason}")
        console.note(f"note: left out, since {reason}: {', '.join(left_out)}")
    rows = []
    with console.progress("timing") as progress:
        for done, nbytes in enumerate(fitting):

            def move(turn: int, turns: int, done: int = done) -> None:
                progress(done * turns + turn, len(fitting) * turns)

            rows += bench.compare(
                comm,
                names,
                nbytes,
                dtype=dtype,
                op=op,
                iterations=iterations,
                warmup=warmup,
                one_off=one_off,
                progress=move,
            )
    return rows


def _facts(console: Console, iterations: int, warmup: int, one_off: bool) -> dict[str, Any]:
    return {
        "hpcreduce": hpcreduce.__version__,
        "library": environment.library(console.mpi)["MPI library"],
        "ranks": console.comm.size,
        "nodes": len(environment.places(console.comm, console.mpi.Get_processor_name())),
        "mode": "one-off" if one_off else "plan",
        "iterations": iterations,
        "warmup": warmup,
    }


def _place(facts: dict[str, Any]) -> str:
    return f"{facts['library']}, {plural(facts['ranks'], 'rank')} on {plural(facts['nodes'], 'node')}"


def _mode(facts: dict[str, Any]) -> str:
    return "allreduce() one by one" if facts["mode"] == "one-off" else "prepared plans"


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
