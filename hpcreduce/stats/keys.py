"""Keys of groups: numbers for the groups that a rank sees, and hashes that are the same everywhere.

Rules that hold here:

1. A key is one value for each column that groups are made by; a missing value is a key like any other. Keys are text,
   integers, bools, dates and times.
2. Groups are numbered as a rank first sees them. Which rank has a group in the end is told by a hash of the key, which
   depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcreduce.stats.batches import Column, Field

_MISSING = np.uint64(0x9E3779B97F4A7C15)
_PAIR = np.int64(32)


def array(field: Field, column: Column) -> Any:
    """Return a column of keys as an Arrow array, of one type for the field."""
    import pyarrow as pa

    values = column.values
    if isinstance(values, np.ndarray):
        if values.dtype.kind != "b":
            values = values.astype(np.uint64 if field.dtype == "uint64" else np.int64, copy=False)
        return pa.array(values, mask=None if column.valid is None else ~column.valid)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.large_string()) if pa.types.is_string(values.type) else values


class Numbered:
    """Different values, numbered as they come."""

    def __init__(self) -> None:
        self.known: Any = None

    def __len__(self) -> int:
        return 0 if self.known is None else len(self.known)

    def add(self, values: Any) -> np.ndarray:
        """Return the numbers of these values."""
        import pyarrow as pa
        import pyarrow.compute as pc

        encoded = values.dictionary_encode(null_encoding="encode")
        here = encoded.dictionary
        codes = encoded.indices.to_numpy()
        if self.known is None:
            self.known = here
            return np.asarray(codes.astype(np.int64))
        found = pc.index_in(here, value_set=self.known)
        numbers = found.fill_null(-1).to_numpy().astype(np.int64)
        fresh = np.flatnonzero(numbers < 0)
        if fresh.size:
            numbers[fresh] = np.arange(len(self.known), len(self.known) + fresh.size)
            self.known = pa.concat_arrays([self.known, here.take(pa.array(fresh))])
        return np.asarray(numbers[codes])


class Keys:
    """The keys that have been seen."""

    def __init__(self, columns: int) -> None:
        self.columns = [Numbered() for _ in range(columns)]
        self.pairs = [Numbered() for _ in range(columns - 1)]

    def __len__(self) -> int:
        return len((self.pairs or self.columns)[-1])

    def add(self, arrays: Sequence[Any]) -> np.ndarray:
        """Return the numbers of the groups of some rows."""
        import pyarrow as pa

        numbers = self.columns[0].add(arrays[0])
        for column, pair, values in zip(self.columns[1:], self.pairs, arrays[1:], strict=True):
            numbers = pair.add(pa.array(numbers << _PAIR | column.add(values)))
        return numbers

    def arrays(self) -> list[Any]:
        """Return a column of key values, a row for each group, for each column."""
        import pyarrow as pa

        found = []
        at = np.arange(len(self))
        for column, pair in zip(self.columns[:0:-1], self.pairs[::-1], strict=True):
            codes = pair.known.to_numpy()[at]
            found.append(column.known.take(pa.array(codes & np.int64((1 << 32) - 1))))
            at = codes >> _PAIR
        return [self.columns[0].known.take(pa.array(at)), *found[::-1]]


def hashes(values: Any) -> np.ndarray:
    """Return uint64 hashes of the values of an Arrow array.

    Examples
    --------
    >>> import pyarrow as pa
    >>> hashes(pa.array([1, None])) == hashes(pa.array([1, None], pa.int16()))
    array([ True,  True])
    """
    import pyarrow as pa

    kind = values.type
    there = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        found = _of_texts(values.fill_null("").cast(pa.large_binary()))
    else:
        if pa.types.is_boolean(kind):
            values = values.cast(pa.int8())
        elif not pa.types.is_integer(kind):
            values = values.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
        found = mixed(numbers.astype(np.uint64 if numbers.dtype.kind == "u" else np.int64).view(np.uint64))
    return np.where(there, found, _MISSING)


def _of_texts(values: Any) -> np.ndarray:
    """Return the sum, for each text, of a random number for each byte and place."""
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    sizes = np.diff(offsets)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    places = np.arange(data.size) - np.repeat(offsets[:-1] - offsets[0], sizes)
    codes = mixed(places.astype(np.uint64) * np.uint64(256) + data)
    ends = np.concatenate([np.zeros(1, np.uint64), np.cumsum(codes, dtype=np.uint64)])
    starts = offsets - offsets[0]
    return mixed(ends[starts[1:]] - ends[starts[:-1]] + sizes.astype(np.uint64))


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Return uint64 numbers in which each bit depends on all bits of the given ones (splitmix64)."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def together(arrays: Sequence[Any]) -> np.ndarray:
    """Return a hash for each row of several columns."""
    found = hashes(arrays[0])
    for more in arrays[1:]:
        found = mixed(found) + hashes(more)
    return found
