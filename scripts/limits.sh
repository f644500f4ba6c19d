# shellcheck shell=bash
# Time limits, and what to say of Slurm where one is hit. Meant to be sourced.

# in_step: whether this shell runs in a step that srun started. Slurm keeps the numbers above 0xfffffff0 for batch
# scripts and interactive shells, in which mpirun may start steps.
in_step() {
    [[ ${SLURM_STEP_ID:-} =~ ^[0-9]{1,10}$ ]] && ((10#$SLURM_STEP_ID <= 0xfffffff0))
}

# step_advice: what to do where mpirun waits for a step of its own beside the one that this shell holds.
step_advice() {
    echo "inside a Slurm step (SLURM_STEP_ID=$SLURM_STEP_ID) mpirun may wait for ever for a step of its own:" \
        "start from sbatch or salloc, or start the outer step with srun --overlap"
}

# hit STATUS SECONDS LIMIT: whether a command under `timeout --kill-after` that took SECONDS was ended at its limit.
hit() {
    [[ $1 == 124 || $1 == 137 ]] && (($3 > 0 && $2 >= $3))
}

# step NAME SECONDS COMMAND...: run it under a time limit and keep its status in the folder $results.
step() {
    local name=$1 limit=$2 status seconds start=$SECONDS
    shift 2
    echo "== $name"
    timeout --kill-after=20 "$limit" "$@" </dev/null
    status=$?
    seconds=$((SECONDS - start))
    echo "   $name: status $status, $seconds s"
    if hit "$status" "$seconds" "$limit"; then
        echo "   $name: was stopped at its limit of $limit s$(! in_step || echo "; $(step_advice)")"
    fi
    echo "$status" >"${results:?}/$name.status"
}
