"""Measuring of lengths: `measure_lengths` writes a file of them beside the index.

While it measures, finished chunks are in a file of another name, each with a checksum, so that a
run that was killed goes on after them. Processes measure; this one writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import limits
from ..arguments import Path, check_function, check_whole
from ..engine.atomic_file import storage_errors
from ..errors import DataError, SidecarError, UsageError, WorkerError
from ..extent import Int
from ..index.layout import Chunked
from ..index.sidecar import choose_saved_path, write_sidecar
from ..own_files import hold_lock
from .lengths import (
    LENGTHS,
    Rule,
    SavedLengths,
    choose_measure,
    count_bytes,
    count_numbers,
    describe_made,
    describe_rule,
    find_counted,
    load_lengths,
)
from .sample import FieldReader
from .saved import allot_array

if TYPE_CHECKING:
    from .dataset import Dataset

Progress = Callable[[int, int], None]
"""Function that is told now and then what is done, and all: samples, documents or tasks."""

_prelude_bytes = 4096
_ahead = 4  # chunks that wait for each worker


def measure_lengths(
    dataset: Dataset,
    by: Rule,
    *,
    field: str | None = None,
    tokenizer: Path | None = None,
    processes: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> SavedLengths:
    """Measure the length of each sample, and save it beside the index, whole or not at all.

    by:         "bytes" (of all fields) or "tokens" (numbers of the only list), both from the index
                alone; "duration", milliseconds of WAV or FLAC; or a function of a sample, as
                `decode` gets it, that returns an integer from 0 on. It must be importable.
    field:      the field with the text or the sound, if there are several.
    tokenizer:  with "tokens", the tokenizer.json by which the texts of a field are counted, or the
                folder that holds it. As `tokenize` has them by default: special tokens in texts are
                text, truncation, padding and template of the file are not applied. Needs the
                library tokenizers.
    processes:  by default one for each core that this process may use.
    force:      measure again what is there.
    progress:   called with the samples done, and all.

    Killed at any time, the same call goes on after the chunks that were finished. Lengths by the
    same rule of this version of the data are kept as they are. Returns what `Dataset.lengths` has
    from now on. UsageError; errors of the function are raised with the sample's number.
    """
    check_function("progress", progress, "a function of the samples done and of all")
    measuring = LengthMeasuring(dataset, by, field, tokenizer)
    return measuring.save(processes, force=force, progress=progress)


class LengthMeasuring:
    """Lengths of one data set by one rule, see `measure_lengths`: measured in chunks, and saved.

    samples:  in a chunk.
    count:    of chunks; 0 where the index alone says the lengths.
    numbers:  of all chunks.
    """

    def __init__(
        self,
        dataset: Dataset,
        by: Rule,
        field: str | None = None,
        tokenizer: Path | None = None,
    ) -> None:
        self.name = describe_rule(by)
        if dataset.kind is not None or dataset.fingerprint != dataset.index.fingerprint:
            raise UsageError(
                f"{dataset.path} is selected, mixed or joined: measure the data itself"
            )
        index = dataset.index
        self._measure, self.identity, only = choose_measure(index, by, field, tokenizer)
        if tokenizer is not None:
            self.name += f" --tokenizer {os.fspath(tokenizer)!s}"
        self.dataset, self._by = dataset, by
        self._header: dict[str, Any] = {
            "format": LENGTHS.format,
            "data": index.fingerprint,
            "version": index.version,
            "by": self.name,
            "counter": self.identity,
        }
        self.samples = max(1, min(8192, int(limits.lengths_chunk_bytes / max(1, index.mean_bytes))))
        self.count = self.numbers = 0
        if self._measure is not None:
            self.count, self.numbers = -(-index.count // self.samples), index.count
            # A function may use all fields.
            names = [made.name for made in index.made] if only is None else [only]
            if made := describe_made(index, names):
                self._header["made"] = made

    def measure(self, first: int, stop: int) -> Int:
        """Return the lengths of the samples of the chunks [first, stop)."""
        end = min(stop * self.samples, self.dataset.index.count)
        with contextlib.closing(FieldReader(self.dataset.index)) as reader:
            return self.read(first * self.samples, end, reader)

    def read(self, start: int, stop: int, reader: FieldReader) -> Int:
        """Return the lengths of the samples [start, stop)."""
        assert self._measure is not None
        lengths = np.empty(stop - start, np.int64)
        rows = max(1, min(256, int(limits.lengths_batch_bytes / max(1, reader.index.mean_bytes))))
        for first in range(start, stop, rows):
            ids = np.arange(first, min(first + rows, stop), dtype=np.uint64)
            sample_of = reader.read_samples(ids)
            for row in range(len(ids)):
                sample = sample_of(row)
                key = sample["__key__"]  # the function may change its dict
                try:
                    length = self._measure(sample)
                except Exception as error:
                    error.add_note(f"penstock: raised by decode for sample {key!r}")
                    raise
                is_number = isinstance(length, int | np.integer) and not isinstance(length, bool)
                if not is_number or not 0 <= length < 2**63:
                    what = f"the length of sample {first + row:,} is {length!r:.100}"
                    raise DataError(f"{what}: return an integer from 0 on")
                lengths[first - start + row] = length
        return lengths

    def _measure_missing(
        self, chunks: MeasuredChunks, missing: list[int], processes: int
    ) -> Iterator[tuple[int, Int]]:
        """Yield the chunks that are missing as they are measured, in processes; in this one if one
        chunk is enough."""
        if processes == 1 or len(missing) <= 1:
            with contextlib.closing(FieldReader(self.dataset.index)) as reader:
                for chunk in missing:
                    yield chunk, self.read(*chunks.bounds(chunk), reader)
            return
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool

        count = min(processes, len(missing))
        pool = ProcessPoolExecutor(count, get_context("spawn"), _open_reader, (self,))
        try:
            yield from measure_in_pool(pool, _read_samples, chunks, missing, processes)
        except BrokenProcessPool:
            raise WorkerError("a process that measures was killed: run it again to go on") from None

    def save(
        self,
        processes: int | None = None,
        *,
        force: bool = False,
        progress: Progress | None = None,
        measured: Int | None = None,
    ) -> SavedLengths:
        """Measure what is missing, and save it; or return what is saved by the same rule.

        measured:  the lengths, where others measured them.
        """
        dataset, index = self.dataset, self.dataset.index
        paths = dataset.list_length_paths()
        if not force:
            with contextlib.suppress(SidecarError):
                saved = load_lengths(paths, index, dataset.path)
                if saved is not None and (saved.rule, saved.counter) == (self.name, self.identity):
                    return saved
        path, header = choose_saved_path(paths), self._header
        if self._measure is None:
            measured = _count_all(dataset, str(self._by), os.path.dirname(path))
        if measured is not None:
            with storage_errors(path):
                write_sidecar(path, header, {"values": measured})
        else:
            cores = len(os.sched_getaffinity(0))
            workers = cores if processes is None else check_whole("processes", processes, 1, 1024)
            with (
                storage_errors(path),
                MeasuredChunks(path, header, index.count, self.samples) as chunks,
            ):
                missing = chunks.list_missing()
                chunks.fill(self._measure_missing(chunks, missing, workers), missing, progress)
                write_sidecar(path, header, {"values": chunks.values})
                chunks.remove()
        for other in paths:
            if other != path:
                with contextlib.suppress(OSError):
                    os.unlink(other)
        saved = load_lengths([path], index, dataset.path)
        assert saved is not None
        return saved


def _count_all(dataset: Dataset, by: str, folder: str) -> Int:
    index = dataset.index
    counted = find_counted(index)
    if by == "tokens" and (counted is None or counted[1].dtype == np.uint8):
        raise UsageError(f"{dataset.path} holds no lists of numbers: give tokenizer=")
    if by == "bytes" and any(isinstance(layout, Chunked) for layout in index.layouts):
        raise UsageError(f"{dataset.path} is compressed: measure by a function")
    count = count_bytes if by == "bytes" else count_numbers
    values = allot_array(index.count, np.int64, folder, limits.lengths_samples_inline_max)
    for start in range(0, index.count, limits.selection_chunk_samples):
        stop = min(start + limits.selection_chunk_samples, index.count)
        values[start:stop] = count(index, np.arange(start, stop))
    return values


class MeasuredChunks:
    """File of the chunks that are measured: what they are of, a mark for each, and their numbers.

    A chunk's mark is 1 << 32 and the checksum of its numbers. The file is locked while it is used.

    path:     of the result: the chunks are beside it.
    header:   what is measured: chunks of something else are not kept.
    count:    samples in all, and `samples` in a chunk.
    numbers:  of a sample.
    """

    def __init__(
        self, path: str, header: Mapping[str, Any], count: int, samples: int, numbers: int = 1
    ) -> None:
        self.samples, self._numbers = samples, numbers
        folder, name = os.path.split(path)
        self._path = os.path.join(folder, f".{name}.part")
        about = json.dumps({**header, "chunk": samples, "numbers": numbers})
        self._about = hashlib.blake2b(about.encode()).digest().ljust(_prelude_bytes)
        self.count = -(-count // samples)
        self._bytes = _prelude_bytes + 8 * self.count + 8 * count * numbers
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        self._undo = contextlib.ExitStack()
        self._undo.callback(os.close, self._file)
        in_use = f"{self._path} is in use: wait for the other process"
        try:
            self._undo.enter_context(hold_lock(self._file, f"{self._path}.lock", in_use))
        except BaseException:
            self._undo.close()
            raise
        if os.pread(self._file, _prelude_bytes, 0) != self._about:
            os.ftruncate(self._file, 0)
            os.ftruncate(self._file, self._bytes)
            os.pwrite(self._file, self._about, 0)
        os.ftruncate(self._file, self._bytes)
        os.posix_fallocate(self._file, 0, self._bytes)  # a full disk ends a process that maps it
        shape = (self.count,)
        self._marks = np.memmap(self._path, np.int64, "r+", offset=_prelude_bytes, shape=shape)
        offset = _prelude_bytes + 8 * self.count
        shape = (count * numbers,)
        self.values: Int = np.memmap(self._path, np.int64, "r+", offset=offset, shape=shape)

    def __enter__(self) -> MeasuredChunks:
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    def list_missing(self) -> list[int]:
        """List the chunks that are not there, or damaged."""
        return [
            chunk
            for chunk in range(self.count)
            if self._marks[chunk] != self._sum_up(self._view(chunk))
        ]

    def put(self, chunk: int, numbers: Int) -> None:
        """Write a chunk, and then its mark."""
        self._view(chunk)[:] = numbers
        self._marks[chunk] = self._sum_up(numbers)

    def forget(self, chunks: int | slice) -> None:
        """Let chunks be missing."""
        self._marks[chunks] = 0

    def fill(
        self,
        measured: Iterable[tuple[int, Int]],
        missing: Sequence[int],
        progress: Progress | None,
    ) -> None:
        """Write the missing chunks as they come."""
        count, done = len(self.values) // self._numbers, self.count - len(missing)
        if progress is not None:
            progress(min(done * self.samples, count), count)
        for chunk, numbers in measured:
            self.put(chunk, numbers)
            done += 1
            if progress is not None:
                progress(min(done * self.samples, count), count)

    def bounds(self, chunk: int) -> tuple[int, int]:
        """Return the first sample of a chunk, and the first one after it."""
        start = chunk * self.samples
        return start, min(start + self.samples, len(self.values) // self._numbers)

    def remove(self) -> None:
        """Remove the file."""
        os.unlink(self._path)

    def _view(self, chunk: int) -> Int:
        start, stop = self.bounds(chunk)
        return self.values[start * self._numbers : stop * self._numbers]

    @staticmethod
    def _sum_up(numbers: Int) -> int:
        return (1 << 32) | zlib.crc32(np.ascontiguousarray(numbers).data)


def measure_in_pool(
    pool: Any,
    measure: Callable[[int, int], Int],
    chunks: MeasuredChunks,
    missing: Sequence[int],
    workers: int,
) -> Iterator[tuple[int, Int]]:
    """Yield the chunks that are missing as they are done in a pool, and end the pool."""
    # Here: opening data would load multiprocessing's sockets and queues, too.
    from concurrent.futures import wait

    waiting: dict[Any, int] = {}
    rest = iter(missing)
    try:
        while True:
            while len(waiting) < _ahead * workers and (chunk := next(rest, None)) is not None:
                waiting[pool.submit(measure, *chunks.bounds(chunk))] = chunk
            if not waiting:
                return
            for future in wait(waiting, return_when="FIRST_COMPLETED").done:
                yield waiting.pop(future), future.result()
    finally:
        pool.shutdown(cancel_futures=True)


_opened: list[tuple[LengthMeasuring, FieldReader]] = []  # of a process that measures


def _open_reader(measuring: LengthMeasuring) -> None:
    end_with_parent()
    _opened.append((measuring, FieldReader(measuring.dataset.index)))


def _read_samples(start: int, stop: int) -> Int:
    measuring, reader = _opened[0]
    return measuring.read(start, stop, reader)


def end_with_parent() -> None:
    """End this process when its parent ends: a killed one does not end its pool's processes."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
