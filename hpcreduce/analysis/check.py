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
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hpcreduce.algorithms import Algorithm, schedule_of
from hpcreduce.analysis.labels import Labels, Memory, ranks_of, write
from hpcreduce.analysis.simulated import execute
from hpcreduce.errors import ProofError
from hpcreduce.runtime.program import Program, compile_rounds
from hpcreduce.schedule import LEFT, RIGHT, Recv, Round, Send, Span

SEGMENTS = (1, 3, None)
WINDOWS = (1, 2, 4)


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
    row = schedule_of(algorithm)
    assert row.rounds
    if size < 1 or count < 0:
        raise ValueError(f"size must be at least 1 and count at least 0, found {size} and {count}")
    schedule = [list(row.rounds(rank, size, count, **static)) for rank in range(size)]
    where = f"{row.name}, {size} ranks, {count} elements"
    try:
        sent = _check_counts(row, size, count, schedule, static)
        labels = Labels(size, count)
        goals = [row.goal(rank, size, count, **static) for rank in range(size)]
        ordered = row.keeps_order and static.get("ordered", True)
        _check_result(goals, ordered, labels, _replay(schedule, labels))
        runs = 0
        for programs, window, late in _programs(schedule, count, segments, windows, compiler):
            _check_result(goals, ordered, labels, execute(programs, window, labels, late))
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
    _check_overwriting(verbs, where)


def _check_overwriting(verbs: Round, where: str) -> None:
    """Check that a plain receive shares no element with another verb of its round, going through spans in order."""
    farthest: dict[bool, Send | Recv] = {}  # whether plain -> the verb so far that reaches farthest
    for verb in sorted((verb for verb in verbs if verb.span.length), key=lambda verb: verb.span):
        plain = isinstance(verb, Recv) and verb.side is None
        for other in [farthest.get(True), farthest.get(False) if plain else None]:
            if other and other.span.stop > verb.span.start:
                first, second = (verb, other) if plain else (other, verb)
                raise ProofError(f"[3] {where}: {first} overwrites the span of {second}")
        if plain not in farthest or farthest[plain].span.stop < verb.span.stop:
            farthest[plain] = verb


Goal = list[tuple[Span, "int | None"]]


def _check_result(goals: list[Goal], ordered: bool, labels: Labels, memories: list[Memory]) -> None:
    """Check what each rank ends with: contributions of one rank, or of all, combined in the same way everywhere."""
    everyone = (1 << labels.size) - 1
    combined: dict[int, tuple[int, int]] = {}  # slot -> the first rank that must hold it, and its label
    for rank, (memory, goal) in enumerate(zip(memories, goals, strict=True)):
        for slot, owner in ((slot, owner) for span, owner in goal for slot in range(*span)):
            label = memory[slot]
            if labels.element[label] != slot:
                raise ProofError(f"[4] rank {rank}: slot {slot} holds element {labels.element[label]}")
            if missing := (everyone if owner is None else 1 << owner) & ~labels.members[label]:
                raise ProofError(f"[4] rank {rank}: element {slot} lacks the contribution of {ranks_of(missing)}")
            if owner is not None and labels.members[label] != 1 << owner:
                raise ProofError(f"[4] rank {rank}: element {slot} holds more than the contribution of rank {owner}")
            if ordered and labels.ordered[label] is None:
                raise ProofError(f"[5] rank {rank}: element {slot} is not combined in rank order")
            first, expected = combined.setdefault(slot, (rank, label))
            if label != expected:
                raise ProofError(f"[5] ranks {first} and {rank} combine element {slot} in different ways")


def _replay(schedule: list[list[Round]], labels: Labels) -> list[Memory]:
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
            write(memories[rank], verb.span.start, data, verb.side, labels)
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
