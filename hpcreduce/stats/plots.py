"""Pictures of statistics, by matplotlib: a histogram for each column, readable in print."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from hpcreduce.stats.screen import clean

MOST_PANELS = 24
"""Histograms of one picture."""
_COLUMNS = 2
_LABEL = 28
"""Characters of a name that fit below a panel."""


def histograms(document: Mapping[str, Any], file: Any, form: str) -> list[str]:
    """Draw the histograms of the document and return the names of the columns for which there was no room.

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
    names = list(drawn)[:MOST_PANELS]
    across = min(_COLUMNS, max(1, len(names)))
    down = -(-len(names) // across) or 1
    figure = Figure(figsize=(3.4 * across, 2.3 * down), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for panel, name in zip(panels, names, strict=False):
        _panel(panel, name, drawn[name])
    for panel in panels[len(names) :]:
        panel.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks
        figure.savefig(file, format=form, dpi=200)
    return list(drawn)[MOST_PANELS:]


def _panel(panel: Any, name: str, column: Mapping[str, Any]) -> None:
    edges, counts = column["histogram"]["edges"], column["histogram"]["counts"]
    outside = column["count"] - sum(counts)
    panel.stairs(counts, edges, fill=True, facecolor="#9ECAE1", edgecolor="#08519C", linewidth=0.6)
    panel.set_ylim(bottom=0)
    panel.margins(x=0)
    panel.locator_params(axis="x", nbins=4)
    label = clean(name)
    panel.set_xlabel((label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…").replace("$", r"\$"))
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
