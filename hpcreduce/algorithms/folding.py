"""Folding any number of ranks to a power of two, for the algorithms that exchange at doubling distance.

With ``rest = size - 2**floor(lg size)``, each of the first `rest` pairs of neighbours (0, 1), (2, 3), ... is folded
into its lower rank before the exchange, and the upper rank gets the result back after it. The ranks that exchange are
numbered consecutively, and each stands for consecutive ranks, so rank order is kept.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform.
Comput. Appl. 19 (2005), section 4.5, doi:10.1177/1094342005051521.
"""

from __future__ import annotations

from hpcreduce.schedule import RIGHT, Recv, Round, Send, Span


def levels(size: int) -> int:
    """Return ``floor(lg size)``."""
    return size.bit_length() - 1


def rest(size: int) -> int:
    """Return how many pairs are folded: what `size` exceeds a power of two by."""
    return size - (1 << levels(size))


def number(rank: int, size: int) -> int | None:
    """Return the number of `rank` among those that exchange, `None` if it was folded into its neighbour."""
    if rank >= 2 * rest(size):
        return rank - rest(size)
    return None if rank % 2 else rank // 2


def rank_of(number: int, size: int) -> int:
    """Return the rank that has a number."""
    return 2 * number if number < rest(size) else number + rest(size)


def fold(rank: int, size: int, whole: Span) -> list[Round]:
    """Return the round before the exchange, or nothing for a power of two."""
    if not rest(size):
        return []
    if rank >= 2 * rest(size):
        return [()]
    return [(Send(rank - 1, whole),) if rank % 2 else (Recv(rank + 1, whole, RIGHT),)]


def unfold(rank: int, size: int, whole: Span) -> list[Round]:
    """Return the round after the exchange, or nothing for a power of two."""
    if not rest(size):
        return []
    if rank >= 2 * rest(size):
        return [()]
    return [(Recv(rank - 1, whole, None),) if rank % 2 else (Send(rank + 1, whole),)]


def folded_volume(rank: int, size: int, count: int) -> int:
    """Elements that `rank` sends to fold and unfold."""
    return count if rank < 2 * rest(size) else 0
