# shellcheck shell=bash
# What the batch scripts share: an environment, a launcher that works here, and a verdict that does not lie. Meant to be
# sourced; `python -m hpcreduce sbatch` puts it into the scripts that it makes.
#
# To set before sbatch, or in a script before this file is sourced:
#   HPCREDUCE_MODULES    modules to load, such as "gcc openmpi python"
#   HPCREDUCE_VENV       virtual environment to use; without it, the Python that comes first on PATH
#   HPCREDUCE_LAUNCHER   starts the ranks, such as "srun --mpi=pmix"; without it, what is found to work
#   HPCREDUCE_PATIENCE   seconds from the warning signal until ranks are ended that go on (default 30)
#   HPCREDUCE_RESTARTS   how often `launch_again` puts a job back into the queue (default 20)
# To use in a script:
#   launch COMMAND...        start it on all ranks; fails unless it says that it has finished, on all ranks
#   launch_again COMMAND...  the same; a job that its time limit has stopped goes back into the queue, and on
#   seen FILE...             fails where a node does not see a file, folder or pattern
#   $folder                  of this job's results; it stays the same when the job goes back into the queue
#   $tasks                   ranks

say() { echo "hpcreduce: $*" >&2; }
fail() {
    say "error: $*"
    exit 1
}

# expand "4(x2),3": one number for each node, "4 4 3".
expand() {
    local part count
    for part in ${1//,/ }; do
        count=1
        [[ $part =~ ^([0-9]+)\(x([0-9]+)\)$ ]] && part=${BASH_REMATCH[1]} count=${BASH_REMATCH[2]}
        for ((; count > 0; count--)); do echo -n "$part "; done
    done
}

# library: which MPI library Python finds, and whose it is; MPI is not started for it.
library() {
    python - <<'END'
import sys

try:
    import hpcreduce
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    sys.exit(f"{sys.executable}: {str(error).splitlines()[0]}")
with open("/proc/self/maps") as maps:
    files = [line.split(maxsplit=5)[5].strip() for line in maps if "/libmpi" in line]
place = "of Python's environment" if any(file.startswith(sys.prefix + "/") for file in files) else "of the system"
print(*MPI.Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0].split(), place)
END
}

# tasks_and_cpus: count ranks, and see that each has the cores that it was asked with.
tasks_and_cpus() {
    local -a ranks cpus
    local i
    read -ra ranks <<<"$(expand "$SLURM_TASKS_PER_NODE")"
    read -ra cpus <<<"$(expand "$SLURM_JOB_CPUS_PER_NODE")"
    tasks=${SLURM_NTASKS:-$((${ranks[*]/%/+}0))}
    threads=${SLURM_CPUS_PER_TASK:-1}
    for i in "${!ranks[@]}"; do
        ((ranks[i] * threads <= cpus[i])) || fail "${ranks[i]} ranks of $threads CPUs on a node where the job has" \
            "${cpus[i]} CPUs: ask for fewer --ntasks-per-node or --cpus-per-task, or for more --nodes"
    done
    # One rank, one thread, unless --cpus-per-task says more.
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-$threads}
    export MKL_NUM_THREADS=${MKL_NUM_THREADS:-$threads} NUMBA_NUM_THREADS=${NUMBA_NUM_THREADS:-$threads}
    export HPCREDUCE_TASKS=$tasks # which ranks cannot see otherwise: in a step, SLURM_NTASKS is that of the step
}

# joins TYPE: whether tasks that srun starts with this PMI find each other.
joins() {
    local count=$((tasks < 2 ? 1 : 2)) nodes=$((SLURM_JOB_NUM_NODES < 2 || tasks < 2 ? 1 : 2)) sizes
    sizes=$(timeout 60 srun --mpi="$1" --kill-on-bad-exit=1 --nodes="$nodes" --ntasks="$count" python -c \
        'from mpi4py import MPI; print(MPI.COMM_WORLD.size)' 2>/dev/null </dev/null | sort -u)
    [ "$sizes" = "$count" ]
}

# choose_launcher: what comes with an MPI library from PyPI or conda is started by its own mpirun, which starts its daemons
# by srun: Slurm's PMI need not fit it, and one that seems to (PMI-2 and MPICH) was seen to garble what it is told. For the
# system's library, srun with the PMI by which two tasks find each other.
choose_launcher() {
    local name offered type why
    name=$(library 2>&1) || fail "no hpcreduce, or no MPI library, on node $(hostname) (${name##*$'\n'}): set" \
        "HPCREDUCE_VENV to an environment that all nodes see, or HPCREDUCE_MODULES"
    if [ -n "${HPCREDUCE_LAUNCHER:-}" ]; then
        read -ra launcher <<<"$HPCREDUCE_LAUNCHER"
        why="since HPCREDUCE_LAUNCHER says so"
    elif [[ $name == *"of Python's environment" ]]; then
        why="since it is not made for this Slurm"
    else
        offered=$(srun --mpi=list 2>&1)
        [[ $name == "Open MPI"* ]] && type=pmix || type="cray_shasta pmi2 pmix"
        for type in $type; do
            if grep -qw "$type" <<<"$offered" && joins "$type"; then
                launcher=(srun --mpi="$type" --kill-on-bad-exit=1)
                why="since two tasks found each other so"
                break
            fi
        done
    fi
    if [ ${#launcher[@]} -eq 0 ]; then
        command -v mpirun >/dev/null || fail "no mpirun on PATH, and srun has no PMI that fits $name"
        launcher=(mpirun -n "$tasks")
        # Open MPI would keep all threads of a rank on one core.
        [[ $name != "Open MPI"* || $threads == 1 ]] || launcher+=(--bind-to none)
        why=${why:-since srun has no PMI that fits it}
    fi
    # srun does not take this over from sbatch, but mpirun's daemons must not: they would get the CPUs of one rank.
    [[ ${launcher[0]} != srun || -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
    say "ranks: $tasks, CPUs of each: $threads, nodes: $SLURM_JOB_NUM_NODES ($SLURM_JOB_NODELIST)"
    say "$name, started by ${launcher[*]}, $why"
}

# What ends a job early: the warning signal (see --signal in the scripts) lets ranks write what they have, and dump their
# last calls; those that go on are ended. scancel tells this shell, too.
warned() {
    stopped="the time limit"
    [ -n "$running" ] || return
    say "the time limit is near: ranks are told (SIGUSR1), and ended in ${HPCREDUCE_PATIENCE:-30} s (SIGTERM)"
    kill -USR1 "$running" 2>/dev/null
    { sleep "${HPCREDUCE_PATIENCE:-30}" && kill -TERM "$running"; } 2>/dev/null &
    reaper=$!
}
cancelled() {
    stopped=${stopped:-a signal}
    [ -z "$running" ] || kill -TERM "$running" 2>/dev/null
}

launch() {
    local status=0 said
    rm -f "$HPCREDUCE_FINISHED"
    "${launcher[@]}" "$@" </dev/null &
    running=$!
    [ -z "$stopped" ] || kill -TERM "$running" 2>/dev/null # a signal came before
    wait "$running" || status=$?
    while kill -0 "$running" 2>/dev/null; do # a signal has ended the wait early
        status=0
        wait "$running" || status=$?
    done
    running=
    [ -z "$reaper" ] || kill "$reaper" 2>/dev/null
    said=$(cat "$HPCREDUCE_FINISHED" 2>/dev/null)
    if [ -z "$said" ] && [ -n "$stopped" ]; then
        say "error: $stopped has stopped the program before its end (status $status)"
    elif [ -z "$said" ]; then
        say "error: the program did not say that it has finished: ranks may have failed, or a node may be lost" \
            "(${launcher[0]} ended with status $status)"
    elif [ "$said" != "$tasks" ]; then
        say "error: expected $tasks ranks (SLURM_NTASKS), found a world of $said: ${launcher[*]} does not fit the MPI library"
    elif [ "$status" != 0 ]; then
        say "error: the program has finished, but ${launcher[0]} ended with status $status"
    else
        say "finished on $said ranks"
        return 0
    fi
    return $((status ? status : 1))
}

launch_again() {
    local status=0 restarts=${SLURM_RESTART_COUNT:-0}
    launch "$@" || status=$?
    if ((status)) && [ "$stopped" = "the time limit" ] && ((restarts < ${HPCREDUCE_RESTARTS:-20})); then
        say "back into the queue, for the $((restarts + 1)). time"
        scontrol requeue "$SLURM_JOB_ID" && sleep 60 # until Slurm ends this script
    fi
    return "$status"
}

seen() {
    local said missing
    # shellcheck disable=SC2016 # for the shells on the nodes
    said=$(timeout 120 srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" \
        --ntasks-per-node=1 --cpus-per-task=1 bash -c 'for file; do
            [ -e "$file" ] || compgen -G "$file" >/dev/null || echo "node $SLURMD_NODENAME does not see $file"
        done' bash "$@" </dev/null 2>&1) || fail "srun cannot look for the data on all nodes: ${said##*$'\n'}"
    missing=$(grep "^node .* does not see " <<<"$said" | sort | head -n 3)
    [ -z "$missing" ] || fail "${missing//$'\n'/, }: data must lie in a file system that all nodes share"
}

[ -n "${SLURM_JOB_ID:-}" ] || fail "this is no job of Slurm: start the script with sbatch"
if [[ ${SLURM_STEP_ID:-} =~ ^[0-9]{1,10}$ ]] && ((10#$SLURM_STEP_ID <= 0xfffffff0)); then
    fail "inside a step of srun (SLURM_STEP_ID=$SLURM_STEP_ID) a launcher may wait for ever: start the script with sbatch"
fi
for module in ${HPCREDUCE_MODULES:-}; do
    module load "$module" || fail "cannot load the module $module (HPCREDUCE_MODULES)"
done
[ -z "${HPCREDUCE_VENV:-}" ] || PATH=$HPCREDUCE_VENV/bin:$PATH
launcher=() running='' reaper='' stopped=''
folder=$SLURM_SUBMIT_DIR/$SLURM_JOB_NAME-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
mkdir -p "$folder" || fail "cannot make $folder on node $(hostname): submit from a folder that all nodes see"
export HPCREDUCE_FINISHED=$folder/finished HPCREDUCE_DUMP_DIR=$folder/dumps
trap warned USR1
trap cancelled TERM
tasks_and_cpus
choose_launcher
