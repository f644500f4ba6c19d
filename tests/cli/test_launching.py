"""Launching: more ranks than cores, as root, with another library's launcher, without a library; and ranks that die."""

import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest
from launching import HERE, HPCREDUCE, LAUNCH, PROGRAMS, alive, decent, refused

OTHER = os.environ.get("HPCREDUCE_TEST_OTHER_MPIRUN")
JSON = ("validate", "--ops", "sum", "--dtypes", "int32", "--counts", "7", "--json", "-")
STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}
SLOW = """
import os, time

if "0" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("PMI_RANK")):
    time.sleep(0.5)
raise ImportError("libmpi.so.12: cannot open shared object file")
"""
STUBS = {
    "no library": ("MPI", 'raise ImportError("libmpi.so.12: cannot open shared object file")'),
    "no package": ("__init__", "raise ModuleNotFoundError(\"No module named 'mpi4py'\")"),
    "many lines": ("MPI", 'raise RuntimeError("cannot load MPI library\\n" + "no such file\\n" * 20)'),
    "no words": ("MPI", "raise RuntimeError()"),
    "slow first rank": ("MPI", SLOW),
}


@pytest.mark.parametrize("algorithm, count", [("ring", 200_000), ("mpi", 1000)])
def test_H12_killed_rank_ends_the_job(start, folder, algorithm, count):
    job = start(LAUNCH, 3, "python", PROGRAMS / "loop.py", algorithm, count)
    files = [folder / f"pid.{rank}" for rank in range(3)]
    until(lambda: all(file.exists() for file in files), job)
    pids = [int(file.read_text()) for file in files]
    time.sleep(0.2)
    assert job.process.poll() is None and all(map(alive, pids))
    os.kill(pids[1], signal.SIGKILL)
    killed = time.monotonic()
    result = job.wait(30)
    assert time.monotonic() - killed < 30 and result.status != 0, result
    assert not result.left and not any(map(alive, pids)), result


def until(true, job, seconds=30):
    """Wait for a condition while a job runs."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline and job.process.poll() is None, job.wait(0.1)
        time.sleep(0.01)


TEST_BEFORE_A_COLLECTIVE = """
def test_only_rank_1_fails(comm):
    assert comm.rank != 1, "rank one is unhappy"
    comm.Barrier()
"""
TEST_WITHOUT_A_COLLECTIVE = """
def test_only_rank_1_fails(comm):
    assert comm.rank != 1, "rank one is unhappy"

def test_good(comm):
    comm.Barrier()
"""


@pytest.mark.parametrize("test", [TEST_BEFORE_A_COLLECTIVE, TEST_WITHOUT_A_COLLECTIVE], ids=["hangs", "comes back"])
def test_H19_failure_of_one_rank_is_shown(mpirun, folder, test):
    patient = (HERE.parent / "mpi" / "conftest.py").read_text()
    (folder / "conftest.py").write_text(patient.replace("PATIENCE = 15.0", "PATIENCE = 4.0"))
    (folder / "test_it.py").write_text(test)
    result = mpirun(
        3, "python", "-m", "pytest", "--with-mpi", "-p", "no:cacheprovider", "--color=no", folder, timeout=60
    )
    said = result.out + result.err
    assert result.status != 0 and not result.left, result
    assert "rank one is unhappy" in said and "rank 1" in said and "INTERNALERROR" not in said, result
    if test == TEST_WITHOUT_A_COLLECTIVE:
        assert said.count("1 failed, 1 passed") == 1, result


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"])
def test_L02_started_by_the_launcher_of_another_library(cli, name):
    result = cli(0, *JSON, env={name: "3"})
    assert documents(result.out) == 0
    refused(result, 1, f"{name}=3", "another MPI library", "mpirun of the same installation")


@pytest.mark.parametrize(
    "command",
    [
        (),
        JSON,
        ("bench", "--sizes", "8", "--iterations", "1", "--json", "made.json"),
        ("reduce", "a.npy", "--op", "sum", "-o", "made.npy"),
        ("fit", "-o", "made.json"),
        ("info",),
    ],
    ids=["main", "validate", "bench", "reduce", "fit", "info"],
)
def test_L01_started_by_srun_without_its_pmi(start, folder, command):
    """The first task says why, the others end alike; at once, as tasks do."""
    np.save(folder / "a.npy", np.arange(3))
    jobs = [start(*HPCREDUCE, *command, env=STEP | {"SLURM_PROCID": str(rank)}) for rank in range(2)]
    first, second = (job.wait(60) for job in jobs)
    refused(first, 1, "SLURM_STEP_NUM_TASKS=4", "srun --mpi=", "HPCREDUCE_ALLOW_SINGLETON=1")
    assert decent(second).status == 1 and second.out == "" and second.err == "", second
    assert os.listdir(folder) == ["a.npy"]


def test_L01_separate_runs_of_a_step_are_possible_on_request(cli):
    """Each of them prints, whichever task it is."""
    result = cli(0, *JSON, env=STEP | {"HPCREDUCE_ALLOW_SINGLETON": "1"})
    assert result.status == 0 and json.loads(result.out)["ranks"] == 1, result


@pytest.mark.parametrize(
    "slurm",
    [
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
        STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        STEP | {"SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"},
    ],
    ids=["batch script", "step of one task", "interactive shell"],
)
def test_L01_serial_runs_within_slurm_are_fine(cli, slurm):
    result = cli(0, *JSON, env=slurm)
    assert result.status == 0 and json.loads(result.out)["ranks"] == 1, result


@pytest.mark.parametrize("ranks", [1, 2])
def test_L01_mpirun_within_a_larger_step_is_fine(start, ranks):
    """Variables of a step without its job are all that mpirun gets here, so that it does not look for Slurm."""
    command = ["env", *(f"{name}={value}" for name, value in STEP.items()), *HPCREDUCE, *JSON]
    result = decent(start(LAUNCH, ranks, *command).wait(60))
    assert result.status == 0 and json.loads(result.out)["ranks"] == ranks, result


def test_L02_separate_runs_are_possible_on_request(cli):
    result = cli(0, *JSON, env={"PMI_SIZE": "3", "HPCREDUCE_ALLOW_SINGLETON": "1"})
    assert result.status == 0 and json.loads(result.out)["ranks"] == 1, result


@pytest.mark.skipif(not OTHER, reason="HPCREDUCE_TEST_OTHER_MPIRUN does not name the mpirun of another MPI library")
@pytest.mark.parametrize("command", [JSON, ()], ids=["json", "main"])
def test_L02_really_started_by_the_launcher_of_another_library(start, command):
    words = [OTHER, "--oversubscribe"] if b"Open MPI" in subprocess.check_output([OTHER, "--version"]) else [OTHER]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    result = start(*words, "-n", "3", "python", "-m", "hpcreduce", *command, env=root).wait(60)
    assert result.status != 0 and documents(result.out) == 0 and result.out == "", result
    assert "Traceback" not in result.err and not result.left, result
    if "Fatal error in internal_Init" in result.err:  # MPICH ends the process itself, before anyone can speak
        assert "PMI" in result.err, result
    else:
        assert len(result.errors) == 1 and "another MPI library" in result.errors[0], result


def documents(text):
    """Count the JSON documents in a text."""
    return text.count("{\n")


@pytest.mark.parametrize("ranks", [4, 5])
def test_L04_X01_one_document_from_more_ranks_than_cores(cli, ranks):
    result = cli(ranks, *JSON)
    assert result.status == 0 and result.err == "", result
    assert json.loads(result.out)["ranks"] == ranks


@pytest.mark.skipif(os.geteuid() != 0, reason="does not run as root")
def test_L05_root_may_launch(start):
    unset = {"OMPI_ALLOW_RUN_AS_ROOT": "", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": ""}
    result = decent(start(LAUNCH, 3, "python", "-m", "hpcreduce", "info", env=unset).wait(60))
    assert result.status == 0 and "root" not in result.err, result


@pytest.fixture
def stub(tmp_path):
    """Return a folder whose mpi4py cannot be used: ``stub("no library")``."""

    def stub(name):
        module, text = STUBS[name]
        package = tmp_path / f"stub of {name}" / "mpi4py"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / f"{module}.py").write_text(text)
        return [package.parent]

    return stub


def test_L07_help_works_without_a_library(cli, stub):
    paths = stub("no library")
    for ranks, option, word in (0, "--help", "Commands:"), (0, "--version", "version"), (3, "--help", "Commands:"):
        result = cli(ranks, option, paths=paths)
        assert result.status == 0 and result.out.count(word) == 1 and result.own == [], result


@pytest.mark.parametrize("name", list(STUBS)[:4])
def test_L07_other_commands_give_one_hint(cli, stub, name):
    paths = stub(name)
    for command in JSON, ():
        result = refused(cli(0, *command, paths=paths), 1, "no MPI library", "pip install")
        assert len(result.own) <= 5 and len(result.errors[0]) < 300, result
    result = cli(0, "info", paths=paths)
    assert result.status == 0 and result.err == "" and result.out.count("no MPI library") == 1, result
    assert "NumPy" in result.out and "Python" in result.out


@pytest.mark.parametrize("name", ["no library", "slow first rank"])
def test_L07_one_hint_from_all_ranks(cli, stub, folder, name):
    """Also when other ranks fail before the first, which has to print it."""
    command = ("reduce", "a.npy", "--op", "sum", "-o", "out.npy")
    result = refused(cli(3, *command, paths=stub(name)), 1, "no MPI library", "pip install")
    assert len(result.own) <= 5 and os.listdir(folder) == [], result


def test_L07_wrong_usage_is_said_first(cli, stub):
    refused(cli(0, "validate", "--ops", "median", paths=stub("no library")), 2, "median")


def test_L07_library_that_mpi4py_cannot_load(cli):
    refused(cli(3, *JSON, env={"MPI4PY_LIBMPI": "/no/such/libmpi.so"}), 1, "no MPI library", "pip install")


def test_launcher_says_how_it_is_called(start):
    for words in (), ("3",):
        result = start("bash", LAUNCH, *words).wait(20)
        assert result.status == 2 and result.out == "" and "usage:" in result.err, result


def test_launcher_without_mpirun_on_path(start, folder):
    result = start("/bin/bash", LAUNCH, "2", "true", env={"PATH": str(folder)}).wait(20)
    assert result.status == 1 and "no mpirun on PATH" in result.err, result
