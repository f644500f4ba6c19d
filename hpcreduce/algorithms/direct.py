"""Everybody hands each chunk to its owner, who reduces it and hands it back: each element is reduced in one place.

What MPICH calls reduce-scatter by pairwise exchange and an all-gather; here for exact sums in rank order and for narrow
wires, since every contribution travels once and is not rounded on the way.
"""

from __future__ import annotations

from hpcreduce.schedule import LEFT, RIGHT, Recv, Rounds, Send, partition


def direct(rank: int, size: int, count: int) -> Rounds:
    """Yield the rounds of `rank`, the owner of chunk number `rank`.

    Notes
    -----
    2 rounds of ``size - 1`` messages each way; each rank sends ``2 (size - 1) / size`` of the array. The owner puts
    lower ranks' contributions on the left, the nearest first, and higher ranks' on the right, so rank order is kept.

    Four ranks, ``python -m hpcreduce draw direct --ranks 4``::

        direct: 4 ranks, 4 elements in 4 chunks, 2 rounds, 24 messages
        round   0                            1
        rank 0  1>1 2>2 3>3 +0<1 +0<2 +0<3   0>1 0>2 0>3 =3<3 =2<2 =1<1
        rank 1  2>2 3>3 0>0 1+<0 +1<2 +1<3   1>2 1>3 1>0 =0<0 =3<3 =2<2
        rank 2  3>3 0>0 1>1 2+<1 2+<0 +2<3   2>3 2>0 2>1 =1<1 =0<0 =3<3
        rank 3  0>0 1>1 2>2 3+<2 3+<1 3+<0   3>0 3>1 3>2 =2<2 =1<1 =0<0
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs;
        c+<r: receive c from r, store theirs op mine; =c<r: receive c from r, overwrite
    """
    if size == 1:
        return
    chunk = partition(count, size)
    others = [(rank + distance) % size for distance in range(1, size)]
    yield (
        *(Recv(peer, chunk[rank], LEFT) for peer in range(rank - 1, -1, -1)),
        *(Recv(peer, chunk[rank], RIGHT) for peer in range(rank + 1, size)),
        *(Send(peer, chunk[peer]) for peer in others),
    )
    yield (
        *(Recv(peer, chunk[peer], None) for peer in reversed(others)),
        *(Send(peer, chunk[rank]) for peer in others),
    )


def direct_rounds(size: int, count: int) -> int:
    """Rounds of `direct`."""
    return 2 if size > 1 else 0


def direct_volume(rank: int, size: int, count: int) -> int:
    """Elements that `rank` sends: all chunks but its own, and its own to everybody."""
    own = partition(count, size)[rank].length
    return count - own + (size - 1) * own
