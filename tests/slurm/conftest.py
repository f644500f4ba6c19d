"""Tests under a real Slurm: they start ``scripts/slurm_testbed``, submit jobs, and look at what comes of them.

    PATH=ENVIRONMENT/bin:$PATH python -m pytest tests/slurm

The MPI library under test is the one beside this Python. Where no Slurm can be had, all are skipped with the reason.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TESTBED = ROOT / "scripts" / "slurm_testbed"
PROGRAM = Path(__file__).parent / "programs" / "steps.py"
UNAVAILABLE = 77
NODES = 4
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"}
OPEN_MPI = (Path(sys.executable).parent / "prterun").exists()
ANY = ("test_testbed", "refuses", "says_that_there_are_none", "fails_goes_by_itself", "do_not_see")
"""Tests that would do the same under any library."""


def pytest_collection_modifyitems(items):
    for item in items:
        if OPEN_MPI and any(name in item.nodeid for name in ANY):
            item.add_marker(pytest.mark.skip(reason="tested under MPICH, and the same under any library"))


def control(*words, timeout=60, env=()):
    """Run scripts/slurm_testbed and return what came of it."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    more = {"PATH": path, "PYTHONPATH": str(ROOT), "HPCREDUCE_SLURM": str(ROOT / "slurm"), "HPCREDUCE_TABLE": ""}
    return subprocess.run(
        [sys.executable, TESTBED, *map(str, words)],
        env=os.environ | more | dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
    )


class Ended(NamedTuple):
    """What came of a job: Slurm's word for it, the exit status of the script, and all that it printed."""

    state: str
    status: int
    text: str

    @property
    def errors(self):
        """What the script says that went wrong."""
        return [line for line in self.text.splitlines() if line.startswith("hpcreduce: error: ")]


class Slurm:
    """A testbed, whose jobs print to a folder."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder

    def run(self, *words, status=0, **options):
        """Run a client of Slurm, and return its output."""
        done = control("run", "--name", self.name, "--timeout", 50, "--", *words, **options)
        assert status is None or done.returncode == status, done
        return done

    def script(self, kind, *arguments, nodes=1, ranks=2, options=(), env=()):
        """Submit a script of slurm/ from the folder, and return the job's number."""
        return self.submit(
            f"--nodes={nodes}", f"--ntasks-per-node={ranks}", *options, ROOT / "slurm" / kind, *arguments, env=env
        )

    def submit(self, *words, env=()):
        """Submit a script, and return the job's number."""
        words = ("sbatch", "--parsable", f"--chdir={self.folder}", *words)
        shell = ("sh", "-c", 'cd "$0" && exec "$@"', self.folder)
        return int(self.run(*shell, *words, env=env).stdout)

    def show(self, *jobs):
        """Return the fields that Slurm shows of jobs, by number; of an array, those of all its tasks by the array's."""
        found = {}
        for line in self.run("scontrol", "--oneliner", "show", "jobs").stdout.splitlines():
            fields = dict(re.findall(r"(\w+)=(\S+)", line))
            found.setdefault(int(fields.get("ArrayJobId", fields["JobId"])), []).append(fields)
        return [found[job] for job in jobs]

    def wait(self, *jobs, seconds=120):
        """Wait until jobs have ended, and return an `Ended` for each."""
        deadline = time.monotonic() + seconds
        while True:
            shown = self.show(*jobs)
            if not {task["JobState"] for tasks in shown for task in tasks} - ENDED:
                break
            assert time.monotonic() < deadline, (shown, [self.printed(job) for job in jobs])
            time.sleep(0.5)
        ended = []
        for job, tasks in zip(jobs, shown, strict=True):
            worst = max(tasks, key=lambda task: task["JobState"] != "COMPLETED")
            ended.append(Ended(worst["JobState"], int(worst["ExitCode"].split(":")[0]), self.printed(job)))
        return ended

    def printed(self, job):
        """Return what a job has printed."""
        files = sorted(self.folder.glob(f"*-{job}.out")) + sorted(self.folder.glob(f"*-{job}_*.out"))
        return "".join(file.read_text(errors="replace").replace("\0", "") for file in files)

    def until(self, done, job, seconds=60):
        """Wait for something that a job does."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, (self.show(job), self.printed(job))
            time.sleep(0.1)

    def ranks(self):
        """Return the command lines of the Python programs that run on the nodes, but not of what launches them."""
        said = self.run("ps", "-wweo", "stat=,args=").stdout.splitlines()
        found = [line.split(maxsplit=1)[1] for line in said if not line.startswith("Z")]
        return [line for line in found if line.startswith("python ")]


@pytest.fixture(scope="session")
def up(tmp_path_factory):
    """Make a testbed: ``up(4)``; after the tests, none is left."""
    made, base = [], tmp_path_factory.getbasetemp()

    def up(nodes):
        name = f"t{os.getpid()}n{len(made)}"
        made.append(name)
        shared = [word for folder in (base, ROOT, sys.prefix) for word in ("--share", folder)]
        done = control("up", nodes, "--name", name, "--life", 600, *shared, timeout=200)
        if done.returncode == UNAVAILABLE:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done
        return Slurm(name, tmp_path_factory.mktemp("folder of jobs"))

    yield up
    for name in made:
        assert control("down", "--name", name).returncode == 0
        deadline = time.monotonic() + 10
        while left := traces(name):  # what started the keeper ends after it
            assert time.monotonic() < deadline, left
            time.sleep(0.05)


@pytest.fixture(scope="session")
def slurm(up):
    """A testbed for all tests."""
    return up(NODES)


def traces(name):
    """Return what a testbed has outside of its own namespaces."""
    place = f"slurm_testbed-{os.getuid()}-{name}"
    lines = Path("/proc/self/mounts").read_text().splitlines()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(file.read_text().replace("\0", " "))
        except OSError:
            continue
    found = [line for line in lines if place in line]
    path = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", place)
    return found + [str(path)] * path.exists()
