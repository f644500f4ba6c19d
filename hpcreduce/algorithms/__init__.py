"""The one table of all-reduce algorithms: dispatch, ``--help``, documentation, proofs and tests read it.

To add an algorithm, write one file with a generator of rounds and add one row here. Importing this needs no MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from hpcreduce.algorithms.circulant import circulant, circulant_rounds, circulant_volume
from hpcreduce.algorithms.direct import direct, direct_rounds, direct_volume
from hpcreduce.algorithms.double_tree import double_tree, double_tree_rounds, double_tree_volume
from hpcreduce.algorithms.hierarchical import hierarchical, hierarchical_rounds, hierarchical_volume
from hpcreduce.algorithms.rabenseifner import rabenseifner, rabenseifner_rounds, rabenseifner_volume
from hpcreduce.algorithms.recursive_doubling import (
    recursive_doubling,
    recursive_doubling_rounds,
    recursive_doubling_volume,
)
from hpcreduce.algorithms.ring import ring, ring_allgather, ring_reduce_scatter, ring_rounds, ring_volume
from hpcreduce.algorithms.tree import tree, tree_bcast, tree_reduce, tree_rounds, tree_volume
from hpcreduce.schedule import Rounds, Span, partition

_WIDE = "iIlLqQ"
_INTEGERS = "bBhH" + _WIDE
_FLOATS = "fdgFDG"
_NO_PAIRS: Mapping[str, str] = MappingProxyType({})


class Algorithm(NamedTuple):
    """One row of `ALGORITHMS`.

    Attributes
    ----------
    name : str
    rounds : callable or None
        ``rounds(rank, size, count, **static)`` yields the rounds of one rank; `None` for rows that are no schedule.
    keeps_order : bool
        Ranks are combined in rank order, so that the operation need not commute.
    pairs : mapping of str to str
        For the library's own call: operation -> NumPy type characters for which the library's meaning is ours. Empty:
        no restriction.
    static : tuple of str
        Keywords of `rounds` beyond rank, size and count.
    round_count : callable or None
        ``round_count(size, count, **static)``: the exact number of rounds, the same on every rank.
    volume : callable or None
        ``volume(rank, size, count, **static)``: the exact number of elements that `rank` sends.
    cost : str
        Rounds and largest volume per rank, in words.
    description, source : str
        One line each.
    goal : callable
        ``goal(rank, size, count, **static)``: what `rank` holds at the end, as pairs of a span and the rank whose
        contribution it is, or `None` where all are combined. By default everything, combined.
    """

    name: str
    rounds: Callable[..., Rounds] | None
    keeps_order: bool
    pairs: Mapping[str, str]
    static: tuple[str, ...]
    round_count: Callable[..., int] | None
    volume: Callable[..., int] | None
    cost: str
    description: str
    source: str
    goal: Callable[..., list[tuple[Span, int | None]]] = lambda rank, size, count, **static: [(Span(0, count), None)]


_ROWS = (
    Algorithm(
        name="ring",
        rounds=ring,
        keeps_order=False,
        pairs=_NO_PAIRS,
        static=(),
        round_count=ring_rounds,
        volume=ring_volume,
        cost="2(p-1) rounds, 2(p-1)/p n sent",
        description="reduce-scatter and all-gather around a ring: even traffic, for large arrays",
        source="Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002",
    ),
    Algorithm(
        name="tree",
        rounds=tree,
        keeps_order=True,
        pairs=_NO_PAIRS,
        static=(),
        round_count=tree_rounds,
        volume=tree_volume,
        cost="2 ceil(lg p) rounds, n ceil(lg p) sent at the root",
        description="binomial reduce and broadcast: few rounds, keeps rank order, for small arrays",
        source="Thakur, Rabenseifner & Gropp 2005, doi:10.1177/1094342005051521",
    ),
    Algorithm(
        name="recursive_doubling",
        rounds=recursive_doubling,
        keeps_order=True,
        pairs=_NO_PAIRS,
        static=(),
        round_count=recursive_doubling_rounds,
        volume=recursive_doubling_volume,
        cost="lg p rounds (else floor(lg p) + 2), n lg p (+ n) sent",
        description="exchange of whole arrays at doubling distance: the fewest rounds, keeps rank order",
        source="Thakur, Rabenseifner & Gropp 2005, doi:10.1177/1094342005051521",
    ),
    Algorithm(
        name="rabenseifner",
        rounds=rabenseifner,
        keeps_order=True,
        pairs=_NO_PAIRS,
        static=(),
        round_count=rabenseifner_rounds,
        volume=rabenseifner_volume,
        cost="2 lg p rounds (else 2 floor(lg p) + 2), 2(p-1)/p n sent for p = 2^k",
        description="recursive halving and doubling: little volume in few rounds, keeps rank order",
        source="Rabenseifner 2004, doi:10.1007/978-3-540-24685-5_1",
    ),
    Algorithm(
        name="circulant",
        rounds=circulant,
        keeps_order=False,
        pairs=_NO_PAIRS,
        static=(),
        round_count=circulant_rounds,
        volume=circulant_volume,
        cost="2 ceil(lg p) rounds, 2(p-1)/p n sent",
        description="halving and doubling on circulant graphs: little volume in few rounds for any number of ranks",
        source="Träff 2024, arXiv:2410.14234",
    ),
    Algorithm(
        name="double_tree",
        rounds=double_tree,
        keeps_order=False,
        pairs=_NO_PAIRS,
        static=(),
        round_count=double_tree_rounds,
        volume=double_tree_volume,
        cost="2 ceil(lg p) + pieces - 1 rounds, about 2n sent",
        description="two complementary binary trees, piece by piece: few rounds and even traffic, for many ranks",
        source="Sanders, Speck & Träff 2009, doi:10.1016/j.parco.2009.09.001",
    ),
    Algorithm(
        name="hierarchical",
        rounds=hierarchical,
        keeps_order=False,
        pairs=_NO_PAIRS,
        static=("nodes", "across"),
        round_count=hierarchical_rounds,
        volume=hierarchical_volume,
        cost="2 ceil(lg k) + 2 ceil(lg m) rounds for m nodes of k ranks",
        description="within nodes by tree, across them by circulant: least traffic between nodes of several ranks",
        source="Open MPI han; MPICH SMP-aware collectives",
    ),
    Algorithm(
        name="direct",
        rounds=direct,
        keeps_order=True,
        pairs=_NO_PAIRS,
        static=(),
        round_count=direct_rounds,
        volume=direct_volume,
        cost="2 rounds of p-1 messages, 2(p-1)/p n sent",
        description="each chunk to its owner and back: sums in rank order, contributions rounded once at most",
        source="pairwise exchange: Thakur, Rabenseifner & Gropp 2005, doi:10.1177/1094342005051521",
    ),
    Algorithm(
        name="shared",
        rounds=None,
        keeps_order=True,
        pairs=_NO_PAIRS,
        static=(),
        round_count=None,
        volume=None,
        cost="2 exchanges of flags, no message",
        description="in memory that the ranks of a node share; arrays of hpcreduce.empty are reduced where they are",
        source="MPICH release_gather; Open MPI coll/xhc",
    ),
    Algorithm(
        name="mpi",
        rounds=None,
        keeps_order=True,
        pairs=MappingProxyType(
            {
                # Missing: max and min of floating point (the libraries lose NaN), and sums of 8- and 16-bit integers
                # (Open MPI 5.0 stops at the largest value where NumPy, and we, wrap around).
                "sum": _WIDE + _FLOATS,
                "mean": _FLOATS,
                "prod": _INTEGERS + _FLOATS,
                "max": _INTEGERS,
                "min": _INTEGERS,
                "nanmax": _INTEGERS,
                "nanmin": _INTEGERS,
                "land": "?",
                "lor": "?",
                "lxor": "?",
                "band": _INTEGERS,
                "bor": _INTEGERS,
                "bxor": _INTEGERS,
            }
        ),
        static=(),
        round_count=None,
        volume=None,
        cost="the library's choice",
        description="the MPI library's own all-reduce, begun so that ranks that differ are found and time-outs work",
        source="MPI standard, section 6.9.6",
    ),
)

ALGORITHMS: dict[str, Algorithm] = {row.name: row for row in _ROWS}
"""Name -> row. The name ``auto`` is no row: `hpcreduce.selection` picks one."""


RELATED: dict[str, Algorithm] = {
    "reduce_scatter": Algorithm(
        name="reduce_scatter",
        rounds=ring_reduce_scatter,
        keeps_order=False,
        pairs=_NO_PAIRS,
        static=(),
        round_count=lambda size, count: size - 1,
        volume=lambda rank, size, count: count - partition(count, size)[rank].length,
        cost="p-1 rounds, (p-1)/p n sent",
        description="the first half of ring",
        source=_ROWS[0].source,
        goal=lambda rank, size, count: [(partition(count, size)[rank], None)],
    ),
    "allgather": Algorithm(
        name="allgather",
        rounds=ring_allgather,
        keeps_order=True,
        pairs=_NO_PAIRS,
        static=(),
        round_count=lambda size, count: size - 1,
        volume=lambda rank, size, count: count - partition(count, size)[(rank + 1) % size].length,
        cost="p-1 rounds, (p-1)/p n sent",
        description="the second half of ring",
        source=_ROWS[0].source,
        goal=lambda rank, size, count: [(chunk, owner) for owner, chunk in enumerate(partition(count, size))],
    ),
    "reduce": Algorithm(
        name="reduce",
        rounds=tree_reduce,
        keeps_order=True,
        pairs=_NO_PAIRS,
        static=("root", "ordered"),
        round_count=None,
        volume=None,
        cost="ceil(lg p) rounds, and one more in rank order; n sent",
        description="the first half of tree",
        source=_ROWS[1].source,
        goal=lambda rank, size, count, root=0, ordered=True: [(Span(0, count), None)] if rank == root else [],
    ),
    "bcast": Algorithm(
        name="bcast",
        rounds=tree_bcast,
        keeps_order=True,
        pairs=_NO_PAIRS,
        static=("root",),
        round_count=lambda size, count, root=0: (size - 1).bit_length(),
        volume=None,
        cost="ceil(lg p) rounds, n ceil(lg p) sent at the root",
        description="the second half of tree",
        source=_ROWS[1].source,
        goal=lambda rank, size, count, root=0: [(Span(0, count), root)],
    ),
}
"""Parts of all-reduce algorithms that are collective operations of their own: name -> row."""


def schedule_of(algorithm: str | Algorithm) -> Algorithm:
    """Return the row of a schedule.

    Raises
    ------
    ValueError
        A name that neither table has, or a row that is no schedule.
    """
    table = ALGORITHMS | RELATED
    known = ", ".join(name for name, row in table.items() if row.rounds)
    if isinstance(algorithm, str) and algorithm not in table:
        raise ValueError(f"unknown algorithm {algorithm!r}; expected one of {known}")
    row = table[algorithm] if isinstance(algorithm, str) else algorithm
    if row.rounds is None:
        raise ValueError(f"algorithm {row.name!r} is no schedule; expected one of {known}")
    return row
