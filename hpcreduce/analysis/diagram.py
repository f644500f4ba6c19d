"""A diagram of messages between ranks over time, as SVG: what `hpcreduce.analysis.draw` draws with.

Ranks are lines from left to right, one below the other; each round is a column. A message is a label with what is
sent, at its sender, and an arrow to its receiver. The colour-blind can tell the colours apart; where they run out, or
in print without colours, the numbers in the labels tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree

COLOURS = ("#332288", "#CC6677", "#117733", "#E69F00", "#882255", "#44AA99", "#AA4499", "#999933", "#56B4E9")
"""Of single chunks: Paul Tol's muted scheme, with two of Okabe and Ito's for those that are pale on white."""

SEVERAL = "#555555"
"""Of what is not a single chunk."""

_DARK_TEXT = ("#CC6677", "#E69F00", "#44AA99", "#999933", "#56B4E9")
_FONT = 11
_LETTER = 6.6
_HEIGHT = 15  # of a label
_CELL = 14  # width of a chunk in a label
_MOST_CELLS = 4
_MARGIN = 12
_NAMES = 58  # width of the names of ranks
_HEAD = 58  # height of title and round numbers
_PAD = 7  # between the edge of a round and what is in it
_RUN = 58  # width of an arrow, at least
_SLOPE = 0.18  # and relative to its height
_PITCH = 46  # between ranks
_LINE = 22  # of the legend


class Message(NamedTuple):
    """One message: `source` sends `name` in round `sent`, `target` receives it in round `landed` and has an `effect`.

    `chunks` are the chunks it is made of, none if it is no union of whole chunks.
    """

    source: int
    target: int
    sent: int
    landed: int
    reduces: bool
    name: str
    chunks: tuple[int, ...]
    effect: str


def render(title: str, size: int, rounds: int, messages: Sequence[Message]) -> str:
    """Return the document."""
    place = _Layout(size, rounds, messages)
    width = max(place.right, 2 * _MARGIN + _width(title, 14), 420.0)
    picture = ElementTree.Element("g", {"font-family": "sans-serif", "font-size": str(_FONT)})
    _text(picture, _MARGIN, 22, title, size=14)
    _grid(picture, place, size, rounds)
    for message in messages:
        _message(picture, place, message)
    labelled = {(message.source, message.sent, message.name): message for message in messages}
    for message in labelled.values():  # above all arrows
        _label(picture, *place.label(message), message)
    bottom = _legend(picture, place.bottom + 26, width, messages)
    root = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": _short(width),
            "height": _short(bottom),
            "viewBox": f"0 0 {_short(width)} {_short(bottom)}",
        },
    )
    ElementTree.SubElement(root, "title").text = title
    _rectangle(root, 0, 0, width, bottom, "#FFFFFF")
    root.append(picture)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


class _Layout:
    """Where things are."""

    def __init__(self, size: int, rounds: int, messages: Sequence[Message]) -> None:
        sends: dict[tuple[int, int], dict[str, list[int]]] = {}  # (rank, round) -> label -> targets
        recvs: dict[tuple[int, int], list[Message]] = {}
        widths = [0.0] * rounds
        farthest = [0] * rounds  # ranks that a message of the round goes up or down
        for message in messages:
            labels = sends.setdefault((message.source, message.sent), {})
            labels.setdefault(message.name, []).append(message.target)
            recvs.setdefault((message.target, message.landed), []).append(message)
            widths[message.sent] = max(widths[message.sent], _label_width(message))
            farthest[message.sent] = max(farthest[message.sent], abs(message.source - message.target))
        self.stacks = {  # labels in the order of their targets, so that arrows cross less
            key: sorted(labels, key=lambda name: sum(labels[name]) / len(labels[name])) for key, labels in sends.items()
        }
        highest = max(map(len, self.stacks.values()), default=1)
        self.pitch = max(_PITCH, highest * (_HEIGHT + 2) + 16)
        self.edges = [float(_MARGIN + _NAMES)]
        for width, ranks in zip(widths, farthest, strict=True):
            self.edges.append(self.edges[-1] + 2 * _PAD + width + max(_RUN, _SLOPE * ranks * self.pitch))
        self.right = self.edges[-1] + _MARGIN
        self.bottom = _HEAD + size * self.pitch
        self.ends = {  # messages in the order of their senders, so that heads lie side by side
            key: sorted(landing, key=lambda message: self.label(message)[1]) for key, landing in recvs.items()
        }

    def rank(self, rank: int) -> float:
        """Return the height of a rank's line."""
        return _HEAD + (rank + 0.5) * self.pitch

    def label(self, message: Message) -> tuple[float, float]:
        """Return the left middle of a message's label."""
        stack = self.stacks[message.source, message.sent]
        shift = stack.index(message.name) - (len(stack) - 1) / 2
        return self.edges[message.sent] + _PAD, self.rank(message.source) + shift * (_HEIGHT + 2)

    def tip(self, message: Message) -> tuple[float, float]:
        """Return the tip of a message's arrow."""
        landing = self.ends[message.target, message.landed]
        shift = landing.index(message) - (len(landing) - 1) / 2
        step = min(9.0, 0.7 * self.pitch / len(landing))
        return self.edges[message.landed + 1] - _PAD, self.rank(message.target) + shift * step


def _grid(parent: ElementTree.Element, place: _Layout, size: int, rounds: int) -> None:
    """Draw rounds as bands and ranks as lines."""
    for index in range(rounds):
        left, right = place.edges[index], place.edges[index + 1]
        if index % 2 == 0:
            _rectangle(parent, left, _HEAD - 18, right - left, place.bottom - _HEAD + 18, "#F1F1F1")
        _text(parent, (left + right) / 2, _HEAD - 5, f"round {index}", anchor="middle")
    for rank in range(size):
        height = place.rank(rank)
        _text(parent, _MARGIN, height + 4, f"rank {rank}")
        _line(parent, (place.edges[0], height), (place.edges[-1], height), "#AAAAAA", 1)


def _message(parent: ElementTree.Element, place: _Layout, message: Message) -> None:
    group = ElementTree.SubElement(
        parent,
        "g",
        {
            "class": f"message {'reduce' if message.reduces else 'copy'}",
            "data-source": str(message.source),
            "data-target": str(message.target),
            "data-round": str(message.sent),
        },
    )
    ElementTree.SubElement(group, "title").text = (
        f"round {message.sent}: rank {message.source} sends {message.name} to rank {message.target}, "
        f"which {message.effect}"
    )
    left, height = place.label(message)
    _arrow(group, (left + _label_width(message), height), place.tip(message), _colour(message), message.reduces)


def _arrow(
    parent: ElementTree.Element, start: tuple[float, float], tip: tuple[float, float], colour: str, reduces: bool
) -> None:
    """Draw a line with a head: solid and filled where it reduces, else dashed and open."""
    across, down = tip[0] - start[0], tip[1] - start[1]
    length = (across * across + down * down) ** 0.5 or 1.0
    across, down = across / length, down / length
    back = (tip[0] - 10 * across, tip[1] - 10 * down)
    wings = [(back[0] - 4 * side * down, back[1] + 4 * side * across) for side in (1, -1)]
    points = " ".join(f"{_short(x)},{_short(y)}" for x, y in (wings[0], tip, wings[1]))
    if reduces:
        _line(parent, start, back, colour, 1.8)
        ElementTree.SubElement(parent, "polygon", {"points": points, "fill": colour})
    else:
        _line(parent, start, tip, colour, 1.8).set("stroke-dasharray", "5 3")
        ElementTree.SubElement(
            parent, "polyline", {"points": points, "fill": "none", "stroke": colour, "stroke-width": "1.8"}
        )


def _label(parent: ElementTree.Element, left: float, height: float, message: Message) -> None:
    """Draw what is sent: a few chunks as a strip in their colours, else its name."""
    cells = [(str(chunk), _of_chunk(chunk)) for chunk in message.chunks] if _in_cells(message) else []
    width = _label_width(message)
    for index, (name, colour) in enumerate(cells or [(message.name, SEVERAL)]):
        each = width / max(1, len(cells))
        _box(parent, left + index * each, height, each, name, colour)


def _box(parent: ElementTree.Element, left: float, height: float, width: float, name: str, colour: str) -> None:
    box = _rectangle(parent, left, height - _HEIGHT / 2, width, _HEIGHT, colour)
    box.set("stroke", "#FFFFFF")
    fill = "#000000" if colour in _DARK_TEXT else "#FFFFFF"
    _text(parent, left + width / 2, height + 4, name, anchor="middle", fill=fill)


def _legend(parent: ElementTree.Element, top: float, width: float, messages: Sequence[Message]) -> float:
    """Explain colours and arrows that occur; return where the picture ends."""
    shown = sorted({chunk for message in messages if _in_cells(message) for chunk in message.chunks})
    left = float(_MARGIN)
    if shown:
        _text(parent, left, top + 4, "chunk")
        left = float(_MARGIN + _NAMES)
        for chunk in shown:
            each = max(float(_CELL), _width(str(chunk)) + 6)
            if left + each > width - _MARGIN:
                left, top = float(_MARGIN + _NAMES), top + _LINE
            _box(parent, left, top, each, str(chunk), _of_chunk(chunk))
            left += each + 4
        top += _LINE
    names = {message.name for message in messages if not message.chunks or message.name == "all"}
    named = {"all": "the whole array", "-": "an empty message", "[a:b]": "elements a to b-1, which are no whole chunks"}
    for name, meaning in named.items():
        if name in names or (name == "[a:b]" and any(other.startswith("[") for other in names)):
            _box(parent, _MARGIN, top, _width(name) + 8, name, SEVERAL)
            top = _explain(parent, top, meaning)
    if any(len(message.chunks) > 1 and message.name != "all" for message in messages):
        _line(parent, (_MARGIN, top), (_MARGIN + 46, top), SEVERAL, 1.8)
        top = _explain(parent, top, "several chunks in one message")
    for reduces, meaning in (True, "combined with what the receiver has"), (False, "overwrites what the receiver has"):
        if any(message.reduces == reduces for message in messages):
            _arrow(parent, (_MARGIN, top), (_MARGIN + 46, top), "#000000", reduces)
            top = _explain(parent, top, meaning)
    return top - _LINE / 2 + 4


def _explain(parent: ElementTree.Element, top: float, meaning: str) -> float:
    _text(parent, _MARGIN + _NAMES, top + 4, meaning)
    return top + _LINE


def _in_cells(message: Message) -> bool:
    return message.name != "all" and 1 <= len(message.chunks) <= _MOST_CELLS


def _label_width(message: Message) -> float:
    if _in_cells(message):
        return len(message.chunks) * max(float(_CELL), max(_width(str(chunk)) for chunk in message.chunks) + 6)
    return max(float(_CELL), _width(message.name) + 8)


def _of_chunk(chunk: int) -> str:
    return COLOURS[chunk % len(COLOURS)]


def _colour(message: Message) -> str:
    return _of_chunk(message.chunks[0]) if len(message.chunks) == 1 and message.name != "all" else SEVERAL


def _width(text: str, size: int = _FONT) -> float:
    return len(text) * _LETTER * size / _FONT


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _text(
    parent: ElementTree.Element,
    x: float,
    y: float,
    text: str,
    *,
    size: int = _FONT,
    anchor: str = "start",
    fill: str = "#000000",
) -> None:
    made = ElementTree.SubElement(parent, "text", {"x": _short(x), "y": _short(y), "fill": fill, "text-anchor": anchor})
    if size != _FONT:
        made.set("font-size", str(size))
    made.text = text


def _rectangle(
    parent: ElementTree.Element, x: float, y: float, width: float, height: float, fill: str
) -> ElementTree.Element:
    where = {"x": _short(x), "y": _short(y), "width": _short(width), "height": _short(height)}
    return ElementTree.SubElement(parent, "rect", where | {"fill": fill})


def _line(
    parent: ElementTree.Element, start: tuple[float, float], stop: tuple[float, float], colour: str, width: float
) -> ElementTree.Element:
    where = {"x1": _short(start[0]), "y1": _short(start[1]), "x2": _short(stop[0]), "y2": _short(stop[1])}
    return ElementTree.SubElement(parent, "line", where | {"stroke": colour, "stroke-width": _short(width)})
