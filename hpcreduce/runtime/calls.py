"""Calls, as they are prepared once for all of a kind. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from typing import Any, NamedTuple, TypeAlias

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.runtime.meeting import Met
from hpcreduce.runtime.shared import Redundant, Shared
from hpcreduce.runtime.stream import Stream
from hpcreduce.selection import Choice

Mover: TypeAlias = Stream | Shared | Redundant | Met
"""What reduces an array step by step: ``start``, ``progress``, ``abandon``, ``peer``, ``where``."""


class Call(NamedTuple):
    """One kind of call, prepared: the same for every call of this shape, dtype, op and algorithm.

    Attributes
    ----------
    key : tuple
        What is kept under this key stands for all calls of this kind.
    work, result : numpy.dtype
    choice : Choice
    fingerprint : int
        32 bits of what the ranks must agree on.
    stream : Mover or None
        None where the library's own call runs it at once.
    op : mpi4py.MPI.Op or None
        What that call is given; `None` for an operation of the user's own, which belongs to one call only.
    text : str
        The call in words.
    codec : Codec or None
        Where messages have another type than what is reduced in.
    plan : Plan or None
        For arrays that the library reduces in an engine: a plan that takes all calls of this kind in turn.
    engine : tuple or None
        The kind of engine that the library runs it in.
    head : Head or None
        What tells ranks that differ apart there, if the call is checked.
    checked : bool
        Ranks that differ are found before any gets a result.
    room : int
        Bytes of a stage of the room in node-shared memory that it needs, or 0.
    where_they_are : bool
        Node-shared arrays are reduced where they are, if all ranks pass such arrays.
    """

    key: tuple[Any, ...]
    work: Any
    result: Any
    choice: Choice
    fingerprint: int
    stream: Mover | None
    op: Any
    text: str
    codec: Any = None
    plan: Any = None
    engine: Any = None
    head: Any = None
    checked: bool = True
    room: int = 0
    where_they_are: bool = False

    def __str__(self) -> str:
        return self.text

    def stale(self) -> bool:
        """Whether the stream is in flight, or the table has another algorithm under this name by now."""
        row = self.choice.algorithm
        return self.stream is not None and (self.stream.busy or ALGORITHMS.get(row.name, row) is not row)


def fingerprint(*description: Hashable) -> int:
    """Return 32 bits of what a call is."""
    return zlib.crc32(repr(description).encode())
