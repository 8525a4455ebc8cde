"""Chunks of arrays beside the samples that are cut of them, and chunks that would be better.

A sample decodes each chunk that it meets as a whole. What that costs is a product over the axes, so
that a few sizes along each are compared: all that a sample meets, decoded, and for each chunk as
much as `_CHUNK_COST_BYTES`, for finding and reading it.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..dataset.dataset import Dataset
from ..engine.open import is_url
from ..index.fields import Field
from ..index.formats.chunk_grid import CELLS_MAX, count_cells
from ..index.layout import Boxes, Chunked, Layout, Windows
from ..index.windows import WindowGrid

_CHUNK_COST_BYTES = 64 << 10
_CHUNK_BYTES_MIN, _CHUNK_BYTES_MAX = 64 << 10, 16 << 20
_ARRAYS_MAX = 4
_RUN_BYTES_MIN = 4096
_WASTE_MIN, _GAIN_MIN = 2, 1.5


class ChunkFit(NamedTuple):
    """Chunks of an array, and what a sample of it meets on average.

    met:      chunks.
    decoded:  elements that they hold, for each element of the sample.
    """

    chunk: tuple[int, ...]
    met: float
    decoded: float


class ArrayFit(NamedTuple):
    """An array in chunks: its axes by name, a sample of it, the chunks that it has and better ones.

    now:     None if it is read in place, without chunks.
    runs:    reads of a sample, then.
    better:  None if the chunks are good.
    """

    name: str
    grid: WindowGrid
    itemsize: int
    now: ChunkFit | None
    runs: int
    better: ChunkFit | None

    def describe(self, path: str) -> str:
        """Describe it in a sentence, with the command that rewrites the data."""
        size, sample_bytes = self.grid.size, math.prod(self.grid.size) * self.itemsize
        says = f"a sample is {size} of {self.grid.shape}, {sample_bytes:,} bytes"
        if self.now is None:
            runs = f"{self.runs:,} runs of {sample_bytes // self.runs:,} bytes"
            says = f"{says}, read in place in {runs}: nothing is decoded"
        else:
            met = (
                f"it meets {self.now.met:,.3g} and decodes {self.now.decoded:,.3g} times its bytes"
            )
            says = f"{says}, chunks are {self.now.chunk}: {met}"
        if self.better is None:
            return says
        than = f"it would meet {self.better.met:,.3g} and decode {self.better.decoded:,.3g} times"
        says = f"{says}; of chunks {self.chunks} {than}"
        if not path:  # of several files
            return says
        out = os.path.splitext(os.path.basename(path) if is_url(path) else path)[0]
        names = f"{shlex.quote(path)} {shlex.quote(f'{out}-chunks.zarr')}"
        return f"{says}: `penstock convert {names} --to zarr --chunks {self.chunks}`"

    @property
    def chunks(self) -> str:
        """The better chunks by axes, where these are cut."""
        assert self.better is not None
        axes = self.grid.axes or tuple(map(str, range(len(self.grid.shape))))
        sizes = zip(axes, self.better.chunk, strict=True)
        return ",".join(f"{axis}={size}" for axis, size in sizes)


def fit_arrays(dataset: Dataset) -> Iterator[ArrayFit]:
    """Compare the chunks of the largest arrays with the samples that are cut of them."""
    index = dataset.index
    if index.format not in ("zarr", "hdf5", "npy") or index.options.get("sample") == "file":
        return
    seen: set[int] = set()
    pairs = [*zip(index.fields, index.layouts, strict=True)]
    pairs.sort(key=lambda pair: -pair[1].total_bytes)
    for field, layout in pairs:
        place = id(layout.chunks if isinstance(layout, Chunked) else layout)
        fit = None if place in seen else _fit_array(field, layout)
        seen.add(place)  # a target has the chunks of its window
        if fit is not None and len(seen) <= _ARRAYS_MAX:
            yield fit


def _fit_array(field: Field, layout: Layout) -> ArrayFit | None:
    """Compare an array's chunks and its samples; None if it is neither cut nor decoded."""
    now: tuple[int, ...] = ()
    runs = 1
    if isinstance(layout, Windows | Boxes):
        grid = layout.grid
        if isinstance(layout, Windows):
            now = layout.chunk
        else:
            runs = len(layout.pieces(np.zeros(1, np.int64))[0].length)
    elif isinstance(layout, Chunked) and field.codec is not None and field.shape is not None:
        options = field.codec.options
        now = tuple(options.get("variants", [options])[0]["chunk"])
        shape, ones = (layout.count, *field.shape), (1,) * len(field.shape)
        steps = (layout.count, *ones)
        size, start = (1, *field.shape), (0,) * len(shape)
        grid = WindowGrid(shape, size, start, (1, *ones), steps, (1, *ones), layout.count)
    else:
        return None
    itemsize = field.dtype.itemsize
    fit = _measure_fit(grid, now) if now else None
    run_bytes = math.prod(grid.size) * itemsize // runs
    best = min(_list_chunks(grid, now), key=lambda one: _price(one, grid, itemsize))
    gain = math.inf if fit is None else _price(fit, grid, itemsize) / _price(best, grid, itemsize)
    is_wasteful = run_bytes < _RUN_BYTES_MIN if fit is None else fit.decoded >= _WASTE_MIN
    is_better = is_wasteful and gain >= _GAIN_MIN and (runs > 1 or fit is not None)
    return ArrayFit(field.name, grid, itemsize, fit, runs, best if is_better else None)


def _price(fit: ChunkFit, grid: WindowGrid, itemsize: int) -> float:
    """Return the bytes that a sample costs; those of chunks that are no good are more than any."""
    decoded = fit.decoded * math.prod(grid.size) * itemsize
    size = math.prod(fit.chunk) * itemsize
    cells = math.prod(count_cells(grid.shape, fit.chunk))
    whole = math.prod(grid.shape) * itemsize
    is_bad = not min(_CHUNK_BYTES_MIN, whole) <= size <= _CHUNK_BYTES_MAX or cells > CELLS_MAX
    return decoded + fit.met * _CHUNK_COST_BYTES + (2.0**62 if is_bad else 0)


def _list_chunks(grid: WindowGrid, now: Sequence[int]) -> Iterator[ChunkFit]:
    """List chunks that may suit samples: of sizes near theirs along each axis."""
    sizes: list[list[int]] = []
    along = zip(grid.size, grid.stride, grid.shape, strict=True)
    for axis, (size, stride, all_of_it) in enumerate(along):
        near = {size, size // 2, size // 4, all_of_it, *now[axis : axis + 1]}
        if grid.steps[axis] > 1:
            near |= {stride, math.gcd(size, stride), *(size << n for n in (1, 2, 3, 4, 6))}
        sizes.append(sorted({min(max(1, one), all_of_it) for one in near}))
    met = [{size: grid.count_met(at, size) for size in tried} for at, tried in enumerate(sizes)]
    for chunk in itertools.islice(itertools.product(*sizes), 50_000):
        count = math.prod(met[axis][size] for axis, size in enumerate(chunk))
        yield ChunkFit(chunk, count, count * math.prod(chunk) / math.prod(grid.size))


def _measure_fit(grid: WindowGrid, chunk: tuple[int, ...]) -> ChunkFit:
    met = math.prod(grid.count_met(axis, size) for axis, size in enumerate(chunk))
    return ChunkFit(chunk, met, met * math.prod(chunk) / math.prod(grid.size))
