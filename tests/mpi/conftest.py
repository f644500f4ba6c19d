"""Tests on real ranks: mpirun -n N python -m pytest --with-mpi tests/mpi

All ranks run the same tests. After each one they exchange its outcome, so that a failure on any rank fails the test on
all, and the first rank's report shows it. A rank that fails while others sit in a collective operation, or a test that
hangs, ends the whole job with the failure on stderr.
"""

import faulthandler
import io
import os
import sys
import time

import numpy as np
import pytest

import hpcreduce
from hpcreduce.runtime import operations

LIMIT = float(os.environ.get("HPCREDUCE_TEST_LIMIT", "120"))  # seconds that one test may take
PATIENCE = 15.0  # seconds that a failing rank waits for the others to end the same test

os.environ["HPCREDUCE_TABLE"] = ""  # whatever the user of this machine has measured

MOST = {
    "test_leaks": 3,
    "test_mpi4py_suite": 3,
    "test_tables": 3,
    "test_bad_input": 5,
    "test_cases_dtypes": 5,
    "test_cases_running": 5,
    "test_deadlines": 5,
    "test_gradients": 5,
    "test_gradients_torch": 5,
    "test_guard": 5,
    "test_intracomm": 5,
    "test_legal_programs": 5,
    "test_many": 5,
}
"""File -> the number of ranks beyond which it is not run: more add minutes, and nothing new."""

ANY = ("test_sources", "test_stats")
"""Files whose tests would do the same under any library; on few ranks run under MPICH."""

faulthandler.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    from mpi4py import MPI

    config.agreement = MPI.COMM_WORLD.Dup()
    config.mpich = "MPICH" in MPI.Get_library_version()
    if config.agreement.rank > 0:
        config.option.xmlpath = None


def pytest_collection_modifyitems(config, items):
    for item in items:
        most = MOST.get(item.path.stem, config.agreement.size)
        if config.agreement.size > most:
            item.add_marker(pytest.mark.skip(reason=f"takes minutes on more than {most} ranks"))
        elif item.path.stem in ANY and config.agreement.size <= 3 and not config.mpich:
            item.add_marker(pytest.mark.skip(reason="tested under MPICH, and the same under any library"))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    config = session.config
    if config.agreement.rank > 0:  # one rank reports
        config.pluginmanager.get_plugin("terminalreporter")._tw._file = io.StringIO()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    faulthandler.dump_traceback_later(LIMIT + 30, exit=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    comm = item.config.agreement
    own = str(report.longrepr) if report.failed else ""
    if call.when != "call" and not report.failed:
        return report
    failed = _meet(comm, bool(own), PATIENCE if own else LIMIT)
    if failed is None:
        text = own or "this rank finished the test, others did not"
        _end(comm, f"rank {comm.rank}, {item.nodeid}: {text}")
    failures = {rank: text for rank, text in enumerate(comm.allgather(own)) if text} if failed else {}
    if failures and (not own or comm.rank == 0):
        report.outcome = "failed"
        report.longrepr = "\n".join(f"rank {rank} of {comm.size}:\n{text}" for rank, text in failures.items())
    return report


def _meet(comm, failed, patience):
    """Wait for all ranks; return on how many the test has failed, or `None` if they did not come."""
    total = np.zeros(1, np.int64)
    request, deadline = comm.Iallreduce(np.array([failed], np.int64), total), time.monotonic() + patience
    while not request.Test():
        if time.monotonic() > deadline:
            return None
        time.sleep(0.0002)  # and leave the processor to ranks that are not here yet
    return int(total[0])


def _end(comm, text):
    os.write(sys.__stderr__.fileno(), f"\nFAILED on {text}\n".encode())
    comm.Abort(1)


@pytest.fixture
def comm():
    """A communicator of its own for each test, so that one interrupted operation does not spoil the next test."""
    from mpi4py import MPI

    duplicate = MPI.COMM_WORLD.Dup()
    yield duplicate
    duplicate.Free()


def through_the_drop_in(comm, sendbuf, recvbuf=None, op="sum", *, algorithm="auto", segment=None, timeout=60):
    """Do what `hpcreduce.allreduce` does by ``Intracomm.Allreduce``, where the drop-in offers it."""
    array = recvbuf if type(sendbuf).__name__ == "InPlaceType" else sendbuf
    operation = operations.resolve(op)
    if not isinstance(array, np.ndarray) or segment or operation.locates or array.dtype.kind not in operation.kinds:
        return hpcreduce.allreduce(comm, sendbuf, recvbuf, op, algorithm=algorithm, segment=segment, timeout=timeout)
    out = np.empty(array.shape, operation.types(array.dtype)[1]) if recvbuf is None else recvbuf
    if out.dtype.newbyteorder("=") != array.dtype.newbyteorder("="):
        return hpcreduce.allreduce(comm, sendbuf, recvbuf, op, algorithm=algorithm, timeout=timeout)
    hpcreduce.Intracomm(comm, algorithm=algorithm, timeout=timeout).Allreduce(sendbuf, out, op)
    return out


@pytest.fixture(params=["function", "drop-in"])
def entry(request, monkeypatch):
    """Let the tests of a module call `hpcreduce.allreduce`, and then again the drop-in for mpi4py's communicator."""
    if request.param == "drop-in" and request.config.agreement.size != (2 if request.config.mpich else 3):
        pytest.skip("tested on 2 ranks under MPICH and on 3 under Open MPI, since it takes minutes")
    if request.param == "drop-in":
        monkeypatch.setattr(request.module, "allreduce", through_the_drop_in)


@pytest.fixture
def impatient(monkeypatch):
    """Ask the others sooner: more disagreements in less time, and closer together."""
    monkeypatch.setattr(hpcreduce.runtime.wait, "LOOK", 0.01)
