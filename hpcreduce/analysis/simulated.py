"""Run compiled programs of all ranks by the real executor on a simulated network, with labels for values.

Rules that hold here:

* A send completes only when it is received. Delivery is in random order, and data is read at delivery.
* Whatever touches memory that is being sent, received or written meanwhile is an error.
* Reductions may finish late.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable

import numpy as np

from hpcreduce.analysis.labels import Labels, Memory, write
from hpcreduce.errors import ProofError
from hpcreduce.runtime.program import Program
from hpcreduce.runtime.stream import Stream


class _View:
    """A stretch of a rank's memory, or of its scratch; looks to `Stream` like an array of bytes."""

    __slots__ = ("memory", "start", "stop")
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


class _Uses:
    """How many requests under way touch each element, by memory."""

    def __init__(self) -> None:
        self.counts: dict[int, list[int]] = {}  # identity of the memory -> count for each element

    def count(self, view: _View, change: int) -> None:
        counts = self.counts.get(id(view.memory))
        if counts is None:
            counts = self.counts[id(view.memory)] = [0] * len(view.memory)
        for index in range(view.start, view.stop):
            counts[index] += change

    def touch(self, view: _View) -> bool:
        counts = self.counts.get(id(view.memory))
        return counts is not None and any(counts[view.start : view.stop])


class _Request:
    """A message under way, or a write that is not done yet, on its way from or to `view`; one of `uses`."""

    __slots__ = ("complete", "uses", "view")

    def __init__(self, view: _View, uses: _Uses) -> None:
        self.view, self.uses, self.complete = view, uses, False
        uses.count(view, 1)

    def Test(self, status: None = None) -> bool:
        return self.complete

    def finish(self) -> None:
        self.complete = True
        self.uses.count(self.view, -1)


class _Endpoint:
    """One rank's side of the simulated network: what `Stream` takes for a communicator, and what it folds with."""

    def __init__(self, network: _Network, rank: int, labels: Labels, late: bool) -> None:
        self.network, self.rank, self.labels, self.late = network, rank, labels, late
        self.sending, self.receiving, self.reducing = _Uses(), _Uses(), _Uses()
        self.folds: deque[tuple[_Request, Callable[[], None]]] = deque()

    def Isend(self, view: _View, peer: int, tag: int) -> _Request:
        self._refuse(view, "sends a span that is being written", self.receiving, self.reducing)
        request = _Request(view, self.sending)
        self.network.post(self.network.sends, (self.rank, peer), request)
        return request

    def Irecv(self, view: _View, peer: int, tag: int) -> _Request:
        self._refuse(view, "receives into a span that is being sent", self.sending)
        self._refuse(view, "receives into a span that is being written", self.receiving, self.reducing)
        request = _Request(view, self.receiving)
        self.network.post(self.network.recvs, (peer, self.rank), request)
        return request

    def fold(self, target: _View, landing: _View, side: str) -> Callable[[], bool] | None:
        def apply() -> None:
            write(target.memory, target.start, landing.memory[landing.start : landing.stop], side, self.labels)

        self._refuse(target, "reduces into a span that is being sent", self.sending)
        self._refuse(target, "reduces into a span that is being received", self.receiving)
        if not self.late:
            apply()
            return None
        request = _Request(target, self.reducing)
        self.folds.append((request, apply))
        return lambda: self._settle(request)

    def _settle(self, request: _Request) -> bool:
        """Finish reductions in the order of the stream, now and then, when asked."""
        while not request.complete and self.network.random.random() < 0.5:
            fold, apply = self.folds.popleft()
            apply()
            fold.finish()
        return request.complete

    def _refuse(self, view: _View, what: str, *uses: _Uses) -> None:
        for use in uses:
            if use.touch(view):
                raise ProofError(f"[3, 7] rank {self.rank} {what}: elements {view.start} to {view.stop - 1}")


class _Network:
    """Messages between all pairs: matched first in first out, delivered in random order, read at delivery."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.sends: defaultdict[tuple[int, int], deque[_Request]] = defaultdict(deque)
        self.recvs: defaultdict[tuple[int, int], deque[_Request]] = defaultdict(deque)
        self.matched: list[tuple[int, int, _Request, _Request]] = []

    def post(
        self, queues: defaultdict[tuple[int, int], deque[_Request]], pair: tuple[int, int], request: _Request
    ) -> None:
        queues[pair].append(request)
        sends, recvs = self.sends[pair], self.recvs[pair]
        if sends and recvs:
            send, recv = sends.popleft(), recvs.popleft()
            if send.view.stop - send.view.start != recv.view.stop - recv.view.start:
                raise ProofError(f"[1, 7] rank {pair[0]} sends a segment of another length than rank {pair[1]} expects")
            self.matched.append((*pair, send, recv))

    def deliver(self) -> tuple[int, int]:
        place = int(self.random.random() * len(self.matched))
        self.matched[place], self.matched[-1] = self.matched[-1], self.matched[place]
        source, target, send, recv = self.matched.pop()
        recv.view.memory[recv.view.start : recv.view.stop] = send.view.memory[send.view.start : send.view.stop]
        send.finish()
        recv.finish()
        return source, target


def execute(programs: list[Program], window: int, labels: Labels, late: bool) -> list[Memory]:
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
    waiting = [False] * labels.size  # not among those
    while awake or network.matched:
        if awake and (not network.matched or network.random.random() < 0.5):
            rank = awake.pop(int(network.random.random() * len(awake)))
            waiting[rank] = True
            if streams[rank].busy:
                streams[rank].progress()
                if endpoints[rank].folds:
                    waiting[rank] = False
                    awake.append(rank)
        else:
            for rank in network.deliver():
                if waiting[rank]:
                    waiting[rank] = False
                    awake.append(rank)
    for rank, stream in enumerate(streams):
        if stream.busy:
            raise ProofError(f"[2, 7] no progress with window {window}: rank {rank} stands in {stream.where()}")
    return memories
