"""``stats`` while it runs: memory, threads, signals, the progress bar, and stdin."""

import json
import os
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from launching import HPCREDUCE, LAUNCH, PROGRAMS, decent
from test_progress import XTERM, Terminal
from test_reduce_errors import reads

MOST_THREADS = 4
"""Of a rank: its own, two of Arrow and one of MPI, where OMP_NUM_THREADS is 1."""
MIB = 1 << 20


def test_memory_does_not_grow_with_the_file(mpirun, folder):
    """Peaks of two ranks that read 16 MB and 128 MB of CSV: a rank holds blocks, not its share; numba is half of it."""
    line = b"1.5,2.5,1.5,2.5,1.5,2.5,1.5,text\n"
    peaks = {}
    for name, size in ("small", 16), ("large", 128):
        rows = size * 1_000_000 // len(line)
        (folder / f"{name}.csv").write_bytes(b"a,b,c,d,e,f,g,h\n" + line * rows)
        result = mpirun(2, "python", PROGRAMS / "peak.py", folder, "stats", f"{name}.csv", "--json", f"{name}.json")
        assert decent(result).status == 0, result
        assert json.loads((folder / f"{name}.json").read_text())["rows"] == rows
        peaks[name] = max(int((folder / f"peak.{rank}").read_text()) for rank in range(2))
    assert peaks["large"] < peaks["small"] + 56 * MIB and peaks["large"] < 300 * MIB, peaks


@pytest.fixture
def reading(start, folder):
    """Start `stats` on Parquet files that take a while; return the job and its ranks once it is under way."""
    table = pa.table({name: np.arange(1_000_000) % 97 / 2 for name in "abcd"})
    names = [f"{index}.parquet" for index in range(40)]
    pq.write_table(table, folder / names[0])
    for name in names[1:]:
        os.link(folder / names[0], folder / name)

    def reading(*options):
        job = start(LAUNCH, 2, *HPCREDUCE, "stats", ".", *options, env={"OMP_NUM_THREADS": "1"})
        deadline = time.monotonic() + 30
        while len(ranks := [pid for pid in job.processes() if reads(pid, *names)]) < 2:
            assert time.monotonic() < deadline and job.process.poll() is None, job.wait(0.1)
            time.sleep(0.001)
        return job, ranks

    return reading


def test_H13_L08_threads_and_a_signal_in_the_middle(reading, folder):
    """No more threads than are documented; no orphan, no partial file, and the output of an earlier run as it was."""
    (folder / "old.json").write_text("of an earlier run")
    job, ranks = reading("--moments", "--json", "old.json", "--output", "new.parquet.csv", "--plot", "new.png")
    threads = 0
    for _ in range(30):
        threads = max(threads, *(len(os.listdir(f"/proc/{rank}/task")) for rank in ranks))
        time.sleep(0.02)
    os.kill(job.process.pid, signal.SIGTERM)
    sent = time.monotonic()
    result = job.wait(30)
    assert time.monotonic() - sent < 30 and result.status != 0 and not result.left, result
    assert "Traceback" not in result.err and result.out == "", result
    assert not list(folder.glob("new*")) and (folder / "old.json").read_text() == "of an earlier run"
    assert 1 <= threads <= MOST_THREADS, threads


def test_progress_bar_tells_bytes_rate_and_time_left(start, folder):
    rows = 400_000
    (folder / "a.csv").write_text("x,y\n" + "1.25,2.5\n" * rows)
    terminal = Terminal()
    job = start(LAUNCH, 2, *HPCREDUCE, "stats", "a.csv", "--json", "-", terminal=terminal.theirs, env=XTERM)
    result = job.wait(60)
    seen = terminal.close()
    assert result.status == 0 and json.loads(result.out)["rows"] == rows, (result, seen)
    assert "reading" in seen and "MB" in seen and "/s" in seen and "0:00:0" in seen, seen
    assert "Traceback" not in seen


def test_standard_input(start, folder):
    (folder / "a.csv").write_text("x;y\n1,5;a\n2,5;b\n")
    command = f"bash '{LAUNCH}' 2 {' '.join(HPCREDUCE)} stats - --delimiter ';' --decimal , --moments --json - < a.csv"
    result = decent(start("bash", "-c", command).wait(60))
    document = json.loads(result.out)
    assert result.status == 0 and document["rows"] == 2 and document["columns"]["x"]["sum"] == 4.0, result
    assert document["columns"]["x"]["argmax"] == {"file": "-", "row": 1}
