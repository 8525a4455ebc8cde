"""HTML pages for people, of the benchmark and the simulator: one file each that needs nothing else.

Templates (in `templates`, with how charts are drawn; `layout` lays charts out) are filled with
values, of which none can become markup: they escape all that they are given. A page's policy of
content lets a browser load nothing and run nothing. Equal values give equal pages. jinja2 is loaded
with the first page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli import quantities
from penstock.errors import UsageError

from . import layout
from .layout import PlottedLine as PlottedLine

if TYPE_CHECKING:
    import jinja2

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
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"a page needs {missing.name}: install it with pip install 'penstock[bench]' or "
            "'penstock[sim]'"
        ) from None
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        autoescape=True,
        finalize=to_text,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    for name in (
        "number",
        "ratio",
        "counted",
        "size",
        "duration",
        "latency",
        "percent",
        "time_unit",
    ):
        made.globals[name] = getattr(quantities, name)
    made.globals |= {"layout": layout, "exact": exact, "bytes_size": bytes_size}
    made.globals |= {"zip": partial(zip, strict=True), "min": min, "max": max}
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
) -> list[NumberRow]:
    """Rows of numbers, as people read them and exactly; a column has one number of decimals."""
    columns = zip(*values, strict=True)
    decimals = [
        _count_decimals([value for value in column if value is not None]) for column in columns
    ]
    return [
        NumberRow(
            name, [(_round_to(*pair), pair[0]) for pair in zip(row, decimals, strict=True)], kind
        )
        for name, row, kind in zip(names, values, kinds or [None] * len(names), strict=True)
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
