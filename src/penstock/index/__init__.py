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
    from .fields import Field as Field
    from .formats.registry import FORMATS as FORMATS
    from .layout import Layout as Layout
    from .layout import RowTable as RowTable
    from .table import Index as Index
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "fields": "Field",
            "formats.registry": "FORMATS",
            "layout": "Layout RowTable",
            "table": "Index",
        },
    )
