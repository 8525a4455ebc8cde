"""Arrays of a state, and where they lie in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Memory = npt.NDArray[np.uint8]
"""Bytes, in one dimension."""


class Leaf(NamedTuple):
    """An array of the state, as it lies in memory.

    kind:     "numpy", "torch" or "bytes": the type that it has again after loading.
    strides:  in bytes.
    lowest:   the address of its first byte.
    extent:   the bytes that it spans from there.
    start:    where the element with all indices 0 lies, in bytes from `lowest`.
    device:   the device that its addresses belong to: "cpu", or the name that torch gives it.
    """

    path: str
    kind: str
    value: Any
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    lowest: int
    extent: int
    start: int
    device: str

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.itemsize


def describe_array(
    path: str,
    kind: str,
    value: Any,
    dtype: str,
    itemsize: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    address: int,
    device: str = "cpu",
) -> Leaf:
    """Describe an array of a state by the address of its first element; see `Leaf`."""
    lowest, start, extent = address, 0, 0
    if 0 not in shape and itemsize:
        reaches = [(count - 1) * stride for count, stride in zip(shape, strides, strict=True)]
        start = -sum(reach for reach in reaches if reach < 0)
        lowest, extent = address - start, sum(map(abs, reaches)) + itemsize
    path = path or "state"
    return Leaf(path, kind, value, dtype, itemsize, shape, strides, lowest, extent, start, device)
