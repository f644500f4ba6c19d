"""The dumps of a job: what each rank has written of its collective calls, read and checked.

Rules that hold here:

* One JSON file per rank, ``rank-<world rank>.json``; its fields are those of `Dump`, `Communicator` and `Call`. Others
  are passed over.
* Times are seconds since the epoch by the clock of the rank's host.
* A file that is no dump does not hide the others.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from hpcreduce.errors import DumpError
from hpcreduce.fields import Fields, load
from hpcreduce.runtime.recorder import KEPT as KEPT
from hpcreduce.runtime.recorder import VERSION as VERSION
from hpcreduce.units import plural

MOST_SECONDS = 1e12
"""Times beyond this are wrong."""


class Call(NamedTuple):
    """A collective call.

    `order` is (0, sequence number) for an ordinary call, (k, start number) for one of the k-th persistent plan. Calls
    of the same order are the same collective on all members, and have the same `fingerprint` where these agree. `at` is
    the source line that started it, `pending` whether it is not complete, `waiting` what for.
    """

    order: tuple[int, int]
    what: str
    fingerprint: int
    at: str
    started: float
    pending: bool
    waiting: str


class Communicator(NamedTuple):
    """A communicator as one of its members sees it.

    `id` is the same on all members, `members` their world ranks, in order of rank, `broken` why it cannot be used any
    more, `calls` the last ones, the oldest first.
    """

    id: str
    rank: int
    members: tuple[int, ...]
    broken: str
    calls: tuple[Call, ...]


class Dump(NamedTuple):
    """What one rank has written: `stack` is where its main thread was, the innermost line last."""

    version: int
    rank: int
    size: int
    host: str
    pid: int
    time: float
    reason: str
    stack: tuple[str, ...]
    communicators: tuple[Communicator, ...]


def read(folder: str) -> tuple[list[Dump], list[str]]:
    """Return the dumps in a folder, in order of rank, and what is wrong with the files that are none.

    Raises
    ------
    DumpError
        The folder cannot be read, or has no dump.
    """
    try:
        names = [name for name in os.listdir(folder) if re.fullmatch(r"rank-\d{1,9}\.json", name, re.ASCII)]
    except (OSError, ValueError) as error:
        raise DumpError(f"cannot read {folder}: {getattr(error, 'strerror', None) or error}") from None
    if not names:
        raise DumpError(f"no dump in {folder}: expected files rank-0.json, rank-1.json, ...")
    dumps, wrong = [], []
    for name in sorted(names, key=lambda name: (len(name), name)):
        try:
            dumps.append(_read_one(folder, name))
        except DumpError as error:
            wrong.append(str(error))
    if not dumps:
        others = len(wrong) - 1
        more = f" (and {plural(others, 'more file')} that {'is' if others == 1 else 'are'} no dump)" if others else ""
        raise DumpError(f"no dump in {folder}: {wrong[0]}{more}")
    return dumps, wrong


def _read_one(folder: str, name: str) -> Dump:
    dump = checked(load(os.path.join(folder, name), name, DumpError), name)
    if name != f"rank-{dump.rank}.json":
        raise DumpError(f"{name}: rank: found {dump.rank}, which the name of the file contradicts")
    return dump


def checked(document: object, where: str) -> Dump:
    """Return the dump that a JSON document is, checked; `where` names it in errors.

    Raises
    ------
    DumpError
        A field is missing, of a wrong type or out of range.
    """
    top = Fields(document, where, DumpError)
    size = top.whole("size", 1)
    return Dump(
        top.whole("version", 1),
        top.whole("rank", 0, size - 1),
        size,
        top.text("host"),
        top.whole("pid", 0),
        _seconds(top, "time"),
        top.text("reason"),
        tuple(top.texts("stack")),
        tuple(_communicator(each) for each in top.objects("communicators")),
    )


def _seconds(top: Fields, name: str) -> float:
    return top.number(name, "seconds since the epoch", 0, MOST_SECONDS)


def _communicator(fields: Fields) -> Communicator:
    members = tuple(fields.wholes("members"))
    if not members or len(set(members)) < len(members):
        raise fields.wrong("members", "different world ranks", members)
    return Communicator(
        fields.text("id"),
        fields.whole("rank", 0, len(members) - 1),
        members,
        fields.text("broken"),
        tuple(_call(each) for each in fields.objects("calls")),
    )


def _call(fields: Fields) -> Call:
    order = fields.wholes("order")
    if len(order) != 2:
        raise fields.wrong("order", "[plan, number]", order)
    return Call(
        (order[0], order[1]),
        fields.text("what"),
        fields.whole("fingerprint"),
        fields.text("at"),
        _seconds(fields, "started"),
        fields.truth("pending"),
        fields.text("waiting"),
    )
