"""What Slurm was asked for, what ranks got, and the usual mistakes. Pure: the environment is passed in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpcreduce.runtime import launch
from hpcreduce.units import plural


class Seat(NamedTuple):
    """Where a rank runs: its host, and the processors that it may use there."""

    host: str
    processors: tuple[int, ...]


def seat(host: str) -> Seat:
    """Return where this process runs."""
    return Seat(host, tuple(sorted(os.sched_getaffinity(0))))


def facts(environ: Mapping[str, str], seats: Sequence[Seat]) -> dict[str, str]:
    """Return what Slurm and the launcher say of this job, and how ranks are bound; nothing outside a job.

    >>> facts({}, [])
    {}
    """
    if not environ.get("SLURM_JOB_ID"):
        return {}
    tasks = _tasks(environ)
    each = environ.get("SLURM_CPUS_PER_TASK")
    pmi = next((name for name, mark in {"PMIx": "PMIX_RANK", "PMI": "PMI_RANK"}.items() if mark in environ), "none")
    return {
        "Slurm job": f"{environ['SLURM_JOB_ID']} ({environ.get('SLURM_JOB_NAME', 'without a name')})",
        "Slurm nodes": f"{environ.get('SLURM_JOB_NUM_NODES', '?')}: {environ.get('SLURM_JOB_NODELIST', '?')}",
        "Slurm CPUs": environ.get("SLURM_JOB_CPUS_PER_NODE", "?") + " on each node",
        "Slurm tasks": (f"{tasks}" if tasks else "not told") + (f", CPUs of each: {each}" if each else ""),
        "launcher": f"{launch.launcher(environ) or 'none'}, PMI: {pmi}",
        "binding": _binding(seats),
    }


def _binding(seats: Sequence[Seat]) -> str:
    counts = sorted({len(each.processors) for each in seats})
    each = plural(counts[0], "processor") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} processors"
    shared = any(sum(map(len, here)) > len(set().union(*here)) for here in _hosts(seats).values())
    return f"{each} for each rank, {'shared with others' if shared else 'its own'}"


def _hosts(seats: Sequence[Seat]) -> dict[str, list[set[int]]]:
    """Return host -> the processors of each rank on it."""
    hosts: dict[str, list[set[int]]] = {}
    for each in seats:
        hosts.setdefault(each.host, []).append(set(each.processors))
    return hosts


def warnings(environ: Mapping[str, str], seats: Sequence[Seat]) -> list[str]:
    """Return the usual mistakes that this job shows, each with what to do; none outside a job.

    >>> warnings({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "OMP_NUM_THREADS": "1"}, [Seat("n1", (0,))])
    ['expected 4 ranks (SLURM_NTASKS), found 1: start as many as were asked for, by srun or mpirun -n $SLURM_NTASKS']
    """
    if not environ.get("SLURM_JOB_ID"):
        return []
    found = []
    tasks, nodes = _tasks(environ), _number(environ, "SLURM_JOB_NUM_NODES")
    if tasks and tasks != len(seats):
        found.append(
            f"expected {plural(tasks, 'rank')} (SLURM_NTASKS), found {len(seats)}: start as many as were asked for, by "
            "srun or mpirun -n $SLURM_NTASKS"
        )
    hosts = _hosts(seats)
    if nodes and len(hosts) < nodes:
        found.append(
            f"ranks run on {len(hosts)} of {nodes} nodes: ask for fewer --nodes, or for more --ntasks-per-node"
        )
    for host, here in hosts.items():
        there = len(set().union(*here))
        if there < len(here):
            found.append(
                f"{len(here)} ranks share {plural(there, 'processor')} of {host}: ask for fewer "
                "--ntasks-per-node, and let the launcher bind ranks to processors of their own"
            )
            break
    each, fewest = _number(environ, "SLURM_CPUS_PER_TASK"), min(len(each.processors) for each in seats)
    if each and fewest < each:
        found.append(
            f"--cpus-per-task is {each}, and a rank may use {fewest}: srun does not take it over from sbatch, export "
            "SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; with mpirun of Open MPI, --bind-to none"
        )
    threads = _number(environ, "OMP_NUM_THREADS")
    if threads is None or threads > (each or fewest):
        found.append(
            f"OMP_NUM_THREADS is {threads or 'not set'}: ranks may start more threads than they have CPUs; export "
            "OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}"
        )
    return found


def _tasks(environ: Mapping[str, str]) -> int | None:
    """Return how many ranks were asked for; slurm/env.sh tells: a step of mpirun's daemons has a number of its own."""
    own = launch.launcher(environ) == "mpirun" and launch.in_step(environ)
    return _number(environ, "HPCREDUCE_TASKS") or (None if own else _number(environ, "SLURM_NTASKS"))


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
