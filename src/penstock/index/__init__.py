"""Index: what data exist, and where every sample lies.

The folder reads the containers' metadata once (`formats`, one module a container) and makes an
`Index`: a table of the fields of all samples, each with a layout that gives the extents (file,
offset, length) to read. A `Codec` names how the bytes of a compressed chunk are decoded to samples
(`codecs`). An index is saved as a sidecar, joined with others for a mixture, and measured for its
cost of reading. The folder must not know plans, caches, batches or loaders. It asks a store for
metadata, asks the engine only to time reads, and draws the samples to time by an `Order`.
"""

from __future__ import annotations

from . import codecs
from .codecs import missing_library
from .concat import (
    JointChunks,
    JointIndex,
    join_indexes,
    join_unlike_indexes,
    rename_fields,
    split_by_part,
)
from .formats import (
    FORMATS,
    Location,
    build_line_error,
    choose_format,
    parse_example,
    unpack_files,
)
from .json_fields import Column, JsonFields, LineError, is_rounded
from .layout import Chunked, Fixed, Layout, RowTable
from .nested import NestedError, unpack_rows
from .read_cost import measure_cost, summarize_cost
from .sidecar import read_sidecar, write_sidecar
from .sums import SUMS_FIELD, find_damaged
from .table import Field, Index, Samples, find_outside
from .vocabulary import find_foreign_token, set_vocabulary

__all__ = [
    "FORMATS",
    "SUMS_FIELD",
    "Chunked",
    "Column",
    "Field",
    "Fixed",
    "Index",
    "JointChunks",
    "JointIndex",
    "JsonFields",
    "Layout",
    "LineError",
    "Location",
    "NestedError",
    "RowTable",
    "Samples",
    "build_line_error",
    "choose_format",
    "codecs",
    "find_damaged",
    "find_foreign_token",
    "find_outside",
    "is_rounded",
    "join_indexes",
    "join_unlike_indexes",
    "measure_cost",
    "missing_library",
    "parse_example",
    "read_sidecar",
    "rename_fields",
    "set_vocabulary",
    "split_by_part",
    "summarize_cost",
    "unpack_files",
    "unpack_rows",
    "write_sidecar",
]
