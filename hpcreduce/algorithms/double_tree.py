"""Two complementary binary trees, each of which reduces and broadcasts half of the array, piece by piece.

Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35
(2009), doi:10.1016/j.parco.2009.09.001. The trees are those of NCCL 2.4 (Jeaugey, 2019).
"""

from __future__ import annotations

from typing import NamedTuple

from hpcreduce.schedule import RIGHT, Recv, Rounds, Send, Span, partition

PIECE = 8192
"""Elements of the array for which there is one more piece of each half."""

MOST_PIECES = 16


class Place(NamedTuple):
    """Where a rank stands in a tree: its level (0 at the root), and the ranks above and below it."""

    level: int
    parent: int | None
    children: list[int]


def double_tree(rank: int, size: int, count: int) -> Rounds:
    """Yield the rounds of `rank`: it is (but for one rank at most) a leaf of one of the trees.

    Notes
    -----
    ``2 ceil(lg size) + pieces - 1`` rounds: in each, a piece goes up a level, and one that has been at the root goes
    down a level. A rank sends each half to its parent and to up to two children, about twice the array in all. The
    second tree is the first one mirrored (even `size`) or shifted by a rank (odd `size`), so the operation must
    commute.

    Four ranks, ``python -m hpcreduce draw double_tree --ranks 4``::

        double_tree: 4 ranks, 4 elements in 4 chunks, 4 rounds, 12 messages
        round   0                  1       2       3
        rank 0  23>1               +01<2   01>2    =23<1
        rank 1  01>2 +23<2 +23<0   23>3    =23<3   23>2 23>0 =01<2
        rank 2  23>1 +01<1 +01<3   01>0    =01<0   01>1 01>3 =23<1
        rank 3  01>2               +23<1   23>1    =01<2
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs; =c<r: receive c from r, overwrite;
        23: chunks 2 and 3
    """
    height = levels(size)
    halves = [cut(half, pieces(count)) for half in partition(count, 2)]
    places = list(zip(halves, trees(rank, size), strict=True))
    for step in range(double_tree_rounds(size, count)):
        verbs: list[Send | Recv] = []
        for half, (level, parent, children) in places:
            for piece in at(half, step - height + level + 1):
                verbs += [Recv(child, piece, RIGHT) for child in children]
            if parent is not None:
                verbs += [Send(parent, piece) for piece in at(half, step - height + level)]
                verbs += [Recv(parent, piece, None) for piece in at(half, step - height - level + 1)]
            for piece in at(half, step - height - level):
                verbs += [Send(child, piece) for child in children]
        yield tuple(verbs)


def levels(size: int) -> int:
    """Return the height of the trees: ``ceil(lg size)``."""
    return (size - 1).bit_length()


def pieces(count: int) -> int:
    """Return into how many pieces each half is cut."""
    return min(MOST_PIECES, 1 + count // PIECE)


def cut(span: Span, parts: int) -> list[Span]:
    """Cut a span into near-equal parts."""
    return [Span(span.start + start, span.start + stop) for start, stop in partition(span.length, parts)]


def at(parts: list[Span], index: int) -> list[Span]:
    """Return the part of that number, or nothing."""
    return parts[index : index + 1] if index >= 0 else []


def trees(rank: int, size: int) -> list[Place]:
    """Return the rank's places in both trees."""
    first = place(rank, size)
    if size % 2:
        level, parent, children = place((rank - 1) % size, size)
        back = [(number + 1) % size for number in ([] if parent is None else [parent]) + children]
    else:
        level, parent, children = place(size - 1 - rank, size)
        back = [size - 1 - number for number in ([] if parent is None else [parent]) + children]
    return [first, Place(level, None, back) if parent is None else Place(level, back[0], back[1:])]


def place(number: int, size: int) -> Place:
    """Return a place in the tree whose leaves are the odd numbers, and whose root, 0, has one child."""
    level, above = 0, parent_of(number, size)
    parent = above
    while above is not None:
        level, above = level + 1, parent_of(above, size)
    lowest = number & -number or 1 << levels(size)
    candidates = [number - lowest // 2] if number and lowest > 1 else []
    reach = lowest // 2
    while reach and number + reach >= size:
        reach //= 2
    return Place(level, parent, candidates + ([number + reach] if reach else []))


def parent_of(number: int, size: int) -> int | None:
    """Return the number above; `None` for the root."""
    if number == 0:
        return None
    lowest = number & -number
    up = (number ^ lowest) | lowest << 1
    return up if up < size else number ^ lowest


def double_tree_rounds(size: int, count: int) -> int:
    """Rounds of `double_tree`."""
    return 2 * levels(size) + pieces(count) - 1 if size > 1 else 0


def double_tree_volume(rank: int, size: int, count: int) -> int:
    """Elements that `rank` sends: each half to all its neighbours in a tree."""
    ends = zip(partition(count, 2), trees(rank, size), strict=True)
    return sum(half.length * (len(place.children) + (place.parent is not None)) for half, place in ends)
