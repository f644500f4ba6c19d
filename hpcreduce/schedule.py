"""The language that every room speaks: spans, two verbs, rounds.

Rules that hold here:

* A schedule is made of integers only. It holds no pointer, dtype, operation or communicator.
* Spans count elements, never bytes.
* A round is the tuple of verbs that are posted together. Its sends carry the values from before the round; its
  reductions apply after, in the order of the tuple; a plain `Recv` overlaps neither a `Send` nor another `Recv` of its
  round. An empty span still travels, as a message of zero bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

LEFT = "left"
"""A receive with this side stores ``theirs op mine``."""

RIGHT = "right"
"""A receive with this side stores ``mine op theirs``."""


class Span(NamedTuple):
    """The elements ``start`` to ``stop - 1`` of the array that is reduced."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """Elements in the span."""
        return self.stop - self.start

    def overlaps(self, other: Span) -> bool:
        """Whether the two spans share an element; an empty span shares none."""
        return max(self.start, other.start) < min(self.stop, other.stop)


class Send(NamedTuple):
    """Send the elements of `span` to rank `peer`."""

    peer: int
    span: Span


class Recv(NamedTuple):
    """Receive `span` from rank `peer`; `side` is `None` (overwrite), `LEFT` or `RIGHT` (reduce)."""

    peer: int
    span: Span
    side: str | None


Round: TypeAlias = "tuple[Send | Recv, ...]"
Rounds: TypeAlias = Iterator[Round]


def partition(count: int, parts: int) -> list[Span]:
    """Cut `count` elements into `parts` consecutive spans whose lengths differ by one at most.

    Examples
    --------
    >>> [tuple(span) for span in partition(7, 3)]
    [(0, 2), (2, 4), (4, 7)]
    """
    edges = [count * part // parts for part in range(parts + 1)]
    return [Span(start, stop) for start, stop in pairwise(edges)]
