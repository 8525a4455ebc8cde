"""Formats read the metadata of containers and make an `Index`, one module a container.

The nouns are the `Location` that was opened (a folder, a file or patterns) and the `Format` that is
chosen by content. A format asks the store for names and bytes, and opens nothing itself. It must
not know who reads the samples later, nor when.
"""

from __future__ import annotations

from .detection import choose_format
from .registry import FORMATS, Format
from .shards import Location

__all__ = ["FORMATS", "Format", "Location", "choose_format"]
