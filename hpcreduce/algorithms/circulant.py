"""All-reduce on circulant graphs: the least volume in the fewest rounds, for any number of ranks.

Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024, arXiv:2410.14234, algorithms 1 and 2.
"""

from __future__ import annotations

from hpcreduce.schedule import RIGHT, Recv, Rounds, Send, Span, partition


def circulant(rank: int, size: int, count: int) -> Rounds:
    """Yield the rounds of `rank`: ranks at distance ``p/2, p/4, ..., 1`` (rounded up) share chunks, and then results.

    Notes
    -----
    ``2 ceil(lg size)`` rounds; each rank sends all chunks but its own, and as many results. Before each step `rank`
    holds partial results of the chunks ``rank, rank + 1, ...``; it hands the upper half of them on and reduces what it
    gets into the lower half. A stretch of chunks that runs past the last one is two spans. The order in which ranks are
    combined starts at another rank for each chunk, so the operation must commute.

    Four ranks, ``python -m hpcreduce draw circulant --ranks 4``::

        circulant: 4 ranks, 4 elements in 4 chunks, 4 rounds, 18 messages
        round   0                1          2          3
        rank 0  23>2 +01<2       1>1 +0<3   0>3 =1<1   01>2 =23<2
        rank 1  3>3 0>3 +12<3    2>2 +1<0   1>0 =2<2   12>3 =3<3 =0<3
        rank 2  01>0 +23<0       3>3 +2<1   2>1 =3<3   23>0 =01<0
        rank 3  12>1 +3<1 +0<1   0>0 +3<2   3>2 =0<0   3>1 0>1 =12<1
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs; =c<r: receive c from r, overwrite;
        23: chunks 2 and 3
    """
    chunk = partition(count, size)
    steps = halvings(size)
    for far, near in steps:  # reduce-scatter
        there, back = (rank + near) % size, (rank - near) % size
        yield (
            *(Recv(back, span, RIGHT) for span in stretch(chunk, rank, far - near)),
            *(Send(there, span) for span in stretch(chunk, rank + near, far - near)),
        )
    for far, near in reversed(steps):  # all-gather
        there, back = (rank + near) % size, (rank - near) % size
        yield (
            *(Recv(there, span, None) for span in stretch(chunk, rank + near, far - near)),
            *(Send(back, span) for span in stretch(chunk, rank, far - near)),
        )


def halvings(size: int) -> list[tuple[int, int]]:
    """Return for each step how many chunks a rank has before and after it."""
    steps = []
    while size > 1:
        steps.append((size, (size + 1) // 2))
        size = (size + 1) // 2
    return steps


def stretch(chunk: list[Span], first: int, number: int) -> list[Span]:
    """Return the spans of `number` chunks from `first` on, around the end."""
    size = len(chunk)
    first %= size
    stop = first + number
    if stop <= size:
        return [Span(chunk[first].start, chunk[stop - 1].stop)]
    return [Span(chunk[first].start, chunk[-1].stop), Span(0, chunk[stop - size - 1].stop)]


def circulant_rounds(size: int, count: int) -> int:
    """Rounds of `circulant`."""
    return 2 * (size - 1).bit_length()


def circulant_volume(rank: int, size: int, count: int) -> int:
    """Elements that `rank` sends: every chunk but its own once, and the results that it hands back."""
    chunk = partition(count, size)
    results = (span.length for far, near in halvings(size) for span in stretch(chunk, rank, far - near))
    return count - chunk[rank].length + sum(results)
