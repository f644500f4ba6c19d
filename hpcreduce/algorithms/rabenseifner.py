"""Rabenseifner's all-reduce: recursive halving, then recursive doubling. Little volume in few rounds, for large arrays.

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004, LNCS 3036, section 4,
doi:10.1007/978-3-540-24685-5_1. Here the reduce-scatter doubles the distance, which keeps rank order.
"""

from __future__ import annotations

from hpcreduce.algorithms.folding import fold, folded_volume, levels, number, rank_of, rest, unfold
from hpcreduce.schedule import LEFT, RIGHT, Recv, Rounds, Send, Span, partition


def rabenseifner(rank: int, size: int, count: int) -> Rounds:
    """Yield the rounds of `rank`: partners at distance 1, 2, 4, ... share the work by halves, and then the results.

    Notes
    -----
    ``2 lg size`` rounds if `size` is a power of two, else ``2 floor(lg size) + 2`` (see `folding`). For a power of two
    each rank sends ``2 (size - 1) / size`` of the array. A partial result always covers consecutive ranks and the lower
    ranks' partial stands on the left, so rank order is kept.

    Four ranks, ``python -m hpcreduce draw rabenseifner --ranks 4``::

        rabenseifner: 4 ranks, 4 elements in 4 chunks, 4 rounds, 16 messages
        round   0            1          2          3
        rank 0  23>1 +01<1   1>2 +0<2   0>2 =1<2   01>1 =23<1
        rank 1  01>0 23+<0   3>3 +2<3   2>3 =3<3   23>0 =01<0
        rank 2  23>3 +01<3   0>0 1+<0   1>0 =0<0   01>3 =23<3
        rank 3  01>2 23+<2   2>1 3+<1   3>1 =2<1   23>2 =01<2
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs;
        c+<r: receive c from r, store theirs op mine; =c<r: receive c from r, overwrite; 23: chunks 2 and 3
    """
    whole = Span(0, count)
    yield from fold(rank, size, whole)
    mine = number(rank, size)
    if mine is None:
        yield from [()] * (2 * levels(size))
    else:
        steps = list(halves(mine, size, count))
        for peer, kept, given in steps:  # reduce-scatter
            yield Recv(peer, kept, RIGHT if rank < peer else LEFT), Send(peer, given)
        for peer, kept, given in reversed(steps):  # all-gather
            yield Recv(peer, given, None), Send(peer, kept)
    yield from unfold(rank, size, whole)


def halves(mine: int, size: int, count: int) -> list[tuple[int, Span, Span]]:
    """Return for each step of number `mine` the partner's rank, the half that it keeps and the half that it gives."""
    chunk = partition(count, 1 << levels(size))
    low, high = 0, len(chunk)
    steps = []
    for level in range(levels(size)):
        middle = (low + high) // 2
        lower = Span(chunk[low].start, chunk[middle - 1].stop)
        upper = Span(chunk[middle].start, chunk[high - 1].stop)
        peer = rank_of(mine ^ (1 << level), size)
        if mine >> level & 1:
            low = middle
            steps.append((peer, upper, lower))
        else:
            high = middle
            steps.append((peer, lower, upper))
    return steps


def rabenseifner_rounds(size: int, count: int) -> int:
    """Rounds of `rabenseifner`."""
    return 2 * levels(size) + (2 if rest(size) else 0)


def rabenseifner_volume(rank: int, size: int, count: int) -> int:
    """Elements that `rank` sends: all but its own chunk, and for each chunk that it gets, once more what it kept."""
    mine = number(rank, size)
    if mine is None:
        return folded_volume(rank, size, count)
    steps = halves(mine, size, count)
    return sum(kept.length + given.length for _, kept, given in steps) + folded_volume(rank, size, count)
