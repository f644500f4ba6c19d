"""Batch scripts for Slurm as text: pure functions, which need no Slurm and read no file.

Rules that hold here:

* A script is one of those in ``slurm/`` with other options, and with ``slurm/env.sh`` in the place of the line that
  reads it: there is no second text of either.
* What Slurm would take, and do something else than was meant, is an error.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from hpcreduce.errors import BatchError

KINDS = ("validate", "bench", "stats", "train")
"""What there are scripts for."""

SHORTEST = 180
"""Seconds of the shortest time limit: ranks are warned 60 s before its end, and Slurm may be 60 s early with that."""

FLAGS = ("contiguous", "exclusive", "hold", "no-kill", "no-requeue", "overcommit", "requeue", "spread-job")
"""Options of sbatch that need no value."""

_VALUE = re.compile(r"(?!\s)[^\x00-\x1f\x7f'\"\\]+(?<!\s)")
_TIME = re.compile(
    r"(?:(?P<d>\d{1,4})-(?P<dh>\d{1,3})(?::(?P<dm>\d{1,2})(?::(?P<ds>\d{1,2}))?)?"
    r"|(?P<h>\d{1,5}):(?P<hm>\d{1,2}):(?P<hs>\d{1,2})|(?P<m>\d{1,6})(?::(?P<ms>\d{1,2}))?)",
    re.ASCII,
)
_UNITS = {"d": 86400, "dh": 3600, "dm": 60, "ds": 1, "h": 3600, "hm": 60, "hs": 1, "m": 60, "ms": 1}


def script(
    template: str,
    shared: str,
    options: Mapping[str, str | int | None],
    *,
    settings: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    origin: str = "",
) -> str:
    """Return a whole batch script.

    Parameters
    ----------
    template : str
        Text of a script in ``slurm/``.
    shared : str
        Text of ``slurm/env.sh``.
    options : mapping of str to str, int or None
        Of sbatch, by their long names; `None` is not given. They replace those of the template.
    settings : mapping of str to str, optional
        Variables to set first, such as ``HPCREDUCE_VENV``.
    arguments : sequence of str
        Those of the script.
    origin : str
        The command that made it, for a comment.

    Returns
    -------
    str

    Raises
    ------
    BatchError
        The options contradict each other; the text names them.
    """
    given = {name: str(value) for name, value in options.items() if value is not None}
    for name, value in given.items():
        if not _VALUE.fullmatch(value) and (value or name not in FLAGS):
            raise BatchError(f"--{name}: expected a text without spaces around it, quotes or \\, found {value!r}")
    for word in arguments:
        if not word.isprintable():
            raise BatchError(f"expected printable arguments, found {word!r}")
    lines = template.splitlines()
    header = _agree(options_of(template), given)
    start = next(i for i, line in enumerate(lines) if line.startswith("source "))
    comments = [line for line in lines[1:start] if line.startswith("# ") or line == "#"]
    purpose = comments[: comments.index("#")] if "#" in comments else comments
    return "\n".join(
        [
            lines[0],
            *(
                f"#SBATCH --{name}={shlex.quote(value)}" if value else f"#SBATCH --{name}"
                for name, value in header.items()
            ),
            *purpose,
            *([f"# Made by: {origin}"] if origin else []),
            "",
            *(f"export {name}={shlex.quote(value)}" for name, value in (settings or {}).items()),
            *([f"set -- {shlex.join(arguments)}"] if arguments else []),
            "",
            shared.removeprefix("# shellcheck shell=bash\n").rstrip("\n"),
            *lines[start + 1 :],
            *([""] if template.endswith("\n") else []),
        ]
    )


def _agree(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a script: its own, where nothing is given that replaces them."""
    nodes, tasks, each = (given.get(name) for name in ("nodes", "ntasks", "ntasks-per-node"))
    kept = dict(own)
    if tasks:
        for name in ("nodes", "ntasks-per-node"):
            if name not in given:
                kept.pop(name, None)
        if nodes and each and int(tasks) != int(nodes) * int(each):
            raise BatchError(
                f"--nodes {nodes} times --ntasks-per-node {each} are {int(nodes) * int(each)} ranks, not --ntasks "
                f"{tasks}: leave out one of the three"
            )
        if nodes and int(tasks) < int(nodes):
            raise BatchError(f"--ntasks {tasks} are fewer ranks than --nodes {nodes}")
        if each and not nodes and int(tasks) % int(each):
            raise BatchError(f"--ntasks {tasks} ranks do not fill nodes of --ntasks-per-node {each}")
    if "mem" in given and "mem-per-cpu" in given:
        raise BatchError("--mem and --mem-per-cpu exclude each other: give one of them")
    header = kept | dict(given)
    seconds = seconds_of(header["time"])
    if "signal" in header and seconds < SHORTEST:
        raise BatchError(
            f"--time {header['time']} is too short: expected {SHORTEST // 60} minutes at least, since ranks are warned "
            "60 s before the end, and Slurm may be 60 s early with that"
        )
    return header


def seconds_of(text: str) -> int:
    """Return the seconds of a time as sbatch takes it.

    >>> [seconds_of(text) for text in ("90", "90:30", "1:30:00", "2-0", "1-12:30", "0-0:0:5")]
    [5400, 5430, 5400, 172800, 131400, 5]
    """
    match = _TIME.fullmatch(text)
    seconds = sum(_UNITS[name] * int(value) for name, value in match.groupdict().items() if value) if match else 0
    if not seconds:
        raise BatchError(f"--time {text!r} is no time above 0 such as 30 (minutes), 01:30:00 or 2-12:00:00")
    return seconds


def misfit(options: Mapping[str, str], partitions: str) -> str:
    r"""Return why no node of a partition can hold what is asked for, or nothing; Slurm may let such a job wait forever.

    Parameters
    ----------
    options : mapping of str to str
        Of the script, by their long names.
    partitions : str
        Lines of name (the default one with a star), CPUs of a node and number of nodes, as sinfo prints them.

    >>> misfit({"nodes": "2", "ntasks-per-node": "8"}, "main* 4 3\nbig 16 2")
    '8 CPUs on a node are more than the 4 of partition main'
    >>> misfit({"nodes": "2", "ntasks-per-node": "8", "partition": "big"}, "main* 4 3\nbig 16 2")
    ''
    """
    rows = [line.split() for line in partitions.splitlines()]
    rows = [row for row in rows if len(row) == 3 and row[1].isdecimal() and row[2].isdecimal()]
    asked = options.get("partition")
    if not rows or (asked and "," in asked):
        return ""
    there = [row for row in rows if (row[0].rstrip("*") == asked if asked else row[0].endswith("*"))]
    if not there:
        names = ", ".join(dict.fromkeys(row[0].rstrip("*") for row in rows))
        return f"unknown partition {asked}: there are {names}" if asked else f"give a --partition: {names}"
    name = there[0][0].rstrip("*")
    most, nodes = max(int(row[1]) for row in there), sum(int(row[2]) for row in there)
    cpus = int(options.get("ntasks-per-node", 1)) * int(options.get("cpus-per-task", 1))
    if cpus > most and "overcommit" not in options:
        return f"{cpus} CPUs on a node are more than the {most} of partition {name}"
    if options.get("nodes", "").isdecimal() and int(options["nodes"]) > nodes:
        return f"{options['nodes']} nodes are more than the {nodes} of partition {name}"
    return ""


def options_of(text: str) -> dict[str, str]:
    """Return the options of sbatch in a script, by their long names."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#SBATCH --"):
            name, _, value = line.removeprefix("#SBATCH --").partition("=")
            found[name] = "".join(shlex.split(value))
    return found
