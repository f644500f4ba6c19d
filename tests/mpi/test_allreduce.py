"""`hpcreduce.allreduce` on real ranks: values, kinds of buffers, errors."""

import os

import numpy as np
import pytest
from mpi4py import MPI

import hpcreduce

pytestmark = pytest.mark.mpi
ALGORITHMS = ["auto", *hpcreduce.ALGORITHMS]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("segment", [None, 8, 1000])
def test_sum_depends_on_rank_and_index(comm, algorithm, segment):
    for count in (0, 1, comm.size - 1, comm.size, comm.size + 1, 1009):
        index = np.arange(count) + 1.0
        total = comm.size * (comm.size + 1) // 2 * index
        mine = (comm.rank + 1) * index
        result = hpcreduce.allreduce(comm, mine, algorithm=algorithm, segment=segment, timeout=60)
        assert result.dtype == np.float64 and (result == total).all()
        assert (mine == (comm.rank + 1) * index).all()
        assert hpcreduce.allreduce(comm, MPI.IN_PLACE, mine, algorithm=algorithm, segment=segment) is mine
        assert (mine == total).all()


def peak():
    """Return the peak of this process's memory since the last reset, in bytes, and reset it."""
    with open("/proc/self/status") as status:
        (kilobytes,) = [line.split()[1] for line in status if line.startswith("VmHWM")]
    with open("/proc/self/clear_refs", "w") as control:
        control.write("5")
    return int(kilobytes) * 1024


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="no /proc/self/clear_refs to reset the peak"
)
@pytest.mark.skipif(MPI.COMM_WORLD.size not in (2, 3), reason="needs 2 or 3 ranks: 200 MB each")
def test_ring_in_place_needs_little_memory(comm):
    array = np.ones(25_000_000)
    hpcreduce.allreduce(comm, np.ones(1000), algorithm="ring")
    peak()
    before = peak()
    hpcreduce.allreduce(comm, array, array, algorithm="ring")
    assert peak() - before < 0.05 * array.nbytes
    assert (array == comm.size).all()
