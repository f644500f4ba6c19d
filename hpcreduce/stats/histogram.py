"""Histograms by NumPy's rule: bins of equal width, each without its upper edge but the last."""

from __future__ import annotations

import numpy as np


class Histogram:
    """How many values lie in each bin; values outside, and NaN, lie in none."""

    def __init__(self, bins: int, low: float, high: float, dtype: str) -> None:
        self.bins, self.range, self.dtype = bins, (low, high), np.dtype(dtype)
        if self.dtype.kind == "f":  # edges of float32 would be others than those of the same values in CSV
            self.range, self.dtype = (float(low), float(high)), np.dtype(np.float64)
        nothing = np.zeros(0, self.dtype)
        self.counts, self.edges = np.histogram(nothing, bins, self.range)

    def add(self, values: np.ndarray) -> None:
        """Take in values, integers as those of the column's type."""
        values = values.astype(self.dtype, copy=False)
        self.counts = self.counts + np.histogram(values, self.bins, self.range)[0]

    def integers(self) -> list[int]:
        """Return the integers that are added up over the ranks besides the counts: none."""
        return []

    def widths(self) -> list[int]:
        """Return their limbs."""
        return []

    def become(self, integers: list[int], counts: np.ndarray) -> None:
        """Become what all ranks have seen."""
        self.counts = counts
