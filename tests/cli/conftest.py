"""Tests of the command line, from outside: each starts ``scripts/launch.sh N python ...`` and looks at what comes back.

PATH=ENVIRONMENT/bin:$PATH python -m pytest tests/cli
"""

import shutil

import pytest
from launching import HPCREDUCE, LAUNCH, Job, Server, decent

ANY = (
    "test_bench",
    "test_doctor",
    "test_draw",
    "test_explain_fit",
    "test_predict",
    "test_progress",
    "test_real_tables",
    "test_reduce",
    "test_reduce_errors",
    "test_stats",
    "test_stats_errors",
    "test_stats_running",
    "test_train",
    "test_tune",
    "test_usage",
)
"""Files whose tests would do the same under any library; run under MPICH, which launches faster."""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.stem in ANY and not shutil.which("mpichversion"):
            item.add_marker(pytest.mark.skip(reason="tested under MPICH, and the same under any library"))


@pytest.fixture
def folder(tmp_path):
    """An empty folder whose name has a space; commands run in it."""
    path = tmp_path / "a folder"
    path.mkdir()
    return path


@pytest.fixture
def start(folder):
    """Start a command and return the Job."""
    jobs = []

    def start(*command, **options):
        jobs.append(Job(command, **{"cwd": folder} | options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()
        job.process.wait(10)


@pytest.fixture
def mpirun(start):
    """Run a command on ranks and return the Result: ``mpirun(4, "python", "-c", ...)``."""

    def mpirun(ranks, *command, timeout=60, **options):
        return start(LAUNCH, ranks, *command, **options).wait(timeout)

    return mpirun


@pytest.fixture
def cli(start, mpirun):
    """Run the command line on ranks (0: without mpirun) and return the Result: ``cli(4, "validate")``."""

    def cli(ranks, *arguments, timeout=60, **options):
        if ranks == 0:
            return decent(start(*HPCREDUCE, *arguments, **options).wait(timeout))
        return decent(mpirun(ranks, *HPCREDUCE, *arguments, timeout=timeout, **options))

    return cli


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Rank count -> Server, for the whole session."""
    servers = {}

    def server(ranks):
        if ranks not in servers or servers[ranks].job.process.poll() is not None:
            servers[ranks] = Server(ranks, tmp_path_factory.mktemp(f"server of {ranks}"))
        return servers[ranks]

    yield server
    for each in servers.values():
        if each.job.process.poll() is None:
            each.tell(None)
        each.job.wait(20)


@pytest.fixture
def many(servers, folder):
    """Run command lines on ranks that are there already, and return a `Said` for each: ``many(3, [["info"], ...])``."""

    def many(ranks, commands, timeout=120):
        server = servers(ranks)
        found = server.ask(commands, folder, timeout)
        if any("an earlier operation failed" in err for said in found for err in said.errs):
            server.job.end()  # a failure that was not foreseen: other tests get other ranks
            server.job.process.wait(10)
        return found

    return many


@pytest.fixture
def stub(tmp_path):
    """A folder with an mpi4py that cannot be imported."""
    package = tmp_path / "stub" / "mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('libmpi.so.12: cannot open shared object file')")
    return package.parent
