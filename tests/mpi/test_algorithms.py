"""Algorithms on real ranks beyond what the cases try: node maps, and the worked example of a new one."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import hpcreduce
from hpcreduce.measure import samples
from hpcreduce.runtime import state

pytestmark = pytest.mark.mpi
SCHEDULES = [name for name, row in hpcreduce.ALGORITHMS.items() if row.rounds]
MAPS = {
    "a node for each": range,
    "pairs": lambda size: [rank // 2 for rank in range(size)],
    "round robin": lambda size: [rank % 2 for rank in range(size)],
    "ragged": lambda size: [0, 0, 0, 1, 2, 2, 2, 2, 2][:size],
    "the last alone": lambda size: [int(rank == size - 1) for rank in range(size)],
}


@pytest.fixture(params=MAPS)
def scattered(request, comm, monkeypatch):
    """A communicator whose ranks seem to be on several nodes."""
    monkeypatch.setattr(state, "node_map", lambda hosts: tuple(MAPS[request.param](len(hosts))))
    return comm


@pytest.mark.parametrize("algorithm", ["hierarchical", "auto"])
def test_node_maps(scattered, algorithm):
    comm = scattered
    for op, dtype in itertools.product(("sum", "max", "mean", "maxloc"), (np.float64, np.int32, np.float16)):
        for count, segment in ((0, None), (comm.size + 1, 16), (1009, 256), (50_000, None)):
            mine = samples.make(op, np.dtype(dtype), count, comm.rank, comm.size)
            result = hpcreduce.allreduce(comm, mine, op=op, algorithm=algorithm, segment=segment, timeout=60)
            wanted = samples.expected(op, np.dtype(dtype), count, comm.size)
            for found, want in zip(result if isinstance(result, tuple) else (result,), wanted, strict=True):
                assert found.dtype == want.dtype and samples.same(found, want).all()


@pytest.mark.parametrize("across", [name for name in SCHEDULES if name != "hierarchical"])
def test_every_algorithm_across_nodes(scattered, across):
    comm = scattered
    for count in (1, 1009):
        array = (comm.rank + 1.0) * (np.arange(count) + 1)
        hpcreduce.allreduce(comm, MPI.IN_PLACE, array, algorithm=f"hierarchical:{across}", timeout=60)
        assert (array == comm.size * (comm.size + 1) // 2 * (np.arange(count) + 1)).all()


def test_what_cannot_run_across_nodes(comm):
    for name in ("hierarchical:rings", "hierarchical:", "hierarchical:mpi", "hierarchical:hierarchical", "ring:tree"):
        with pytest.raises(ValueError, match=r"across is|unknown algorithm"):
            hpcreduce.allreduce(comm, 1.0, algorithm=name, timeout=60)


def test_the_worked_example_of_a_new_algorithm(comm):
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    try:
        exec(example, {})
        for count in (0, 1, 1009):
            result = hpcreduce.allreduce(comm, np.full(count, comm.rank), op=lambda a, b: a * 10 + b, algorithm="chain")
            wanted = 0
            for rank in reversed(range(comm.size)):
                wanted = rank if rank == comm.size - 1 else rank * 10 + wanted
            assert (result == wanted).all()
    finally:
        hpcreduce.ALGORITHMS.pop("chain")


def test_explain(comm):
    """Says what the next call does, and leaves ranks in step if one alone asks."""
    array = np.zeros((1000, 300), np.float32)
    found = hpcreduce.explain(comm, array, op="mean")
    assert (found.ranks, found.nbytes, found.dtype, found.op) == (comm.size, 1_200_000, "float32", "mean")
    hpcreduce.allreduce(comm, array, op="mean", timeout=60)
    (call,) = hpcreduce.runtime.agreement.state(comm).calls.values()
    assert call.choice.algorithm.name == found.algorithm and call.choice.reason == found.reason
    if comm.rank == 0:
        assert "<- auto" in str(hpcreduce.explain(comm, [1, 2, 3], op=np.maximum))
    assert hpcreduce.allreduce(comm, 1, timeout=60) == comm.size
