"""How this process was launched, as far as the environment tells. Pure: the environment is passed in."""

from __future__ import annotations

from collections.abc import Mapping

from hpcreduce.errors import LaunchError

OVERRIDE = "HPCREDUCE_ALLOW_SINGLETON"

# Rank and size as launchers tell them; the first that is there decides, since an MPI launcher runs inside a Slurm step.
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def rank(environ: Mapping[str, str]) -> int:
    """Return the rank that the launcher gave this process, 0 where it gave none."""
    for name, _ in _VARIABLES:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return 0


def check(world_size: int, environ: Mapping[str, str]) -> None:
    """Raise LaunchError if the launcher started several processes and each is alone in its MPI world."""
    if world_size != 1 or environ.get(OVERRIDE) == "1":
        return
    for _, name in _VARIABLES:
        if environ.get(name, "").isdigit():
            started = int(environ[name])
            if started > 1:
                raise LaunchError(
                    f"the launcher started {started} processes ({name}={started}), but each is alone in its MPI world: "
                    + _remedy(name)
                    + f". If separate runs are what you want, set {OVERRIDE}=1"
                )
            return


def _remedy(name: str) -> str:
    if name.startswith("SLURM"):
        return "srun and the MPI library share no PMI; try srun --mpi=pmi2 or --mpi=pmix, or mpirun inside the job"
    return "the launcher belongs to another MPI library than the one loaded; use the mpirun of the same installation"
