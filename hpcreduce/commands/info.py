"""``info``: what this run stands on."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from hpcreduce.commands.console import CommandError, Console
from hpcreduce.measure import environment, slurm


@click.command("info")
def info_command() -> int:
    """Print what this run stands on.

    MPI library, ranks and nodes, and the state of CuPy, NCCL and GPUs. Works without an MPI library. In a job of Slurm
    also what it was asked for, what ranks got, and warnings of usual mistakes.
    """
    facts = environment.software()
    mistakes: list[str] = []
    try:
        console = Console()
    except CommandError as error:
        facts["MPI library"] = str(error)
        out: Callable[[str], object] = click.echo
    else:
        out = console.out
        places = environment.places(console.comm, console.mpi.Get_processor_name())
        facts |= environment.library(console.mpi)
        facts |= {"ranks": str(console.comm.size), "nodes": str(len(places))}
        facts["ranks per node"] = ", ".join(f"{host}: {ranks}" for host, ranks in list(places.items())[:8])
        facts["ranks per node"] += ", ..." if len(places) > 8 else ""
        seats = console.comm.allgather(slurm.seat(console.mpi.Get_processor_name()))
        facts |= slurm.facts(os.environ, seats)
        mistakes = slurm.warnings(os.environ, seats)
    facts |= environment.devices()
    width = max(map(len, facts))
    for name, value in facts.items():
        out(f"{name:<{width}}  {value}")
    for mistake in mistakes:
        console.note(f"warning: {mistake}")
    return 0
