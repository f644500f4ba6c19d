"""Pictures of statistics, by matplotlib: a histogram for each column, its groups beside it, readable in print."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcreduce.stats.report import quantile
from hpcreduce.stats.screen import clean

MOST_PANELS = 24
"""Histograms of one picture."""
_COLUMNS = 2
MOST_GROUPS = 16
"""Groups of one panel."""
_LABEL = 28
"""Characters of a name that fit below a panel."""


def histograms(document: Mapping[str, Any], file: Any, form: str) -> list[str]:
    """Draw the histograms of the document and return the names of the columns for which there was no room.

    Dashed lines are the quantiles. If there are groups, a second panel has the mean of each, and one standard
    deviation to both sides.

    Parameters
    ----------
    document : mapping
        As `hpcreduce.stats.report.document` makes it.
    file : binary file
    form : str
        ``png``, ``svg`` or ``pdf``.
    """
    from matplotlib.figure import Figure

    drawn = {name: column for name, column in document["columns"].items() if column.get("histogram")}
    groups = document.get("groups", [])
    grouped = {name for name, told in groups[0]["columns"].items() if "mean" in told} if groups else set()
    names = list(drawn)[: MOST_PANELS // 2 if grouped else MOST_PANELS]
    painters: list[tuple[Callable[[Any, str, Any], None], str, Any]] = []
    for name in names:
        painters.append((_panel, name, drawn[name]))
        if name in grouped:
            painters.append((_groups, name, groups))
    across = min(_COLUMNS, max(1, len(painters)))
    down = -(-len(painters) // across) or 1
    figure = Figure(figsize=(3.4 * across, 2.3 * down), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for panel, (paint, name, told) in zip(panels, painters, strict=False):
        paint(panel, name, told)
    for panel in panels[len(painters) :]:
        panel.remove()
    if quantiles := dict.fromkeys(q for name in names for q in drawn[name].get("quantiles", {})):
        figure.supxlabel(f"dashed: {_label(', '.join(map(quantile, quantiles)), 60)}", fontsize="small")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks
        figure.savefig(file, format=form, dpi=200)
    return list(drawn)[len(names) :]


def _label(name: str, room: int = _LABEL) -> str:
    label = clean(name)
    return (label if len(label) <= room else f"{label[: room - 1]}…").replace("$", r"\$")


def _groups(panel: Any, name: str, groups: Sequence[Mapping[str, Any]]) -> None:
    """Draw mean and deviation of the first groups, one below the other."""
    shown = [group for group in groups[:MOST_GROUPS] if isinstance(group["columns"][name]["mean"], (int, float))]
    means = [group["columns"][name]["mean"] for group in shown]
    deviations = [group["columns"][name]["std"] for group in shown]
    bars = [each if isinstance(each, (int, float)) else 0 for each in deviations]
    keys = [", ".join("missing" if key is None else str(key) for key in group["by"].values()) for group in shown]
    panel.errorbar(means, range(len(shown)), xerr=bars, fmt="o", markersize=3, color="#08519C", ecolor="#9ECAE1")
    panel.set_yticks(range(len(shown)), [_label(key, 16) for key in keys], fontsize="xx-small")
    panel.invert_yaxis()
    panel.locator_params(axis="x", nbins=5)
    panel.set_xlabel(_label(name))
    more = f", first {len(shown)} groups" if len(groups) > MOST_GROUPS else ""
    panel.set_title(f"mean ± sd by {_label(', '.join(groups[0]['by']))}{more}", fontsize="small")
    for side in "top", "right":
        panel.spines[side].set_visible(False)


def _panel(panel: Any, name: str, column: Mapping[str, Any]) -> None:
    edges, counts = column["histogram"]["edges"], column["histogram"]["counts"]
    outside = column["count"] - sum(counts)
    panel.stairs(counts, edges, fill=True, facecolor="#9ECAE1", edgecolor="#08519C", linewidth=0.6)
    panel.set_ylim(bottom=0)
    panel.margins(x=0)
    panel.locator_params(axis="x", nbins=4)
    panel.set_xlabel(_label(name))
    for value in column.get("quantiles", {}).values():
        if isinstance(value, (int, float)) and edges[0] <= value <= edges[-1]:
            panel.axvline(value, color="#08519C", linestyle="--", linewidth=0.6)
    panel.set_ylabel("rows")
    panel.ticklabel_format(axis="y", scilimits=(-4, 5))
    for side in "top", "right":
        panel.spines[side].set_visible(False)
    said = [f"n = {column['count']}"]
    for label, figure in ("mean", "mean"), ("sd", "std"):
        if isinstance(column[figure], (int, float)):
            said.append(f"{label} {column[figure]:.4g}")
    if outside:
        said.append(f"{outside} outside")
    panel.set_title(", ".join(said), fontsize="small")
