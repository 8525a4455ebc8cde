"""An array of a state: where it lies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Memory = npt.NDArray[np.uint8]
"""Bytes, in one dimension."""


class Leaf(NamedTuple):
    """An array of the state, as it lies in memory.

    kind:     "numpy", "torch" or "bytes": what it becomes again.
    strides:  in bytes.
    lowest:   the address of its first byte; extent: what it spans from there, in bytes.
    start:    where the element with all indices 0 lies, from `lowest`.
    device:   what its addresses are of: "cpu", or a device as torch calls it.
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
        """Of its elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.itemsize


def span(
    address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, int, int]:
    """The lowest address of an array, where its first element lies from there, and bytes to its
    end. address: of the first element; strides in bytes."""
    if 0 in shape or itemsize == 0:
        return address, 0, 0
    reach = [(count - 1) * stride for count, stride in zip(shape, strides, strict=True)]
    below = sum(each for each in reach if each < 0)
    above = sum(each for each in reach if each > 0)
    return address + below, -below, above - below + itemsize
