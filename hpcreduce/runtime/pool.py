"""What the calls and plans of one kind use in turn, since making it is collective or dear."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

MOST = 63
"""Items of one kind that plans look through: the bits of a mask."""


class Pool:
    """Items by kind, in the order in which all ranks made them.

    Parameters
    ----------
    make : callable
        ``make(key, *what)`` returns a new item, which is `used`; collective, and all ranks must have agreed on it.

    Attributes
    ----------
    blocking : dict
        The item of each kind for calls that wait for their end at once, one after the other.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self.blocking: dict[Hashable, Any] = {}
        self._shared: dict[Hashable, list[Any]] = {}

    def add(self, key: Hashable, *what: Any) -> Any:
        """Make the item of this kind for blocking calls; collective."""
        item = self.blocking[key] = self._make(key, *what)
        return item

    def free_ones(self, key: Hashable) -> int:
        """Return the bits of those of this kind that no plan of this rank uses."""
        return sum(1 << index for index, item in enumerate(self._shared.get(key, [])[:MOST]) if not item.used)

    def borrow(self, key: Hashable, common: int, *what: Any) -> Any:
        """Return an item for a plan; `common` are the bits of those that are free on every rank. Collective."""
        items = self._shared.setdefault(key, [])
        if common:
            item = items[(common & -common).bit_length() - 1]
            item.used = True
        else:
            item = self._make(key, *what)
            items.append(item)
        return item

    def drain(self) -> Iterator[Any]:
        """Yield all items, and forget them."""
        yield from self.blocking.values()
        for items in self._shared.values():
            yield from items
        self.blocking.clear()
        self._shared.clear()
