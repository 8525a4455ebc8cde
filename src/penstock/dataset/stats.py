"""Statistics of fields of numbers: measured in threads, saved beside the index, loaded again.

What is saved are the moments of each row, and counts of bins; means are made of them when they are
loaded. A run that was killed goes on after its finished chunks.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import check_function, check_whole
from ..engine.atomic_file import storage_errors
from ..engine.threads import ThreadPool
from ..errors import MissingError, SidecarError, UsageError, import_library
from ..extent import Int
from ..index.fields import SUMS_FIELD, Scaling
from ..index.layout import Chunked
from ..index.sidecar import choose_saved_path, list_saved_paths
from ..index.table import Index
from .fields import Ragged
from .lengths import describe_made
from .measuring import MeasuredChunks, Progress, measure_in_pool
from .moments import NUMBERS, choose_dtype, count_bins, join_all, make_edges, sum_up
from .sample import FieldReader
from .saved import Saved
from .sources import scale_fields

if TYPE_CHECKING:
    from .dataset import Dataset

STATS = Saved(
    "stats-1",
    "a file of statistics",
    "measure with `penstock stats`",
    {"moments": np.int64, "bins": np.int64},
)


@dataclass(frozen=True)
class FieldStats:
    """Statistics of all numbers of a field, or of those at one place of an axis.

    count:      of all numbers. `missing` of them are NaN, `infinite` are infinite; what follows is
                of the others, and None if there are none.
    minimum, maximum:  exact, also of integers above 2^53.
    mean, sd:   mean and standard deviation of the population (divided by the count, not one less).
                An `sd` whose square is beyond float64 is infinite.
    histogram:  counts of all numbers of the field in equal bins, if bins were asked for:
                edges[k] <= number < edges[k + 1] in float64; the last bin has the maximum, too.
    rows:       statistics at each place of `axis` of a sample, if one was asked for and the field
                has it.
    """

    count: int
    missing: int
    infinite: int
    minimum: float | None
    maximum: float | None
    mean: float | None
    sd: float | None
    histogram: tuple[int, ...] = ()
    rows: tuple[FieldStats, ...] = ()
    axis: int | None = None

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        """Edges of the bins, one more than bins, from the minimum to the maximum."""
        if self.minimum is None or self.maximum is None or not self.histogram:
            return np.zeros(0)
        return make_edges(self.minimum, self.maximum, len(self.histogram))


@dataclass(frozen=True)
class _Column:
    """A field of numbers.

    shape:     in which a batch is arranged: (n, rows, m); each row has moments of its own.
    has_axis:  whether rows are places of an axis.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, int, int] = (1, 1, -1)
    has_axis: bool = False

    def arrange(self, fields: Mapping[str, Any]) -> npt.NDArray[Any]:
        """Arrange the numbers of a batch as (n, rows, m)."""
        values = fields[self.name]
        while isinstance(values, Ragged):
            values = values.values
        arranged: npt.NDArray[Any] = np.asarray(values).reshape(self.shape)
        return arranged


def load_stats(dataset: Dataset) -> Mapping[str, FieldStats]:
    """Load the statistics of this data, see `Dataset.load_stats`."""
    path = next((path for path in _list_paths(dataset) if os.path.exists(path)), None)
    if path is None:
        command = f"`{_name_command(dataset)}` or dataset.stats()"
        raise MissingError(f"{dataset.path} has no statistics: measure them by {command}")
    return _load(dataset, path)[1]


def measure_stats(
    dataset: Dataset,
    by_axis: int | None,
    bins: int,
    threads: int | None,
    force: bool,
    progress: Progress | None,
) -> Mapping[str, FieldStats]:
    """Measure statistics and save them, see `Dataset.stats`."""
    check_function("progress", progress, "a function of the samples done and of all")
    measuring = StatsMeasuring(dataset, by_axis, bins)
    return measuring.save(threads, force=force, progress=progress)


class StatsMeasuring:
    """Statistics of one data set: measured in chunks, and saved.

    samples:  in a chunk.
    count:    of chunks.
    numbers:  of all chunks.
    """

    def __init__(self, dataset: Dataset, by_axis: int | None = None, bins: int = 0) -> None:
        self._paths, self.dataset = _list_paths(dataset), dataset
        self._by_axis = None if by_axis is None else check_whole("by_axis", by_axis, 0, 64)
        self._bins = check_whole("bins", bins, 0, limits.stats_numbers_max)
        self._columns = columns = _list_columns(dataset, by_axis)
        self._width = NUMBERS * sum(column.shape[1] for column in columns)
        if (most := max(self._width, bins * len(columns))) > limits.stats_numbers_max:
            what = f"rows and bins of {len(columns):,} fields have {most:,} numbers"
            at_most = f"above {limits.stats_numbers_max:,}"
            raise UsageError(f"{what}, {at_most}: use another by_axis, or fewer bins")
        self._batch, self.samples = _divide(dataset)
        self.count = -(-len(dataset) // self.samples)
        self.numbers = self.count * self._width

    def measure(self, first: int, stop: int) -> Int:
        """Return the moments of the chunks [first, stop), as numbers."""
        chunks = range(first, stop)
        with contextlib.closing(FieldReader(self.dataset.index)) as reader:
            measured = [self.read(chunk, reader, self._sum_batch, self._join) for chunk in chunks]
        return np.concatenate(measured)

    def save(
        self,
        threads: int | None = None,
        *,
        force: bool = False,
        progress: Progress | None = None,
        measured: Int | None = None,
    ) -> Mapping[str, FieldStats]:
        """Measure what is missing, and save it; or return what is saved of the same.

        measured:  the moments of all chunks, where others measured them.
        """
        cores = len(os.sched_getaffinity(0))
        threads = (
            cores if threads is None else check_whole("threads", threads, 1, limits.threads_max)
        )
        dataset, by_axis, bins, columns = self.dataset, self._by_axis, self._bins, self._columns
        if not force:
            for path in self._paths:
                with contextlib.suppress(SidecarError, UsageError, OSError):
                    options, stats = _load(dataset, path)
                    if options == (by_axis, bins):
                        return stats

        def count_batch(fields: dict[str, Any]) -> Int:
            pairs = zip(columns, edges, strict=True)
            return np.concatenate(
                [count_bins(column.arrange(fields), ends) for column, ends in pairs]
            )

        path = choose_saved_path(self._paths)
        header: dict[str, Any] = {
            "version": dataset.index.version,
            "by_axis": by_axis,
            "bins": bins,
            "fields": _describe(dataset, columns),
        }
        about = {**header, "data": dataset.fingerprint, "samples": self.samples}
        about["rows"] = self._batch
        with storage_errors(path), ExitStack() as stack:
            passes = _Passes(self, threads, about, stack, progress, 2 if bins else 1)
            if measured is None:
                measured = passes.run(path, self._width, self._sum_batch, self._join)
            moments = self._join(measured.reshape(self.count, self._width))
            counts = np.zeros(0, np.int64)
            if bins:
                tables = _split(columns, moments[None])
                wholes = [join_all(table.T)[0] for table in tables]
                edges = [make_edges(whole["low"], whole["high"], bins) for whole in wholes]
                counts = passes.run(f"{path}.bins", bins * len(columns), count_batch, _add)
                counts = counts.sum(axis=0)
            sections = {"moments": moments, "bins": counts}
            STATS.save(path, dataset.fingerprint, sections, **header)
            for chunks in passes.chunks:
                chunks.remove()
        for other in self._paths:
            if other != path:
                with contextlib.suppress(OSError):
                    os.unlink(other)
        return _load(dataset, path)[1]

    def _sum_batch(self, fields: dict[str, Any]) -> Int:
        moments = [sum_up(column.arrange(fields)) for column in self._columns]
        return np.concatenate([part.view(np.int64) for part in moments])

    def _join(self, numbers: Int) -> Int:
        moments = [join_all(part) for part in _split(self._columns, numbers)]
        return np.concatenate([part.view(np.int64) for part in moments])

    def read(
        self,
        chunk: int,
        reader: FieldReader,
        measure_batch: Callable[[dict[str, Any]], Int],
        join: Callable[[Int], Int],
    ) -> Int:
        """Read a chunk in batches, and return the joined numbers of them."""
        stop = min((chunk + 1) * self.samples, len(self.dataset))
        batches = []
        for first in range(chunk * self.samples, stop, self._batch):
            numbers = np.arange(first, min(first + self._batch, stop), dtype=np.uint64)
            batches.append(measure_batch(reader.read(self.dataset.ids(numbers))))
        return join(np.stack(batches))


def _name_command(dataset: Dataset) -> str:
    """Name the command that measures data, opened as it is."""
    options = [f"{name}={json.dumps(value)}" for name, value in dataset.index.options.items()]
    parts = ["penstock", "stats", dataset.path, *(f"--option={option}" for option in options)]
    return shlex.join(parts)


def normalize_fields(
    dataset: Dataset, stats: str | Mapping[str, FieldStats], as_dtype: str
) -> Index:
    """Return the index of data whose fields are normalised, see `open`.

    The target of windows is normalised as their field.
    """
    index = dataset.index
    numbers = {one.name: one for one in index.fields if one.parser is None and not one.text}
    dtypes: dict[str, Any] = {"float32": np.dtype("f4")}
    if as_dtype == "bfloat16":
        ml_dtypes = import_library("ml_dtypes", "jax", "normalize_dtype='bfloat16'")
        dtypes[as_dtype] = np.dtype(ml_dtypes.bfloat16)
    if as_dtype not in dtypes:
        raise UsageError(f"normalize_dtype is {as_dtype!r}: use 'float32' or 'bfloat16'")
    if stats == "stats":
        saved = load_stats(dataset)
        stats = {n: saved[n] for n, one in numbers.items() if one.dtype.kind == "f" and n in saved}
        if not stats:
            raise UsageError(f"normalize: {dataset.path} has no field of floats: name some")
    if not isinstance(stats, Mapping) or not all(isinstance(s, FieldStats) for s in stats.values()):
        raise UsageError(f"normalize is {stats!r:.60}: give 'stats', or {{field: its FieldStats}}")
    windows = {f"{name}_target": name for name in numbers} if "target" in index.options else {}
    chosen = {n: stats[windows.get(n, n)] for n in numbers if windows.get(n, n) in stats}
    chosen |= {name: stats[name] for name in numbers.keys() & stats.keys() - chosen.keys()}
    for name in stats:
        if name not in chosen:
            raise UsageError(f"normalize: no field of numbers {name!r}, but {', '.join(numbers)}")
    scalings = {}
    for name, one in chosen.items():
        dtype, shape = numbers[name].dtype, numbers[name].made[0].shape
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise UsageError(f"normalize: {name!r} is {dtype}: leave it out")
        rows = one.rows or (one,)
        places = None if one.axis is None or not shape else shape[one.axis : one.axis + 1]
        if one.rows and places != (len(rows),):
            what = f"{len(rows):,} places of axis {one.axis}"
            raise UsageError(f"normalize: statistics of {name!r} are of {what}, and it is {shape}")
        mean = np.array([row.mean or 0.0 for row in rows])
        sd = np.array([row.sd or 1.0 for row in rows])
        if not np.isfinite(sd).all():
            raise UsageError(
                f"normalize: the deviation of {name!r} is beyond float64: leave it out"
            )
        scalings[name] = Scaling(mean, sd, one.axis if one.rows else None), dtypes[as_dtype]
    return scale_fields(index, scalings)


def _add(numbers: Int) -> Int:
    total: Int = numbers.sum(axis=0)
    return total


def _list_paths(dataset: Dataset) -> list[str]:
    if dataset.kind is not None:
        raise UsageError(f"{dataset.path} is {dataset.kind.noun}: measure each data set itself")
    if any(field.scaling is not None for field in dataset.index.fields):
        remedy = "open it without normalize=, or sound with sound='stored', to measure it"
        raise UsageError(f"{dataset.path} is normalised: {remedy}")
    whole = dataset.fingerprint == dataset.index.fingerprint
    digest = "" if whole else f"{dataset.fingerprint[:16]}."
    return list_saved_paths(dataset.path, f"{digest}stats")


def _list_columns(dataset: Dataset, by_axis: int | None) -> list[_Column]:
    """List the fields of numbers: of a shape, or lists. Lists of bytes are texts or images."""
    columns = []
    for made in dataset.index.made:
        dtype = made.as_dtype or made.dtype
        is_raw = dtype == np.uint8 and made.shape is None and not made.element
        if made.name == SUMS_FIELD or is_raw or dtype.kind not in "biuf" or dtype.itemsize > 8:
            continue
        column = _Column(made.name, dtype)
        if by_axis is not None and made.shape and by_axis < len(made.shape) and made.nbytes:
            shape = -1, made.shape[by_axis], math.prod(made.shape[by_axis + 1 :])
            column = replace(column, shape=shape, has_axis=True)
        columns.append(column)
    if not columns:
        fields = ", ".join(f"{made.name} ({made.dtype})" for made in dataset.fields)
        raise UsageError(f"{dataset.path} has no field of numbers, but {fields}: convert it first")
    if by_axis is not None and not any(column.has_axis for column in columns):
        raise UsageError(
            f"by_axis is {by_axis}, and no field of {dataset.path} has it: leave it out"
        )
    return columns


def _describe(dataset: Dataset, columns: list[_Column]) -> list[Any]:
    """Describe the fields that were measured, in types of JSON."""
    made = describe_made(dataset.index, [column.name for column in columns])
    return [[column.name, column.dtype.str, made.get(column.name)] for column in columns]


def _split(columns: list[_Column], numbers: Int) -> list[npt.NDArray[Any]]:
    """Split numbers (n, all) into the moments (n, rows) of each column."""
    ends = np.cumsum([NUMBERS * column.shape[1] for column in columns])
    parts = np.split(numbers, ends[:-1], axis=1)
    return [
        np.ascontiguousarray(part).view(choose_dtype(column.dtype))
        for column, part in zip(columns, parts, strict=True)
    ]


def _load(dataset: Dataset, path: str) -> tuple[tuple[int | None, int], Mapping[str, FieldStats]]:
    """Load a file. Return the axis and bins that it was measured with, and the statistics."""
    kind = replace(STATS, again=f"measure with `{_name_command(dataset)} --force`")
    header, sections = kind.load(path, dataset.fingerprint, version=dataset.index.version)
    stats = {}
    with kind.refuse_damaged(path):
        by_axis, bins = header["by_axis"], header["bins"]
        columns = _list_columns(dataset, by_axis)
        if header["fields"] != _describe(dataset, columns):
            kind.refuse(path, "for other fields")
        width = NUMBERS * sum(column.shape[1] for column in columns)
        tables = _split(columns, sections["moments"].reshape(1, width))
        counts = sections["bins"].reshape(len(columns), bins).tolist()
        for column, table, histogram in zip(columns, tables, counts, strict=True):
            rows = tuple(map(_finish, table[0])) if column.has_axis else ()
            whole = _finish(join_all(table.T)[0])
            found = () if whole.mean is None else tuple(histogram)
            axis = by_axis if rows else None
            stats[column.name] = replace(whole, histogram=found, rows=rows, axis=axis)
    return (by_axis, bins), stats


def _finish(moments: Any) -> FieldStats:
    finite, missing, infinite, low, high, mean, rest, squares = moments.item()
    count = finite + missing + infinite
    if not finite:
        return FieldStats(count, missing, infinite, None, None, None, None)
    sd = math.sqrt(squares / finite)
    return FieldStats(count, missing, infinite, low, high, mean + rest, sd)


@dataclass
class _Passes:
    """Passes over a data set, in threads: each reads it once, in chunks that the data decides.

    count:   of passes, for progress.
    chunks:  of the passes so far; `stack` closes them.
    """

    measuring: StatsMeasuring
    threads: int
    header: Mapping[str, Any]
    stack: ExitStack
    progress: Progress | None
    count: int
    chunks: list[MeasuredChunks] = field(default_factory=list)

    def run(
        self,
        path: str,
        width: int,
        measure_batch: Callable[[dict[str, Any]], Int],
        join: Callable[[Int], Int],
    ) -> Int:
        """Measure the chunks that are missing. Return the numbers (n, width) of all."""
        measuring = self.measuring
        every, count = len(measuring.dataset), measuring.count
        if not count:
            return np.zeros((0, width), np.int64)
        readers: list[FieldReader] = []
        before = len(self.chunks) * every

        def measure_chunk(chunk: int, _: int) -> Int:
            reader = readers.pop() if readers else FieldReader(measuring.dataset.index)
            try:
                return measuring.read(chunk, reader, measure_batch, join)
            finally:
                readers.append(reader)

        def tell(done: int, _: int) -> None:
            if self.progress is not None:
                samples = min(done * measuring.samples, every)
                self.progress(before + samples, self.count * every)

        chunks = self.stack.enter_context(MeasuredChunks(path, self.header, count, 1, width))
        self.chunks.append(chunks)
        missing = chunks.list_missing()
        pool = ThreadPool(self.threads, "penstock-stats")
        try:
            measured = measure_in_pool(pool, measure_chunk, chunks, missing, self.threads)
            chunks.fill(measured, missing, tell)
        finally:
            pool.shutdown(cancel_futures=True)
            for reader in readers:
                reader.close()
        return chunks.values.reshape(count, width)


def _divide(dataset: Dataset) -> tuple[int, int]:
    """Return the samples that are read at a time, and those of a chunk, of the data alone.

    Compressed chunks are read whole, if they are not too large.
    """
    index = dataset.index
    decoded = sum(field.nbytes or 0 for field in index.made)
    sample_bytes = max(1, index.mean_bytes, decoded)
    chunked = [layout for layout in index.layouts if isinstance(layout, Chunked)]
    together = max([int(np.diff(layout.first).max(initial=1)) for layout in chunked], default=1)
    most = max(1, int(limits.stats_batch_bytes_max / sample_bytes))
    rows = max(1, int(limits.lengths_batch_bytes / sample_bytes), min(most, together))
    return rows, rows * max(1, int(limits.lengths_chunk_bytes / (sample_bytes * rows)))
