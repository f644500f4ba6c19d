"""Recursive doubling all-reduce: whole arrays are exchanged at distance 1, 2, 4, ... Fewest rounds, for small arrays.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform.
Comput. Appl. 19 (2005), section 4.5, doi:10.1177/1094342005051521.
"""

from __future__ import annotations

from hpcreduce.algorithms.folding import fold, folded_volume, levels, number, rank_of, rest, unfold
from hpcreduce.schedule import LEFT, RIGHT, Recv, Rounds, Send, Span


def recursive_doubling(rank: int, size: int, count: int) -> Rounds:
    """Yield the rounds of `rank`: everybody exchanges its partial result with the partner at distance 1, 2, 4, ...

    Notes
    -----
    ``lg size`` rounds if `size` is a power of two, else ``floor(lg size) + 2`` (see `folding`). Each rank sends the
    whole array in each. Both partners put the lower ranks' partial on the left, so rank order is kept and both get the
    same bits.

    Four ranks, ``python -m hpcreduce draw recursive_doubling --ranks 4``::

        recursive_doubling: 4 ranks, 4 elements in 4 chunks, 2 rounds, 8 messages
        round   0              1
        rank 0  all>1 +all<1   all>2 +all<2
        rank 1  all>0 all+<0   all>3 +all<3
        rank 2  all>3 +all<3   all>0 all+<0
        rank 3  all>2 all+<2   all>1 all+<1
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs;
        c+<r: receive c from r, store theirs op mine; all: the whole array
    """
    whole = Span(0, count)
    yield from fold(rank, size, whole)
    mine = number(rank, size)
    for level in range(levels(size)):
        if mine is None:
            yield ()
            continue
        peer = rank_of(mine ^ (1 << level), size)
        yield Recv(peer, whole, RIGHT if rank < peer else LEFT), Send(peer, whole)
    yield from unfold(rank, size, whole)


def recursive_doubling_rounds(size: int, count: int) -> int:
    """Rounds of `recursive_doubling`."""
    return levels(size) + (2 if rest(size) else 0)


def recursive_doubling_volume(rank: int, size: int, count: int) -> int:
    """Elements that `rank` sends."""
    exchanged = 0 if number(rank, size) is None else count * levels(size)
    return exchanged + folded_volume(rank, size, count)
