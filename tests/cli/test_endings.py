"""Ranks that fail, leave or disagree: the others learn of it, every job ends, and says why. And the flight recorder.

A process that is killed (H12) is in test_launching.py, the command line's own errors are in test_validate.py.
"""

import json
import os
import re
import signal
import time

import pytest
from launching import LAUNCH, PROGRAMS

PROGRAM = PROGRAMS / "endings.py"
LONGEST = 20
UNHAPPY = "ValueError: rank 1 is unhappy"
LEAKS = re.compile(r"leaked|not freed|in use|Assertion failed|Fatal error|Segmentation|Bad termination of MPI", re.I)


@pytest.fixture
def ends(mpirun, folder):
    """Run a scenario and return its Result, with what the ranks said one after the other.

    It ends in time, and leaves no process.
    """

    def ends(scenario, ranks=2, **options):
        result = mpirun(ranks, "python", PROGRAM, scenario, timeout=LONGEST + 10, **options)
        said = [(folder / f"err.{rank}").read_text() for rank in range(ranks)]
        result = result._replace(err="".join([*said, result.err]))
        assert result.seconds < LONGEST and not result.left, result
        assert not LEAKS.search(result.err) and "Exception ignored" not in result.err, result
        return result

    return ends


def line(mark):
    """Return the number of the program's line that has this mark."""
    (number,) = [n for n, text in enumerate(PROGRAM.read_text().splitlines(), 1) if text.endswith(f"# here: {mark}")]
    return number


def raised(result, error):
    """Return the ranks that ended with this error of ours."""
    return sorted(map(int, re.findall(rf"^hpcreduce\.errors\.{error}: rank (\d+)", result.err, re.MULTILINE)))


IN_OURS = {
    "after_some_calls": 5,
    "while_others_wait_for_a_handle": 2,
    "while_others_start_a_plan": 2,
}
ELSEWHERE = {
    "before_the_first_call": 3,
    "while_others_open_another": 2,
    "while_others_are_in_a_barrier": 3,
    "while_others_receive": 2,
}


@pytest.mark.parametrize("scenario, ranks", IN_OURS.items())
def test_H01_others_in_our_calls_raise_with_the_traceback(ends, scenario, ranks):
    result = ends(scenario, ranks)
    others = [rank for rank in range(ranks) if rank != 1]
    assert result.status != 0 and raised(result, "PeerError") == others, result
    assert result.err.count(UNHAPPY) == ranks, result  # its own, and in the errors of the others
    assert result.err.count(f"in {scenario}") >= ranks, result
    assert "Abort" not in result.err and "recover()" not in result.err, result  # all have left by themselves


@pytest.mark.parametrize("scenario, ranks", ELSEWHERE.items())
def test_H01_others_anywhere_do_not_wait_for_ever(ends, scenario, ranks):
    result = ends(scenario, ranks)
    assert result.status != 0 and result.err.count(UNHAPPY) >= 1, result


def test_all_fail_at_once_and_all_are_heard(ends):
    result = ends("all_at_once", 3)
    assert result.status != 0, result
    assert all(f"ValueError: rank {rank} is unhappy" in result.err for rank in range(3)), result


def test_an_error_at_a_prompt_ends_nothing(ends):
    result = ends("at_a_prompt")
    assert result.status == 0 and UNHAPPY in result.err, result
    assert sorted(result.out.splitlines()) == ["rank 0 got 1", "rank 1 got 1"], result


@pytest.mark.parametrize(
    "scenario, ranks", [("leaves_with_status", 3), ("leaves_at_the_end", 2), ("leaves_and_finalizes", 2)]
)
def test_H17_rank_that_leaves_is_missed(ends, scenario, ranks):
    result = ends(scenario, ranks)
    assert result.status != 0 and raised(result, "MismatchError") == [0, 2][: ranks - 1], result
    assert result.err.count("rank 1: left after") == ranks - 1 and "Abort" not in result.err, result


def test_rank_that_leaves_before_the_first_call_is_seen_at_the_deadline(ends):
    result = ends("leaves_before_the_first_call")
    assert result.status != 0 and raised(result, "CollectiveTimeoutError") == [0], result


@pytest.mark.parametrize("scenario, ranks, victim", [("interrupted", 2, 1), ("interrupted_in_a_call", 3, 0)])
def test_interrupt_of_one_rank_is_told(ends, scenario, ranks, victim):
    result = ends(scenario, ranks)
    assert result.status != 0 and result.err.count("KeyboardInterrupt") == ranks, result
    assert raised(result, "PeerError") == [rank for rank in range(ranks) if rank != victim], result


def test_calls_from_atexit(ends):
    result = ends("reduces_at_exit")
    assert (result.status, result.err) == (0, ""), result
    assert sorted(result.out.splitlines()) == ["rank 0 got 2", "rank 1 got 2"], result


def test_guard_recover_and_go_on(ends):
    result = ends("guarded", 3)
    assert (result.status, result.err) == (0, ""), result
    assert result.out.count("caught PeerError") == 4 and result.out.count("caught its own") == 2, result
    assert result.out.count("got 3 3.0") == 6, result


def test_guard_tells_of_an_exit_too(ends):
    result = ends("guarded_and_leaves")
    assert result.status != 0 and raised(result, "PeerError") == [0] and "SystemExit: 3" in result.err, result


@pytest.mark.parametrize(
    "scenario, ranks, shapes",
    [
        ("short_lengths", 3, ("(4,)", "(5,)")),
        ("long_lengths", 3, ("(100000,)", "(100005,)")),
        ("lengths_in_the_first_call", 2, ("(4,)", "(5,)")),
    ],
)
def test_H02_lengths_differ_and_every_rank_says_so(ends, scenario, ranks, shapes):
    result = ends(scenario, ranks)
    assert result.status != 0 and raised(result, "MismatchError") == list(range(ranks)), result
    for shape in shapes:
        assert result.err.count(f"shape {shape}") == ranks, (shape, result)
    assert "Abort" not in result.err, result


STRAYS = {
    "mismatch_caught": 3,
    "mismatch_caught_and_finalized": 3,
    "mismatch_caught_with_handles": 2,
    "timeout_caught": 2,
    "timeout_caught_and_finalized": 3,
    "timeout_caught_and_freed": 3,
}


@pytest.mark.parametrize("scenario, ranks", STRAYS.items())
def test_messages_under_way_do_not_spoil_the_end(ends, scenario, ranks):
    result = ends(scenario, ranks)
    assert (result.status, result.err) == (0, ""), result
    assert result.seconds < 15 and "caught" in result.out, result
    for words in ("is here",) * scenario.endswith("finalized") + (f"got {ranks}",) * scenario.endswith("freed"):
        assert result.out.count(words) == ranks, result


@pytest.fixture
def dumping(start, folder, cli):
    """A scenario with dumps, while it runs."""

    class Dumping:
        dumps = folder / "dumps of" / "a job"

        def __init__(self, scenario, ranks, variable=True):
            env = {"HPCREDUCE_DUMP_DIR": str(self.dumps)} if variable else {}
            self.ranks, self.job = ranks, start(LAUNCH, ranks, "python", PROGRAM, scenario, env=env)
            files = [folder / f"pid.{rank}" for rank in range(ranks)]
            self.until(lambda: all(file.exists() for file in files))
            self.pids = [int(file.read_text()) for file in files]
            time.sleep(0.5)  # in the call by now

        def until(self, true, seconds=LONGEST):
            """Wait for a condition."""
            deadline = time.monotonic() + seconds
            while not true():
                assert time.monotonic() < deadline and self.job.process.poll() is None, self.job.wait(1)
                time.sleep(0.02)

        def signal(self, number, ranks, dumps=True):
            """Send a signal to ranks, the last first, and wait for the dump of each."""
            for rank in sorted(ranks, reverse=True):
                os.kill(self.pids[rank], number)
                if dumps:
                    self.until((self.dumps / f"rank-{rank}.json").exists)

        def go_on(self):
            """Wake the sleeper, and return the result."""
            (folder / "go").touch()
            return self.end()

        def end(self):
            """Return the result."""
            result = self.job.wait(LONGEST)
            assert not result.left, result
            return result

        def doctor(self):
            """Return what the doctor says."""
            result = cli(0, "doctor", self.dumps)
            assert (result.status, result.err) == (0, ""), result
            return " ".join(result.out.split())

    return Dumping


def test_dump_of_a_loop_in_which_one_rank_sleeps(dumping):
    job = dumping("one_sleeps", 3)
    job.signal(signal.SIGUSR1, range(3))
    said = job.doctor()
    assert said.startswith("rank 2 is behind: it has not started #14 of communicator "), said
    assert "where ranks 0-1 wait" in said and "shape (1000,), algorithm ring" in said, said
    assert said.count(f"at endings.py:{line('loop')} in one_sleeps") >= 2, said
    assert f"now at endings.py:{line('asleep')} in sleep_until" in said, said
    result = job.go_on()
    assert result.status == 0 and result.out.count("is done") == 3 and result.own == [], result


def test_dump_of_a_first_use_that_one_rank_does_not_come_to(dumping):
    job = dumping("one_sleeps_before_the_first_call_on_another", 3)
    job.signal(signal.SIGUSR1, range(3))
    said = job.doctor()
    assert said.startswith("rank 2 is behind: it has not started #1 of communicator "), said
    assert "first use of the communicator" in said and f"at endings.py:{line('other')} in" in said, said
    assert f"now at endings.py:{line('asleep')} in sleep_until" in said, said
    assert job.go_on().status == 0


def test_H13_dump_at_sigterm_and_then_it_ends_as_ever(dumping):
    job = dumping("one_sleeps", 2)
    job.signal(signal.SIGTERM, [1])
    result = job.end()
    assert result.status in (signal.SIGTERM, 128 + signal.SIGTERM), result
    assert json.loads((job.dumps / "rank-1.json").read_text())["reason"] == "SIGTERM"


def test_dump_at_sigterm_and_then_the_handler_of_the_user(dumping, folder):
    job = dumping("with_a_handler_that_exits", 2)
    job.signal(signal.SIGTERM, [1])
    result = job.end()
    assert result.status != 0 and result.out.startswith("rank 1 has handled 15"), result
    assert "rank 1: left after" in (folder / "err.0").read_text(), result


def test_signals_that_were_ignored_only_dump(dumping):
    job = dumping("ignoring", 2)
    job.signal(signal.SIGTERM, [0])
    job.signal(signal.SIGUSR1, [1])
    result = job.go_on()
    assert result.status == 0 and result.out.count("is done") == 2, result


def test_dumps_of_ranks_that_disagree(ends, cli, folder):
    result = ends("short_lengths", 3, env={"HPCREDUCE_DUMP_DIR": "new/dumps"})
    assert result.status != 0 and raised(result, "MismatchError") == [0, 1, 2], result
    said = cli(0, "doctor", folder / "new" / "dumps")
    assert (said.status, said.err) == (0, ""), said
    assert said.out.startswith("rank 2 disagrees with ranks 0-1 on what #4 of communicator "), said
    assert said.out.count(f"at endings.py:{line('short')} in short_lengths") >= 2, said
    assert "shape (4,)" in said.out and "shape (5,)" in said.out, said


def test_a_folder_that_cannot_be_written_changes_nothing(ends, folder):
    (folder / "file").touch()
    result = ends("guarded", env={"HPCREDUCE_DUMP_DIR": "file/dumps"})
    assert (result.status, result.err) == (0, "") and result.out.count("got 2 2.0") == 4, result
    result = ends("short_lengths", env={"HPCREDUCE_DUMP_DIR": "file/dumps"})
    assert raised(result, "MismatchError") == [0, 1] and "file/dumps" not in result.err, result


def test_no_signal_is_caught_without_the_variable(ends, dumping):
    result = ends("sees_handlers")
    assert sorted(result.out.splitlines()) == ["rank 0 True True", "rank 1 True True"], result
    job = dumping("one_sleeps", 2, variable=False)
    job.signal(signal.SIGTERM, [1], dumps=False)
    result = job.end()
    assert result.status in (signal.SIGTERM, 128 + signal.SIGTERM) and not job.dumps.exists(), result


def test_all_fail_before_the_first_call_and_all_are_heard(ends):
    result = ends("all_before_the_first_call", 3)
    assert result.status != 0, result
    assert all(f"ValueError: rank {rank} is unhappy" in result.err for rank in range(3)), result


def test_H01_hook_of_the_user_that_does_not_call_ours(ends):
    result = ends("with_a_hook_of_the_user")
    assert result.status != 0 and "my hook: rank 1 is unhappy" in result.err, result


def test_calls_from_atexit_registered_before_ours(ends):
    result = ends("reduces_at_exit_registered_early")
    assert (result.status, result.err) == (0, ""), result
    assert sorted(result.out.splitlines()) == ["rank 0 got 2", "rank 1 got 2"], result


def test_dump_of_a_rank_that_has_made_no_call_yet(dumping):
    job = dumping("one_sleeps_before_the_first_call", 3)
    job.signal(signal.SIGUSR1, range(3))
    said = job.doctor()
    assert said.startswith("rank 2 is behind"), said
    assert f"now at endings.py:{line('asleep')} in sleep_until" in said, said
    assert job.go_on().status == 0
