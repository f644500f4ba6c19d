"""The collective operations of the public interface."""

from __future__ import annotations

import math
import numbers
from typing import Any

from hpcreduce.runtime import agreement, buffers, engines, movers, operations
from hpcreduce.runtime import wire as encoding
from hpcreduce.runtime.buffers import Given
from hpcreduce.runtime.calls import Call, fingerprint
from hpcreduce.runtime.head import layout
from hpcreduce.runtime.memory import FOLDER, NoRoomError
from hpcreduce.runtime.operations import DType, Operation
from hpcreduce.runtime.plan import Plan, agree
from hpcreduce.runtime.program import compile_rounds
from hpcreduce.runtime.rooms import SMALLEST, TINY, capacity
from hpcreduce.runtime.state import State
from hpcreduce.selection import LIBRARY_BELOW, check_types, choose

PLANS = ("allreduce_init", "Fused")
"""Calls that make a persistent plan."""

NEVER_AT_ONCE = ("mpi", "shared")
"""What ``auto`` does not take in `iallreduce`: neither an engine nor a room can be in flight more than once."""


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
        A wrong argument on this rank: before any message of this call is sent.
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


def run(
    state: State, call: Call, operation: Operation, given: Given, sendbuf: Any, recvbuf: Any, timeout: float | None
) -> Any:
    """Run a prepared call on these buffers, and return its result."""
    if call.plan:
        return call.plan.rerun(given, sendbuf, recvbuf, timeout)
    return Plan(state, call, operation, given, sendbuf, recvbuf, timeout).run()


def kind(
    name: str,
    operation: Operation,
    shape: tuple[int, ...],
    dtype: DType,
    algorithm: str,
    segment: int | None = None,
    order: str | None = None,
    wire: str | None = None,
    check: bool = True,
    sharing: bool = False,
) -> tuple[Any, ...]:
    """Return the key of all calls that are prepared alike; `sharing`: the communicator has node-shared arrays."""
    return name, shape, dtype, operation.name, operation.commutative, algorithm, segment, order, wire, check, sharing


def prepare(state: State, operation: Operation, key: tuple[Any, ...]) -> Call:
    """Prepare the calls of this `kind` on this rank."""
    name, shape, dtype, _, _, algorithm, segment, order, wire, check, sharing = key
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
    function = name.partition("[")[0]  # many arrays are described after it
    blocking, plan = function != "iallreduce", function in PLANS
    if algorithm == "shared" and not blocking:
        raise ValueError("algorithm 'shared' cannot run iallreduce; use allreduce_init, or algorithm='auto'")
    if algorithm == "shared" and not state.shareable:
        raise ValueError(
            f"algorithm 'shared' needs all ranks on one node, where they can share memory in {FOLDER}; use "
            "algorithm='auto'"
        )
    nbytes, room = count * work.itemsize, 0
    without = NEVER_AT_ONCE if not blocking else () if state.shareable else ("shared",)
    if plan and (sharing or nbytes >= LIBRARY_BELOW or not layout(operation, work, state.size)):
        without = *without, "mpi"  # whose plans need an engine, in which a head tells ranks apart
    choice = choose(algorithm, segment, operation, work, count, state.nodes, state.tables, without)
    row = choice.algorithm
    stream = op = engine = head = None
    inside = row.name == "hierarchical" and state.hosted and state.counterparts and blocking and nbytes > TINY
    where_they_are = sharing and blocking and state.shareable and algorithm in ("auto", "shared") and nbytes > TINY
    if row.name == "shared" or inside:
        room = capacity(nbytes, across=bool(inside))
    elif where_they_are:
        room = SMALLEST  # its flags tell whether all ranks pass node-shared arrays
    if row.rounds is not None and not inside:
        program = compile_rounds(row.rounds(state.rank, state.size, count, **choice.static), choice.segment)
        stream = movers.messages(state, program, work, choice.window, codec)
    elif row.name == "mpi":
        op = operations.predefined(operation)
        head = layout(operation, work, state.size) if check else None
        if op and blocking and not plan and state.shareable and (nbytes > TINY or not head):
            room = SMALLEST  # not for plans: of those in flight, ranks could enter different ones
        if op and not room and nbytes < LIBRARY_BELOW and (head or not check) and blocking:
            engine = engines.offset(head, count, work.itemsize) + engines.room(count, work.itemsize), work, op.handle
    static = (*choice.static.items(), order, wire, check)
    mark = fingerprint(name, operation.name, dtype.str, shape, row.name, choice.segment, static)
    extra = "".join(f", {key} {value}" for key, value in (("order", order), ("wire", wire)) if value)
    text = f"{name}(op {operation.name}, dtype {dtype}, shape {shape}, algorithm {row.name}{extra})"
    call = Call(key, work, result, choice, mark, stream, op, text, codec, engine=engine, head=head, checked=check)
    return call._replace(room=room, where_they_are=where_they_are)


def admit(state: State, call: Call, operation: Operation, count: int, timeout: float | None) -> Call:
    """Keep a call that is made for the first time; collective where it is the first of its engine or room."""
    pool, key = (state.rooms, call.room) if call.room else (state.engines, call.engine)
    if key and key not in pool.blocking:
        agree(state, call, state.timeout if timeout is None else timeout)
        state.recorder.again = True
        try:
            pool.add(key) if call.room else pool.add(key, call.op)
        except NoRoomError:  # on every rank
            return admit(state, prepare(state, operation, call.key), operation, count, timeout)
    if call.room:
        call = call._replace(stream=movers.exchange(state, call, operation, pool.blocking[key], count))
    small = count * call.work.itemsize <= (TINY if call.room else LIBRARY_BELOW)
    if key and small and operation.predefined:  # others of this name may be other functions
        call = call._replace(plan=Plan.reusable(state, call, operation, count))
    return state.keep(call)


def persistent(
    state: State, call: Call, operation: Operation, given: Given, sendbuf: Any, recvbuf: Any, timeout: float | None
) -> Plan:
    """Return a plan of these buffers that can be started again and again; collective."""
    try:
        return Plan(state, call, operation, given, sendbuf, recvbuf, timeout).persist()
    except NoRoomError:  # on every rank; from now on no call of this communicator asks for any
        call = prepare(state, operation, call.key)
        return Plan(state, call, operation, given, sendbuf, recvbuf, timeout).persist()


def check_timeout(timeout: float) -> None:
    """Raise if this is no time-out."""
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real):
        raise TypeError(f"timeout must be a number of seconds, found {timeout!r}")
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds, found {timeout!r}")
