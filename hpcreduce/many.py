"""Many arrays in few messages: what is reduced alike travels together.

Rules that hold here:

* Each part of the arrays (`hpcreduce.runtime.parts`) is one all-reduce of one buffer, like any other.
* Every part's call is described by all arrays, so that ranks that differ in any of them find out in the first.
* All checks are done, for all parts, before any message is sent.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np

from hpcreduce import preparation
from hpcreduce.runtime import agreement, buffers, lists
from hpcreduce.runtime.buffers import Given
from hpcreduce.runtime.calls import Call
from hpcreduce.runtime.operations import Array
from hpcreduce.runtime.parts import Layout, Part, finish, make_pieces, pack
from hpcreduce.runtime.plan import Plan
from hpcreduce.selection import check_types


def allreduce_many(
    comm: Any,
    arrays: Any,
    op: Any = "sum",
    *,
    out: Any = None,
    algorithm: str = "auto",
    segment: int | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> Any:
    """Combine many arrays over all ranks in as few messages as their dtypes and operations allow.

    The results are those of `hpcreduce.allreduce` for one array after the other; but a sum that rounds may round in
    another order. Collective over `comm`. All ranks pass arrays of the same shapes and dtypes, in the same order or by
    the same names, and the same operations.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The ranks that take part.
    arrays : sequence of array_like, or mapping of str to array_like
        What this rank contributes, each as `hpcreduce.allreduce` takes it: arrays of any shape, dtype and layout,
        scalars, numbers. The order of a mapping does not matter: names are what ranks agree on. Not changed, unless
        they are `out` too.
    op : str, MPI.Op or callable, or a sequence or mapping of these
        One for all, or one for each array, as for `hpcreduce.allreduce`.
    out : sequence or mapping of arrays, optional
        Where the results go: like `arrays`, of the results' dtypes; for ``maxloc`` and ``minloc`` a pair of arrays.
        ``out=arrays`` reduces in place. No two may share memory.
    algorithm, segment, check
        As for `hpcreduce.allreduce`, for each of the messages.
    timeout : float, optional
        As for `hpcreduce.allreduce`, for each part anew.

    Returns
    -------
    list or dict
        `out` where it was given. Else a list of the results, or a dict with the keys of `arrays` in their order. Each
        is of the kind, shape and dtype that `hpcreduce.allreduce` returns. Arrays are views of one buffer per part,
        which lives as long as one of them does; none shares elements with another.

    Raises
    ------
    TypeError, ValueError
        A wrong argument on this rank, with the index or the name of the array: before any message is sent.
    MismatchError
        Ranks differ in the number of arrays, a name, a shape, a dtype or an operation (a mean apart from a sum too); on
        every rank, with what each has from the first difference on.
    CollectiveTimeoutError, PeerError, BrokenCommunicatorError, HpcreduceError
        As `hpcreduce.allreduce`.

    Notes
    -----
    One part, which is one all-reduce, for all arrays that are reduced in the same dtype by the same operation. Sum and
    mean are one: so are float16, bfloat16 and float32, which are summed in float32. An ``MPI.Op`` of your own and a
    NumPy ufunc take all their arrays of one dtype at once, since they work element by element. Any other function may
    not, and each of its arrays is a part.

    Examples
    --------
    ::

        loss, seen, worst = hpcreduce.allreduce_many(comm, [loss, seen, error], op=["mean", "sum", "max"])
        hpcreduce.allreduce_many(comm, gradients, op="mean", out=gradients)  # in place
    """
    if timeout is not None:
        preparation.check_timeout(timeout)
    state = agreement.state(comm, timeout)
    check_types(algorithm, segment)
    names, items = lists.listed(arrays)
    sources = lists.sources(names, items)
    layout = lists.laid_out(names, sources, op)
    targets = None if out is None else lists.targets(names, items, sources, out, layout)
    keys = _keys(layout, "allreduce_many", algorithm, segment, check)
    calls = {
        key: state.call(key) or preparation.prepare(state, part.operation, key)
        for key, part in zip(keys, layout.parts, strict=True)
    }
    results: list[Any] = [None] * len(items)
    for key, part in zip(keys, layout.parts, strict=True):  # from here on nothing can be refused any more
        flat, call = pack(part, sources), calls[key]
        if state.calls.get(key) is call:
            state.used(call)
        else:
            call = calls[key] = preparation.admit(state, call, part.operation, part.length, timeout)
        given = _given(part, flat, call)
        preparation.run(state, call, part.operation, given, flat, None, timeout)
        pieces = make_pieces(part, given.targets[0])
        finish(part, given.targets[0], pieces, state.size)
        found = _results(part, pieces, given)
        if part.in_order:
            results = found
        else:
            for index, result in zip(part.members, found, strict=True):
                results[index] = result
    if targets is not None:
        lists.write(targets, results)
        return out
    if sources is not items:
        results = list(map(lists.returned, items, results))
    return lists.like(arrays, names, results)


class Fused:
    """An all-reduce of many arrays that can be started again and again, like a `hpcreduce.Plan` for each of its parts.

    It holds one buffer for each part (see `hpcreduce.allreduce_many`). Who computes straight into `arrays`, which are
    views of these buffers, has nothing packed or copied.

    ``Start`` copies in the arrays that were given, and starts. ``Test`` and ``Wait`` move this and all other operations
    in flight. ``Wait`` returns the results. Use it in a ``with`` block, or call ``Free``. Between ``Start`` and
    ``Wait`` leave `arrays` and results alone, and no blocking MPI call may wait for the same ranks. Collective, and all
    ranks make their plans in the same order; they may start them in any.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The ranks that take part.
    arrays : sequence or mapping
        Each as `hpcreduce.allreduce_many` takes it; or a pair ``(shape, dtype)``, which nothing is copied for: fill the
        view in `arrays` before each ``Start``. An array that is given is read anew by each ``Start``, which overwrites
        its view.
    op, out, algorithm, segment, timeout, check
        As for `hpcreduce.allreduce_many`. ``Wait`` writes to `out`.

    Attributes
    ----------
    arrays : list of numpy.ndarray, or dict
        Like the parameter: one view for each array, of its shape, and of the dtype in which it is reduced (float32 for
        float16 and bfloat16, int64 for the sum of bools, float64 for the mean of integers, bool for logical
        operations). The reduction is in place: after ``Wait`` they hold what was combined, which is not to be added up
        again. (For ``maxloc`` and ``minloc`` they keep the contribution.)
    active : bool
        It is started and not seen complete.

    Raises
    ------
    TypeError, ValueError, MismatchError, CollectiveTimeoutError, PeerError, BrokenCommunicatorError, HpcreduceError
        As `hpcreduce.allreduce_many`.

    Examples
    --------
    ::

        shapes = {name: (array.shape, array.dtype) for name, array in weights.items()}
        with hpcreduce.Fused(comm, shapes, op="mean") as fused:
            for batch in batches:
                compute_gradients(batch, out=fused.arrays)
                fused.Start()
                gradients = fused.Wait()
    """

    def __init__(
        self,
        comm: Any,
        arrays: Any,
        op: Any = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        segment: int | None = None,
        timeout: float | None = None,
        check: bool = True,
    ) -> None:
        if timeout is not None:
            preparation.check_timeout(timeout)
        state = agreement.state(comm, timeout)
        check_types(algorithm, segment)
        names, items = lists.listed(arrays)
        specified = [_is_specification(item) for item in items]
        items = [_specified(names, index, item) if specified[index] else item for index, item in enumerate(items)]
        sources = lists.sources(names, items)
        layout = lists.laid_out(names, sources, op)
        self._targets = None if out is None else lists.targets(names, items, sources, out, layout)
        keys = _keys(layout, "Fused", algorithm, segment, check)
        calls = [preparation.prepare(state, part.operation, key) for part, key in zip(layout.parts, keys, strict=True)]
        views: list[Any] = [None] * len(items)
        results: list[Any] = [None] * len(items)
        self._plans: list[Plan] = []
        self._parts: list[tuple[Part, Array, list[Array]]] = []
        for part, call in zip(layout.parts, calls, strict=True):  # from here on nothing can be refused any more
            flat = np.zeros(part.length, part.dtype)
            given = _given(part, flat, call)
            pieces = make_pieces(part, given.targets[0])
            for index, view, result in zip(
                part.members, part.views(part.cut(flat)), _results(part, pieces, given), strict=True
            ):
                views[index], results[index] = view, result
            self._plans.append(preparation.persistent(state, call, part.operation, given, flat, None, timeout))
            self._parts.append((part, given.targets[0], pieces))
        self.arrays = lists.like(arrays, names, views)
        self._names, self._keys = names, None if names is None else list(arrays)
        self._size, self._out, self._results, self._settled = state.size, out, results, True
        self._loads = [(views[index], sources[index]) for index in range(len(items)) if not specified[index]]
        self._items = items if any(isinstance(item, lists.NUMBERS) for item in items) else None

    @property
    def active(self) -> bool:
        """Whether it is started and not seen complete."""
        return any(plan.active for plan in self._plans)

    def Start(self) -> None:
        """Copy in the arrays that were given, and start; collective, but needs no other rank to return.

        Raises
        ------
        ValueError
            It was freed, is active already, or its communicator is gone.
        """
        for plan in self._plans:
            if plan.active:
                plan.Start()  # which says why not
        for view, source in self._loads:
            view[...] = source
        self._settled = False
        for plan in self._plans:
            plan.Start()

    def Test(self) -> bool:
        """Move all operations in flight; return whether this one is complete."""
        complete = all(plan.Test() for plan in self._plans)
        if complete:
            self._settle()
        return complete

    def Wait(self) -> Any:
        """Wait until the operation is complete, and return its results as `hpcreduce.allreduce_many` does.

        Arrays among them belong to this plan: they are valid until the next ``Start``. Those of the dtype in which they
        are reduced are those in `arrays`.

        Raises
        ------
        CollectiveTimeoutError
            The time-out passed, for a part, counted from when it is waited for.
        MismatchError, PeerError
            As `hpcreduce.allreduce`.
        """
        for plan in self._plans:
            plan.Wait()
        self._settle()
        if self._out is not None:
            return self._out
        results = list(map(lists.returned, self._items, self._results)) if self._items else list(self._results)
        return lists.like(self._keys, self._names, results)

    def _settle(self) -> None:
        """Make the results of what was combined, once."""
        if not self._settled:
            self._settled = True
            for part, flat, pieces in self._parts:
                finish(part, flat, pieces, self._size)
            if self._targets is not None:
                lists.write(self._targets, self._results)

    def Free(self) -> None:
        """Give back what the plan holds; one that is active cannot be freed. Arrays and results can be used on."""
        if any(plan.active and not plan.state.broken for plan in self._plans):
            raise ValueError("the plan is active; Wait comes before Free")
        for plan in self._plans:
            plan.Free()
        self._loads = []

    def __enter__(self) -> Fused:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.active and error is None:
            self.Wait()
        if not self.active:
            self.Free()


def _results(part: Part, pieces: list[Array], given: Given) -> list[Any]:
    """Return the results of the members: arrays, or pairs of values and ranks."""
    values = part.views(pieces)
    return list(zip(values, part.views(part.cut(given.targets[1])), strict=True)) if part.operation.locates else values


def _given(part: Part, flat: Array, call: Call) -> Given:
    if part.operation.locates:
        return buffers.pair(flat, flat, None, call.result, True)
    return Given(flat, (flat,), True)


def _keys(layout: Layout, name: str, algorithm: str, segment: int | None, check: bool) -> list[Any]:
    name = f"{name}[{layout.text}]"
    return [
        preparation.kind(name, part.operation, (part.length,), part.dtype, algorithm, segment, check=bool(check))
        for part in layout.parts
    ]


def _is_specification(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], (str, type, np.dtype))


def _specified(names: tuple[str, ...] | None, index: int, item: Any) -> Array:
    """Return an array of this shape and dtype that takes no memory."""
    shape, dtype = item
    return lists.labelled(names, index, lambda: np.broadcast_to(np.zeros((), dtype), shape))  # type: ignore[no-any-return]
