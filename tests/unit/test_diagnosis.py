"""Who is behind, told from dumps written by hand."""

import json

import pytest

from hpcreduce.diagnosis import diagnose, dumps
from hpcreduce.diagnosis.dumps import Call, Communicator, Dump
from hpcreduce.diagnosis.words import NO_DUMP
from hpcreduce.errors import DumpError

STEP, SYNC, LOAD = "train.py:40 in step", "train.py:44 in sync", "train.py:61 in load"
MAIN = "train.py:12 in main"
NOW = 1_000_000.0


def call(number, *, plan=0, what="allreduce(op sum)", fingerprint=None, at=STEP, ago=None, waiting=None):
    """A call, pending if it waits for something."""
    fingerprint = hash((plan, number)) if fingerprint is None else fingerprint
    started = NOW - (100 - number if ago is None else ago)
    return Call((plan, number), what, fingerprint, at, started, waiting is not None, waiting or "")


def calls(last, *more):
    """The calls up to number `last`, complete, and more."""
    return tuple(call(number) for number in range(max(1, last + 1 - dumps.KEPT + len(more)), last + 1)) + more


def pending(number, **rest):
    return call(number, **{"ago": 41, "waiting": "round 2, waiting for a message from rank 1"} | rest)


def view(rank, made, *, name="0", members=(0, 1, 2, 3), broken=""):
    return Communicator(name, members.index(rank), tuple(members), broken, tuple(made))


def dump(rank, *views, size=4, stack=(MAIN, STEP), time=NOW, reason="SIGUSR1", version=1):
    return Dump(version, rank, size, "a", 100 + rank, time, reason, tuple(stack), views)


def waiting(ranks, number=12, **rest):
    return [dump(rank, view(rank, calls(number - 1, pending(number))), **rest) for rank in ranks]


def lines(found):
    text = str(found).splitlines()
    assert all(len(line) <= 100 for line in text), found
    return text


def accounts(finding):
    return {group.world: (group.account.state, group.seconds) for group in finding.groups}


def test_behind_by_one():
    late = dump(2, view(2, calls(11)), stack=(MAIN, "train.py:35 in epoch", LOAD))
    found = diagnose([*waiting((0, 1)), late, *waiting((3,))])
    text = lines(found)
    assert text[0] == (
        "rank 2 is behind: it has not started #12 of communicator 0, where ranks 0-1,3 wait, for up to 41 s"
    )
    assert text[2] == "communicator 0, 4 ranks: #12 allreduce(op sum)"
    assert text[3:8] == [
        "  rank 2: has not started it",
        "    last completed: #11 allreduce(op sum)",
        f"      at {STEP}, started 89 s before the dump",
        f"    now at {LOAD}, from train.py:35 in epoch, from {MAIN}",
        f"  ranks 0-1,3: wait in it for up to 41 s, at {STEP}",
    ]
    assert text[8] == "    round 2, waiting for a message from rank 1"
    assert text[-2:] == ["4 dumps of 4 ranks, on 1 host:", "  ranks 0-3: SIGUSR1"] and not found.notes
    (finding,) = found.findings
    assert (finding.kind, finding.communicator, finding.call) == ("behind", "0", "#12")
    assert accounts(finding) == {(2,): ("behind", 89.0), (0, 1, 3): ("inside", 41.0)}


def test_behind_by_a_whole_record():
    """What is still known of those ahead begins after what the rank behind did last."""
    ahead = [dump(rank, view(rank, calls(499, pending(500)))) for rank in (0, 1, 3)]
    found = diagnose([*ahead, dump(2, view(2, calls(3)), stack=(LOAD,))])
    assert found.verdict.startswith("rank 2 is behind: it has not started #500 of communicator 0")
    assert "last completed: #3 " in str(found)


def test_one_who_never_came():
    found = diagnose([*waiting((0, 1, 3), number=1), dump(2, stack=(LOAD,))])
    assert found.verdict.startswith("rank 2 is behind: it has not started #1 ")
    assert f"  rank 2: has not started it\n    no call on it before\n    now at {LOAD}" in str(found)


def test_still_in_an_earlier_call():
    """Those ahead wait in a later one; it is the earlier one that tells."""
    found = diagnose([*waiting((0, 1, 3)), *waiting((2,), number=11)])
    assert found.verdict == "rank 2 is behind: it is still in #11 of communicator 0, which ranks 0-1,3 have completed"
    (finding,) = found.findings
    assert finding.kind == "unfinished" and finding.also == ("#12",)
    assert accounts(finding) == {(2,): ("inside", 41.0), (0, 1, 3): ("completed", 41.0)}
    assert f"  ranks 0-1,3: have completed it\n    last started: #12 allreduce(op sum)\n      at {STEP}" in str(found)


def test_one_who_went_ahead_is_not_behind():
    """A root may complete a call that others are in, and forget it."""
    ahead = dump(0, view(0, calls(200)), stack=(LOAD,))
    found = diagnose([ahead, *waiting((1, 3)), dump(2, view(2, calls(11)), stack=(SYNC,))])
    assert found.verdict.startswith("rank 2 is behind") and "where ranks 1,3 wait" in found.verdict
    assert accounts(found.findings[0])[0,][0] == "completed"
    other_plan = dump(0, view(0, [call(n, plan=1, ago=20) for n in range(1, 65)]), stack=(LOAD,))
    found = diagnose([other_plan, *waiting((1, 2, 3))])
    assert found.verdict == "ranks 1-3 are behind: they are still in #12 of communicator 0, which rank 0 has completed"


def test_disagreement():
    other = pending(12, what="bcast(root 0)", fingerprint=99, at=SYNC, ago=30)
    found = diagnose([*waiting((0, 1)), dump(2, view(2, calls(11, other)), stack=(SYNC,)), dump(3, view(3, calls(11)))])
    text = lines(found)
    assert text[0] == "rank 2 disagrees with ranks 0-1 on what #12 of communicator 0 is"
    assert text[2:4] == ["communicator 0, 4 ranks: #12 differs", "  rank 3: has not started it"]
    start = text.index("  rank 2: bcast(root 0)")
    assert text[start : start + 5] == [
        "  rank 2: bcast(root 0)",
        f"    at {SYNC}, waits there for 30 s",
        "    round 2, waiting for a message from rank 1",
        "  ranks 0-1: allreduce(op sum)",
        f"    at {STEP}, waits there for up to 41 s",
    ]
    assert [finding.kind for finding in found.findings] == ["disagreement"]


def test_the_first_disagreement_counts():
    """Also one that was completed; without a majority nobody is called odd."""
    first = [
        dump(rank, view(rank, calls(5, call(6, fingerprint=rank), pending(7, fingerprint=rank)))) for rank in (0, 1)
    ]
    found = diagnose([*first, dump(2, view(2, calls(5))), dump(3, view(3, calls(5)))])
    assert found.verdict == "ranks 0-1 disagree on what #6 of communicator 0 is: 2 different calls"
    assert len(found.findings[0].groups) == 3  # same words, but different calls


def test_missing_dump_comes_first():
    found = diagnose([*waiting((0, 1)), dump(2, view(2, calls(11)), stack=(LOAD,))])
    assert found.verdict == (
        f"rank 3 {NO_DUMP}; rank 2 is behind: it has not started #12 of "
        "communicator 0, where ranks 0-1 wait, for up to 41 s"
    )
    text = lines(found)
    assert text[1].startswith("  ") and text[4] == f"  rank 3: {NO_DUMP}"
    assert text[5] == "  rank 2: has not started it" and "3 dumps of 4 ranks, on 1 host:" in text
    found = diagnose(waiting((0, 1, 2)))
    assert found.verdict == (f"rank 3 {NO_DUMP}; ranks 0-2 wait in #12 of communicator 0, for up to 41 s")
    assert found.findings[0].kind == "behind"


def pair(members, name, inside, number=3, at=STEP):
    """Views of a communicator of two: who is in the call, and who has not started it."""
    return {
        rank: view(
            rank, calls(number - 1, *([pending(number, at=at)] if rank == inside else [])), name=name, members=members
        )
        for rank in members
    }


def test_deadlock_across_communicators():
    rows, columns = pair((0, 1), "0.1", 0), pair((0, 1), "0.2", 1, at=SYNC)
    found = diagnose(
        [dump(rank, rows[rank], columns[rank], size=2, stack=(MAIN, (STEP, SYNC)[rank])) for rank in (0, 1)]
    )
    assert lines(found)[0] == (
        "deadlock: rank 1 waits in #3 of communicator 0.2 for rank 0, rank 0 waits in #3 of communicator 0.1"
    )
    assert [finding.kind for finding in found.findings] == ["deadlock"] * 2
    assert f"    waits in #3 of communicator 0.2 at {SYNC}" in lines(found)


def test_deadlock_of_a_plan_and_a_call_on_one_communicator():
    orders = pending(5, plan=1), pending(12, at=SYNC)
    found = diagnose(
        [dump(rank, view(rank, calls(11, orders[rank]), members=(0, 1)), size=2, stack=()) for rank in (0, 1)]
    )
    assert found.verdict.startswith("deadlock: ") and "plan 1, start 5 of communicator 0 for rank " in found.verdict


def test_a_long_deadlock_is_cut():
    size = 40
    rings = [pair((rank, (rank + 1) % size), f"0.{rank}", rank) for rank in range(size)]
    found = diagnose([dump(rank, rings[rank][rank], rings[rank - 1][rank], size=size) for rank in range(size)])
    assert "and so on for 36 more, back to world rank 1" in found.verdict and len(found.findings) == size
    assert "... and 28 more findings" in lines(found)


def test_who_waits_for_one_that_waits_elsewhere_is_told_last():
    """0 waits for 1 in a communicator, 1 for 2 in another: 2 is behind."""
    first, second = pair((0, 1), "0.1", 0), pair((1, 2), "0.2", 1, at=SYNC)
    found = diagnose(
        [
            dump(0, first[0], size=3),
            dump(1, first[1], second[1], size=3, stack=(SYNC,)),
            dump(2, second[2], size=3, stack=(LOAD,)),
        ]
    )
    assert found.verdict == (
        "rank 1 (world 2) is behind: it has not started #3 of communicator 0.2, where rank 0 (world 1) waits, for 41 s"
    )
    assert [(finding.kind, finding.communicator) for finding in found.findings] == [
        ("behind", "0.2"), ("consequence", "0.1"),
    ]  # fmt: skip


def test_nonblocking_calls_hold_nobody():
    """1 is behind in the call that 0 waits in, and computes while another call of its own is under way."""
    first, second = pair((0, 1), "0.1", 0), pair((0, 1), "0.2", 1, at=SYNC)
    second[0] = view(0, calls(2), name="0.2", members=(0, 1))
    blocked = pending(4, at=LOAD)
    found = diagnose(
        [
            dump(0, first[0], second[0], size=2),
            dump(1, first[1], second[1], view(1, [blocked], name="0.3", members=(1,)), size=2, stack=(LOAD,)),
        ]
    )
    assert [finding.kind for finding in found.findings] == ["stuck", "consequence", "consequence"]
    assert found.verdict == "the only rank of communicator 0.3 waits in #4, for 41 s"


def test_a_call_in_the_background_does_not_hide_who_is_behind():
    background = pending(3, ago=60)
    ahead = [
        dump(rank, view(rank, [background, *calls(11)[3:], pending(12, at=SYNC)]), stack=(SYNC,)) for rank in (0, 1, 3)
    ]
    found = diagnose([*ahead, dump(2, view(2, [background, *calls(11)[3:]]), stack=(LOAD,))])
    assert found.verdict.startswith("rank 2 is behind: it has not started #12") and found.findings[0].also == ("#3",)


def test_nor_does_one_on_another_communicator():
    """All have started it, so that it goes on while they wait for 2, which computes."""
    background = [view(rank, [pending(3, ago=60)], name="0.1") for rank in range(4)]
    ahead = [
        dump(rank, background[rank], view(rank, calls(11, pending(12, at=SYNC))), stack=(SYNC,)) for rank in (0, 1, 3)
    ]
    found = diagnose([*ahead, dump(2, background[2], view(2, calls(11)), stack=(LOAD,))])
    assert found.verdict.startswith("rank 2 is behind: it has not started #12 of communicator 0,")
    assert f"    has under way #3 of communicator 0.1 at {STEP}" in lines(found)
    assert [finding.kind for finding in found.findings] == ["behind", "stuck"]


def test_all_are_in_it():
    waits = ["round 2, waiting for a message from rank 3"] + ["round 2, waiting for a message from rank 0"] * 3
    found = diagnose([dump(rank, view(rank, [pending(12, waiting=waits[rank])])) for rank in range(4)])
    text = lines(found)
    assert text[0] == "all 4 ranks of communicator 0 wait in #12, for up to 41 s"
    assert text[3:7] == [
        f"  rank 0: waits in it for 41 s, at {STEP}",
        f"    {waits[0]}",
        f"  ranks 1-3: wait in it for up to 41 s, at {STEP}",
        f"    {waits[1]}",
    ]


def test_plans():
    started = [dump(rank, view(rank, [*calls(2), pending(5, plan=2)])) for rank in (0, 1)]
    late = [dump(rank, view(rank, [*calls(2), call(4, plan=2)]), stack=(LOAD,)) for rank in (2, 3)]
    found = diagnose(started + late)
    assert lines(found)[0] == (
        "ranks 2-3 are behind: they have not started plan 2, start 5 of communicator 0, where ranks 0-1 wait,"
    )
    assert "    last completed: plan 2, start 4 allreduce(op sum)\n      at " in str(found)


def test_nothing_waits():
    found = diagnose([dump(rank, view(rank, calls(10 + rank)), stack=(MAIN, LOAD)) for rank in range(4)])
    assert lines(found)[:4] == [
        "nothing waits: no call is pending on any of the 4 ranks",
        "",
        "where the ranks are:",
        f"  ranks 0-3: now at {LOAD}, from {MAIN}",
    ]
    found = diagnose([dump(rank) for rank in range(3)])
    assert found.verdict == (
        "nothing waits: no call is pending on any of the 3 ranks that left a dump; "
        "rank 3 left no dump: it ended, was killed, or is stuck outside Python"
    )


def test_broken():
    """What was interrupted is no longer pending, but was not completed either."""
    gave_up = [
        dump(rank, view(rank, calls(12), broken="the time-out"), reason="CollectiveTimeoutError: 600 s")
        for rank in (0, 1)
    ]
    others = [dump(rank, view(rank, calls(11)), stack=(LOAD,)) for rank in (2, 3)]
    found = diagnose(gave_up + others)
    assert found.verdict == (
        "ranks 2-3 are behind: they have not started #12 of communicator 0, which ranks 0-1 left unfinished"
    )
    text = lines(found)
    assert "  ranks 0-1: cannot use it any more: the time-out" in text
    assert "  ranks 0-1: CollectiveTimeoutError: 600 s" in text
    found = diagnose([dump(rank, view(rank, (), broken="" if rank else "freed")) for rank in range(4)])
    assert found.verdict == "communicator 0 cannot be used any more on rank 0, but nothing waits on it"


def test_an_error_is_told_of_the_one_behind():
    error = dump(2, view(2, calls(11)), stack=(LOAD,), reason="OSError: no such file")
    assert "    dumped for: OSError: no such file" in lines(diagnose([*waiting((0, 1, 3)), error]))


def test_many_ranks_stay_short():
    size = 600
    everyone = tuple(range(size))

    def ring(rank, **rest):
        waits = f"round 2, waiting for a message from rank {(rank - 1) % size}"
        return view(rank, calls(11, pending(12, waiting=waits)), members=everyone, **rest)

    found = diagnose([dump(rank, ring(rank), size=size) for rank in everyone])
    assert len(lines(found)) < 10 and "ranks 0-599: wait in it" in str(found)
    assert "round 2, waiting for a message from another rank" in str(found)
    assert len(found.findings[0].groups) == size

    def shaped(rank):
        made = pending(12, what=f"allreduce(shape ({rank},))", fingerprint=rank)
        return dump(rank, view(rank, calls(11, made), members=everyone), size=size)

    found = diagnose([shaped(rank) for rank in everyone])
    assert len(lines(found)) < 50 and "  ... and 588 more groups, 588 ranks" in lines(found)
    odd = [dump(rank, view(rank, calls(11), members=everyone), size=size, stack=(LOAD,)) for rank in range(0, size, 2)]
    found = diagnose(odd + [dump(rank, ring(rank), size=size) for rank in range(1, size, 2)])
    assert "ranks 0,2,4,6,8,10,12,14,... (300 in all)" in found.verdict and len(lines(found)) < 20


def test_ranks_of_the_communicator_and_of_the_world():
    members = (6, 4, 2)
    made = [dump(6, view(6, calls(1), members=members), size=8), *(
        dump(rank, view(rank, calls(1, pending(2)), members=members), size=8) for rank in (4, 2)
    )]  # fmt: skip
    found = diagnose(made)
    assert "rank 0 (world 6) is behind" in found.verdict and "where ranks 1-2 (world 2,4) wait" in found.verdict
    assert found.findings[0].groups[1].world == (4, 2)


def test_disjoint_communicators_may_have_one_id():
    one, other = pair((0, 1), "0.1", 0), pair((2, 3), "0.1", 2)
    found = diagnose([dump(rank, (one | other)[rank]) for rank in range(4)])
    assert len(found.findings) == 2 and {finding.size for finding in found.findings} == {2}


def test_notes():
    everyone = [dump(rank, time=NOW + 61 * (rank == 2)) for rank in range(4)]
    (note,) = diagnose(everyone).notes
    assert note.startswith("the dumps were made 61 s apart, the first on rank 0, the last on rank 2")
    (note,) = diagnose([*(dump(rank) for rank in range(4)), dump(5, size=6, time=NOW - 5)]).notes
    assert note.startswith("dumps of different jobs: the latest is of 4 ranks; those of rank 5 are left out")
    (note,) = diagnose([dump(0, version=2, size=1)]).notes
    assert "dump of rank 0 has version 2, and 1 is known" in note


def test_the_document_is_whole():
    found = diagnose([*waiting((0, 1, 3)), dump(2, view(2, calls(11)), stack=(LOAD,))])
    document = json.loads(json.dumps(found.document()))
    assert document["verdict"] == found.verdict and document["notes"] == []
    (finding,) = document["findings"]
    assert finding["groups"][0] == {
        "ranks": [2], "world": [2], "seconds": 89.0, "state": "behind", "call": "#11", "what": "allreduce(op sum)",
        "at": STEP, "pending": False, "waiting": "", "now": [LOAD], "waits_in": [], "reason": "",
    }  # fmt: skip


def plain(record):
    """As JSON has it."""
    document = record._asdict()
    document["communicators"] = [
        each._asdict() | {"calls": [made._asdict() for made in each.calls]} for each in record.communicators
    ]
    return json.loads(json.dumps(document))


def test_what_is_read_is_what_was_written(tmp_path):
    made = [dump(rank, view(rank, calls(2), members=range(11)), size=11) for rank in (0, 1, 10)]
    for each in made:
        (tmp_path / f"rank-{each.rank}.json").write_text(json.dumps(plain(each) | {"later": 1}))
    (tmp_path / "rank-2.json.part").write_text("{")
    assert dumps.read(str(tmp_path)) == (made, [])


BROKEN = {
    "not JSON": "{",
    "truncated": json.dumps(plain(waiting((0,))[0]))[:-20],
    "no object": "[1]",
    "other JSON": '{"a": 1}',
    "nested": "[" * 100_000,
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_one_bad_file_hides_no_others(tmp_path, text):
    (tmp_path / "rank-0.json").write_text(text)
    with pytest.raises(DumpError, match=r"no dump in .*: rank-0\.json: "):
        dumps.read(str(tmp_path))
    (good,) = waiting((1,))
    (tmp_path / "rank-1.json").write_text(json.dumps(plain(good)))
    found, (wrong,) = dumps.read(str(tmp_path))
    assert found == [good] and wrong.startswith("rank-0.json: ")


@pytest.mark.parametrize(
    "path, value",
    [
        ("rank", -1), ("rank", 4), ("rank", True), ("rank", 1.0), ("size", 0), ("time", "now"), ("time", float("nan")),
        ("time", 10**400), ("stack", "main"), ("stack", [1]), ("reason", None), ("communicators", {}),
        ("communicators.0", 1), ("communicators.0.rank", 4), ("communicators.0.members", [0, 0]),
        ("communicators.0.members", []), ("communicators.0.calls.0.order", [1]),
        ("communicators.0.calls.0.order", ["0", 1]), ("communicators.0.calls.0.pending", 1),
        ("communicators.0.calls.0.fingerprint", "a"), ("communicators.0.calls.0.started", -1),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(path, value):
    document = plain(waiting((0,))[0])
    *way, last = path.split(".")
    inner = document
    for step in way:
        inner = inner[int(step)] if step.isdigit() else inner[step]
    inner[int(last) if last.isdigit() else last] = value
    with pytest.raises(DumpError, match=r"^file: ") as error:
        dumps.checked(document, "file")
    assert last in str(error.value) or last.isdigit()
    assert len(str(error.value)) < 200


def test_texts_stay_on_their_line():
    document = plain(waiting((0,))[0]) | {"reason": "a\x1b[2J\nb\ud800"}
    assert dumps.checked(document, "file").reason == "a [2J b "


def test_the_name_of_the_file_tells_the_rank(tmp_path):
    (tmp_path / "rank-3.json").write_text(json.dumps(plain(waiting((0,))[0])))
    with pytest.raises(DumpError, match=r"rank-3\.json: rank: found 0"):
        dumps.read(str(tmp_path))
