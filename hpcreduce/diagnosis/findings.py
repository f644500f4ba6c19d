"""What is to be said of each communicator on which something is wrong, as plain data.

How long a rank has waited is told by its own clock alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hpcreduce.diagnosis.dumps import Dump
from hpcreduce.diagnosis.stalls import Place, Stall, Wait
from hpcreduce.diagnosis.words import SUMMARIES, call_name, ranks_of
from hpcreduce.units import plural

_STATES = ("no dump", "behind", "inside", "gave up", "completed", "broken", "elsewhere")


class Account(NamedTuple):
    """What is to be said of a rank.

    `state` is one of ``behind`` (has not started the call), ``inside`` (has not completed it), ``gave up``,
    ``completed``, ``no dump``, and ``elsewhere`` where there is no call to speak of. `call`, `what`, `at` and
    `pending` are those of the call, or of the last one of a rank that is not in it; `waiting` is what it waits for
    there; `now` its stack, the innermost line first; `waits_in` says in which other calls it waits.
    `reason` is the error that made the dump, or left the communicator broken.
    """

    state: str
    call: str = ""
    what: str = ""
    at: str = ""
    pending: bool = False
    waiting: str = ""
    now: tuple[str, ...] = ()
    waits_in: tuple[str, ...] = ()
    reason: str = ""


class Group(NamedTuple):
    """Ranks of a communicator, and world ranks, of which the same is to be said; `seconds` since the earliest start."""

    ranks: tuple[int, ...]
    world: tuple[int, ...]
    account: Account
    seconds: float | None


class Finding(NamedTuple):
    """What is wrong on a communicator.

    `kind` is one of ``disagreement`` (members differ in what the call is), ``behind`` (some have not started it),
    ``deadlock`` (these wait for one another), ``unfinished`` (some have completed it, others not), ``stuck`` (all are
    in it), ``consequence`` (who is behind waits in another call), ``broken``, and ``idle`` (nothing waits). `also`
    are other calls that are pending on the communicator.
    """

    kind: str
    communicator: str
    size: int
    call: str
    what: str
    summary: str
    groups: tuple[Group, ...]
    also: tuple[str, ...] = ()


def finding_of(
    index: int, kind: str, stalls: Sequence[Stall], shown: Sequence[int], waits: dict[int, list[Wait]]
) -> Finding:
    """Return what is to be said of a stall; `shown` are those that are told, `waits` where each rank waits."""
    stall = stalls[index]
    place = stall.place
    siblings = [each for each, other in enumerate(stalls) if other.place is place]
    groups = _groups(place, place.members, lambda rank: _account(stall, rank, waits))
    if index == min(each for each in siblings if each in shown):
        groups += breaks(place)
    return Finding(
        kind,
        place.id,
        len(place.members),
        call_name(stall.order),
        "" if stall.differs else next(iter(stall.calls.values())).what,
        SUMMARIES[kind](stall),
        tuple(groups),
        tuple(call_name(stalls[each].order) for each in siblings if each not in shown),
    )


def _account(stall: Stall, rank: int, waits: dict[int, list[Wait]]) -> tuple[Account, float | None, int]:
    """Return what is to be said of a rank, for how long, and a number that keeps different calls apart."""
    place = stall.place
    if rank not in place.dumps:
        return Account("no dump"), None, 0
    view, dump = place.views[rank], place.dumps[rank]
    now = dump.stack[::-1]
    call = stall.calls.get(rank)
    if call and (stall.differs or rank in stall.inside):
        state = "inside" if call.pending else "gave up" if rank in stall.inside else "completed"
        account = Account(
            state, call_name(call.order), call.what, call.at, call.pending, call.waiting if call.pending else ""
        )
        if call.at not in dump.stack:  # it has gone on, or waits elsewhere
            account = account._replace(now=now)
        return account, dump.time - call.started, call.fingerprint
    account = Account("behind" if rank in stall.behind else "completed", now=now, reason=_error(dump))
    last = view.calls[-1] if view.calls else None
    others = [(other, each) for other, each in waits[rank] if each is not last]
    account = account._replace(
        waits_in=tuple(
            f"{'waits in' if each.at in dump.stack else 'has under way'} "
            f"{call_name(each.order)}{'' if other is view else f' of communicator {other.id}'} at {each.at}"
            for other, each in others
        )
    )
    if last is None:
        return account, None, 0
    account = account._replace(
        call=call_name(last.order), what=last.what, at=last.at, pending=last.pending, waiting=last.waiting
    )
    return account, dump.time - last.started, 0


def _error(dump: Dump) -> str:
    """Return what the dump was made for, unless somebody asked for it."""
    return "" if dump.reason.startswith("SIG") else dump.reason


def _groups(
    place: Place | None, ranks: Iterable[int], tell: Callable[[int], tuple[Account, float | None, int]]
) -> list[Group]:
    """Group world ranks of which the same is to be said."""
    number = {rank: index for index, rank in enumerate(place.members)} if place else {}
    found: dict[tuple[Account, int], Group] = {}
    for rank in ranks:
        account, seconds, apart = tell(rank)
        group = Group((number.get(rank, rank),), (rank,), account, seconds)
        key = account, apart
        found[key] = joined(found[key], group) if key in found else group
    return in_order(found.values())


def joined(one: Group, other: Group) -> Group:
    """Return both as one group."""
    seconds = [each.seconds for each in (one, other) if each.seconds is not None]
    return Group(one.ranks + other.ranks, one.world + other.world, one.account, max(seconds, default=None))


def in_order(groups: Iterable[Group]) -> list[Group]:
    """Return who is suspect first; of the same state, small groups, which stand out."""
    return sorted(groups, key=lambda group: (_STATES.index(group.account.state), len(group.ranks), group.ranks))


def breaks(place: Place) -> list[Group]:
    """Return who cannot use a communicator any more, and why."""
    ranks = [rank for rank in place.members if rank in place.views and place.views[rank].broken]
    return _groups(place, ranks, lambda rank: (Account("broken", reason=place.views[rank].broken), None, 0))


def broken(place: Place) -> Finding:
    """Return that a communicator is broken, and nothing more."""
    groups = breaks(place)
    who = ranks_of([rank for group in groups for rank in group.world], place)
    summary = f"communicator {place.id} cannot be used any more on {who}, but nothing waits on it"
    return Finding("broken", place.id, len(place.members), "", "", summary, tuple(groups))


def idle(job: dict[int, Dump], size: int) -> Finding:
    """Return that nothing waits, and where the ranks are."""

    def tell(rank: int) -> tuple[Account, float | None, int]:
        dump = job[rank]
        return Account("elsewhere", now=dump.stack[::-1], reason=_error(dump)), None, 0

    those = f"the {plural(size, 'rank')}" if len(job) == size else f"the {plural(len(job), 'rank')} that left a dump"
    summary = f"nothing waits: no call is pending on any of {those}"
    return Finding("idle", "", size, "", "", summary, tuple(_groups(None, job, tell)))
