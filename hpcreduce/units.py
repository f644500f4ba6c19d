"""How numbers are written for people."""

from __future__ import annotations

from collections.abc import Iterable


def plural(count: int, what: str) -> str:
    """Return the number with its noun.

    >>> plural(1, "rank"), plural(3, "rank")
    ('1 rank', '3 ranks')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def format_bytes(nbytes: int) -> str:
    """Return the size in units of 1024.

    >>> format_bytes(8), format_bytes(64 << 10), format_bytes(100 << 20)
    ('8 B', '64 KiB', '100 MiB')
    """
    for unit, shift in ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):g} {unit}"
    return f"{nbytes} B"


def format_rate(rate: float) -> str:
    """Return the rate, given in bytes per second, with three digits.

    >>> format_rate(2.471e9), format_rate(999.7e6), format_rate(640.2e6), format_rate(1234.0)
    ('2.47 GB/s', '1.00 GB/s', '640 MB/s', '1.23 kB/s')
    """
    rate = float(f"{rate:.3g}")
    for unit, scale in ("GB/s", 1e9), ("MB/s", 1e6):
        if rate >= scale:
            return f"{_digits(rate / scale, 3)} {unit}"
    return f"{_digits(rate / 1e3, 3)} kB/s"


def format_seconds(seconds: float) -> str:
    """Return the time with four digits.

    >>> format_seconds(3.21e-6), format_seconds(999.97e-6), format_seconds(0.0456)
    ('3.210 us', '1.000 ms', '45.60 ms')
    """
    seconds = float(f"{seconds:.4g}")
    for unit, scale in ("us", 1e-6), ("ms", 1e-3):
        if seconds < 1000 * scale:
            return f"{_digits(seconds / scale, 4)} {unit}"
    return f"{_digits(seconds, 4)} s"


def format_duration(seconds: float) -> str:
    """Return a time that somebody waited.

    >>> format_duration(0.25), format_duration(41.3), format_duration(310), format_duration(7500)
    ('0.2 s', '41 s', '5 min 10 s', '2 h 5 min')
    """
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


MOST_RANGES = 8
"""Ranges of ranks that are written out."""


def format_ranks(ranks: Iterable[int]) -> str:
    """Return the ranks as ranges.

    >>> format_ranks([5, 0, 1, 2]), format_ranks(range(0, 40, 2))
    ('0-2,5', '0,2,4,6,8,10,12,14,... (20 in all)')
    """
    ranges: list[list[int]] = []
    ordered = sorted(ranks)
    for rank in ordered:
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    if len(texts) > MOST_RANGES:
        return f"{','.join(texts[:MOST_RANGES])},... ({len(ordered)} in all)"
    return ",".join(texts)


def _digits(value: float, number: int) -> str:
    return f"{value:#.{number}g}".rstrip(".")
