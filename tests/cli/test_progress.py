"""The progress bar: on a terminal, by one rank, and nowhere else."""

import contextlib
import os
import pty
import re
import subprocess
import threading

import numpy as np
import pytest
from launching import HPCREDUCE, LAUNCH

SMALL = ("validate", "--ops", "sum,max", "--dtypes", "float64")
XTERM = {"TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "", "CI": ""}
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal that keeps what is written to it."""

    def __init__(self):
        self.ours, self.theirs = pty.openpty()
        self.seen = b""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with contextlib.suppress(OSError):
            while data := os.read(self.ours, 65536):
                self.seen += data

    def close(self):
        """Return all that was written."""
        os.close(self.theirs)
        self.reader.join(5)
        os.close(self.ours)
        return self.seen.decode(errors="replace")


@pytest.fixture
def on_terminal(start):
    """Run a command with stderr, and stdout if asked, on a terminal; return the result and what the terminal got."""

    def on_terminal(*command, stdout=False, env=XTERM):
        terminal = Terminal()
        options = {"stdout": terminal.theirs} if stdout else {}
        job = start(*command, terminal=terminal.theirs, env=env, **options)
        result = job.wait(60)
        seen = terminal.close()
        assert result.status == 0 and "Traceback" not in seen, (result, seen)
        return result, seen

    return on_terminal


def test_bar_appears_on_a_terminal_and_is_gone_at_the_end(on_terminal):
    result, seen = on_terminal(*HPCREDUCE, *SMALL, "--json", "-")
    assert "validating" in seen and "\x1b[" in seen and "100%" in seen, seen
    assert result.out.startswith("{") and "\x1b" not in result.out, result
    assert CODES.sub("", seen.split("\x1b[2K")[-1]).strip() == "", seen


def test_bar_appears_on_the_terminal_of_the_launcher(on_terminal, folder):
    np.save(folder / "a.npy", np.arange(6.0))
    result, seen = on_terminal(LAUNCH, 3, *HPCREDUCE, "reduce", "a.npy", "a.npy", "--op", "sum", "-o", "b.npy")
    assert "reducing" in seen and "\x1b[" in seen and "100%" in seen, seen
    assert "2 files" in result.out and "\x1b" not in result.out, result


def test_no_bar_without_a_terminal_on_stderr(start, folder):
    """Standard output on a terminal is not enough: a person may have sent the errors elsewhere."""
    terminal = Terminal()
    result = start(LAUNCH, 2, *HPCREDUCE, *SMALL, stdout=terminal.theirs, env=XTERM).wait(60)
    seen = terminal.close()
    assert result.status == 0 and result.err == "", result
    assert "validation:" in seen and "validating" not in seen and "\x1b[" not in seen, seen


def test_bar_under_script(start, folder):
    """As a person would see it: all on one terminal, made by script(1)."""
    try:
        subprocess.run(["script", "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no script(1) of util-linux")
    command = f"bash '{LAUNCH}' 2 {' '.join([*HPCREDUCE, *SMALL])}"
    result = start("script", "-qec", command, folder / "typescript", env=XTERM).wait(60)
    assert result.status == 0 and "validating" in result.out and "0 failures" in result.out, result
    assert "Traceback" not in result.out
