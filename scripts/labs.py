"""What the labs on one machine share: several hosts in namespaces, and the process that keeps them.

- A lab is one process, its keeper, the first in a pid namespace and in network and mount namespaces of its own. All
  that runs in the lab lives in that pid namespace. When the keeper ends, even by kill -9, the kernel ends the rest, and
  bridge, links and mounts go with the last process. Outside, a lab is nothing but a folder with a small file.
- A host is a network namespace with one link, eth0, to the bridge.
- The script that imports this is the lab's kind: its name stands in messages and in the name of the folder.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

UNAVAILABLE, TIMED_OUT = 77, 124
KIND = Path(sys.argv[0]).name


class LabError(Exception):
    """What was asked for cannot be done now."""


class UnavailableError(Exception):
    """No lab can be made on this machine."""


def main(arguments: Callable[[], argparse.ArgumentParser], make: Callable[[dict, Path], None]) -> int:
    """Parse the command line and obey; `make` makes the hosts, as the keeper."""
    if sys.argv[1:2] == ["_keep"]:
        return keep(Path(sys.argv[2]), json.loads(sys.argv[3]), make)
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    options = arguments().parse_args()
    try:
        return int(options.do(options))
    except UnavailableError as error:
        print(f"{KIND}: no lab can be made here: {error}", file=sys.stderr)
        return UNAVAILABLE
    except LabError as error:
        print(f"{KIND}: {error}", file=sys.stderr)
        return 1


# The command line


def matching(pattern, example):
    """Return what converts an argument that looks like the example."""

    def convert(text):
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} does not look like {example}")
        return text

    return convert


def number(low, high):
    """Return what converts a whole number within limits."""

    def convert(text):
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low} to {high}")
        return int(text)

    return convert


def add_life(command: argparse.ArgumentParser) -> None:
    """Add the option that says how long a lab lives."""
    command.add_argument(
        "--life", type=number(1, 86400), default=3600, metavar="SECONDS", help="until it goes by itself (default 3600)"
    )


def add_command(command: argparse.ArgumentParser) -> None:
    """Add a command to run in the lab, and its time limit."""
    command.add_argument("--timeout", type=number(1, 86400), default=300, metavar="SECONDS", help="(default 300)")
    command.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="CMD ...", help="the command, after -- if you like"
    )


def add_name(command: argparse.ArgumentParser, name: str, hosts: str) -> None:
    """Add the option that names the lab."""
    command.add_argument(
        "--name",
        type=matching(r"[a-z][a-z0-9]{0,15}", "lab, letters and digits"),
        default=name,
        help=f"of the lab, where there are several (default {name}); {hosts}",
    )


def words(options) -> list[str]:
    """Return the command to run in the lab."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise LabError(f"no command to run: {KIND} run [OPTIONS] [--] CMD ...")
    return command


# The lab, from outside


def up(plan: dict, tools: dict[str, str]) -> None:
    """Start a keeper and wait until it says that the lab is ready; `tools` are programs and their packages."""
    for tool, package in tools.items():
        if not shutil.which(tool):
            raise UnavailableError(f"the program {tool} is missing (on Debian: apt-get install {package})")
    name, place = plan["name"], folder(plan["name"])
    if (lab := read(place)) and not alive(place):
        shutil.rmtree(place)  # its keeper was killed
    try:
        place.mkdir(0o700)
    except FileExistsError:
        state = f"is up, with {lab['hosts']} hosts" if lab else "is being made, or its making was killed"
        raise LabError(f"lab {name!r} {state}: `{KIND} down` first, or another --name") from None
    first = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
    first += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    said, done, keeper = b"", False, None
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"{KIND}: not up after 60 s; it said: {said.decode()}"))
        signal.alarm(60)
        keeper = subprocess.Popen(
            [*first, sys.executable, os.path.abspath(sys.argv[0]), "_keep", place, json.dumps(plan)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while not done and (more := os.read(keeper.stdout.fileno(), 1000)):
            said += more
            done = said.endswith(b"ready\n")
    finally:
        signal.alarm(0)
        if not done:
            if keeper:
                keeper.kill()  # and the kernel kills its child
                keeper.wait()
            shutil.rmtree(place, ignore_errors=True)
    text = said.decode(errors="replace").strip()
    if not done and (reason := re.search(r"^(?:unavailable|unshare): (.*)", text, re.MULTILINE)):
        raise UnavailableError(reason[1])
    if not done:
        raise LabError(f"cannot make the lab:\n{text}")


def find(name: str) -> dict:
    """Return a lab that is up."""
    place = folder(name)
    if not alive(place):
        raise LabError(f"no lab {name!r} is up: `{KIND} up N` first")
    return read(place)


def start(lab: dict, command: list[str], namespaces: list[str], env: dict[str, str]) -> subprocess.Popen:
    """Start a command in namespaces of the lab; it ends when this process does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(128 + signal.SIGHUP))
    into = ["nsenter", "--target", str(lab["pid"]), *namespaces]
    into += [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *into, *command], env=env, start_new_session=True)


def finish(process: subprocess.Popen, limit: float, generations: int) -> int:
    """Wait for a command and return its exit status; it is ended at its limit, and when this process is.

    What is asked to tidy up then is its descendant after so many `generations`.
    """
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        print(f"{KIND}: ended after the time limit of {limit} s", file=sys.stderr)
        status = TIMED_OUT
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        pid = process.pid
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            for _ in range(generations):
                pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
            os.kill(pid, signal.SIGTERM)
            process.wait(5)
        process.kill()
        process.wait()
    return status if status >= 0 else 128 - status


def down(options) -> int:
    """End the keeper, and with it the lab."""
    place = folder(options.name)
    lab = read(place)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if alive(place):
            with contextlib.suppress(ProcessLookupError, LabError):
                os.kill(lab["pid"], signum)
                until(lambda: not alive(place), 5, "")
    if alive(place):
        raise LabError(f"the lab's process {lab['pid']} does not end")
    shutil.rmtree(place, ignore_errors=True)
    return 0


def folder(name: str) -> Path:
    """Return where the keeper of a lab says what it is; making this folder is taking the name."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", f"{KIND}-{os.getuid()}-{name}")


def read(place: Path) -> dict:
    """Return what the keeper wrote about its lab, or nothing."""
    try:
        if place.lstat().st_uid != os.getuid():
            raise LabError(f"{place} is another user's")
        return json.loads((place / "lab.json").read_text())
    except (OSError, ValueError):
        return {}


def alive(place: Path) -> bool:
    """Whether the keeper of this lab lives; another process with its number has another start time."""
    lab = read(place)
    return bool(lab) and started(lab["pid"]) == lab["started"]


def started(pid: int) -> str:
    """Return when a living process started, in the kernel's ticks; nothing for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def until(done, seconds: float, complaint: str) -> None:
    """Wait until it is done, or raise."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise LabError(complaint)
        time.sleep(0.02)


# The lab, from inside


def keep(place: Path, lab: dict, make: Callable[[dict, Path], None]) -> int:
    """Be the first process of the lab: make what is in it, then wait for the end."""
    pid = int(os.readlink("/proc/self"))  # /proc is still the outer one, and so is this number
    (place / "lab.json").write_text(json.dumps(lab | {"pid": pid, "started": started(pid)}))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    inside = place / "inside"
    try:
        sh("mount -t proc proc /proc")
        inside.mkdir()
        sh(f"mount -t tmpfs -o mode=700 {KIND} {shlex.quote(str(inside))}")
        make(lab, inside)
        os.write(1, b"ready\n")  # nobody reads: `up` was killed, and there will be no lab
        os.dup2(0, 1)
        os.dup2(0, 2)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans come to us
        time.sleep(lab["life"])
    except UnavailableError as error:
        print(f"unavailable: {error}", flush=True)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        subprocess.run(["umount", "--lazy", inside], capture_output=True)
        shutil.rmtree(place, ignore_errors=True)
    return 0


def network(inside: Path, names: list[str], net: str, keeper: str = "") -> None:
    """Make the bridge, and hosts with a link to it each; `keeper` is a name for the keeper, with an address there."""
    quoted = shlex.quote(str(inside))
    known = [f"{net}.{i + 1} {name}\n" for i, name in enumerate(names)]
    known += [f"{net}.254 {keeper}\n"] if keeper else []
    (inside / "hosts").write_text("".join(["127.0.0.1 localhost\n", *known]))
    sh(f"mount --bind {quoted}/hosts /etc/hosts")
    sh("ip link set lo up")
    sh("ip link add bridge type bridge")
    if keeper:
        sh(f"hostname {keeper}")
        sh(f"ip address add {net}.254/24 dev bridge")
    sh("ip link set bridge up")
    for i, name in enumerate(names):
        (inside / name).touch()
        sh(f"unshare --net={quoted}/{name} true")
        on = f"nsenter --net={quoted}/{name}"
        sh(f"{on} ip link set lo up")
        sh(f"{on} ip link add eth0 type veth peer name port{i + 1} netns 1")
        sh(f"{on} ip address add {net}.{i + 1}/24 dev eth0")
        sh(f"{on} ip link set eth0 up")
        sh(f"ip link set port{i + 1} master bridge up")


def sh(command: str) -> None:
    """Run a command, or say why this machine cannot have a lab."""
    done = subprocess.run(shlex.split(command), capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"{command}: {' '.join((done.stderr or done.stdout).split())}")


# MPI in the lab: links between hosts, the library's own shared memory inside one

# UCX or OFI get what crosses the network. MPICH hands ranks the machine's topology in a file in /tmp, which stays there
# when it is ended, unless they have one.
MPICH = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"}
MPICH["HWLOC_XMLFILE"] = ""
OPEN_MPI = {"pml": "ob1", "btl": "self,sm,tcp", "btl_tcp_if_include": "eth0", "mpi_yield_when_idle": "1"}
OPEN_MPI = {f"OMPI_MCA_{name}": value for name, value in OPEN_MPI.items()}
OPEN_MPI |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
