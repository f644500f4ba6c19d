"""One sentence for each kind of finding.

Ranks that are named are those of the communicator, with the world ranks where they differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hpcreduce.diagnosis.stalls import Links, Order, Place, Stall
from hpcreduce.units import format_duration, format_ranks

NO_DUMP = "left no dump: it ended, was killed, or is stuck outside Python"
"""What is said of ranks of which there is no dump."""


def call_name(order: Order) -> str:
    """Return how a call of a communicator is called: ``#12``, or ``plan 2, start 5``."""
    return f"plan {order[0]}, start {order[1]}" if order[0] else f"#{order[1]}"


def ranks_of(world: Sequence[int], place: Place | None = None) -> str:
    """Name world ranks by their ranks in a communicator."""
    number = {rank: index for index, rank in enumerate(place.members)} if place else {}
    return named([number.get(rank, rank) for rank in world], world)


def named(ranks: Sequence[int], world: Sequence[int]) -> str:
    """Return ranks with the world ranks where they differ.

    >>> named([0], [0]), named([0, 1], [4, 6])
    ('rank 0', 'ranks 0-1 (world 4,6)')
    """
    differ = "" if tuple(ranks) == tuple(world) else f" (world {format_ranks(world)})"
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}{differ}"


def agreeing(ranks: Sequence[int], one: str, several: str) -> str:
    """Return the word for one rank, or for several."""
    return one if len(ranks) == 1 else several


def where(stall: Stall) -> str:
    """Return the call and its communicator."""
    return f"{call_name(stall.order)} of communicator {stall.place.id}"


def _waiters(stall: Stall) -> tuple[tuple[int, ...], str]:
    """Return who waits in a stall, if anybody does, and for how long."""
    ranks = tuple(rank for rank in stall.inside if stall.calls[rank].pending)
    seconds = max((stall.place.dumps[rank].time - stall.calls[rank].started for rank in ranks), default=0.0)
    return ranks, f"for {agreeing(ranks, '', 'up to ')}{format_duration(seconds)}"


def _behind_summary(stall: Stall) -> str:
    place, behind = stall.place, stall.behind
    waiting, long = _waiters(stall)
    lost = f"{ranks_of(place.missing, place)} {NO_DUMP}; " if place.missing else ""
    if not behind:
        if waiting:
            return f"{lost}{ranks_of(waiting, place)} {agreeing(waiting, 'waits', 'wait')} in {where(stall)}, {long}"
        return f"{lost}{ranks_of(stall.inside, place)} left {where(stall)} unfinished"
    others = (
        f"where {ranks_of(waiting, place)} {agreeing(waiting, 'waits', 'wait')}, {long}"
        if waiting
        else f"which {ranks_of(stall.inside, place)} left unfinished"
    )
    return (
        f"{lost}{ranks_of(behind, place)} {agreeing(behind, 'is', 'are')} behind: "
        f"{agreeing(behind, 'it has', 'they have')} not started {where(stall)}, {others}"
    )


def _unfinished_summary(stall: Stall) -> str:
    who, done = ranks_of(stall.inside, stall.place), stall.completed
    completed = f"which {ranks_of(done, stall.place)} {agreeing(done, 'has', 'have')} completed"
    if not _waiters(stall)[0]:
        return f"{who} left {where(stall)} unfinished, {completed}"
    still = agreeing(stall.inside, "is behind: it is", "are behind: they are")
    return f"{who} {still} still in {where(stall)}, {completed}"


def _stuck_summary(stall: Stall) -> str:
    waiting, long = _waiters(stall)
    size = len(stall.place.members)
    everyone = f"all {size} ranks" if size > 1 else "the only rank"
    if not waiting:
        return f"{everyone} of communicator {stall.place.id} left {call_name(stall.order)} unfinished"
    return f"{everyone} of communicator {stall.place.id} wait{'s' * (size == 1)} in {call_name(stall.order)}, {long}"


def _disagreement_summary(stall: Stall) -> str:
    prints = Counter(call.fingerprint for call in stall.calls.values())
    usual, count = prints.most_common(1)[0]
    odd = [rank for rank, call in stall.calls.items() if call.fingerprint != usual]
    if 2 * count > len(stall.calls):
        rest = [rank for rank in stall.calls if rank not in odd]
        return (
            f"{ranks_of(odd, stall.place)} {agreeing(odd, 'disagrees', 'disagree')} with {ranks_of(rest, stall.place)} "
            f"on what {where(stall)} is"
        )
    return (
        f"{ranks_of(list(stall.calls), stall.place)} disagree on what {where(stall)} is: {len(prints)} different calls"
    )


SUMMARIES: dict[str, Callable[[Stall], str]] = {
    "disagreement": _disagreement_summary,
    "behind": _behind_summary,
    "deadlock": _behind_summary,
    "consequence": _behind_summary,
    "unfinished": _unfinished_summary,
    "stuck": _stuck_summary,
}


_MOST_OF_CYCLE = 4


def cycle_sentence(cycle: Sequence[int], stalls: Sequence[Stall], links: Sequence[Links]) -> str:
    """Say who waits for whom; the stalls of a cycle belong to several communicators, so ranks are world ranks."""
    following = [*cycle[1:], cycle[0]]
    ranks = [links[stall].onward[after] for stall, after in zip(cycle, following, strict=True)]
    world = all(stalls[index].place.members == tuple(range(len(stalls[index].place.members))) for index in cycle)
    name = "rank" if world else "world rank"
    parts = [
        f"{name} {rank} waits in {where(stalls[after])} for {name} {target}"
        for rank, after, target in zip(ranks, following, [*ranks[1:], ranks[0]], strict=True)
    ]
    if len(parts) > _MOST_OF_CYCLE:
        left = len(parts) - _MOST_OF_CYCLE
        parts[_MOST_OF_CYCLE:] = [f"and so on for {left} more, back to {name} {ranks[0]}"]
    return f"deadlock: {', '.join(parts)}"
