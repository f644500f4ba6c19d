"""A program says that it has come to its end, since the exit status of a launcher may say so when it has not."""

from __future__ import annotations

import os
from typing import Any

from hpcreduce.collectives import allreduce

VARIABLE = "HPCREDUCE_FINISHED"
"""Variable that names the file in which it is said; `launch` in slurm/env.sh sets it."""


def finished(comm: Any) -> None:
    """Say that this program has done all that it was to do; the last line of a program that runs in a batch job.

    Collective. Once all ranks are here, the first one writes their number to the file that ``HPCREDUCE_FINISHED``
    names; `launch` of ``slurm/env.sh`` fails the job where that is missing, or is another number than Slurm was asked
    for. Without the variable nothing happens, and no message is sent.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        All ranks: ``MPI.COMM_WORLD``.

    Raises
    ------
    OSError
        The file cannot be written.
    TypeError, ValueError, CollectiveTimeoutError, BrokenCommunicatorError, HpcreduceError
        As `hpcreduce.allreduce`.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    ranks = int(allreduce(comm, 1))
    if comm.rank == 0:
        partial = f"{path}.{os.getpid()}.part"
        with open(partial, "w") as file:
            file.write(f"{ranks}\n")
        os.replace(partial, path)
