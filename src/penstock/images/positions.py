"""Index of positions: where each row of blocks of each JPEG begins, in a file beside the data.

With it the core begins to decode at the first row that a crop needs, and leaves each row at the
crop's right edge. The file has the form of a sidecar (docs/format.md), is written whole or not at
all, and is mapped. It names the data, its version and the field, and has a checksum for each
sample, which is compared whenever the sample is decoded.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from .._core import ImageTransform, RowPositions
from ..dataset.dataset import Dataset
from ..dataset.saved import Saved
from ..errors import SidecarError, UsageError
from ..extent import Extents, Int
from ..index.fields import SUMS_FIELD, Field
from ..index.layout import Chunked, Layout
from ..index.sidecar import choose_saved_path, list_saved_paths, read_sidecar
from ..index.table import Index
from ..loader.collate import Leaves
from ..loader.decode import LoadedStep, RowReader
from ..loader.explain import DecodeGain
from ..loader.loader import Loader
from ..plan.batch_layout import Ids
from .sources import choose_field, list_rows

POSITIONS = Saved(
    "positions-1",
    "an index of positions",
    "make it again with `penstock index --positions`",
    {"entries": np.uint8, "first": np.int64, "sums": np.uint32, "heads": np.int32},
)
_entry_bytes = 12
_one = [1.0, 1.0]
WHOLE = ImageTransform(
    "whole", 1, 1, 0, _one, _one, 0, 0, False, "uint8", [1] * 3, [0] * 3, limits.image_pixels_max
)
"""Memory of threads that decode whole images; nothing is resized by it."""
NO_POSITIONS = RowPositions(
    np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.int32)
)


@dataclass(frozen=True, eq=False)
class SavedPositions:
    """Positions in a file, mapped.

    entries:  uint8, 12 bytes for each row of blocks: docs/format.md.
    first:    int64 (count + 1,), the first entry of each sample.
    sums:     uint32 (count,), CRC-32C of the entries of each sample.
    heads:    int32 (count, 3): width, height and bytes of the header of each, 0 for those unknown.
    native:   the same for the core.
    """

    path: str
    entries: npt.NDArray[np.uint8]
    first: Int
    sums: npt.NDArray[np.uint32]
    heads: npt.NDArray[np.int32]
    native: RowPositions

    @property
    def images(self) -> int:
        """Number of images whose positions are known."""
        return int(np.count_nonzero(np.diff(self.first)))


@dataclass(frozen=True)
class PositionReport:
    """Outcome of `find_positions`.

    others:  images of kinds that the core does not decode, which have no positions.
    broken:  sample, and what is wrong with it, for each damaged image.
    """

    saved: SavedPositions
    others: int
    broken: tuple[tuple[int, str], ...]


def load_positions(index: Index, field: int, path: str) -> SavedPositions | None:
    """Map the positions that were saved for this data; None if there are none.

    A file that is damaged, or of other data or another version of it, is not used, with a warning.
    """
    refused: Exception | None = None
    for place in list_saved_paths(path, "positions"):
        try:
            return read_positions(place, index, field)
        except FileNotFoundError:
            continue
        except (SidecarError, UsageError, OSError) as error:
            refused = refused or error  # the user's own may fit, where the data's folder is not his
    if refused is not None:
        warnings.warn(f"{refused}; images are decoded without it", RuntimeWarning, stacklevel=4)
    return None


def read_positions(place: str, index: Index, field: int) -> SavedPositions:
    """Map a file of positions. SidecarError if it is damaged or of other data; OSError."""
    again = f"make it again with `penstock index --positions --force {index.files.root}`"
    kind = replace(POSITIONS, again=again)
    header, columns = kind.load(place, index.fingerprint, version=index.version)
    if header.get("field") != index.fields[field].name:
        kind.refuse(place, f"for the field {header.get('field')!r}")
    entries, first, sums, heads = columns.values()
    if (
        len(sums) != index.count
        or len(heads) != 3 * index.count
        or len(first) != index.count + 1
        or _entry_bytes * int(first[-1]) != len(entries)
    ):
        raise SidecarError(f"{place} is damaged: its columns do not fit each other: {again}")
    native = RowPositions(entries, first, sums, heads)
    return SavedPositions(place, entries, first, sums, heads.reshape(-1, 3), native)


def check_positions(index: Index, path: str) -> Iterator[str]:
    """Yield the state of each file of positions that was saved for this data, in words."""
    for place in list_saved_paths(path, "positions"):
        try:
            name = str(read_sidecar(place)[0].get("field"))
            number = [field.name for field in index.fields].index(name)
            saved = read_positions(place, index, number)
        except FileNotFoundError:
            continue
        except (SidecarError, OSError, ValueError) as error:
            yield f"{place}: not used: {error}"
        else:
            yield f"{place}: of {describe_positions(index, saved)}"


def describe_positions(index: Index, saved: SavedPositions) -> str:
    """Describe in words how many images have positions, and how much these take."""
    size = os.path.getsize(saved.path)
    share = size / max(1, index.total_bytes)
    return f"{saved.images:,} of {index.count:,} images, {size:,} bytes ({share:.2%} of the data)"


def find_positions(
    dataset: Dataset,
    *,
    field: str | None = None,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> PositionReport:
    """Find where each row of blocks of all images begins, and save that beside the index.

    Everything is decoded once, on all cores, so that damage anywhere is found. The file is written
    whole or not at all.

    field:     field of the samples that has the images, if it is not evident.
    force:     find them again, if they are there.
    progress:  called with the samples done, and all.

    UsageError for a selection or a mixture, and without a field of images.
    """
    if dataset.subset is not None or dataset.kind is not None:
        raise UsageError(f"{dataset.path} is a selection or a mixture: open its data alone")
    index = dataset.index
    number = choose_field(index, field)
    paths = list_saved_paths(dataset.path, "positions")
    if not force:
        for path in paths:
            with contextlib.suppress(SidecarError, UsageError, OSError):
                return PositionReport(read_positions(path, index, number), 0, ())
    finding = _Finding(number)
    done = 0
    with Loader(dataset, 64, shuffle="none", decode=finding, rank=0, world_size=1) as loader:
        for batch in loader:
            done += len(batch.ids)
            if progress is not None:
                progress(done, len(dataset))
    first = np.zeros(index.count + 1, np.int64)
    np.cumsum(finding.gather("counts", np.int64), out=first[1:])
    columns = {
        "entries": finding.gather("entries", np.uint8),
        "first": first,
        "sums": finding.gather("sums", np.uint32),
        "heads": finding.gather("heads", np.int32),
    }
    path = choose_saved_path(paths)
    name = index.fields[number].name
    POSITIONS.save(path, index.fingerprint, columns, version=index.version, field=name)
    return PositionReport(
        read_positions(path, index, number), finding.others, tuple(sorted(finding.broken))
    )


class WholeReader:
    """Base of the readers of rows that need all bytes and all pixels of their images."""

    def crop_reads(self, index: Index, seed: int, epoch: int) -> None:
        """Return None: all bytes are needed."""
        del index, seed, epoch

    def measure_gains(self, index: Index) -> tuple[DecodeGain, ...]:
        """Return (): every pixel of these images is asked for."""
        del index
        return ()


class _Finding(WholeReader):
    """A `RowDecode` whose batches are empty: it keeps the positions of the samples by itself."""

    def __init__(self, field: int) -> None:
        self._field = field
        self._parts: dict[int, dict[str, npt.NDArray[Any]]] = {}  # by first sample
        self.others = 0
        self.broken: list[tuple[int, str]] = []

    def __call__(self, sample: Any) -> Any:
        raise AssertionError("positions are found for many rows at a time")

    def open_data(self, index: Index, path: str | None, leaves: Leaves) -> RowReader:
        del index, path, leaves
        return self

    def open_rows(self, step: LoadedStep) -> _FindingRows:
        return _FindingRows(self, step)

    def add(self, step: LoadedStep, first: int, end: int) -> None:
        """Find the positions of the rows [first, end) of a step."""
        values, bounds = list_rows(step.fields[step.index.fields[self._field].name])
        entries, counts, sums, heads, problems = WHOLE.find_positions(
            values, np.ascontiguousarray(bounds[first : end + 1])
        )
        ids = step.planned.ids
        for row, status, byte, _, message, _, _ in problems:
            sample = int(ids[first + row])
            if status == 1:
                self.others += 1
            elif status:
                where = step.index.where(sample, self._field)
                self.broken.append(
                    (sample, f"{step.index.key(sample)}: {where}: byte {byte:,}: {message}")
                )
        columns: list[npt.NDArray[Any]] = [entries, counts, sums, heads]
        names = ("entries", "counts", "sums", "heads")
        self._parts[int(ids[first])] = dict(zip(names, columns, strict=True))

    def gather(self, name: str, dtype: Any) -> npt.NDArray[Any]:
        """Join a column of all samples."""
        columns = [self._parts[first][name] for first in sorted(self._parts)]
        return np.concatenate([np.empty(0, dtype), *columns]).astype(dtype, copy=False)


class _FindingRows:
    def __init__(self, finding: _Finding, step: LoadedStep) -> None:
        self._finding, self._step = finding, step

    def decode(self, first: int, end: int) -> None:
        self._finding.add(self._step, first, end)

    def result(self) -> dict[str, Any]:
        return {}


# -- reads of crops --------------------------------------------------------------------------------


def can_crop_reads(index: Index, field: int) -> bool:
    """Return whether each image is one extent that nothing else needs as a whole."""
    layout = index.layouts[field]
    has_sums = any(stored.name == SUMS_FIELD for stored in index.fields)
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
