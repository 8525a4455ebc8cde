"""Pages for people: one HTML file that needs nothing else. Of the simulator and the benchmark.

`svg` and `chart` draw, `words` writes numbers, `document` makes the file, of them and one style
sheet.
"""

from __future__ import annotations

from . import chart, document, words
from .svg import element
from .words import counted, duration, latency, number, percent, ratio, size, size_unit, time_unit

__all__ = [
    "chart",
    "counted",
    "document",
    "duration",
    "element",
    "latency",
    "number",
    "percent",
    "ratio",
    "size",
    "size_unit",
    "time_unit",
    "words",
]
