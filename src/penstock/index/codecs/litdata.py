"""Compressed chunks of LitData: frames of several samples, single samples, or whole chunks.

A compressed chunk decodes to samples back to back, each the sizes of its leaves and then the
leaves. Those of a whole chunk come after its table. Options: `leaves`, how many there are, `leaf`,
the number of the wanted one, `dtype` of a leaf of one number, else None, and `whole`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from .decompression import decompress
from .registry import CompressedChunk, Decoded, Packed


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode the wanted leaf of each sample of a compressed chunk."""
    data = decompress("zstd", compressed.data, limits.undeclared_chunk_bytes_max)
    leaves, leaf = int(options["leaves"]), int(options["leaf"])
    head = struct.Struct(f"<{leaves}I")
    at = 4 * (compressed.samples + 2) if options["whole"] else 0
    start, end = np.empty(compressed.samples, np.int64), np.empty(compressed.samples, np.int64)
    for sample in range(compressed.samples):
        if at + head.size > len(data):
            raise ValueError(
                f"sample {sample} of {compressed.samples} begins beyond the end of the decoded data"
            )
        sizes = head.unpack_from(data, at)
        start[sample] = at + head.size + sum(sizes[:leaf])
        end[sample] = start[sample] + sizes[leaf]
        at += head.size + sum(sizes)
    if at != len(data):
        raise ValueError(
            f"{compressed.samples} samples end at byte {at:,} of {len(data):,} decoded bytes"
        )
    if options["dtype"] is None:
        return Packed(memoryview(data), start, end)
    dtype = np.dtype(options["dtype"])
    if (end - start != dtype.itemsize).any():
        raise ValueError(f"a number does not have {dtype.itemsize} bytes")
    raw = np.frombuffer(data, np.uint8)
    elements: npt.NDArray[Any] = raw[start[:, None] + np.arange(dtype.itemsize)].reshape(-1)
    values: npt.NDArray[Any] = elements.view(dtype)
    return values
