"""Run the compiled programs of all ranks against a clock: what `cost` and `predict` share.

Rules that hold here:

* A rank does what the executor does (`hpcreduce.runtime.stream`): a send is ready once the last write of its span is
  done; a plain receive is ready once the sends and writes of its span are over; what is received is reduced in the
  order of the program, as soon as it has landed and its span is no longer being sent. No rank waits for the rounds of
  another.
* A message begins when its send is ready, its receive is ready, and the receives of its target's earlier rounds have
  begun. A rank has `ports` ports out and as many in, and a message holds one at each end from beginning to end. Where
  several wait for a port, the one of the earliest round goes first, then the one that its sender posted first, then
  the one of the lowest rank; one that can go overtakes those that cannot.
* How long a message travels is the wire's business (`Wire`), which is told when it begins.
* Times that differ by less than 1e-12 of the time passed are one: rounding decides nothing.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hpcreduce.analysis.messages import Message
from hpcreduce.errors import ProofError
from hpcreduce.runtime.program import Program

SAME = 1 + 1e-12
"""Times up to this ratio are one."""


class Timing(NamedTuple):
    """What a run took.

    Attributes
    ----------
    seconds : float
        When the last rank has finished: its result is complete and all that it sent has arrived.
    ranks : tuple of float
        The same for each rank.
    messages : int
        Messages sent by all ranks together.
    """

    seconds: float
    ranks: tuple[float, ...]
    messages: int


class Wire(Protocol):
    """What carries messages."""

    def begin(self, number: int, message: Message, now: float) -> None:
        """Take message `number` at time `now`."""

    def soonest(self) -> float:
        """Return when something may change next, infinity if nothing is under way."""

    def finish(self, now: float) -> list[int]:
        """Return the numbers of the messages that end at `now`; never called with less than before."""


def run(
    programs: Sequence[Program], messages: Sequence[Message], wire: Wire, *, itemsize: int, gamma: float, ports: int
) -> Timing:
    """Run the programs and return when each rank has finished.

    Parameters
    ----------
    programs : sequence of Program
        One per rank.
    messages : sequence of Message
        What `hpcreduce.analysis.messages.match` returned for them.
    wire : Wire
        Carries the messages; used up by this.
    itemsize : int
        Bytes per element.
    gamma : float
        Seconds per byte that is reduced.
    ports : int
        Messages that a rank sends at a time, and receives at a time.

    Raises
    ------
    ProofError
        The programs wait for each other for ever.
    """
    sends = [[-1] * len(program.sends) for program in programs]
    recvs = [[-1] * len(program.recvs) for program in programs]
    for number, message in enumerate(messages):
        sends[message.source][message.send] = recvs[message.target][message.recv] = number
    queues = _Queues(messages, wire, len(programs), ports)
    ranks = [
        _Rank(program, sends[rank], recvs[rank], queues, itemsize * gamma) for rank, program in enumerate(programs)
    ]
    finished = [0.0] * len(programs)
    folds: list[tuple[float, int]] = []  # reductions under way: when they end, on which rank
    now, touched = 0.0, set(range(len(programs)))
    for rank in ranks:
        rank.release(rank.program.first)
    while True:
        for number in sorted(touched):
            if seconds := ranks[number].advance():
                heapq.heappush(folds, (now + seconds, number))
        while begun := queues.start(now):
            for message in begun:
                ranks[message.target].begin(message.recv)
        now = min(wire.soonest(), folds[0][0] if folds else math.inf)
        if now == math.inf:
            break
        touched = set()
        while folds and folds[0][0] <= now * SAME:
            number = heapq.heappop(folds)[1]
            ranks[number].folded()
            touched.add(number)
        for index in wire.finish(now):
            message = messages[index]
            queues.free(message)
            ranks[message.source].complete[message.send] = True
            ranks[message.target].landed[message.recv] = True
            touched |= {message.source, message.target}
        for number in touched:
            finished[number] = now
    for number, rank in enumerate(ranks):
        if rank.done < len(rank.program.recvs) or not all(rank.complete):
            raise ProofError(f"no progress: rank {number} waits for ever; see analysis.check.check")
    return Timing(max(finished), tuple(finished), len(messages))


class _Rank:
    """Where one rank stands in its program."""

    def __init__(
        self, program: Program, sends: list[int], recvs: list[int], queues: _Queues, seconds_per_element: float
    ) -> None:
        self.program, self.sends, self.recvs, self.queues = program, sends, recvs, queues
        self.seconds_per_element = seconds_per_element
        self.complete = [False] * len(program.sends)
        self.landed = [False] * len(program.recvs)
        self.begun = [False] * len(program.recvs)
        self.behind = 0  # receives that have begun, and all before them
        self.open = 0  # receives that are ready
        self.done = 0
        self.folding = False

    def release(self, indices: Sequence[int]) -> None:
        """Let sends go."""
        for index in indices:
            self.queues.ready(self.sends[index])

    def begin(self, index: int) -> None:
        """Note that what receive `index` gets has begun."""
        self.begun[index] = True
        while self.behind < len(self.begun) and self.begun[self.behind]:
            self.behind += 1
        self._open()

    def folded(self) -> None:
        """End the reduction under way."""
        self.folding = False
        self._next()

    def advance(self) -> float:
        """Do what takes no time; return the seconds of a reduction that begins, 0 if none does."""
        program, total = self.program, len(self.program.recvs)
        while True:
            self._open()
            if self.folding or self.done == total or not self.landed[self.done] or not self._clear(self.done):
                return 0.0
            recv = program.recvs[self.done]
            seconds = self.seconds_per_element * recv.span.length if recv.side else 0.0
            if seconds:
                self.folding = True
                return seconds
            self._next()

    def _open(self) -> None:
        program, index = self.program, self.open
        while index < len(program.recvs):
            plain = program.recvs[index].side is None
            if plain and (self.done < program.behind[index] or not self._clear(index)):
                break
            if self.behind < index and program.rounds[self.behind] < program.rounds[index]:
                break
            self.queues.ready(self.recvs[index])
            index += 1
        self.open = index

    def _clear(self, index: int) -> bool:
        complete = self.complete
        return all(complete[send] for send in self.program.hazards[index])

    def _next(self) -> None:
        self.done += 1
        self.release(self.program.after[self.done - 1])


class _Queues:
    """The messages that wait for a port, and the ports."""

    def __init__(self, messages: Sequence[Message], wire: Wire, size: int, ports: int) -> None:
        self.messages, self.wire = messages, wire
        self.sides = [0] * len(messages)  # ends that are ready
        self.waiting: list[list[tuple[tuple[int, int, int], int]]] = [[] for _ in range(size)]  # by sender, in order
        self.out, self.into = [ports] * size, [ports] * size  # free ports
        self.blocked: list[set[int]] = [set() for _ in range(size)]  # senders that found no port free at a receiver
        self.stirred: set[int] = set()  # senders that may be able to begin a message

    def ready(self, number: int) -> None:
        """Note that one end of a message is ready."""
        self.sides[number] += 1
        if self.sides[number] == 2:
            message = self.messages[number]
            bisect.insort(self.waiting[message.source], (message.priority, number))
            self.stirred.add(message.source)

    def free(self, message: Message) -> None:
        """Free the ports of a message that has ended."""
        self.out[message.source] += 1
        self.into[message.target] += 1
        self.stirred.add(message.source)
        self.stirred |= self.blocked[message.target]
        self.blocked[message.target] = set()

    def start(self, now: float) -> list[Message]:
        """Begin all messages that can begin, and return them."""
        begun = []
        heads = [(self.waiting[source][0][0], source) for source in self.stirred if self.waiting[source]]
        heapq.heapify(heads)
        self.stirred = set()
        while heads:
            _, source = heapq.heappop(heads)
            place = self._first(source)
            if place is None:
                continue
            priority, number = self.waiting[source][place]
            if heads and priority > heads[0][0]:
                heapq.heappush(heads, (priority, source))
                continue
            message = self.messages[number]
            del self.waiting[source][place]
            self.out[source] -= 1
            self.into[message.target] -= 1
            self.wire.begin(number, message, now)
            begun.append(message)
            if self.waiting[source]:
                heapq.heappush(heads, (self.waiting[source][0][0], source))
        return begun

    def _first(self, source: int) -> int | None:
        """Return the place in its queue of the first message that `source` can begin."""
        if not self.out[source]:
            return None
        for place, (_, number) in enumerate(self.waiting[source]):
            target = self.messages[number].target
            if self.into[target]:
                return place
            self.blocked[target].add(source)
        return None
