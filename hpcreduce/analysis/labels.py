"""Symbolic values for the proof: who has contributed to an element, in which way combined.

A label is a number that stands for an interned expression of contributions. Two labels are equal only if they combine
the same contributions in the same way.
"""

from __future__ import annotations

from hpcreduce.errors import ProofError
from hpcreduce.schedule import LEFT, RIGHT

Memory = list[int]
"""The labels in a rank's array."""


class Labels:
    """Interned expressions. Label ``rank * count + i`` is what `rank` contributes to element i."""

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count
        self.element = [index for _ in range(size) for index in range(count)]
        self.members = [1 << rank for rank in range(size) for _ in range(count)]
        self.ordered: list[tuple[int, int] | None] = [
            (rank, rank + 1) for rank in range(size) for _ in range(count)
        ]  # the consecutive ranks that are combined in rank order
        self._known: dict[tuple[int, int], int] = {}

    def contribution(self, rank: int) -> Memory:
        """Return the array that `rank` begins with."""
        return list(range(rank * self.count, (rank + 1) * self.count))

    def combine(self, a: int, b: int) -> int:
        """Return the label of `a` and `b` combined in this order."""
        found = self._known.get((a, b))
        return self._intern(a, b) if found is None else found

    def _intern(self, a: int, b: int) -> int:
        if self.element[a] != self.element[b]:
            raise ProofError(f"[4] element {self.element[a]} is combined with element {self.element[b]}")
        if twice := self.members[a] & self.members[b]:
            raise ProofError(f"[4] element {self.element[a]} gets the contribution of {ranks_of(twice)} twice")
        left, right = self.ordered[a], self.ordered[b]
        self.element.append(self.element[a])
        self.members.append(self.members[a] | self.members[b])
        self.ordered.append((left[0], right[1]) if left and right and left[1] == right[0] else None)
        self._known[a, b] = len(self.element) - 1
        return len(self.element) - 1


def ranks_of(members: int) -> str:
    """Return the ranks of a set of bits, in words."""
    ranks = [rank for rank in range(members.bit_length()) if members >> rank & 1]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def write(memory: Memory, start: int, data: Memory, side: str | None, labels: Labels) -> None:
    """Overwrite a stretch of memory, or reduce into it."""
    stop = start + len(data)
    if side == RIGHT:
        data = list(map(labels.combine, memory[start:stop], data))
    elif side == LEFT:
        data = list(map(labels.combine, data, memory[start:stop]))
    memory[start:stop] = data
