"""How ranks find out why nothing gets on: all of them in one process, with messages that arrive in random order."""

import random

import pytest

from hpcreduce.runtime.inquiry import BYE, COLLECT, DECIDER, GROUPS, JOIN, PARTING, RETURN, STATE, Inquiry
from hpcreduce.runtime.recorder import KEPT, PLANS, REMEMBERED, Recorder


def begin(recorder, *arguments):
    """Call it from as far below as the package does."""
    return (lambda: (lambda: recorder.begin(*arguments))())()


class Job:
    """Ranks with a clock and a network; `away` are in code of the caller's own: they neither look nor answer."""

    def __init__(self, size, seed=0):
        self.recorders = [Recorder() for _ in range(size)]
        self.waits = [""] * size
        self.elsewhere = [""] * size
        self.ranks = [Inquiry(rank, size, self.recorders[rank], self._circumstances(rank)) for rank in range(size)]
        self.away, self.now, self.sent = set(), 0.0, []
        self.random = random.Random(seed)
        self.queues = {}  # (source, receiver, kind) -> messages: those keep their order

    def _circumstances(self, rank):
        return lambda: (self.waits[rank], self.elsewhere[rank])

    def call(self, rank, what, *, plan=0, start=0, complete=False):
        order = begin(self.recorders[rank], hash(what), what, plan, start)
        if complete:
            self.recorders[rank].complete(order)

    def post(self):
        for source, inquiry in enumerate(self.ranks):
            for kind, content, receivers in inquiry.outbox:
                self.sent.append(kind)
                for receiver in receivers:
                    self.queues.setdefault((source, receiver, kind), []).append(content)
            inquiry.outbox.clear()

    def turn(self):
        """Let every rank that waits take what has arrived, and one step."""
        self.now += 0.01
        for rank, inquiry in enumerate(self.ranks):
            if rank in self.away or rank in self.gone():
                continue
            self.deliver(rank)
            inquiry.look(self.now, [(rank - 1) % len(self.ranks)], self.recorders[rank].busy)
        self.post()

    def deliver(self, rank):
        arrived = [key for key, messages in self.queues.items() if key[1] == rank and messages]
        self.random.shuffle(arrived)
        for source, _, kind in arrived:
            for content in self.queues.pop((source, rank, kind)):
                self.ranks[rank].receive(source, kind, content)

    def leave(self, rank, why=""):
        self.ranks[rank].leave(why, self.now)
        self.left = [*self.gone(), rank]
        self.post()

    def gone(self):
        return getattr(self, "left", [])

    def run(self, seconds=5.0):
        """Return the verdicts of those who got one."""
        end = self.now + seconds
        waiting = [rank for rank in range(len(self.ranks)) if rank not in self.away and rank not in self.gone()]
        while self.now < end and not all(self.ranks[rank].verdict for rank in waiting):
            self.turn()
        return [self.ranks[rank].verdict for rank in waiting]


def same(verdicts):
    (verdict,) = set(verdicts)
    return verdict


@pytest.mark.parametrize("size", range(2, 8))
@pytest.mark.parametrize("seed", range(3))
def test_any_subset_that_differs(size, seed):
    for odd in range(1, 2**size - 1):
        job = Job(size, seed)
        for rank in range(size):
            job.call(rank, "the first call", complete=True)
            job.call(rank, "this" if odd >> rank & 1 else "that")
        verdict = same(job.run(1.0))
        assert verdict.kind == "mismatch" and "disagree about call #2" in verdict.text
        assert "in call #2, this, at test_inquiry.py:" in verdict.text and "in call #2, that, at" in verdict.text


def test_long_descriptions_show_where_they_differ():
    items = [f"{index} sum float64 ({index % 5 + 1},)" for index in range(120)]
    job = Job(3)
    for rank in range(3):
        job.call(rank, f"many[{'; '.join(items)}]", complete=True)
        odd = [*items[:90], "90 max float64 (7,)", *items[91:]]
        job.call(rank, f"many[{'; '.join(odd if rank == 1 else items)}]")
    text = same(job.run(1.0)).text
    assert "ranks 0,2: in call #2, many[0 sum float64 (1,); " in text and " ... 90 sum float64 (1,); 91 sum" in text
    assert " ... 90 max float64 (7,); 91 sum" in text and max(map(len, text.splitlines())) < 400


def test_a_rank_that_left_a_call_out():
    job = Job(3)
    for rank in range(3):
        for number in range(5):
            if rank != 1 or number != 2:
                job.call(rank, f"call {number}", complete=number < 3)
    assert "#3" in same(job.run(1.0)).text


@pytest.mark.parametrize("size", [2, 3, 8])
def test_slow_ranks_prove_nothing(size):
    job = Job(size)
    job.away = {size - 1}
    for rank in range(size - 1):
        job.call(rank, "the call")
    assert not any(job.run(60.0))
    assert set(job.sent) <= {STATE} and len(job.sent) < size * size  # each tells each other once


def test_ranks_ahead_and_plans_in_any_order_prove_nothing():
    job = Job(3)
    for rank in range(3):
        for plan in range(1, 4):
            assert job.recorders[rank].plan() == plan
        job.call(rank, "a broadcast", complete=rank == 0)
        for step in range(3):
            plan = 1 + (rank + step) % 3
            job.call(rank, f"plan {plan}", plan=plan, start=1)
    job.call(0, "the next call")
    assert not any(job.run(10.0))


@pytest.mark.parametrize("absent", [{3}, {0}, {0, 1}, {1, 3}])
def test_deadline(absent):
    job = Job(4)
    for rank in range(4):
        job.call(rank, "the call before", complete=True)
        if rank not in absent:
            job.call(rank, "the call")
    job.away = absent
    job.turn()
    first = min({0, 1, 2, 3} - absent)
    job.ranks[first].join("timeout", job.now, "not finished after 3 s")
    start = job.now
    verdict = same(job.run())
    assert (
        verdict.kind == "timeout"
        and verdict.ranks == tuple(sorted(absent))
        and "not finished after 3 s, rank" in verdict.text
    )
    assert "others last completed #1, the call before" in verdict.text
    assert COLLECT <= job.now - start < COLLECT + 0.1
    job.away = set()
    for rank in absent:
        job.call(rank, "the call")
    assert same(job.run(0.1)) == verdict  # they learn it when they come


def test_deadline_with_all_there_names_what_each_waits_for():
    job = Job(2)
    for rank in range(2):
        job.call(rank, "the call")
        job.waits[rank] = f"waiting for a message from rank {1 - rank}"
    job.ranks[1].join("timeout", job.now, "not finished after 3 s")
    verdict = same(job.run())
    head, *lines = verdict.text.splitlines()
    assert (
        verdict.kind == "timeout"
        and not verdict.ranks
        and head == "not finished after 3 s, though all ranks are there:"
    )
    for rank, line in enumerate(lines):
        assert line.startswith(f"  rank {rank}: in call #1, the call, at ") and line.endswith(job.waits[rank])


def test_a_rank_that_waits_on_another_communicator_answers():
    job = Job(2)
    job.call(0, "the call")
    job.elsewhere[1] = "another call"
    job.ranks[0].join("timeout", job.now)
    verdict = same(job.run())
    assert "waits on another communicator: another call" in verdict.text


@pytest.mark.parametrize(("why", "kind"), [("", "exit"), ("ValueError: boom", "death")])
def test_a_rank_that_left(why, kind):
    job = Job(3)
    for rank in range(3):
        job.call(rank, "the call before", complete=True)
    for rank in range(2):
        job.call(rank, "the call")
    job.leave(2, why)
    verdict = same(job.run(RETURN + 0.5))
    assert verdict.kind == kind and verdict.ranks == (2,) and why in verdict.text and "rank 2" in verdict.text
    assert why or "left after 1 calls, last completed #1, the call before" in verdict.text


def test_a_rank_that_left_after_its_part_proves_nothing():
    job = Job(2)
    for rank in range(2):
        job.call(rank, "the last call", complete=rank == 1)
        plan = job.recorders[rank].plan()
        job.call(rank, "a plan", plan=plan, start=1, complete=rank == 1)
    for _ in range(PLANS + KEPT):  # of plans that the other does not remember any more
        job.recorders[1].plan()
    job.leave(1)
    assert not any(job.run(10.0))


def test_a_rank_that_left_a_handle_alone():
    job = Job(2)
    for rank in range(2):
        job.call(rank, "the call")
    job.leave(1)
    assert same(job.run(RETURN + 0.5)).kind == "exit"


def test_a_rank_that_comes_back():
    """A call at the exit of the interpreter, after the goodbye."""
    job = Job(2)
    job.call(0, "the call")
    job.leave(1)
    assert not any(job.run(0.5 * RETURN))
    job.left = []
    job.call(1, "the call")
    job.ranks[1].come_back()
    job.post()
    assert not any(job.run(5.0)) and not job.ranks[0].gone


def test_a_rank_that_comes_back_at_once_has_parted():
    """Or the other would wait for its goodbye again, and come back too late itself."""
    job = Job(2)
    job.leave(0)
    job.deliver(1)
    job.leave(1)
    job.deliver(0)
    job.ranks[1].come_back()
    job.post()
    job.deliver(0)
    assert job.ranks[0].parted and job.ranks[1].gone and not job.ranks[0].gone


def test_a_failure_is_known_at_once():
    job = Job(3)
    for rank in range(2):
        job.call(rank, "the call")
    job.ranks[2].fail("rank 2 has failed:\nValueError: boom")
    job.post()
    verdict = same(job.run(0.1))
    assert verdict.kind == "peer" and "boom" in verdict.text and verdict.ranks == (2,)


def test_a_decider_that_is_silent_is_replaced():
    job = Job(4)
    for rank in range(4):
        job.call(rank, f"call of {rank}")
    job.turn()
    while not job.ranks[0].frozen:
        job.turn()
    job.away = {0}  # it has given up, and dies
    start = job.now
    verdict = same(job.run())
    assert verdict.kind == "mismatch" and job.now - start < COLLECT + 1.5 * DECIDER


def test_many_groups_are_cut_short():
    job = Job(40)
    for rank in range(40):
        job.call(rank, f"call of {rank}, {'very ' * 200}long")
    text = same(job.run(1.0)).text
    assert len(text.splitlines()) == GROUPS + 1 and "33 more groups" in text and len(text) < 6000


def test_goodbyes_are_sent_to_those_who_still_take_them():
    job = Job(3)
    job.leave(1)
    assert not job.ranks[1].parted
    for rank in 0, 2:
        job.deliver(rank)
    job.now += 0.5 * PARTING
    job.leave(0)
    job.now += PARTING
    job.deliver(2)
    job.leave(2)
    assert [key for key in job.queues if key[0] == 2] == []  # both have gone
    job.deliver(1)
    assert list(job.ranks[1].gone) == [0] and not job.ranks[1].parted and job.ranks[2].parted


def test_far_ranks_say_goodbye_to_few():
    inquiry = Inquiry(5, 1000, Recorder(), lambda: ("", ""))
    inquiry.leave("", 0.0)
    ((kind, _, receivers),) = inquiry.outbox
    assert kind == BYE and 10 <= len(receivers) <= 20 and {4, 6, 3, 7} <= set(receivers)


def test_who_has_given_up_says_so_once():
    job = Job(2)
    for rank in range(2):
        job.call(rank, f"call of {rank}")
    job.run(1.0)
    assert job.sent.count(JOIN) == 2


def test_recorder_is_bounded_and_knows_the_place():
    recorder = Recorder()
    for number in range(1, 3 * KEPT):
        order = begin(recorder, number, f"call {number}")
        assert order == (0, number) and recorder.busy
        place = recorder.known()[order].at
        assert place.startswith("test_inquiry.py:") and place.endswith(" in begin")
        recorder.complete(order)
    assert len(recorder.all()) == len(recorder.completed()) == KEPT and not recorder.busy
    for number in range(REMEMBERED):
        recorder.complete(begin(recorder, number, "more"))
    assert len(recorder.known()) == REMEMBERED and (0, 3 * KEPT - 1) not in recorder.known()
    for _ in range(2 * PLANS):
        recorder.plan()
    assert len(recorder.starts) == PLANS and recorder.plans == 2 * PLANS


def test_recorder_never_forgets_what_is_pending():
    recorder = Recorder()
    first = begin(recorder, 1, "the first")
    for number in range(2, 2 * KEPT):
        recorder.complete(begin(recorder, number, "others"))
    assert recorder.pending[0].order == first and recorder.all()[0].order == first and first in recorder.known()


@pytest.mark.parametrize("heard", [{0}, {1}, {2}, {0, 2}])
def test_a_failure_that_some_have_heard_of_reaches_all(heard):
    job = Job(4)
    for rank in range(3):
        job.call(rank, "the call")
    job.leave(3, "ValueError: boom")
    for receiver in {0, 1, 2} - heard:
        job.queues.pop((3, receiver, BYE))
    verdict = same(job.run(1.0))
    assert verdict.kind == "death" and "boom" in verdict.text
