"""What one rank has seen of a column that is not one of numbers: how many values, and the lowest and the highest."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from hpcreduce.stats.batches import BOOL, DATE, Column

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class Others:
    """Count, missing values and extremes, each of which is a pair (what is compared, what is told)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.count = self.null = 0
        self.low: tuple[Any, Any] | None = None
        self.high: tuple[Any, Any] | None = None

    def add(self, column: Column) -> None:
        """Take in a batch."""
        if self.kind == BOOL:
            values = column.values if column.valid is None else column.values[column.valid]
            self.null += len(column.values) - values.size
            self.count += values.size
            if values.size:
                self._between((bool(values.min()),) * 2, (bool(values.max()),) * 2)
            return
        import pyarrow as pa
        import pyarrow.compute as pc

        values = column.values
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        self.null += values.null_count
        self.count += len(values) - values.null_count
        if values.null_count < len(values):
            found = pc.min_max(values)
            tell = date if self.kind == DATE else text
            self._between(tell(found["min"]), tell(found["max"]))

    def join(self, other: Others) -> None:
        """Take in what another rank has seen."""
        self.count += other.count
        self.null += other.null
        if other.low is not None and other.high is not None:
            self._between(other.low, other.high)

    def _between(self, low: tuple[Any, Any], high: tuple[Any, Any]) -> None:
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


def text(scalar: Any) -> tuple[Any, Any]:
    """Return a text, twice."""
    value = scalar.as_py()
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    return value, value


def date(scalar: Any) -> tuple[Any, Any]:
    """Return a date or a time as nanoseconds, and in ISO form."""
    import pyarrow as pa

    told = scalar.cast(pa.string()).as_py().replace(" ", "T", 1)
    told = re.sub(r"\.(\d*?)0*(?=\D|$)", lambda digits: digits[1] and f".{digits[1]}", told)
    told = re.sub(r"(T.*[+-]\d\d)(\d\d)$", r"\1:\2", told)
    kind = scalar.type
    unit = 86400 * 10**9 if pa.types.is_date32(kind) else 10**6 if pa.types.is_date64(kind) else _NANOSECONDS[kind.unit]
    return int(np.int64(scalar.value)) * unit, told
