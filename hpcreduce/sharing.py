"""Arrays in memory that the ranks of a node share, which are reduced where they are."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcreduce.preparation import check_timeout
from hpcreduce.runtime import agreement
from hpcreduce.runtime.calls import Call, fingerprint
from hpcreduce.runtime.memory import NoRoomError
from hpcreduce.runtime.operations import Array
from hpcreduce.runtime.plan import agree
from hpcreduce.runtime.state import State, states


def empty(
    comm: Any, shape: int | Sequence[int], dtype: Any = np.float64, *, timeout: float | None = None
) -> np.ndarray[Any, np.dtype[Any]]:
    """Make an array in memory that the ranks of this node share. Collective; each rank gets an array of its own.

    It is an ordinary array. Where all ranks of `comm` are on one node and pass such arrays, or contiguous slices of
    them, as the buffer of an `allreduce` in place, they are reduced where they are, without a message: about as fast as
    copying them. Where some pass others, or `comm` has several nodes, ``auto`` takes what it takes for any array.

    The memory is given back once nothing refers to the array any more and `free`, or the communicator's end, has made
    the other ranks forget it.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    shape : int or sequence of int
        The same on all ranks.
    dtype : dtype, optional
        The same on all ranks; of a fixed size, without objects.
    timeout : float, optional
        Seconds; by default ``HPCREDUCE_TIMEOUT``, or 600.

    Returns
    -------
    numpy.ndarray
        Its bytes are zero at first, though nobody should count on it: see `zeros`.

    Raises
    ------
    TypeError, ValueError
        Not a shape, or not such a dtype.
    MemoryError
        A rank has no room for it; on every rank.
    MismatchError, CollectiveTimeoutError, PeerError, BrokenCommunicatorError, HpcreduceError
        As `hpcreduce.allreduce`.

    Examples
    --------
    ::

        gradient = hpcreduce.empty(comm, 1_000_000, np.float32)
        compute_into(gradient)
        hpcreduce.allreduce(comm, gradient, gradient)
    """
    if timeout is not None:
        check_timeout(timeout)
    kind, lengths = _kind(dtype), _shape(shape)
    state = agreement.state(comm, timeout)
    count = math.prod(lengths)
    nbytes = max(1, count * kind.itemsize)
    text = f"empty(shape {lengths}, dtype {kind})"
    limit = state.timeout if timeout is None else timeout
    agree(state, Call((), kind, kind, None, fingerprint("empty", lengths, kind.str), None, None, text), limit)  # type: ignore[arg-type]
    try:
        memories = state.share(nbytes, text, limit)
    except NoRoomError as error:
        raise MemoryError(str(error)) from None
    own = state.arrays.add(state.mates.index(state.rank), nbytes, memories)
    return np.ndarray(lengths, kind, own)


def zeros(
    comm: Any, shape: int | Sequence[int], dtype: Any = np.float64, *, timeout: float | None = None
) -> np.ndarray[Any, np.dtype[Any]]:
    """Make an array of zeros in memory that the ranks of this node share; see `empty`. Collective."""
    array = empty(comm, shape, dtype, timeout=timeout)
    array.fill(0)
    return array


def share(array: Any, comm: Any = None, *, timeout: float | None = None) -> np.ndarray[Any, np.dtype[Any]]:
    """Copy an array into memory that the ranks of this node share, and return that; see `empty`. Collective.

    Parameters
    ----------
    array : array_like
        Of the same shape and dtype on all ranks.
    comm : mpi4py.MPI.Intracomm, optional
        By default COMM_WORLD.
    timeout : float, optional
        As `empty`.
    """
    if hasattr(array, "Get_rank"):
        raise TypeError("array is a communicator: expected share(array, comm)")
    if comm is None:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    given = np.asarray(array)
    made = empty(comm, given.shape, given.dtype, timeout=timeout)
    made[...] = given
    return made


def free(array: Any) -> None:
    """Let go of an array that `empty`, `zeros` or `share` made: from now on it is one like any other.

    Collective over its communicator, and all ranks free their arrays in the same order. Its memory is given back when
    nothing refers to it any more. Freeing the communicator frees all of its arrays.

    Raises
    ------
    TypeError, ValueError
        Not an array, or none that was made so and is not freed yet.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"array must be a node-shared array, found {type(array).__name__}")
    state, place = _owner(array)
    if state is None:
        raise ValueError("the array is not node-shared: hpcreduce.empty did not make it, or it was freed")
    state.arrays.remove(place)


def _owner(array: Array) -> tuple[State | None, int]:
    for state in list(states):
        if place := state.arrays.place(array):
            return state, place
    return None, 0


def _kind(dtype: Any) -> np.dtype[Any]:
    kind: np.dtype[Any] = np.dtype(dtype)
    if kind.hasobject or not kind.itemsize:
        raise TypeError(f"dtype {kind} cannot be shared: expected one of a fixed size, without objects")
    return kind


def _shape(shape: Any) -> tuple[int, ...]:
    lengths: tuple[int, ...]
    try:
        lengths = (operator.index(shape),)
    except TypeError:
        try:
            lengths = tuple(operator.index(length) for length in shape)
        except TypeError:
            raise TypeError(f"shape must be a whole number or a sequence of them, found {shape!r}") from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape must not be negative, found {shape!r}")
    return lengths
