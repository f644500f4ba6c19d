"""Reduce within each node, all-reduce across nodes, broadcast within each node: least traffic between nodes.

The scheme of Open MPI's `han` and of MPICH's SMP-aware collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcreduce.algorithms.tree import depth, tree_bcast, tree_reduce, tree_volume
from hpcreduce.schedule import Rounds

ACROSS = "circulant"
"""What runs across nodes, unless another algorithm is named."""


def hierarchical(rank: int, size: int, count: int, nodes: Sequence[Any] = (), across: str = ACROSS) -> Rounds:
    """Yield the rounds of `rank`: a tree to the first rank of its node, `across` over those, and the tree back.

    Parameters
    ----------
    rank, size, count : int
    nodes : sequence
        The node of each rank, in any numbering and order; nodes may have different numbers of ranks. Empty: one node.
    across : str
        The algorithm that the first ranks of the nodes run; any other one that is a schedule.

    Notes
    -----
    ``2 ceil(lg k)`` rounds for nodes of at most `k` ranks, and those of `across`. The first rank of a node sends what
    it sends in `across`, and the array once more per child in its node. Ranks are combined node by node, so the
    operation must commute.

    Four ranks, ``python -m hpcreduce draw hierarchical --ranks 4 --nodes 0,0,1,1``::

        hierarchical (nodes=0,0,1,1): 4 ranks, 4 elements in 4 chunks, 4 rounds, 8 messages
        round   0        1            2            3
        rank 0  +all<1   23>2 +01<2   01>2 =23<2   all>1
        rank 1  all>0    .            .            =all<0
        rank 2  +all<3   01>0 +23<0   23>0 =01<0   all>3
        rank 3  all>2    .            .            =all<2
        c>r: send chunk c to rank r; +c<r: receive c from r, store mine op theirs; =c<r: receive c from r, overwrite;
        .: nothing; all: the whole array; 23: chunks 2 and 3
    """
    members, leaders, longest = layout(rank, size, nodes)
    own = members.index(rank)
    height = depth(longest)
    row = inner(across)
    up = list(renumbered(tree_reduce(own, len(members), count), members))
    yield from up + [()] * (height - len(up))
    if own == 0:
        yield from renumbered(row.rounds(leaders.index(rank), len(leaders), count), leaders)
    else:
        yield from [()] * row.round_count(len(leaders), count)
    down = list(renumbered(tree_bcast(own, len(members), count), members))
    yield from down + [()] * (height - len(down))


def inner(across: str) -> Any:
    """Return the table's row of what runs across nodes; ValueError if it cannot."""
    from hpcreduce.algorithms import ALGORITHMS

    able = [name for name, row in ALGORITHMS.items() if row.rounds and "across" not in row.static]
    if across not in able:
        raise ValueError(f"across is {across!r}, expected one of {', '.join(able)}")
    return ALGORITHMS[across]


def layout(rank: int, size: int, nodes: Sequence[Any]) -> tuple[list[int], list[int], int]:
    """Return the ranks of the rank's node, the first rank of each node, and the number of ranks of the largest one.

    Raises
    ------
    ValueError
        `nodes` does not name a node for each rank.
    """
    if nodes and len(nodes) != size:
        raise ValueError(f"nodes names the nodes of {len(nodes)} ranks, expected {size}")
    groups: dict[Any, list[int]] = {}
    for other in range(size):
        groups.setdefault(nodes[other] if nodes else 0, []).append(other)
    members = groups[nodes[rank] if nodes else 0]
    return members, [group[0] for group in groups.values()], max(map(len, groups.values()))


def counterparts(rank: int, size: int, nodes: Sequence[Any]) -> list[int]:
    """Return the ranks at the same place in their nodes; empty where nodes have different numbers of ranks, or one."""
    members, leaders, _ = layout(rank, size, nodes)
    groups = [layout(leader, size, nodes)[0] for leader in leaders]
    even = all(len(group) == len(members) > 1 for group in groups)
    return [group[members.index(rank)] for group in groups] if even and len(groups) > 1 else []


def renumbered(rounds: Rounds, ranks: Sequence[int]) -> Rounds:
    """Yield rounds of a part of the ranks with the peers' own numbers."""
    for verbs in rounds:
        yield tuple(verb._replace(peer=ranks[verb.peer]) for verb in verbs)


def hierarchical_rounds(size: int, count: int, nodes: Sequence[Any] = (), across: str = ACROSS) -> int:
    """Rounds of `hierarchical`."""
    _, leaders, longest = layout(0, size, nodes)
    return 2 * depth(longest) + int(inner(across).round_count(len(leaders), count))


def hierarchical_volume(rank: int, size: int, count: int, nodes: Sequence[Any] = (), across: str = ACROSS) -> int:
    """Elements that `rank` sends."""
    members, leaders, _ = layout(rank, size, nodes)
    own = members.index(rank)
    outside = inner(across).volume(leaders.index(rank), len(leaders), count) if own == 0 else 0
    return tree_volume(own, len(members), count) + int(outside)
