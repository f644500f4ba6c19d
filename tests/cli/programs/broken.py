"""Run ``validate`` with something broken on purpose, one fault after the other: ``broken.py FAULT,... ARGUMENT ...``.

The findings are in FAULT.json. The status is that of the command, if all faults end alike.
"""

import functools
import sys

import numpy as np
from mpi4py import MPI

import hpcreduce
from hpcreduce import commands
from hpcreduce.measure import validate
from hpcreduce.schedule import Recv, Send, Span

ring = hpcreduce.ALGORITHMS["ring"].rounds
allreduce = validate.allreduce
rank = MPI.COMM_WORLD.rank


def lost_round(rank, size, count):
    """Forget the last round: one chunk stays unfinished."""
    yield from list(ring(rank, size, count))[:-1]


def lost_message(rank, size, count):
    """Let rank 1 wait for a message that nobody sends."""
    yield from ring(rank, size, count)
    if rank == 1:
        yield (Recv(0, Span(0, count), None),)


def wrong_size(rank, size, count):
    """Let rank 1 send an element less than is awaited."""
    for verbs in ring(rank, size, count):
        yield tuple(shorter(verb) if rank == 1 and isinstance(verb, Send) else verb for verb in verbs)


def shorter(send):
    """Cut one element off."""
    start, stop = send.span
    return Send(send.peer, Span(start, max(start, stop - 1)))


def raises(rank, size, count):
    """Fail on one rank only."""
    if rank == 1:
        raise ZeroDivisionError("rank 1 cannot divide")
    yield from ring(rank, size, count)


def changed_input(comm, sendbuf, recvbuf=None, *arguments, **options):
    """Scribble over the input on rank 1."""
    result = allreduce(comm, sendbuf, recvbuf, *arguments, **options)
    if rank == 1 and recvbuf is None and sendbuf.size:
        sendbuf[-1] = 77
    return result


def other_bits(comm, sendbuf, *arguments, **options):
    """Return another NaN on rank 1: equal, but not bit for bit."""
    result = allreduce(comm, sendbuf, *arguments, **options)
    if rank == 1:
        np.negative(result, out=result, where=np.isnan(result))
    return result


def zeros(comm, sendbuf, *arguments, **options):
    """Return nothing but zeros."""
    result = allreduce(comm, sendbuf, *arguments, **options)
    result[...] = 0
    return result


def infinite(comm, sendbuf, *arguments, **options):
    """Return infinity and NaN."""
    result = allreduce(comm, sendbuf, *arguments, **options)
    result[...] = np.inf
    result[::2] = np.nan
    return result


def other_dtype(comm, sendbuf, *arguments, **options):
    """Return another dtype."""
    return allreduce(comm, sendbuf, *arguments, **options).astype(np.float32)


class Broken(MPI.Intracomm):
    """A communicator whose Allreduce is wrong on rank 2."""

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        """Spoil the last element."""
        super().Allreduce(sendbuf, recvbuf, op)
        if self.rank == 2 and recvbuf.size:
            recvbuf[-1] += 1


WRAPPERS = (changed_input, other_bits, zeros, infinite, other_dtype)
SCHEDULES = (lost_round, lost_message, wrong_size, raises)


def main(fault, *arguments):
    """Break it, run, and mend it."""
    command = sys.modules["hpcreduce.commands.validate"]
    row, whole = hpcreduce.ALGORITHMS["ring"], command.validate
    command.validate = functools.partial(whole, timeout=2.0)
    if fault == "library":
        command.validate = lambda comm, **options: whole(Broken(comm), **options)
    elif fault in [function.__name__ for function in WRAPPERS]:
        validate.allreduce = globals()[fault]
    elif fault in [function.__name__ for function in SCHEDULES]:
        hpcreduce.ALGORITHMS["ring"] = row._replace(rounds=globals()[fault])
    elif fault != "none":
        raise ValueError(f"unknown fault {fault}")
    try:
        return commands.run(arguments)
    finally:
        hpcreduce.ALGORITHMS["ring"], validate.allreduce, command.validate = row, allreduce, whole


if __name__ == "__main__":
    statuses = [main(fault, *sys.argv[2:], "--json", f"{fault}.json") for fault in sys.argv[1].split(",")]
    sys.exit(statuses[0] if len(set(statuses)) == 1 else 77)
