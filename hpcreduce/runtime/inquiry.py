"""How the ranks of a communicator find out why a collective does not get on. Pure: messages in, messages out.

Four kinds of message, sent only when something is wrong or a rank leaves:

========  =======================================  ==============================================================
message   when                                     content
========  =======================================  ==============================================================
STATE     nothing moved for a while                what this rank has pending, and completed last
JOIN      this rank gives up                       the reason, and its STATE; it touches no data from here on
VERDICT   by the lowest rank that has a reason     what every rank raises
BYE       this rank leaves the communicator        its STATE, and the error that ends it, if any
========  =======================================  ==============================================================

Ranks disagree if they describe the operation of the same order differently. A rank that is ahead, behind, or slow
proves nothing. All that is known of other ranks comes from their messages; one in the caller's code does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hpcreduce.runtime.recorder import Recorder, name, short
from hpcreduce.units import format_ranks

STATE, JOIN, VERDICT, BYE = 1, 2, 3, 4

COLLECT = 0.3
"""Seconds after which a verdict is given without those who have not joined."""

DECIDER = 2.0
"""Seconds after which the next rank decides in place of one that does not."""

RETURN = 1.0
"""Seconds in which a rank may take back that it has left."""

PARTING = 1.0
"""Seconds for which a rank that leaves waits for the others to leave as well, so that no goodbye stays untaken."""

GROUPS = 8
"""Groups of ranks that a verdict lists."""

LONGEST = 4000
"""Characters of the description of a call that the others are told."""

FAR = 128
"""Ranks from which on a rank that leaves tells only those at distances of a power of two."""

_ORDER = ("timeout", "exit", "mismatch", "peer")  # of reasons to give up, the most telling last

Message = tuple[int, dict[str, Any], list[int]]
"""Kind, content, receivers."""


class Verdict(NamedTuple):
    """What every rank raises.

    Attributes
    ----------
    kind : str
        ``mismatch``, ``exit`` (a rank has left), ``peer`` (a rank has failed), ``death`` (and left) or ``timeout``.
    text : str
    ranks : tuple of int
        Those that did not come, have left, or have failed.
    """

    kind: str
    text: str
    ranks: tuple[int, ...]


class Inquiry:
    """One rank's part in it.

    Parameters
    ----------
    rank, size : int
    recorder : Recorder
        What this rank did.
    circumstances : callable
        Returns two texts: what the pending operation waits for, and what this rank waits for elsewhere.

    Attributes
    ----------
    outbox : list of Message
        To be sent by the caller, who empties it.
    frozen : bool
        This rank has given up: it must not complete anything on this communicator any more.
    verdict : Verdict or None
    gone : dict
        Rank -> its BYE.
    """

    def __init__(self, rank: int, size: int, recorder: Recorder, circumstances: Callable[[], tuple[str, str]]) -> None:
        self.rank, self.size = rank, size
        self.recorder, self.circumstances = recorder, circumstances
        self.outbox: list[Message] = []
        self.verdict: Verdict | None = None
        self.gone: dict[int, dict[str, Any]] = {}
        self._views: dict[int, dict[str, Any]] = {}
        self._joined: dict[int, str] = {}
        self._details: dict[int, str] = {}
        self._since = 0.0
        self._told: tuple[Any, ...] = ()
        self._sweep: list[int] = []
        self._parting: list[int] = []
        self._heard: set[int] = set()  # who has said goodbye, be it that it came back since

    @property
    def frozen(self) -> bool:
        """Whether this rank has given up."""
        return self.rank in self._joined

    def receive(self, source: int, kind: int, content: dict[str, Any]) -> None:
        """Take a message."""
        if kind in (STATE, JOIN) and not self._failed(source):
            self.gone.pop(source, None)  # it makes calls at the exit of the interpreter
        if kind == STATE:
            self._views[source] = content
        elif kind == JOIN:
            self._views[source] = content["state"]
            self._joined.setdefault(source, content["reason"])
            self._details[source] = content["detail"]
        elif kind == BYE:
            self.gone[source] = content
            self._heard.add(source)
        elif self.verdict is None:
            self.verdict = Verdict(content["kind"], content["text"], tuple(content["ranks"]))

    def look(self, now: float, peers: Iterable[int], concerned: bool = True) -> None:
        """Take one step, since nothing gets on here.

        Parameters
        ----------
        now : float
            By a clock of seconds.
        peers : iterable of int
            The ranks that are waited for.
        concerned : bool
            This rank has something pending here. Otherwise it only answers those who have given up.
        """
        if self.verdict:
            return
        if not self.frozen:
            if self._joined:
                self.join("", now)
            elif concerned and self._differs():
                self.join("mismatch", now)
            elif concerned and (left := self._deserted(now)):
                self.join("peer" if left["why"] else "exit", now, left["why"])
            elif concerned:
                self._tell(peers)
        if self.frozen:
            self._decide(now)

    def join(self, reason: str, now: float, detail: str = "") -> None:
        """Give up, and tell all; `detail` is what only this rank knows of it."""
        if self.frozen or self.verdict:
            return
        self._since = now
        self._joined[self.rank], self._details[self.rank] = reason, detail
        self._views[self.rank] = self._state()
        self._send(JOIN, {"reason": reason, "detail": detail, "state": self._views[self.rank]}, self._others())

    def fail(self, text: str) -> None:
        """Tell all that this rank has failed: the verdict is known at once."""
        if self.verdict is None:
            self._declare(Verdict("peer", text, (self.rank,)))

    def come_back(self) -> None:
        """Tell that this rank has not left after all."""
        self._heard.clear()
        self._send(STATE, self._state(), self._others())

    def leave(self, why: str, clock: float) -> None:
        """Tell that this rank leaves; `why` is the error that ends it, or empty, `clock` the time on all hosts."""
        everyone = [rank for rank in range(self.size) if rank != self.rank]  # who left just now may wait for us
        receivers = everyone if self.size <= FAR else self._near()
        self._parting = [rank for rank in receivers if clock - self.gone.get(rank, {"clock": clock})["clock"] < PARTING]
        self._send(BYE, {"state": self._state(), "why": why, "clock": clock}, self._parting)

    @property
    def parted(self) -> bool:
        """Whether all have said goodbye whom this rank told that it leaves."""
        return self._heard >= set(self._parting)

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank and not self._failed(rank)]

    def _failed(self, rank: int) -> bool:
        """Whether the rank has left for good; another that has left may come back."""
        return bool(self.gone.get(rank, {"why": ""})["why"])

    def _near(self) -> list[int]:
        """Return all ranks at distances of a power of two: those that most schedules talk to."""
        steps = [1 << bit for bit in range((self.size - 1).bit_length())]
        near = [(self.rank + way * step) % self.size for step in steps for way in (1, -1)]
        return [rank for rank in dict.fromkeys(near) if rank != self.rank and not self._failed(rank)]

    def _send(self, kind: int, content: dict[str, Any], receivers: list[int]) -> None:
        self.outbox.append((kind, content, receivers))

    def _state(self) -> dict[str, Any]:
        """Return what this rank did, for the others."""
        waiting, elsewhere = self.circumstances()
        pending, done = self.recorder.pending, self.recorder.completed()[-2:]
        known = self.recorder.known()
        asked = {tuple(call[:2]) for view in self._views.values() for call in view["pending"]}
        asked -= {entry.order for entry in [*pending, *done]}
        done = [*(known[order] for order in sorted(asked & known.keys())[:4]), *done]  # what others still wait for

        def told(entries: Iterable[Any]) -> list[Any]:
            return [[*entry.order, entry.fingerprint, entry.what[:LONGEST], entry.at] for entry in entries]

        return {
            "next": self.recorder.sequence + 1,
            "plans": self.recorder.plans,
            "starts": list(self.recorder.starts.items()),
            "pending": told(pending[:4]),
            "done": told(done),
            "waiting": waiting,
            "elsewhere": elsewhere,
        }

    def _tell(self, peers: Iterable[int]) -> None:
        """Send our state once in each situation: to those waited for first, then to some of the others at a time."""
        pending = tuple(entry.order for entry in self.recorder.pending)
        some = 1 + self.size // 64
        if pending != self._told:
            self._told = pending
            first = [peer for peer in dict.fromkeys(peers) if peer != self.rank and not self._failed(peer)]
            self._sweep = list(dict.fromkeys([*first, *self._near(), *self._others()]))
            some = max(some, len(first))
        if self._sweep:
            self._send(STATE, self._state(), self._sweep[:some])
            del self._sweep[:some]

    def _differs(self) -> bool:
        """Return whether any rank describes an operation otherwise than this one does."""
        states = [*self._views.values(), *(farewell["state"] for farewell in self.gone.values())]
        mine = self.recorder.known()
        for state in states:
            for plan, number, fingerprint, *_ in state["pending"] + state["done"]:
                if (plan, number) in mine and mine[plan, number].fingerprint != fingerprint:
                    return True
        return False

    def _deserted(self, now: float) -> dict[str, Any] | None:
        """Return the goodbye of a rank that has left and that something pending needs, `None` if there is none."""
        orders = [entry.order for entry in self.recorder.pending]
        for farewell in self.gone.values():
            if now - farewell.setdefault("seen", now) < RETURN and not farewell["why"]:
                continue
            state = farewell["state"]
            left = {(plan, number) for plan, number, *_ in state["pending"]}
            starts = dict(state["starts"])
            for plan, number in orders:
                unknown = number if plan <= state["plans"] else 0  # too long ago to be told
                made = starts.get(plan, unknown) if plan else state["next"] - 1
                if number > made or (plan, number) in left:
                    return farewell
        return None

    def _decide(self, now: float) -> None:
        """Give the verdict, if it is this rank's turn."""
        reasoned = sorted(self._joined, key=lambda rank: (not self._joined[rank], rank))  # the others know no more
        here = [rank for rank in reasoned if rank not in self.gone]
        turn = here.index(self.rank)
        everyone = len({*here, *self.gone}) == self.size
        if (turn == 0 and everyone) or now - self._since > COLLECT + turn * DECIDER:
            self._declare(self._judge(here))

    def _declare(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self._send(VERDICT, {"kind": verdict.kind, "text": verdict.text, "ranks": list(verdict.ranks)}, self._others())

    def _judge(self, here: list[int]) -> Verdict:
        """Return the verdict on what those have told who joined."""
        kind = max((self._joined[rank] or "timeout" for rank in here), key=_ORDER.index)
        states = {rank: self._views[rank] for rank in here}
        states |= {rank: farewell["state"] for rank, farewell in self.gone.items()}
        absent = [
            rank
            for rank in range(self.size)
            if rank not in self.gone and not states.get(rank, {"pending": ()})["pending"]
        ]
        failed = [rank for rank, farewell in self.gone.items() if farewell["why"]]
        order = _first_difference(states)
        detail = next((self._details[rank] for rank in here if self._joined[rank] == kind and self._details[rank]), "")
        if failed or kind == "peer":  # whose goodbye may have reached others only
            why = "\n".join(self.gone[rank]["why"] for rank in failed) or detail
            who = named(failed) if failed else "a rank"
            return Verdict("death", f"{who} failed and left:\n{why.rstrip()}", tuple(failed))
        ranks: tuple[int, ...] = ()
        if order:
            kind, head = "mismatch", f"the ranks disagree about call {name(order)} on this communicator"
        elif kind == "exit":
            ranks = tuple(sorted(self.gone))
            head = f"{named(ranks)} left, and others wait for it"
        elif kind == "mismatch":
            head = f"what arrived cannot be right, {detail}"
        else:
            ranks = tuple(absent)
            head = f"{detail}, {named(absent)} did not come" if absent else f"{detail}, though all ranks are there"
        lines = self._table(states, order, waits=kind == "timeout" and not absent)
        return Verdict(kind, head + ":\n" + "\n".join(lines), ranks)

    def _table(self, states: dict[int, dict[str, Any]], order: tuple[int, int] | None, waits: bool) -> list[str]:
        """Return who does what, and on request what each `waits` for, one line per group of ranks."""
        groups: dict[str, list[int]] = {}
        around = _differ_at(states, order)
        for rank in range(self.size):
            if rank in states:
                text = _account(states[rank], order, around, rank in self.gone)
                if waits and states[rank]["waiting"]:
                    text += f": {states[rank]['waiting']}"
            else:
                text = "in no call on this communicator" + _last(self._views.get(rank), states)
            groups.setdefault(text, []).append(rank)
        lines = [f"  {named(ranks)}: {text}" for text, ranks in groups.items()]
        if len(lines) > GROUPS:
            lines[GROUPS - 1 :] = [f"  ... and {len(lines) - GROUPS + 1} more groups of ranks"]
        return lines


def _first_difference(states: dict[int, dict[str, Any]]) -> tuple[int, int] | None:
    """Return the lowest order that ranks describe differently."""
    seen: dict[tuple[int, int], set[int]] = {}
    for state in states.values():
        for plan, number, fingerprint, *_ in state["pending"] + state["done"]:
            seen.setdefault((plan, number), set()).add(fingerprint)
    return min((order for order, fingerprints in seen.items() if len(fingerprints) > 1), default=None)


def _differ_at(states: dict[int, dict[str, Any]], order: tuple[int, int] | None) -> int:
    """Return the first character in which the descriptions of a call differ, 0 if they do not."""
    calls = [call for state in states.values() for call in state["pending"] + state["done"]]
    texts = {what for plan, number, _, what, _ in calls if (plan, number) == order}
    one, other = min(texts, default=""), max(texts, default="")  # in between no two differ earlier
    return next((index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)


def _account(state: dict[str, Any], order: tuple[int, int] | None, around: int, gone: bool) -> str:
    """Return what one rank did, in words; of long ones those `around` a character."""
    calls = state["pending"] + state["done"]
    chosen = [call for call in calls if (call[0], call[1]) == order] or state["pending"][:1]
    text = ""
    if chosen:
        plan, number, _, what, at = chosen[0]
        waits = chosen[0] in state["pending"]
        text = f"{'in' if waits else 'completed'} call {name((plan, number))}, {short(what, around)}, at {at}"
    elif not gone:
        text = f"in no call here{_done(state)}"
    if gone:
        text = f"left after {state['next'] - 1} calls" + (f", {text}" if text else _done(state))
    if state["elsewhere"]:
        text += f"; waits on another communicator: {state['elsewhere']}"
    return text


def _done(state: dict[str, Any] | None) -> str:
    if not state or not state["done"]:
        return ""
    plan, number, _, what, at = state["done"][-1]
    return f", last completed {name((plan, number))}, {short(what)}, at {at}"


def _last(view: dict[str, Any] | None, states: dict[int, dict[str, Any]]) -> str:
    """Return what is known of a rank that does not answer: what it told earlier, or what the others completed."""
    told = _done(view)
    others = next(filter(None, map(_done, states.values())), "")
    return told or others.replace(", last", "; others last", 1)


def named(ranks: Iterable[int]) -> str:
    """Return ranks in words: ``rank 3``, ``ranks 0-2,5``."""
    ranks = list(ranks)
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}"
