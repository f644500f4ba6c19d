"""The network that `train_digits.py` trains, in NumPy and in torch: the same numbers, but for rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.gradients import GradientAverager

TEST = 360
"""Samples that are kept for the test."""

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


class Settings(NamedTuple):
    """What decides the course of the training, but for rounding."""

    batch: int
    hidden: int
    rate: float
    momentum: float
    seed: int


class Run(NamedTuple):
    """A network in training: its arrays, what one step does to them, and who averages.

    ``step(inputs, targets)`` returns the sum of the losses and the number of right answers on this rank's share.
    """

    weights: Arrays
    velocities: Arrays
    averager: GradientAverager
    step: Callable[[Any, Any], tuple[float, int]]


def digits() -> tuple[Any, Any, Any, Any]:
    """Return inputs and targets to train on, and to test with."""
    from sklearn.datasets import load_digits

    inputs, targets = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(targets))
    inputs, targets = inputs[order] / 16, targets[order]
    return inputs[TEST:], targets[TEST:], inputs[:TEST], targets[:TEST]


def fresh(settings: Settings) -> Arrays:
    """Return weights to start with, the same on all ranks."""
    random, hidden = np.random.default_rng(settings.seed), settings.hidden
    return {
        "1.weight": random.normal(0, (2 / 64) ** 0.5, (hidden, 64)),
        "1.bias": np.zeros(hidden),
        "2.weight": random.normal(0, (1 / hidden) ** 0.5, (10, hidden)),
        "2.bias": np.zeros(10),
    }


def outputs(weights: Arrays, inputs: Any) -> tuple[Any, Any]:
    """Return the hidden values and the logits."""
    hidden = np.maximum(inputs @ weights["1.weight"].T + weights["1.bias"], 0)
    return hidden, hidden @ weights["2.weight"].T + weights["2.bias"]


def accuracy(weights: Arrays, inputs: Any, targets: Any) -> float:
    """Return the share of right answers."""
    return float((outputs(weights, inputs)[1].argmax(axis=1) == targets).mean())


def numpy_run(comm: Any, settings: Settings, order: str | None) -> Run:
    """Return a network in NumPy, with gradients by hand."""
    weights = fresh(settings)
    velocities = {name: np.zeros_like(array) for name, array in weights.items()}
    averager = GradientAverager(comm, weights, others=velocities, order=order, bucket_bytes=64 << 10)
    grads = averager.grads

    def step(inputs: Any, targets: Any) -> tuple[float, int]:
        number = len(targets)
        hidden, logits = outputs(weights, inputs)
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=1, keepdims=True)
        loss = -np.log(chances[range(number), targets]).sum()
        right = int((chances.argmax(axis=1) == targets).sum())
        averager.weight = number
        error = (chances - np.eye(10)[targets]) / max(1, number)
        np.matmul(error.T, hidden, out=grads["2.weight"])
        np.sum(error, axis=0, out=grads["2.bias"])
        averager.ready("2.weight")
        averager.ready("2.bias")  # these leave while the others are computed
        error = error @ weights["2.weight"] * (hidden > 0)
        np.matmul(error.T, inputs, out=grads["1.weight"])
        np.sum(error, axis=0, out=grads["1.bias"])
        for name, mean in averager.average().items():
            velocities[name] *= settings.momentum
            velocities[name] += mean
            weights[name] -= settings.rate * velocities[name]
        return float(loss), right

    return Run(weights, velocities, averager, step)


def torch_run(comm: Any, settings: Settings, order: str | None) -> Run:
    """Return the same network in torch, whose tensors are the memory of the arrays."""
    import torch

    torch.set_num_threads(1)
    weights = fresh(settings)
    velocities = {name: np.zeros_like(array) for name, array in weights.items()}
    model = torch.nn.Sequential()
    for name, layer in (
        ("1", torch.nn.Linear(64, settings.hidden)),
        ("relu", torch.nn.ReLU()),
        ("2", torch.nn.Linear(settings.hidden, 10)),
    ):
        model.add_module(name, layer)
    optimizer = torch.optim.SGD(model.parameters(), settings.rate, settings.momentum)
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(weights[name])
        optimizer.state[parameter]["momentum_buffer"] = torch.from_numpy(velocities[name])
    averager = GradientAverager(
        comm, dict(model.named_parameters()), others=velocities, order=order, bucket_bytes=64 << 10
    )

    def step(inputs: Any, targets: Any) -> tuple[float, int]:
        averager.zero_grad()
        averager.weight = number = len(targets)
        logits = model(torch.from_numpy(inputs))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets), reduction="sum")
        (loss / max(1, number)).backward()
        averager.average()
        optimizer.step()
        return float(loss.detach()), int((logits.argmax(dim=1).numpy() == targets).sum())

    return Run(weights, velocities, averager, step)


BACKENDS = {"numpy": numpy_run, "torch": torch_run}
