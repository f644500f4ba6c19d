"""Steps that depend on all ranks and on all steps before, with a checkpoint, as slurm/train.sbatch starts a program.

    steps.py FOLDER SCENARIO --checkpoint FILE [--resume]

Writes FOLDER/result at its end. SCENARIO says how it goes on: quick, slow (but when it goes
on), or lies (it ends early, with status 0).
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hpcreduce

STEPS = 60
comm = MPI.COMM_WORLD
folder, scenario, checkpoint = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[4])
value, first, told = 1, 0, []
if sys.argv[5:] == ["--resume"]:
    with np.load(checkpoint) as file:
        value, first = int(file["value"]), int(file["step"])
hpcreduce.allreduce(comm, 0)
for number in signal.SIGUSR1, signal.SIGTERM:
    signal.signal(number, lambda number, _: told.append(number))
if scenario == "lies":
    sys.exit()
if comm.rank == 0:
    (folder / f"started at {first}").touch()
for step in range(first, STEPS):
    value = int(hpcreduce.allreduce(comm, (value * 31 + comm.rank * step) % 1_000_003))
    if scenario == "slow" and first == 0:
        time.sleep(0.2)
    if hpcreduce.allreduce(comm, bool(told), op="lor"):
        if comm.rank == 0:
            with open(f"{checkpoint}.part", "wb") as file:
                np.savez(file, value=value, step=step + 1)
            os.replace(f"{checkpoint}.part", checkpoint)
        sys.exit(3)
if comm.rank == 0:
    (folder / "result").write_text(f"{value}\n")
hpcreduce.finished(comm)
