"""``doctor``: which rank is behind, in which collective, at which source line."""

from __future__ import annotations

import os

import click

from hpcreduce.commands.console import lone_file, to_json
from hpcreduce.diagnosis import diagnose, dumps
from hpcreduce.runtime import launch


@click.command("doctor")
@click.argument("folder", metavar="DIR")
@click.option("--json", "json_path", metavar="FILE|-", help="Write the findings as JSON, in seconds.")
def doctor_command(folder: str, json_path: str | None) -> int:
    """Say who is behind in a job that hangs, from its dumps.

    DIR holds what the ranks have written, rank-0.json, rank-1.json, ... The first line says what is wrong; what each
    rank does follows: the call, its source line, and what it waits for. Needs neither ranks nor an MPI library.
    """
    found, wrong = dumps.read(folder)
    diagnosis = diagnose(found)
    if launch.rank(os.environ) > 0:  # all ranks would say the same; one that did not get so far has failed on all
        return 0
    for each in wrong:
        click.echo(f"note: passed over {each}", err=True)
    for each in diagnosis.notes:
        click.echo(f"note: {each}", err=True)
    if json_path == "-":
        click.echo(to_json(diagnosis.document()))
        return 0
    if json_path:
        with lone_file(json_path) as file:
            file.write(f"{to_json(diagnosis.document())}\n".encode())
    click.echo(str(diagnosis))
    return 0
