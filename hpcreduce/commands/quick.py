"""The main job, run without a command: validate, then time every algorithm beside MPI_Allreduce."""

from __future__ import annotations

import numpy as np

import hpcreduce
from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.commands import validate
from hpcreduce.commands.console import Console
from hpcreduce.measure import bench, environment
from hpcreduce.measure.validate import validate as run_validation
from hpcreduce.runtime import agreement
from hpcreduce.runtime.operations import OPERATIONS
from hpcreduce.selection import SHARED, choose
from hpcreduce.units import format_bytes, plural

SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 10 << 20, 100 << 20)


def quick() -> int:
    """Run the main job on this rank and return the exit status."""
    console = Console()
    comm = console.comm
    facts = environment.library(console.mpi)
    places = environment.places(comm, console.mpi.Get_processor_name())
    console.out(
        f"hpcreduce {hpcreduce.__version__}: {facts['MPI library']} (MPI {facts['MPI standard']}), "
        f"{plural(comm.size, 'rank')} on {plural(len(places), 'node')}, thread level {facts['thread level']}, "
        f"GPU {environment.devices()['GPU']}"
    )
    if comm.size == 1:
        console.note("note: one rank has nobody to reduce with; run: mpirun -n 4 python -m hpcreduce")
    with console.progress("validating") as progress:
        report = run_validation(comm, progress=progress)
    validate.show(console, report)
    if report.failures:
        return 1
    _time_table(console, max(places.values()))
    return 0


def _time_table(console: Console, ranks_per_node: int) -> None:
    sizes = bench.affordable(console.comm, SIZES, ranks_per_node)
    if len(sizes) < len(SIZES):
        console.note(f"note: sizes above {format_bytes(max(sizes))} are left out, since memory is short")
    state = agreement.state(console.comm)
    algorithms = [name for name, row in ALGORITHMS.items() if row.rounds or (name == SHARED and state.shareable)]
    rows = []
    with console.progress("timing") as progress:
        for done, nbytes in enumerate(sizes):
            progress(done, len(sizes))
            rows += bench.compare(console.comm, algorithms, nbytes)
    operation, without = OPERATIONS["sum"], () if state.shareable else (SHARED,)

    def chosen(nbytes: int) -> str:
        work = np.dtype(np.float64)
        return choose("auto", None, operation, work, nbytes // 8, state.nodes, state.tables, without).algorithm.name

    console.out(
        "\nfloat64 sum in place: time of the slowest rank, median of interleaved turns; mpi is comm.Allreduce, (auto) "
        "what auto takes"
    )
    for line in bench.table(rows, chosen):
        console.out(line)
