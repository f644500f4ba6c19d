"""Binomial tree all-reduce: reduce to rank 0, then broadcast from it. Few rounds, uneven traffic.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform.
Comput. Appl. 19 (2005), section 4.4 and 4.1, doi:10.1177/1094342005051521.
"""

from __future__ import annotations

from hpcreduce.schedule import RIGHT, Recv, Rounds, Send, Span


def tree(rank: int, size: int, count: int) -> Rounds:
    """Yield the rounds of `rank`: at distance 1, 2, 4, ... the upper half of each block hands its partial result down.

    Notes
    -----
    ``2 ceil(lg size)`` rounds for any `size`; a rank that has nothing to do in a round yields an empty one. Rank 0
    sends the whole array ``ceil(lg size)`` times. A rank's partial always covers the consecutive ranks from itself
    on, so ranks are combined in rank order and the operation need not commute.

    Four ranks, ``python -m hpcreduce draw tree --ranks 4``::

        tree: 4 ranks, 4 elements in 4 chunks, 4 rounds, 6 messages
        round   0        1        2        3
        rank 0  +all<1   +all<2   all>2    all>1
        rank 1  all>0    .        .        =all<0
        rank 2  +all<3   all>0    =all<0   all>3
        rank 3  all>2    .        .        =all<2
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs; =c<r: receive c from r, overwrite;
        .: nothing; all: the whole array
    """
    yield from tree_reduce(rank, size, count)
    yield from tree_bcast(rank, size, count)


def tree_reduce(rank: int, size: int, count: int, root: int = 0, ordered: bool = True) -> Rounds:
    """Yield the rounds that reduce to `root`.

    In rank order the tree ends at rank 0, which hands the result on; else `root` is the root of the tree.

    Notes
    -----
    ``ceil(lg size)`` rounds, and one more if rank 0 hands the result on. Each rank but the root of the tree sends the
    whole array to its parent.

    Four ranks, ``python -m hpcreduce draw reduce --ranks 4``::

        reduce: 4 ranks, 4 elements in 4 chunks, 2 rounds, 3 messages
        round   0        1
        rank 0  +all<1   +all<2
        rank 1  all>0    .
        rank 2  +all<3   all>0
        rank 3  all>2    .
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs; .: nothing; all: the whole array
    """
    whole = Span(0, count)
    top = 0 if ordered else root
    place = (rank - top) % size
    for distance in distances(size):
        if place % (2 * distance) == distance:
            yield (Send((rank - distance) % size, whole),)
        elif place % (2 * distance) == 0 and place + distance < size:
            yield (Recv((rank + distance) % size, whole, RIGHT),)
        else:
            yield ()
    if top != root:
        yield (Send(root, whole),) if rank == top else (Recv(top, whole, None),) if rank == root else ()


def tree_bcast(rank: int, size: int, count: int, root: int = 0) -> Rounds:
    """Yield the rounds that hand what `root` holds to all, the way of `tree_reduce` back.

    Notes
    -----
    ``ceil(lg size)`` rounds; `root` sends the whole array in each.

    Four ranks, ``python -m hpcreduce draw bcast --ranks 4``::

        bcast: 4 ranks, 4 elements in 4 chunks, 2 rounds, 3 messages
        round   0        1
        rank 0  all>2    all>1
        rank 1  .        =all<0
        rank 2  =all<0   all>3
        rank 3  .        =all<2
        c>r: send chunk c to rank r; =c<r: receive c from r, overwrite; .: nothing; all: the whole array
    """
    whole = Span(0, count)
    place = (rank - root) % size
    for distance in reversed(distances(size)):
        if place % (2 * distance) == distance:
            yield (Recv((rank - distance) % size, whole, None),)
        elif place % (2 * distance) == 0 and place + distance < size:
            yield (Send((rank + distance) % size, whole),)
        else:
            yield ()


def distances(size: int) -> list[int]:
    """Return the distances between partners on the way to the root: 1, 2, 4, ..."""
    return [1 << level for level in range(depth(size))]


def depth(size: int) -> int:
    """Return ``ceil(lg size)``."""
    return (size - 1).bit_length()


def tree_rounds(size: int, count: int) -> int:
    """Rounds of `tree`."""
    return 2 * depth(size)


def tree_volume(rank: int, size: int, count: int) -> int:
    """Elements that `rank` sends: the array once up (but for rank 0) and once down to each child."""
    levels = depth(size) if rank == 0 else (rank & -rank).bit_length() - 1
    children = sum(rank + (1 << level) < size for level in range(levels))
    return count * (children + (rank > 0))
