"""Nothing is left behind: memory, requests and communicators stay flat over tens of thousands of calls.

MPICH has room for some 2000 communicators, so that a private duplicate which is not freed with its communicator shows.
"""

import gc
import os

import numpy as np
import pytest
from mpi4py import MPI

import hpcreduce
from hpcreduce.runtime import agreement, wait
from hpcreduce.runtime.state import CALLS

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="one rank leaves what two do"),
]
FEW = MPI.COMM_WORLD.size <= 2  # more ranks than the cores of a small machine take too long
PAGE = os.sysconf("SC_PAGE_SIZE")


def memory():
    """Bytes that this process has in memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def grows(work, turns, most):
    """Run `work(turn)`, the first fifth to warm up; return by how many bytes a turn let memory grow, or fail."""
    for turn in range(turns // 5):
        work(turn)
    before = memory()
    for turn in range(turns // 5, turns):
        work(turn)
    growth = (memory() - before) / (turns - turns // 5)
    assert growth <= most, f"{growth:.0f} bytes a turn"


@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_calls(comm, algorithm):
    array, out = np.ones(3), np.empty(3)
    ours = hpcreduce.Intracomm(comm, algorithm=algorithm, timeout=60)

    def work(turn):
        if turn % 2:
            hpcreduce.allreduce(comm, array, out, algorithm=algorithm, timeout=60)
        else:
            ours.Allreduce(array, out)

    grows(work, 40_000 if FEW else 1000, 16 if FEW else 1000)
    assert (out == comm.size).all() and not wait.in_flight
    assert len(agreement.state(comm).calls) == 1


def test_calls_of_many_kinds(comm):
    """More kinds than are kept: the oldest go, with the library's requests that they hold."""

    kinds = 500 if FEW else 100

    def work(turn):
        assert hpcreduce.allreduce(comm, np.ones(turn % kinds), timeout=60).sum() == comm.size * (turn % kinds)

    grows(work, 10_000 if FEW else 1000, 100 if FEW else 2000)
    assert len(agreement.state(comm).calls) <= CALLS


def test_nonblocking_calls(comm):
    array = np.ones(50)

    def work(turn):
        handles = [hpcreduce.iallreduce(comm, array, algorithm=name, timeout=60) for name in ("mpi", "tree")]
        assert all((handle.Wait() == comm.size).all() for handle in handles)

    grows(work, 10_000 if FEW else 500, 64 if FEW else 2000)
    assert not wait.in_flight


@pytest.mark.parametrize("kind", ["function", "drop-in"])
def test_H08_many_communicators(comm, kind):
    """The private duplicates go with the user's communicator: libraries have some 2000 of them, or 65500."""
    world = hpcreduce.Intracomm(comm) if kind == "drop-in" else comm
    array, out = np.ones(3), np.empty(3)

    def work(turn):
        fresh = world.Dup()
        if kind == "drop-in":
            fresh.Allreduce(array, out)
        else:
            hpcreduce.allreduce(fresh, array, out, algorithm=("mpi", "tree")[turn % 2], timeout=60)
        assert out[0] == comm.size
        fresh.Free()

    many = 5000 if kind == "function" else 2500
    grows(work, many if FEW else 300, 400 if FEW else 8000)


@pytest.mark.parametrize("freed", ["freed", "dropped"])
def test_plans(comm, freed):
    """Freed, or left to the garbage collector; by the library and by ourselves."""
    array = np.ones(3)

    def work(turn):
        plan = hpcreduce.allreduce_init(comm, array, algorithm=("mpi", "tree")[turn % 2], timeout=60)
        plan.Start()
        assert plan.Wait()[0] == comm.size
        if freed == "freed":
            plan.Free()

    grows(work, 5000 if FEW else 300, 200 if FEW else 4000)
    assert not wait.in_flight
