"""Whether all ranks hold the same parameters: replicas that drift apart train no model."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcreduce.collectives import allreduce
from hpcreduce.errors import ReplicaError
from hpcreduce.gradients.parameters import NAMED, Parameter, values
from hpcreduce.related import allgather
from hpcreduce.runtime.inquiry import named
from hpcreduce.runtime.operations import Array


def check(comm: Any, rank: int, parameters: Sequence[Parameter], timeout: float | None) -> None:
    """Raise ReplicaError on every rank unless all have the same bits; collective."""
    sums = np.array([checksum(values(parameter.item)) for parameter in parameters], np.int64)
    largest = allreduce(comm, np.stack([sums, -sums]), op="max", timeout=timeout)
    if (largest[0] == -largest[1]).all():
        return
    everyone = allgather(comm, sums, timeout=timeout)
    text, ranks = drifted(everyone, [parameter.label for parameter in parameters])
    error = ReplicaError(f"rank {rank}: {text}")
    error.ranks = ranks
    raise error


def checksum(array: Array) -> int:
    """Return 32 bits of what an array holds."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def drifted(sums: Array, labels: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """Return in words who differs in what, from the check sums of each rank; and those ranks.

    Most ranks are right; if two kinds are equally frequent, those like the lowest rank are.

    >>> drifted(np.array([[1, 2], [1, 3], [1, 2]]), ["'b'", "'w'"])
    ("the replicas differ: parameter 'w' on rank 1", (1,))
    """
    texts, ranks = [], set()
    for label, column in zip(labels, sums.T.tolist(), strict=True):
        usual = Counter(column).most_common(1)[0][0]
        if odd := [rank for rank, each in enumerate(column) if each != usual]:
            texts.append(f"parameter {label} on {named(odd)}")
            ranks.update(odd)
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return f"the replicas differ: {', '.join(texts[:NAMED])}{more}", tuple(sorted(ranks))
