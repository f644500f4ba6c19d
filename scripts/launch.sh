#!/usr/bin/env bash
# Start a command on N ranks with the mpirun of whichever MPI library comes first on PATH:
#     scripts/launch.sh N COMMAND [ARGUMENT ...]
# Open MPI wants a word where there are more ranks than cores, and where the user is root; MPICH knows neither.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 RANKS COMMAND [ARGUMENT ...]" >&2
    exit 2
fi
ranks=$1
shift
if ! command -v mpirun >/dev/null; then
    echo "$0: no mpirun on PATH: activate the environment, or load the MPI module of your cluster" >&2
    exit 1
fi
options=()
case $(mpirun --version 2>&1) in
    *"Open MPI"* | *OpenRTE* | *PRRTE* | *prterun*)
        options=(--oversubscribe)
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        ;;
esac
exec mpirun "${options[@]}" -n "$ranks" "$@"
