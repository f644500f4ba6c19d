"""Who is in which call, who has not started it, and who therefore waits for whom.

Rules that hold here:

* Calls of the same communicator and order are the same collective. A rank has started a call if it has started a later
  one of the same plan, since old calls are forgotten.
* Ranks are world ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcreduce.diagnosis.dumps import KEPT, Call, Communicator, Dump

Order = tuple[int, int]


class Place(NamedTuple):
    """A communicator: its members' world ranks, and the view and the dump of each that has left one."""

    id: str
    members: tuple[int, ...]
    views: dict[int, Communicator]
    dumps: dict[int, Dump]

    @property
    def missing(self) -> tuple[int, ...]:
        """World ranks of the members without a dump."""
        return tuple(rank for rank in self.members if rank not in self.dumps)


class Stall(NamedTuple):
    """A call that somebody has started and not completed, or that is not the same on all: who is where."""

    place: Place
    order: Order
    calls: dict[int, Call]
    inside: tuple[int, ...]
    completed: tuple[int, ...]
    behind: tuple[int, ...]
    differs: bool = False

    @property
    def since(self) -> float:
        """When the first rank started the call."""
        return min(call.started for call in self.calls.values())


def places_of(job: dict[int, Dump]) -> list[Place]:
    """Collect the communicators. Disjoint ones may have one id, so the members belong to the key."""
    views: dict[tuple[str, tuple[int, ...]], dict[int, Communicator]] = {}
    for rank, dump in job.items():
        for view in dump.communicators:
            views.setdefault((view.id, view.members), {})[rank] = view
    places = []
    for (name, members), seen in views.items():
        dumps = {rank: job[rank] for rank in members if rank in job}
        for number, rank in enumerate(members):
            if rank in dumps and rank not in seen:  # it has made no call there
                seen[rank] = Communicator(name, number, members, "", ())
        places.append(Place(name, members, seen, dumps))
    return places


def _open(view: Communicator) -> list[Call]:
    """Return the calls that are not complete; on a broken communicator, the last one is what was interrupted."""
    pending = [call for call in view.calls if call.pending]
    return pending or [call for call in view.calls[-1:] if view.broken]


def stalls_of(place: Place) -> list[Stall]:
    """Return the first call that is not the same on all members, or else those that are not complete on all.

    The plan that has waited longest comes first, its calls in order.
    """
    differing = _differing(place)
    if differing is not None:
        return [_stall(place, differing, differs=True)]
    since: dict[int, float] = {}
    orders = set()
    for view in place.views.values():
        for call in _open(view):
            orders.add(call.order)
            since[call.order[0]] = min(call.started, since.get(call.order[0], call.started))
    return [_stall(place, order) for order in sorted(orders, key=lambda order: (since[order[0]], order))]


def _differing(place: Place) -> Order | None:
    prints: dict[Order, set[int]] = {}
    since: dict[Order, float] = {}
    for view in place.views.values():
        for call in view.calls:
            prints.setdefault(call.order, set()).add(call.fingerprint)
            since[call.order] = min(call.started, since.get(call.order, call.started))
    first: dict[int, Order] = {}
    for order in sorted(order for order, found in prints.items() if len(found) > 1):
        first.setdefault(order[0], order)
    return min(first.values(), key=lambda order: since[order], default=None)


def _stall(place: Place, order: Order, differs: bool = False) -> Stall:
    calls = {rank: call for rank, view in sorted(place.views.items()) for call in view.calls if call.order == order}
    inside = tuple(rank for rank, call in calls.items() if call in _open(place.views[rank]))
    since = min((call.started for call in calls.values()), default=0.0)
    started = {rank for rank, view in place.views.items() if rank in calls or _has_started(view, order, since)}
    return Stall(
        place,
        order,
        calls,
        inside,
        tuple(sorted(started - set(inside))),
        tuple(sorted(set(place.views) - started)),
        differs,
    )


def _has_started(view: Communicator, order: Order, since: float) -> bool:
    numbers = [call.order[1] for call in view.calls if call.order[0] == order[0]]
    if numbers:
        return max(numbers) >= order[1]
    return len(view.calls) >= KEPT and view.calls[0].started > since  # then it may well be forgotten


Wait = tuple[Communicator, Call]


def waits_of(dump: Dump) -> list[Wait]:
    """Return the calls in which a rank waits.

    A nonblocking call holds nobody, so if the line of a pending call is on the stack, such calls count alone; else the
    rank may be in the `Wait` of any.
    """
    pending = [(view, call) for view in dump.communicators for call in view.calls if call.pending]
    return [(view, call) for view, call in pending if call.at in dump.stack] or pending


class Links(NamedTuple):
    """Of those who are behind in a stall, who waits for nobody, and in which stalls the others wait: one for each."""

    free: tuple[int, ...]
    onward: dict[int, int]


def links_between(stalls: Sequence[Stall], waits: dict[int, list[Wait]]) -> list[Links]:
    """Return for each stall where those wait who are behind in it."""
    number = {(stall.place.id, stall.place.members, stall.order): index for index, stall in enumerate(stalls)}
    differing = {(stall.place.id, stall.place.members): index for index, stall in enumerate(stalls) if stall.differs}

    def onward(stall: Stall, rank: int) -> Iterator[int]:
        for view, call in waits[rank]:
            target = differing.get((view.id, view.members), number.get((view.id, view.members, call.order)))
            if target is None:
                continue
            # What all are in goes on while any of them waits for anything: only a blocking call of that kind holds.
            if call.at in stall.place.dumps[rank].stack or not _all_inside(stalls[target]):
                yield target

    links = []
    for stall in stalls:
        targets = {rank: list(onward(stall, rank)) for rank in stall.behind}
        free = tuple(rank for rank in stall.behind if not targets[rank])
        links.append(Links(free, {target: rank for rank in reversed(stall.behind) for target in targets[rank]}))
    return links


def _all_inside(stall: Stall) -> bool:
    """Whether all members have left a dump, and are in the call."""
    return len(stall.inside) == len(stall.place.members) and not stall.differs


KINDS = ("disagreement", "behind", "deadlock", "unfinished", "stuck", "consequence", "broken", "idle")


def kind_of(index: int, stalls: Sequence[Stall], links: Sequence[Links]) -> str:
    """Return what kind of finding a stall is (see `findings.Finding`)."""
    stall = stalls[index]
    if stall.differs:
        return "disagreement"
    if links[index].free or (stall.place.missing and not stall.behind):
        return "behind"
    if stall.behind:
        return "deadlock" if cycle_through(index, links) else "consequence"
    return "unfinished" if stall.completed else "stuck"


def cycle_through(start: int, links: Sequence[Links]) -> list[int]:
    """Return the stalls of the shortest way from a stall back to it, or none."""
    came: dict[int, int] = {}
    todo = [start]
    for index in todo:
        for target in links[index].onward:
            if target == start:
                way = [index]
                while way[-1] != start:
                    way.append(came[way[-1]])
                return way[::-1]
            if target not in came:
                came[target] = index
                todo.append(target)
    return []


def worth_telling(stalls: Sequence[Stall], links: Sequence[Links]) -> list[int]:
    """Pick what is worth telling.

    Of each plan of a communicator, the first call that some have not started and the first that some have completed;
    of a communicator without either, the first call.
    """
    first: dict[tuple[int, int, str], int] = {}
    for index, stall in enumerate(stalls):
        place, plan = id(stall.place), stall.order[0]
        if stall.differs:
            continue
        if stall.behind and not _follows(index, stalls, links):
            first.setdefault((place, plan, "behind"), index)
        elif stall.completed:
            first.setdefault((place, plan, "completed"), index)
    told = {place for place, *_ in first}
    for index, stall in enumerate(stalls):
        if id(stall.place) not in told:
            told.add(id(stall.place))
            first[id(stall.place), 0, ""] = index
    return sorted(set(first.values()))


def _follows(index: int, stalls: Sequence[Stall], links: Sequence[Links]) -> bool:
    """Whether those who are behind are still in an earlier call of the same plan, so that that one is to be told."""
    stall = stalls[index]
    return not links[index].free and all(
        stalls[target].place is stall.place and stalls[target].order[0] == stall.order[0]
        for target in links[index].onward
    )
