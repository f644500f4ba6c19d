"""What this run stands on: libraries, ranks, nodes, GPUs."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from importlib import metadata
from typing import Any

import numpy as np

import hpcreduce
from hpcreduce.lookup import LIBRARIES
from hpcreduce.runtime import cuda, nccl
from hpcreduce.units import plural


def software() -> dict[str, str]:
    """Return name -> version of what is installed; needs no MPI library."""
    facts = {"hpcreduce": hpcreduce.__version__, "Python": platform.python_version(), "NumPy": np.__version__}
    return facts | {"mpi4py": _version("mpi4py"), "ml_dtypes": _version("ml_dtypes")}


def library(mpi: Any) -> dict[str, str]:
    """Return what the MPI library says of itself; `mpi` is the module ``mpi4py.MPI``."""
    level = {
        mpi.THREAD_SINGLE: "single",
        mpi.THREAD_FUNNELED: "funneled",
        mpi.THREAD_SERIALIZED: "serialized",
        mpi.THREAD_MULTIPLE: "multiple",
    }
    return {
        "MPI library": library_name(mpi.Get_library_version()),
        "MPI standard": ".".join(map(str, mpi.Get_version())),
        "MPI library path": _library_path(),
        "thread level": level[mpi.Query_thread()],
        "TAG_UB": str(mpi.COMM_WORLD.Get_attr(mpi.TAG_UB)),
    }


def places(comm: Any, host: str) -> dict[str, int]:
    """Return host -> ranks on it; collective."""
    hosts = comm.allgather(host)
    return {name: hosts.count(name) for name in dict.fromkeys(hosts)}


def machine() -> str:
    """Return what this rank's processor is called, and how many the machine has."""
    name = platform.machine()
    with contextlib.suppress(OSError, UnicodeDecodeError), open("/proc/cpuinfo") as file:
        name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    return f"{name}, {plural(os.cpu_count() or 1, 'processor')}"


def devices() -> dict[str, str]:
    """Return the state of GPU and NCCL, with reasons."""
    return {"GPU": cuda.describe(), "NCCL": nccl.describe()}


def library_name(text: str) -> str:
    r"""Return name and version from what MPI_Get_library_version says.

    >>> library_name("Open MPI v5.0.11, package: Open MPI, ident: 5.0.11")
    'Open MPI 5.0.11'
    >>> library_name("MPICH Version:      5.0.2\nMPICH Release date: ...")
    'MPICH 5.0.2'
    """
    first = text.strip("\0 \n").splitlines()[0]
    match = LIBRARIES.search(first)
    return f"{match[1]} {match[2]}" if match else first[:60]


def _library_path() -> str:
    """Return the file of the MPI library that is loaded."""
    try:
        with open("/proc/self/maps") as maps:
            files = [line.split(maxsplit=5)[5].strip() for line in maps if "libmpi" in line]
    except OSError:
        files = []
    names = [name for name in files if re.search(r"/libmpi(ch|_abi)?\.so", name)]
    return names[0] if names else "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
