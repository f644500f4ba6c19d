"""Loops compiled by numba, where it is there: kept in a folder of the user's, or made anew.

Rules that hold here:

1. Compiled loops are kept in a folder of the user's (`cache_folder`), one for each kind of processor and version, each
   loop with one signature: whoever comes first writes whole files, and who comes at the same time writes the same ones.
2. ``HPCREDUCE_NUMBA=0`` does without. numba takes half a second to load, so nobody loads it for few values.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from hpcreduce.stats import loops


@functools.cache
def compiler() -> Any:
    """Return the module numba, or None where it is missing or not wanted."""
    if os.environ.get("HPCREDUCE_NUMBA") == "0":
        return None
    try:
        import numba
    except ImportError:
        return None
    return numba


def cache_folder() -> str | None:
    """Return the folder of the user's own in which compiled loops are kept, or None where there is none to write to."""
    import hashlib
    import tempfile

    import llvmlite.binding as llvm

    numba = compiler()
    machine = (
        f"{numba.__version__} {np.__version__} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    )
    name = hashlib.sha256(machine.encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for base in os.path.join(home, "hpcreduce"), os.path.join(tempfile.gettempdir(), f"hpcreduce-{os.getuid()}"):
        folder = os.path.join(base, name)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if os.stat(base).st_uid == os.getuid() and os.access(folder, os.W_OK | os.X_OK):
                return folder  # others could plant code in a folder of theirs
        except OSError:
            continue
    return None


@functools.cache
def loop(name: str) -> Any:
    """Return a compiled loop; it is read from the cache if it is there."""
    numba = compiler()
    values, signed, bits = (
        numba.types.Array(kind, 1, "C", readonly=True) for kind in (numba.float64, numba.int64, numba.uint64)
    )
    bins, found = numba.uint64[:, ::1], numba.int64[::1]
    limbs, whole = numba.int64[:, ::1], numba.int64
    arguments = {
        "blocks": (values, signed, limbs, numba.float64[::1], found),
        "squares": (bits, bins, found),
        "products": (bits, bits, bins),
        "triples": (bits, bits, bits, bins),
        "digits": (bits, numba.uint64, found),
        "chosen": (bits, numba.boolean[::1], found, found),
        "ordered": (numba.uint64[::1], found, found),
        "grouped": (numba.uint64[::1], bits, whole, whole, limbs, whole, limbs, limbs, found, found, found),
    }
    signature = numba.void(*arguments[name])
    function = getattr(loops, name)
    given = numba.config.CACHE_DIR
    folder = given or cache_folder()
    if folder:
        numba.config.CACHE_DIR = folder  # looked at only while the next line runs
        try:
            return numba.njit(signature, cache=True)(function)
        except (OSError, RuntimeError):
            pass  # a full disk, or a folder that has gone
        finally:
            numba.config.CACHE_DIR = given
    return numba.njit(signature)(function)


def bits(values: np.ndarray, dtype: type = np.uint64) -> np.ndarray:
    """Return the bits of float64 values, read-only as the loops take them."""
    bits: np.ndarray = values.view(dtype)
    bits.flags.writeable = False
    return bits
