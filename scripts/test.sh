#!/usr/bin/env bash
# Run all tests on a fresh machine: a virtual environment per MPI library (from PyPI), style, types, unit tests without
# MPI, then tests on real ranks, of the command line, across hosts, and of batch jobs under both libraries.
#
#     scripts/test.sh [--long]
#
# The real ranks are 1, 2, 3 and 5 under Open MPI, 1, 2, 3 and 7 under MPICH. --long adds 7 and 5, and the proofs for many
# ranks. PYTHON names another interpreter, HPCREDUCE_VENVS another folder for the environments, HPCREDUCE_RANKS other
# rank counts. Ends with one line: N passed, M failed, K skipped.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
cd "$root" || exit 1
# shellcheck source-path=SCRIPTDIR source=limits.sh
source scripts/limits.sh
python=${PYTHON:-python3}
venvs=${HPCREDUCE_VENVS:-$root/.venv}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
unset PYTHONPATH PYTHONDONTWRITEBYTECODE # without compiled modules each of the many launches would compile them anew
export OMP_NUM_THREADS=1
export HPCREDUCE_LAUNCH_LIMIT=0 # each step below has its own

long=()
case ${1:-} in
    "") ;;
    --long) long=(--long) ;;
    *) echo "usage: $0 [--long]" >&2; exit 2 ;;
esac

# environment LIBRARY: make the virtual environment, or bring it up to date.
environment() {
    local place="$venvs/$1"
    if [ ! -x "$place/bin/python" ] && ! "$python" -m venv "$place"; then
        rm -rf "$place"
        [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
        apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv || return 1
        "$python" -m venv "$place" || return 1
    fi
    "$place/bin/python" -m pip install --quiet --disable-pip-version-check --editable "${root}[$1,dev,test]"
}

for library in openmpi mpich; do
    if ! environment "$library"; then
        echo "cannot make the environment $venvs/$library" >&2
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
done

# mpi4py's own tests, which the drop-in has to pass, come with its source distribution.
fetch_mpi4py_tests() {
    local version place
    version=$("$venvs/openmpi/bin/python" -c 'from importlib.metadata import version; print(version("mpi4py"))') || return 1
    place="$venvs/mpi4py-$version"
    if [ ! -d "$place/test" ]; then
        rm -rf "$place.part" && mkdir -p "$place.part" || return 1
        "$venvs/openmpi/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary mpi4py \
            --dest "$place.part" "mpi4py==$version" || return 1
        tar -xzf "$place.part"/mpi4py-*.tar.gz -C "$place.part" --strip-components=1 || return 1
        rm -rf "$place" && mv "$place.part" "$place" || return 1
    fi
    export HPCREDUCE_MPI4PY_TESTS="$place/test"
}
fetch_mpi4py_tests || echo "mpi4py's source distribution cannot be had: its tests on the drop-in are skipped" >&2

# The tests across hosts make networks with ip and tc, those of batch scripts start a Slurm; without them they are skipped,
# with the reason.
tools_of_the_system() {
    local tool missing=()
    for tool in tc:iproute2 slurmctld:slurm-wlm munged:munge shellcheck:shellcheck; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
    done
    [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"
}
tools_of_the_system >/dev/null

tools="$venvs/openmpi/bin"
report() { echo --junit-xml="$results/$1.xml"; }
step ruff 120 "$tools/ruff" check .
step format 120 "$tools/ruff" format --check .
step mypy 300 "$tools/mypy"
! command -v shellcheck >/dev/null || step shellcheck 60 shellcheck -x slurm/*.sbatch slurm/env.sh scripts/*.sh
step unit 1500 "$tools/python" -m pytest -q -n auto "${long[@]}" "$(report unit)" tests/unit

# use LIBRARY: its environment is the one in which the steps that follow run.
use() {
    local other
    other=$([ "$1" = openmpi ] && echo mpich || echo openmpi)
    export PATH="$venvs/$1/bin:$PATH" HPCREDUCE_TEST_OTHER_MPIRUN="$venvs/$other/bin/mpirun"
}

# on_ranks LIBRARY COUNT: the tests on real ranks.
on_ranks() {
    local name="mpi-$1-$2"
    step "$name" 600 scripts/launch.sh "$2" python -m pytest -q --with-mpi "$(report "$name")" tests/mpi
}

# One rank takes one core, so those of both libraries run side by side.
if [ -z "${HPCREDUCE_RANKS:-}" ]; then
    for library in openmpi mpich; do
        (use "$library" && on_ranks "$library" 1) >"$results/$library.log" 2>&1 &
    done
    wait
    cat "$results"/{openmpi,mpich}.log
fi
for library in openmpi mpich; do
    use "$library"
    ranks="2 3 $([ "$library" = openmpi ] && echo 5 || echo 7)"
    [ ${#long[@]} -eq 0 ] || ranks="2 3 5 7"
    for count in ${HPCREDUCE_RANKS:-$ranks}; do
        on_ranks "$library" "$count"
    done
    # A launch waits for much of its time. Those that measure time have the machine for themselves.
    step "cli-$library" 900 python -m pytest -q -n 3 --dist worksteal -m "not timed" "$(report "cli-$library")" tests/cli
    step "timed-$library" 300 python -m pytest -q -m timed "$(report "timed-$library")" tests/cli
    step "net-$library" 300 python -m pytest -q "$(report "net-$library")" tests/net
    step "slurm-$library" 300 python -m pytest -q -n 3 --dist loadfile "$(report "slurm-$library")" tests/slurm
done
"$tools/python" scripts/tally.py "$results"
