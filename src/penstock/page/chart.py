"""Charts as SVG elements: stacked bars, small columns, lines. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple
from xml.etree.ElementTree import Element

from . import svg
from .svg import Axis, element

Said = Callable[[float], str]
"""How a number is written."""


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
        *(svg.upright(scale.at(tick), 4, foot, said(tick)) for tick in scale.ticks()),
        svg.text(left, foot + 34, axis, "axis"),
    ]
    notes = []
    for number, row in enumerate(rows):
        y = 8 + step * number
        drawn.append(svg.text(left - 10, y + 16, row.label, f"label {row.mark}".strip(), "end"))
        x, total = left, 0.0
        for part, kind in zip(row.parts, classes, strict=True):
            total += part
            end = scale.at(total)
            if end > x:
                drawn.append(svg.rectangle(x, y + 2, end - x, step - 9, kind))
            x = end
        notes.append(svg.text(x + 8, y + 16, row.note, "note"))
    if rule:
        x = scale.at(sum(rows[0].parts))
        drawn.append(svg.line(x, 4, x, foot, "bound"))
    return svg.drawing(width, foot + bottom, title, *drawn, *notes)


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
            svg.line(left, up.at(tick), width - 6, up.at(tick), "grid"),
            svg.text(left - 6, up.at(tick) + 4, said(tick), "tick", "end"),
        )
    ]
    gap = min(4.0, (across.at(1) - across.at(0)) * 0.2)
    for number, stack in enumerate(stacks):
        x, wide = across.at(number) + gap / 2, across.at(number + 1) - across.at(number) - gap
        total = 0.0
        for part, kind in zip(stack, classes, strict=True):
            y, total = up.at(total), total + part
            if y > up.at(total):
                drawn.append(svg.rectangle(x, up.at(total), wide, y - up.at(total), kind))
    for number, mark in enumerate(marks):
        y = up.at(mark)
        drawn.append(svg.line(across.at(number), y, across.at(number + 1), y, "bound"))
    for number, label in {0: 1, len(stacks) - 1: epochs}.items():
        middle = (across.at(number) + across.at(number + 1)) / 2
        drawn.append(svg.text(middle, foot + 15, f"{label:,}", "tick", "middle"))
    drawn.append(svg.text((left + width) / 2, foot + 15, "epoch", "tick", "middle"))
    return svg.drawing(width, height, title, *drawn)


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
    drawn = [svg.upright(over.at(x), top, foot, said(x)) for x in svg.apart(across, over)]
    for tick in up.ticks(7):
        drawn.append(svg.line(left, up.at(tick), right, up.at(tick), "grid"))
        drawn.append(svg.text(left - 8, up.at(tick) + 4, said(tick), "tick", "end"))
    drawn += [
        svg.line(over.at(own), top, over.at(own), foot, "own"),
        svg.text(over.at(own), top - 9, "this scenario", "tick", "middle"),
        svg.text((left + right) / 2, foot + 40, axes[0], "axis", "middle"),
        svg.text(left - 66, top - 9, axes[1], "axis"),
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
    heights = svg.spread([y for (_, y), _ in ends], 17.0, top, foot + 24)
    for ((x, y), line), place in zip(ends, heights, strict=True):
        leader = f"M{svg.written(x + 6)} {svg.written(y)}H{svg.written(right + 4)}"
        leader += f"L{svg.written(right + 30)} {svg.written(place)}H{svg.written(right + 48)}"
        drawn.append(element("path", d=leader, class_=f"leader {line.kind}"))
        drawn.append(svg.text(right + 54, place + 4, line.label, f"label {line.kind}"))
    return svg.drawing(width, height, title, *drawn)


def _path(line: Line, across: Sequence[float], over: Axis, up: Axis) -> Element:
    """Values that follow each other are joined; where one is missing, there is a gap."""
    known = [value > 0 for value in line.values]
    steps = "".join(
        f"{'L' if before else 'M'}{svg.written(over.at(x))} {svg.written(up.at(y))}"
        for (before, here), x, y in zip(pairwise([False, *known]), across, line.values, strict=True)
        if here
    )
    return element("path", d=steps, class_=f"line {line.kind}")
