"""The example that trains on digits: the same loss on any number of ranks, and a stop that loses nothing."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from launching import HERE, LAUNCH, decent, refused

TRAIN = ("python", HERE.parent.parent / "scripts" / "train_digits.py")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def workers(job):
    """The Python processes of a job."""
    return [
        pid for pid in job.processes() if b"train_digits" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1]
    ]


def test_training_a_stop_and_going_on(start, mpirun, folder):
    """One rank to the end; two ranks that are stopped in between, three that go on from there."""
    whole = decent(start(*TRAIN, "--epochs", "9", "--checkpoint", "one.npz", "--plot", "loss.svg").wait(60))
    assert whole.status == 0 and "hidden" in whole.out and "in communication" in whole.out, whole
    assert (folder / "loss.svg").read_text().startswith("<?xml")
    one = np.load(folder / "one.npz")
    assert one["accuracies"][-1] > 0.95 and len(one["losses"]) == 207

    command = (*TRAIN, "--order", "rank", "--checkpoint", "part.npz", "--no-throughput")
    job = start(LAUNCH, 2, *command, "--epochs", 3000)
    deadline = time.monotonic() + 30
    while not (folder / "part.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(workers(job)[-1], signal.SIGTERM)  # one is enough
    stopped = decent(job.wait(30))
    assert stopped.status not in (0, None) and "stopped by SIGTERM after step" in stopped.err, stopped
    done = len(np.load(folder / "part.npz")["losses"])
    assert f"after step {done};" in stopped.err and sorted(os.listdir(folder)) == ["loss.svg", "one.npz", "part.npz"]
    if done > 207:
        pytest.skip(f"it was stopped late, after step {done}")
    more = decent(mpirun(3, *command, "--epochs", "9", "--resume"))
    assert more.status == 0 and f"goes on after step {done}" in more.out, more
    part = np.load(folder / "part.npz")
    assert np.abs(part["losses"] - one["losses"]).max() < 1e-6
    assert np.abs(part["weights/1.weight"] - one["weights/1.weight"]).max() < 1e-6

    (folder / "part.npz").write_bytes((folder / "part.npz").read_bytes()[:1000])
    refused(
        start(*command, "--resume").wait(60), 1, "part.npz: expected a checkpoint of this script, found something else"
    )
    refused(start(*TRAIN, "--resume").wait(30), 2, "--resume needs --checkpoint")
