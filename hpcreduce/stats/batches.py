"""What sources give and statistics take: columns of some rows, and what is told about them.

Rules that hold here:

1. A *shard* is a piece of one file that one rank reads as a whole; shards are numbered over all files in their
   canonical order, the same on every rank. A value is found again as (shard, row in the shard).
2. What is missing (null) is told by a mask; NaN is a value, counted apart.
3. Nothing here knows MPI or where the data came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

NUMBER, BOOL, TEXT, DATE = "number", "bool", "text", "date"


class Field(NamedTuple):
    """One column as all ranks know it: its name, its kind and the type that its values have after promotion."""

    name: str
    kind: str
    """``number``, ``bool``, ``text`` or ``date``."""
    dtype: str
    """Numbers: the NumPy name (``int64``, ``float32``, ...). Others: what a user would call the type."""


class Column(NamedTuple):
    """The values of one column in one batch."""

    values: Any
    """Numbers and bools: a 1-D NumPy array in native byte order. Text and dates: a pyarrow Array."""
    valid: np.ndarray | None = None
    """Numbers and bools: False where a value is missing; None: all are there. (Arrow arrays know their nulls.)"""


class Batch(NamedTuple):
    """Some consecutive rows of one shard."""

    shard: int
    row: int
    """The number of the first of these rows in the shard."""
    rows: int
    columns: Mapping[str, Column]
