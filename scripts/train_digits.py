"""Train a small network on scikit-learn's handwritten digits, each batch spread over the ranks.

    mpirun -n 4 python scripts/train_digits.py
    mpirun -n 4 python scripts/train_digits.py --backend torch --checkpoint digits.npz --plot loss.png

All ranks hold the network, each computes the gradients on its share of a batch, and `hpcreduce.GradientAverager` makes
them those of the whole batch: the loss is that of one process, whatever the number of ranks. After SIGTERM the ranks
finish the step that they are in, write the checkpoint, and end with status 143; --resume goes on there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import sys
import time
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import click
import numpy as np
from digits_networks import BACKENDS, Run, Settings, accuracy, digits

import hpcreduce
from hpcreduce.commands import TERMINATED, run
from hpcreduce.commands.console import PICTURES, Console, need, whole_file
from hpcreduce.schedule import partition

STEPS = 40
"""Steps that are timed on each number of ranks, half of them without overlap."""


def batches(settings: Settings, samples: int, first: int, last: int) -> Iterator[Any]:
    """Yield the samples of each step, the same on all ranks: every epoch has all of them, in an order of its own."""
    each = -(-samples // settings.batch)
    order, epoch = np.arange(0), -1
    for number in range(first, last):
        if number // each != epoch:
            epoch = number // each
            order = np.random.default_rng([settings.seed, epoch]).permutation(samples)
        start = number % each * settings.batch
        yield order[start : start + settings.batch]


def share(comm: Any, batch: Any) -> Any:
    """Return this rank's share of a batch."""
    return batch[slice(*partition(len(batch), comm.size)[comm.rank])]


class History(NamedTuple):
    """The loss of each step so far, and the accuracy after each epoch."""

    losses: list[float]
    accuracies: list[float]


def save(console: Console, path: str, settings: Settings, state: Run, history: History) -> None:
    """Write the checkpoint, whole or not at all; collective."""
    with console.told(path):
        if console.first:
            arrays = {f"weights/{name}": array for name, array in state.weights.items()}
            arrays |= {f"velocities/{name}": array for name, array in state.velocities.items()}
            with whole_file(path) as file:
                np.savez(file, settings=json.dumps(settings._asdict()), **arrays, **history._asdict())


def load(console: Console, path: str, settings: Settings, state: Run) -> History:
    """Read a checkpoint on rank 0, and hand it to all; collective."""
    errors, history = [], History([], [])
    if console.first:
        try:
            with np.load(path, allow_pickle=False) as found:
                there = json.loads(str(found["settings"]))
                for name, value in settings._asdict().items():
                    if there[name] != value:
                        errors.append(f"{path}: {name}: expected {value} as in this run, found {there[name]}")
                for kind, arrays in ("weights", state.weights), ("velocities", state.velocities):
                    for name, array in [] if errors else arrays.items():
                        np.copyto(array, found[f"{kind}/{name}"])
                history = History(found["losses"].tolist(), found["accuracies"].tolist())
        except OSError as error:
            errors.append(f"cannot read {path}: {error.strerror or error}")
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
            errors.append(f"{path}: expected a checkpoint of this script, found something else")
    console.agree(errors)
    state.averager.broadcast_parameters()
    return History(*console.comm.bcast(tuple(history)))


def train(
    console: Console, state: Run, data: Any, settings: Settings, epochs: int, checkpoint: str | None, history: History
) -> tuple[bool, float, float]:
    """Train up to so many epochs; return whether that was cut short, and seconds in compute and communication."""
    inputs, targets, *test = data
    each = -(-len(targets) // settings.batch)
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    start, messages = time.perf_counter(), 0.0
    with console.progress("training") as progress:
        for batch in batches(settings, len(targets), len(history.losses), epochs * each):
            mine = share(console.comm, batch)
            loss, _ = state.step(inputs[mine], targets[mine])
            state.averager.check_replicas(every=each)
            before = time.perf_counter()
            total, stop = hpcreduce.allreduce_many(console.comm, [loss, float(bool(told))])
            messages += time.perf_counter() - before
            history.losses.append(total / len(batch))
            done = len(history.losses)
            if done % each == 0:
                history.accuracies.append(accuracy(state.weights, *test))
                epoch = done // each
                if epoch % max(1, epochs // 10) == 0 or epoch == epochs:
                    mean = np.mean(history.losses[-each:])
                    console.out(f"epoch {epoch:>3}  loss {mean:.6f}  test accuracy {history.accuracies[-1]:.1%}")
            if checkpoint and (stop or done % each == 0):
                save(console, checkpoint, settings, state, history)
            progress(done, epochs * each)
            if stop:
                break
    seconds = time.perf_counter() - start
    messages += state.averager.seconds
    return len(history.losses) < epochs * each, seconds - messages, messages


def throughput(console: Console, backend: str, settings: Settings, order: str | None, data: Any) -> None:
    """Print samples per second on 1 to N ranks, and how much of the communication is hidden; collective."""
    comm, (inputs, targets, *_) = console.comm, data
    console.out("ranks  samples/s  compute/step  communication/step  without overlap  hidden")
    for ranks in range(1, comm.size + 1):
        group = comm.Split(0 if comm.rank < ranks else console.mpi.UNDEFINED, comm.rank)
        if comm.rank < ranks:
            state = BACKENDS[backend](group, settings, order)
            spent = {True: [0.0, 0.0], False: [0.0, 0.0]}  # seconds in all, and of them in communication
            for number, batch in enumerate(batches(settings, len(targets), 0, STEPS + 2)):
                mine = share(group, batch)
                state.averager.overlap = overlap = number % 2 == 0
                before, start = state.averager.seconds, time.perf_counter()
                state.step(inputs[mine], targets[mine])
                if number > 1:  # two to warm up
                    spent[overlap][0] += time.perf_counter() - start
                    spent[overlap][1] += state.averager.seconds - before
            (whole, exposed), (_, plain) = spent[True], spent[False]
            hidden = max(0.0, 1 - exposed / plain)
            half = STEPS // 2
            console.out(
                f"{ranks:>5}{half * settings.batch / whole:>11.0f}{(whole - exposed) / half * 1e3:>11.3f} ms"
                f"{exposed / half * 1e3:>17.3f} ms{plain / half * 1e3:>14.3f} ms{hidden:>8.0%}"
            )
            state.averager.close()
            group.Free()
        hpcreduce.allreduce(comm, 1)  # whose wait leaves the cores to those that are timed


def plot(history: History, title: str, file: Any, form: str) -> None:
    """Draw loss and accuracy over steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(range(1, len(history.losses) + 1), history.losses, linewidth=0.8)
    above.set(title=title, ylabel="loss of each batch", yscale="log")
    each = len(history.losses) / max(1, len(history.accuracies))
    steps = [each * number for number in range(1, len(history.accuracies) + 1)]
    below.plot(steps, history.accuracies, "o-", color="#D55E00", markersize=3)
    below.set(xlabel="step", ylabel="test accuracy")
    for panel in above, below:
        panel.grid(alpha=0.3)
    figure.savefig(file, format=form, dpi=150)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--backend", type=click.Choice(list(BACKENDS)), default="numpy", show_default=True)
@click.option("--epochs", type=click.IntRange(1, 10_000), default=30, show_default=True)
@click.option("--batch", type=click.IntRange(1, 1437), default=64, show_default=True, help="Of all ranks together.")
@click.option("--hidden", type=click.IntRange(1, 4096), default=128, show_default=True, help="Size of the network.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=0.1, show_default=True)
@click.option("--momentum", type=click.FloatRange(0, 1, max_open=True), default=0.9, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--order", type=click.Choice(["rank"]), help="Sum in rank order and doubled precision.")
@click.option("--checkpoint", metavar="FILE.npz", help="Written after each epoch and on SIGTERM, whole or not at all.")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint, on any number of ranks.")
@click.option("--plot", "picture", metavar="FILE", help=f"Draw loss and accuracy, as {', '.join(PICTURES)}.")
@click.option("--throughput/--no-throughput", "timing", default=True, help="Time 1 to N ranks at the end.")
def digits_command(
    backend: str,
    epochs: int,
    order: str | None,
    checkpoint: str | None,
    resume: bool,
    picture: str | None,
    timing: bool,
    **options: Any,
) -> int:
    """Train a small network on handwritten digits, on all ranks together."""
    form = os.path.splitext(picture or "")[1]
    if picture and form not in PICTURES:
        raise click.UsageError(f"the picture {picture} must end in {', '.join(PICTURES)}")
    if resume and not checkpoint:
        raise click.UsageError("--resume needs --checkpoint")
    if picture:
        need("matplotlib", "--plot")
    console, settings = Console(), Settings(**options)
    console.agree(missing(backend))
    data = digits()
    title = f"digits, {backend}, {console.comm.size} ranks, batches of {settings.batch}"
    with console.output(picture) if picture else contextlib.nullcontext() as file:
        state, history = BACKENDS[backend](console.comm, settings, order), History([], [])
        if checkpoint and resume:
            history = load(console, checkpoint, settings, state)
            console.out(f"goes on after step {len(history.losses)}")
        stopped, compute, communication = train(console, state, data, settings, epochs, checkpoint, history)
        if file:
            plot(history, title, file, form[1:])
    state.averager.close()
    if stopped:
        rest = f"; --resume goes on from {checkpoint}" if checkpoint else ""
        console.note(f"stopped by SIGTERM after step {len(history.losses)}{rest}")
        return TERMINATED
    console.out(f"{title}: {compute:.2f} s in compute, {communication:.2f} s in communication")
    if timing:
        throughput(console, backend, settings, order, data)
    return 0


def missing(backend: str) -> list[str]:
    """Return what is not installed."""
    wanted = {"sklearn": "scikit-learn"} | ({"torch": "torch"} if backend == "torch" else {})
    found = [package for module, package in wanted.items() if importlib.util.find_spec(module) is None]
    return [f"this needs the package {package}: pip install {package}" for package in found]


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], digits_command, "train_digits.py"))
