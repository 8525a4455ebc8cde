"""Parquet: a column `image` of bytes, a row a sample, some megabytes a row group."""

from __future__ import annotations

import numpy as np

from ...codecs import missing
from ...writers import Part, storing
from ..draft import Draft


def write(part: Part, draft: Draft) -> None:
    """Write a file."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise missing("pyarrow", "arrow", "writing Parquet") from None
    schema = pyarrow.schema([pyarrow.field("image", pyarrow.binary(), nullable=False)])
    how = {"compression": draft.data.compression, "use_dictionary": False}
    with storing(part.path), parquet.ParquetWriter(part.file, schema, **how) as file:
        for group in draft.groups():
            rows = group.reshape(len(group), -1).view(np.uint8)
            ends = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(draft.sample_bytes)
            buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(rows)]
            column = pyarrow.Array.from_buffers(pyarrow.binary(), len(rows), buffers)
            file.write_table(pyarrow.table([column], schema), row_group_size=len(rows))
