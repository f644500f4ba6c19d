"""How this process was launched, as far as the environment tells. Pure: the environment is passed in.

Rules that hold here:

* ``mpirun`` runs inside what a resource manager started, so its variables count before the manager's.
* What may be right is let through: a launcher inside another one, a task that is alone, an allocation without a step.
* Only a world of one rank is refused. A larger one that differs from the launcher's number is no error by itself: a
  launcher that sets none of these variables may run inside one that does, and variables outlive a launch in the jobs
  that are submitted from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hpcreduce.errors import LaunchError

OVERRIDE = "HPCREDUCE_ALLOW_SINGLETON"
"""Variable that, set to 1, says that separate runs of one rank are meant."""

LAST_STEP = 0xFFFFFFF0
"""Highest number of a step that srun starts; Slurm keeps those above for batch scripts and interactive shells."""


class _Launcher(NamedTuple):
    """A launcher, the variables that tell rank and size, and what to do where the MPI library does not heed it."""

    name: str
    rank: str
    size: str
    remedy: str


_OTHER_LIBRARY = (
    "the launcher belongs to another MPI library than the one loaded; use the mpirun of the same installation"
)

_MPIRUNS = (
    _Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", _OTHER_LIBRARY),
    _Launcher("mpirun", "PMI_RANK", "PMI_SIZE", _OTHER_LIBRARY),
    _Launcher("mpirun_rsh", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", _OTHER_LIBRARY),
)

# Flux before Slurm, since it may run in a step of it. PALS tells the size by PMI's variable alone.
_MANAGERS = (
    _Launcher(
        "flux run",
        "FLUX_TASK_RANK",
        "FLUX_JOB_SIZE",
        "flux and the MPI library share no PMI; try flux run -o pmi=pmix for Open MPI, or the library's own mpirun "
        "inside flux alloc or flux batch",
    ),
    _Launcher(
        "jsrun",
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        "the MPI library does not know jsrun; use the system's MPI library, or the loaded library's own mpirun",
    ),
    _Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "srun and the MPI library share no PMI; try srun --mpi=pmix for Open MPI or srun --mpi=pmi2 for MPICH (srun "
        "--mpi=list shows what there is), or the library's own mpirun inside sbatch or salloc",
    ),
    _Launcher(
        "PALS",
        "PALS_RANKID",
        "PMI_SIZE",
        "PALS and the MPI library share no PMI; use the system's MPI library, or the loaded library's own mpirun",
    ),
)


def rank(environ: Mapping[str, str]) -> int:
    """Return the rank that the launcher gave this process; 0 where it gave none, and where separate runs are meant."""
    if environ.get(OVERRIDE) == "1":
        return 0
    ranks = (_number(environ, launcher.rank) for launcher in _MPIRUNS + _MANAGERS)
    return next((rank for rank in ranks if rank is not None), 0)


def launcher(environ: Mapping[str, str]) -> str | None:
    """Return the name of the launcher that started this process, if any is known."""
    found = _launcher(environ)
    return found.name if found else None


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether this process runs in a step that srun started."""
    step = _number(environ, "SLURM_STEP_ID")
    return step is not None and step <= LAST_STEP


def check(world_size: int, environ: Mapping[str, str]) -> None:
    """Refuse a process that is alone in its MPI world although its launcher started several.

    Parameters
    ----------
    world_size : int
        Ranks in COMM_WORLD.
    environ : mapping of str to str
        The environment, as `os.environ`.

    Raises
    ------
    LaunchError
        The text says how many ranks were expected and by which variable, and what to do.

    Notes
    -----
    A serial child of a rank inherits the variables and so looks the same; `OVERRIDE`, which the text names, is for it.
    """
    if world_size != 1 or environ.get(OVERRIDE) == "1":
        return
    launcher = _launcher(environ)
    started = _size(environ, launcher) if launcher else None
    if launcher and started and started > 1:
        raise LaunchError(
            f"expected {started} ranks, since {launcher.name} started {started} processes ({launcher.size}={started}), "
            f"but each is alone in its MPI world: {launcher.remedy}. "
            f"If separate runs are what you want, set {OVERRIDE}=1"
        )


def _launcher(environ: Mapping[str, str]) -> _Launcher | None:
    """Return the launcher that started this process, if any is known."""
    for group in _MPIRUNS, _MANAGERS:
        told = [launcher for launcher in group if _size(environ, launcher)]
        if told:
            # Of two mpiruns, one in the other, nobody can tell which is the inner one: a single rank is believed.
            launcher = min(told, key=lambda each: _size(environ, each) != 1)
            return _behind(environ, launcher)
    return None


def _behind(environ: Mapping[str, str], launcher: _Launcher) -> _Launcher:
    """Return the resource manager that set PMI's variables itself, or `launcher`, whose they are otherwise."""
    told = (_number(environ, launcher.rank), _size(environ, launcher))
    if launcher.size != "PMI_SIZE" or told[0] is None:
        return launcher
    same = (each for each in _MANAGERS if (_number(environ, each.rank), _size(environ, each)) == told)
    return next(same, launcher)


def _size(environ: Mapping[str, str], launcher: _Launcher) -> int | None:
    if launcher.name == "srun" and (_number(environ, "SLURM_STEP_ID") or 0) > LAST_STEP:
        return None
    return _number(environ, launcher.size)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
