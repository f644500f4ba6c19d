"""scripts/launch.sh and the limits of scripts/test.sh, with a stub for mpirun: no MPI, no Slurm."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
STUB = """#!/bin/sh
[ "$1" = --version ] && exit
echo $$ >"$STUB_PID"
eval "$STUB_DOES"
"""
REAL_STEP = {"SLURM_STEP_ID": "0"}
ADVICE = ("SLURM_STEP_ID=0", "sbatch", "salloc", "srun --overlap")


@pytest.fixture
def launch(tmp_path):
    """Return a function that starts launch.sh with an mpirun that does this: ``launch("sleep 60", **environment)``."""
    (tmp_path / "mpirun").write_text(STUB)
    (tmp_path / "mpirun").chmod(0o755)
    processes = []

    def launch(does, **environment):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STUB_DOES": does, "STUB_PID": f"{tmp_path}/pid"}
        processes.append(
            subprocess.Popen(
                [SCRIPTS / "launch.sh", "2", "echo", "a b"],
                env=env | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return processes[-1]

    yield launch
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the stub is of its group
        process.communicate(timeout=10)


def finish(process, text=""):
    """Return exit status, stdout and the lines on stderr."""
    out, err = process.communicate(text, timeout=20)
    return process.returncode, out, err.splitlines()


def mpirun_ended(folder, seconds=5):
    """Whether the stub, or what it has become, ends."""
    pid = int((folder / "pid").read_text())
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_L12_launch_in_a_step_that_hangs(launch, tmp_path):
    status, out, (hint, end) = finish(launch("exec sleep 60", HPCREDUCE_LAUNCH_LIMIT="1", **REAL_STEP))
    assert status == 124 and out == ""
    assert all(word in hint and word in end for word in ADVICE), (hint, end)
    assert "ends after 1 s" in hint and "HPCREDUCE_LAUNCH_LIMIT" in hint
    assert "had not ended after 1 s" in end and "HPCREDUCE_LAUNCH_LIMIT" in end
    assert mpirun_ended(tmp_path)


@pytest.mark.parametrize("step", ["0", "17", "007", "4294967280"])
def test_L12_launch_in_a_step_says_so_and_bounds_itself(launch, step):
    status, out, (hint,) = finish(launch('echo "of mpirun: $*"', SLURM_STEP_ID=step))
    assert (status, out) == (0, "of mpirun: -n 2 echo a b\n")
    assert f"SLURM_STEP_ID={step}" in hint and "ends after 600 s" in hint


def test_L12_limit_of_a_step_can_be_taken_away(launch):
    status, _, (hint,) = finish(launch("exit 3", HPCREDUCE_LAUNCH_LIMIT="0", **REAL_STEP))
    assert status == 3 and "has no limit" in hint


@pytest.mark.parametrize("step", [None, "", "4294967290", "4294967291", "4294967292", "99999999999", "batch", "-1"])
def test_L12_launch_outside_a_step_has_no_limit(launch, step):
    """Nor in batch scripts and interactive shells; mpirun takes the place of the script there."""
    process = launch(
        'echo $$ "$@"', SLURM_JOB_ID="7", SLURM_NTASKS="4", **({} if step is None else {"SLURM_STEP_ID": step})
    )
    assert finish(process) == (0, f"{process.pid} -n 2 echo a b\n", [])


def test_limit_outside_a_step_on_request(launch, tmp_path):
    status, _, (end,) = finish(launch("exec sleep 60", HPCREDUCE_LAUNCH_LIMIT="1"))
    assert status == 124 and "had not ended after 1 s" in end and "Slurm" not in end
    assert mpirun_ended(tmp_path)


@pytest.mark.parametrize("status", [0, 1, 124, 137])
def test_status_under_a_limit_is_that_of_mpirun(launch, status):
    assert finish(launch(f"exit {status}", HPCREDUCE_LAUNCH_LIMIT="15")) == (status, "", [])


def test_input_under_a_limit_is_that_of_mpirun(launch):
    assert finish(launch("cat", HPCREDUCE_LAUNCH_LIMIT="15"), "read me\n") == (0, "read me\n", [])


@pytest.mark.parametrize("limit", ["soon", "-1", "1.5", "1e3", "12345678901234567890"])
def test_limit_that_is_no_number(launch, limit):
    status, out, (error,) = finish(launch("echo started", HPCREDUCE_LAUNCH_LIMIT=limit))
    assert status == 2 and out == "" and "HPCREDUCE_LAUNCH_LIMIT" in error and repr(limit) in error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_script_reaches_mpirun(launch, tmp_path, number):
    process = launch("exec sleep 60", HPCREDUCE_LAUNCH_LIMIT="50")
    deadline = time.monotonic() + 10
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    started = time.monotonic()
    os.kill(process.pid, number)
    status, _, err = finish(process)
    assert status != 0 and not any("had not ended" in line for line in err) and time.monotonic() - started < 10
    assert mpirun_ended(tmp_path)


@pytest.mark.parametrize("slurm", [{}, REAL_STEP], ids=["alone", "in a step"])
def test_L12_step_of_the_tests_that_hits_its_limit(tmp_path, slurm):
    def step(*command):
        words = ["bash", "-c", f'source "{SCRIPTS}/limits.sh"; step "$@"', "bash", "it", *command]
        env = {"PATH": os.environ["PATH"], "results": str(tmp_path)} | slurm
        out = subprocess.run(words, env=env, capture_output=True, text=True, timeout=20, check=True).stdout
        return out.splitlines(), int((tmp_path / "it.status").read_text())

    lines, status = step("1", "sleep", "60")
    assert status == 124 and len(lines) == 3
    assert lines[2].startswith("   it: was stopped at its limit of 1 s")
    assert all((word in lines[2]) == bool(slurm) for word in ADVICE), lines
    lines, status = step("15", "bash", "-c", "exit 124")
    assert status == 124 and len(lines) == 2
