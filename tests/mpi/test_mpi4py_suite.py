"""mpi4py's own tests of collectives and communicators, run on the drop-in.

They come from mpi4py's source distribution, which is not part of this repository: HPCREDUCE_MPI4PY_TESTS names its
folder ``test``; scripts/test.sh fetches it.
"""

import importlib
import io
import os
import sys
import unittest

import pytest
from mpi4py import MPI

import hpcreduce

pytestmark = pytest.mark.mpi
FOLDER = os.environ.get("HPCREDUCE_MPI4PY_TESTS", "")
SUITES = {
    "test_cco_buf": 4,  # Allreduce
    "test_cco_nb_buf": 4,  # Iallreduce
    "test_cco_pr_buf": 4,  # Allreduce_init
    "test_comm": 0,
    "test_op": 0,
}


@pytest.fixture
def drop_in(monkeypatch):
    """Put the drop-in in the place of the predefined communicators, so that the tests take it for mpi4py's."""
    monkeypatch.setattr(MPI, "COMM_WORLD", hpcreduce.Intracomm(MPI.COMM_WORLD, timeout=60))
    monkeypatch.setattr(MPI, "COMM_SELF", hpcreduce.Intracomm(MPI.COMM_SELF, timeout=60))
    monkeypatch.syspath_prepend(FOLDER)
    for name in "numba", "numba.cuda":  # they take it for a GPU
        monkeypatch.setitem(sys.modules, name, None)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:  # what they made of the drop-in ends with it
        if os.path.dirname(getattr(sys.modules[name], "__file__", None) or "") == FOLDER:
            del sys.modules[name]


@pytest.mark.skipif(not FOLDER, reason="HPCREDUCE_MPI4PY_TESTS does not name the tests of mpi4py's source distribution")
@pytest.mark.parametrize("name", SUITES)
def test_passes_on_the_drop_in(comm, drop_in, name, monkeypatch):
    calls = []
    ours = hpcreduce.Intracomm.Allreduce
    monkeypatch.setattr(hpcreduce.Intracomm, "Allreduce", lambda *args: calls.append(args) or ours(*args))
    module = importlib.import_module(name)
    groups = unittest.defaultTestLoader.loadTestsFromModule(module)
    tests = [test for group in groups for test in group if "testPickle" not in test.id()]  # of the replaced constants
    names = [test.id() for test in tests]
    assert sum("testAllreduce" in test for test in names) >= SUITES[name]
    text = io.StringIO()
    result = unittest.TextTestRunner(text, verbosity=2).run(unittest.TestSuite(tests))
    assert result.wasSuccessful() and result.testsRun == len(names), text.getvalue()
    assert calls or name not in ("test_cco_buf", "test_op")
