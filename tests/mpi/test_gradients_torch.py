"""Averaging the gradients of torch modules. Skipped where torch is not installed."""

import numpy as np
import pytest
from outcomes import outcomes

from hpcreduce import GradientAverager
from hpcreduce.gradients import for_torch
from hpcreduce.runtime import wait

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.mpi


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3)).to(dtype)


def batch(comm, whole=False, dtype=torch.float64):
    """Rank r has r + 2 samples."""
    counts = [rank + 2 for rank in range(comm.size)]
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(sum(counts), 6, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(3, (sum(counts),), generator=generator)
    first = sum(counts[: comm.rank])
    mine = slice(None) if whole else slice(first, first + counts[comm.rank])
    return inputs[mine], targets[mine]


def backward(model, inputs, targets):
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    return len(inputs)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("zero", ["none", "zeros", "ours"])
@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_equal_to_one_process_over_the_union_of_the_batches(comm, kind, zero, overlap):
    dtype = getattr(torch, kind)
    model, alone = network(dtype=dtype), network(dtype=dtype)
    optimizer, other = (torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (model, alone))
    with for_torch(model, comm, bucket_bytes=500, timeout=60) as averager:
        averager.overlap = overlap
        homes = [view.__array_interface__["data"][0] for view in averager.grads.values()]
        for _ in range(3):
            averager.zero_grad() if zero == "ours" else optimizer.zero_grad(set_to_none=zero == "none")
            other.zero_grad()
            inputs, targets = batch(comm, dtype=dtype)
            averager.weight = len(inputs)
            backward(model, inputs, targets)
            averager.average()
            backward(alone, *batch(comm, whole=True, dtype=dtype))
            for mine, wanted in zip(model.parameters(), alone.parameters(), strict=True):
                tolerance = (1e-12 if kind == "float64" else 2e-6) * wanted.grad.abs().max()
                assert (mine.grad - wanted.grad).abs().max() <= tolerance
            assert [each.grad.data_ptr() for each in model.parameters()] == homes  # nothing is copied back
            optimizer.step()
            other.step()
            assert averager.check_replicas()
    assert not wait.in_flight and averager.seconds > 0
    model.zero_grad()
    backward(model, *batch(comm, dtype=dtype))  # no hook is left


def test_accumulation_and_what_is_not_used(comm):
    model, spare = network(), torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    named = dict(model.named_parameters()) | {"spare": spare, "rare": torch.nn.Parameter(torch.ones(3))}
    with GradientAverager(comm, named, timeout=60) as averager:
        inputs, targets = batch(comm, whole=True)
        with averager.no_sync():
            backward(model, inputs[:4] if len(inputs) > 4 else inputs, targets[:4])
        backward(model, inputs, targets)
        if comm.rank == 0:
            named["rare"].sum().backward()
        averager.average()
        assert spare.grad is None and named["rare"].grad.tolist() == pytest.approx([1 / comm.size] * 3)
        wanted = network()
        backward(wanted, inputs[:4], targets[:4])
        backward(wanted, inputs, targets)
        for mine, other in zip(model.parameters(), wanted.parameters(), strict=True):
            assert torch.allclose(mine.grad, other.grad, rtol=1e-12, atol=1e-15)
        with pytest.raises(ValueError, match="got another gradient before average"):
            for _ in range(2):
                backward(model, inputs, targets)
        averager.average()
        with pytest.raises(TypeError, match="call average"):
            averager.average(dict.fromkeys(named))


def test_skipping_leaves_no_gradient(comm):
    model = network()
    with for_torch(model, comm, nonfinite="skip", timeout=60) as averager:
        inputs, targets = batch(comm)
        backward(model, inputs * (np.nan if comm.rank == comm.size - 1 else 1), targets)
        if comm.rank == 0:
            with pytest.warns(RuntimeWarning, match=f"not finite: parameter '0.bias' on rank {comm.size - 1}"):
                assert averager.average() is None
        else:
            assert averager.average() is None
        assert all(each.grad is None for each in model.parameters())


def test_buffers_and_frozen_parameters_are_broadcast(comm):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model[0].bias.requires_grad_(False)
    for each in model.state_dict().values():
        each.fill_(comm.rank + 3)
    with for_torch(model, comm, timeout=60) as averager:
        assert list(averager.grads) == ["0.weight", "1.weight", "1.bias"]
        averager.broadcast_parameters()
        assert all((each == 3).all() for each in model.state_dict().values())


def test_half_precision_and_what_is_not_taken(comm):
    pytest.importorskip("ml_dtypes")
    half = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    with GradientAverager(comm, [half], timeout=60) as averager:
        (half * (comm.rank + 1)).sum().backward()
        averager.average()
        assert half.grad.dtype == torch.bfloat16 and half.grad.tolist() == [(comm.size + 1) / 2] * 2
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    with for_torch(embedding, comm, timeout=60) as averager:
        embedding(torch.tensor([1])).sum().backward()
        found = outcomes(comm, averager.average)
        assert [each.error for each in found] == ["TypeError"] * comm.size
        assert all("gradient of parameter 'weight': a sparse gradient" in each.text for each in found)
    for bad in (
        [torch.zeros(2), np.zeros(2)],
        [torch.zeros(2, dtype=torch.int32)],
        torch.zeros(2),
        [torch.zeros(2, device="meta")],
    ):
        with pytest.raises(TypeError):
            GradientAverager(comm, bad, timeout=20)
