"""``sbatch``: a batch script for Slurm, printed or submitted."""

from __future__ import annotations

import glob
import os
import shlex
import shutil
import subprocess
import sys
from importlib import resources
from typing import Any

import click

from hpcreduce import batch
from hpcreduce.commands.console import LoneError
from hpcreduce.errors import BatchError
from hpcreduce.runtime import launch

_PATIENCE = 60
"""Seconds that Slurm has to answer."""

_ON_EACH_NODE = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/")
_DIGITS = "scripts/train_digits.py"


class Option(click.ParamType[tuple[str, str]]):
    """Another option of sbatch, ``NAME=VALUE`` or ``NAME``."""

    name = "option"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split and check."""
        if isinstance(value, tuple):
            return value
        name, sign, text = value.removeprefix("--").partition("=")
        if not (name.replace("-", "").isalnum() and name.isascii()) or (sign and not text):
            self.fail(f"{value!r} is no option of sbatch such as qos=high or constraint=haswell", param, ctx)
        return name, text


@click.command("sbatch")
@click.argument("kind", type=click.Choice(batch.KINDS), metavar="|".join(batch.KINDS))
@click.argument("arguments", nargs=-1, metavar="[ARGUMENTS...] [-- OPTIONS...]")
@click.option("--nodes", type=click.IntRange(1), metavar="N")
@click.option("--ntasks", type=click.IntRange(1), metavar="N", help="Ranks in all; by default those of all nodes.")
@click.option("--ntasks-per-node", type=click.IntRange(1), metavar="N", help="Ranks on a node.")
@click.option("--cpus-per-task", type=click.IntRange(1), metavar="N", help="CPUs of a rank, and its threads.")
@click.option("--time", metavar="[D-]HH:MM:SS", help="Limit; ranks are warned 60 s before.")
@click.option("--partition", metavar="NAME")
@click.option("--account", metavar="NAME")
@click.option("--mem", metavar="SIZE", help="Memory of a node, as 32G.")
@click.option("--mem-per-cpu", metavar="SIZE")
@click.option("--job-name", metavar="NAME")
@click.option("--output", metavar="FILE", help="What is printed; by default NAME-JOBID.out.")
@click.option("--option", "others", type=Option(), multiple=True, metavar="NAME[=VALUE]", help="Any other of sbatch's.")
@click.option("--modules", metavar="NAMES", help="To load first, as 'gcc openmpi'.")
@click.option("--venv", metavar="DIR", help="Virtual environment to use; by default the one of this Python.")
@click.option("--launcher", metavar="COMMAND", help="As 'srun --mpi=pmix'; by default what is found to work.")
@click.option("--submit", is_flag=True, help="Submit the script instead of printing it.")
@click.pass_context
def sbatch_command(
    context: click.Context,
    /,
    kind: str,
    arguments: tuple[str, ...],
    others: tuple[tuple[str, str], ...],
    modules: str | None,
    venv: str | None,
    launcher: str | None,
    submit: bool,
    **given: str | int | None,
) -> int:
    """Make a batch script for Slurm.

    validate: the main job. bench: tune, then bench. stats FILES...: statistics of files. train [PROGRAM...]: a program
    that goes on from its checkpoint when its time was up. What comes after -- are options of that command: sbatch stats
    data/ --nodes 4 --submit -- --columns price

    The script is whole, so that it can be kept, read and changed. The job fails unless all ranks say that they have
    finished. Needs neither ranks nor an MPI library.
    """
    _check(context, kind, arguments)
    options: dict[str, str | int | None] = {name.replace("_", "-"): value for name, value in given.items()}
    for name, text in others:
        if name in options or name in ("signal", "array"):
            raise click.UsageError(
                f"--option {name} is not free: " + ("use --" + name if name in options else "it is set")
            )
        options[name] = text
    if venv is None and sys.prefix != sys.base_prefix:
        venv = sys.prefix
    asked = {
        "HPCREDUCE_MODULES": modules,
        "HPCREDUCE_VENV": venv and os.path.abspath(venv),
        "HPCREDUCE_LAUNCHER": launcher,
    }
    settings = {name: value for name, value in asked.items() if value}
    folder = resources.files("hpcreduce") / "slurm"
    template, shared = ((folder / name).read_text() for name in (f"{kind}.sbatch", "env.sh"))
    origin = shlex.join(["python", "-m", "hpcreduce", *sys.argv[1:]])
    try:
        text = batch.script(template, shared, options, settings=settings, arguments=arguments, origin=origin)
    except BatchError as error:
        raise click.UsageError(str(error)) from None
    if launch.rank(os.environ) > 0:
        return 0
    if submit:
        _seen(kind, arguments)
        click.echo(_submit(text))
    else:
        click.echo(text, nl=False)
    return 0


def _check(context: click.Context, kind: str, arguments: tuple[str, ...]) -> None:
    """Refuse arguments that the command in the script would refuse."""
    group = context.parent.command if context.parent else None
    command = group.get_command(context, kind) if isinstance(group, click.Group) else None
    if kind == "stats" and (not arguments or arguments[0].startswith("-")):
        raise click.UsageError("expected files, folders or patterns of data before the options: sbatch stats data/")
    if kind == "train" and not arguments and not os.path.isfile(_DIGITS):
        raise click.UsageError(f"expected a program to train with: sbatch train mine.py (there is no {_DIGITS} here)")
    if command and arguments:
        command.make_context(kind, list(arguments), parent=context.parent)


def _seen(kind: str, arguments: tuple[str, ...]) -> None:
    """Refuse data that is not there, and tell of data that the nodes may not see."""
    if kind != "stats":
        return
    files = arguments[: next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))]
    for file in files:
        if not os.path.exists(file) and not glob.glob(file):
            raise LoneError(f"there is no file, folder or pattern {file}")
        if os.path.abspath(file).startswith(_ON_EACH_NODE):
            click.echo(f"note: {file} lies in a folder that each node usually has for itself", err=True)


def _submit(text: str) -> str:
    """Submit a script and return what to tell."""
    if not shutil.which("sbatch"):
        raise LoneError("no sbatch on PATH: submit on a login node of a cluster with Slurm, or leave out --submit")
    partitions = _ask(["sinfo", "--noheader", "--exact", "--format=%P %c %D"])
    if reason := batch.misfit(batch.options_of(text), partitions.stdout):
        raise LoneError(reason)
    done = _ask(["sbatch", "--parsable"], text)
    if done.returncode:
        reasons = (line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines())
        raise LoneError(f"sbatch refuses the job: {'; '.join(reasons) or 'it does not say why'}")
    job = done.stdout.strip().partition(";")[0]
    return f"job {job}: squeue -j {job} shows it, scancel {job} ends it"


def _ask(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a client of Slurm."""
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=_PATIENCE)
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 1, "", f"no {command[0]} on PATH")
    except subprocess.TimeoutExpired:
        raise LoneError(f"{command[0]} did not answer within {_PATIENCE} s: is Slurm's controller up?") from None
