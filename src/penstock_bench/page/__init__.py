"""HTML pages for people, of the benchmark and the simulator: one file each that needs nothing else.

Templates (in `templates`, with how charts are drawn; this module lays charts out) are filled with
values, of which none can become markup: they escape all that they are given. A page's policy of
content lets a browser load nothing and run nothing. Equal values give equal pages. jinja2 is loaded
with the first page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import missing_library

from . import quantities as quantities

if TYPE_CHECKING:
    import jinja2

    from . import files as files

_unprintable = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class NumberRow(NamedTuple):
    """Row of numbers of a table, as text and exactly; kind: its class."""

    name: str
    cells: Sequence[tuple[str, float | None]]
    kind: str | None = None


def render(template: str, **values: Any) -> str:
    """The page of a template with these values, as one HTML file that is also well-formed XML."""
    return environment().get_template(template).render(values)


@cache
def environment() -> jinja2.Environment:
    """The templates of all pages, and the functions that they call.

    Raises UsageError if jinja2 is not installed.
    """
    try:
        import jinja2
    except ModuleNotFoundError:
        raise missing_library("jinja2", "bench", "a page") from None
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        autoescape=True,
        finalize=to_text,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    for name in ("number", "ratio", "counted", "size", "duration", "latency", "percent"):
        made.globals[name] = getattr(quantities, name)
    made.globals["time_unit"] = quantities.time_unit
    functions: tuple[Any, ...] = (
        exact,
        bytes_size,
        Axis,
        keep_apart,
        spread_labels,
        stack_ends,
        share_areas,
    )
    functions += (group_labels, narrow_ticks, ticks_between, positive_range, line_ends, min, max)
    made.globals |= {function.__name__: function for function in functions}
    made.globals["zip"] = partial(zip, strict=True)
    made.filters["number"] = quantities.number
    made.tests["known"] = lambda value: value is not None
    return made


def to_text(value: object) -> object:
    """A value as a page may hold it: numbers in two decimals, no character that XML forbids."""
    if hasattr(value, "__html__"):  # already markup, made by a macro
        return value
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return "" if value is None else _unprintable.sub("\ufffd", str(value))


def exact(value: float) -> str:
    """A number to its last bit, for programs that read the page."""
    return repr(float(value)) if isinstance(value, float) else repr(value)


def bytes_size(count: float) -> str:
    """Bytes as people read them, in decimal units."""
    return quantities.size(count / 1e6)


def number_rows(
    names: Sequence[str],
    values: Sequence[Sequence[float | None]],
    kinds: Sequence[str | None] | None = None,
    units: Sequence[float] | None = None,
) -> list[NumberRow]:
    """Rows of numbers, as people read them and exactly; a column has one number of decimals.

    units: of each column, in which people read its numbers.
    """
    scales = units or [1.0] * max(map(len, values), default=0)
    columns = [
        [None if value is None else value / unit for value in column]
        for column, unit in zip(zip(*values, strict=True), scales, strict=bool(values))
    ]
    decimals = [
        _count_decimals([value for value in column if value is not None]) for column in columns
    ]
    shown = [
        [_round_to(value, digits) for value in column]
        for column, digits in zip(columns, decimals, strict=True)
    ]
    return [
        NumberRow(name, list(zip(texts, row, strict=True)), kind)
        for name, texts, row, kind in zip(
            names, zip(*shown, strict=True), values, kinds or [None] * len(names), strict=True
        )
    ]


def _round_to(value: float | None, decimals: int) -> str:
    if value is None:
        return "–"
    text = f"{value:,.{decimals}f}"
    return text if float(text.replace(",", "")) else "0"


def _count_decimals(values: Sequence[float]) -> int:
    """Decimals that show four digits of the largest value, and none if all are whole."""
    largest = max(map(abs, values), default=0.0)
    if not largest or all(value == int(value) for value in values):
        return 0
    return min(6, max(0, 3 - math.floor(math.log10(largest))))


# -- layout of charts: axes, stacks, and labels that do not overlap --------------------------------

PHONE = 360.0
"""Pixels of a narrow screen, on which labels of a picture of any width must not touch."""

PlottedLine = tuple[str, Sequence[float], str, bool]
"""Name of a line, its values (NaN if there is none), its class, and True if it has no dots."""


class Axis(NamedTuple):
    """Map of the values from `low` to `high` onto the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Pixel of a value; values outside the axis are at its ends."""
        low, high, value = map(self._to_linear, (self.low, self.high, value))
        share = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def _to_linear(self, value: float) -> float:
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
            ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
            inside = [tick for tick in ticks if self.low * 0.999 <= tick <= self.high * 1.001]
            if len(inside) <= most:
                return inside
        return inside[:: -(-len(inside) // most)]


def keep_apart(values: Sequence[float], axis: Axis, least: float = 46.0) -> list[float]:
    """Leave out values less than `least` pixels behind the one kept before them."""
    kept: list[float] = []
    for value in values:
        if not kept or axis.at(value) - axis.at(kept[-1]) >= least:
            kept.append(value)
    return kept


def spread_labels(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Move ascending places as little as it takes to be `least` apart, between low and high.

    Places that are too near each other become one block around their mean.
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


def stack_ends(
    lengths: Sequence[float], classes: Sequence[str]
) -> Iterator[tuple[float, float, str]]:
    """Start, end and class of each part of a stack that has a length."""
    for (start, end), kind in zip(pairwise([0.0, *accumulate(lengths)]), classes, strict=True):
        if end > start:
            yield start, end, kind


def share_areas(
    stacks: Sequence[Sequence[float]], classes: Sequence[str]
) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Class of each area of stacked shares that is seen, and its lower and upper end by stack."""
    ends = [[0.0, *accumulate(stack)] for stack in stacks]
    for place, kind in enumerate(classes):
        area = [(min(1.0, row[place]), min(1.0, row[place + 1])) for row in ends]
        if any(end > start for start, end in area):
            yield kind, area


def group_labels(bounds: Sequence[int], names: Sequence[str]) -> Iterator[tuple[float, str]]:
    """Names of neighbouring groups that do not touch on a narrow screen, each with its middle.

    bounds: ends of the groups; middles are shares of the width up to the end of the last group.
    """
    middles = [(start + end) / 2 for start, end in pairwise(bounds)]
    room = max((7.2 * len(name) + 12 for name in names), default=0.0)  # pixels, and a gap
    shown = keep_apart(middles, Axis(0, max(1, bounds[-1]), 0, PHONE), room)
    for middle, name in zip(middles, names, strict=True):
        if middle in shown:
            yield middle / bounds[-1], name


def narrow_ticks(axis: Axis) -> list[float]:
    """Ticks of an axis across a picture of any width, whose labels a narrow screen has room for."""
    narrow = axis._replace(end=PHONE)
    ticks = keep_apart(narrow.ticks(6), narrow, 54.0)
    return [tick for tick in ticks if 24 < narrow.at(tick) < PHONE - 24]


def ticks_between(axis: Axis, start: float, end: float) -> list[float]:
    """Ticks of an axis between two pixels, whose labels do not touch."""
    return keep_apart([tick for tick in axis.ticks(5) if start <= axis.at(tick) <= end], axis, 52.0)


def positive_range(rows: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Lowest and highest value above 0; both are 1 if there is none."""
    values = [value for row in rows for value in row if value > 0] or [1.0]
    return min(values), max(values)


def line_ends(
    places: Sequence[float], lines: Sequence[PlottedLine], over: Axis, up: Axis
) -> list[tuple[float, float, str, str]]:
    """Last points of lines in pixels, from the top down, with their names and classes."""
    ends = []
    for name, values, kind, _ in lines:
        points = [(x, y) for x, y in zip(places, values, strict=True) if y > 0]
        ends += [(over.at(x), up.at(y), name, kind) for x, y in points[-1:]]
    return sorted(ends, key=lambda end: end[1])
