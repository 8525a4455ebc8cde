"""An index whose units are addressed by key instead of by file and offset.

A unit, a sample of a field or a compressed chunk, is one extent. The offset of that extent is its
*key* (`penstock.plan.cache_keys`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..extent import Extents, Int, Placed
from ..index.layout import Boxes, Chunked, Layout
from ..index.table import Index, Samples
from ..plan.batch_layout import place_pieces
from ..plan.cache_keys import Keys, SampleKeys, UnitKeys


class Addressed:
    """An index whose units are addressed by key; it has the part of an index that `plan_samples`
    uses.

    mean_bytes, item_bytes:  of a sample, and of what cache blocks are made of, on average.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.fields, self.layouts, self.row_bytes = index.fields, index.layouts, index.row_bytes
        self.mean_bytes, self.item_bytes = index.mean_bytes, index.mean_bytes
        self.labels = index.labels
        self.keys: SampleKeys | UnitKeys = SampleKeys(index.count, len(index.fields))
        self._arrays = list(range(len(index.fields)))
        """Of each field. Fields that are windows of the same chunks have one."""
        self._field_of = self._arrays
        """Field of each array: the first that has it."""
        if not self.has_chunks:
            return
        chunks = [one.chunks if isinstance(one, Chunked) else one for one in self.layouts]
        known = {id(one): number for number, one in reversed([*enumerate(chunks)])}
        self._field_of = sorted(known.values())
        self._arrays = [self._field_of.index(known[id(one)]) for one in chunks]
        sizes = [_count_bytes(chunks[field]) for field in self._field_of]
        self._main = self._field_of[sizes.index(max(sizes))]
        units = tuple(chunks[field].count for field in self._field_of)
        self.keys = UnitKeys(units, chunks[self._main].count)
        self.item_bytes = sum(sizes) / max(1, self.keys.count)

    @property
    def has_chunks(self) -> bool:
        """True if samples are decoded: the units of a field may be compressed chunks."""
        return any(isinstance(layout, Chunked) for layout in self.layouts)

    def find_items(self, samples: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Find the item of each sample: itself, or the first that it needs of the largest array."""
        layout = self.layouts[self._main] if self.has_chunks else None
        if not isinstance(layout, Chunked):
            return samples
        chunks, _ = layout.find_chunks(samples.reshape(-1).view(np.int64))
        return chunks.view(np.uint64).reshape(samples.shape)

    def units(self, units: Samples, field: int = 0) -> tuple[Extents, None]:
        """Return one extent for each unit; its file has the unit's first bytes."""
        key = self.keys.address(units.astype(np.int64), self._arrays[field])
        extents, pieces = self.index.units(units, field)
        if pieces is None:
            return Extents(extents.file, key, extents.length), None
        first = np.minimum(np.cumsum(pieces) - pieces, max(0, len(extents.file) - 1))
        file = extents.file[first] if len(extents.file) else np.zeros(len(key), np.uint32)
        return Extents(file, key, self._measure(units, field)), None

    def key_lengths(self, keys: Keys) -> Int:
        """Return the bytes of each key."""
        unit, array = self.keys.locate(keys)
        if len(self._field_of) == 1:
            return self._measure(unit, 0)
        lengths = np.empty(len(keys), np.int64)
        for number, field in enumerate(self._field_of):
            rows = array == number
            lengths[rows] = self._measure(unit[rows], field)
        return lengths

    def place_keys(self, keys: Keys, part: npt.NDArray[np.integer], target: Int) -> Placed:
        """Return the extents of keys in storage, with their destinations."""
        unit, array = self.keys.locate(keys)
        placed: list[Placed] = []
        for number, field in enumerate(self._field_of):
            rows = np.flatnonzero(array == number)
            extents, pieces = self.index.units(unit[rows], field)
            to, of = target[rows], part[rows].astype(np.uint32)
            if pieces is not None:
                to, of = place_pieces(extents, pieces, to, of)
            placed.append(Placed(*extents, of, to))
        return Placed(*(np.concatenate(column) for column in zip(*placed, strict=True)))

    def _measure(self, units: Samples, field: int) -> Int:
        layout = self.layouts[field]
        if isinstance(layout, Chunked):
            return layout.lengths(units.view(np.int64))
        return self.index.lengths(units, field)


def _count_bytes(layout: Layout) -> float:
    """Count the bytes of all samples of a layout, each as often as samples have it."""
    return layout.mean_bytes * layout.count if isinstance(layout, Boxes) else layout.total_bytes
