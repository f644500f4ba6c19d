"""Launching commands on ranks, and waiting until the last of their processes has ended.

The MPI library under test is the one beside this Python: its folder comes first on PATH. Every process of a launch
carries a mark in its environment, by which it is found, waited for and, if need be, ended.
"""

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
LAUNCH = HERE.parent.parent / "scripts" / "launch.sh"
HPCREDUCE = ("python", "-m", "hpcreduce")
MARK = "HPCREDUCE_TEST_MARK"
LEFT_BY_LAUNCHERS = ("OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MV2_", "PALS_", "FLUX_", "JSM_", "SLURM_", "HPCREDUCE_")
FRAME = re.compile(r"-{60,}\n.*?-{60,}\n?", re.DOTALL)


class Result(NamedTuple):
    """What came of a launch; `left` are processes that outlived it."""

    status: int
    out: str
    err: str
    seconds: float
    left: list[int]

    @property
    def errors(self):
        """The errors that we, not the launcher, printed."""
        return [line for line in (self.out + self.err).splitlines() if line.startswith("hpcreduce: error:")]

    @property
    def own(self):
        """Lines on stderr that the launcher did not print, as far as it frames its own."""
        return [line for line in FRAME.sub("", self.err).splitlines() if line.strip()]


class Job:
    """A running launch."""

    def __init__(self, command, *, cwd, env=(), paths=(), terminal=None, stdout=subprocess.PIPE):
        self.mark = uuid.uuid4().hex
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env=environment(paths) | dict(env) | {MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE if terminal is None else terminal,
            start_new_session=True,
        )

    def processes(self):
        """Return the ids of this launch's processes that are alive."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._alive(pid)]

    def _alive(self, pid):
        try:
            marked = f"{MARK}={self.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return marked and alive(pid)

    def wait(self, timeout):
        """Return the result, or fail if it takes longer; nothing of the launch is left running in any case."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.end()
            out, err = self.process.communicate(timeout=10)
            pytest.fail(f"still running after {timeout} s\nstdout: {text(out)}\nstderr: {text(err)}")
        seconds = time.monotonic() - self.started
        deadline = time.monotonic() + 5
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.end()
        return Result(self.process.returncode, text(out), text(err), seconds, left)

    def end(self):
        """Kill what is left."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def alive(pid):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def environment(before=()):
    """This environment, with this Python's folder first on PATH, and this hpcreduce; `before` are paths of modules."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_BY_LAUNCHERS)}
    package = Path(importlib.util.find_spec("hpcreduce").origin).parent.parent
    after = [os.path.abspath(path) for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    env["HPCREDUCE_TABLE"] = ""  # whatever the user of this machine has measured
    env["PYTHONPATH"] = os.pathsep.join([*map(str, before), str(package), *after])
    env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", os.defpath)])
    return env


def text(data):
    """Decode; Open MPI pads with NUL bytes."""
    return (data or b"").decode(errors="replace").replace("\0", "")


def decent(result):
    """Return the result of a command after checking what holds for all: no traceback, no leftovers, one error."""
    assert "Traceback" not in result.out + result.err, result
    assert "Exception ignored" not in result.err, result
    assert not result.left, result
    assert len(result.errors) <= 1, result
    return result


def refused(result, status, *words):
    """Check that a command ended with one error, which has these words, and printed no result."""
    decent(result)
    assert result.status == status, result
    assert result.out == "", result
    assert len(result.errors) == 1, result
    said = " ".join(result.own)
    for word in words:
        assert str(word) in said, (word, result)
    assert said.count("hpcreduce: error:") == 1, result
    return result


class Said(NamedTuple):
    """What the ranks did with one command line: the list of each has one entry per rank."""

    statuses: list[int]
    outs: list[str]
    errs: list[str]
    opened: list[list[str]]
    seconds: list[float]


class Server:
    """Ranks that run one list of command lines after the other (see programs/many.py)."""

    def __init__(self, ranks, folder):
        self.ranks, self.folder, self.asked = ranks, folder, 0
        self.job = Job([LAUNCH, ranks, "python", PROGRAMS / "many.py", folder, os.getpid()], cwd=folder)

    def ask(self, commands, folder, timeout):
        """Return a `Said` for each command line."""
        self.tell({"folder": str(folder), "commands": [[str(word) for word in command] for command in commands]})
        answers = [self.folder / f"{self.asked - 1}.{rank}.json" for rank in range(self.ranks)]
        deadline = time.monotonic() + timeout
        while not all(answer.exists() for answer in answers):
            if self.job.process.poll() is not None or time.monotonic() > deadline:
                self._fail(commands)
            time.sleep(0.01)
        together = zip(*(json.loads(answer.read_text()) for answer in answers), strict=True)
        return [Said(**{name: [rank[name] for rank in ranks] for name in Said._fields}) for ranks in together]

    def tell(self, text):
        """Hand over the next list, or None for the end."""
        part = self.folder / "next.part"
        part.write_text(json.dumps(text))
        part.rename(self.folder / f"{self.asked}.json")
        self.asked += 1

    def _fail(self, commands):
        self.job.end()
        self.job.process.wait(10)
        said = [f"{path.name}: {path.read_text()}" for path in sorted(self.folder.glob(f"{self.asked - 1}.*.err"))]
        pytest.fail("\n".join([f"the ranks did not answer all of {commands}", *said]))


def refused_by_all(said, status, *words):
    """Check that every rank ended with the status, and that the first rank alone said why, with these words."""
    assert set(said.statuses) == {status}, said
    assert not any(said.outs) and not any(said.errs[1:]), said
    assert said.errs[0].count("hpcreduce: error:") == 1 and "Traceback" not in said.errs[0], said
    for word in words:
        assert str(word) in said.errs[0], (word, said)
