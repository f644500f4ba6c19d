"""Where the records of a CSV text begin: quotes followed in bulk, from any point on.

Rules that hold here (those of pyarrow and of Python's csv module, where the quote is ``"``, doubled inside of quotes):

1. A quote opens a quoted field only where a field begins: after a delimiter or a newline. Elsewhere outside of quotes
   it is an ordinary character.
2. So a run of adjacent quotes, seen as a function of "inside of quotes", is one of three: an even run changes nothing;
   an odd one after a delimiter or newline *swaps* inside and outside; any other odd one leaves us *outside*, whether it
   closes or is ordinary.
3. Such functions compose. What a range of the text does to that state is two bits, found without knowing the state at
   its beginning: each rank finds those of its own ranges.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

QUOTE, LF, CR = b'"', b"\n", b"\r"


class Effect(NamedTuple):
    """What some text does to "inside of quotes": forget it (be outside) or keep it, then swap or not."""

    forgets: bool = False
    swaps: bool = False

    def __call__(self, inside: bool) -> bool:
        """Return whether it ends inside of quotes, by whether it begins there."""
        return (inside and not self.forgets) != self.swaps

    def then(self, later: Effect) -> Effect:
        """Return the effect of this text and a later one."""
        return later if later.forgets else Effect(self.forgets, self.swaps != later.swaps)


class Runs(NamedTuple):
    """The odd runs of quotes in a piece of text: where each begins, and what all up to and with it do to the state."""

    starts: Any
    forgets: Any
    swaps: Any

    @property
    def effect(self) -> Effect:
        """What all of them do."""
        return Effect(bool(self.forgets[-1]), bool(self.swaps[-1])) if len(self.starts) else Effect()

    def inside(self, places: Any, inside: bool) -> Any:
        """Return whether each place, which holds no quote, is inside of quotes, by whether the beginning is."""
        if not len(self.starts):
            return np.full(np.shape(places), inside)
        before = np.searchsorted(self.starts, places) - 1
        state = (inside & ~self.forgets[before]) != self.swaps[before]
        return np.where(before < 0, inside, state)


def runs(text: bytes, delimiter: bytes, fresh: bool) -> Runs:
    r"""Find the odd runs of quotes.

    Parameters
    ----------
    text : bytes
        Does not begin or end amid a run.
    delimiter : bytes
        One byte.
    fresh : bool
        Whether what is before the text is a delimiter, a newline or nothing.

    Examples
    --------
    >>> runs(b'a,"b\nc"', b",", True).inside([4], False)
    array([ True])
    """
    if QUOTE not in text:
        none = np.zeros(0, bool)
        return Runs(np.zeros(0, np.intp), none, none)
    data = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(data == QUOTE[0])
    first = np.flatnonzero(np.diff(quotes, prepend=-2) != 1)
    odd = np.diff(first, append=len(quotes)) % 2 == 1
    starts = quotes[first[odd]]
    previous = data[starts - 1]
    swap = (previous == delimiter[0]) | (previous == LF[0]) | (previous == CR[0])
    if len(starts) and starts[0] == 0:
        swap[0] = fresh
    swapped = np.cumsum(swap)
    last = np.maximum.accumulate(np.where(swap, -1, np.arange(len(swap))))  # the last run so far that forgets
    forgets = last >= 0
    swaps = (swapped - np.where(forgets, swapped[last], 0)) % 2 == 1
    return Runs(starts, forgets, swaps)


def last_end(text: bytes, delimiter: bytes, newline: bytes) -> int:
    """Return where the last whole record ends in a text that begins with a record; 0: it has none."""
    found = runs(text, delimiter, True)
    end = text.rfind(newline)
    if end < 0 or not found.inside(end, False):
        return end + 1
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == newline[0])
    ends = ends[~found.inside(ends, False)]
    return int(ends[-1]) + 1 if len(ends) else 0


def first_end(text: bytes, delimiter: bytes, newline: bytes, inside: bool, fresh: bool) -> int:
    """Return where the first record that ends in a text ends; 0: none does. It may begin anywhere but in a run."""
    found = runs(text, delimiter, fresh)
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == newline[0])
    ends = ends[~found.inside(ends, inside)]
    return int(ends[0]) + 1 if len(ends) else 0
