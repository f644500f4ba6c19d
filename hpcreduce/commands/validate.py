"""``validate``: every algorithm against exact arithmetic and MPI_Allreduce."""

from __future__ import annotations

import dataclasses
import math

import click

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.commands.console import CommandError, Console, Counts, Names, write_json
from hpcreduce.measure import samples
from hpcreduce.measure.validate import QUICK_DTYPES, REFERENCE, Report, validate
from hpcreduce.runtime.operations import OPERATIONS

_HELP = {
    "algorithms": f"Of auto, {', '.join(ALGORITHMS)}; by default all.",
    "ops": f"Of {', '.join(OPERATIONS)}; by default all.",
    "dtypes": f"Of {', '.join(samples.NAMES)}; by default {', '.join(QUICK_DTYPES)}.",
}


@click.command("validate")
@click.option("--algorithms", type=Names("algorithm", lambda: ["auto", *ALGORITHMS]), help=_HELP["algorithms"])
@click.option("--ops", type=Names("op", lambda: list(OPERATIONS)), help=_HELP["ops"])
@click.option("--dtypes", type=Names("dtype", lambda: list(samples.NAMES)), help=_HELP["dtypes"])
@click.option("--counts", type=Counts(), help="Numbers of elements; by default 0, 1, p-1, p, p+1 and primes.")
@click.option("--full", is_flag=True, help="All dtypes and more counts.")
@click.option("--json", "json_path", metavar="FILE|-", help="Write the findings as JSON.")
def validate_command(
    algorithms: list[str] | None,
    ops: list[str] | None,
    dtypes: list[str] | None,
    counts: list[int] | None,
    full: bool,
    json_path: str | None,
) -> int:
    """Validate the algorithms on these ranks.

    Algorithm x op x dtype x count, in place and out of place, against exact arithmetic and MPI_Allreduce. Lists are
    separated by commas.
    """
    if dtypes and (missing := [name for name in dtypes if name not in samples.dtypes()]):
        raise CommandError(f"dtype {missing[0]} needs the package ml_dtypes: pip install ml_dtypes")
    console = Console()
    with console.progress("validating") as progress:
        report = validate(
            console.comm,
            algorithms=algorithms,
            ops=ops,
            dtypes=dtypes,
            counts=counts,
            full=full,
            progress=progress,
        )
    if json_path:
        failures = [dataclasses.asdict(failure) for failure in report.failures]
        worst = {name: ulp if math.isfinite(ulp) else None for name, ulp in report.worst_ulp.items()}
        write_json(console, report._asdict() | {"failures": failures, "worst_ulp": worst}, json_path)
    if json_path != "-":
        show(console, report)
    return 1 if report.failures or not report.cases else 0


def show(console: Console, report: Report) -> None:
    """Print what a validation found."""
    ranks = f"{report.ranks} rank{'s' if report.ranks > 1 else ''}"
    if report.cases == 0:
        console.out("validation: no case: the algorithms and operations chosen do not take the dtypes chosen")
    elif not report.failures:
        console.out(
            f"validation: {report.cases} cases on {ranks}, 0 failures; all equal to exact arithmetic and to {REFERENCE}"
        )
    else:
        console.out(
            f"validation: {report.cases} cases on {ranks}, {len(report.failures)} failures, counted on each rank"
        )
        for failure in report.failures[:20]:
            console.out(f"  {failure}")
        if len(report.failures) > 20:
            console.out(f"  ... and {len(report.failures) - 20} more")
    if report.worst_ulp:
        worst = ", ".join(f"{name} {ulp:.2g}" for name, ulp in report.worst_ulp.items())
        console.out(f"worst error of random float sums, in units in the last place: {worst}")
