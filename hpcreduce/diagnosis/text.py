"""A finding as lines for people: short, whatever the number of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hpcreduce.diagnosis.findings import Account, Finding, Group, in_order, joined
from hpcreduce.diagnosis.words import NO_DUMP, agreeing, named
from hpcreduce.units import format_duration, plural

MOST_GROUPS = 12
"""Groups, and communicators, that are written out."""

MOST_FRAMES = 3
"""Lines of a stack that are written out."""


def written(finding: Finding) -> list[str]:
    """Return the lines about a finding."""
    lines = ["where the ranks are:"]
    if finding.communicator or finding.call:
        call = f": {finding.call} {finding.what or 'differs'}" if finding.call else ""
        lines = [f"communicator {finding.communicator}, {plural(finding.size, 'rank')}{call}"]
    groups = list(finding.groups)
    if len(groups) > MOST_GROUPS:
        groups = _coarse(groups)
    for group in groups[:MOST_GROUPS]:
        head, *more = _told(group, finding.kind)
        lines += [f"  {named(group.ranks, group.world)}: {head}", *(f"    {line}" for line in more)]
    if len(groups) > MOST_GROUPS:
        left = groups[MOST_GROUPS:]
        lines.append(f"  ... and {plural(len(left), 'more group')}, {sum(len(group.ranks) for group in left)} ranks")
    if finding.also:
        rest = f", ... ({len(finding.also)} in all)" if len(finding.also) > MOST_FRAMES else ""
        lines.append(f"  pending on it too: {', '.join(finding.also[:MOST_FRAMES])}{rest}")
    return lines


def _coarse(groups: Iterable[Group]) -> list[Group]:
    """Join the groups that differ in which rank they wait for, or how they came where they are."""
    found: dict[Account, Group] = {}
    for group in groups:
        waiting = re.sub(r"\brank \d+", "another rank", group.account.waiting)
        account = group.account._replace(waiting=waiting, now=group.account.now[:1])
        group = group._replace(account=account)
        found[account] = joined(found[account], group) if account in found else group
    return in_order(
        group._replace(ranks=tuple(sorted(group.ranks)), world=_world_in_order(group)) for group in found.values()
    )


def _world_in_order(group: Group) -> tuple[int, ...]:
    return tuple(world for _, world in sorted(zip(group.ranks, group.world, strict=True)))


def _told(group: Group, kind: str) -> Iterator[str]:
    """Yield the lines about a group."""
    account = group.account
    has = agreeing(group.ranks, "has", "have")
    long = "" if group.seconds is None else format_duration(group.seconds)
    up_to = agreeing(group.ranks, "", "up to ")
    if kind == "disagreement" and account.state in ("inside", "gave up", "completed") and account.call:
        yield account.what
        doing = f"waits there for {up_to}{long}" if account.state == "inside" else account.state
        yield f"at {account.at}, {doing}"
    elif account.state == "inside":
        yield f"{agreeing(group.ranks, 'waits', 'wait')} in it for {up_to}{long}, at {account.at}"
    elif account.state == "gave up":
        yield f"left it unfinished, at {account.at}"
    elif account.state == "no dump":
        yield NO_DUMP
    elif account.state == "broken":
        yield f"cannot use it any more: {account.reason}"
        return
    elif account.state != "elsewhere":
        yield f"{has} not started it" if account.state == "behind" else f"{has} completed it"
        if account.call:
            yield f"last {'started' if account.pending else 'completed'}: {account.call} {account.what}"
            yield f"  at {account.at}, started {long} before the dump"
        else:
            yield "no call on it before"
    yield from account.waits_in[:MOST_FRAMES]
    if account.waiting:
        yield account.waiting
    if account.now:
        yield "now at " + ", from ".join(account.now[:MOST_FRAMES])
    if account.reason:
        yield f"dumped for: {account.reason}"
