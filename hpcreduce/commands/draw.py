"""``draw``: the schedule of an algorithm as a table or a diagram."""

from __future__ import annotations

import re
from typing import Any

import click

from hpcreduce.algorithms import ALGORITHMS, RELATED
from hpcreduce.analysis import draw
from hpcreduce.commands.console import lone_file

_NAMES = [name for name, row in (ALGORITHMS | RELATED).items() if row.rounds]
_MOST_RANKS = 128
"""Nobody reads more."""


class Nodes(click.ParamType[tuple[int, ...]]):
    """A comma-separated list of node ids."""

    name = "nodes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Split and check."""
        if isinstance(value, tuple):
            return value
        texts = [text.strip() for text in value.split(",")]
        if not all(re.fullmatch(r"[0-9]{1,9}", text) for text in texts):
            self.fail(f"{value[:40]!r} is no list of node numbers, one for each rank, such as 0,0,1,1", param, ctx)
        return tuple(map(int, texts))


@click.command("draw", epilog=f"NAME is one of {', '.join(_NAMES)}.")
@click.argument("name")
@click.option("--ranks", type=click.IntRange(1, _MOST_RANKS), required=True, metavar="P")
@click.option("--count", type=click.IntRange(0), metavar="N", help="Elements; by default one for each rank.")
@click.option("--nodes", type=Nodes(), metavar="0,0,1,...", help="For hierarchical: the node of each rank.")
@click.option("--across", metavar="NAME", help="For hierarchical: the algorithm across nodes.")
@click.option("--root", type=int, metavar="RANK", help="For reduce and bcast.")
@click.option(
    "--any-order", is_flag=True, help="For reduce: the operation commutes, so ranks need not keep their order."
)
@click.option("--svg", "svg_path", metavar="FILE", help="Write a diagram too, whole or not at all.")
def draw_command(
    name: str,
    ranks: int,
    count: int | None,
    nodes: tuple[int, ...] | None,
    across: str | None,
    root: int | None,
    any_order: bool,
    svg_path: str | None,
) -> int:
    """Draw who sends what to whom, round by round.

    A table of rank by round, and what its signs mean. Needs neither ranks nor an MPI library.
    """
    given = {"nodes": nodes, "across": across, "root": root, "ordered": False if any_order else None}
    static = {key: value for key, value in given.items() if value is not None}
    try:
        table = draw.text(name, ranks, count, **static)
        diagram = draw.svg(name, ranks, count, **static) if svg_path is not None else ""
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if svg_path is not None:
        with lone_file(svg_path) as file:
            if file:
                file.write(diagram.encode())
    click.echo(table)
    return 0
