"""An index whose samples are addressed by key instead of by file and offset.

A field of a sample is one extent. The offset of that extent is its *key*: sample * fields + field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..extent import Extents, Int, Placed
from ..index.concat import JointChunks, JointIndex
from ..index.layout import Chunked
from ..index.table import Index, Samples
from ..plan.batch_layout import place_pieces
from ..plan.cache_blocks import Keys

_in_chunks = (
    "is compressed in chunks of several samples: leave cache= out, or convert it (penstock convert)"
)


class Addressed:
    """An index whose samples are addressed by key; it has the part of an index that `plan_samples`
    uses.

    Raises UsageError if a field is decoded from compressed chunks: bytes of chunks are not cached.
    """

    def __init__(self, index: Index) -> None:
        for field, layout in zip(index.fields, index.layouts, strict=True):
            if isinstance(layout, JointChunks) and isinstance(index, JointIndex):
                number = layout.find_coded()
                if number is None:
                    what = f"field {field.name!r} has another dtype in each dataset of the mixture"
                    raise UsageError(f"{what}: leave cache= out, or give a decode= for each")
                dataset = index.parts[number]
                what = (
                    f"dataset {number} of the mixture ({dataset.format}, {dataset.files.path(0)})"
                )
                raise UsageError(f"{what} {_in_chunks}")
            if isinstance(layout, Chunked):
                raise UsageError(f"field {field.name!r} of {index.files.root} {_in_chunks}")
        self.index = index
        self.fields, self.layouts, self.row_bytes = index.fields, index.layouts, index.row_bytes
        self.count, self.mean_bytes = index.count, index.mean_bytes
        self.labels = index.labels

    def units(self, units: Samples, field: int = 0) -> tuple[Extents, None]:
        """Return one extent for each sample; its file has the sample's first bytes."""
        key = units.astype(np.int64) * len(self.fields) + field
        extents, pieces = self.index.units(units, field)
        if pieces is None:
            return Extents(extents.file, key, extents.length), None
        first = np.minimum(np.cumsum(pieces) - pieces, max(0, len(extents.file) - 1))
        file = extents.file[first] if len(extents.file) else np.zeros(len(key), np.uint32)
        return Extents(file, key, self.index.lengths(units, field)), None

    def key_lengths(self, keys: Keys) -> Int:
        """Return the bytes of each key."""
        sample, number = np.divmod(keys, np.uint64(len(self.fields)))
        if len(self.fields) == 1:
            return self.index.lengths(sample)
        lengths = np.empty(len(keys), np.int64)
        for field in range(len(self.fields)):
            rows = number == field
            lengths[rows] = self.index.lengths(sample[rows], field)
        return lengths

    def place_keys(self, keys: Keys, part: npt.NDArray[Any], target: Int) -> Placed:
        """Return the extents of keys in storage, with their destinations."""
        sample, number = np.divmod(keys, np.uint64(len(self.fields)))
        placed: list[Placed] = []
        for field in range(len(self.fields)):
            rows = np.flatnonzero(number == field)
            extents, pieces = self.index.units(sample[rows], field)
            to, of = target[rows], part[rows].astype(np.uint32)
            if pieces is not None:
                to, of = place_pieces(extents, pieces, to, of)
            placed.append(Placed(*extents, of, to))
        return Placed(*(np.concatenate(column) for column in zip(*placed, strict=True)))
