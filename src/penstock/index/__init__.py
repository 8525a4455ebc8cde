"""The index folder."""

from __future__ import annotations

from . import codecs
from .codecs import missing_library
from .concat import JointIndex, join_indexes
from .formats import FORMATS, Location, choose_format
from .layout import Chunked, Fixed, Layout, RowTable
from .read_cost import measure_cost, summarize_cost
from .table import Field, Index, Samples

__all__ = [
    "FORMATS",
    "Chunked",
    "Field",
    "Fixed",
    "Index",
    "JointIndex",
    "Layout",
    "Location",
    "RowTable",
    "Samples",
    "choose_format",
    "codecs",
    "join_indexes",
    "measure_cost",
    "missing_library",
    "summarize_cost",
]
