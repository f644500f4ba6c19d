"""The loops that numba compiles: plain functions of arrays, on the bits of float64 values.

Rules that hold here:

1. All integers are uint64, wrapping around; a signed sum is read as int64 by whoever gets it. (numba would make a float
   of uint64 and int64 together.)
2. Bins have a row for each power of two, that of the lowest bit of the product, and a word for each 64 bits of the sum;
   but the plain sums of `squares` are those of the lower 32 bits of the mantissas, and of the upper 21.
3. `blocks` is the quick way for values of like size, several at a time by the processor's vector instructions; it
   leaves the others to `squares`. Its float64 operations are exact, whatever the order or the fusing of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_FRACTION, _HIDDEN, _LOW = np.uint64((1 << 52) - 1), np.uint64(1 << 52), np.uint64((1 << 32) - 1)
_SPECIAL, _TO_EXPONENT, _TO_SIGN = np.uint64(2047), np.uint64(52), np.uint64(63)
_MINUS_ZERO, _INFINITE, _TO_DIGIT = np.uint64(1 << 63), np.uint64(2047 << 52), np.uint64(48)
_LIMB_BITS, _TWO, _THREE, _FOUR, _FIVE = np.uint64(31), np.uint64(2), np.uint64(3), np.uint64(4), np.uint64(5)
_HALF, _UP, _DOWN = np.uint64(32), np.uint64(33), np.uint64(31)

_BLOCK = 1 << 11
"""Values of a block: sums of so many products of two digits, three times, are below 2^63."""

_WHOLE = 1.5 * 2.0**52
"""Added to a float64 below 2^51 it rounds it to a whole number, whose lower 32 bits are the lower ones of the sum."""

_NEXT = 2.0**26
_LOWER = 0xFFFFFFFF

LOWEST = 25
"""The lowest biased exponent of the largest value of a block: that of its last digit is then 0 or more."""


def blocks(x: Any, bits: Any, sums: Any, rest: Any, found: Any) -> None:
    """Add values, and their bits as int64, block by block to the row of the block's largest exponent.

    A value is three signed digits of 26 bits, the first that of the highest bits. `sums` has a row for each exponent:
    the sums of the digits, the last first, then those of the products of two, the last first, in lower 32 bits and
    what is above. `rest` gets the values that have no such digits; `found`: lowest key, highest key, values in `rest`.
    """
    one, two, three = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    first, second, third = one.view(np.int64), two.view(np.int64), three.view(np.int64)
    count = 0
    for start in range(0, x.size, _BLOCK):
        size = min(_BLOCK, x.size - start)
        values = x[start : start + size]
        low, high = np.int64((1 << 63) - 1), np.int64(-(1 << 63))
        for i in range(size):
            key = bits[start + i] ^ (bits[start + i] >> 63 & 0x7FFFFFFFFFFFFFFF)
            low, high = min(low, key), max(high, key)
        exponent = max(high, ~low) >> 52
        if exponent < LOWEST or exponent == 2047:
            rest[count : count + size] = values
            count += size
            continue
        found[0], found[1] = min(found[0], low), max(found[1], high)
        scale, least = np.ldexp(1.0, 1047 - exponent), np.ldexp(1.0, exponent - 1047)
        small = 0
        for i in range(size):
            fits = abs(values[i]) >= least
            small += (not fits) & (values[i] != 0.0)
            digits = values[i] * scale if fits else 0.0
            whole = digits + _WHOLE
            one[i] = whole
            digits = (digits - (whole - _WHOLE)) * _NEXT
            whole = digits + _WHOLE
            two[i] = whole
            three[i] = (digits - (whole - _WHOLE)) * _NEXT + _WHOLE
        if small:
            for i in range(size):
                if abs(values[i]) < least and values[i] != 0.0:
                    rest[count] = values[i]
                    count += 1
        s0 = s1 = s2 = p0 = p1 = p2 = p3 = p4 = p5 = np.int64(0)
        for i in range(size):
            a, b, c = np.int64(np.int32(first[i])), np.int64(np.int32(second[i])), np.int64(np.int32(third[i]))
            s0, s1, s2 = s0 + c, s1 + b, s2 + a
            p0, p1, p2, p3, p4, p5 = p0 + c * c, p1 + b * c, p2 + a * c, p3 + b * b, p4 + a * b, p5 + a * a
        row = sums[exponent]
        for place, total in enumerate((s0, s1, s2)):
            row[place] += total
        for place, total in enumerate((p0, 2 * p1, 2 * p2 + p3, 2 * p4, p5)):
            row[3 + place] += total & _LOWER
            row[8 + place] += total >> 32
    found[2] = count


def squares(x: Any, bins: Any, found: Any) -> None:
    """Add values to words 0 and 1 and their squares to words 2 and 3; `found`: lowest key, highest key, not finite."""
    lowest, highest, special = found[0], found[1], 0
    for i in range(x.size):
        bits = x[i]
        exponent = bits >> _TO_EXPONENT & _SPECIAL
        if exponent == _SPECIAL:
            special += 1
            continue
        mantissa = bits & _FRACTION
        if exponent:
            mantissa |= _HIDDEN
            exponent -= _ONE
        sign = _ZERO - (bits >> _TO_SIGN)
        key = np.int64(bits ^ (sign >> _ONE))
        if key < lowest:
            lowest = key
        if key > highest:
            highest = key
        low, high = mantissa & _LOW, mantissa >> _HALF
        bins[exponent, 0] += (low ^ sign) - sign
        bins[exponent, 1] += (high ^ sign) - sign
        square, cross = low * low, low * high
        lower = square + (cross << _UP)
        upper = high * high + (cross >> _DOWN)
        if lower < square:
            upper += _ONE
        total = bins[exponent, 2] + lower
        if total < lower:
            upper += _ONE
        bins[exponent, 2] = total
        bins[exponent, 3] += upper
    found[0], found[1] = lowest, highest
    found[2] += special


def products(x: Any, y: Any, bins: Any) -> None:
    """Add ``x * y`` of finite values, in two words."""
    for i in range(x.size):
        exponent, a = x[i] >> _TO_EXPONENT & _SPECIAL, x[i] & _FRACTION
        if exponent:
            a |= _HIDDEN
            exponent -= _ONE
        other, b = y[i] >> _TO_EXPONENT & _SPECIAL, y[i] & _FRACTION
        if other:
            b |= _HIDDEN
            exponent += other - _ONE
        a_low, a_high, b_low, b_high = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
        square, cross = a_low * b_low, a_low * b_high + a_high * b_low  # below 2^54
        lower = square + (cross << _HALF)
        upper = a_high * b_high + (cross >> _HALF)
        if lower < square:
            upper += _ONE
        if (x[i] ^ y[i]) >> _TO_SIGN:
            lower = _ZERO - lower
            upper = ~upper
            if lower == _ZERO:
                upper += _ONE
        total = bins[exponent, 0] + lower
        if total < lower:
            upper += _ONE
        bins[exponent, 0] = total
        bins[exponent, 1] += upper


def triples(x: Any, y: Any, z: Any, bins: Any) -> None:
    """Add ``x * y * z`` of finite values, in three words."""
    for i in range(x.size):
        exponent, a = x[i] >> _TO_EXPONENT & _SPECIAL, x[i] & _FRACTION
        if exponent:
            a |= _HIDDEN
            exponent -= _ONE
        other, b = y[i] >> _TO_EXPONENT & _SPECIAL, y[i] & _FRACTION
        if other:
            b |= _HIDDEN
            exponent += other - _ONE
        other, c = z[i] >> _TO_EXPONENT & _SPECIAL, z[i] & _FRACTION
        if other:
            c |= _HIDDEN
            exponent += other - _ONE
        a_low, a_high, b_low, b_high = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
        # Five digits of 32 bits of a * b * c, one after the other.
        digit = a_low * b_low
        p0 = digit & _LOW
        digit = (digit >> _HALF) + a_low * b_high + a_high * b_low
        p1 = digit & _LOW
        digit = (digit >> _HALF) + a_high * b_high
        p2, p3 = digit & _LOW, digit >> _HALF
        c_low, c_high = c & _LOW, c >> _HALF
        digit = p0 * c_low
        first = digit & _LOW
        digit = (digit >> _HALF) + p0 * c_high
        over = p1 * c_low
        digit += over & _LOW
        first |= (digit & _LOW) << _HALF
        digit = (digit >> _HALF) + (over >> _HALF) + p1 * c_high
        over = p2 * c_low
        digit += over & _LOW
        second = digit & _LOW
        digit = (digit >> _HALF) + (over >> _HALF) + p2 * c_high
        over = p3 * c_low
        digit += over & _LOW
        second |= (digit & _LOW) << _HALF
        third = (digit >> _HALF) + (over >> _HALF) + p3 * c_high
        if (x[i] ^ y[i] ^ z[i]) >> _TO_SIGN:
            first, second, third = _ZERO - first, ~second, ~third
            if first == _ZERO:
                second += _ONE
                if second == _ZERO:
                    third += _ONE
        total = bins[exponent, 0] + first
        carry = _ONE if total < first else _ZERO
        bins[exponent, 0] = total
        total = bins[exponent, 1] + second
        over = _ONE if total < second else _ZERO
        total += carry
        if total < carry:
            over = _ONE
        bins[exponent, 1] = total
        bins[exponent, 2] += third + over


def digits(x: Any, shift: Any, counts: Any) -> None:
    """Count values, but for NaN, by the first bits of keys that have the order of the values."""
    for i in range(x.size):
        bits = x[i]
        if bits & ~_MINUS_ZERO <= _INFINITE:
            key = bits ^ ((_ZERO - (bits >> _TO_SIGN)) | _MINUS_ZERO)
            counts[key >> shift] += 1


def chosen(x: Any, table: Any, places: Any, found: Any) -> None:
    """Find the values, but for NaN, the first 16 bits of whose keys the table has; `found`: how many there are."""
    count = 0
    for i in range(x.size):
        bits = x[i]
        key = bits ^ ((_ZERO - (bits >> _TO_SIGN)) | _MINUS_ZERO)
        if table[key >> _TO_DIGIT] and bits & ~_MINUS_ZERO <= _INFINITE:
            places[count] = i
            count += 1
    found[0] = count


def ordered(groups: Any, starts: Any, order: Any) -> None:
    """Sort the places of groups by their numbers; `starts`: where each group begins."""
    for i in range(groups.size):
        group = groups[i]
        order[starts[group]] = i
        starts[group] += 1


def grouped(
    groups: Any,
    x: Any,
    kind: Any,
    first: Any,
    sums: Any,
    second: Any,
    squares: Any,
    counts: Any,
    lowest: Any,
    highest: Any,
    found: Any,
) -> None:
    """Add values (0: float64, 1: int64, 2: uint64) and their squares to the limbs of their groups.

    `first`, `second`: what the first limbs are; `counts`: finite values, and NaN and the infinite ones from 2 on;
    `found`: how many values went in before one came for which there are no limbs, and the first limbs that it needs.
    """
    nothing = sums.shape[1] == 0
    last, furthest = np.uint64(sums.shape[1] - 3), np.uint64(squares.shape[1] - 5)
    lowest_limb, lowest_square = np.uint64(first), np.uint64(second)
    for i in range(x.size):
        group, bits = groups[i], x[i]
        exponent, sign = np.uint64(1074), _ZERO
        if kind != 2:
            sign = _ZERO - (bits >> _TO_SIGN)
        if kind == 0:
            exponent = bits >> _TO_EXPONENT & _SPECIAL
            mantissa = bits & _FRACTION
            if exponent == _SPECIAL:
                counts[group, _TWO if mantissa else _FOUR if sign else _THREE] += 1
                continue
            if exponent:
                mantissa |= _HIDDEN
                exponent -= _ONE
        else:
            mantissa = (bits ^ sign) - sign
        at, there = (exponent >> _FIVE) - lowest_limb, (exponent >> _FOUR) - lowest_square
        if mantissa and (nothing or at > last or there > furthest):  # a place below the first limb wraps around
            found[0], found[1], found[2] = i, np.int64(exponent >> _FIVE), np.int64(exponent >> _FOUR)
            return
        if kind == 0:
            key = np.int64(bits ^ (sign >> _ONE))
            if key < lowest[group]:
                lowest[group] = key
            if key > highest[group]:
                highest[group] = key
        counts[group, _ZERO] += 1
        if not mantissa:
            continue  # zeros have no place
        shift = exponent & _LIMB_BITS
        a, b = mantissa & _LOW, mantissa >> _HALF
        low, high = a << shift, b << shift
        d0, d1, d2 = low & _LOW, (low >> _HALF) + (high & _LOW), high >> _HALF
        sums[group, at] += np.int64((d0 ^ sign) - sign)
        sums[group, at + _ONE] += np.int64((d1 ^ sign) - sign)
        sums[group, at + _TWO] += np.int64((d2 ^ sign) - sign)
        aa, ab, bb = a * a, a * b, b * b
        shift = (exponent << _ONE) & _LIMB_BITS
        low = (aa & _LOW) << shift
        squares[group, there] += np.int64(low & _LOW)
        digit = (aa >> _HALF) + ((ab & _LOW) << _ONE)
        low = (low >> _HALF) + ((digit & _LOW) << shift)
        squares[group, there + _ONE] += np.int64(low & _LOW)
        digit = (digit >> _HALF) + ((ab >> _HALF) << _ONE) + (bb & _LOW)
        low = (low >> _HALF) + ((digit & _LOW) << shift)
        squares[group, there + _TWO] += np.int64(low & _LOW)
        digit = (digit >> _HALF) + (bb >> _HALF)
        low = (low >> _HALF) + ((digit & _LOW) << shift)
        squares[group, there + _THREE] += np.int64(low & _LOW)
        squares[group, there + _FOUR] += np.int64(low >> _HALF)
    found[0] = x.size
