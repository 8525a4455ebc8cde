"""A page as one HTML file, and what pages are made of: tables, legends, figures. Pure.

A page is built as a tree (`svg.element`), so text from elsewhere is text wherever it appears; its
policy of content lets a browser load nothing, and run nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib import resources
from xml.etree.ElementTree import Element, tostring

from .svg import element


def html(title: str, body: Element, generator: str) -> str:
    """The file, of equal elements the same. generator: which command makes such pages."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    css = (resources.files(__package__) / "page.css").read_text()
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=generator),
        element("title", title),
        element("style", "\n" + css),
    )
    text = tostring(element("html", head, body, lang="en"), "unicode", short_empty_elements=False)
    # Of HTML's elements that are never closed, a page has this one.
    return f"<!doctype html>\n{text.replace('></meta>', ' />')}\n"


def facts(entries: Iterable[tuple[str, str, str]]) -> Element:
    """Cards: what it is, its value, and more about it."""
    return element(
        "dl",
        *(
            element("div", element("dt", what), element("dd", value, element("small", more)))
            for what, value, more in entries
        ),
        class_="facts",
    )


def figure(caption: str, *parts: Element) -> Element:
    """What is drawn, under the line that says what it is."""
    return element("figure", element("figcaption", caption), *parts)


def wide(drawn: Element) -> Element:
    """A picture as wide as the page; narrow screens scroll it by itself."""
    return element("div", drawn, class_="wide")


def folded(summary: str, *parts: Element) -> Element:
    """What is seen when it is asked for."""
    return element("details", element("summary", summary), *parts)


def code(text: str) -> Element:
    return element("pre", element("code", text))


def legend(kinds: Sequence[str], names: Sequence[str], rule: str = "") -> Element:
    """What colours mean. rule: what the dashed line is, where there is one."""
    entries = [
        element("li", element("i", " ", class_=kind), name)
        for kind, name in zip(kinds, names, strict=True)
    ]
    if rule:
        entries.append(element("li", element("i", " ", class_="rule"), rule))
    return element("ul", *entries, class_="legend")


def panel(name: str, note: str, drawn: Element) -> Element:
    """One of several small pictures."""
    return element("section", element("h4", name, " ", element("span", note)), drawn)


def grid(caption: str, names: Element, panels: Sequence[Element]) -> Element:
    """Small pictures beside each other."""
    return figure(caption, names, element("div", *panels, class_="panels"))


def tabled(headings: Sequence[str], rows: Sequence[Element], kind: str | None = None) -> Element:
    """A table that scrolls by itself. kind: "texts" for one of words rather than numbers."""
    top = element("tr", *(element("th", each, scope="col") for each in headings))
    return element(
        "div",
        element("table", element("thead", top), element("tbody", *rows), class_=kind),
        class_="scroll",
    )


def row(name: str, cells: Sequence[Element], kind: str | None = None) -> Element:
    return element("tr", element("th", name, scope="row"), *cells, class_=kind)


def cell(said: str, value: float | None = None, more: str = "", kind: str | None = None) -> Element:
    """A cell: what people read, the number for programs, and a smaller line below."""
    shown = said if value is None else element("data", said, value=repr(value))
    return element("td", shown, element("small", more) if more else None, class_=kind)


def number_rows(
    names: Sequence[str],
    values: Sequence[Sequence[float | None]],
    kinds: Sequence[str | None] | None = None,
) -> list[Element]:
    """Rows of numbers, as people read them and exactly, for programs; a column has one number of
    decimals."""
    columns = zip(*values, strict=True)
    decimals = [_decimals([each for each in column if each is not None]) for column in columns]
    return [
        row(name, list(map(_number_cell, numbers, decimals)), kind)
        for name, numbers, kind in zip(names, values, kinds or [None] * len(names), strict=True)
    ]


def _number_cell(value: float | None, decimals: int) -> Element:
    if value is None:
        return element("td", "–")
    text = f"{value:,.{decimals}f}"
    if not float(text.replace(",", "")):
        text = "0"
    return element("td", element("data", text, value=repr(value)))


def _decimals(values: Sequence[float]) -> int:
    """As many as show four digits of the largest, and none of whole numbers."""
    largest = max(map(abs, values), default=0.0)
    if not largest or all(value == int(value) for value in values):
        return 0
    return min(6, max(0, 3 - math.floor(math.log10(largest))))
