"""Exact sums of arrays of float64: of the values and their squares, and of products of two and of three arrays.

Rules that hold here:

1. A value is a 53-bit integer times a power of two, so a product of k of them is one of 53 k bits. Products are added
   up in bins, one for each power of two, and the bins become one Python integer at the end: nothing is ever rounded.
2. There are two ways, with the same result: loops compiled by numba, and NumPy's bincount. numba takes half a second
   to load, so the first values go the second way. ``HPCREDUCE_NUMBA=0`` keeps to it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hpcreduce.stats import compiled, loops, slowloops
from hpcreduce.stats.exact import key

LATER = 1 << 20
"""Values that are summed with NumPy before numba is loaded."""

_MOST = 1 << 20
"""Values that are summed before bins are emptied, which would overflow at 2^21."""

_BLOCK = 1 << 15
"""Values that NumPy takes at a time: sums of 2^15 numbers below 2^38 are exact in float64."""

_DIGIT = 18
"""Bits of a digit of NumPy's way: 3 of them are a mantissa."""

_seen = 0


class Deposit(NamedTuple):
    """What `squares` finds in an array."""

    sum: int
    squares: int
    low: int
    """The lowest and the highest `exact.key` of its finite values; `low` is above `high` if it has none."""
    high: int
    special: int
    """How many of its values are infinite or NaN, and left out."""


NOTHING = Deposit(0, 0, key(np.inf), key(-np.inf), 0)


def squares(values: np.ndarray) -> Deposit:
    """Sum the finite ones of float64 values, in units of 2^-1074, and their squares, in units of 2^-2148."""
    found = NOTHING
    way = _squares_compiled if _compiled(values.size) else _squares_numpy
    for part in _slices(values):
        more = way(np.ascontiguousarray(part))
        found = Deposit(
            found.sum + more.sum,
            found.squares + more.squares,
            min(found.low, more.low),
            max(found.high, more.high),
            found.special + more.special,
        )
    return found


def products(x: np.ndarray, y: np.ndarray) -> int:
    """Sum ``x * y`` of finite float64 values, in units of 2^-2148."""
    return _products([x, y])


def triples(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> int:
    """Sum ``x * y * z`` of finite float64 values, in units of 2^-3222."""
    return _products([x, y, z])


def digits(values: np.ndarray, shift: int, counts: np.ndarray) -> None:
    """Count float64 values, but for NaN, by the bits from `shift` on of keys that have their order."""
    if _compiled(values.size):
        compiled.loop("digits")(compiled.bits(np.ascontiguousarray(values)), np.uint64(shift), counts)
    else:
        counts += np.bincount(_heads(values[~np.isnan(values)], shift), minlength=counts.size)


def chosen(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the places of the float64 values, but for NaN, the first 16 bits of whose keys the table has."""
    if _compiled(values.size):
        places, found = np.empty(values.size, np.int64), np.zeros(1, np.int64)
        compiled.loop("chosen")(compiled.bits(np.ascontiguousarray(values)), table, places, found)
        return places[: found[0]]
    return np.flatnonzero(table[_heads(values, 48)] & ~np.isnan(values))


def ordered(groups: np.ndarray, count: int) -> np.ndarray:
    """Return the places of that many groups in the order of their numbers, equal ones as they come."""
    if not _compiled(groups.size):
        return np.argsort(groups, kind="stable")
    order, starts = np.empty(groups.size, np.int64), np.zeros(count, np.int64)
    np.cumsum(np.bincount(groups, minlength=count)[:-1], out=starts[1:])
    compiled.loop("ordered")(groups.view(np.uint64), starts, order)
    return order


def grouped(
    groups: np.ndarray,
    values: np.ndarray,
    kind: int,
    sums: tuple[int, np.ndarray],
    squares: tuple[int, np.ndarray],
    counts: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[int, int, int]:
    """Add values and their squares to the limbs of their groups, and return what `loops.grouped` finds."""
    found = np.zeros(3, np.int64)
    if _compiled(values.size):
        bits = compiled.bits(np.ascontiguousarray(values))
        compiled.loop("grouped")(
            np.ascontiguousarray(groups).view(np.uint64), bits, kind, *sums, *squares, *counts, found
        )
    else:
        with np.errstate(over="ignore"):
            slowloops.grouped(groups, values, kind, *sums, *squares, *counts, found)
    done, place, square = found.tolist()
    return done, place, square


def _heads(values: np.ndarray, shift: int) -> np.ndarray:
    """Return the bits from `shift` on of the keys of float64 values."""
    bits = values.view(np.int64)
    keys = bits ^ (bits >> 63 | np.int64(-(2**63)))
    return (keys.view(np.uint64) >> np.uint64(shift)).view(np.int64)


def _products(factors: list[np.ndarray]) -> int:
    way = _products_compiled if _compiled(factors[0].size) else _products_numpy
    return sum(way(list(map(np.ascontiguousarray, part))) for part in zip(*map(_slices, factors), strict=True))


def _slices(values: np.ndarray) -> list[np.ndarray]:
    return [values[start : start + _MOST] for start in range(0, values.size, _MOST)]


def _compiled(values: int) -> bool:
    """Whether these values, which come next, go through compiled loops."""
    global _seen
    _seen += values
    return _seen > LATER and compiled.compiler() is not None


def _squares_compiled(values: np.ndarray) -> Deposit:
    sums, rest = np.zeros((2048, 13), np.int64), np.empty(values.size)
    found = np.array([NOTHING.low, NOTHING.high, 0], np.int64)
    compiled.loop("blocks")(compiled.bits(values, np.float64), compiled.bits(values, np.int64), sums, rest, found)
    left, found[2] = int(found[2]), 0
    used = np.flatnonzero(sums[:, 3:].any(axis=1))  # squares do not cancel
    digits, low, high = np.split(sums[used], [3, 8], axis=1)
    exponents = used - loops.LOWEST
    total = _horner(exponents, 1, 26, digits)
    squared = _horner(exponents, 2, 26, low) + (_horner(exponents, 2, 26, high) << 32)
    if left:
        bins = np.zeros((2048, 4), np.uint64)
        compiled.loop("squares")(compiled.bits(rest[:left]), bins, found)
        used = np.flatnonzero(bins[:, 2] | bins[:, 3])
        rows = bins[used]
        total += _horner(used, 1, 32, rows[:, :2].view(np.int64))
        squared += _horner(used, 2, 64, rows[:, 2:])
    return Deposit(total, squared, *found.tolist())


def _products_compiled(factors: list[np.ndarray]) -> int:
    count = len(factors)
    bins = np.zeros((2048 * count, count), np.uint64)
    compiled.loop("products" if count == 2 else "triples")(*map(compiled.bits, factors), bins)
    used = np.flatnonzero(np.bitwise_or.reduce(bins, axis=1))
    rows = bins[used]
    high = rows[:, -1:].view(np.int64)  # the last word of each has the sign
    return _horner(used, 1, 64, rows[:, :-1]) + (_horner(used, 1, 64, high) << 64 * (count - 1))


def _horner(exponents: np.ndarray, scale: int, radix: int, words: np.ndarray) -> int:
    """Return the sum of ``words[i, j] << (scale * exponents[i] + radix * j)``."""
    total = last = 0
    for exponent, row in zip(reversed(exponents.tolist()), reversed(words.tolist()), strict=True):
        number = 0
        for word in reversed(row):
            number = (number << radix) + word
        total = (total << scale * max(0, last - exponent)) + number  # the first time there is nothing to shift
        last = exponent
    return total << scale * last


def _squares_numpy(values: np.ndarray) -> Deposit:
    found = NOTHING
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK]
        finite = np.isfinite(block)
        special = block.size - int(np.count_nonzero(finite))
        if special:
            block = block[finite]
        if block.size:
            bits = block.view(np.int64)
            keys = bits ^ (bits >> 63 & np.int64(2**63 - 1))
            low, high = int(keys.min()), int(keys.max())
        else:
            low, high = NOTHING.low, NOTHING.high
        split = _split(block)
        found = Deposit(
            found.sum + _deposit([split]),
            found.squares + _deposit([split, split]),
            min(found.low, low),
            max(found.high, high),
            found.special + special,
        )
    return found


def _products_numpy(factors: list[np.ndarray]) -> int:
    starts = range(0, factors[0].size, _BLOCK)
    return sum(_deposit([_split(factor[start : start + _BLOCK]) for factor in factors]) for start in starts)


def _deposit(factors: list[tuple[np.ndarray, list[np.ndarray]]]) -> int:
    """Return the exact sum of products of at most _BLOCK values, which have been split."""
    exponents, digits = factors[0]
    for index, (more, others) in enumerate(factors[1:]):
        exponents = exponents + more
        if index:
            digits = _carried(digits)
        product: list[Any] = [0.0] * (len(digits) + 2)
        for i, digit in enumerate(digits):
            for j, other in enumerate(others):
                product[i + j] = product[i + j] + digit * other
        digits = product
    if not exponents.size:
        return 0
    lowest = int(exponents.min())
    exponents = exponents - lowest
    sums = np.array([np.bincount(exponents, digit) for digit in digits]).T.astype(np.int64)
    used = np.flatnonzero(np.bitwise_or.reduce(sums, axis=1))
    return _horner(used, 1, _DIGIT, sums[used]) << lowest


def _split(values: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the exponents, 0 for subnormal numbers, and three signed digits of the mantissas."""
    bits = values.view(np.int64)
    exponents = bits >> 52 & 2047
    mantissas = (bits & ((1 << 52) - 1)) | (exponents > 0).astype(np.int64) << 52
    mantissas = np.where(bits < 0, -mantissas, mantissas)
    low = mantissas & ((1 << _DIGIT) - 1)
    middle = mantissas >> _DIGIT & ((1 << _DIGIT) - 1)
    digits = [digit.astype(np.float64) for digit in (low, middle, mantissas >> 2 * _DIGIT)]
    return np.maximum(exponents, 1) - 1, digits


def _carried(digits: list[np.ndarray]) -> list[np.ndarray]:
    """Return the same numbers in digits that are below 2^18 again."""
    carry: Any = np.int64(0)
    result = []
    for digit in digits:
        carry = carry + digit.astype(np.int64)
        result.append((carry & ((1 << _DIGIT) - 1)).astype(np.float64))
        carry = carry >> _DIGIT
    return [*result, carry.astype(np.float64)]
