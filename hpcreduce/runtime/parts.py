"""Which of many arrays are reduced together, and how they lie in the buffer of each such part.

Rules that hold here:

* What is reduced in the same dtype by the same operation is one part. A mean is a sum that is divided afterwards.
* A layout depends on names, shapes, dtypes and operations only. No MPI.
* Nothing is done for each array that can be done for all at once.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcreduce.runtime import operations
from hpcreduce.runtime.operations import OPERATIONS, Array, DType, Operation

LISTED = 3000
"""Characters of the list of arrays that a call's description has; of the others it has check sums."""

BLOCKS = 16
"""Blocks of arrays that have a check sum each."""

SMALL = 4096
"""Bytes per array below which joining them as bytes is faster than `numpy.concatenate`, which looks at each longer."""


class Way(NamedTuple):
    """How an array is reduced: its operation, and what it has in common with others that are reduced together.

    `together` is `None` for a function of the user's own: it may do more than combine element by element.
    """

    operation: Operation
    together: Any


class Section(NamedTuple):
    """A stretch of a part's buffer whose results are made alike.

    Attributes
    ----------
    start, stop : int
        Elements of the buffer.
    divides : bool
        The sums are divided by the number of ranks.
    dtype : numpy.dtype
        Of the results. Where it is the buffer's own, they are views of the buffer.
    runs : tuple
        ``(start, stop, number, shape)`` of arrays of one shape that follow one another, within the section.
    """

    start: int
    stop: int
    divides: bool
    dtype: DType
    runs: tuple[tuple[int, int, int, tuple[int, ...]], ...]


class Part(NamedTuple):
    """Arrays that are reduced together in one buffer.

    Attributes
    ----------
    operation : Operation
    dtype : numpy.dtype
        Of the buffer.
    length : int
        Its elements.
    members : tuple of int
        The arrays, in the order in which they lie in it.
    sections : tuple of Section
    uniform : bool
        All arrays have the buffer's dtype.
    in_order : bool
        They are all that there are, in the order in which they were passed.
    """

    operation: Operation
    dtype: DType
    length: int
    members: tuple[int, ...]
    sections: tuple[Section, ...]
    uniform: bool
    in_order: bool

    def cut(self, flat: Array) -> list[Array]:
        """Return the sections of a buffer."""
        return [flat[section.start : section.stop] for section in self.sections]

    def views(self, pieces: list[Array]) -> list[Array]:
        """Return the arrays that lie in the sections, in the order of `members`."""
        found: list[Array] = []
        for section, piece in zip(self.sections, pieces, strict=True):
            for start, stop, number, shape in section.runs:
                if shape:
                    found.extend(piece[start:stop].reshape((number, *shape)))
                else:
                    found.extend([piece[index : index + 1].reshape(()) for index in range(start, stop)])
        return found


class Layout(NamedTuple):
    """How a list of arrays is reduced: its parts, the dtype of each result, and all arrays in words."""

    parts: tuple[Part, ...]
    results: tuple[DType, ...]
    text: str


def arrange(
    names: tuple[str, ...] | None, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[DType], ways: Sequence[Way]
) -> Layout:
    """Lay out arrays of these shapes and dtypes, each to be reduced in its way.

    Raises
    ------
    TypeError
        An operation does not take a dtype.

    Examples
    --------
    >>> single, half = np.dtype("f4"), np.dtype("f2")
    >>> layout = arrange(None, [(2, 3), (4,), ()], [single, half, single], list(map(way, ["mean", "sum", "max"])))
    >>> [(part.operation.name, str(part.dtype), part.length, part.members) for part in layout.parts]
    [('sum', 'float32', 10, (0, 1)), ('max', 'float32', 1, (2,))]
    >>> layout.text
    '3 arrays: 0 mean float32 (2, 3); 1 sum float16 (4,); 2 max float32 ()'
    """
    types: dict[tuple[str, DType], tuple[DType, DType]] = {}
    kinds: list[tuple[bool, DType]] = []
    together: dict[Any, list[int]] = {}
    for index, (dtype, (row, common)) in enumerate(zip(dtypes, ways, strict=True)):
        if (row.name, dtype) not in types:
            try:
                types[row.name, dtype] = row.types(dtype)
            except TypeError as error:
                raise TypeError(f"{label(names, index)}: {error}") from None
        work, result = types[row.name, dtype]
        kinds.append((row.divides, result))
        key = index if common is None else common, work["value"] if row.locates else work
        together.setdefault(key, []).append(index)
    parts = [
        _part(ways[members[0]].operation, dtype, members, shapes, dtypes, kinds)
        for (_, dtype), members in together.items()
    ]
    nothing = Part(OPERATIONS["sum"], np.dtype(float), 0, (), (), True, True)  # who has no arrays meets the others too
    return Layout(
        tuple(parts) or (nothing,), tuple(result for _, result in kinds), describe(names, shapes, dtypes, ways)
    )


def _part(
    row: Operation,
    dtype: DType,
    members: list[int],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[DType],
    kinds: Sequence[tuple[bool, DType]],
) -> Part:
    """Put the members in order: those whose results are made alike, and among them those of one shape."""
    alike: dict[tuple[bool, DType], dict[tuple[int, ...], list[int]]] = {}
    for index in members:
        alike.setdefault(kinds[index], {}).setdefault(shapes[index], []).append(index)
    sections, order, start = [], [], 0
    for (divides, result), by_shape in alike.items():
        runs, stop = [], 0
        for shape, run in by_shape.items():
            first, stop = stop, stop + len(run) * math.prod(shape)
            runs.append((first, stop, len(run), shape))
            order += run
        sections.append(Section(start, start + stop, divides, result, tuple(runs)))
        start += stop
    uniform = all(dtypes[index] == dtype for index in members)
    row = OPERATIONS["sum"] if row.divides else row
    in_order = order == list(range(len(shapes)))
    return Part(row, dtype, start, tuple(order), tuple(sections), uniform, in_order)


def describe(
    names: tuple[str, ...] | None, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[DType], ways: Sequence[Way]
) -> str:
    """Return all arrays in words, and check sums of those that are too many: different arrays, different words.

    >>> describe(("b", "w"), [(2,), (2, 2)], [np.dtype("i8")] * 2, [way("sum")] * 2)
    "2 arrays: 'b' sum int64 (2,); 'w' sum int64 (2, 2)"
    >>> describe(None, [(2,)] * 5 + [(3,)], [np.dtype("i8")] * 6, [way("sum")] * 6)
    '6 arrays: 0-4 sum int64 (2,); 5 sum int64 (3,)'
    """
    written = {dtype: str(dtype) for dtype in set(dtypes)}
    kinds = [
        f"{row.name} {written[dtype]} {shape}" for shape, dtype, (row, _) in zip(shapes, dtypes, ways, strict=True)
    ]
    items: list[tuple[str, str, str]] = []  # first and last array, what they are
    if names is not None:
        items = [(repr(name), repr(name), kind) for name, kind in zip(names, kinds, strict=True)]
    else:
        start = 0
        for kind, alike in itertools.groupby(kinds):
            stop = start + len(list(alike))
            items.append((str(start), str(stop - 1), kind))
            start = stop
    texts, room = [], LISTED
    for first, last, kind in items:
        text = f"{_range(first, last)} {kind}"
        room -= len(text)
        if room < 0:
            break
        texts.append(text)
    rest = items[len(texts) :]
    step = -(-len(rest) // BLOCKS) or 1
    for block in (rest[start : start + step] for start in range(0, len(rest), step)):
        texts.append(f"{_range(block[0][0], block[-1][1])} with check sum {zlib.crc32(repr(block).encode()):08x}")
    return f"{len(shapes)} array{'' if len(shapes) == 1 else 's'}" + (": " if texts else "") + "; ".join(texts)


def _range(first: str, last: str) -> str:
    return first if first == last else f"{first}-{last}"


def way(op: Any) -> Way:
    """Return how `op` reduces an array. Raises as `hpcreduce.runtime.operations.resolve`.

    >>> way("mean").together, way("max").together, way(np.hypot).together, way(lambda a, b: a).together
    ('sum', 'max', <ufunc 'hypot'>, None)
    """
    row = operations.resolve(op)
    if isinstance(row.library, str) and row.library:
        return Way(row, "sum" if row.divides else row.name)
    return Way(row, row.library.handle if row.library else op if isinstance(op, np.ufunc) else None)


def label(names: tuple[str, ...] | None, index: int) -> str:
    """Return an array in words."""
    return f"array {index if names is None else repr(names[index])}"


def pack(part: Part, sources: list[Array]) -> Array:
    """Return a new buffer with the part's members."""
    members = sources if part.in_order else [sources[index] for index in part.members]
    if part.uniform and part.length * part.dtype.itemsize < SMALL * len(members):
        with contextlib.suppress(TypeError):  # what is not contiguous, or dates
            return np.ndarray(part.length, part.dtype, bytearray().join(members))  # type: ignore[arg-type]
    flat = np.empty(part.length, part.dtype)
    if members:
        np.concatenate(members, axis=None, out=flat, casting="unsafe")
    return flat


def make_pieces(part: Part, flat: Array) -> list[Array]:
    """Return where the results of each section go: into the buffer, or a new one where they have another dtype."""
    return [
        piece if piece.dtype == section.dtype else np.empty(piece.size, section.dtype)
        for section, piece in zip(part.sections, part.cut(flat), strict=True)
    ]


def finish(part: Part, flat: Array, pieces: list[Array], size: int) -> None:
    """Make the results of what `size` ranks have combined."""
    for section, piece, combined in zip(part.sections, pieces, part.cut(flat), strict=True):
        if section.divides:
            operations.divide(combined, size)
        if section.dtype != part.dtype:
            with np.errstate(over="ignore"):  # a sum of 16-bit floats may well be infinite
                np.copyto(piece, combined, casting="unsafe")
