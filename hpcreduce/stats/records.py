"""``Record``: a statistic of one's own, as three functions, computed over all ranks by an all-reduce.

Rules that hold here:

1. A state is an array, or a tuple of arrays, whose shapes and types do not depend on the rows.
2. Combining is associative, so that any grouping of the ranks gives the same; `check_record` tries that. States are
   combined in the order of the ranks, along a binomial tree. Where rounding makes it associative only nearly, all ranks
   get the same bits nevertheless, but other numbers of ranks may get others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.collectives import allreduce
from hpcreduce.objects import everyone
from hpcreduce.stats import meeting
from hpcreduce.stats.meeting import StatsError

_NEARLY = 1e-9
"""How much states differ, relatively, that only rounding makes differ."""

State = Any
Layout = list[tuple[tuple[int, ...], np.dtype[Any]]]


class Record(NamedTuple):
    """A statistic.

    Attributes
    ----------
    chunk : callable
        ``chunk(batch) -> state``: what is known of some rows: an array, or a tuple of arrays.
    combine : callable
        ``combine(state, state) -> state``: what is known of both together. It changes neither.
    finalize : callable
        ``finalize(state) -> result``.

    See Also
    --------
    compute : takes it to the rows of all ranks.
    check_record : tries whether it can.

    Examples
    --------
    >>> total = Record(lambda rows: np.array([rows.size, rows.sum()]), np.add, lambda state: state[1] / state[0])
    >>> total.finalize(total.combine(total.chunk(np.array([1, 2])), total.chunk(np.array([6]))))
    np.float64(3.0)
    """

    chunk: Callable[[Any], State]
    combine: Callable[[State, State], State]
    finalize: Callable[[State], Any]


def compute(comm: Any, record: Record, batches: Iterable[Any]) -> Any:
    """Return a statistic of the batches of all ranks; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    record : Record
        The same on every rank.
    batches : iterable
        This rank's, whatever `record.chunk` takes. There may be none, but not on all ranks.

    Returns
    -------
    object
        What `record.finalize` returns, the same on every rank.

    Raises
    ------
    StatsError
        No rank has a batch, or the states differ in shape or type.
    Exception
        What the record's functions raise on any rank: on every rank.
    """
    arrays: list[np.ndarray] = []
    single = True
    with meeting.together(comm):
        states = map(record.chunk, batches)
        if (state := next(states, None)) is not None:
            for other in states:
                state = record.combine(state, other)
            single, arrays = not isinstance(state, tuple), _arrays(state)
    layouts = everyone(comm, (single, [(array.shape, array.dtype) for array in arrays]))
    filled = [(rank, layout) for rank, layout in enumerate(layouts) if layout[1]]
    if not filled:
        raise StatsError("no rank has a batch")
    first, (single, layout) = filled[0]
    for rank, other in filled:
        if other != (single, layout):
            raise StatsError(f"states differ: rank {first} has {layout}, rank {rank} has {other[1]}")
    length = 1 + sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in layout)

    failed: list[Exception] = []

    def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if not (a[0] and b[0]):  # a rank without a batch
            return a if a[0] else b
        try:
            state = record.combine(_unpacked(a, layout, single), _unpacked(b, layout, single))
            return _packed(_checked(_arrays(state), layout), length)
        except Exception as error:  # told when all ranks have met
            failed.append(error)
            return a

    whole = allreduce(comm, _packed(arrays, length), op=combine, algorithm="tree", segment=length)
    results = []
    with meeting.together(comm):
        if failed:
            raise failed[0]
        results.append(record.finalize(_unpacked(np.asarray(whole), layout, single)))
    return results[0]


def check_record(
    record: Record,
    batches: Sequence[Any] | None = None,
    *,
    tolerance: float = 0.0,
    seed: int = 0,
) -> None:
    """Try whether a record can be computed on any number of ranks, and raise if not.

    Parameters
    ----------
    record : Record
    batches : sequence, optional
        Three or more that `record.chunk` takes; by default float64 arrays of random lengths, one of them empty.
    tolerance : float
        How much states may differ, relatively; 0: not in a bit.
    seed : int
        For the random arrays.

    Raises
    ------
    StatsError
        With all that fails: combining is not associative or not commutative, changes what it is given or gives other
        shapes or types; or a batch without rows is not the identity.

    Examples
    --------
    >>> check_record(Record(lambda rows: np.array([rows.size]), np.add, int))
    >>> check_record(Record(lambda rows: np.array([rows.size]), lambda a, b: a, int))
    Traceback (most recent call last):
        ...
    hpcreduce.stats.meeting.StatsError: combine is not commutative; a batch without rows is not the identity
    """
    random = np.random.default_rng(seed)
    given = batches is not None
    samples = list(batches) if batches is not None else [random.standard_normal(size) for size in (7, 1, 30, 12)]
    if len(samples) < 3:
        raise StatsError(f"three batches or more are needed, found {len(samples)}")
    states = [record.chunk(batch) for batch in samples]
    faults = []
    layouts = [[(array.shape, array.dtype) for array in _arrays(state)] for state in states]
    if any(layout != layouts[0] for layout in layouts):
        raise StatsError("the shapes and types of the state that chunk returns depend on the batch")
    before = [_bytes(state) for state in states]

    def same(a: State, b: State, within: float = tolerance) -> bool:
        if not within:
            return _bytes(a) == _bytes(b)
        return all(np.allclose(x, y, within, 0, equal_nan=True) for x, y in zip(_arrays(a), _arrays(b), strict=True))

    def compare(what: str, pairs: list[tuple[State, State]]) -> None:
        if not all(same(a, b) for a, b in pairs):
            nearly = not tolerance and all(same(a, b, _NEARLY) for a, b in pairs)
            faults.append(f"combine is not {what}{' but for rounding, for which give a tolerance' if nearly else ''}")

    combine = record.combine
    triples = list(itertools.islice(itertools.permutations(states, 3), 24))
    if any([(array.shape, array.dtype) for array in _arrays(combine(a, b))] != layouts[0] for a, b, _ in triples):
        raise StatsError("combine returns a state of other shapes or types than chunk")
    compare("associative", [(combine(combine(a, b), c), combine(a, combine(b, c))) for a, b, c in triples])
    compare("commutative", [(combine(a, b), combine(b, a)) for a, b, _ in triples])
    if [_bytes(state) for state in states] != before:
        faults.append("combine changes the states that it is given")
    if not given:
        nothing = record.chunk(np.zeros(0))
        if not all(same(combine(nothing, state), state) and same(combine(state, nothing), state) for state in states):
            faults.append("a batch without rows is not the identity")
    if faults:
        raise StatsError("; ".join(faults))


def _arrays(state: State) -> list[np.ndarray]:
    return [np.asarray(array) for array in (state if isinstance(state, tuple) else (state,))]


def _checked(arrays: list[np.ndarray], layout: Layout) -> list[np.ndarray]:
    found = [(array.shape, array.dtype) for array in arrays]
    if found != layout:
        raise StatsError(f"combine returned a state of {found}, expected {layout}")
    return arrays


def _bytes(state: State) -> list[bytes]:
    return [array.tobytes() for array in _arrays(state)]


def _packed(arrays: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Return arrays as bytes after a 1, or as many zeros."""
    data = b"\1" + b"".join(array.tobytes() for array in arrays) if arrays else bytes(length)
    return np.frombuffer(data, np.uint8).copy()


def _unpacked(data: np.ndarray, layout: Layout, single: bool) -> State:
    arrays, start = [], 1
    for shape, dtype in layout:
        count = int(np.prod(shape))
        arrays.append(np.frombuffer(data.tobytes(), dtype, count, start).reshape(shape))
        start += count * dtype.itemsize
    return arrays[0] if single else tuple(arrays)
