"""Rows of a step, decoded in chunks: by the core without the GIL, the rest by Pillow."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from .._core import ImageTransform, read_image_sizes
from ..dataset.fields import Ragged
from ..engine.open import read_extent
from ..errors import DecodeError, UsageError
from ..extent import Int
from ..index.table import Index
from ..loader.collate import Arrays, Leaves
from ..loader.decode import LoadedStep
from ..loader.explain import DecodeGain
from ..order.augmentation import derive_epoch_key
from ..plan.batch_layout import PlanSource
from .gains import WORDS, measure_gains
from .other_formats import build_size_error, decode_by_pillow, read_size_by_pillow
from .positions import (
    NO_POSITIONS,
    WHOLE,
    CroppedReads,
    SavedPositions,
    WholeReader,
    can_crop_reads,
)
from .sources import list_rows

log = logging.getLogger("penstock")

NOT_OURS, BROKEN, TOO_LARGE, NEEDS_WHOLE, TOO_SMALL = 1, 2, 3, 4, 5
"""Status of a row in the problems that the core lists; 0 is none."""

CROP_COLUMNS = 7
"""Values of a crop: left, top, width, height, flips, width and height of the image."""

Problem = tuple[int, int, int, int, str, int, bool]
_WHY_ROTATED = "its rotation is to be obeyed"


def build_broken_error(where: str, byte: int, block_row: int, message: str) -> DecodeError:
    """Build the error for a damaged JPEG."""
    rows = "" if block_row < 0 else f", in row {block_row} of its blocks"
    what = f"{where}: the JPEG is damaged at byte {byte:,}{rows}"
    return DecodeError(f"{what}: {message}: restore the file")


def build_small_error(where: str, size: str) -> DecodeError:
    """Build the error for an image that is smaller than its crop."""
    remedy = "give pad_small=True or resize= (torchvision: pad_if_needed=True, or a Resize before)"
    return DecodeError(f"{where}: the image has {size}, less than the crop: {remedy}")


def transform_pixels(
    native: ImageTransform,
    pixels: npt.NDArray[np.uint8],
    words: npt.NDArray[np.uint64],
    out: npt.NDArray[np.uint8],
    where: str,
) -> Sequence[int]:
    """Make the row of decoded pixels, and return its crop; DecodeError if these are too few."""
    crop: Sequence[int] = native.transform_pixels(pixels, words, out)
    if not crop[2]:
        raise build_small_error(where, f"{pixels.shape[1]} x {pixels.shape[0]} pixels")
    return crop


class ImageDecoder:
    """Decoder of the images of one data set to one shape.

    field:      number of the field that has them.
    positions:  positions of the data's JPEG files, if they are known.
    path:       of the data, if positions can be found for it.
    copy_side:  shorter side of smaller copies that would give about the same images; None if none
                would.
    """

    def __init__(
        self,
        field: int,
        native: ImageTransform,
        positions: SavedPositions | None,
        shape: tuple[int, ...],
        dtype: str,
        rotate: bool,
        boxes: bool,
        path: str | None,
        copy_side: int | None,
    ) -> None:
        self._path, self._copy_side = path, copy_side
        self._gains: tuple[DecodeGain, ...] | None = None
        self.field, self.native = field, native
        self.shape, self.dtype, self.rotate, self.boxes = shape, dtype, rotate, boxes
        self._saved = positions
        self.positions = NO_POSITIONS if positions is None else positions.native

    def crop_reads(self, index: Index, seed: int, epoch: int) -> PlanSource | None:
        """Return the data with the bytes alone that the crops of this epoch need, if they are known
        to be fewer than all."""
        if self._saved is None or self.rotate or not can_crop_reads(index, self.field):
            return None
        key = derive_epoch_key(seed, epoch)
        return CroppedReads(index, self.field, self.native, self._saved, key)

    def open_rows(self, step: LoadedStep) -> ImageRows:
        """Return the rows of a step, to be decoded in chunks."""
        return ImageRows(self, step)

    def measure_gains(self, index: Index) -> tuple[DecodeGain, ...]:
        """Measure, once, what positions or smaller copies would gain."""
        if self.rotate:  # Pillow decodes all of each image
            return ()
        if self._gains is None:
            self._gains = measure_gains(
                index, self.field, self.native, self._saved, self._path, self._copy_side
            )
        return self._gains

    def warn_dropped(self, where: str) -> None:
        """Warn, once, that positions do not fit: their image was decoded without them."""
        if self._saved is not None:
            what = f"{where}: the positions in {self._saved.path} do not fit this image"
            remedy = "`penstock index --positions --force` makes them anew; stats() counts more"
            warnings.warn(f"{what}: {remedy}", RuntimeWarning, stacklevel=4)


class ImageRows:
    """Images of one step: each becomes a row of one array."""

    def __init__(self, decoder: ImageDecoder, step: LoadedStep) -> None:
        self._decoder, self._step, self._native = decoder, step, decoder.native
        name = step.index.fields[decoder.field].name
        self._values, self._bounds = list_rows(step.fields[name])
        rows = len(step.planned.ids)
        self._numbers = step.list_streams()
        self._keys = step.derive_keys()
        # Positions are known by sample, and rows of other streams are no samples.
        self._positions = NO_POSITIONS if step.by_row else decoder.positions
        self._lengths: Int = np.empty(0, np.int64)
        if step.cropped:
            extents, _ = step.index.units(step.planned.ids, decoder.field)
            self._lengths = np.ascontiguousarray(extents.length, np.int64)
        self._row_bytes = self._native.row_bytes
        self._out = step.take(rows * self._row_bytes)[: rows * self._row_bytes]
        self._crops = np.zeros((rows, CROP_COLUMNS) if decoder.boxes else 0, np.int32)
        self._others = {key: value for key, value in step.fields.items() if key != name}

    def decode(self, first: int, end: int) -> None:
        """Decode the rows [first, end)."""
        count = self._step.count
        if self._decoder.rotate:
            for row in range(first, end):
                self._decode_row(row, _WHY_ROTATED)
            count("pillow", end - first)
            return
        problems = self._native.transform_rows(
            self._values,
            self._bounds,
            first,
            end,
            self._keys,
            self._numbers,
            self._positions,
            self._out,
            self._crops.reshape(-1),
            self._lengths,
        )
        others = 0
        for problem in problems:
            row, where = problem[0], self._describe(problem[0])
            check_problem(problem, where)
            if problem[1] == NOT_OURS:
                self._decode_row(row, problem[4])
                others += 1
            count_stray(self._step, problem, where)
            if problem[1] == NEEDS_WHOLE:
                others += self._decode_whole_file(row, where)
            if (problem[6] or problem[1] == NEEDS_WHOLE) and count("positions_dropped", 1) == 1:
                self._decoder.warn_dropped(where)
        if others:
            count("pillow", others)
        count("core", end - first - others)

    def result(self) -> dict[str, Any]:
        """Return the batch: the images, the label and what else the samples have."""
        rows = len(self._numbers)
        leaves, dtype = self._step.leaves, self._decoder.dtype
        pixels = self._out.view(view_dtype(dtype)).reshape(rows, *self._decoder.shape)
        batch = {"image": make_leaf(pixels, dtype, leaves)}
        if "label" in self._others:
            batch["label"] = copy_column(self._others.pop("label"), leaves)
        if self._crops.ndim == 2:
            batch["crop"] = leaves.as_leaf(self._crops, None)
        batch |= {name: copy_column(column, leaves) for name, column in self._others.items()}
        return batch

    def _decode_row(self, row: int, why: str, data: memoryview | None = None) -> None:
        """Decode a row by Pillow: of its file's bytes, by default the step's."""
        if data is None:
            data = self._values[int(self._bounds[row]) : int(self._bounds[row + 1])].data
        pixels = decode_by_pillow(data, self._describe(row), why, self._decoder.rotate)
        words, out = self._draw_words(row), self._cut_out(row)
        where = self._describe(row)
        self._keep_crop(row, transform_pixels(self._native, pixels, words, out, where))

    def _decode_whole_file(self, row: int, where: str) -> int:
        """Read a whole file of which the chosen bytes did not fit, and decode it.

        Returns the number of images that Pillow has decoded: 1 or 0.
        """
        index = self._step.index
        extents, _ = index.units(self._step.planned.ids[row : row + 1], self._decoder.field)
        file, offset, length = (int(column[0]) for column in extents)
        data = np.frombuffer(read_extent(index.files, file, offset, length, where), np.uint8)
        words, out = self._draw_words(row), self._cut_out(row)
        problem, crop = self._native.transform_file(data, words, out)
        check_problem(problem, where)
        if problem[1] == NOT_OURS:
            self._decode_row(row, problem[4], data.data)
            return 1
        self._keep_crop(row, crop)
        return 0

    def _draw_words(self, row: int) -> npt.NDArray[np.uint64]:
        key = np.array([self._keys[row], self._numbers[row]], np.uint64)
        words: npt.NDArray[np.uint64] = np.random.Philox(key=key).random_raw(WORDS)
        return words

    def _cut_out(self, row: int) -> npt.NDArray[np.uint8]:
        return self._out[row * self._row_bytes : (row + 1) * self._row_bytes]

    def _keep_crop(self, row: int, crop: Sequence[int]) -> None:
        if self._crops.ndim == 2:
            self._crops[row] = crop

    def _describe(self, row: int) -> str:
        return describe_row(self._step, self._decoder.field, row)


class WholeImageDecoder(WholeReader):
    """Decoder of the images of one data set in their own sizes."""

    def __init__(self, field: int, rotate: bool) -> None:
        self._field, self._rotate = field, rotate

    def open_rows(self, step: LoadedStep) -> WholeImageRows:
        """Return the rows of a step, to be decoded in chunks."""
        return WholeImageRows(step, self._field, self._rotate)


class WholeImageRows:
    """Images of one step in their own sizes, one after the other."""

    def __init__(self, step: LoadedStep, field: int, rotate: bool) -> None:
        self._step, self._field, self._rotate = step, field, rotate
        name = step.index.fields[field].name
        self._values, self._bounds = list_rows(step.fields[name])
        self._others = {key: value for key, value in step.fields.items() if key != name}
        rows = len(step.planned.ids)
        if rotate:
            sizes = np.zeros((rows, 2), np.int32)
            self._whys = dict.fromkeys(range(rows), _WHY_ROTATED)
        else:
            flat, problems = read_image_sizes(self._values, self._bounds, limits.image_pixels_max)
            sizes = flat.reshape(rows, 2)
            self._whys = {}  # reasons why Pillow decodes a row
            for problem in problems:
                check_problem(problem, self._describe(problem[0]))
                self._whys[problem[0]] = problem[4]
        for row, why in self._whys.items():
            sizes[row] = read_size_by_pillow(self._cut(row), self._describe(row), why, rotate)
        self._sizes = sizes
        self._ends = np.zeros(rows + 1, np.int64)
        np.cumsum(sizes[:, 0].astype(np.int64) * sizes[:, 1], out=self._ends[1:])
        self._out = step.take(3 * int(self._ends[-1]))[: 3 * int(self._ends[-1])]

    def decode(self, first: int, end: int) -> None:
        """Decode the rows [first, end)."""
        row = first
        while row < end:
            until = row
            while until < end and until not in self._whys:
                until += 1
            problems = WHOLE.decode_images(
                self._values,
                self._bounds,
                row,
                until,
                self._sizes.reshape(-1),
                self._out,
                3 * self._ends,
            )
            for problem in problems:
                check_problem(problem, self._describe(problem[0]))
                count_stray(self._step, problem, self._describe(problem[0]))
            self._step.count("core", until - row)
            if until < end:
                self._decode_row(until)
                self._step.count("pillow", 1)
            row = until + 1

    def _decode_row(self, row: int) -> None:
        where, size = self._describe(row), tuple(self._sizes[row].tolist())
        pixels = decode_by_pillow(self._cut(row), where, self._whys[row], self._rotate)
        if pixels.shape[:2] != size:
            raise DecodeError(f"{where}: its size is not {size[1]} x {size[0]}, as its header says")
        begin, stop = int(self._ends[row]), int(self._ends[row + 1])
        self._out[3 * begin : 3 * stop] = pixels.reshape(-1)

    def _cut(self, row: int) -> memoryview:
        return self._values[int(self._bounds[row]) : int(self._bounds[row + 1])].data

    def result(self) -> dict[str, Any]:
        """Return the batch: images, sizes, the label and what else the samples have."""
        leaves = self._step.leaves
        pixels = leaves.as_leaf(self._out.reshape(-1, 3), None)
        batch: dict[str, Any] = {"image": Ragged(pixels, leaves.as_leaf(self._ends, None))}
        if "label" in self._others:
            batch["label"] = copy_column(self._others.pop("label"), leaves)
        batch["size"] = leaves.as_leaf(self._sizes, None)
        return batch | {name: copy_column(one, leaves) for name, one in self._others.items()}

    def _describe(self, row: int) -> str:
        return describe_row(self._step, self._field, row)


def decode_whole(values: npt.NDArray[np.uint8], where: str, rotate: bool) -> npt.NDArray[np.uint8]:
    """Decode the bytes of one image to (height, width, 3)."""
    why = _WHY_ROTATED
    if not rotate:
        bounds = np.array([0, len(values)], np.int64)
        sizes, problems = read_image_sizes(values, bounds, limits.image_pixels_max)
        if not problems:
            pixels = np.empty((*sizes.tolist(), 3), np.uint8)
            ends = np.array([0, pixels.size], np.int64)
            out = pixels.reshape(-1)
            for problem in WHOLE.decode_images(values, bounds, 0, 1, sizes, out, ends):
                check_problem(problem, where)
            return pixels
        check_problem(problems[0], where)
        why = problems[0][4]
    return decode_by_pillow(values.data, where, why, rotate)


def check_problem(problem: Problem, where: str) -> None:
    """Raise the error for an image that is damaged or too large."""
    _, status, byte, block_row, message, _, _ = problem
    if status == TOO_LARGE:
        raise build_size_error(where, message)
    if status == TOO_SMALL:
        raise build_small_error(where, message)
    if status == BROKEN:
        raise build_broken_error(where, byte, block_row, message)


def count_stray(step: LoadedStep, problem: Problem, where: str) -> None:
    """Count an image with bytes that were skipped, and log the first."""
    stray = problem[5]
    if stray and step.count("stray_bytes", 1) == 1:
        log.warning(
            "%s: %d stray bytes, which no pixel depends on, were skipped; the images that have "
            "such are counted in stats()['decoded']",
            where,
            stray,
        )


def describe_row(step: LoadedStep, field: int, row: int) -> str:
    """Describe a row of a step, for messages."""
    sample = int(step.planned.ids[row])
    return (
        f"step {step.planned.step}, sample {sample:,} ({step.index.key(sample)}): "
        f"{step.index.where(sample, field)}"
    )


def copy_column(column: Any, leaves: Leaves) -> Any:
    """Return a column of a step as the batch has it, apart from the memory of the step's bytes."""
    if isinstance(column, Ragged):
        return Ragged(copy_column(column.values, leaves), copy_column(column.offsets, leaves))
    return leaves.as_leaf(column.copy(), None) if isinstance(column, np.ndarray) else column


def view_dtype(dtype: str) -> np.dtype[Any]:
    """Return the dtype of numpy that holds values of a dtype; integers stand for bfloat16."""
    return np.dtype("int16" if dtype == "bfloat16" else dtype)


def make_leaf(pixels: npt.NDArray[Any], dtype: str, leaves: Leaves) -> Any:
    """Return the pixels as the loader's leaves, from integers that stand for bfloat16."""
    if dtype != "bfloat16":
        return leaves.as_leaf(pixels, None)
    if isinstance(leaves, Arrays):
        return pixels.view(find_bfloat16())
    # Leaves that are no arrays of numpy are torch's tensors, and torch is imported.
    return leaves.as_leaf(pixels, None).view(sys.modules["torch"].bfloat16)


def find_bfloat16() -> Any:
    """Return numpy's dtype for bfloat16, which ml_dtypes has; UsageError without it."""
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        remedy = "pip install ml_dtypes, use 'float16', or penstock.torch.DataLoader"
        raise UsageError(f"images: dtype='bfloat16': numpy has none: {remedy}") from None
    return np.dtype(ml_dtypes.bfloat16)
