"""The command line: one command, one short file.

Rules that hold here:

* Rank 0 prints; results go to stdout, notes and errors to stderr; every rank ends with the same status.
* Status 0: done; 1: it failed; 2: the command line is wrong. Nobody sees a traceback.
* An error on one rank is told to all (`console.Console.agree`) before any rank acts on it. One that was not foreseen is
  told to those who wait in a collective operation of ours, and ends the whole job if others wait elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

import hpcreduce
from hpcreduce.commands import (
    bench,
    console,
    doctor,
    draw,
    explain,
    fit,
    info,
    predict,
    quick,
    reduce,
    stats,
    tune,
    validate,
)
from hpcreduce.errors import (
    BrokenCommunicatorError,
    CollectiveTimeoutError,
    HpcreduceError,
    MismatchError,
    PeerError,
)
from hpcreduce.runtime import departure, launch

PROGRAM = "python -m hpcreduce"
PATIENCE = 2.0
"""Seconds that other ranks give rank 0 to print, where they share no MPI world to wait in."""
TERMINATED = 128 + signal.SIGTERM


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Run under mpirun or srun: mpirun -n 4 python -m hpcreduce",
)
@click.version_option(hpcreduce.__version__, prog_name="hpcreduce")
@click.pass_context
def main(context: click.Context) -> int:
    """All-reduce that you can read, prove, tune and trust.

    Without a command: validate the algorithms on these ranks, then time them beside MPI_Allreduce.
    """
    return quick.quick() if context.invoked_subcommand is None else 0


main.add_command(validate.validate_command)
main.add_command(bench.bench_command)
main.add_command(tune.tune_command)
main.add_command(reduce.reduce_command)
main.add_command(stats.stats_command)
main.add_command(draw.draw_command)
main.add_command(predict.predict_command)
main.add_command(explain.explain_command)
main.add_command(fit.fit_command)
main.add_command(doctor.doctor_command)
main.add_command(info.info_command)


def run(arguments: Sequence[str]) -> int:
    """Run the command line on this rank and return its exit status."""
    quiet = launch.rank(os.environ) > 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that partial files are removed
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext(),
            np.errstate(all="ignore"),
        ):
            return int(main.main(list(arguments), prog_name=PROGRAM, standalone_mode=False) or 0)
    except click.ClickException as error:
        if not isinstance(error, click.UsageError):
            return _refuse(error.format_message(), 1)
        command = error.ctx.command_path if error.ctx else PROGRAM
        return _refuse(f"{error.format_message()}\nTry '{command} --help'.", 2)
    except console.LoneError as error:
        return _end_job(error, str(error), 1)
    except PeerError:
        return 1  # the rank that failed has said why
    except (MismatchError, CollectiveTimeoutError, BrokenCommunicatorError) as error:
        return _give_up(error)
    except HpcreduceError as error:
        return _refuse(str(error), 1)
    except (KeyboardInterrupt, click.Abort) as error:
        return _end_job(error, "interrupted", 128 + signal.SIGINT)
    except SystemExit as error:
        reason = "terminated" if error.code == TERMINATED else "the reader of stdout has gone"  # so says click
        return _end_job(error, reason, int(error.code or 0))
    except MemoryError as error:
        return _end_job(error, f"not enough memory: {error}", 1)
    except BrokenPipeError as error:
        return _end_job(error, "the reader of stdout has gone", 1)
    except Exception as error:
        return _end_job(error, f"{type(error).__name__}: {error}", 1)


def _refuse(message: str, status: int) -> int:
    """Every rank is here with the same message: print it once, and leave together."""
    mpi: Any = None
    with contextlib.suppress(HpcreduceError):
        mpi = console.load_mpi()
    rank = mpi.COMM_WORLD.rank if mpi and mpi.COMM_WORLD.size > 1 else launch.rank(os.environ)
    if rank == 0:
        click.echo(f"hpcreduce: error: {message}", err=True)
    # Leave after rank 0 has printed: some launchers end the job at the first rank that fails.
    if mpi and mpi.COMM_WORLD.size > 1:
        mpi.COMM_WORLD.Barrier()
    elif rank > 0:
        time.sleep(PATIENCE)
    return status


def _give_up(error: HpcreduceError) -> int:
    """The ranks that wait in an operation are here with the same error, others may be anywhere."""
    comm: Any = sys.modules["mpi4py.MPI"].COMM_WORLD
    absent = getattr(error, "ranks", ())
    if comm.rank == min(set(range(comm.size)) - {*absent}, default=0):
        with contextlib.suppress(OSError):
            click.echo(f"hpcreduce: error: {error}", err=True)
    departure.end_job(1)
    return 1


def _end_job(error: BaseException, message: str, status: int) -> int:
    """Only this rank is here: the others must not wait for it."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    several = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1
    with contextlib.suppress(OSError):
        click.echo(f"hpcreduce: error: {f'rank {mpi.COMM_WORLD.rank}: ' if several else ''}{message}", err=True)
    departure.tell(error)
    departure.end_job(status)
    return status
