"""Run the command line with no room for long files."""

import resource
import sys

from mpi4py import MPI

from hpcreduce import commands

if MPI.COMM_WORLD.rank == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.exit(commands.run(sys.argv[1:]))
