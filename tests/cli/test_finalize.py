"""The end of MPI is clean: nothing is printed, whoever finalizes, whatever plans are left."""

import pytest

HEAD = """
import gc, sys
import numpy as np
from mpi4py import MPI
import hpcreduce

comm = MPI.COMM_WORLD
world = hpcreduce.Intracomm(comm)
array, out = np.ones(50), np.empty(50)
big = np.ones(200_000)
for algorithm in ("auto", "mpi", "ring", "tree"):
    hpcreduce.allreduce(comm, array, out, algorithm=algorithm)
    hpcreduce.allreduce(comm, big, algorithm=algorithm)
world.Allreduce(array, out)
plans = [hpcreduce.allreduce_init(comm, each, algorithm=name) for each in (array, big) for name in ("mpi", "ring")]
for plan in plans:
    plan.Start()
handle = hpcreduce.iallreduce(comm, array)
for plan in plans + [handle]:
    assert (plan.Wait() == comm.size).all()
part = comm.Split(comm.rank % 2)
hpcreduce.allreduce(part, 1)
"""

AFTER = """
MPI.Finalize()
for call in (
    lambda: hpcreduce.allreduce(comm, 1),
    lambda: hpcreduce.iallreduce(comm, 1),
    lambda: hpcreduce.bcast(comm, array),
    lambda: world.Allreduce(array, out),
    plans[0].Start,
    plans[1].Start,
):
    try:
        call()
    except ValueError as error:
        assert "finalized" in str(error), error
    else:
        raise AssertionError("no error")
assert (handle.Wait() == handle.Wait()).all()
plans[0].Free()
plans[1].Free()
"""

ENDS = {
    "plans are left": "",
    "plans are freed": "for plan in plans: plan.Free()",
    "plans are dropped": "del plan, plans, handle; gc.collect()",
    "everything is a cycle": "plans.append(plans); world.plans = plans",
    "communicators are freed": "part.Free()",
    "the user finalizes": AFTER,
    "the user finalizes and ends": "MPI.Finalize(); sys.exit(0)",
    "the user drops and finalizes": "del plan, plans; gc.collect(); MPI.Finalize()",
    "an early end": "sys.exit(0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_end_of_a_program(mpirun, folder, end):
    (folder / "program.py").write_text(HEAD + ENDS[end])
    result = mpirun(2, "python", "program.py")
    assert result.status == 0 and result.out == "" and result.err == "" and not result.left, result


def test_first_use_after_the_end(mpirun, folder):
    (folder / "program.py").write_text(
        "from mpi4py import MPI\nimport hpcreduce\nMPI.Finalize()\n"
        "try:\n    hpcreduce.allreduce(MPI.COMM_WORLD, 1)\nexcept ValueError as error:\n    print(error)\n"
    )
    result = mpirun(2, "python", "program.py")
    assert result.status == 0 and result.out.count("MPI is not running: it was finalized") == 2 and not result.err, (
        result
    )
