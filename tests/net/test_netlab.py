"""The lab itself: its answers, its limits, and that nothing outlives it."""

import os
import signal
import time

import pytest
from conftest import folder, netlab, of, start, traces, until

SLEEP = """
import pathlib, sys, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
pathlib.Path(sys.argv[1], str(MPI.COMM_WORLD.rank)).touch()
time.sleep(100)
"""


@pytest.fixture
def sleeping(tmp_path):
    """Start a job that sleeps on both hosts, and wait until it does."""

    def sleeping(name):
        job = start("run", "--name", name, "python", "-c", SLEEP, tmp_path)
        assert until(lambda: len(list(tmp_path.iterdir())) == 2), job.poll()
        assert len([words for words in of(name)[1].values() if words.startswith("python -c")]) == 2, of(name)
        return job

    return sleeping


def test_exit_status(run):
    assert run(2, "-c", "from mpi4py import MPI; raise SystemExit(7)").returncode == 7
    assert run(2, "-c", "from mpi4py import MPI").returncode == 0


def test_time_limit(lab, tmp_path):
    name = lab(2)
    began = time.monotonic()
    done = netlab("run", "--name", name, "--timeout", 3, "python", "-c", SLEEP, tmp_path)
    assert done.returncode == 124 and "ended after the time limit of 3 s" in done.stderr, done
    assert 3 <= time.monotonic() - began < 20
    assert not of(name)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_run_leaves_no_process_on_any_host(run, lab, sleeping, number):
    name = lab(2)
    job = sleeping(name)
    job.send_signal(number)
    assert job.wait(20) in (128 + number, -number)
    assert until(lambda: not of(name)[1]), of(name)
    assert len(of(name)[0]) == 2  # the lab is still there, and works
    assert run(2, "-c", "from mpi4py import MPI").returncode == 0


def test_one_job_at_a_time(lab, sleeping):
    job = sleeping(lab(2))
    refused = netlab("run", "--name", lab(2), "true")
    job.terminate()
    job.wait(20)
    assert refused.returncode == 1 and "is running another command" in refused.stderr, refused


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_lab_leaves_nothing(up, sleeping, number):
    name = up(2)
    job = sleeping(name)
    for pid in of(name)[0]:
        os.kill(pid, number)
    assert job.wait(20) != 0
    assert until(lambda: not any(of(name))), of(name)
    for _ in range(2):
        assert netlab("down", "--name", name).returncode == 0
        assert not traces(name)


def test_down_ends_what_runs(up, sleeping):
    name = up(2)
    job = sleeping(name)
    assert netlab("down", "--name", name).returncode == 0
    assert not traces(name)
    assert job.wait(20) != 0
    assert not any(of(name)), of(name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_up_killed_in_the_middle_leaves_nothing(up, number):
    name = up(1)
    assert netlab("down", "--name", name).returncode == 0
    making = start("up", 40, "--name", name)
    assert until(lambda: (folder(name) / "inside").exists())
    making.send_signal(number)
    making.wait(20)
    assert until(lambda: not any(of(name))), of(name)
    assert netlab("down", "--name", name).returncode == 0
    assert not traces(name)


def test_up_twice_is_refused(lab):
    name = lab(2)
    done = netlab("up", 3, "--name", name)
    assert done.returncode == 1 and f"lab '{name}' is up, with 2 hosts: `netlab down` first" in done.stderr, done


def test_life_ends(up):
    name = up(2, "--life", "1")
    assert until(lambda: not any(of(name)) and not traces(name)), (of(name), traces(name))
    assert netlab("run", "--name", name, "true").returncode == 1


def test_no_lab():
    assert netlab("down", "--name", "nosuch").returncode == 0
    done = netlab("run", "--name", "nosuch", "true")
    assert done.returncode == 1 and "no lab 'nosuch' is up" in done.stderr, done


@pytest.mark.parametrize(
    "words", [["up"], ["up", "0"], ["up", "2", "--rate", "fast"], ["up", "2", "--name", "a/b"], []]
)
def test_wrong_usage(words):
    done = netlab(*words)
    assert done.returncode == 2 and "usage: netlab" in done.stderr, done


def test_where_no_lab_can_be_made(tmp_path):
    """The reason in one line, a status of its own, and nothing left."""
    fake = tmp_path / "unshare"
    fake.write_text("#!/bin/sh\necho unshare: unshare failed: Operation not permitted\nexit 1\n")
    fake.chmod(0o700)
    done = netlab("up", 2, "--name", "refused", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 77 and done.stderr.startswith("netlab: no lab can be made here: "), done
    assert len(done.stderr.splitlines()) == 1 and not traces("refused")
