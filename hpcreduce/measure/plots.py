"""Pictures of measurements, by matplotlib, readable in print: shapes and lines differ, not only colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcreduce.analysis.predict import Prediction
from hpcreduce.measure.bench import Row
from hpcreduce.measure.rivals import LIBRARY
from hpcreduce.units import format_bytes

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5F5F5F")
_MARKERS = "osD^vP*"
_LINES = ("-", "--", "-.", ":")


def benchmark(rows: Sequence[Row], title: str, file: Any, form: str) -> None:
    """Draw time, bus bandwidth and the ratio to MPI over size, each on logarithmic axes.

    Parameters
    ----------
    rows : sequence of Row
    title : str
    file : binary file
    form : str
        ``png``, ``svg`` or ``pdf``.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row.algorithm for row in rows))
    compared = any(row.ratio_to_mpi is not None for row in rows)
    busy = any(row.busbw for row in rows)  # one rank alone has no traffic
    number = 1 + busy + compared
    figure = Figure(figsize=(6.4, 3.0 * number + 0.2), layout="constrained")
    panels = figure.subplots(number, 1, sharex=True, squeeze=False)[:, 0]
    for index, name in enumerate(names):
        mine = [row for row in rows if row.algorithm == name]
        sizes = [row.nbytes for row in mine]
        style = _style(index) | ({"color": "black"} if name == LIBRARY else {})
        panels[0].plot(sizes, [row.median_s * 1e6 for row in mine], label=name, **style)
        panels[0].fill_between(
            sizes,
            [row.p10_s * 1e6 for row in mine],
            [row.p90_s * 1e6 for row in mine],
            color=style["color"],
            alpha=0.12,
        )
        if busy:
            panels[1].plot(sizes, [row.busbw / 1e9 for row in mine], **style)
        if compared:
            panels[-1].plot(sizes, [row.ratio_to_mpi for row in mine], **style)
    panels[0].set(title=title, ylabel="time, median (band: p10 to p90), µs", yscale="log")
    panels[0].legend(fontsize="small")
    if busy:
        panels[1].set(ylabel="bus bandwidth, GB/s", yscale="log")
    if compared:
        panels[-1].axhline(1, color="black", linewidth=0.8)
        panels[-1].set(ylabel="time / time of mpi (below 1: faster)", yscale="log")
        low, high = panels[-1].get_ylim()
        ticks = [tick for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100) if low <= tick <= high]
        panels[-1].set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
        panels[-1].set_yticks([], minor=True)
    _size_axis(panels[-1], sorted({row.nbytes for row in rows}))
    for panel in panels:
        panel.grid(which="major", alpha=0.3)
    figure.savefig(file, format=form, dpi=200)


def prediction(rows: Sequence[Prediction], title: str, file: Any, form: str) -> None:
    """Draw the predicted time over size, on logarithmic axes.

    Parameters
    ----------
    rows : sequence of Prediction
    title : str
    file : binary file
    form : str
        ``png``, ``svg`` or ``pdf``.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    panel = figure.subplots()
    for index, name in enumerate(dict.fromkeys(row.algorithm for row in rows)):
        mine = [row for row in rows if row.algorithm == name]
        panel.plot([row.nbytes for row in mine], [row.seconds * 1e6 for row in mine], label=name, **_style(index))
    panel.set(title=title, ylabel="predicted time, µs")
    if any(row.seconds for row in rows):
        panel.set_yscale("log")
    if rows:
        panel.legend(fontsize="small")
        _size_axis(panel, sorted({row.nbytes for row in rows}))
    panel.grid(which="major", alpha=0.3)
    figure.savefig(file, format=form, dpi=200)


def _style(index: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": _LINES[index % len(_LINES)],
        "linewidth": 1.3,
        "markersize": 4.5,
    }


def _size_axis(panel: Any, sizes: Sequence[int]) -> None:
    panel.set_xscale("log", base=2)
    shown = sizes[:: -(-len(sizes) // 9)]
    panel.set_xticks(shown, labels=[format_bytes(size) for size in shown], rotation=30)
    panel.set_xticks([], minor=True)
    panel.set_xlabel("size per rank")
