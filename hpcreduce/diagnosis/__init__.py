"""Which rank is behind, in which collective, at which source line: told from the dumps of a job's ranks. Pure.

Who is behind and waits for nobody comes first; who waits for a rank that itself waits elsewhere comes last.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hpcreduce.diagnosis.dumps import VERSION, Dump
from hpcreduce.diagnosis.findings import Finding, breaks, broken, finding_of, idle
from hpcreduce.diagnosis.stalls import (
    KINDS,
    cycle_through,
    kind_of,
    links_between,
    places_of,
    stalls_of,
    waits_of,
    worth_telling,
)
from hpcreduce.diagnosis.text import MOST_GROUPS, written
from hpcreduce.diagnosis.words import NO_DUMP, agreeing, cycle_sentence, ranks_of
from hpcreduce.units import format_duration, plural

FAR_APART = 60.0
"""Seconds between dumps that are worth a note."""

WIDTH = 100
"""Columns of the verdict."""


class Diagnosis(NamedTuple):
    """One sentence, what it rests on, and what casts doubt on it."""

    verdict: str
    findings: tuple[Finding, ...]
    dumps: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = textwrap.wrap(
            self.verdict, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for finding in self.findings[:MOST_GROUPS]:
            lines += ["", *written(finding)]
        if len(self.findings) > MOST_GROUPS:
            lines += ["", f"... and {plural(len(self.findings) - MOST_GROUPS, 'more finding')}"]
        return "\n".join([*lines, "", self.dumps])

    def document(self) -> dict[str, Any]:
        """Return it as plain data, whole."""
        findings = [
            finding._asdict()
            | {
                "groups": [
                    {"ranks": group.ranks, "world": group.world, "seconds": group.seconds} | group.account._asdict()
                    for group in finding.groups
                ]
            }
            for finding in self.findings
        ]
        return {"verdict": self.verdict, "notes": self.notes, "dumps": self.dumps, "findings": findings}


def diagnose(dumps: Sequence[Dump]) -> Diagnosis:
    """Return what the dumps of a job tell; at least one is needed.

    Parameters
    ----------
    dumps : sequence of Dump
        One per world rank, of one job. Where the sizes differ, those of the latest job count.

    Returns
    -------
    Diagnosis
        Its text begins with the verdict.

    Examples
    --------
    >>> from hpcreduce.diagnosis.dumps import Call, Communicator
    >>> early = Call((0, 1), "allreduce(op sum)", 7, "train.py:40 in step", 100.0, True, "round 0")
    >>> rank0 = Dump(1, 0, 2, "a", 1, 112.0, "SIGUSR1", (), (Communicator("0", 0, (0, 1), "", (early,)),))
    >>> rank1 = Dump(1, 1, 2, "a", 2, 112.0, "SIGUSR1", ("train.py:33 in load",), ())
    >>> print(diagnose([rank0, rank1]).verdict)
    rank 1 is behind: it has not started #1 of communicator 0, where rank 0 waits, for 12 s
    """
    size = max(dumps, key=lambda dump: dump.time).size
    job = {dump.rank: dump for dump in dumps if dump.size == size}
    missing = [rank for rank in range(size) if rank not in job]
    places = places_of(job)
    stalls = [stall for place in places for stall in stalls_of(place)]
    waits = {rank: waits_of(dump) for rank, dump in job.items()}
    links = links_between(stalls, waits)
    kinds = [kind_of(index, stalls, links) for index in range(len(stalls))]
    shown = sorted(worth_telling(stalls, links), key=lambda index: (KINDS.index(kinds[index]), stalls[index].since))
    findings = [finding_of(index, kinds[index], stalls, shown, waits) for index in shown]
    told = {id(stall.place) for stall in stalls}
    findings += [broken(place) for place in places if breaks(place) and id(place) not in told]
    findings = findings or [idle(job, size)]
    verdict = findings[0].summary
    if findings[0].kind == "deadlock":
        verdict = cycle_sentence(cycle_through(shown[0], links), stalls, links)
    if missing and NO_DUMP not in verdict:
        verdict = f"{verdict}; {ranks_of(missing)} {NO_DUMP}"
    return Diagnosis(verdict, tuple(findings), _census(job, size), tuple(_notes(dumps, size, job)))


def _census(job: dict[int, Dump], size: int) -> str:
    """Say which ranks left a dump, and what for; what nobody asked for comes first."""
    reasons: dict[str, list[int]] = {}
    for rank, dump in job.items():
        reasons.setdefault(dump.reason, []).append(rank)
    hosts = len({dump.host for dump in job.values()})
    ordered = sorted(reasons.items(), key=lambda item: (item[0].startswith("SIG"), len(item[1])))
    lines = [f"  {ranks_of(ranks)}: {reason}" for reason, ranks in ordered[:MOST_GROUPS]]
    if len(ordered) > MOST_GROUPS:
        lines.append(f"  ... and {len(ordered) - MOST_GROUPS} more")
    return "\n".join([f"{plural(len(job), 'dump')} of {plural(size, 'rank')}, on {plural(hosts, 'host')}:", *lines])


def _notes(dumps: Sequence[Dump], size: int, job: dict[int, Dump]) -> Iterator[str]:
    others = sorted({dump.size for dump in dumps} - {size})
    if others:
        ranks = [dump.rank for dump in dumps if dump.size != size]
        yield (
            f"dumps of different jobs: the latest is of {plural(size, 'rank')}; those of {ranks_of(ranks)} are left "
            f"out, since they are of jobs of {', '.join(map(str, others))} ranks"
        )
    strange = sorted({dump.version for dump in dumps} - {VERSION})
    if strange:
        ranks = [dump.rank for dump in dumps if dump.version in strange]
        yield (
            f"the {agreeing(ranks, 'dump', 'dumps')} of {ranks_of(ranks)} {agreeing(ranks, 'has', 'have')} version "
            f"{', '.join(map(str, strange))}, and {VERSION} is known here: what they say may mean something else"
        )
    first, last = (pick(job.values(), key=lambda dump: dump.time) for pick in (min, max))
    if last.time - first.time > FAR_APART:
        yield (
            f"the dumps were made {format_duration(last.time - first.time)} apart, the first on rank {first.rank}, the "
            f"last on rank {last.rank}: if these are clocks that differ, or old files, do not trust what follows"
        )
