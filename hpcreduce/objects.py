"""Small objects of all ranks, by this package's own collective calls, so that a rank that does not come is named."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from hpcreduce.collectives import allreduce
from hpcreduce.related import allgather


def everyone(comm: Any, thing: Any, timeout: float | None = None) -> list[Any]:
    """Return what each rank passes, which is small and can be pickled; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    thing : object
    timeout : float, optional
        Seconds, as for `hpcreduce.allreduce`; ``math.inf`` where ranks may come at any time.
    """
    if comm.size == 1:
        return [thing]
    data = np.frombuffer(pickle.dumps(thing), np.uint8)
    longest = int(allreduce(comm, data.size, op="max", timeout=timeout))
    padded = np.zeros(longest, np.uint8)
    padded[: data.size] = data
    rows = allgather(comm, padded, timeout=timeout)
    return [pickle.loads(row.tobytes()) for row in np.asarray(rows).reshape(comm.size, longest)]
