"""Parameters that are tensors of torch: their memory as arrays, and their gradients. Only this file knows torch.

torch is not imported but for those who have done so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcreduce.runtime.operations import Array

if TYPE_CHECKING:
    from hpcreduce.gradients.averager import GradientAverager


def is_tensor(item: Any) -> bool:
    """Whether this is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Tensor)


def values(tensor: Any) -> Array:
    """Return a tensor's memory as an array.

    Raises
    ------
    TypeError
        A tensor that is not in host memory, or not dense.
    """
    import torch

    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise TypeError(
            f"tensors on {tensor.device} of layout {tensor.layout} are not supported; expected a dense one on the cpu"
        )
    plain = tensor.detach()
    if plain.dtype != torch.bfloat16:
        return plain.numpy()  # type: ignore[no-any-return]
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise TypeError("bfloat16 needs the package ml_dtypes: pip install ml_dtypes") from None
    return plain.view(torch.int16).numpy().view(bfloat16)  # type: ignore[no-any-return]


def tensor(array: Array) -> Any:
    """Return an array's memory as a tensor."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class Gradients:
    """The gradients of tensors, whose homes are arrays.

    Parameters
    ----------
    items : sequence of torch.Tensor
    views : sequence of numpy.ndarray
        The home of each one's gradient.
    arrived : callable
        Called with a tensor's number when autograd has accumulated its gradient.
    """

    def __init__(self, items: Sequence[Any], views: Sequence[Array], arrived: Callable[[int], None]) -> None:
        self._items, self._homes = items, [tensor(view) for view in views]

        def hook(index: int, _: Any) -> None:
            arrived(index)

        self._hooks = [
            item.register_post_accumulate_grad_hook(partial(hook, index))
            for index, item in enumerate(items)
            if item.requires_grad
        ]

    def fetch(self, index: int) -> bool:
        """Bring a tensor's gradient home, unless it is there; return whether it has one."""
        item, home = self._items[index], self._homes[index]
        found = item.grad
        if found is None:
            return False
        if found is not home:
            if found.is_sparse:
                raise TypeError("a sparse gradient is not supported; expected a dense one")
            home.copy_(found)
            item.grad = home
        return True

    def deliver(self, index: int, there: bool) -> Any:
        """Let the tensor's gradient be what is at home, or `None`; return it."""
        item = self._items[index]
        item.grad = self._homes[index] if there else None
        return item.grad

    def close(self) -> None:
        """Let go of the tensors; their gradients stay where they are."""
        for each in self._hooks:
            each.remove()


def for_torch(model: Any, comm: Any, **options: Any) -> GradientAverager:
    """Return a `GradientAverager` of the parameters of a torch module that require gradients; collective.

    ``broadcast_parameters`` covers its buffers and frozen parameters too.

    Parameters
    ----------
    model : torch.nn.Module
        On the CPU.
    comm : mpi4py.MPI.Intracomm
    **options
        As for `GradientAverager`.

    Examples
    --------
    ::

        averager = hpcreduce.gradients.for_torch(model, MPI.COMM_WORLD)
        averager.broadcast_parameters()
        for inputs, targets in batches:
            averager.zero_grad()
            averager.weight = len(inputs)
            loss(model(inputs), targets).backward()  # buckets leave as they fill
            averager.average()
            optimizer.step()
    """
    from hpcreduce.gradients.averager import GradientAverager

    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    others = {name: each for name, each in model.named_parameters() if not each.requires_grad}
    return GradientAverager(comm, trained, others=others | dict(model.named_buffers()), **options)
