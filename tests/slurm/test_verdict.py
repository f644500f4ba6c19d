"""Jobs that go wrong: none looks as if it had gone well, none hangs, no file is half there."""

import json
import re
import time

import numpy as np
import pytest
from conftest import OPEN_MPI, PROGRAM, control

SINGLETONS = {"HPCREDUCE_LAUNCHER": "srun --mpi=none"}


@pytest.fixture
def program(slurm, tmp_path):
    """Submit the program of these tests, and return the job's number."""

    def program(scenario, **options):
        return slurm.script("train.sbatch", PROGRAM, tmp_path, scenario, **options)

    return program


def test_jobs_whose_launcher_says_that_all_is_well(slurm, program):
    """L01: N worlds of one rank; a program that ends early with status 0."""
    alone = slurm.script("validate.sbatch", "--ops", "sum", env=SINGLETONS)
    each = program("quick", env=SINGLETONS | {"HPCREDUCE_ALLOW_SINGLETON": "1"})
    early = program("lies", nodes=2, ranks=1)
    alone, each, early = slurm.wait(alone, each, early)
    assert alone.state == "FAILED" and "srun --mpi=pmix" in alone.text, alone
    assert each.state == "FAILED" and each.errors[-1].startswith("hpcreduce: error: expected 2 ranks (SLURM_NTASKS)")
    assert "found a world of 1" in each.errors[-1], each
    assert early.state == "FAILED" and "did not say that it has finished" in early.errors[-1], early


def test_data_that_the_nodes_do_not_see(slurm):
    hidden = "/tmp/hidden.csv"  # which is the login node's own
    slurm.run("touch", hidden)
    try:
        unseen = slurm.wait(slurm.script("stats.sbatch", hidden, nodes=2, ranks=1))[0]
    finally:
        slurm.run("rm", hidden)
    assert unseen.state == "FAILED" and len(unseen.errors) == 1, unseen
    assert all(f"node {node} does not see {hidden}" in unseen.errors[0] for node in ("n1", "n2")), unseen


INFO = """#!/bin/bash
#SBATCH --output=%x-%j.out
source "$HPCREDUCE_SLURM/env.sh"
unset OMP_NUM_THREADS
launch python -m hpcreduce info
"""


def test_info(slurm):
    script = slurm.folder / "info.sh"
    script.write_text(INFO)
    job = slurm.submit("--job-name=info", "--nodes=2", "--ntasks-per-node=2", script)
    ended = slurm.wait(job)[0]
    facts = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in ended.text.splitlines() if "  " in line)
    assert ended.state == "COMPLETED" and facts["Slurm job"] == f"{job} (info)", ended
    assert facts["Slurm nodes"].startswith("2: n[") and facts["Slurm tasks"] == "4", ended
    assert facts["launcher"] == ("mpirun, PMI: PMIx" if OPEN_MPI else "mpirun, PMI: PMI"), ended
    assert ended.text.count("warning: OMP_NUM_THREADS is not set") == 1, ended


def test_warning_checkpoint_and_requeue(slurm, program, tmp_path):
    """What the warning signal stops goes on from its checkpoint, in the same job, to the undisturbed result."""
    whole = tmp_path / "whole"
    whole.mkdir()
    undisturbed = slurm.script("train.sbatch", PROGRAM, whole, "quick", nodes=2)
    job = program("slow", nodes=2)
    slurm.until((tmp_path / "started at 0").exists, job)
    time.sleep(1)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    ended, other = slurm.wait(job, undisturbed)
    assert ended.state == other.state == "COMPLETED", (ended, other)
    assert (tmp_path / "result").read_text() == (whole / "result").read_text()
    assert sum(1 for file in tmp_path.glob("started at *")) == 2, ended
    assert "the time limit has stopped the program" in ended.errors[0] and "back into the queue" in ended.text, ended
    assert slurm.show(job)[0][0]["Restarts"] == "1"


@pytest.fixture(scope="session")
def large(slurm):
    """A file that takes a while to read, and no room."""
    path = slurm.folder / "large.npy"
    np.lib.format.open_memmap(path, "w+", np.float64, (400_000_000,)).flush()
    yield path
    path.unlink()


def test_H13_stats_that_are_stopped_leave_no_half_file(slurm, large):
    """By scancel, and by the warning signal: no output file, a dump of the last calls, no process."""
    jobs = [slurm.script("stats.sbatch", large, nodes=2, ranks=1, env={"HPCREDUCE_PATIENCE": "1"}) for _ in range(2)]
    folders = [slurm.folder / f"stats-{job}" for job in jobs]
    slurm.until(lambda: sum("python -m hpcreduce stats" in line for line in slurm.ranks()) == 4, jobs[0])
    time.sleep(3)
    slurm.run("scancel", jobs[0])
    slurm.run("scancel", "--batch", "--signal=USR1", jobs[1])
    cancelled, warned = slurm.wait(*jobs, seconds=30)
    assert cancelled.state == "CANCELLED" and "finished on" not in cancelled.text, cancelled
    assert warned.state == "FAILED" and "the time limit has stopped the program" in warned.errors[-1], warned
    for folder in folders:
        assert {file.name for file in folder.iterdir()} <= {"dumps"}, list(folder.iterdir())
        assert [json.loads(file.read_text())["reason"] for file in (folder / "dumps").glob("rank-*.json")]
    deadline = time.monotonic() + 10
    while left := slurm.ranks():
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_node_that_is_lost(up, tmp_path):
    """The job ends, with a clear word, and is not taken for one that has gone well."""
    slurm = up(2)
    job = slurm.script("train.sbatch", PROGRAM, tmp_path, "slow", nodes=2, ranks=1, options=["--no-requeue"])
    slurm.until((tmp_path / "started at 0").exists, job)
    assert control("lose", "n2", "--name", slurm.name).returncode == 0
    ended = slurm.wait(job, seconds=60)[0]
    assert ended.state in ("FAILED", "NODE_FAIL"), ended
    assert "a node may be lost" in ended.text or ended.state == "NODE_FAIL", ended
    assert not (tmp_path / "result").exists()
