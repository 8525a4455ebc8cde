"""Rows put together from the grid chunks of an array; shared by the codecs of chunked arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def paste_chunks(
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    parts: Sequence[npt.NDArray[Any] | None],
    dtype: np.dtype[Any],
    fill: Any,
) -> npt.NDArray[Any]:
    """Paste the chunks that hold the same rows together, in grid order.

    shape:  number of rows, then the shape of one row; the first axis is as long as that of the
            chunks, or shorter at the end of the array.
    parts:  one decoded chunk for each cell of the grid; None stands for a chunk of only `fill`.
    """
    grid = tuple(-(-size // step) for size, step in zip(shape[1:], chunk[1:], strict=True))
    if len(parts) != int(np.prod(grid, dtype=np.int64)) or shape[0] > chunk[0]:
        raise ValueError(
            f"{len(parts)} chunks of shape {chunk} do not make up rows of shape {shape[1:]}"
        )
    rows = np.empty(shape, dtype)
    for cell, part in zip(np.ndindex(*grid), parts, strict=True):
        start = tuple(c * step for c, step in zip(cell, chunk[1:], strict=True))
        ends = [
            min(at + step, size) for at, step, size in zip(start, chunk[1:], shape[1:], strict=True)
        ]
        where = tuple(slice(a, b) for a, b in zip(start, ends, strict=True))
        inner = tuple(slice(b - a) for a, b in zip(start, ends, strict=True))
        rows[(slice(None), *where)] = fill if part is None else part[(slice(shape[0]), *inner)]
    return rows
