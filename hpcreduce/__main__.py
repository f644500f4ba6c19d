"""``python -m hpcreduce``."""

import sys

from hpcreduce.commands import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
