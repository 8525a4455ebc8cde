"""Data as a plan sees it, if only the bytes that crops need are to be read. Pure.

With positions and the random numbers of an epoch, the crops of all samples are known before
anything is read: a sample's extents are its header and the rows of blocks of its crop.
"""

from __future__ import annotations

import numpy as np

from .._core import ImageTransform
from ..extent import Extents, Int
from ..index.fields import SUMS_FIELD, Field
from ..index.layout import Chunked, Layout
from ..index.table import Index
from ..plan.batch_layout import Ids
from .positions import SavedPositions


def can_crop_reads(index: Index, field: int) -> bool:
    """Return whether each image is one extent that nothing else needs as a whole."""
    layout = index.layouts[field]
    has_sums = any(part.name == SUMS_FIELD for part in index.fields)
    if isinstance(layout, Chunked) or has_sums or index.fields[field].shape is not None:
        return False
    return index.units(np.zeros(min(1, index.count), np.uint64), field)[1] is None


class CroppedReads:
    """A `PlanSource` of one epoch.

    key:  of the epoch's random numbers.
    """

    def __init__(
        self,
        index: Index,
        field: int,
        native: ImageTransform,
        positions: SavedPositions,
        key: int,
    ) -> None:
        self._index, self._field, self._key = index, field, key
        self._native, self._positions = native, positions.native
        self.fields: tuple[Field, ...] = index.fields
        self.layouts: tuple[Layout, ...] = index.layouts
        self.row_bytes: tuple[int | None, ...] = tuple(
            None if number == field else size for number, size in enumerate(index.row_bytes)
        )
        self.mean_bytes = index.mean_bytes

    def labels(self, samples: Ids, /) -> Int | None:
        return self._index.labels(samples)

    def units(self, units: Ids, field: int, /) -> tuple[Extents, Int | None]:
        """Return the extents of samples: of an image one or two, of other fields as they are."""
        extents, pieces = self._index.units(units, field)
        if field != self._field:
            return extents, pieces
        numbers = np.ascontiguousarray(units, np.uint64)
        lengths = np.ascontiguousarray(extents.length, np.int64)
        heads, begins, ends = self._native.plan_reads(self._positions, self._key, numbers, lengths)
        counts = 1 + (heads > 0).astype(np.int64)
        second = np.cumsum(counts) - 1  # the rows' extent of each sample
        total = int(counts.sum())
        offset, length = np.empty(total, np.int64), np.empty(total, np.int64)
        first = second - counts + 1
        offset[first], length[first] = extents.offset, heads
        offset[second], length[second] = extents.offset + begins, ends - begins
        return Extents(np.repeat(extents.file, counts), offset, length), counts
