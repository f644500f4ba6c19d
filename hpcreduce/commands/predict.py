"""``predict``: the algorithms on a network that is described, not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import click

import hpcreduce
from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.analysis import network, predict
from hpcreduce.analysis.predict import Prediction
from hpcreduce.commands.console import PICTURES, Names, Sizes, lone_file, need, to_json
from hpcreduce.runtime import launch
from hpcreduce.units import format_bytes, format_seconds, plural

_SCHEDULES = [name for name, row in ALGORITHMS.items() if row.rounds]
_ITEMSIZE = 8
_MOST_PORTS = 1_000_000


@click.command("predict")
@click.option("--network", "text", required=True, metavar="fat-tree:LxH|star:H|FILE.json", help="Leafs x hosts each.")
@click.option("--ranks", type=click.IntRange(1), help="They fill the hosts in turn; by default all places.")
@click.option(
    "--sizes", type=Sizes(), default="1K,64K,1M,64M,1G", show_default=True, help="Bytes per rank, or a range."
)
@click.option(
    "--algorithms",
    type=Names("algorithm", lambda: _SCHEDULES),
    default=",".join(_SCHEDULES),
    help=f"Of {', '.join(_SCHEDULES)}; by default all.",
)
@click.option(
    "--ports",
    type=click.IntRange(1, _MOST_PORTS),
    default=1,
    show_default=True,
    help="Messages that a rank sends at a time, and receives.",
)
@click.option("--json", "json_path", metavar="FILE|-", help="Write the figures as JSON, in seconds.")
@click.option("--plot", "plot_path", metavar="FILE.png|svg|pdf", help="Draw time over size.")
def predict_command(
    text: str,
    ranks: int | None,
    sizes: list[int],
    algorithms: list[str],
    ports: int,
    json_path: str | None,
    plot_path: str | None,
) -> int:
    """Predict what the algorithms take on a network, and which is the fastest.

    Needs neither that network nor MPI: float64 sums are followed message by message, and messages that share a link
    share its bandwidth. Settings follow after commas: fat-tree:8x16,oversubscription=4,bandwidth=25e9,latency=1e-6,
    also ranks_per_host, alpha, gamma. Bandwidths are bytes/s, times seconds; FILE.json is described in
    hpcreduce/analysis/network.py.
    """
    if plot_path and not plot_path.endswith(PICTURES):
        raise click.UsageError(f"the picture {plot_path} must end in {', '.join(PICTURES)}")
    if plot_path:
        need("matplotlib", "--plot")
    described = network.read(text)
    ranks = len(described.hosts) * described.ranks_per_host if ranks is None else ranks
    described.place(ranks)
    if launch.rank(os.environ) > 0:  # all ranks would say the same; one that did not get so far has failed on all
        return 0
    facts = {"hpcreduce": hpcreduce.__version__, "network": text, "ranks": ranks, "ports": ports}
    left_out: list[dict[str, Any]] = []

    def leave_out(name: str, nbytes: int, reason: str) -> None:
        left_out.append({"algorithm": name, "nbytes": nbytes, "reason": reason})

    with contextlib.ExitStack() as stack:
        paths = {path for path in (json_path, plot_path) if path and path != "-"}
        files = {path: stack.enter_context(lone_file(path)) for path in sorted(paths)}
        rows = predict.compare(
            described, ranks, sizes, list(dict.fromkeys(algorithms)), ports=ports, left_out=leave_out
        )
        document = {
            **facts,
            "rows": [row._asdict() for row in rows],
            "winner": {str(row.nbytes): row.algorithm for row in _winners(rows)},
            "left_out": left_out,
        }
        if json_path and json_path != "-":
            files[json_path].write(f"{to_json(document)}\n".encode())
        if plot_path:
            from hpcreduce.measure import plots

            title = f"{text}, {plural(ranks, 'rank')}, float64 sum"
            plots.prediction(rows, title, files[plot_path], plot_path.rsplit(".", 1)[1])
    for name, reason in dict.fromkeys((entry["algorithm"], entry["reason"]) for entry in left_out):
        where = [entry["nbytes"] for entry in left_out if (entry["algorithm"], entry["reason"]) == (name, reason)]
        click.echo(f"note: {name} is left out at {', '.join(map(format_bytes, where))}: {reason}", err=True)
    if json_path == "-":
        click.echo(to_json(document))
    else:
        click.echo(f"{text}, {plural(ranks, 'rank')}: float64 sum; computed by a model, not measured")
        for line in _table(rows):
            click.echo(line)
    return 0 if rows else 1


TIE = 1.01
"""Times closer than this are equal, as far as the model goes: the first of the table wins, as `ring` does in fact."""


def _winners(rows: Sequence[Prediction]) -> list[Prediction]:
    """Return the fastest row of each size."""
    winners = []
    for nbytes in dict.fromkeys(row.nbytes for row in rows):
        group = [row for row in rows if row.nbytes == nbytes]
        best = min(row.seconds for row in group)
        winners.append(next(row for row in group if row.seconds <= TIE * best))
    return winners


def _table(rows: Sequence[Prediction]) -> Iterator[str]:
    yield f"{'size':>9}  {'algorithm':<20}{'time':>11}{'of fastest':>12}"
    for winner in _winners(rows):
        group = [row for row in rows if row.nbytes == winner.nbytes]
        for row in group:
            size = format_bytes(row.nbytes) if row is group[0] else ""
            ratio = f"{row.seconds / winner.seconds:.2f}x" if winner.seconds else "-"
            mark = " <- fastest" if row is winner else ""
            yield f"{size:>9}  {row.algorithm:<20}{format_seconds(row.seconds):>11}{ratio:>12}{mark}"
