"""The collective operations of the public interface."""

from __future__ import annotations

import math
import numbers
from typing import Any

from hpcreduce.runtime import agreement, buffers, operations
from hpcreduce.runtime import wire as encoding
from hpcreduce.runtime.agreement import Call, State
from hpcreduce.runtime.buffers import Given
from hpcreduce.runtime.operations import DType, Operation
from hpcreduce.runtime.plan import ENGINE_BELOW, Plan
from hpcreduce.runtime.program import compile_rounds
from hpcreduce.runtime.stream import Stream
from hpcreduce.selection import LIBRARY_BELOW, check_types, choose

REUSED = 4 << 10
"""Bytes up to which it is faster to copy an array into a prepared one than to tell the library of it."""


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
    timeout: float | None = None,
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
        Largest message in bytes; by default 256 KiB to 1 MiB within a node and 48 KiB across nodes.
    order : str, optional
        ``rank``: every element of a floating point sum or mean is summed in one place, in doubled precision, and
        rounded once (algorithm ``direct``): the same bits for this number of ranks, whatever the segment, the nodes and
        the timing.
    wire : str, optional
        ``bfloat16`` or ``float16``: what travels (algorithm ``direct``). Each contribution is rounded to it once, they
        are combined in float32 (float64 for wider arrays), and the result is rounded to it once, alike on every rank.
    timeout : float, optional
        Seconds; by default ``HPCREDUCE_TIMEOUT``, or 600.

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
        A wrong argument on this rank: before any message of this call is sent.
    CollectiveTimeoutError
        The time-out passed; the communicator cannot be used by this package any more.
    BrokenCommunicatorError
        An earlier call on this communicator was interrupted.
    HpcreduceError
        Another thread is in a call on this communicator.

    Examples
    --------
    ::

        from mpi4py import MPI
        import hpcreduce

        mean = hpcreduce.allreduce(MPI.COMM_WORLD, gradient, op="mean")
        hpcreduce.allreduce(MPI.COMM_WORLD, MPI.IN_PLACE, array, algorithm="ring")
    """
    state, call, operation, given = _checked(comm, sendbuf, recvbuf, op, algorithm, segment, order, wire, timeout)
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
) -> Plan:
    """Start an all-reduce and return a handle: ``Test`` it, or ``Wait`` for its result. Collective.

    The arguments, and the result of ``Wait``, are those of `allreduce`. All ranks start their operations in the same
    order; they may wait for them in any. `sendbuf` may be changed after the call, unless the operation is in place. The
    time-out counts from ``Wait``.

    Between the call and ``Wait`` no blocking MPI call may wait for a rank that waits for this operation: only our own
    waits move it.

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
    plan = Plan(
        *_checked(comm, sendbuf, recvbuf, op, algorithm, segment, order, wire, timeout), sendbuf, recvbuf, timeout
    )
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
    checked = _checked(comm, sendbuf, recvbuf, op, algorithm, segment, order, wire, timeout, keep=False)
    return Plan(*checked, sendbuf, recvbuf, timeout).persist()


def _checked(
    comm: Any,
    sendbuf: Any,
    recvbuf: Any,
    op: Any,
    algorithm: str,
    segment: int | None,
    order: str | None,
    wire: str | None,
    timeout: float | None,
    keep: bool = True,
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
    key = kind(operation, source.shape, source.dtype, algorithm, segment, order, wire)
    known = state.call(key) if keep else None
    call = known or prepare(state, operation, key, keep)
    given = buffers.pair(source, sendbuf, recvbuf, call.result, operation.locates)
    if keep:  # only now that nothing can be refused any more, since ranks must stay in step
        call = admit(state, call, operation, source.size) if known is None else state.used(call)
    return state, call, operation, given


def run(
    state: State, call: Call, operation: Operation, given: Given, sendbuf: Any, recvbuf: Any, timeout: float | None
) -> Any:
    """Run a prepared call on these buffers, and return its result."""
    if call.plan:
        return call.plan.rerun(given, sendbuf, recvbuf, timeout)
    return Plan(state, call, operation, given, sendbuf, recvbuf, timeout).run()


def kind(
    operation: Operation,
    shape: tuple[int, ...],
    dtype: DType,
    algorithm: str,
    segment: int | None = None,
    order: str | None = None,
    wire: str | None = None,
) -> tuple[Any, ...]:
    """Return the key of all calls that are prepared alike."""
    return shape, dtype, operation.name, operation.commutative, algorithm, segment, order, wire


def prepare(state: State, operation: Operation, key: tuple[Any, ...], keep: bool = True) -> Call:
    """Prepare the calls of this `kind` on this rank, to be kept for all of them or for one plan."""
    shape, dtype, _, _, algorithm, segment, order, wire = key
    work, result = operation.types(dtype)
    codec = None
    if order or wire:
        codec = encoding.codec(operation, dtype, order, wire, state.size)
        work = codec.work if codec else work
        algorithm, asked = "direct", algorithm
        if asked not in ("auto", "direct"):
            what = "order" if order else "wire"
            raise ValueError(
                f"{what} {order or wire!r} needs algorithm 'direct', found {asked!r}; use algorithm='auto'"
            )
    count = math.prod(shape)
    below = ENGINE_BELOW if state.leaky and not keep else LIBRARY_BELOW
    choice = choose(algorithm, segment, operation, work, count, state.nodes, below)
    row = choice.algorithm
    stream = op = None
    if row.rounds is not None:
        program = compile_rounds(row.rounds(state.rank, state.size, count, **choice.static), choice.segment)
        stream = Stream(state.comm, program, work, choice.window, codec=codec)
    else:
        op = operations.predefined(operation)
    static = (*choice.static.items(), order, wire)
    mark = agreement.fingerprint("allreduce", operation.name, dtype.str, shape, row.name, choice.segment, static)
    text = f"allreduce(op {operation.name}, dtype {dtype}, shape {shape}, algorithm {row.name})"
    return Call(key, work, result, choice, mark, stream, op, text, codec)


def admit(state: State, call: Call, operation: Operation, count: int) -> Call:
    """Keep a call that is made for the first time; collective where the library runs it on a small array."""
    if call.op and count * call.work.itemsize <= REUSED:
        call = call._replace(plan=Plan.reusable(state, call, operation, count))
    return state.keep(call)


def check_timeout(timeout: float) -> None:
    """Raise if this is no time-out."""
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real):
        raise TypeError(f"timeout must be a number of seconds, found {timeout!r}")
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds, found {timeout!r}")
