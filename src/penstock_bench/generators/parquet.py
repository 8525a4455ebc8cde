"""Parquet: the columns that the workload says, of numbers or lists of them, else a column `image`
of bytes. A row is a sample; row groups have the size asked for, or 128 MiB where that is less, as
they are written from memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine import AtomicFile, storage_errors
from penstock.index import missing_library

from ..file_draft import Draft

_GROUP_BYTES = 128 << 20


def write(part: AtomicFile, draft: Draft) -> None:
    """Write a file."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise missing_library("pyarrow", "parquet", "writing Parquet") from None
    columns, known = draft.columns or (draft,), draft.data.parquet
    names = [column.name for column in known.columns] or ["image"]
    types = [_choose_type(column) for column in columns]
    fields = [pyarrow.field(*column, nullable=False) for column in zip(names, types, strict=True)]
    schema = pyarrow.schema(fields)
    row_bytes = sum(column.sample_bytes for column in columns)
    rows = min(known.row_group_size, max(1, _GROUP_BYTES // row_bytes))
    how = {"compression": draft.data.compression, "use_dictionary": False}
    with storage_errors(part.path), parquet.ParquetWriter(part.file, schema, **how) as file:
        for group in zip(*(column.groups(rows) for column in columns), strict=True):
            arrays = [_make_array(*column) for column in zip(types, group, strict=True)]
            file.write_table(pyarrow.table(arrays, schema), row_group_size=rows)


def _choose_type(column: Draft) -> Any:
    """The type of a column: bytes, where it is all there is."""
    import pyarrow

    if not column.column:
        return pyarrow.binary()
    element = pyarrow.from_numpy_dtype(column.dtype)
    return element if column.shape == (1,) else pyarrow.list_(element, column.shape[0])


def _make_array(kind: Any, values: npt.NDArray[Any]) -> Any:
    """Rows of values as they lie in memory."""
    import pyarrow

    if pyarrow.types.is_binary(kind):
        size = values[:1].nbytes
        ends = np.arange(len(values) + 1, dtype=np.int32) * np.int32(size)
        buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(values)]
        return pyarrow.Array.from_buffers(kind, len(values), buffers)
    flat = pyarrow.array(values.reshape(-1))
    fixed = pyarrow.types.is_fixed_size_list(kind)
    return pyarrow.FixedSizeListArray.from_arrays(flat, type=kind) if fixed else flat
