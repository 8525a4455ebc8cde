"""Rows out of a band of chunks: what the codecs of chunked arrays have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def pasted(
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    parts: Sequence[npt.NDArray[Any] | None],
    dtype: np.dtype[Any],
    fill: Any,
) -> npt.NDArray[Any]:
    """The rows of one band, put together of its chunks in grid order; None: only `fill`.

    shape:  rows and the shape of one; the first axis is that of the chunks, or cut off.
    """
    grid = tuple(-(-size // step) for size, step in zip(shape[1:], chunk[1:], strict=True))
    if len(parts) != int(np.prod(grid, dtype=np.int64)) or shape[0] > chunk[0]:
        raise ValueError(f"{len(parts)} chunks of {chunk} for rows of {shape[1:]}")
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
