"""How calls are prepared: what runs them, under which key they are kept, and what all ranks do the first time."""

from __future__ import annotations

import math
import numbers
from typing import Any

from hpcreduce.runtime import engines, movers, operations
from hpcreduce.runtime import wire as encoding
from hpcreduce.runtime.buffers import Given
from hpcreduce.runtime.calls import Call, fingerprint
from hpcreduce.runtime.head import layout
from hpcreduce.runtime.memory import FOLDER, NoRoomError
from hpcreduce.runtime.operations import DType, Operation
from hpcreduce.runtime.plan import Plan, agree
from hpcreduce.runtime.program import compile_rounds
from hpcreduce.runtime.rooms import SMALLEST, TINY, capacity, worth_a_look
from hpcreduce.runtime.state import State
from hpcreduce.selection import LIBRARY_BELOW, choose

PLANS = ("allreduce_init", "Fused")
"""Calls that make a persistent plan."""

NEVER_AT_ONCE = ("mpi", "shared")
"""What ``auto`` does not take in `iallreduce`: neither an engine nor a room can be in flight more than once."""


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
    where_they_are = sharing and blocking and state.shareable and algorithm in ("auto", "shared")
    where_they_are = where_they_are and worth_a_look(nbytes, state.size)
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
