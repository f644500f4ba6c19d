"""The testbed itself: its answers, and that nothing outlives it."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import control, traces


def test_nodes_of_their_own(slurm):
    """Hostname, address, pids and /tmp are each node's."""
    said = slurm.run(
        "srun", "--nodes=2", "--ntasks=2", "sh", "-c", "touch /tmp/$(hostname); echo $(hostname) $(ls /tmp | grep ^n)"
    )
    assert sorted(said.stdout.splitlines()) == ["n1 n1", "n2 n2"], said


def test_status_is_that_of_the_command(slurm):
    assert slurm.run("sh", "-c", "exit 7", status=None).returncode == 7
    done = control("run", "--name", slurm.name, "--timeout", 1, "sleep", 60)
    assert done.returncode == 124 and "ended after the time limit of 1 s" in done.stderr, done


def test_up_twice_is_refused(slurm):
    done = control("up", 3, "--name", slurm.name)
    assert done.returncode == 1 and "is up, with 4 hosts: `slurm_testbed down` first" in done.stderr, done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_keeper_leaves_nothing(up, number):
    slurm = up(1)
    slurm.submit("--wrap", "sleep 100", "--output=/dev/null")
    found = subprocess.run(["ps", "-wweo", "pid=,args="], capture_output=True, text=True, timeout=20).stdout
    keepers = [int(line.split()[0]) for line in found.splitlines() if "_keep" in line and f"-{slurm.name} " in line]
    assert keepers
    for pid in keepers:
        os.kill(pid, number)
    deadline = time.monotonic() + 10
    while [line for line in traces(slurm.name) if "_keep" in line or "slurmd" in line]:
        assert time.monotonic() < deadline, traces(slurm.name)
        time.sleep(0.05)
    assert control("down", "--name", slurm.name).returncode == 0 and not traces(slurm.name)


def test_no_testbed():
    assert control("down", "--name", "nosuch").returncode == 0
    for words in ("run", "true"), ("lose", "n1"):
        done = control(*words[:1], "--name", "nosuch", *words[1:])
        assert done.returncode == 1 and "no lab 'nosuch' is up" in done.stderr, done


@pytest.mark.parametrize("words", [["up"], ["up", "0"], ["up", "2", "--name", "a/b"], ["lose", "x"], []])
def test_wrong_usage(words):
    done = control(*words)
    assert done.returncode == 2 and "usage: slurm_testbed" in done.stderr, done


def test_where_no_testbed_can_be_made(tmp_path):
    """The reason in one line, a status of its own, and nothing left."""
    fake = tmp_path / "unshare"
    fake.write_text("#!/bin/sh\necho unshare: unshare failed: Operation not permitted\nexit 1\n")
    fake.chmod(0o700)
    done = control("up", 2, "--name", "refused", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 77 and done.stderr.startswith("slurm_testbed: no lab can be made here: "), done
    assert len(done.stderr.splitlines()) == 1 and not traces("refused")
    assert not Path("/tmp/slurm_testbed-0-refused").exists()
