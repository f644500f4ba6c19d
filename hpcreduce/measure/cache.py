"""Cold caches: how large they are, and how to leave nothing of an array in them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

UNKNOWN = 64 << 20
"""Bytes of a last-level cache whose size the system does not say."""

CPUS = "/sys/devices/system/cpu"

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


def last_level(folder: str = CPUS) -> int:
    """Return the bytes of the largest cache of a processor that this process may run on, or `UNKNOWN`."""
    cpu = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    sizes = []
    for file in Path(folder).glob(f"cpu{cpu}/cache/index*/size"):
        try:
            match = re.fullmatch(r"(\d{1,9})([KMG]?)", file.read_text().strip(), re.ASCII)
        except (OSError, ValueError):
            continue
        if match:
            sizes.append(int(match[1]) << _UNITS[match[2]])
    return max(sizes, default=0) or UNKNOWN


def swept(cache: int) -> int:
    """Return the bytes to read so that a cache of this size holds nothing else: a quarter more.

    >>> swept(32 << 20) >> 20
    40
    """
    return cache + cache // 4


def sweeper(nbytes: int) -> Callable[[], object]:
    """Return a function that reads so many bytes of memory of its own."""
    # Ones: pages that were never written are all one page of zeros, and reading that leaves the caches as they are.
    return np.ones(-(-nbytes // 8), np.int64).sum
