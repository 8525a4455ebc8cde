"""Charts as SVG elements: stacked bars, small columns, lines. Pure.

Elements are built as a tree, so whatever a name holds is text and never markup. Colours are classes
of the page's style sheet (see `report`), which knows light, dark and paper.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple
from xml.etree.ElementTree import Element

_unprintable = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Said = Callable[[float], str]
"""How a number is written."""


def element(tag: str, *children: Element | str | None, **attributes: object) -> Element:
    """An element. `class_` is class, `stroke_width` stroke-width; None is left out."""
    found = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            found.set(name.rstrip("_").replace("_", "-"), _written(value))
    for child in children:
        if isinstance(child, str):
            text = _unprintable.sub("\ufffd", child)
            if len(found):
                found[-1].tail = (found[-1].tail or "") + text
            else:
                found.text = (found.text or "") + text
        elif child is not None:
            found.append(child)
    return found


def _written(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return _unprintable.sub("\ufffd", str(value))


def drawing(width: float, height: float, title: str, *children: Element | None) -> Element:
    """An SVG picture. title: what it shows, for those who do not see it."""
    box = f"0 0 {_written(float(width))} {_written(float(height))}"
    return element("svg", element("title", title), *children, viewBox=box, role="img")


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
        if not self.high > self.low:
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


# -- stacked bars ----------------------------------------------------------------------------------


class Bar(NamedTuple):
    """A row of bars. parts: one for each class of the stack; note: written behind them."""

    label: str
    parts: Sequence[float]
    note: str
    mark: str = ""


def bars(
    title: str,
    rows: Sequence[Bar],
    classes: Sequence[str],
    axis: str,
    said: Said,
    *,
    rule: bool = False,
) -> Element:
    """Rows of stacked bars from zero. rule: the first row's end is one through all of them."""
    left, width, step, bottom = 168.0, 860.0, 30.0, 44.0
    high = max((sum(row.parts) for row in rows), default=1.0) or 1.0
    scale = Axis(0.0, high, left, width - 196)
    foot = 8 + step * len(rows)
    drawn = [
        *(_upright(scale.at(tick), 4, foot, said(tick)) for tick in scale.ticks()),
        _text(left, foot + 34, axis, "axis"),
    ]
    notes = []
    for number, row in enumerate(rows):
        y = 8 + step * number
        drawn.append(_text(left - 10, y + 16, row.label, f"label {row.mark}".strip(), "end"))
        x, total = left, 0.0
        for part, kind in zip(row.parts, classes, strict=True):
            total += part
            end = scale.at(total)
            if end > x:
                drawn.append(_rectangle(x, y + 2, end - x, step - 9, kind))
            x = end
        notes.append(_text(x + 8, y + 16, row.note, "note"))
    if rule:
        x = scale.at(sum(rows[0].parts))
        drawn.append(_line(x, 4, x, foot, "bound"))
    return drawing(width, foot + bottom, title, *drawn, *notes)


# -- small columns ---------------------------------------------------------------------------------


def columns(
    title: str,
    stacks: Sequence[Sequence[float]],
    classes: Sequence[str],
    *,
    high: float,
    said: Said,
    marks: Sequence[float] = (),
    epochs: int,
) -> Element:
    """A small chart of stacked columns, of which several share a scale.

    stacks:  of each column, its parts by class.
    high:    where the scale ends.
    marks:   a line across each column.
    epochs:  the last one's number.
    """
    width, height, left, foot = 300.0, 132.0, 54.0, 108.0
    across = Axis(0, len(stacks), left, width - 6)
    up = Axis(0, 1.04 * high or 1.0, foot, 4)
    drawn = [
        part
        for tick in up.ticks(4)
        for part in (
            _line(left, up.at(tick), width - 6, up.at(tick), "grid"),
            _text(left - 6, up.at(tick) + 4, said(tick), "tick", "end"),
        )
    ]
    gap = min(4.0, (across.at(1) - across.at(0)) * 0.2)
    for number, stack in enumerate(stacks):
        x, wide = across.at(number) + gap / 2, across.at(number + 1) - across.at(number) - gap
        total = 0.0
        for part, kind in zip(stack, classes, strict=True):
            y, total = up.at(total), total + part
            if y > up.at(total):
                drawn.append(_rectangle(x, up.at(total), wide, y - up.at(total), kind))
    for number, mark in enumerate(marks):
        y = up.at(mark)
        drawn.append(_line(across.at(number), y, across.at(number + 1), y, "bound"))
    for number, label in {0: 1, len(stacks) - 1: epochs}.items():
        middle = (across.at(number) + across.at(number + 1)) / 2
        drawn.append(_text(middle, foot + 15, f"{label:,}", "tick", "middle"))
    drawn.append(_text((left + width) / 2, foot + 15, "epoch", "tick", "middle"))
    return drawing(width, height, title, *drawn)


# -- lines -----------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A named line; NaN where there is no value. kind: its class; plain: without dots."""

    label: str
    values: Sequence[float]
    kind: str
    plain: bool = False


def lines(
    title: str,
    across: Sequence[float],
    drawn_lines: Sequence[Line],
    *,
    own: float,
    axes: tuple[str, str],
    said: Said,
) -> Element:
    """Lines over logarithmic axes, named at their right ends; `own` is a rule.

    Labels that would overlap move apart and are led to their lines.
    """
    width, height, left, right, foot, top = 860.0, 420.0, 74.0, 640.0, 362.0, 26.0
    values = [y for line in drawn_lines for y in line.values if y > 0] or [1.0]
    low, high = min(values), max(values)
    over = Axis(min(across), max(across), left + 10, right - 10, log=True)
    up = Axis(low / 1.08, high * 1.08, foot, top, log=True)
    drawn = [_upright(over.at(x), top, foot, said(x)) for x in _apart(across, over)]
    for tick in up.ticks(7):
        drawn.append(_line(left, up.at(tick), right, up.at(tick), "grid"))
        drawn.append(_text(left - 8, up.at(tick) + 4, said(tick), "tick", "end"))
    drawn += [
        _line(over.at(own), top, over.at(own), foot, "own"),
        _text(over.at(own), top - 9, "this scenario", "tick", "middle"),
        _text((left + right) / 2, foot + 40, axes[0], "axis", "middle"),
        _text(left - 66, top - 9, axes[1], "axis"),
    ]
    ends = []
    for line in drawn_lines:
        points = [(over.at(x), up.at(y)) for x, y in zip(across, line.values, strict=True) if y > 0]
        if points:
            drawn.append(_path(line, across, over, up))
            drawn += (
                []
                if line.plain
                else [
                    element("circle", cx=x, cy=y, r=3.2, class_=f"dot {line.kind}")
                    for x, y in points
                ]
            )
            ends.append((points[-1], line))
    ends.sort(key=lambda end: end[0][1])
    heights = _spread([y for (_, y), _ in ends], 17.0, top, foot + 24)
    for ((x, y), line), place in zip(ends, heights, strict=True):
        leader = f"M{_written(x + 6)} {_written(y)}H{_written(right + 4)}L{_written(right + 30)} "
        leader += f"{_written(place)}H{_written(right + 48)}"
        drawn.append(element("path", d=leader, class_=f"leader {line.kind}"))
        drawn.append(_text(right + 54, place + 4, line.label, f"label {line.kind}"))
    return drawing(width, height, title, *drawn)


def _path(line: Line, across: Sequence[float], over: Axis, up: Axis) -> Element:
    """Values that follow each other are joined; where one is missing, there is a gap."""
    known = [value > 0 for value in line.values]
    steps = "".join(
        f"{'L' if before else 'M'}{_written(over.at(x))} {_written(up.at(y))}"
        for (before, here), x, y in zip(pairwise([False, *known]), across, line.values, strict=True)
        if here
    )
    return element("path", d=steps, class_=f"line {line.kind}")


def _apart(values: Sequence[float], axis: Axis, least: float = 46.0) -> list[float]:
    """Those values that are so far apart that their labels do not touch."""
    found: list[float] = []
    for value in values:
        if not found or axis.at(value) - axis.at(found[-1]) >= least:
            found.append(value)
    return found


def _spread(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
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


# -- what they are made of -------------------------------------------------------------------------


def _text(x: float, y: float, text: str, kind: str, anchor: str | None = None) -> Element:
    return element("text", text, x=x, y=y, class_=kind, text_anchor=anchor)


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> Element:
    return element("line", x1=x, y1=y, x2=to_x, y2=to_y, class_=kind)


def _rectangle(x: float, y: float, width: float, height: float, kind: str) -> Element:
    return element("rect", x=x, y=y, width=width, height=height, class_=kind)


def _upright(x: float, top: float, foot: float, label: str) -> Element:
    return element(
        "g", _line(x, top, x, foot, "grid"), _text(x, foot + 16, label, "tick", "middle")
    )
