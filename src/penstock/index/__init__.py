"""Index: what data exist, and where every sample is.

The folder reads the containers' metadata once (`formats`, one module a container) and makes an
`Index`: a table of the fields of all samples, each with a layout that gives the extents (file,
offset, length) to read. A `Codec` names how the bytes of a compressed chunk are decoded to samples
(`codecs`). An index is saved as a sidecar, joined with others for a mixture, and measured for its
cost of reading. The folder must not know plans, caches, batches or loaders. It asks a store for
metadata, asks the engine only to time reads, and draws the samples to time by an `Order`. Names
load their modules when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from . import codecs as codecs
    from .codecs.registry import missing_library as missing_library
    from .concat import JointChunks as JointChunks
    from .concat import JointIndex as JointIndex
    from .concat import join_indexes as join_indexes
    from .concat import join_unlike_indexes as join_unlike_indexes
    from .concat import rename_fields as rename_fields
    from .concat import split_by_part as split_by_part
    from .fields import SUMS_FIELD as SUMS_FIELD
    from .fields import Field as Field
    from .fields import find_damaged as find_damaged
    from .formats.detection import choose_format as choose_format
    from .formats.jsonl import build_line_error as build_line_error
    from .formats.registry import FORMATS as FORMATS
    from .formats.shards import Location as Location
    from .formats.tf_example import parse_example as parse_example
    from .freshness import IndexRequest as IndexRequest
    from .freshness import list_index_paths as list_index_paths
    from .freshness import load_index as load_index
    from .json_fields import Column as Column
    from .json_fields import JsonFields as JsonFields
    from .json_fields import LineError as LineError
    from .json_fields import is_rounded as is_rounded
    from .layout import Chunked as Chunked
    from .layout import Fixed as Fixed
    from .layout import Layout as Layout
    from .layout import RowTable as RowTable
    from .nested import NestedError as NestedError
    from .nested import unpack_rows as unpack_rows
    from .read_cost import measure_cost as measure_cost
    from .read_cost import summarize_cost as summarize_cost
    from .sidecar import choose_saved_path as choose_saved_path
    from .sidecar import list_saved_paths as list_saved_paths
    from .sidecar import own_folder as own_folder
    from .sidecar import read_sidecar as read_sidecar
    from .sidecar import write_sidecar as write_sidecar
    from .table import Index as Index
    from .table import Samples as Samples
    from .table import find_outside as find_outside
    from .vocabulary import find_foreign_token as find_foreign_token
    from .vocabulary import set_vocabulary as set_vocabulary
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "codecs.registry": "missing_library",
            "concat": "JointChunks JointIndex join_indexes join_unlike_indexes rename_fields "
            "split_by_part",
            "formats.detection": "choose_format",
            "formats.jsonl": "build_line_error",
            "formats.registry": "FORMATS",
            "formats.shards": "Location",
            "formats.tf_example": "parse_example",
            "freshness": "IndexRequest list_index_paths load_index",
            "json_fields": "Column JsonFields LineError is_rounded",
            "layout": "Chunked Fixed Layout RowTable",
            "nested": "NestedError unpack_rows",
            "read_cost": "measure_cost summarize_cost",
            "sidecar": "choose_saved_path list_saved_paths own_folder read_sidecar write_sidecar",
            "fields": "SUMS_FIELD Field find_damaged",
            "table": "Index Samples find_outside",
            "vocabulary": "find_foreign_token set_vocabulary",
        },
        folders="codecs",
    )
