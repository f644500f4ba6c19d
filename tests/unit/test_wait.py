"""Waiting: ends when the work is done, at the deadline, or at a signal."""

import os
import signal
import threading
import time

import pytest

from hpcreduce.errors import CollectiveTimeoutError
from hpcreduce.runtime import calls, wait
from hpcreduce.runtime.recorder import Recorder


class Waiter:
    """What needs `steps` steps; it notes when it was asked to look around."""

    def __init__(self, steps):
        self.left, self.looks, self.state = steps, [], None

    def where(self):
        return ""

    def step(self):
        self.left = max(0, self.left - 1)
        return self.left

    def look(self):
        self.looks.append(time.monotonic())

    def withdraw(self):
        pass

    def expire(self, timeout):
        raise CollectiveTimeoutError(f"what I wait for: not finished after {timeout:g} s")


class Stuck(Waiter):
    """What does not get on."""

    def step(self):
        return 1


@pytest.mark.parametrize("steps", [0, 1, wait.SPINS, wait.SPINS + 1, 1000])
def test_ends_when_the_work_is_done(steps):
    waiter = Waiter(steps)
    wait.until(waiter, 60)
    assert waiter.left == 0


def test_ends_at_the_deadline():
    start = time.monotonic()
    with pytest.raises(CollectiveTimeoutError, match=r"what I wait for: not finished after 0.2 s") as caught:
        wait.until(Stuck(1), 0.2)
    assert 0.2 <= time.monotonic() - start < 5
    assert isinstance(caught.value, TimeoutError)


def test_naps_once_nothing_moves():
    """Count processor time, so that a busy machine does not matter."""
    before = time.process_time()
    with pytest.raises(CollectiveTimeoutError):
        wait.until(Stuck(1), 1.0)
    assert time.process_time() - before < 0.7


def test_looks_around_after_a_while_and_then_now_and_then():
    waiter, start = Stuck(1), time.monotonic()
    with pytest.raises(CollectiveTimeoutError):
        wait.until(waiter, 0.5)
    assert waiter.looks[0] - start >= wait.LOOK
    assert all(
        later - earlier >= 0.5 * wait.PAUSE for earlier, later in zip(waiter.looks, waiter.looks[1:], strict=False)
    )
    assert 2 < len(waiter.looks) <= 0.5 / wait.PAUSE


def test_what_moves_is_not_looked_at():
    class Slow(Waiter):
        def step(self):
            time.sleep(0.002)
            return super().step()

    waiter = Slow(100)
    wait.until(waiter, 60)
    assert not waiter.looks


def test_others_know_what_a_thread_waits_for():
    class Curious(Stuck):
        def look(self):
            assert wait.blocked[threading.get_ident()] is self
            raise InterruptedError

    with pytest.raises(InterruptedError):
        wait.until(Curious(1), 60)
    assert not wait.blocked


def test_ctrl_c_works_while_waiting():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        wait.until(Stuck(1), 30)
    assert not wait.blocked


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_bad_default_timeout(monkeypatch, text):
    monkeypatch.setenv("HPCREDUCE_TIMEOUT", text)
    with pytest.raises(ValueError, match="HPCREDUCE_TIMEOUT"):
        wait.default_timeout()


def test_default_timeout(monkeypatch):
    monkeypatch.delenv("HPCREDUCE_TIMEOUT", raising=False)
    assert wait.default_timeout() == 600
    monkeypatch.setenv("HPCREDUCE_TIMEOUT", "1.5")
    assert wait.default_timeout() == 1.5


def test_tags_tell_calls_and_their_order_apart():
    mask = (1 << 29) - 1
    kinds = [calls.fingerprint("allreduce", op, shape) for op in ("sum", "max") for shape in ((3,), (4,))]
    tags = set()
    for kind in kinds:
        recorder = Recorder()
        for turn in range(1000):
            recorder.begin(kind, "a call", turn % 2, turn)
            tags.add(recorder.token & mask)
    assert len(tags) > 3990  # a few of 4000 may meet by chance


def test_tags_tell_what_went_before_apart():
    one, other = Recorder(), Recorder()
    for recorder, first in (one, 1), (other, 2):
        for fingerprint in (first, 5, 6, 7):
            recorder.begin(fingerprint, "a call")
        for plan in (3, 4) if first == 1 else (4, 3):
            recorder.begin(plan, "a plan", plan, 1)
    assert one.token != other.token and one.sequence == other.sequence == 4
    one.begin(8, "a plan", 9, 1)
    other.begin(8, "a plan", 9, 1)
    assert one.token == other.token  # ranks may start plans in any order
