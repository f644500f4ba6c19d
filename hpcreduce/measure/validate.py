"""Validate every algorithm on real ranks, against exact arithmetic and against MPI_Allreduce.

MPI_Allreduce is a reference, not the truth: it is checked against exact arithmetic too. Every rank runs the same cases
whatever it finds, and the findings are put together at the end, so that a wrong result never hangs the validation.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.algorithms import ALGORITHMS
from hpcreduce.collectives import allreduce
from hpcreduce.measure import samples
from hpcreduce.runtime import agreement
from hpcreduce.runtime.operations import OPERATIONS, Array, DType
from hpcreduce.selection import SHARED, forbids

REFERENCE = "MPI_Allreduce"
QUICK_DTYPES = ("int32", "float16", "float32", "float64", "complex128")
SEGMENT = 256
"""Bytes per segment for all but the largest count, so that small arrays reach the streamed paths."""

MOST_FAILURES = 50
"""Failures kept per rank."""


@dataclass(frozen=True)
class Failure:
    """One wrong result; `against` says what it was compared with."""

    algorithm: str
    op: str
    dtype: str
    count: int
    in_place: bool
    rank: int
    index: int
    expected: str
    found: str
    against: str

    def __str__(self) -> str:
        place = "in place" if self.in_place else "out of place"
        return (
            f"{self.algorithm}: op {self.op}, dtype {self.dtype}, count {self.count}, {place}: rank {self.rank}, "
            f"index {self.index}: expected {self.expected} ({self.against}), found {self.found}"
        )


class Report(NamedTuple):
    """What a validation found, the same on every rank; `worst_ulp` is by algorithm, on random data."""

    ranks: int
    cases: int
    failures: list[Failure]
    worst_ulp: dict[str, float]


@dataclass(frozen=True)
class _Group:
    """The cases that share their input."""

    op: str
    dtype: str
    count: int
    segment: int | None


class _Findings:
    """What this rank has seen so far."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.cases = 0
        self.failures: list[Failure] = []
        self.digests: list[tuple[str, _Group, bool, int]] = []
        self.ulp: dict[str, float] = {}

    def add(
        self, algorithm: str, group: _Group, in_place: bool, index: int, wanted: object, found: object, against: str
    ) -> None:
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(
                Failure(
                    algorithm=algorithm,
                    op=group.op,
                    dtype=group.dtype,
                    count=group.count,
                    in_place=in_place,
                    rank=self.rank,
                    index=index,
                    expected=" ".join(str(wanted).split()),
                    found=" ".join(str(found).split()),
                    against=against,
                )
            )


def default_counts(size: int, full: bool) -> list[int]:
    """Return the element counts that matter on `size` ranks."""
    odd = (7, 101, 997, 10007) if full else (101, 997)
    return sorted({0, 1, size - 1, size, size + 1, *odd})


def validate(
    comm: Any,
    *,
    algorithms: Sequence[str] | None = None,
    ops: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    counts: Sequence[int] | None = None,
    full: bool = False,
    timeout: float = 30.0,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Run algorithm x op x dtype x count, in place and out of place; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    algorithms, ops, dtypes : sequence of str, optional
        By default all algorithms that can run on these ranks, all ops, and the quick or the full set of dtypes (see
        `samples.dtypes`).
    counts : sequence of int, optional
        Elements; by default 0, 1, p-1, p, p+1, odd primes, and for float64 sums several default segments.
    full : bool
        All dtypes and more counts.
    timeout : float
        Seconds after which one reduction counts as failed; the validation stops there.
    progress : callable, optional
        Called with the groups of cases done and in all.

    Returns
    -------
    Report
        The same on every rank. It has failed if `failures` is not empty.
    """
    here = agreement.state(comm).shareable
    algorithms = list(algorithms or (name for name in ALGORITHMS if here or name != SHARED))
    known = samples.dtypes()
    kinds = dtypes or (list(known) if full else QUICK_DTYPES)
    groups = list(_groups(comm.size, ops or list(OPERATIONS), kinds, counts, full))
    findings = _Findings(comm.rank)
    try:
        for done, group in enumerate(groups):
            _run_group(comm, group, known[group.dtype], algorithms, timeout, findings)
            if progress:
                progress(done + 1, len(groups))
        for name in ("float32", "float64"):
            if (dtypes is None or name in dtypes) and (ops is None or "sum" in ops):
                _measure_error(comm, np.dtype(name), algorithms, timeout, findings)
    except _StoppedError:
        pass
    return _put_together(comm, findings)


class _StoppedError(Exception):
    """A reduction raised: the communicator is of no more use to us."""


def _groups(
    size: int, ops: Sequence[str], dtypes: Sequence[str], counts: Sequence[int] | None, full: bool
) -> Iterator[_Group]:
    known = samples.dtypes()
    for op in ops:
        for dtype in dtypes:
            if samples.applies(op, known[dtype]):
                for count in default_counts(size, full) if counts is None else counts:
                    yield _Group(op, dtype, count, SEGMENT)
    if counts is None and "sum" in ops and "float64" in dtypes:
        yield _Group("sum", "float64", 2 * size * (1 << 17) + 1, None)  # over two default segments per chunk


def _run_group(
    comm: Any, group: _Group, dtype: DType, algorithms: Sequence[str], timeout: float, findings: _Findings
) -> None:
    given = samples.make(group.op, dtype, group.count, comm.rank, comm.size)
    wanted = samples.expected(group.op, dtype, group.count, comm.size)
    reference = _reference(comm, group.op, given)
    if reference is not None:
        keep = samples.settled(group.op, dtype, group.count, comm.size)
        _compare(REFERENCE, group, False, reference[keep], wanted[0][keep], "exact arithmetic", findings)
    for algorithm in _able(algorithms, group.op, dtype):
        for in_place in (False, True) if OPERATIONS[group.op].types(dtype)[1] == dtype else (False,):
            if in_place and len(wanted) > 1:
                continue
            array = given.copy()
            result = _call(comm, group, array, algorithm, in_place, timeout, findings)
            for found, exact in zip(result, wanted, strict=True):
                _compare(algorithm, group, in_place, found, exact, "exact arithmetic", findings)
            if not in_place and array.tobytes() != given.tobytes():
                findings.add(algorithm, group, in_place, 0, "an untouched input", "a changed one", "the input before")
            findings.digests.append((algorithm, group, in_place, _digest(result)))


def _able(algorithms: Sequence[str], op: str, dtype: DType) -> Iterator[str]:
    operation = OPERATIONS[op]
    for name in algorithms:
        if name == "auto" or not forbids(ALGORITHMS[name], operation, operation.types(dtype)[0]):
            yield name


def _call(
    comm: Any, group: _Group, array: Array, algorithm: str, in_place: bool, timeout: float, findings: _Findings
) -> tuple[Array, ...]:
    recvbuf = array if in_place else None
    findings.cases += 1
    try:
        result = allreduce(comm, array, recvbuf, group.op, algorithm=algorithm, segment=group.segment, timeout=timeout)
    except Exception as error:  # whatever it is, it is this algorithm's failure, and the others need to hear of it
        findings.add(algorithm, group, in_place, 0, "a result", f"{type(error).__name__}: {error}", "no exception")
        raise _StoppedError from None
    return result if isinstance(result, tuple) else (result,)


def _reference(comm: Any, op: str, given: Array) -> Array | None:
    """Return what MPI_Allreduce gives, or None where it has no such type or operation."""
    from mpi4py import MPI

    if not samples.mpi_has(op, given.dtype):
        return None
    result = np.empty_like(given)
    comm.Allreduce(given.copy(), result, getattr(MPI, OPERATIONS[op].library))
    return result / comm.size if op == "mean" else result


def _compare(
    algorithm: str, group: _Group, in_place: bool, found: Array, wanted: Array, against: str, findings: _Findings
) -> None:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        expected, got = (f"dtype {array.dtype}, shape {array.shape}" for array in (wanted, found))
        findings.add(algorithm, group, in_place, 0, expected, got, against)
        return
    right = samples.same(found, wanted)
    if not right.all():
        index = int(np.argmin(right))
        findings.add(algorithm, group, in_place, index, wanted[index], found[index], against)


def _digest(arrays: Sequence[Array]) -> int:
    crc = 0
    for array in arrays:
        if array.dtype.char in "gG":  # the padding of long doubles is not part of their value
            array = array.astype("c16" if array.dtype.kind == "c" else "f8")
        crc = zlib.crc32(array.tobytes(), crc)
    return crc


def _measure_error(comm: Any, dtype: DType, algorithms: Sequence[str], timeout: float, findings: _Findings) -> None:
    """Sum positive random numbers: each of the p - 1 roundings costs at most one unit in the last place."""
    group = _Group("sum", dtype.name, 1009, SEGMENT)
    inputs = [np.random.default_rng(rank).random(group.count).astype(dtype) for rank in range(comm.size)]
    for algorithm in (*_able(algorithms, "sum", dtype), REFERENCE):
        if algorithm == REFERENCE:
            reference = _reference(comm, "sum", inputs[comm.rank])
            assert reference is not None
            found = reference
        else:
            (found,) = _call(comm, group, inputs[comm.rank].copy(), algorithm, False, timeout, findings)
            findings.digests.append((algorithm, group, False, _digest([found])))
        error = [math.fsum([*map(float, values), -float(sum_)]) for *values, sum_ in zip(*inputs, found, strict=True)]
        ulp = np.nan_to_num(np.abs(error) / np.spacing(found).astype(float), nan=np.inf)
        findings.ulp[algorithm] = max(findings.ulp.get(algorithm, 0.0), float(ulp.max()))
        if (worst := int(ulp.argmax())) >= 0 and not ulp[worst] <= comm.size - 1:
            bound = f"an error of at most {comm.size - 1} ulp"
            findings.add(algorithm, group, False, worst, bound, f"{ulp[worst]:g} ulp", "the bound p - 1")


def _put_together(comm: Any, findings: _Findings) -> Report:
    """Exchange what the ranks found; compare their results bit by bit."""
    everyone = comm.allgather((findings.failures, findings.digests, findings.ulp))
    failures: list[Failure] = [failure for found, _, _ in everyone for failure in found]
    lists = [digests for _, digests, _ in everyone]
    for entries in zip(*lists, strict=False):
        algorithm, group, in_place, digest = entries[0]
        for rank, (*_, other) in enumerate(entries):
            if other != digest:
                against = "checksum of rank 0's result: all ranks get the same bits"
                theirs = _Findings(rank)
                theirs.add(algorithm, group, in_place, 0, f"{digest:08x}", f"{other:08x}", against)
                failures += theirs.failures
    ulp: dict[str, float] = {}
    for _, _, errors in everyone:
        for name, value in errors.items():
            ulp[name] = max(value, ulp.get(name, 0.0))
    return Report(comm.size, findings.cases, failures, ulp)
