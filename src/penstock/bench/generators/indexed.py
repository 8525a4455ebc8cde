"""Samples back to back, and beside the file the offset and the size of each, 64 bits."""

from __future__ import annotations

import numpy as np

from ...writers import Part
from ..draft import Draft


def write(part: Part, draft: Draft) -> None:
    """Write a file, its offsets and its sizes."""
    for piece in draft.pieces():
        part.write(piece.data)
    size = draft.sample_bytes
    columns = {
        ".off.idx": np.arange(draft.count, dtype="<u8") * np.uint64(size),
        ".sz.idx": np.full(draft.count, size, "<u8"),
    }
    for suffix, column in columns.items():
        draft.beside(draft.path + suffix).write(column.view(np.uint8).data)
