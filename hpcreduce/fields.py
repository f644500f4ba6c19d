"""JSON files that somebody else has written, or cut off: read, and checked field by field.

The text of an error names the file, the field, what was expected and what was found. Whoever reads says which error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from hpcreduce.errors import HpcreduceError


def load(path: str, where: str, error: type[HpcreduceError]) -> object:
    """Return the document in a JSON file, which errors call `where`."""
    if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait
        raise error(f"{where}: not a file")
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (OSError, ValueError) as problem:
        raise error(f"{where}: cannot read it: {getattr(problem, 'strerror', None) or problem}") from None
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as problem:
        raise error(f"{where}: not JSON, or truncated: {problem}") from None


class Fields:
    """The fields of a JSON object; each method returns one, checked."""

    def __init__(self, document: object, where: str, error: type[HpcreduceError]) -> None:
        if not isinstance(document, dict):
            raise error(f"{where}: expected an object, found {_short(document)}")
        self.document, self.where, self.error = document, where, error

    def wrong(self, name: str, expected: str, found: object) -> HpcreduceError:
        """Return the error for a field that is wrong."""
        return self.error(f"{self.where}: {name}: expected {expected}, found {_short(found)}")

    def value(self, name: str) -> Any:
        """Return a field as it stands there."""
        if name not in self.document:
            raise self.error(f"{self.where}: the field {name!r} is missing")
        return self.document[name]

    def whole(self, name: str, least: int | None = None, most: int | None = None) -> int:
        """Return a whole number within limits."""
        value = self.value(name)
        if not _is_whole(value) or (least is not None and value < least) or (most is not None and value > most):
            limits = "" if least is None else f" from {least} on" if most is None else f" from {least} to {most}"
            raise self.wrong(name, f"a whole number{limits}", value)
        return int(value)

    def wholes(self, name: str) -> list[int]:
        """Return a list of whole numbers from 0 on."""
        value = self.value(name)
        if not isinstance(value, list) or not all(_is_whole(item) and item >= 0 for item in value):
            raise self.wrong(name, "a list of whole numbers from 0 on", value)
        return value

    def number(self, name: str, what: str, least: float, most: float) -> float:
        """Return a number within limits; `what` says of what."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise self.wrong(name, what, value)
        return float(value)

    def truth(self, name: str) -> bool:
        """Return true or false."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def text(self, name: str) -> str:
        """Return a text, printable."""
        value = self.value(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a text", value)
        return _printable(value)

    def texts(self, name: str) -> list[str]:
        """Return a list of texts, printable."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a list of texts", value)
        return [_printable(item) for item in value]

    def objects(self, name: str) -> Iterator[Fields]:
        """Yield the objects of a list."""
        value = self.value(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list", value)
        return (Fields(item, f"{self.where}: {name}[{index}]", self.error) for index, item in enumerate(value))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _printable(text: str) -> str:
    """Return the text on one line, and without what a terminal would obey."""
    return "".join(char if char.isprintable() else " " for char in text)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
