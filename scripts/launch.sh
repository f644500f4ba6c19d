#!/usr/bin/env bash
# Start a command on N ranks with the mpirun of whichever MPI library comes first on PATH:
#     scripts/launch.sh N COMMAND [ARGUMENT ...]
# Open MPI wants a word where there are more ranks than cores, and where the user is root; MPICH knows neither.
# HPCREDUCE_LAUNCH_LIMIT ends it after so many seconds, with status 124 (0: never). By default that is 600 inside a Slurm
# step, where mpirun may wait for ever, and never elsewhere.
set -euo pipefail
here=${BASH_SOURCE[0]%/*}
[ -d "$here" ] || here=.
# shellcheck source-path=SCRIPTDIR source=limits.sh
source "$here/limits.sh"
if [ $# -lt 2 ]; then
    echo "usage: $0 RANKS COMMAND [ARGUMENT ...]" >&2
    exit 2
fi
ranks=$1
shift
limit=${HPCREDUCE_LAUNCH_LIMIT:-$(in_step && echo 600 || echo 0)}
if ! [[ $limit =~ ^[0-9]{1,9}$ ]]; then
    echo "$0: HPCREDUCE_LAUNCH_LIMIT is a whole number of seconds, not '$limit'" >&2
    exit 2
fi
limit=$((10#$limit))
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
if in_step; then
    bound=$( ((limit > 0)) && echo "ends after $limit s" || echo "has no limit")
    echo "$0: $(step_advice). This launch $bound (HPCREDUCE_LAUNCH_LIMIT)" >&2
fi
if ((limit == 0)); then
    exec mpirun "${options[@]}" -n "$ranks" "$@"
fi

# In this shell's process group (--foreground), so that whoever ends or interrupts the group reaches mpirun as without a
# limit; in the background, so that a signal to this shell alone is passed on at once.
start=$SECONDS
timeout --foreground --kill-after=10 "$limit" mpirun "${options[@]}" -n "$ranks" "$@" <&0 &
trap 'kill -TERM $! 2>/dev/null || true' TERM INT HUP
status=0
wait $! || status=$?
while kill -0 $! 2>/dev/null; do # a signal has ended the wait early
    status=0
    wait $! || status=$?
done
if hit "$status" $((SECONDS - start)) "$limit"; then
    advice=$(! in_step || echo "; $(step_advice)")
    echo "$0: mpirun had not ended after $limit s (HPCREDUCE_LAUNCH_LIMIT) and was stopped$advice" >&2
    status=124
fi
exit "$status"
