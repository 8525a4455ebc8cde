"""Charts as SVG elements. Pure.

Wide: stacked bars, lines. Small, several beside each other: columns, histograms. As wide as there
is room, with text of one size: bars under their names, shares by step, ceilings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple
from xml.etree.ElementTree import Element

from . import svg
from .svg import Axis, element

Said = Callable[[float], str]
"""How a number is written."""

_narrow = 360.0  # pixels of a phone, in which labels of what is fluid must not touch


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
    last: int,
    first: int = 1,
    across: str = "epoch",
) -> Element:
    """A small chart of stacked columns, of which several share a scale.

    stacks:  of each column, its parts by class.
    high:    where the scale ends.
    marks:   a line across each column.
    first:   the first one's number, as last is the last one's.
    across:  what they are numbers of.
    """
    width, height, left, foot = 300.0, 132.0, 54.0, 108.0
    over = Axis(0, len(stacks), left, width - 6)
    up = Axis(0, 1.04 * high or 1.0, foot, 4)
    drawn = [
        part
        for tick in up.ticks(4)
        for part in (
            svg.line(left, up.at(tick), width - 6, up.at(tick), "grid"),
            svg.text(left - 6, up.at(tick) + 4, said(tick), "tick", "end"),
        )
    ]
    gap = min(4.0, (over.at(1) - over.at(0)) * 0.2)
    for number, stack in enumerate(stacks):
        x, wide = over.at(number) + gap / 2, over.at(number + 1) - over.at(number) - gap
        total = 0.0
        for part, kind in zip(stack, classes, strict=True):
            y, total = up.at(total), total + part
            if y > up.at(total):
                drawn.append(svg.rectangle(x, up.at(total), wide, y - up.at(total), kind))
    for number, mark in enumerate(marks):
        y = up.at(mark)
        drawn.append(svg.line(over.at(number), y, over.at(number + 1), y, "bound"))
    named = across
    if len(stacks) == 1:
        named = f"{across} {last:,}"
    else:
        for number, label in ((0, first), (len(stacks) - 1, last)):
            middle = (over.at(number) + over.at(number + 1)) / 2
            drawn.append(svg.text(middle, foot + 15, f"{label:,}", "tick", "middle"))
    drawn.append(svg.text((left + width) / 2, foot + 15, named, "tick", "middle"))
    return svg.drawing(width, height, title, *drawn)


# -- bars under their names ------------------------------------------------------------------------


class Named(NamedTuple):
    """A bar of parts, each a share of the whole width and a class, under its name and number."""

    label: str
    note: str
    parts: Sequence[tuple[float, str]]


def named_bars(title: str, rows: Sequence[Named]) -> Element:
    """Bars as wide as there is room. They have no scale: their numbers are there."""
    step, drawn = 36.0, []
    for number, row in enumerate(rows):
        y = step * number
        drawn += [
            svg.text(0, y + 14, row.label, "tick"),
            svg.text("100%", y + 14, row.note, "label", "end"),
            svg.rectangle(0, y + 20, "100%", 9, "track"),
        ]
        start = 0.0
        for share, kind in row.parts:
            if share > 0:
                place, length = svg.percent(start), svg.percent(min(share, 1 - start))
                drawn.append(svg.rectangle(place, y + 20, length, 9, kind))
            start += share
    return svg.fluid(step * len(rows), title, *drawn)


# -- small histograms ------------------------------------------------------------------------------


class Mark(NamedTuple):
    """An upright line through a chart, with its name."""

    label: str
    value: float


def histogram(
    title: str,
    counts: Sequence[int],
    none: int | None,
    marks: Sequence[Mark],
    *,
    low: float,
    high: float,
    most: int,
    said: Said,
    kind: str,
) -> Element:
    """A small chart of counts, both axes logarithmic; several share a scale.

    counts: of bins of one width from low to high, as logarithms go.
    none:   how many values are 0, which have no place on the axis; None leaves that bin out.
    marks:  ascending.
    most:   where the scale of counts ends.
    """
    width, left, top, foot = 300.0, 46.0, 52.0, 168.0
    start = left if none is None else left + 24
    over = Axis(low, high, start, width - 6, log=True)
    up = Axis(0.7, max(10.0, most * 1.1), foot, top, log=True)
    drawn = [
        part
        for tick in up.ticks(4)
        if tick >= 1
        for part in (
            svg.line(left, up.at(tick), width - 6, up.at(tick), "grid"),
            svg.text(left - 6, up.at(tick) + 4, f"{tick:,.0f}", "tick", "end"),
        )
    ]
    edges = [start + (width - 6 - start) * at / len(counts) for at in range(len(counts) + 1)]
    for count, (x, end) in zip(counts, pairwise(edges), strict=True):
        if count:
            drawn.append(
                svg.rectangle(x, up.at(count), end - x, foot - up.at(count), f"fill {kind}")
            )
    if none is not None:
        drawn.append(svg.text(left + 8, foot + 15, "0", "tick", "middle"))
        if none:
            drawn.append(
                svg.rectangle(left + 1, up.at(none), 14, foot - up.at(none), f"fill {kind}")
            )
    room = (start if none is None else left + 36, width - 24)
    ticks = [each for each in over.ticks(5) if room[0] <= over.at(each) <= room[1]]
    for tick in svg.apart(ticks, over, 52.0):
        drawn.append(svg.line(over.at(tick), foot, over.at(tick), foot + 4, "grid"))
        drawn.append(svg.text(over.at(tick), foot + 15, said(tick), "tick", "middle"))
    # The last one's name is highest, and names are left of their lines: no line crosses a name.
    for row, mark in enumerate(reversed(marks)):
        x, y = over.at(mark.value) if mark.value > 0 else left + 8, 11.0 + 14 * row
        drawn.append(svg.line(x, y - 8, x, foot, "bound"))
        fits = x - left > 7.0 * len(mark.label)
        drawn.append(
            svg.text(x - 4 if fits else x + 4, y + 2, mark.label, "note", "end" if fits else None)
        )
    return svg.drawing(width, foot + 20, title, *drawn)


# -- shares by step --------------------------------------------------------------------------------


def shares(
    title: str,
    stacks: Sequence[Sequence[float]],
    classes: Sequence[str],
    *,
    bounds: Sequence[int],
    names: Sequence[str],
    across: str,
    rule: float | None = None,
) -> Element:
    """Stacked shares of one, side by side from step to step, in groups; the height is all of it.

    stacks: of each bin, its parts by class; all bins are as wide.
    bounds: where groups begin, in bins, and where the last ends.
    names:  of groups, written as far as there is room on a narrow screen.
    rule:   a share with a line across.
    """
    height, high, wide = 132.0, 100.0, max(1, len(stacks))
    areas = []
    below = [0.0] * len(stacks)
    for place, kind in enumerate(classes):
        above = [min(1.0, low + stack[place]) for low, stack in zip(below, stacks, strict=True)]
        if any(top > low for low, top in zip(below, above, strict=True)):
            areas.append(element("path", d=_between(below, above), class_=kind))
        below = above
    drawn = [
        element(
            "svg",
            *areas,
            viewBox=f"0 0 {wide} {svg.written(high)}",
            preserveAspectRatio="none",
            width="100%",
            height=height,
        )
    ]
    for bound in bounds[1:-1]:
        x = svg.percent(bound / wide)
        drawn.append(svg.line(x, 0, x, height, "seam"))
    if rule is not None:
        y = height * (1 - rule)
        drawn.append(svg.line(0, y, "100%", y, "bound"))
    middles = [(low + end) / 2 for low, end in pairwise(bounds)]
    room = max((7.2 * len(name) + 12 for name in names), default=0.0)
    shown = svg.apart(middles, Axis(0, wide, 0, _narrow), room)
    for middle, name in zip(middles, names, strict=True):
        if middle in shown:
            x = svg.percent(middle / wide)
            drawn.append(svg.text(x, height + 17, name, "tick", "middle"))
    drawn.append(svg.text("50%", height + 36, across, "axis", "middle"))
    return svg.fluid(height + 42, title, *drawn)


def _between(below: Sequence[float], above: Sequence[float]) -> str:
    """The outline of the area between two rows of steps: bins across, hundredths down."""
    there = "".join(
        f"{'L' if number else 'M'}{number} {svg.written(100 * (1 - high))}H{number + 1}"
        for number, high in enumerate(above)
    )
    back = "".join(
        f"V{svg.written(100 * (1 - low))}H{number}"
        for number, low in reversed(list(enumerate(below)))
    )
    return f"{there}{back}Z"


# -- ceilings --------------------------------------------------------------------------------------


class Ceiling(NamedTuple):
    """What a resource allows at most. binding: whether it is the one that matters."""

    label: str
    value: float
    note: str
    binding: bool


def ceilings(
    title: str, rows: Sequence[Ceiling], measured: Mark | None, axis: str, said: Said
) -> Element:
    """A row for each ceiling on a logarithmic axis, and the point that was measured under them."""
    step, top = 40.0, 26.0
    known = [row.value for row in rows] + ([] if measured is None else [measured.value])
    over = Axis(min(known) / 2, max(known) * 1.25, 0, 1, log=True)
    foot = top + step * len(rows) + 4
    narrow = over._replace(end=_narrow)
    drawn = [
        svg.upright(svg.percent(over.at(tick)), top, foot, said(tick))
        for tick in svg.apart(narrow.ticks(6), narrow, 54.0)
        if 24 < narrow.at(tick) < _narrow - 24
    ]
    drawn.append(svg.text("50%", foot + 36, axis, "axis", "middle"))
    notes = []
    for number, row in enumerate(rows):
        y, x = top + 32 + step * number, svg.percent(over.at(row.value))
        mark, kind = ("strong", "k-orange") if row.binding else ("", "k-grey")
        drawn += [
            svg.line(0, y, x, y, f"line {kind}"),
            svg.line(x, y - 6, x, y + 6, f"line {kind} thick"),
        ]
        notes += [
            svg.text(0, y - 12, row.label, f"note {mark}".strip()),
            svg.text("100%", y - 12, row.note, f"note {mark}".strip(), "end"),
        ]
    if measured is not None:
        share = over.at(measured.value)
        x = svg.percent(share)
        drawn.append(svg.line(x, top - 6, x, foot, "bound"))
        anchor = "start" if share < 1 / 3 else "end" if share > 2 / 3 else "middle"
        notes.append(svg.text(x, top - 12, measured.label, "strong", anchor))
    return svg.fluid(foot + 42, title, *drawn, *notes)


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
