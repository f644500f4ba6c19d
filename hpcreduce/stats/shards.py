"""Cutting files into shards of nearly equal size, and sharing those out."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from hpcreduce.stats.reading import Found, Shard

PER_RANK = 4
"""Shards per rank where files can be cut freely: the more, the better the balance."""


def cut(files: Sequence[Found], size: int, smallest: int) -> list[Shard]:
    """Cut files into shards.

    Parameters
    ----------
    files : sequence of Found
    size : int
        The number of ranks.
    smallest : int
        Bytes below which no file is cut.

    Examples
    --------
    >>> whole = Found("a.npy", "NPY", {}, nbytes=800, rows=100, extent=(0, 100))
    >>> [shard.place for shard in cut([whole], 2, smallest=200)]
    [(0, 25), (25, 50), (50, 75), (75, 100)]
    """
    total = sum(found.nbytes for found in files)
    most = total if size == 1 else max(smallest, -(-total // (PER_RANK * size)), 1)
    shards = []
    for number, found in enumerate(files):
        if found.rows == 0:
            continue
        if found.extent is None:
            shards += [Shard(number, place, nbytes) for place, nbytes in found.units]
            continue
        first, last = found.extent
        grains = -(-(last - first) // found.grain)
        parts = max(1, min(-(-found.nbytes // most) if most else 1, grains))
        edges = [min(first + grains * part // parts * found.grain, last) for part in range(parts + 1)]
        for start, stop in itertools.pairwise(edges):
            shards.append(Shard(number, (start, stop), found.nbytes * (stop - start) // (last - first)))
    return shards


def share(shards: Sequence[Shard], size: int, kept: Sequence[int] = ()) -> list[int]:
    """Return the rank of each shard: the largest first, to the rank that has least so far.

    Parameters
    ----------
    shards : sequence of Shard
    size : int
        The number of ranks.
    kept : sequence of int
        The numbers of the files that rank 0 alone can read.

    Examples
    --------
    >>> share([Shard(0, None, 5), Shard(1, None, 9), Shard(2, None, 3)], 2)
    [1, 0, 1]
    """
    loads = [(0, rank) for rank in range(size)]
    owners = [0] * len(shards)
    loads[0] = sum(shard.nbytes for shard in shards if shard.file in kept), 0
    heapq.heapify(loads)
    free = [number for number, shard in enumerate(shards) if shard.file not in kept]
    for number in sorted(free, key=lambda number: (-shards[number].nbytes, number)):
        load, rank = loads[0]
        owners[number] = rank
        heapq.heapreplace(loads, (load + shards[number].nbytes + 1, rank))
    return owners
