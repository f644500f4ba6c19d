"""``fit``: what messages and reductions cost on these ranks."""

from __future__ import annotations

import click

from hpcreduce.commands.console import CommandError, Console, to_json
from hpcreduce.measure import fit


@click.command("fit")
@click.option("-o", "--output", metavar="FILE.json", help="Write what predict and explain read.")
@click.option("--repeats", type=click.IntRange(1, 1000), default=15, show_default=True)
def fit_command(output: str | None, repeats: int) -> int:
    """Measure what a message and a reduction cost here.

    Seconds per message (alpha) and per byte (beta), inside a node and across nodes, and per byte reduced (gamma), for
    each type. predict --network FILE and explain --model FILE read the file.
    """
    console = Console()
    if console.comm.size < 2:
        raise CommandError("fit needs two ranks at least, and to price the network, two nodes: mpirun -n 2 ...")
    if output:
        with console.output(output) as file:
            found = fit.measure(console.comm, console.mpi.Get_processor_name(), repeats)
            if file:
                file.write(f"{to_json(found)}\n".encode())
    else:
        found = fit.measure(console.comm, console.mpi.Get_processor_name(), repeats)
    inside = found.get("inside")
    if inside:
        console.out(f"inside a node: alpha {inside['alpha'] * 1e6:.3g} us, beta {inside['beta'] * 1e9:.3g} ns/byte")
    if found["links"]:
        bandwidth = found["links"][0]["bandwidth"]
        console.out(f"across nodes:  alpha {found['alpha'] * 1e6:.3g} us, beta {1e9 / bandwidth:.3g} ns/byte")
    else:
        console.note("note: the network was not measured, since all ranks are on one node")
    gammas = ", ".join(f"{name} {gamma * 1e9:.3g}" for name, gamma in found["gammas"].items())
    console.out(f"reducing, gamma in ns/byte: {gammas}")
    return 0
