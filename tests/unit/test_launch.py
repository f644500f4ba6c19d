"""What the launcher's environment says."""

import pytest

from hpcreduce.errors import LaunchError
from hpcreduce.measure.environment import library_name
from hpcreduce.runtime import launch

STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}
SRUN = ("srun started 4", "SLURM_STEP_NUM_TASKS=4", "srun --mpi=pmix", "srun --mpi=pmi2", "sbatch")
MPIRUN = ("another MPI library", "mpirun of the same installation")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "3"}, ("OMPI_COMM_WORLD_SIZE=3", *MPIRUN)),
        ({"PMI_SIZE": "3"}, ("PMI_SIZE=3", *MPIRUN)),
        ({"PMI_SIZE": "3", "PMI_RANK": "1"}, ("PMI_SIZE=3", *MPIRUN)),
        ({"MV2_COMM_WORLD_SIZE": "3"}, ("mpirun_rsh started 3", "MV2_COMM_WORLD_SIZE=3", *MPIRUN)),
        ({"PMI_SIZE": "3", "PMI_RANK": "0", "PALS_RANKID": "0"}, ("PALS started 3", "PMI_SIZE=3", "the system's MPI")),
        ({"FLUX_JOB_SIZE": "4", "FLUX_TASK_RANK": "2"}, ("FLUX_JOB_SIZE=4", "flux run -o pmi=pmix", "flux batch")),
        (
            {"FLUX_JOB_SIZE": "4", "FLUX_TASK_RANK": "2", "PMI_SIZE": "4", "PMI_RANK": "2"},
            ("FLUX_JOB_SIZE=4", "flux run -o pmi=pmix"),
        ),
        ({"FLUX_JOB_SIZE": "4", "FLUX_TASK_RANK": "2"} | STEP | {"SLURM_STEP_NUM_TASKS": "2"}, ("FLUX_JOB_SIZE=4",)),
        ({"JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_RANK": "0"}, ("jsrun started 4", "JSM_NAMESPACE_SIZE=4")),
        # mpirun of another library on several nodes: the step is that of its daemons
        (STEP | {"SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "8", "PMI_RANK": "3"}, ("PMI_SIZE=8", *MPIRUN)),
        (STEP | {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}, ("OMPI_COMM_WORLD_SIZE=4", *MPIRUN)),
    ],
)
def test_L02_many_worlds_of_one_rank_are_refused(environ, words):
    refused(environ, *words)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"PMI_RANK": "1", "PMI_SIZE": "4"},  # --mpi=pmi2
        {"PMI_RANK": "1", "PMI_SIZE": "4", "PALS_RANKID": "1"},  # --mpi=cray_shasta
        {"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.9258.0"},  # --mpi=pmix
        {"SLURM_STEP_ID": "17"},
    ],
)
def test_L01_tasks_of_a_step_that_are_alone_are_refused(more):
    refused(STEP | more, *SRUN)


def refused(environ, *words):
    with pytest.raises(LaunchError) as caught:
        launch.check(1, environ)
    text = str(caught.value)
    assert all(word in text for word in (*words, "expected", "alone", f"{launch.OVERRIDE}=1")), text
    launch.check(1, environ | {launch.OVERRIDE: "1"})
    with pytest.raises(LaunchError):
        launch.check(1, environ | {launch.OVERRIDE: "0"})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"PMI_SIZE": "1"},
        {"PMI_SIZE": "many"},
        {"PMI_SIZE": "0"},
        {"PMI_SIZE": "\u0664"},
        {"PALS_RANKID": "3"},  # says nothing of the size
        {"PMIX_RANK": "3", "PMIX_NAMESPACE": "prterun-host-7@1"},
        {"FLUX_JOB_SIZE": "1", "FLUX_TASK_RANK": "0"},
        {"FLUX_URI": "local:///run/flux/local"},  # flux alloc, flux batch
        # mpirun in mpirun, and what a rank starts with an mpirun of its own
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "PMI_SIZE": "1", "PMI_RANK": "0"},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "PMI_SIZE": "4", "PMI_RANK": "2"},
        # mpirun -n 1 in a job of Flux, whose tasks are four
        {"FLUX_JOB_SIZE": "4", "FLUX_TASK_RANK": "2", "PMI_SIZE": "1", "PMI_RANK": "0"},
    ],
)
def test_serial_runs_are_fine(environ):
    launch.check(1, environ)


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},  # in salloc
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # in a batch script
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
        STEP | {"SLURM_STEP_ID": "4294967290"},  # an interactive shell may tell the tasks of its allocation
        STEP | {"SLURM_STEP_ID": "4294967291"},
        STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        STEP
        | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},  # mpirun -n 1 in a large step, both libraries
        STEP | {"PMI_SIZE": "1", "PMI_RANK": "0"},
        STEP | {"PMI_SIZE": "1", "PMI_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"},
    ],
)
def test_L01_serial_runs_within_slurm_are_fine(environ):
    launch.check(1, environ)


@pytest.mark.parametrize("environ", [STEP, {"OMPI_COMM_WORLD_SIZE": "4"}, {"PMI_SIZE": "4"}, {"FLUX_JOB_SIZE": "4"}])
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_larger_worlds_may_differ_from_what_an_outer_launcher_tells(environ, world_size):
    launch.check(world_size, environ)


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, 0),
        ({"PMI_RANK": "2"}, 2),
        ({"PMI_RANK": "two"}, 0),
        ({"MV2_COMM_WORLD_RANK": "2"}, 2),
        ({"OMPI_COMM_WORLD_RANK": "0", "SLURM_PROCID": "3"}, 0),
        ({"PMI_RANK": "0", "SLURM_PROCID": "3"}, 0),
        ({"SLURM_PROCID": "3"}, 3),
        ({"FLUX_TASK_RANK": "2", "SLURM_PROCID": "1"}, 2),
        ({"JSM_NAMESPACE_RANK": "2"}, 2),
        ({"PALS_RANKID": "2"}, 2),
        ({"SLURM_PROCID": "3", launch.OVERRIDE: "1"}, 0),
    ],
)
def test_rank(environ, rank):
    """Runs that are separate are each their own first rank, so that each prints."""
    assert launch.rank(environ) == rank


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
