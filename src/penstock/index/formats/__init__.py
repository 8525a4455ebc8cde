"""Formats read the metadata of containers and make an `Index`, one module a container.

The nouns are the `Location` that was opened (a folder, a file or patterns) and the `Format` that is
chosen by content. A format asks the store for names and bytes, and opens nothing itself. It must
not know who reads the samples later, nor when.
"""

from __future__ import annotations

from .jsonl import build_line_error
from .jsonl_unpack import unpack_files
from .location import Location
from .registry import FORMATS, Format, choose_format
from .tf_example import parse_example

__all__ = [
    "FORMATS",
    "Format",
    "Location",
    "build_line_error",
    "choose_format",
    "parse_example",
    "unpack_files",
]
