"""What charts are made of: elements, text, axes, and labels that do not overlap. Pure.

Elements are built as a tree, so whatever a name holds is text and never markup. Colours are classes
of the page's style sheet, which knows light, dark and paper.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

_unprintable = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def element(tag: str, *children: Element | str | None, **attributes: object) -> Element:
    """An element. `class_` is class, `stroke_width` stroke-width; None is left out."""
    found = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            found.set(name.rstrip("_").replace("_", "-"), written(value))
    for child in children:
        if isinstance(child, str):
            said = _unprintable.sub("\ufffd", child)
            if len(found):
                found[-1].tail = (found[-1].tail or "") + said
            else:
                found.text = (found.text or "") + said
        elif child is not None:
            found.append(child)
    return found


def written(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return _unprintable.sub("\ufffd", str(value))


def drawing(width: float, height: float, title: str, *children: Element | None) -> Element:
    """An SVG picture. title: what it shows, for those who do not see it."""
    box = f"0 0 {written(float(width))} {written(float(height))}"
    return element("svg", element("title", title), *children, viewBox=box, role="img")


def fluid(height: float, title: str, *children: Element | None) -> Element:
    """A picture as wide as its place, whatever that is: heights are pixels, and so is text; what
    lies across is written by `percent`."""
    return element("svg", element("title", title), *children, height=height, role="img")


def percent(share: float) -> str:
    """A place or a length across a fluid picture."""
    return f"{written(100 * share)}%"


class Axis(NamedTuple):
    """Maps values from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies; values outside lie at the end."""
        low, high, value = (self._scaled(each) for each in (self.low, self.high, value))
        share = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def _scaled(self, value: float) -> float:
        return math.log(max(value, self.low)) if self.log else value

    def ticks(self, most: int = 6) -> list[float]:
        """Round values between low and high: 1, 2 or 5 times powers of ten."""
        return self._log_ticks(most) if self.log else self._even_ticks(most)

    def _even_ticks(self, most: int) -> list[float]:
        if self.high - self.low <= 1e-9 * abs(self.high):
            return [self.low]
        power = 10.0 ** math.floor(math.log10((self.high - self.low) / most))
        step = next(
            power * factor
            for factor in (1, 2, 5, 10, 20, 50)
            if (self.high - self.low) / (power * factor) <= most
        )
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _log_ticks(self, most: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for factors in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            found = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
            inside = [each for each in found if self.low * 0.999 <= each <= self.high * 1.001]
            if len(inside) <= most:
                return inside
        return inside[:: -(-len(inside) // most)]


def text(x: float | str, y: float, said: str, kind: str, anchor: str | None = None) -> Element:
    return element("text", said, x=x, y=y, class_=kind, text_anchor=anchor)


def line(x: float | str, y: float, to_x: float | str, to_y: float, kind: str) -> Element:
    return element("line", x1=x, y1=y, x2=to_x, y2=to_y, class_=kind)


def rectangle(x: float | str, y: float, width: float | str, height: float, kind: str) -> Element:
    return element("rect", x=x, y=y, width=width, height=height, class_=kind)


def upright(x: float | str, top: float, foot: float, label: str) -> Element:
    return element("g", line(x, top, x, foot, "grid"), text(x, foot + 16, label, "tick", "middle"))


def apart(values: Sequence[float], axis: Axis, least: float = 46.0) -> list[float]:
    """Those values that are so far apart that their labels do not touch."""
    found: list[float] = []
    for value in values:
        if not found or axis.at(value) - axis.at(found[-1]) >= least:
            found.append(value)
    return found


def spread(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Ascending places moved as little as it takes to be `least` apart, from low to high.

    What is too near is one block, which lies around the mean of where its members wanted to be.
    """
    blocks: list[list[float]] = []

    def start(block: list[float]) -> float:
        length = least * (len(block) - 1)
        return min(max(low, sum(block) / len(block) - length / 2), max(low, high - length))

    for place in places:
        blocks.append([place])
        while len(blocks) > 1:
            before = blocks[-2]
            if start(before) + least * len(before) <= start(blocks[-1]):
                break
            blocks[-2:] = [before + blocks[-1]]
    return [start(block) + least * number for block in blocks for number in range(len(block))]
