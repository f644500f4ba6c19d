"""Tests across hosts: each starts ``scripts/netlab`` and looks at what comes back.

    PATH=ENVIRONMENT/bin:$PATH python -m pytest tests/net

The MPI library under test is the one beside this Python. Where no lab can be made, all are skipped with the reason.
Every process that a test starts carries a mark in its environment, by which it is found again, whatever its namespaces.
"""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NETLAB = ROOT / "scripts" / "netlab"
MARK = f"HPCREDUCE_TEST_MARK={uuid.uuid4().hex}"
UNAVAILABLE = 77


@pytest.fixture(autouse=True)
def able():
    """Skip where the library cannot start across hosts."""
    folder = Path(sys.executable).parent
    if " " in str(folder) and (folder / "prterun").exists():
        pytest.skip("Open MPI starts nothing on other hosts from a folder with a space in its name")


def environment():
    """This environment, with this Python's folder first on PATH, and this hpcreduce."""
    name, value = MARK.split("=")
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return os.environ | {name: value, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def netlab(*words, timeout=60, env=()):
    """Run scripts/netlab and return what came of it."""
    return subprocess.run(
        [sys.executable, NETLAB, *map(str, words)],
        env=environment() | dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
    )


def start(*words):
    """Start scripts/netlab in the background."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, NETLAB, *map(str, words)], env=environment(), **quiet)


def marked():
    """Return process id -> command line of what these tests started and is alive, on any host."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            ours = MARK.encode() in (place / "environ").read_bytes().split(b"\0")
            ended = (place / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
            if ours and not ended:
                found[int(place.name)] = (place / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def of(name):
    """Return the processes of one lab: its keeper (twice: with its parent), and the rest."""
    keepers = {pid for pid, words in marked().items() if "_keep" in words and f"-{name} " in words}
    return keepers, {pid: words for pid, words in marked().items() if "_keep" not in words}


def until(done, seconds=15):
    """Wait until it is done, and return whether it is."""
    deadline = time.monotonic() + seconds
    while not (is_done := done()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return is_done


def folder(name):
    """Return where a lab keeps what it is."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", f"netlab-{os.getuid()}-{name}")


def traces(name):
    """Return what a lab has outside of its own namespaces."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    for command in (["ip", "netns", "list"], ["ip", "-oneline", "link"]):
        path = os.environ["PATH"] + ":/usr/sbin:/sbin"
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": path}, timeout=10)
        lines += done.stdout.splitlines()
    found = [line for line in lines if str(folder(name)) in line or f"{name}-" in line or ": port1" in line]
    return found + [str(path) for path in [folder(name)] if path.exists()]


@pytest.fixture(scope="session")
def up():
    """Make a lab and return its name: ``up(4, "--rate", "50mbit")``; after the tests, none is left."""
    made = []

    def up(hosts, *options):
        name = f"t{os.getpid()}n{len(made)}"
        made.append(name)
        done = netlab("up", hosts, "--name", name, "--life", 600, *options)
        if done.returncode == UNAVAILABLE:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done
        return name

    yield up
    for name in made:
        assert netlab("down", "--name", name).returncode == 0
        assert not traces(name)
    assert until(lambda: not marked()), marked()


@pytest.fixture(scope="session")
def lab(up):
    """Return the name of a lab with that many hosts, the same one for all tests."""
    names = {}

    def lab(hosts):
        if hosts not in names:
            names[hosts] = up(hosts)
        return names[hosts]

    return lab


@pytest.fixture
def run(lab):
    """Run Python on ranks on so many hosts: ``run(4, "-m", "hpcreduce", "info")``."""

    def run(hosts, *words, ranks=1, name=None):
        options = ("--name", name or lab(hosts), "--ranks-per-host", ranks, "--timeout", 50)
        return netlab("run", *options, "--", "python", *words)

    return run
