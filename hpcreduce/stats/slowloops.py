"""What `loops` does for groups, by NumPy, for where numba is missing or not worth loading."""

from __future__ import annotations

from typing import Any

import numpy as np

_LOW = np.uint64((1 << 32) - 1)
_HALF, _ONE = np.uint64(32), np.uint64(1)


def grouped(
    groups: np.ndarray,
    values: np.ndarray,
    kind: int,
    first: int,
    sums: np.ndarray,
    second: int,
    squares: np.ndarray,
    counts: np.ndarray,
    lowest: np.ndarray,
    highest: np.ndarray,
    found: np.ndarray,
) -> None:
    """Do what `loops.grouped` does, but all values go in or none: limbs that lack are told of the outermost ones."""
    bits: Any = values.view(np.uint64)
    negative = values < 0
    exponents: Any = np.full(bits.size, 1074, np.uint64)
    size: Any = np.where(negative, np.uint64(0) - bits, bits)
    special = np.zeros(bits.size, bool)
    if kind == 0:
        exponents = bits >> np.uint64(52) & np.uint64(2047)
        special = exponents == 2047
        normal = exponents > 0
        size = bits & np.uint64((1 << 52) - 1) | normal.astype(np.uint64) << np.uint64(52)
        exponents = exponents - normal.astype(np.uint64)
    finite = ~special
    places: Any = (exponents >> np.uint64(5)).view(np.int64)
    squared: Any = (exponents >> np.uint64(4)).view(np.int64)
    placed = finite & (size > 0)  # zeros have no place
    if placed.any():
        ends = exponents.view(np.int64)
        for outermost in int(np.argmin(np.where(placed, ends, 1 << 20))), int(np.argmax(np.where(placed, ends, -1))):
            at, there = int(places[outermost]) - first, int(squared[outermost]) - second
            if at < 0 or at + 3 > sums.shape[1] or there < 0 or there + 5 > squares.shape[1]:
                found[1:] = places[outermost], squared[outermost]
                return
    found[0] = bits.size
    if special.any():
        which = np.where(np.isnan(values), 2, np.where(negative, 4, 3))[special]
        np.add.at(counts, (groups[special], which), 1)
    np.add.at(counts[:, 0], groups[finite], 1)
    if kind == 0:
        keys = (bits ^ ((np.uint64(0) - (bits >> np.uint64(63))) >> _ONE)).view(np.int64)
        np.minimum.at(lowest, groups[finite], keys[finite])
        np.maximum.at(highest, groups[finite], keys[finite])
    groups, negative = groups[placed], negative[placed]
    size, exponents, places, squared = (each[placed] for each in (size, exponents, places, squared))
    a, b = size & _LOW, size >> _HALF
    shift = exponents & np.uint64(31)
    low, high = a << shift, b << shift
    for index, digit in enumerate((low & _LOW, (low >> _HALF) + (high & _LOW), high >> _HALF)):
        signed = np.where(negative, -digit.view(np.int64), digit.view(np.int64))
        np.add.at(sums, (groups, places - first + index), signed)
    aa, ab, bb = a * a, a * b, b * b
    carried = np.zeros_like(aa)
    shift = (exponents << _ONE) & np.uint64(31)
    digit = carried
    parts = aa, (aa >> _HALF) + ((ab & _LOW) << _ONE), ((ab >> _HALF) << _ONE) + (bb & _LOW), bb >> _HALF
    for index, part in enumerate(parts):
        digit = part if index < 2 else (digit >> _HALF) + part
        carried = (carried >> _HALF) + ((digit & _LOW) << shift)
        np.add.at(squares, (groups, squared - second + index), (carried & _LOW).view(np.int64))
    np.add.at(squares, (groups, squared - second + 4), (carried >> _HALF).view(np.int64))
