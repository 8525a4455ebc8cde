"""Arrays of a state, and where they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
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


def compute_span(
    address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, int, int]:
    """Compute the lowest address of an array, the offset of its first element from there, and the
    bytes from there to its end.

    address:  of the first element.
    strides:  in bytes.
    """
    if 0 in shape or itemsize == 0:
        return address, 0, 0
    reaches = [(count - 1) * stride for count, stride in zip(shape, strides, strict=True)]
    below = sum(reach for reach in reaches if reach < 0)
    above = sum(reach for reach in reaches if reach > 0)
    return address + below, -below, above - below + itemsize
