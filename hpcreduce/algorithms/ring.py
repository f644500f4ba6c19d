"""Ring all-reduce: even traffic, the least volume that any algorithm can send, many rounds.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib.
Comput. 69 (2009), section 4, doi:10.1016/j.jpdc.2008.09.002.
"""

from __future__ import annotations

from hpcreduce.schedule import RIGHT, Recv, Rounds, Send, partition


def ring(rank: int, size: int, count: int) -> Rounds:
    """Yield the rounds of `rank`: a reduce-scatter around the ring, then an all-gather around it.

    Notes
    -----
    ``2 (size - 1)`` rounds; each rank sends every chunk but two twice, which is ``2 (size - 1) / size`` of the array.
    The order in which ranks are combined starts at another rank for each chunk, so the operation must commute.

    Four ranks, ``python -m hpcreduce draw ring --ranks 4``::

        ring: 4 ranks, 4 elements in 4 chunks, 6 rounds, 24 messages
        round   0          1          2          3          4          5
        rank 0  0>1 +3<3   3>1 +2<3   2>1 +1<3   1>1 =0<3   0>1 =3<3   3>1 =2<3
        rank 1  1>2 +0<0   0>2 +3<0   3>2 +2<0   2>2 =1<0   1>2 =0<0   0>2 =3<0
        rank 2  2>3 +1<1   1>3 +0<1   0>3 +3<1   3>3 =2<1   2>3 =1<1   1>3 =0<1
        rank 3  3>0 +2<2   2>0 +1<2   1>0 +0<2   0>0 =3<2   3>0 =2<2   2>0 =1<2
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs; =c<r: receive c from r, overwrite
    """
    yield from around(rank, size, count, RIGHT, rank)  # reduce-scatter
    yield from around(rank, size, count, None, rank + 1)  # all-gather


def around(rank: int, size: int, count: int, side: str | None, first: int) -> Rounds:
    """Yield the rounds that hand each chunk from rank to rank, but for the last; `rank` begins with chunk `first`."""
    chunk = partition(count, size)
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        yield (
            Recv(left, chunk[(first - step - 1) % size], side),
            Send(right, chunk[(first - step) % size]),
        )


def ring_reduce_scatter(rank: int, size: int, count: int) -> Rounds:
    """Yield the rounds after which `rank` holds the result in chunk number `rank`, and partial results elsewhere.

    Notes
    -----
    ``size - 1`` rounds, in which all chunks but that of `rank` are sent.

    Four ranks, ``python -m hpcreduce draw reduce_scatter --ranks 4``::

        reduce_scatter: 4 ranks, 4 elements in 4 chunks, 3 rounds, 12 messages
        round   0          1          2
        rank 0  3>1 +2<3   2>1 +1<3   1>1 +0<3
        rank 1  0>2 +3<0   3>2 +2<0   2>2 +1<0
        rank 2  1>3 +0<1   0>3 +3<1   3>3 +2<1
        rank 3  2>0 +1<2   1>0 +0<2   0>0 +3<2
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs
    """
    yield from around(rank, size, count, RIGHT, rank - 1)


def ring_allgather(rank: int, size: int, count: int) -> Rounds:
    """Yield the rounds that hand chunk number `rank` of every `rank` to all.

    Notes
    -----
    ``size - 1`` rounds, in which all chunks but that of the rank to the right are sent.

    Four ranks, ``python -m hpcreduce draw allgather --ranks 4``::

        allgather: 4 ranks, 4 elements in 4 chunks, 3 rounds, 12 messages
        round   0          1          2
        rank 0  0>1 =3<3   3>1 =2<3   2>1 =1<3
        rank 1  1>2 =0<0   0>2 =3<0   3>2 =2<0
        rank 2  2>3 =1<1   1>3 =0<1   0>3 =3<1
        rank 3  3>0 =2<2   2>0 =1<2   1>0 =0<2
        c>r: send chunk c to rank r; =c<r: receive c from r, overwrite
    """
    yield from around(rank, size, count, None, rank)


def ring_rounds(size: int, count: int) -> int:
    """Rounds of `ring`."""
    return 2 * (size - 1)


def ring_volume(rank: int, size: int, count: int) -> int:
    """Elements that `rank` sends: two passes over all chunks, less the one that each pass skips."""
    chunk = partition(count, size)
    return 2 * count - chunk[(rank + 1) % size].length - chunk[(rank + 2) % size].length
