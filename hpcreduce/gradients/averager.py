"""`GradientAverager`: what a training loop calls."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from hpcreduce.errors import NonFiniteError
from hpcreduce.gradients import replicas, reports, tensors
from hpcreduce.gradients.buckets import Bucket, Options, arrange
from hpcreduce.gradients.parameters import Parameter, described, read, values
from hpcreduce.gradients.step import Head, Step, check_for
from hpcreduce.objects import everyone
from hpcreduce.preparation import check_timeout
from hpcreduce.related import bcast
from hpcreduce.runtime import agreement, lists
from hpcreduce.runtime import wire as encoding
from hpcreduce.selection import check_types

BUCKET_BYTES = 25 << 20
"""Bytes of a bucket, unless one parameter has more."""

POLICIES = ("raise", "skip", "keep")
"""What may be done about gradients that are not finite."""


class GradientAverager:
    """Average the gradients of a model whose parameters all ranks hold alike. Making one is collective.

    Each rank computes the gradients on its share of a batch; after `average` all ranks hold the same ones, bit for bit:
    the weighted mean over ranks. With the sizes of their shares as weights that is the gradient of the mean loss over
    the whole batch.

    Gradients lie side by side in buckets, each of which is one all-reduce. With NumPy, compute straight into `grads`,
    or pass arrays to `average`. With torch, the tensors' ``grad`` are in the buckets, and a bucket leaves as soon as
    autograd has filled it. It moves whenever a gradient arrives, without a thread of its own. Use it in a ``with``
    block, or call `close`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    params : sequence or mapping
        NumPy arrays, or tensors of torch (see `hpcreduce.gradients.for_torch`), of floating point or complex numbers.
        All ranks pass the same shapes and dtypes in the same order, or by the same names: then the order does not
        matter.
    bucket_bytes : int
        Bytes of a bucket; a larger parameter has one of its own.
    wire : str, optional
        ``bfloat16`` or ``float16``: what travels. Gradients are rounded to it once, summed in float32 (float64 for
        wider ones), and the mean is rounded to it once. ``float16`` takes no weights, which it could not hold.
    weight : float, optional
        What this rank's gradients count for, from 0 on: the attribute can be set before each backward pass. `None` is
        1: the plain mean of the ranks' gradients, which is not that of all samples if ranks have different numbers.
    algorithm, order
        As for `hpcreduce.allreduce`.
    nonfinite : str
        What is done where a rank's gradient has NaN or infinities. ``raise``: NonFiniteError on every rank, with
        parameters and ranks; ``skip``: a RuntimeWarning with them on rank 0, and `average` returns `None`; ``keep``:
        the warning only.
    others : mapping, optional
        Arrays or tensors by name that only `broadcast_parameters` covers: what is not trained.
    timeout : float, optional
        As for `hpcreduce.allreduce`, for each message.

    Attributes
    ----------
    grads : list of numpy.ndarray, or dict
        Like `params`: a view into the buckets for each gradient.
    weight : float or None
    overlap : bool
        Buckets start when they are full (true at first), rather than all in `average`.
    norm : float
        The norm of the last average, before clipping, if it was clipped.
    seconds : float
        Time that this rank has spent so far in starting, moving and awaiting messages.

    Raises
    ------
    TypeError, ValueError
        Wrong arguments on this rank.
    MismatchError
        Ranks have different parameters or options; on every rank, with the names.
    PeerError
        Another rank's arguments are wrong.
    CollectiveTimeoutError, BrokenCommunicatorError, HpcreduceError
        As `hpcreduce.allreduce`.

    Examples
    --------
    ::

        with hpcreduce.GradientAverager(comm, weights) as averager:
            averager.broadcast_parameters()
            for batch in batches:
                compute_gradients(weights, batch, out=averager.grads)
                update(weights, averager.average(weight=len(batch)))
    """

    def __init__(
        self,
        comm: Any,
        params: Any,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        wire: str | None = None,
        weight: float | None = None,
        algorithm: str = "auto",
        order: str | None = None,
        nonfinite: str = "raise",
        others: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> None:
        if timeout is not None:
            check_timeout(timeout)
        self._comm, self._state, self._timeout = comm, agreement.state(comm, timeout), timeout
        self.overlap, self.weight, self.norm, self.seconds = True, weight, math.nan, 0.0
        self._wire, self._policy, self._syncs, self._closed, self._calls = wire, nonfinite, True, False, 0
        self._names: tuple[str, ...] | None = None
        self._parameters: list[Parameter] = []
        self._others: list[Parameter] = []
        error: Exception | None = None
        try:
            _check(bucket_bytes, nonfinite)
            encoding.check(order, wire)
            check_types(algorithm, None)
            self._names, self._parameters = read(params)
            self._others = read({} if others is None else others, trained=False)[1]
            check_for(weight, wire)
        except (TypeError, ValueError) as caught:
            error = caught
        options = {"bucket_bytes": bucket_bytes, "wire": wire, "algorithm": algorithm, "order": order}
        own = {
            "parameters": described([*self._parameters, *self._others]),
            "options": {name: str(value) for name, value in (options | {"nonfinite": nonfinite}).items()},
        }
        reports.compare(comm, self._state, own, error, timeout)
        self._keys = None if self._names is None else list(params)
        self._prepare(bucket_bytes, Options(algorithm, wire, order, timeout))

    def _prepare(self, bucket_bytes: int, options: Options) -> None:
        """Make buckets, in the order in which rank 0 has the parameters, and the head; collective."""
        comm, parameters, names = self._comm, self._parameters, self._names
        numbers = {name: number for number, name in enumerate(names or ())}
        order = np.array([numbers[key] for key in self._keys or ()] if numbers else range(len(parameters)), np.int64)
        bcast(comm, order, timeout=self._timeout)
        self._buckets = [
            Bucket(comm, self._state, parameters, members, options)
            for members in arrange(parameters, order[::-1].tolist(), bucket_bytes)
        ]
        self._homes = {index: bucket for bucket in self._buckets for index in bucket.members}
        views = {
            index: view for bucket in self._buckets for index, view in zip(bucket.members, bucket.views, strict=True)
        }
        self._views = [views[index] for index in range(len(parameters))]
        self.grads = lists.like(self._keys, names, self._views)
        self._head, self._step = Head(comm, len(parameters), self._timeout), Step(parameters)
        self._tensors: tensors.Gradients | None = None
        if parameters and tensors.is_tensor(parameters[0].item):
            items = [parameter.item for parameter in parameters]
            self._tensors = tensors.Gradients(items, self._views, self._arrived)

    def broadcast_parameters(self, root: int = 0) -> None:
        """Hand the parameters of rank `root`, and `others`, to all, into their arrays or tensors; collective.

        Raises
        ------
        TypeError, ValueError, HpcreduceError
            As `hpcreduce.bcast`.
        """
        self._refuse_closed()
        for parameter in (*self._parameters, *self._others):
            bcast(self._comm, values(parameter.item), root, timeout=self._timeout)

    def zero_grad(self) -> None:
        """Set all gradients to zero, where they are averaged: with torch they are then accumulated there, not copied.

        Unlike the optimizer's ``zero_grad()`` it leaves no gradient `None`.
        """
        self._refuse_closed()
        if self._under_way():
            raise ValueError("buckets are under way; average() comes before zero_grad()")
        for bucket in self._buckets:
            bucket.home.fill(0)
        if self._tensors:
            for index in range(len(self._parameters)):
                self._tensors.deliver(index, True)

    def ready(self, which: str | int) -> None:
        """Tell that a gradient in `grads` is complete: its bucket leaves once all of it is. With torch a hook does so.

        Parameters
        ----------
        which : str or int
            Its name, or its place where `params` are a sequence.

        Raises
        ------
        ValueError
            No such parameter, or one that was ready before and not averaged yet.
        """
        self._refuse_closed()
        known = range(len(self._parameters)) if self._names is None else self._names
        if which not in known:
            raise ValueError(f"no parameter {which!r}; expected one of those the averager was made for")
        self._arrived(known.index(which))  # type: ignore[arg-type]

    def _arrived(self, index: int) -> None:
        """Note that a gradient is complete, and move what is in flight."""
        if not self._syncs:
            return
        start, bucket = time.perf_counter(), self._homes[index]
        if index not in bucket.waiting:
            raise ValueError(
                f"parameter {self._parameters[index].label} got another gradient before average(); backward passes "
                "that only accumulate belong into no_sync()"
            )
        self._step.fetch(index, self._views[index], None, self._tensors)
        bucket.waiting.discard(index)
        if self.overlap and not bucket.waiting:
            self._start(bucket)
        for each in self._buckets:
            if each.started and not each.plan.Test():  # which moves all others too
                break
        self.seconds += time.perf_counter() - start

    def average(self, gradients: Any = None, *, weight: float | None = None, max_norm: float | None = None) -> Any:
        """Average the gradients over all ranks; collective.

        Parameters
        ----------
        gradients : sequence or mapping, optional
            Like `params`, with `None` for a gradient that this rank does not have: copied into the buckets. By default
            what is there, in `grads`; with torch, the tensors' gradients.
        weight : float, optional
            As the attribute, for this time.
        max_norm : float, optional
            If the norm of all averages together is larger, they are scaled down to it. Every rank computes that from
            the averages: no further message.

        Returns
        -------
        list, dict or None
            Like `params`: the averages, which are views into the buckets, or the tensors' gradients. A gradient that
            some rank does not have counts as zero there, with the rank's weight; one that no rank has is `None`.
            `None` instead of all if gradients were not finite and are skipped; then those of tensors are `None` too.

        Raises
        ------
        TypeError, ValueError
            The averager is closed; wrong arguments, or a parameter that has another shape by now, on this rank; the
            weights of all ranks are 0.
        PeerError
            One of these on another rank. The communicator can be used on.
        NonFiniteError
            See `nonfinite`. The averages are lost.
        MismatchError, CollectiveTimeoutError, BrokenCommunicatorError, HpcreduceError
            As `hpcreduce.allreduce`.
        """
        self._refuse_closed()
        if not self._syncs:
            raise ValueError("average() inside of no_sync(); it belongs after the last backward pass, outside")
        start = time.perf_counter()
        try:
            given = self._step.bring(self._names, gradients, weight, max_norm, self._wire)
            for bucket in self._buckets:
                if not bucket.started:
                    for index in bucket.waiting:
                        self._step.fetch(index, self._views[index], given, self._tensors)
                    self._start(bucket)
            scale: float | None = 1.0 if self._combine() else None
            if scale and max_norm is not None:
                scale = self._clip(max_norm)
            return self._deliver(scale is not None, scale or 1.0)
        finally:
            self._step = Step(self._parameters)
            self.seconds += time.perf_counter() - start

    def _start(self, bucket: Bucket) -> None:
        self._step.lost |= bucket.start(self._step.claim(self.weight, self._wire))

    def _combine(self) -> bool:
        """Wait for all averages, and raise what any rank has found wrong; return whether to go on with them."""
        step, head, state = self._step, self._head, self._state
        step.claim(self.weight, self._wire)
        head.combine(step)
        for bucket in self._buckets:
            bucket.finish(head.total or 1.0, state.size)
        if head.troubled:
            lost = [[self._parameters[index].label, text] for index, text in sorted(step.lost.items())]
            theirs = everyone(self._comm, [reports.describe(step.error), lost], self._timeout)
            reports.refuse(state, "average()", [error for error, _ in theirs], step.error)
            return self._judge(*reports.nonfinite([lost for _, lost in theirs]))
        if not head.total:
            raise ValueError("the weights of all ranks are 0; expected one above 0 on some rank")
        return True

    def _judge(self, text: str, ranks: tuple[int, ...] = ()) -> bool:
        """Do what is asked for about numbers that are not finite; return whether to go on."""
        if self._policy == "raise":
            error = NonFiniteError(f"rank {self._state.rank}: {text}")
            error.ranks = ranks
            raise error
        if self._state.rank == 0:
            done = "the step is skipped" if self._policy == "skip" else "they are kept"
            warnings.warn(f"{text}; {done}", RuntimeWarning, stacklevel=4)
        return self._policy == "keep"

    def _clip(self, max_norm: float) -> float | None:
        """Return what the averages are to be scaled by, `None` if they are skipped."""
        self.norm = math.hypot(*(bucket.norm() for bucket in self._buckets))
        if math.isfinite(self.norm):
            return min(1.0, max_norm / self.norm) if self.norm else 1.0
        return 1.0 if self._judge(f"the norm of the averages is {self.norm}") else None

    def _deliver(self, go_on: bool, scale: float) -> Any:
        """Return the averages in the order of `params`, where they are wanted."""
        for bucket in self._buckets:
            bucket.settle(scale)
        there = self._head.there & go_on
        if self._tensors:
            found = [self._tensors.deliver(index, bool(each)) for index, each in enumerate(there)]
        else:
            found = [view if each else None for view, each in zip(self._views, there, strict=True)]
        return lists.like(self._keys, self._names, found) if go_on else None

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients accumulate on this rank: backward passes inside send nothing.

        All but the last one before `average` belong here. All ranks do the same.
        """
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def check_replicas(self, every: int = 1) -> bool:
        """Compare the parameters of all ranks, bit by bit, in each so many-th call; collective.

        Parameters
        ----------
        every : int
            All ranks pass the same.

        Returns
        -------
        bool
            Whether they were compared.

        Raises
        ------
        ReplicaError
            They differ; on every rank, with the names of parameters and the ranks that differ from most.
        TypeError, ValueError, HpcreduceError
            `every` is below 1; the averager is closed; as `hpcreduce.allreduce`.

        Notes
        -----
        Two check sums of 32 bits per parameter travel. Reading all parameters takes longer: about 1 GB/s.
        """
        self._refuse_closed()
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a whole number from 1 on, found {every!r}")
        self._calls += 1
        if self._calls % every:
            return False
        replicas.check(self._comm, self._state.rank, self._parameters, self._timeout)
        return True

    def close(self) -> None:
        """Give back plans, node-shared memory and hooks; all ranks do so. The gradients stay where they are."""
        if self._closed:
            return
        if self._under_way() and not self._state.broken:
            raise ValueError("buckets are under way; average() comes before close()")
        self._closed = True
        if self._tensors:
            self._tensors.close()
        for bucket in self._buckets:
            bucket.free()
        self._head.free()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ValueError("the GradientAverager is closed; make a new one")

    def __enter__(self) -> GradientAverager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self._under_way():
            self.close()

    def _under_way(self) -> bool:
        return any(bucket.started for bucket in self._buckets)


def _check(bucket_bytes: Any, nonfinite: Any) -> None:
    """Raise if these are no options."""
    if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, (int, np.integer)):
        raise TypeError(f"bucket_bytes must be a whole number of bytes, found {bucket_bytes!r}")
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be at least 1, found {bucket_bytes}")
    if nonfinite not in POLICIES:
        raise ValueError(f"nonfinite must be one of {', '.join(POLICIES)}, found {nonfinite!r}")
