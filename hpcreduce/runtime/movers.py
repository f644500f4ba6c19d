"""What moves the data of a call: a stream of messages, or an exchange in memory that the ranks of a node share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcreduce.algorithms.hierarchical import ACROSS, inner, renumbered
from hpcreduce.runtime import memory
from hpcreduce.runtime.calls import Call, Mover
from hpcreduce.runtime.meeting import Met
from hpcreduce.runtime.operations import Operation, divide
from hpcreduce.runtime.program import Program, compile_rounds
from hpcreduce.runtime.rooms import Room, Seat, redundant
from hpcreduce.runtime.shared import Redundant, Shared
from hpcreduce.runtime.state import State
from hpcreduce.runtime.stream import Stream


def messages(state: State, program: Program, dtype: Any, window: int, codec: Any = None) -> Stream:
    """Return a stream of the communicator's messages."""
    return Stream(state.comm, program, dtype, window, codec=codec, status=state.status)


def exchange(state: State, call: Call, operation: Operation, room: Room, count: int) -> Mover:
    """Return what reduces arrays of this kind in that room."""
    seat = Seat(room, state.mates, state.mates.index(state.rank), operation.predefined, memory.fence())
    otherwise: Mover | None = call.stream
    if call.op:
        otherwise = Met(seat, count, call.work, _library(state, call.op))
        if not call.where_they_are:
            return otherwise
    in_parts = call.where_they_are or state.counterparts
    if not in_parts and redundant(count * call.work.itemsize, state.size):
        return Redundant(seat, count, call.work)
    across, divides = call.choice.static.get("across", ACROSS), call.where_they_are and operation.divides
    return Shared(
        seat,
        count,
        call.work,
        ordered=not operation.commutative,
        arrays=state.arrays if call.where_they_are else None,
        otherwise=otherwise,
        divide=(lambda block: divide(block, state.size)) if divides else None,
        across=(lambda length: _across(state, length, across, call)) if state.counterparts else None,
    )


def _library(state: State, op: Any) -> Callable[[Any], object]:
    return lambda buffer: state.comm.Allreduce(state.in_place, buffer, op)


def _across(state: State, count: int, algorithm: str, call: Call) -> Stream:
    """Return what combines a chunk with those of this rank's counterparts."""
    ranks = state.counterparts
    rounds = inner(algorithm).rounds(ranks.index(state.rank), len(ranks), count)
    return messages(
        state, compile_rounds(renumbered(rounds, ranks), call.choice.segment), call.work, call.choice.window
    )
