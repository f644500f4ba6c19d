"""What the options of ``stats`` take: lists of names and of quantiles, signs of CSV, bins of a histogram."""

from __future__ import annotations

import csv
import math
import re
from typing import Any

import click

MOST_BINS = 100_000


class Listed(click.ParamType[tuple[str, ...]]):
    """A comma-separated list of names; one with a comma in it stands in double quotes."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Split."""
        if isinstance(value, tuple):
            return value
        try:
            names = next(csv.reader([value], strict=True), [])
        except csv.Error as error:
            self.fail(f"{value!r} is no comma-separated list: {error}", param, ctx)
        if not names:
            self.fail("no name given", param, ctx)
        return tuple(dict.fromkeys(names))


class Sign(click.ParamType[str]):
    r"""One character; ``tab`` and ``\t`` are a tab."""

    name = "character"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read and check."""
        sign = "\t" if value in ("tab", r"\t") else str(value)
        if len(sign) != 1 or not sign.isascii() or sign in '"\r\n' or sign.isalnum():
            self.fail(f"{value!r} is not one character such as , or ; or tab, and no letter or digit", param, ctx)
        return sign


class Bins(click.ParamType[tuple[int, "float | None", "float | None"]]):
    """How many bins, and the range: ``20`` or ``20:0:1.5``."""

    name = "bins"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float | None, float | None]:
        """Read and check."""
        if isinstance(value, tuple):
            return value
        bins, *edges = value.split(":")
        if not re.fullmatch(r"[0-9]{1,9}", bins) or not 0 < int(bins) <= MOST_BINS or len(edges) not in (0, 2):
            self.fail(
                f"{value!r} is no number of bins from 1 to {MOST_BINS}, or bins and range as 20:0:1.5", param, ctx
            )
        if not edges:
            return int(bins), None, None
        try:
            low, high = map(float, edges)
        except ValueError:
            self.fail(f"{value!r}: the range is not of two numbers", param, ctx)
        if not (math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(high - low)):
            self.fail(f"{value!r}: the range is not of two numbers, the lower one first", param, ctx)
        return int(bins), low, high


class Shares(click.ParamType[tuple[float, ...]]):
    """A comma-separated list of numbers from 0 to 1, or ``none``."""

    name = "quantiles"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Read and check."""
        if isinstance(value, tuple):
            return value
        if value.strip() == "none":
            return ()
        try:
            found = tuple(dict.fromkeys(map(float, value.split(","))))
        except ValueError:
            self.fail(f"{value!r} is no comma-separated list of numbers from 0 to 1, nor none", param, ctx)
        for q in found:
            if not 0 <= q <= 1:
                self.fail(f"{q} is not from 0 to 1", param, ctx)
        return found
