"""What all kinds of files share: how they are to be read, what is found in them, and the error if they are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hpcreduce.errors import HpcreduceError

NULLS: tuple[str, ...] = ("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "<NA>")
NULLS += ("N/A", "NA", "NULL", "None", "n/a", "null")
"""What stands for a missing value in CSV files by default, besides an empty field. (NaN is a value.)"""


class SourceError(HpcreduceError, ValueError):
    """A file that cannot be read or does not fit the others; the text names file, column and line.

    Attributes
    ----------
    order : int
        Of the errors of several ranks, that with the lowest order counts: it is the first in the files' order.
    """

    def __init__(self, text: str, order: int = 0) -> None:
        super().__init__(text, order)
        self.order = order

    def __str__(self) -> str:
        return str(self.args[0])


class ReadOptions(NamedTuple):
    """How files are read; each option is for those formats that have such a thing."""

    columns: Sequence[str] | None = None
    """The names of the columns that are wanted, in this order; `None`: all that statistics can take."""
    dataset: str | None = None
    """HDF5: the path of the dataset, or of a group whose datasets are columns."""
    null_values: Sequence[str] | None = None
    """CSV: what stands for a missing value, in place of `NULLS`; an empty field always does."""
    thousands: str | None = None
    """CSV: the mark between thousands, as in ``1,234``."""
    delimiter: str | None = None
    """CSV: the mark between fields; `None`: a tab in files called .tsv or .tab, else a comma."""
    decimal: str = "."
    """CSV: the decimal point."""
    smallest: int = 1 << 20
    """Bytes below which no file is cut into shards."""
    block: int = 1 << 22
    """About how many bytes are read at a time."""


class Found(NamedTuple):
    """What one rank saw when it looked at a file, for all ranks."""

    path: str
    """Its name for people."""
    format: str
    """The name of a row of the table of formats."""
    types: dict[str, Any]
    """Column -> Arrow type, as `schema.plain` gives it; of a CSV file, null until all of it has been looked at."""
    nbytes: int
    rows: int | None = None
    """How many, where the file says so."""
    extent: tuple[int, int] | None = None
    """What can be cut anywhere, from where to where: rows, or bytes of CSV."""
    grain: int = 1
    """In multiples of how much."""
    units: Sequence[tuple[Any, int]] = ()
    """If it cannot be cut anywhere: the places that the file itself is made of, and their sizes in bytes."""
    layout: Any = None
    """What reading needs to know besides."""
    notes: tuple[str, ...] = ()
    where: str = ""
    """The path by which it is opened."""


class Shard(NamedTuple):
    """A piece of one file that one rank reads as a whole."""

    file: int
    """The number of the file."""
    place: Any
    """Where it is, in words of the format."""
    nbytes: int
