"""Prove a schedule, and the program compiled from it, for one number of ranks and elements, by running all ranks here.

What is proven:

1. sends and receives match, first in first out per pair, with equal sizes;
2. every rank finishes although a send completes only when it is received;
3. no span is written while a send or another receive of it is under way;
4. on every rank element i ends at slot i and holds each rank's contribution exactly once (or what else the table says
   that the rank ends with);
5. all ranks hold the same expression (so the same bits), in rank order where the table says so;
6. the numbers of rounds and of elements sent are those of the table;
7. all this for the compiled program too, run by the very executor that runs it on MPI (`hpcreduce.runtime.stream`),
   with several segments and windows, random delivery order, data read at delivery, and reductions that finish late.

A value is a label: an interned expression of contributions. Two labels are equal only if they combine the same
contributions in the same way.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.algorithms import ALGORITHMS, RELATED, Algorithm
from hpcreduce.errors import ProofError
from hpcreduce.runtime.program import Program, compile_rounds
from hpcreduce.runtime.stream import Stream
from hpcreduce.schedule import LEFT, RIGHT, Recv, Round, Send, Span

SEGMENTS = (1, 3, None)
WINDOWS = (1, 2, 4)

Memory = list[int]


class Proof(NamedTuple):
    """What was proven: exact rounds, the most elements that one rank sends, messages, and runs of the executor."""

    rounds: int
    volume: int
    messages: int
    runs: int


def check(
    algorithm: str | Algorithm,
    size: int,
    count: int,
    *,
    segments: Sequence[int | None] = SEGMENTS,
    windows: Sequence[int] = WINDOWS,
    compiler: Callable[[Iterable[Round], int], Program] = compile_rounds,
    **static: Any,
) -> Proof:
    """Prove `algorithm` for `size` ranks and `count` elements.

    Parameters
    ----------
    algorithm : str or Algorithm
        A name in `ALGORITHMS` or `RELATED`, or a row.
    size, count : int
        Ranks, at least 1; elements, at least 0.
    segments : sequence of int or None
        Elements per segment for which the compiled program is run; `None` does not cut.
    windows : sequence of int
        Receives posted ahead.
    compiler : callable
        Makes a program of one rank's rounds.
    **static
        The algorithm's static keywords.

    Raises
    ------
    ProofError
        Naming the property, the rank, the round and the element.
    ValueError
        `size` or `count` out of range, or an algorithm that is no schedule.
    """
    known = ALGORITHMS | RELATED
    if isinstance(algorithm, str) and algorithm not in known:
        raise ValueError(f"unknown algorithm {algorithm!r}; expected one of {', '.join(known)}")
    row = known[algorithm] if isinstance(algorithm, str) else algorithm
    if size < 1 or count < 0:
        raise ValueError(f"size must be at least 1 and count at least 0, found {size} and {count}")
    if row.rounds is None:
        raise ValueError(f"{row.name!r} is no schedule, there is nothing to prove")
    schedule = [list(row.rounds(rank, size, count, **static)) for rank in range(size)]
    where = f"{row.name}, {size} ranks, {count} elements"
    try:
        sent = _check_counts(row, size, count, schedule, static)
        labels = _Labels(size, count)
        goals = [row.goal(rank, size, count, **static) for rank in range(size)]
        ordered = row.keeps_order and static.get("ordered", True)
        _check_result(goals, ordered, labels, _replay(schedule, labels))
        runs = 0
        for programs, window, late in _programs(schedule, count, segments, windows, compiler):
            _check_result(goals, ordered, labels, _execute(programs, window, labels, late))
            runs += 1
    except ProofError as error:
        raise ProofError(f"{where}: {error}") from None
    messages = sum(isinstance(verb, Send) for rounds in schedule for verbs in rounds for verb in verbs)
    return Proof(len(schedule[0]), max(sent), messages, runs)


def _programs(
    schedule: list[list[Round]],
    count: int,
    segments: Sequence[int | None],
    windows: Sequence[int],
    compiler: Callable[[Iterable[Round], int], Program],
) -> Iterable[tuple[list[Program], int, bool]]:
    """Compile for each segment and window, once where they make no difference; every second window reduces late."""
    seen: list[list[Program]] = []
    for segment in segments:
        programs = [compiler(rounds, segment or max(1, count)) for rounds in schedule]
        if programs in seen:
            continue
        seen.append(programs)
        longest = max(len(program.recvs) for program in programs)
        differing = [window for window in windows[:-1] if window < longest] + [windows[-1]]
        for index, window in enumerate(differing):
            yield programs, window, index % 2 == 1


class _Labels:
    """Interned expressions. Label ``rank * count + i`` is what `rank` contributes to element i."""

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count
        self.element = [index for _ in range(size) for index in range(count)]
        self.members = [1 << rank for rank in range(size) for _ in range(count)]
        self.ordered: list[tuple[int, int] | None] = [
            (rank, rank + 1) for rank in range(size) for _ in range(count)
        ]  # the consecutive ranks that are combined in rank order
        self._known: dict[tuple[int, int], int] = {}

    def contribution(self, rank: int) -> Memory:
        return list(range(rank * self.count, (rank + 1) * self.count))

    def combine(self, a: int, b: int) -> int:
        found = self._known.get((a, b))
        return self._intern(a, b) if found is None else found

    def _intern(self, a: int, b: int) -> int:
        if self.element[a] != self.element[b]:
            raise ProofError(f"[4] element {self.element[a]} is combined with element {self.element[b]}")
        if twice := self.members[a] & self.members[b]:
            raise ProofError(f"[4] element {self.element[a]} gets the contribution of {_ranks(twice)} twice")
        left, right = self.ordered[a], self.ordered[b]
        self.element.append(self.element[a])
        self.members.append(self.members[a] | self.members[b])
        self.ordered.append((left[0], right[1]) if left and right and left[1] == right[0] else None)
        self._known[a, b] = len(self.element) - 1
        return len(self.element) - 1


def _ranks(members: int) -> str:
    ranks = [rank for rank in range(members.bit_length()) if members >> rank & 1]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _check_counts(
    row: Algorithm, size: int, count: int, schedule: list[list[Round]], static: dict[str, Any]
) -> list[int]:
    """Check peers, spans, the round rule and the table's counts; return the elements that each rank sends."""
    sent = []
    for rank, rounds in enumerate(schedule):
        if row.round_count and len(rounds) != (expected := row.round_count(size, count, **static)):
            raise ProofError(f"[6] rank {rank} has {len(rounds)} rounds, the table says {expected}")
        for index, verbs in enumerate(rounds):
            _check_round(verbs, rank, size, count, f"rank {rank}, round {index}")
        sent.append(sum(verb.span.length for verbs in rounds for verb in verbs if isinstance(verb, Send)))
        if row.volume and sent[-1] != (expected := row.volume(rank, size, count, **static)):
            raise ProofError(f"[6] rank {rank} sends {sent[-1]} elements, the table says {expected}")
    return sent


def _check_round(verbs: Round, rank: int, size: int, count: int, where: str) -> None:
    if not isinstance(verbs, (tuple, list)) or isinstance(verbs, (Send, Recv)):
        raise ProofError(f"[1] {where}: expected a tuple of Send and Recv (empty for nothing to do), found {verbs!r}")
    for verb in verbs:
        if not isinstance(verb, (Send, Recv)):
            raise ProofError(f"[1] {where}: expected Send or Recv, found {verb!r}")
        if not 0 <= verb.peer < size or verb.peer == rank:
            raise ProofError(f"[1] {where}: {verb} names a peer that is not another rank")
        if not 0 <= verb.span.start <= verb.span.stop <= count:
            raise ProofError(f"[1] {where}: {verb} has a span outside the array")
        if isinstance(verb, Recv) and verb.side not in (None, LEFT, RIGHT):
            raise ProofError(f"[1] {where}: {verb} has an unknown side")
    for index, verb in enumerate(verbs):
        if isinstance(verb, Recv) and verb.side is None:
            for other in verbs[:index] + verbs[index + 1 :]:
                if verb.span.overlaps(other.span):
                    raise ProofError(f"[3] {where}: {verb} overwrites the span of {other}")


Goal = list[tuple[Span, "int | None"]]


def _check_result(goals: list[Goal], ordered: bool, labels: _Labels, memories: list[Memory]) -> None:
    """Check what each rank ends with: contributions of one rank, or of all, combined in the same way everywhere."""
    everyone = (1 << labels.size) - 1
    combined: dict[int, tuple[int, int]] = {}  # slot -> the first rank that must hold it, and its label
    for rank, (memory, goal) in enumerate(zip(memories, goals, strict=True)):
        for slot, owner in ((slot, owner) for span, owner in goal for slot in range(*span)):
            label = memory[slot]
            if labels.element[label] != slot:
                raise ProofError(f"[4] rank {rank}: slot {slot} holds element {labels.element[label]}")
            if missing := (everyone if owner is None else 1 << owner) & ~labels.members[label]:
                raise ProofError(f"[4] rank {rank}: element {slot} lacks the contribution of {_ranks(missing)}")
            if owner is not None and labels.members[label] != 1 << owner:
                raise ProofError(f"[4] rank {rank}: element {slot} holds more than the contribution of rank {owner}")
            if ordered and labels.ordered[label] is None:
                raise ProofError(f"[5] rank {rank}: element {slot} is not combined in rank order")
            first, expected = combined.setdefault(slot, (rank, label))
            if label != expected:
                raise ProofError(f"[5] ranks {first} and {rank} combine element {slot} in different ways")


def _replay(schedule: list[list[Round]], labels: _Labels) -> list[Memory]:
    """Run the rounds, all of a round at once, with sends that complete only when they are received."""
    size = labels.size
    memories = [labels.contribution(rank) for rank in range(size)]
    current = [-1] * size  # the round that each rank is in
    missing = [0] * size  # its verbs that are not complete
    landed: list[dict[int, Memory]] = [{} for _ in range(size)]
    sends: dict[tuple[int, int], deque[Span]] = {}
    recvs: dict[tuple[int, int], deque[tuple[int, Span]]] = {}
    ready = deque(range(size))
    while ready:
        rank = ready.popleft()
        for index, data in sorted(landed[rank].items()):  # the round is complete: apply its receives in order
            verb = schedule[rank][current[rank]][index]
            assert isinstance(verb, Recv)
            _write(memories[rank], verb.span.start, data, verb.side, labels)
        landed[rank] = {}
        current[rank] += 1
        if current[rank] >= len(schedule[rank]):
            continue
        verbs = schedule[rank][current[rank]]
        missing[rank] = len(verbs)
        if not verbs:
            ready.append(rank)
        for index, verb in enumerate(verbs):
            pair = (rank, verb.peer) if isinstance(verb, Send) else (verb.peer, rank)
            if isinstance(verb, Send):
                sends.setdefault(pair, deque()).append(verb.span)
            else:
                recvs.setdefault(pair, deque()).append((index, verb.span))
            if not sends.get(pair) or not recvs.get(pair):
                continue
            source, target = pair
            span, (place, wanted) = sends[pair].popleft(), recvs[pair].popleft()
            if span.length != wanted.length:
                raise ProofError(
                    f"[1] rank {source} sends {span.length} elements to rank {target}, which expects {wanted.length}"
                )
            landed[target][place] = memories[source][span.start : span.stop]
            for end in pair:
                missing[end] -= 1
                if not missing[end]:
                    ready.append(end)
    stuck = [rank for rank in range(size) if current[rank] < len(schedule[rank])]
    if stuck:
        rank = stuck[0]
        verbs = schedule[rank][current[rank]]
        raise ProofError(f"[1, 2] no progress: rank {rank} stands in round {current[rank]} with {verbs}")
    return memories


def _write(memory: Memory, start: int, data: Memory, side: str | None, labels: _Labels) -> None:
    stop = start + len(data)
    if side == RIGHT:
        data = list(map(labels.combine, memory[start:stop], data))
    elif side == LEFT:
        data = list(map(labels.combine, data, memory[start:stop]))
    memory[start:stop] = data


class _View:
    """A stretch of a rank's memory, or of its scratch; looks to `Stream` like an array of bytes."""

    itemsize = 1

    def __init__(self, memory: Memory, start: int, stop: int) -> None:
        self.memory, self.start, self.stop = memory, start, stop

    def view(self, dtype: object) -> _View:
        return self

    def __getitem__(self, part: slice) -> _View:
        return _View(self.memory, self.start + part.start, self.start + part.stop)


class _Scratch:
    def __init__(self, shape: tuple[int, int], dtype: object) -> None:
        self.rows = [[-1] * shape[1] for _ in range(shape[0])]

    def __getitem__(self, key: tuple[int, slice]) -> _View:
        return _View(self.rows[key[0]], 0, key[1].stop)


class _Request:
    """A message under way, or a write that is not done yet, on its way from or to `view`."""

    def __init__(self, view: _View) -> None:
        self.view, self.complete = view, False

    def Test(self) -> bool:
        return self.complete


class _Endpoint:
    """One rank's side of the simulated network: what `Stream` takes for a communicator, and what it folds with."""

    def __init__(self, network: _Network, rank: int, labels: _Labels, late: bool) -> None:
        self.network, self.rank, self.labels, self.late = network, rank, labels, late
        self.reading: list[_Request] = []
        self.writing: list[_Request] = []
        self.folds: deque[tuple[_Request, Callable[[], None]]] = deque()

    def Isend(self, view: _View, peer: int, tag: int) -> _Request:
        self._refuse(view, self.writing, "sends a span that is being written")
        request = _Request(view)
        self.reading.append(request)
        self.network.post(self.network.sends, (self.rank, peer), request)
        return request

    def Irecv(self, view: _View, peer: int, tag: int) -> _Request:
        self._refuse(view, self.reading, "receives into a span that is being sent")
        self._refuse(view, self.writing, "receives into a span that is being written")
        request = _Request(view)
        self.writing.append(request)
        self.network.post(self.network.recvs, (peer, self.rank), request)
        return request

    def fold(self, target: _View, landing: _View, side: str) -> Callable[[], bool] | None:
        def apply() -> None:
            _write(target.memory, target.start, landing.memory[landing.start : landing.stop], side, self.labels)

        self._refuse(target, self.reading, "reduces into a span that is being sent")
        received = [request for request in self.writing if all(request is not fold for fold, _ in self.folds)]
        self._refuse(target, received, "reduces into a span that is being received")
        if not self.late:
            apply()
            return None
        request = _Request(target)
        self.writing.append(request)
        self.folds.append((request, apply))
        return lambda: self._settle(request)

    def _settle(self, request: _Request) -> bool:
        """Finish reductions in the order of the stream, now and then, when asked."""
        while not request.complete and self.network.random.random() < 0.5:
            fold, apply = self.folds.popleft()
            apply()
            self.finish(fold, self.writing)
        return request.complete

    def finish(self, request: _Request, pending: list[_Request]) -> None:
        request.complete = True
        pending.remove(request)

    def _refuse(self, view: _View, pending: list[_Request], what: str) -> None:
        memory, start, stop = view.memory, view.start, view.stop
        for request in pending:
            other = request.view
            if max(start, other.start) < min(stop, other.stop) and memory is other.memory:
                raise ProofError(f"[3, 7] rank {self.rank} {what}: elements {start} to {stop - 1}")


class _Network:
    """Messages between all pairs: matched first in first out, delivered in random order, read at delivery."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.sends: dict[tuple[int, int], deque[_Request]] = {}
        self.recvs: dict[tuple[int, int], deque[_Request]] = {}
        self.matched: list[tuple[int, int, _Request, _Request]] = []

    def post(self, queues: dict[tuple[int, int], deque[_Request]], pair: tuple[int, int], request: _Request) -> None:
        queues.setdefault(pair, deque()).append(request)
        if self.sends.get(pair) and self.recvs.get(pair):
            send, recv = self.sends[pair].popleft(), self.recvs[pair].popleft()
            if send.view.stop - send.view.start != recv.view.stop - recv.view.start:
                raise ProofError(f"[1, 7] rank {pair[0]} sends a segment of another length than rank {pair[1]} expects")
            self.matched.append((*pair, send, recv))

    def deliver(self, endpoints: list[_Endpoint]) -> tuple[int, int]:
        place = int(self.random.random() * len(self.matched))
        self.matched[place], self.matched[-1] = self.matched[-1], self.matched[place]
        source, target, send, recv = self.matched.pop()
        recv.view.memory[recv.view.start : recv.view.stop] = send.view.memory[send.view.start : send.view.stop]
        endpoints[source].finish(send, endpoints[source].reading)
        endpoints[target].finish(recv, endpoints[target].writing)
        return source, target


def _execute(programs: list[Program], window: int, labels: _Labels, late: bool) -> list[Memory]:
    """Run the compiled programs of all ranks by `Stream` on a simulated network."""
    network = _Network(f"{labels.size} {labels.count} {window} {late}")
    endpoints = [_Endpoint(network, rank, labels, late) for rank in range(labels.size)]
    memories = [labels.contribution(rank) for rank in range(labels.size)]
    streams = [
        Stream(endpoint, program, np.dtype(np.uint8), window, empty=_Scratch)
        for endpoint, program in zip(endpoints, programs, strict=True)
    ]
    for stream, memory, endpoint in zip(streams, memories, endpoints, strict=True):
        stream.start(_View(memory, 0, labels.count), endpoint.fold, 0)
    awake = list(range(labels.size))
    while awake or network.matched:
        if awake and (not network.matched or network.random.random() < 0.5):
            rank = awake.pop(int(network.random.random() * len(awake)))
            if streams[rank].busy:
                streams[rank].progress()
                if endpoints[rank].folds:
                    awake.append(rank)
        else:
            for rank in network.deliver(endpoints):
                if rank not in awake:
                    awake.append(rank)
    for rank, stream in enumerate(streams):
        if stream.busy:
            raise ProofError(f"[2, 7] no progress with window {window}: rank {rank} stands in {stream.where()}")
    return memories
