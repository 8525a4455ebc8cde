"""Changes that would make decoding cheaper, measured on some images of a data set."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from .._core import ImageTransform, RowPositions
from ..engine.open import read_extent
from ..errors import LimitError, PenstockError, UsageError
from ..index.layout import Chunked
from ..index.table import Index
from ..loader.explain import DecodeGain
from .other_formats import decode_by_pillow, make_smaller_copy
from .positions import NO_POSITIONS, SavedPositions

WORDS = 44
"""Random words that a crop takes of its sample's stream."""
_images_max = 64
_least_gain = 1.05  # below which a change is not worth its name
_budget_s = 1.8  # of the two seconds: the last image may take longer than those before

Pixels = npt.NDArray[np.uint8]


def measure_gains(
    index: Index,
    field: int,
    native: ImageTransform,
    saved: SavedPositions | None,
    path: str | None,
    copy_side: int | None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[DecodeGain, ...]:
    """Measure how much less processor time images take with positions, and of smaller copies.

    Images are taken evenly from the whole data, as many as fit in the time; those that cannot be
    read or decoded are left out. () if there are none, or if an image is no extent of its own.

    saved:      positions that are used already.
    path:       of the data, if positions can be found for it.
    copy_side:  shorter side of smaller copies; None if they would give other images.
    clock:      seconds.
    """
    began_s = clock()
    spent_ns = np.zeros(3, np.int64)  # now, with positions, of smaller copies
    images = 0
    for sample, data in _read_images(index, field):
        positions = None if saved is None else saved.native
        timed = _Timed(native, data, 0 if saved is None else sample, sample)
        if images == 0:
            timed.time_file(data, positions)  # for its tables and memory
        now_ns = timed.time_file(data, positions)
        copy = None
        if copy_side is not None and now_ns is not None:
            with contextlib.suppress(
                UsageError, LimitError
            ):  # no Pillow, no memory: no word of copies
                copy = make_smaller_copy(data.data, copy_side)
        copy_ns = now_ns
        if copy is not None:
            copy_ns = timed.time_file(np.frombuffer(copy, np.uint8), None)
        if now_ns is not None and copy_ns is not None:
            with_ns = now_ns if saved is not None or path is None else timed.time_with_positions()
            spent_ns += now_ns, now_ns if with_ns is None else with_ns, copy_ns
            images += 1
        spent_s = clock() - began_s
        if images == _images_max or spent_s + spent_s / max(1, images) > _budget_s:
            break
    if not images:
        return ()
    measured = f"measured on {images} images"
    changes = [
        (spent_ns[1], f"`penstock index --positions {path}`: decoding begins at the crop"),
        (spent_ns[2], f"smaller copies, `penstock convert --to tar --resize {copy_side}`"),
    ]
    gains = [(float(spent_ns[0] / max(1, after_ns)), how) for after_ns, how in changes]
    return tuple(
        DecodeGain(gain, f"{how}: a thread decodes {gain:.1f} times as many, {measured}")
        for gain, how in gains
        if gain >= _least_gain
    )


def _read_images(index: Index, field: int) -> Iterator[tuple[int, Pixels]]:
    """Read images evenly from the data, in random order."""
    if isinstance(index.layouts[field], Chunked):
        return  # whose units are chunks
    count = min(index.count, _images_max)
    samples = np.unique(np.linspace(0, index.count - 1, count).astype(np.uint64))
    for sample in np.random.default_rng(0).permutation(samples):
        extents, pieces = index.units(np.array([sample], np.uint64), field)
        if pieces is not None or len(extents.length) != 1:
            return
        file, offset, length = (int(column[0]) for column in extents)
        try:
            data = read_extent(index.files, file, offset, length, f"sample {sample:,}")
        except (PenstockError, OSError):
            continue
        yield int(sample), np.frombuffer(data, np.uint8)


class _Timed:
    """One image, made again and again by the same random words, alone in a batch.

    number:  of the image in the positions.
    """

    def __init__(self, native: ImageTransform, data: Pixels, number: int, key: int) -> None:
        self._native, self._data = native, data
        self._number, self._key = np.array([number], np.uint64), np.array([key], np.uint64)
        self._out = np.empty(native.row_bytes, np.uint8)
        self._none = np.empty(0, np.int64)

    def time_with_positions(self) -> int | None:
        """Return the processor time with positions, found beforehand; None if it has none."""
        bounds = np.array([0, len(self._data)], np.int64)
        entries, counts, sums, heads, _ = self._native.find_positions(self._data, bounds)
        first = np.array([0, *np.cumsum(counts)], np.int64)
        if not first[-1]:
            return None
        return self.time_file(self._data, RowPositions(entries, first, sums, heads))

    def time_file(self, data: Pixels, positions: RowPositions | None) -> int | None:
        """Return the processor time of an image in ns; None if it cannot be decoded."""
        known = positions if positions is not None else NO_POSITIONS
        bounds = np.array([0, len(data)], np.int64)
        crops = np.empty(0, np.int32)
        began_ns = time.thread_time_ns()
        problems = self._native.transform_rows(
            data, bounds, 0, 1, self._key, self._number, known, self._out, crops, self._none
        )
        status = problems[0][1] if problems else 0
        if status == 1:
            try:
                pixels = decode_by_pillow(data.data, "an image", problems[0][4], False)
            except PenstockError:
                return None
            key = np.concatenate([self._key, self._number])
            words = np.random.Philox(key=key).random_raw(WORDS)
            if not self._native.transform_pixels(pixels, words, self._out)[2]:
                return None  # too small for its crop
        elif status:
            return None
        return time.thread_time_ns() - began_ns
