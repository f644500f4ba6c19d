"""Reduce for ever; each rank writes its process id into a file."""

import os
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hpcreduce

comm = MPI.COMM_WORLD
array = np.ones(int(sys.argv[2]))
hpcreduce.allreduce(comm, array, array, algorithm=sys.argv[1])
Path(f"pid.{comm.rank}.part").write_text(str(os.getpid()))
os.replace(f"pid.{comm.rank}.part", f"pid.{comm.rank}")
while True:
    array.fill(1)
    hpcreduce.allreduce(comm, array, array, algorithm=sys.argv[1])
