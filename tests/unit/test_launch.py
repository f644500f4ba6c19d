"""What the launcher's environment says."""

import pytest

from hpcreduce.errors import LaunchError
from hpcreduce.measure.environment import library_name
from hpcreduce.runtime import launch


@pytest.mark.parametrize(
    ("environ", "advice"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "3"}, "another MPI library"),
        ({"PMI_SIZE": "3", "PMI_RANK": "1"}, "another MPI library"),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}, "srun --mpi"),
    ],
)
def test_L02_many_worlds_of_one_rank_are_refused(environ, advice):
    with pytest.raises(LaunchError) as caught:
        launch.check(1, environ)
    (name,) = [name for name in environ if name.endswith(("SIZE", "TASKS"))]
    assert advice in str(caught.value) and f"{name}={environ[name]}" in str(caught.value)
    launch.check(1, environ | {launch.OVERRIDE: "1"})
    launch.check(3, environ)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"PMI_SIZE": "1"},
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_NTASKS": "4"},  # a serial run inside an allocation
        {"OMPI_COMM_WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "4"},  # the step of the launcher's daemons
        {"PMI_SIZE": "many"},
    ],
)
def test_serial_runs_are_fine(environ):
    launch.check(1, environ)


def test_rank():
    assert launch.rank({}) == 0
    assert launch.rank({"PMI_RANK": "2"}) == 2
    assert launch.rank({"OMPI_COMM_WORLD_RANK": "0", "SLURM_PROCID": "3"}) == 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Intel(R) MPI Library 2021.16 for Linux* OS\n", "Intel(R) MPI 2021.16"),
        ("MVAPICH Version      :\t4.0\n", "MVAPICH 4.0"),
        (
            "MPI VERSION    : CRAY MPICH version 8.1.29.4 (ANL base 3.4a2)\n",
            "CRAY MPICH 8.1.29.4",
        ),
        ("Some MPI without a number", "Some MPI without a number"),
    ],
)
def test_library_names(text, name):
    assert library_name(text) == name
