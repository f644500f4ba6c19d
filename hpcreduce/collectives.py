"""The collective operations of the public interface."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from hpcreduce.preparation import PLANS, admit, check_timeout, kind, persistent, prepare, run
from hpcreduce.runtime import agreement, buffers, operations
from hpcreduce.runtime import wire as encoding
from hpcreduce.runtime.buffers import Given
from hpcreduce.runtime.calls import Call
from hpcreduce.runtime.operations import Operation
from hpcreduce.runtime.plan import Plan
from hpcreduce.runtime.state import State
from hpcreduce.selection import check_types


def allreduce(
    comm: Any,
    sendbuf: Any,
    recvbuf: Any = None,
    op: Any = "sum",
    *,
    algorithm: str = "auto",
    segment: int | None = None,
    order: str | None = None,
    wire: str | None = None,
    weight: float | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> Any:
    """Combine what every rank holds, element by element, and give every rank the same result, bit for bit.

    (The bits of a NaN are the one exception, where the library's own call runs a sum.)

    Collective over `comm`. All ranks pass the same shape, dtype, op, algorithm and segment.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The ranks that take part.
    sendbuf : array_like or MPI.IN_PLACE
        What this rank contributes: a NumPy array of any layout, a scalar, a Python number, a list of numbers, an
        ``array.array`` or a memoryview. Not changed, unless it is `recvbuf` too.
    recvbuf : array, optional
        Where the result goes: a writable array of the shape of `sendbuf` and the result's dtype. The same array as
        `sendbuf`, or ``sendbuf=MPI.IN_PLACE``, reduces in place. `None` allocates. For ``maxloc`` and ``minloc`` a pair
        of arrays (values, int64 ranks).
    op : str, MPI.Op or callable
        ``sum mean prod max min nanmax nanmin land lor lxor band bor bxor maxloc minloc``; the ``MPI.SUM`` style; or
        ``f(a, b) -> c`` on arrays, taken as non-commutative unless ``f.commutative`` is true.
    algorithm : str
        A name in `hpcreduce.ALGORITHMS`, ``hierarchical:NAME`` with what runs across nodes, or ``auto``.
    segment : int, optional
        Largest message in bytes; by default what was measured to be best (``python -m hpcreduce tune``), or 256 KiB to
        1 MiB within a node and 48 KiB across nodes.
    order : str, optional
        ``rank``: every element of a floating point sum or mean is summed in one place, in doubled precision, and
        rounded once (algorithm ``direct``): the same bits for this number of ranks, whatever the segment, the nodes and
        the timing.
    wire : str, optional
        ``bfloat16`` or ``float16``: what travels (algorithm ``direct``). Each contribution is rounded to it once, they
        are combined in float32 (float64 for wider arrays), and the result is rounded to it once, alike on every rank.
    weight : float, optional
        For ``op="mean"`` of numbers: what this rank's contribution counts for, from 0 on, such as the size of its
        batch. The result is the sum of weight times array over the sum of the weights, which travel with the arrays and
        are of the type that is reduced in. A rank of weight 0 contributes nothing, whatever its array holds. Without
        weights every rank counts alike. All ranks pass a weight, or none does.
    timeout : float, optional
        Seconds; by default ``HPCREDUCE_TIMEOUT``, or 600. Where ranks differ, the first to pass ends it for all.
    check : bool
        Make sure before any rank gets a result that all ranks make the same call. `False` leaves that out where it
        costs anything, which is where the library's own call runs: ranks that differ may get wrong numbers there. All
        ranks pass the same.

    Returns
    -------
    array, NumPy scalar or Python number
        `recvbuf` where it was given. Else an array of the shape of `sendbuf`; a NumPy scalar for a NumPy scalar, a
        Python number for a Python number. ``maxloc`` and ``minloc``: a pair (values, ranks).

        The dtype is that of `sendbuf`, but for sum and prod of bools (int64) and the mean of bools and integers
        (float64). Integer sums wrap around, as NumPy's do. float16 and bfloat16 are reduced in float32 and rounded
        once. ``max`` and ``min`` propagate NaN, ``nanmax`` and ``nanmin`` ignore it. ``maxloc`` gives the lowest rank
        on ties.

    Raises
    ------
    TypeError, ValueError
        A wrong argument on this rank: before any message of this call is sent. ValueError on all ranks if all weights
        are 0.
    MismatchError
        Ranks make different calls, or one has left without making this one; on every rank, with who does what. It is a
        ValueError too.
    CollectiveTimeoutError
        The time-out passed; on every rank that waits, with those that did not come.
    PeerError
        Another rank has failed; with its traceback.
    BrokenCommunicatorError
        An earlier call on this communicator ended in one of these errors; `hpcreduce.Intracomm.recover` mends it.
    HpcreduceError
        Another thread is in a call on this communicator.
    LaunchError
        This process is one of several that the launcher started, and alone in its MPI world.

    Examples
    --------
    ::

        from mpi4py import MPI
        import hpcreduce

        mean = hpcreduce.allreduce(MPI.COMM_WORLD, gradient, op="mean")
        hpcreduce.allreduce(MPI.COMM_WORLD, MPI.IN_PLACE, array, algorithm="ring")
    """
    if weight is not None:
        return _weighted(comm, sendbuf, recvbuf, op, weight, algorithm, segment, order, wire, timeout, check)
    state, call, operation, given = _checked(
        "allreduce", comm, sendbuf, recvbuf, op, algorithm, segment, order, wire, timeout, check
    )
    return run(state, call, operation, given, sendbuf, recvbuf, timeout)


def iallreduce(
    comm: Any,
    sendbuf: Any,
    recvbuf: Any = None,
    op: Any = "sum",
    *,
    algorithm: str = "auto",
    segment: int | None = None,
    order: str | None = None,
    wire: str | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> Plan:
    """Start an all-reduce and return a handle: ``Test`` it, or ``Wait`` for its result. Collective.

    The arguments, and the result of ``Wait``, are those of `allreduce`. All ranks start their operations in the same
    order; they may wait for them in any. `sendbuf` may be changed after the call, unless the operation is in place. The
    time-out counts from ``Wait``.

    Between the call and ``Wait`` no blocking MPI call may wait for a rank that waits for this operation: only our own
    waits move it. ``algorithm="mpi"``, which ``auto`` does not take here, hands the arrays to MPI_Iallreduce, and that
    is not checked.

    Returns
    -------
    Plan
        With ``Test() -> bool`` and ``Wait() -> result``. It is no MPI.Request.

    Raises
    ------
    TypeError, ValueError, BrokenCommunicatorError, HpcreduceError
        As `allreduce`.

    Examples
    --------
    ::

        handle = hpcreduce.iallreduce(comm, gradient, op="mean")
        compute()
        mean = handle.Wait()
    """
    checked = _checked("iallreduce", comm, sendbuf, recvbuf, op, algorithm, segment, order, wire, timeout, check)
    plan = Plan(*checked, sendbuf, recvbuf, timeout)
    plan.Start()
    return plan


def allreduce_init(
    comm: Any,
    sendbuf: Any,
    recvbuf: Any = None,
    op: Any = "sum",
    *,
    algorithm: str = "auto",
    segment: int | None = None,
    order: str | None = None,
    wire: str | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> Plan:
    """Prepare an all-reduce of these buffers that can be started again and again. Collective.

    The arguments, and the result of ``Wait``, are those of `allreduce`; ``Start`` reads `sendbuf` anew each time. All
    ranks make their plans in the same order; they may start them in any.

    Returns
    -------
    Plan
        With ``Start()``, ``Test() -> bool``, ``Wait() -> result`` and ``Free()``, and usable in a ``with`` block.

    Raises
    ------
    TypeError, ValueError, BrokenCommunicatorError, HpcreduceError
        As `allreduce`.

    Examples
    --------
    ::

        with hpcreduce.allreduce_init(comm, gradient, gradient, op="mean") as plan:
            for batch in batches:
                compute_into(gradient, batch)
                plan.Start()
                plan.Wait()
    """
    checked = _checked("allreduce_init", comm, sendbuf, recvbuf, op, algorithm, segment, order, wire, timeout, check)
    return persistent(*checked, sendbuf, recvbuf, timeout)


def _weighted(
    comm: Any,
    sendbuf: Any,
    recvbuf: Any,
    op: Any,
    weight: float,
    algorithm: str,
    segment: int | None,
    order: str | None,
    wire: str | None,
    timeout: float | None,
    check: bool,
) -> Any:
    """Sum the array times its weight, and the weight behind it, in one call; then divide."""
    operation = operations.resolve(op)
    if not operation.divides:
        raise ValueError(f"weight is for op 'mean', found op {operation.name!r}")
    if wire is not None:
        raise ValueError(f"wire {wire!r} would round the weights; leave out wire= or weight=")
    check_weight(weight)
    source = buffers.source(sendbuf, recvbuf, False)
    work, result = operation.types(source.dtype)
    if work.kind not in "fc":
        raise TypeError(f"weight is for means of numbers, found dtype {source.dtype}")
    given = buffers.pair(source, sendbuf, recvbuf, result, False)
    flat = np.empty(source.size + 1, work)
    sums = flat[:-1]
    sums.reshape(source.shape)[...] = source if weight else 0
    sums *= weight
    flat[-1] = weight
    name = f"allreduce[mean with weights of {source.dtype} {source.shape}]"
    checked = _checked(name, comm, flat, flat, "sum", algorithm, segment, order, None, timeout, check)
    run(*checked, flat, flat, timeout)
    total = flat[-1].real
    if not total > 0:
        raise ValueError("the weights of all ranks are 0; expected one above 0 on some rank")
    operations.divide(sums, total)
    buffers.store(sums, given)
    return recvbuf if recvbuf is not None else buffers.returned(given, sendbuf)


def _checked(
    name: str,
    comm: Any,
    sendbuf: Any,
    recvbuf: Any,
    op: Any,
    algorithm: str,
    segment: int | None,
    order: str | None,
    wire: str | None,
    timeout: float | None,
    check: bool,
) -> tuple[State, Call, Operation, Given]:
    """Check the arguments, and return what a `Plan` of them is made of."""
    if timeout is not None:
        check_timeout(timeout)
    state = agreement.state(comm, timeout)
    operation = operations.resolve(op)
    source = buffers.source(sendbuf, recvbuf, operation.locates)
    if segment is not None or type(algorithm) is not str:
        check_types(algorithm, segment)  # before the look-up: 1, 1.0 and True are equal keys
    if order is not None or wire is not None:
        encoding.check(order, wire)
    sharing = bool(state.arrays)
    key = kind(name, operation, source.shape, source.dtype, algorithm, segment, order, wire, bool(check), sharing)
    keep = name not in PLANS
    known = state.call(key) if keep else None
    call = known or prepare(state, operation, key)
    given = buffers.pair(source, sendbuf, recvbuf, call.result, operation.locates)
    if keep:  # only now that nothing can be refused any more, since ranks must stay in step
        call = admit(state, call, operation, source.size, timeout) if known is None else state.used(call)
    return state, call, operation, given


def check_weight(weight: float) -> None:
    """Raise if this is no weight."""
    if isinstance(weight, bool) or not isinstance(weight, numbers.Real):
        raise TypeError(f"weight must be a number, found {weight!r}")
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight must be finite and not below 0, found {weight!r}")
