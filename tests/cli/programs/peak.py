"""Run the command line, and say how much memory this rank held at most: ``peak.py FOLDER ARGUMENTS...``."""

import resource
import sys
from pathlib import Path

from mpi4py import MPI

from hpcreduce import commands

status = commands.run(sys.argv[2:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
Path(sys.argv[1], f"peak.{MPI.COMM_WORLD.rank}").write_text(str(peak))
sys.exit(status)
