"""HTML pages for people, of the simulator and the benchmark: one file each that needs nothing else.

`quantities` writes numbers, `layout` lays charts out, `templates` holds the pages and how charts
are drawn, and `document` makes the file of them.
"""

from __future__ import annotations

from .document import NumberRow, bytes_size, number_rows, render
from .layout import PlottedLine
from .quantities import (
    brief,
    counted,
    duration,
    latency,
    number,
    percent,
    ratio,
    size,
    size_unit,
    time_unit,
)

__all__ = [
    "NumberRow",
    "PlottedLine",
    "brief",
    "bytes_size",
    "counted",
    "duration",
    "latency",
    "number",
    "number_rows",
    "percent",
    "ratio",
    "render",
    "size",
    "size_unit",
    "time_unit",
]
