"""HTML pages for people, of the benchmark and the simulator: one file each that needs nothing else.

`layout` lays charts out, `templates` holds the pages and how charts are drawn, and `document` makes
the file of them.
"""

from __future__ import annotations

from .document import NumberRow, bytes_size, number_rows, render
from .layout import PlottedLine

__all__ = ["NumberRow", "PlottedLine", "bytes_size", "number_rows", "render"]
