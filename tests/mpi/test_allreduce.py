"""`hpcreduce.allreduce` on real ranks: values, kinds of buffers, errors."""

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
