"""``explain``: what ``auto`` takes, why, and what each algorithm would cost."""

from __future__ import annotations

import click

from hpcreduce import lookup
from hpcreduce.commands.console import Sizes, lone_file, to_json
from hpcreduce.explanation import Model, explanation, read_model
from hpcreduce.measure import samples
from hpcreduce.runtime import tablefiles
from hpcreduce.runtime.operations import OPERATIONS

_OPS = [name for name, row in OPERATIONS.items() if not row.locates]
_MOST_RANKS = 1024


@click.command("explain")
@click.option("--ranks", type=click.IntRange(1, _MOST_RANKS), required=True)
@click.option("--nbytes", type=Sizes(), required=True, help="Size of the array, such as 1M; or several, or a range.")
@click.option("--nodes", type=click.IntRange(1, _MOST_RANKS), default=1, show_default=True, help="Filled in turn.")
@click.option("--dtype", default="float64", show_default=True, metavar="NAME")
@click.option("--op", type=click.Choice(_OPS), default="sum", show_default=True, metavar="NAME")
@click.option("--library", metavar="NAME", help="Whose measured table counts: 'Open MPI', MPICH, ...")
@click.option("--model", "model_path", metavar="FILE", help="What fit has written; else typical prices.")
@click.option("--json", "json_path", metavar="FILE|-", help="Write the figures as JSON.")
def explain_command(
    ranks: int,
    nbytes: list[int],
    nodes: int,
    dtype: str,
    op: str,
    library: str | None,
    model_path: str | None,
    json_path: str | None,
) -> int:
    """Say what auto takes, why, and what each algorithm would cost.

    Rounds and the most bytes that one rank sends are exact; times are predictions, for messages that are not cut and
    ranks of a node that share its link. What auto takes goes by measured tables (yours: HPCREDUCE_TABLE), if
    --library says whose, or by rules, not by the prediction. Needs no MPI library.
    """
    if nodes > ranks:
        raise click.BadParameter(
            f"{nodes} nodes for {ranks} ranks: expected at least a rank on each", param_hint="nodes"
        )
    known = samples.dtypes()
    if dtype not in known:
        raise click.BadParameter(f"unknown dtype {dtype!r}; expected one of {', '.join(known)}", param_hint="dtype")
    if not samples.applies(op, known[dtype]):
        raise click.UsageError(f"op {op} does not take dtype {dtype}")
    model = read_model(model_path) if model_path else Model()
    placed = tuple(rank * nodes // ranks for rank in range(ranks))
    tables = lookup.placed(tablefiles.all_tables(), lookup.Place(library, ranks, nodes)) if library else ()
    found = [
        explanation(placed, -(-size // known[dtype].itemsize), known[dtype], OPERATIONS[op], model, tables)
        for size in nbytes
    ]
    if json_path:
        document = to_json([each._asdict() | {"lines": [line._asdict() for line in each.lines]} for each in found])
        if json_path == "-":
            click.echo(document)
            return 0
        with lone_file(json_path) as file:
            if file:
                file.write(f"{document}\n".encode())
    click.echo("\n\n".join(map(str, found)))
    return 0
