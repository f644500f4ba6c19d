"""Waiting: ends when the work is done, at the deadline, or at a signal."""

import os
import signal
import threading
import time

import pytest

from hpcreduce.errors import CollectiveTimeoutError
from hpcreduce.runtime import agreement, wait


def countdown(steps):
    """Return a progress function that needs `steps` calls."""
    left = [steps]

    def progress():
        left[0] = max(0, left[0] - 1)
        return left[0]

    return progress


@pytest.mark.parametrize("steps", [0, 1, wait.SPINS, wait.SPINS + 1, 1000])
def test_ends_when_the_work_is_done(steps):
    wait.until(countdown(steps), 60, lambda: "never")


def test_ends_at_the_deadline():
    start = time.monotonic()
    with pytest.raises(CollectiveTimeoutError, match=r"what I wait for: not finished after 0.2 s") as caught:
        wait.until(lambda: 1, 0.2, lambda: "what I wait for")
    assert 0.2 <= time.monotonic() - start < 5
    assert isinstance(caught.value, TimeoutError)


def test_naps_once_nothing_moves():
    """Count processor time, so that a busy machine does not matter."""
    before = time.process_time()
    with pytest.raises(CollectiveTimeoutError):
        wait.until(lambda: 1, 1.0, lambda: "")
    assert time.process_time() - before < 0.7


def test_ctrl_c_works_while_waiting():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        wait.until(lambda: 1, 30, lambda: "")


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_bad_default_timeout(monkeypatch, text):
    monkeypatch.setenv("HPCREDUCE_TIMEOUT", text)
    with pytest.raises(ValueError, match="HPCREDUCE_TIMEOUT"):
        agreement.default_timeout()


def test_default_timeout(monkeypatch):
    monkeypatch.delenv("HPCREDUCE_TIMEOUT", raising=False)
    assert agreement.default_timeout() == 600
    monkeypatch.setenv("HPCREDUCE_TIMEOUT", "1.5")
    assert agreement.default_timeout() == 1.5


def test_tags_tell_calls_and_their_order_apart_and_stay_below_the_bound():
    mask = (1 << 29) - 1
    calls = [agreement.fingerprint("allreduce", op, shape) for op in ("sum", "max") for shape in ((3,), (4,))]
    tags = {agreement.tag(call, sequence, mask) for call in calls for sequence in range(1000)}
    assert len(tags) > 3990  # a few of 4000 may meet by chance
    assert all(0 <= tag <= mask for tag in tags)
