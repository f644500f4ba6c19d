"""Every algorithm across hosts, and that they are hosts."""

import json
import re
import subprocess
import sys

import pytest

from hpcreduce.algorithms import ALGORITHMS

SMALL = ("--ops", "sum,max", "--dtypes", "float64", "--counts", "0,1,5,1009")


@pytest.mark.parametrize(("hosts", "ranks"), [(4, 1), (5, 1), (2, 2)])
def test_validate(run, lab, hosts, ranks):
    info = run(hosts, "-m", "hpcreduce", "info", ranks=ranks)
    assert info.returncode == 0, info
    facts = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in info.stdout.splitlines() if "  " in line)
    assert (facts["ranks"], facts["nodes"]) == (str(hosts * ranks), str(hosts)), info
    assert facts["ranks per node"] == ", ".join(f"{lab(hosts)}-{host + 1}: {ranks}" for host in range(hosts))

    done = run(hosts, "-m", "hpcreduce", "validate", *SMALL, ranks=ranks)
    assert done.returncode == 0, done
    assert re.search(rf"validation: [1-9]\d* cases on {hosts * ranks} ranks, 0 failures", done.stdout), done
    assert all((f"{name} " in done.stdout) == (name != "shared") for name in ALGORITHMS), done
    asked = run(hosts, "-m", "hpcreduce", "validate", *SMALL, "--algorithms", "shared", ranks=ranks)
    assert asked.returncode != 0 and "needs all ranks on one node" in asked.stdout + asked.stderr, asked
    assert "Traceback" not in asked.stdout + asked.stderr, asked


def test_fit_and_what_it_predicts(run, tmp_path):
    """The shaped link is found, and a ring over it takes what the fit predicts, within what a busy machine does."""
    done = run(4, "-m", "hpcreduce", "fit", "--repeats", "3", "-o", str(tmp_path / "fit.json"))
    assert done.returncode == 0 and "across nodes:" in done.stdout, done
    found = json.loads((tmp_path / "fit.json").read_text())
    assert len(found["hosts"]) == len(found["links"]) == 4 and 0 < found["alpha"] < 0.1
    assert 25e6 / 2 < found["links"][0]["bandwidth"] < 25e6 * 1.2
    done = run(
        4, "-m", "hpcreduce", "bench", "--sizes", "1M", "--algorithms", "ring,tree", "--iterations", "3", "--json", "-"
    )
    measured = {row["algorithm"]: row["median_s"] for row in json.loads(done.stdout)["rows"]}
    predict = [sys.executable, "-m", "hpcreduce", "predict", "--network", str(tmp_path / "fit.json"), "--ranks", "4"]
    told = subprocess.run([*predict, "--sizes", "1M", "--json", "-"], capture_output=True, timeout=60, check=True)
    predicted = {row["algorithm"]: row["seconds"] for row in json.loads(told.stdout)["rows"]}
    for name in ("ring", "tree"):
        assert 0.5 < measured[name] / predicted[name] < 3, (name, measured, predicted)


HOST = """
import os, socket
from mpi4py import MPI
comm = MPI.COMM_WORLD
name = socket.gethostname()
open(f"/dev/shm/of {name}", "w").close()
comm.Barrier()
spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "uts", "ipc", "pid", "mnt")]
seen = sorted(file for file in os.listdir("/dev/shm") if file.startswith("of "))
rows = comm.gather((name, spaces, seen, sorted(os.listdir("/sys/class/net"))))
if comm.rank == 0:
    assert [row[0] for row in rows] == [name[:-1] + host for host in "1122"], rows  # block placement
    for kind in range(5):
        places = [row[1][kind] for row in rows]
        assert places[0] == places[1] != places[2] == places[3], rows
    assert all(row[2] == [f"of {row[0]}"] and row[3] == ["eth0", "lo"] for row in rows), rows
    print("hosts of their own")
"""


def test_hosts_of_their_own(run):
    done = run(2, "-c", HOST, ranks=2)
    assert done.returncode == 0 and done.stdout.strip() == "hosts of their own", done


TRANSFER = """
import sys, time
import numpy as np
from mpi4py import MPI
comm, other = MPI.COMM_WORLD, int(sys.argv[1])
array, times = np.ones(10_000_000, np.uint8), []
for _ in range(3):
    comm.Barrier()
    start = time.perf_counter()
    if comm.rank == 0:
        comm.Send(array, other)
        comm.Recv(array[:1], other)
    elif comm.rank == other:
        comm.Recv(array, 0)
        comm.Send(array[:1], 0)
    times.append(time.perf_counter() - start)
if comm.rank == 0:
    print(min(times))
"""


def seconds(done):
    assert done.returncode == 0, done
    return float(done.stdout)


def test_links_have_the_rate_asked_for(run, up, lab):
    """10 MB at 200 Mbit/s take 0.4 s, in another lab at the same time and 50 Mbit/s 1.6 s; in a host far less."""
    assert 0.36 < seconds(run(2, "-c", TRANSFER, 2, ranks=2)) < 1.2
    assert seconds(run(2, "-c", TRANSFER, 1, ranks=2)) < 0.2
    slow = up(2, "--rate", "50mbit")
    assert 1.45 < seconds(run(2, "-c", TRANSFER, 1, name=slow)) < 4.8


SHARED = """
import time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
array = np.ones(5_000_000, np.uint8)
for outward in (True, False):
    times = []
    for _ in range(3):
        comm.Barrier()
        start = time.perf_counter()
        if comm.rank == 0:
            begin = comm.Isend if outward else comm.Irecv
            MPI.Request.Waitall([begin(array if outward else array.copy(), other) for other in (1, 2)])
        elif comm.rank < 3:
            comm.Recv(array, 0) if outward else comm.Send(array, 0)
        comm.Barrier()
        times.append(time.perf_counter() - start)
    if comm.rank == 0:
        print(min(times))
"""


def test_a_link_has_its_rate_each_way(run):
    """One host to two others, and two to one: 5 MB each, on one link of 200 Mbit/s."""
    done = run(4, "-c", SHARED)
    assert done.returncode == 0, done
    outward, inward = map(float, done.stdout.split())
    assert 0.36 < outward < 1.2 and 0.36 < inward < 1.2, done


LEAVING = """
import time
from mpi4py import MPI
import hpcreduce
comm = MPI.COMM_WORLD
hpcreduce.allreduce(comm, 1)
time.sleep(0.8 * comm.rank)
"""


def test_ranks_that_leave_one_after_the_other_print_nothing(run):
    """UCX prints what nobody has taken, such as a goodbye."""
    done = run(4, "-c", LEAVING)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
