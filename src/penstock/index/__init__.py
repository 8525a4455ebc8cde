"""The index folder."""

from __future__ import annotations

from . import codecs
from .codecs import missing
from .concat import JointIndex, join
from .formats import FORMATS, Place, choose
from .layout import Chunked, Fixed, Layout, Table
from .read_cost import cost_of, measured_of
from .table import Field, Index, Samples

__all__ = [
    "FORMATS",
    "Chunked",
    "Field",
    "Fixed",
    "Index",
    "JointIndex",
    "Layout",
    "Place",
    "Samples",
    "Table",
    "choose",
    "codecs",
    "cost_of",
    "join",
    "measured_of",
    "missing",
]
