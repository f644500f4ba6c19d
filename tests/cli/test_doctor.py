"""``doctor``, from outside: it reads what the ranks of a job have written, and says who is behind."""

import json
import os

import pytest
from launching import refused, refused_by_all

WHAT = "allreduce(op sum, dtype float64, shape (5,), algorithm ring)"
NOW = 1_700_000_000.0


def call(number, pending=False):
    return {
        "order": [0, number],
        "what": WHAT,
        "fingerprint": 7,
        "at": "train.py:40 in step",
        "started": NOW - 60 + number,
        "pending": pending,
        "waiting": "round 2, waiting for a message from rank 1" if pending else "",
    }


def dump(rank, calls, stack):
    communicator = {"id": "0.2", "rank": rank, "members": [0, 1, 2], "broken": "", "calls": calls}
    return {
        "version": 1,
        "rank": rank,
        "size": 3,
        "host": "node",
        "pid": 100 + rank,
        "time": NOW,
        "reason": "SIGUSR1",
        "stack": ["train.py:12 in main", stack],
        "communicators": [communicator],
    }


@pytest.fixture
def job(folder):
    """A folder of dumps in which rank 2 has not started the call that the others wait in."""
    path = folder / "dumps of a job"
    path.mkdir()
    for rank in range(3):
        calls = [call(11)] if rank == 2 else [call(11), call(12, pending=True)]
        stack = "train.py:61 in load" if rank == 2 else "train.py:40 in step"
        (path / f"rank-{rank}.json").write_text(json.dumps(dump(rank, calls, stack)))
    (path / "notes.txt").write_text("not a dump")
    return path


def test_says_who_is_behind_without_an_mpi_library(cli, job, stub):
    result = cli(0, "doctor", job, paths=[stub])
    assert (result.status, result.err) == (0, ""), result
    assert result.out == (
        "rank 2 is behind: it has not started #12 of communicator 0.2, where ranks 0-1 wait, for up to 48 s\n"
        "\n"
        f"communicator 0.2, 3 ranks: #12 {WHAT}\n"
        "  rank 2: has not started it\n"
        f"    last completed: #11 {WHAT}\n"
        "      at train.py:40 in step, started 49 s before the dump\n"
        "    now at train.py:61 in load, from train.py:12 in main\n"
        "  ranks 0-1: wait in it for up to 48 s, at train.py:40 in step\n"
        "    round 2, waiting for a message from rank 1\n"
        "\n"
        "3 dumps of 3 ranks, on 1 host:\n"
        "  ranks 0-2: SIGUSR1\n"
    )


def test_as_json(cli, folder, job):
    result = cli(0, "doctor", job, "--json", "-")
    document = json.loads(result.out)
    assert (result.status, result.err) == (0, "")
    assert document["verdict"].startswith("rank 2 is behind") and document["notes"] == []
    (finding,) = document["findings"]
    assert (finding["kind"], finding["communicator"], finding["call"]) == ("behind", "0.2", "#12")
    assert finding["groups"][0]["world"] == [2] and finding["groups"][1]["seconds"] == 48
    result = cli(0, "doctor", job, "--json", "found.json")
    assert result.out.startswith("rank 2 is behind") and json.loads((folder / "found.json").read_text()) == document


def test_one_bad_file_is_a_note(cli, job):
    whole = (job / "rank-1.json").read_text()
    (job / "rank-1.json").write_text(whole[: len(whole) // 2])
    result = cli(0, "doctor", job)
    assert result.status == 0 and len(result.err.splitlines()) == 1, result
    assert result.err.startswith("note: passed over rank-1.json: not JSON, or truncated: ")
    assert result.out.startswith("rank 1 left no dump") and "rank 2 is behind" in result.out


def test_notes_go_to_stderr(cli, job):
    late = json.loads((job / "rank-0.json").read_text()) | {"time": NOW + 3600, "version": 2}
    (job / "rank-0.json").write_text(json.dumps(late))
    result = cli(0, "doctor", job)
    assert result.status == 0 and [line[:6] for line in result.err.splitlines()] == ["note: "] * 2, result
    assert "60 min 0 s apart" in result.err and "version 2" in result.err


@pytest.mark.parametrize("ranks", [0, 2])
def test_is_said_and_written_once(cli, folder, job, ranks):
    result = cli(ranks, "doctor", job, "--json", "found.json")
    assert result.status == 0 and result.out.count("rank 2 is behind") == 1, result
    assert sorted(os.listdir(folder)) == ["dumps of a job", "found.json"]


def test_one_rank_opens_the_file(many, folder, job):
    (job / "rank-1.json").write_text("{")
    (said,) = many(3, [["doctor", job, "--json", "found.json"]])
    assert said.statuses == [0] * 3 and said.outs[0] and not any(said.outs[1:]), said
    assert said.errs[0].count("note: ") == 1 and not any(said.errs[1:]), said
    assert said.opened[0] and not any(said.opened[1:]), said
    assert json.loads((folder / "found.json").read_text())["verdict"].startswith("rank 1 left no dump")


def test_bad_input(cli, many, folder, job):
    (folder / "empty").mkdir()
    (folder / "bad").mkdir()
    (folder / "bad" / "rank-0.json").write_text('{"version": 1}')
    (folder / "bad" / "rank-1.json").mkdir()
    cases = (
        (["missing"], 1, "cannot read missing: No such file or directory"),
        (["dumps of a job/rank-0.json"], 1, "cannot read", "Not a directory"),
        (["empty"], 1, "no dump in empty: expected files rank-0.json"),
        (["bad"], 1, "no dump in bad: rank-0.json: the field 'size' is missing (and 1 more file that is no dump)"),
        ([job, "--json", "no/found.json"], 1, "cannot write no/found.json: No such file or directory"),
        ([], 2, "DIR"),
    )
    for arguments, status, *words in cases:
        result = refused(cli(0, "doctor", *arguments), status, *words)
        assert status == 2 or len(result.err.splitlines()) == 1, result
    together = [["doctor", *arguments] for arguments, *_ in cases if arguments[-1:] != ["no/found.json"]]
    for said, (_, status, *words) in zip(many(3, together), (*cases[:4], cases[5]), strict=True):
        refused_by_all(said, status, *words)


def test_a_pipe_among_the_dumps_holds_nobody_up(cli, job):
    (job / "rank-0.json").unlink()
    os.mkfifo(job / "rank-0.json")
    result = cli(0, "doctor", job, timeout=20)
    assert result.status == 0 and "passed over rank-0.json: not a file" in result.err, result


def test_help(cli):
    result = cli(0, "--help")
    assert "doctor" in result.out
    result = cli(0, "doctor", "--help")
    assert result.status == 0 and "DIR" in result.out and all(len(line) <= 100 for line in result.out.splitlines())
