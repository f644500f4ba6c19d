"""Memory that the ranks of a node share: one file per rank in the node's own file system, mapped by all.

Each rank makes its own, so that its pages are near it. The files have no name any more once all have mapped them, and
the memory lives as long as somebody maps it: an array in it cannot outlive it. Compared with MPI's shared windows, it
waits for no rank without a deadline, uses up no communicator, and stays valid when a communicator is freed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import secrets
from collections.abc import Callable
from typing import Any

FOLDER = "/dev/shm"
NAME = 16
"""Bytes of a name."""

_PREFIX = "hpcreduce-"
_fences: list[Callable[[], None]] = []


def usable() -> bool:
    """Whether this host has such memory."""
    return os.path.isdir(FOLDER) and os.access(FOLDER, os.W_OK | os.X_OK) and hasattr(os, "posix_fallocate")


class NoRoomError(Exception):
    """A rank has no memory to share."""


def create(nbytes: int) -> tuple[bytes, mmap.mmap | None]:
    """Return the name and the memory of a new file; zeros and `None` if there is no room for it."""
    name = secrets.token_bytes(NAME)
    try:
        descriptor = os.open(_path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return bytes(NAME), None
    try:
        os.posix_fallocate(descriptor, 0, nbytes)  # now rather than by a signal in the middle of a sum
        return name, mmap.mmap(descriptor, nbytes)
    except OSError:
        remove(name)
        return bytes(NAME), None
    finally:
        os.close(descriptor)


def attach(name: bytes, nbytes: int) -> mmap.mmap | None:
    """Return the memory of another rank's file, `None` if there is none of that name here."""
    try:
        descriptor = os.open(_path(name), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return mmap.mmap(descriptor, nbytes)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def remove(name: bytes) -> None:
    """Take the name away; the memory stays."""
    with contextlib.suppress(OSError):
        os.unlink(_path(name))


def _path(name: bytes) -> str:
    return os.path.join(FOLDER, _PREFIX + name.hex())


def fence() -> Callable[[], None] | None:
    """Return what keeps this rank's reads and writes in order for the others; `None` where the processor does.

    x86-64 lets others see writes in their order, and reads in order. Elsewhere MPI_Win_sync on a window of this
    process alone is a barrier for all memory.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        return None
    if not _fences:
        from mpi4py import MPI

        window: Any = MPI.Win.Allocate(8, 1, comm=MPI.COMM_SELF)
        window.Lock_all(MPI.MODE_NOCHECK)
        _fences.append(window.Sync)
    return _fences[0]
