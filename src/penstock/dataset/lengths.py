"""Lengths of samples: from the container where it has them, else from a file that was measured.

`measure_lengths` writes the file beside the index: the data's identity and version, the rule, and
an int64 for each sample. While it measures, finished chunks are in a file of another name, each
with a checksum, so that a run that was killed goes on after them. Processes measure; this one
writes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import Path, check_choice, check_function, check_whole
from ..engine import storage_errors
from ..errors import DataError, SidecarError, UsageError, WorkerError
from ..extent import Int
from ..index import SUMS_FIELD, Chunked, Field, Index, write_sidecar
from .durations import measure_duration
from .fields import build_fields, open_samples
from .reading import FieldReader
from .saved_selection import SavedKind, read_saved
from .temporary_array import allot_array
from .token_count import TokenCounter

if TYPE_CHECKING:
    from .dataset import Dataset

Rule = Literal["bytes", "tokens", "duration"] | Callable[[Mapping[str, Any]], int]
"""Rule of a length: bytes of all fields, numbers of a list, milliseconds, or a function."""

_kind = SavedKind(
    "lengths-1", "file of lengths", "`penstock lengths`", "measure them with `penstock lengths`"
)
_token_fields = ("input_ids", "tokens")
_prelude_bytes = 4096
_ahead = 4  # chunks that wait for each process


# -- lengths that the index knows ------------------------------------------------------------------


def find_counted(index: Index) -> tuple[int, Field] | None:
    """Return the field whose numbers are a sample's length, and its place; None if none is.

    It is the only field of varying length; of several, the one named input_ids or tokens; and if no
    length varies, the only field, if it is a row. Fields that have to be decoded have no lengths.
    """
    if any(part.parser is not None for part in index.fields):
        return None
    parts = [pair for pair in enumerate(index.fields) if pair[1].name != SUMS_FIELD]
    found = _choose_counted(parts)
    return None if found is None or isinstance(index.layouts[found[0]], Chunked) else found


def _choose_counted(parts: list[tuple[int, Field]]) -> tuple[int, Field] | None:
    varying = [pair for pair in parts if pair[1].shape is None]
    if any(part.levels for _, part in varying):  # whose bytes are offsets, too
        varying = [pair for pair in varying if not pair[1].levels and pair[1].name in _token_fields]
        return varying[0] if len(varying) == 1 else None
    named = [pair for pair in varying if pair[1].name in _token_fields]
    if len(varying) > 1 and len(named) == 1:
        return named[0]
    if not varying and len(parts) == 1 and len(parts[0][1].shape or ()) == 1:
        return parts[0]
    return varying[0] if len(varying) == 1 else None


def count_numbers(index: Index, ids: Int | npt.NDArray[np.uint64]) -> Int:
    """Return the lengths of these samples, which `find_counted` says the index knows."""
    counted = find_counted(index)
    assert counted is not None
    number, part = counted
    return index.lengths(ids, number) // part.element_bytes


def count_bytes(index: Index, ids: Int) -> Int:
    """Return the bytes of these samples, all fields."""
    total = np.zeros(len(ids), np.int64)
    for number, part in enumerate(index.fields):
        if part.name != SUMS_FIELD:
            total += index.lengths(ids, number)
    return total


def allot_lengths(count: int, folder: str) -> Int:
    """Return room for so many lengths; much of it is a file without a name in `folder`."""
    return allot_array(count, np.int64, folder, limits.lengths_samples_inline_max)


def find_token_field(index: Index, path: str, name: str | None = None) -> str:
    """Return the name of the field that is a list of tokens: the one named so; else the only list
    of integers that is no bytes, or the one named input_ids or tokens. UsageError if none is."""
    lists = [
        made
        for made in index.made
        if made.name != SUMS_FIELD
        and made.dtype.kind in "iu"
        and not made.nesting
        and (made.shape is None or len(made.shape) == 1)
    ]
    if name is not None:
        if name not in [made.name for made in lists]:
            known = ", ".join(made.name for made in lists) or "none"
            raise UsageError(f"field is {name!r}, and the lists of integers of {path} are {known}")
        return name
    tokens = [made.name for made in lists if made.dtype != np.uint8 or made.shape is not None]
    named = [made.name for made in lists if made.name in _token_fields]
    for found in (named, tokens):
        if len(found) == 1:
            return found[0]
    fields = ", ".join(f"{made.name} ({made.dtype})" for made in index.made)
    raise UsageError(
        f"{path} has {'no' if not tokens else 'several'} lists of tokens among its fields "
        f"({fields}): name one by field=, or make tokens of texts by `penstock tokenize`"
    )


# -- lengths that were measured --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SavedLengths:
    """Lengths in a file: an int64 for each sample of the data, mapped, and their rule.

    counter:  identity of the tokenizer and the field that were counted with; "" without one.
    checksum: of the values.
    """

    path: str
    rule: str
    counter: str
    values: Int
    checksum: int = 0

    def take(self, ids: npt.NDArray[np.uint64]) -> Int:
        """Return the lengths of these samples."""
        return np.asarray(self.values)[ids.view(np.int64)]


def load_lengths(paths: list[str], index: Index, source: str) -> SavedLengths | None:
    """Map the lengths that were measured for this data; None if there are none.

    paths:   where they may be.
    source:  the data's path, for messages.

    SidecarError if they are damaged, or of other data or another version of it.
    """
    path = next((path for path in paths if os.path.exists(path)), None)
    if path is None:
        return None
    renew = f"renew them with `penstock lengths {source} --by RULE --force`, or remove the file"
    try:
        header, sections = read_saved(path, _kind, index.fingerprint)
    except SidecarError as error:
        what = str(error).partition(", and this dataset")[0].partition(f": {_kind.again}")[0]
        raise SidecarError(f"{what}: {renew}") from None
    rule = str(header.get("by"))
    renew = renew.replace("RULE", rule)
    made = _describe_made(index, header.get("made", {}))
    has_fields = any(part.parser is not None for part in index.fields)
    if has_fields and header.get("made", {}) != made:
        raise SidecarError(
            f"{path} holds lengths (by {rule}) of fields that were made otherwise of their "
            f"lines ({header.get('made')}, and now {made}): open it with these fields, or {renew}"
        )
    if header.get("version") != index.version:
        raise SidecarError(
            f"{path} holds lengths (by {rule}) of another version of {source}, which has been "
            f"written since: {renew}"
        )
    values = sections.get("values")
    if values is None or values.dtype != np.int64 or len(values) != index.count:
        raise SidecarError(f"{path} is damaged: it holds no {index.count:,} lengths: {renew}")
    checksum = next(int(row[4]) for row in header["sections"] if row[0] == "values")
    return SavedLengths(path, rule, str(header.get("counter", "")), values, checksum)


def measure_lengths(
    dataset: Dataset,
    by: Rule,
    *,
    field: str | None = None,
    tokenizer: Path | None = None,
    processes: int | None = None,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
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
    name = describe_rule(by)
    if dataset.subset is not None or not dataset.can_mix:
        raise UsageError(
            f"{dataset.path} is a selection or a mixture: measure the data that it is of, each by "
            "itself"
        )
    check_function("progress", progress, "a function of the samples done and of all")
    measure, identity = _choose_measure(dataset.index, by, field, tokenizer)
    if tokenizer is not None:
        name += f" --tokenizer {os.fspath(tokenizer)!s}"
    paths = dataset.list_length_paths()
    if not force:
        with contextlib.suppress(SidecarError):
            saved = load_lengths(paths, dataset.index, dataset.path)
            if saved is not None and (saved.rule, saved.counter) == (name, identity):
                return saved
    path = choose_saved_path(paths)
    index = dataset.index
    header: dict[str, Any] = {
        "format": _kind.format,
        "data": index.fingerprint,
        "version": index.version,
        "by": name,
        "counter": identity,
    }
    if measure is not None:
        names = [part.name for part in index.made]  # a function may use all fields
        if isinstance(measure, TokenCounter | _Duration | _ListLength):
            names = [measure.field_name]
        if made := _describe_made(index, names):
            header["made"] = made
        cores = len(os.sched_getaffinity(0))
        workers = cores if processes is None else check_whole("processes", processes, 1, 1024)
        with storage_errors(path), _Chunks(path, header, index) as chunks:
            _measure_chunks(dataset, measure, chunks, workers, progress)
            write_sidecar(path, header, {"values": chunks.values})
            chunks.remove()
    else:
        values = _count_all(dataset, str(by), os.path.dirname(path))
        with storage_errors(path):
            write_sidecar(path, header, {"values": values})
    for other in paths:
        if other != path:
            with contextlib.suppress(OSError):
                os.unlink(other)
    saved = load_lengths([path], index, dataset.path)
    assert saved is not None
    return saved


def _describe_made(index: Index, names: Iterable[str]) -> dict[str, Any]:
    """Describe what these fields are made of, those that are made of others; as JSON has it.

    Neither identity nor version of the data tells that: one file opens with other keys, too.
    """
    return {
        name: part.parser.describe(name)
        for part in index.fields
        if part.parser is not None
        for name in names
        if name in part.parser.keys
    }


def describe_rule(by: Rule) -> str:
    """Return the name under which lengths by a rule are saved."""
    if callable(by):
        name = f"{getattr(by, '__module__', '?')}:{getattr(by, '__qualname__', '?')}"
        if "<" in name or "?" in name:
            raise UsageError(
                f"by is {by!r}, which other processes cannot import: name a function of a module"
            )
        return name
    more = ", or a function of a sample (module:function)"
    check_choice("by", by, ("bytes", "tokens", "duration"), more)
    return by


def _count_all(dataset: Dataset, by: str, folder: str) -> Int:
    index = dataset.index
    counted = find_counted(index)
    if by == "tokens" and (counted is None or counted[1].dtype == np.uint8):
        raise UsageError(
            f"{dataset.path} holds no lists of numbers: count the tokens of texts by tokenizer= "
            "(--tokenizer), or by a function of yours (--by module:function)"
        )
    if by == "bytes" and any(isinstance(layout, Chunked) for layout in index.layouts):
        raise UsageError(
            f"{dataset.path} is compressed, and its samples' bytes are not known before they are "
            "read: measure by a function of yours (--by module:function)"
        )
    count = count_bytes if by == "bytes" else count_numbers
    values = allot_lengths(index.count, folder)
    for start in range(0, index.count, limits.selection_chunk_samples):
        stop = min(start + limits.selection_chunk_samples, index.count)
        values[start:stop] = count(index, np.arange(start, stop))
    return values


Measure = Callable[[Mapping[str, Any]], int]


def _choose_measure(
    index: Index, by: Rule, field: str | None, tokenizer: Path | None
) -> tuple[Measure | None, str]:
    """Return the function that measures samples, None if the index knows their lengths, and what
    else identifies it."""
    if tokenizer is not None and by != "tokens":
        raise UsageError("tokenizer is for by='tokens': leave it out")
    if tokenizer is not None:
        counter = TokenCounter.load(tokenizer, _choose_field(index, field, "text"))
        return counter, counter.identity
    if by == "tokens" and find_counted(index) is None and field is None:
        # Lists that have to be decoded, or parsed, are counted as they are read.
        with contextlib.suppress(UsageError):
            return _ListLength(find_token_field(index, "the data")), ""
    if callable(by) or by != "duration":
        if field is not None:
            raise UsageError("field is for sound, and for texts with a tokenizer: leave it out")
        return (by, "") if callable(by) else (None, "")
    name = _choose_field(index, field, "sound")
    return _Duration(name), name


def _choose_field(index: Index, field: str | None, noun: str) -> str:
    """Return the field of bytes that is meant."""
    parts = [made for part in index.fields if part.name != SUMS_FIELD for made in part.made]
    names = [part.name for part in parts if part.shape is None and part.dtype == np.uint8]
    # Texts of JSON lines have no bytes of their own.
    names += [part.name for part in parts if part.dtype.kind in "OUST"]
    if field is None and len(names) != 1:
        raise UsageError(
            f"the data has {len(names)} fields of bytes ({', '.join(names) or 'none'}): name the "
            f"one with the {noun} by field= (--field)"
        )
    if field is not None and field not in names:
        raise UsageError(f"field is {field!r}: use one of {', '.join(names) or 'none'}")
    return field or names[0]


@dataclass(frozen=True)
class _Duration:
    """Function that measures the sound in a field of a sample."""

    field_name: str

    def __call__(self, sample: Mapping[str, Any]) -> int:
        return measure_duration(sample[self.field_name])


@dataclass(frozen=True)
class _ListLength:
    """Function that counts the numbers in a field of a sample."""

    field_name: str

    def __call__(self, sample: Mapping[str, Any]) -> int:
        return len(sample[self.field_name])


def choose_saved_path(paths: list[str]) -> str:
    """Return the first path that can be written."""
    for path in paths:
        folder = os.path.dirname(path)
        if path == paths[-1]:
            os.makedirs(folder, exist_ok=True)
        if os.access(folder, os.W_OK):
            return path
    raise UsageError(f"{paths[-1]} cannot be written: give this user a writable cache folder")


# -- chunks ----------------------------------------------------------------------------------------


class _Chunks:
    """File of the chunks that are measured: what they are of, a mark for each, and the lengths.

    A chunk's mark is 1 << 32 and the checksum of its lengths. The file is locked while it is used.
    """

    def __init__(self, path: str, header: Mapping[str, Any], index: Index) -> None:
        folder, name = os.path.split(path)
        self._path = os.path.join(folder, f".{name}.part")
        self.samples = max(1, min(8192, int(limits.lengths_chunk_bytes / max(1, index.mean_bytes))))
        count = index.count
        self._about = json.dumps({**header, "chunk": self.samples}).encode().ljust(_prelude_bytes)
        self.count = -(-count // self.samples)
        self._bytes = _prelude_bytes + 8 * self.count + 8 * count
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise UsageError(
                f"{self._path} is in use: another process measures these lengths; wait for it"
            ) from None
        if os.pread(self._file, _prelude_bytes, 0) != self._about:
            os.ftruncate(self._file, 0)
            os.ftruncate(self._file, self._bytes)
            os.pwrite(self._file, self._about, 0)
        os.ftruncate(self._file, self._bytes)
        shape = (self.count,)
        self._marks = np.memmap(self._path, np.int64, "r+", offset=_prelude_bytes, shape=shape)
        offset = _prelude_bytes + 8 * self.count
        self.values: Int = np.memmap(self._path, np.int64, "r+", offset=offset, shape=(count,))

    def __enter__(self) -> _Chunks:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._file)

    def list_missing(self) -> list[int]:
        """List the chunks that are not there, or damaged."""
        return [
            chunk
            for chunk in range(self.count)
            if self._marks[chunk] != self._sum_up(self._view(chunk))
        ]

    def put(self, chunk: int, lengths: Int) -> None:
        """Write a chunk, and then its mark."""
        self._view(chunk)[:] = lengths
        self._marks[chunk] = self._sum_up(lengths)

    def bounds(self, chunk: int) -> tuple[int, int]:
        """Return the first sample of a chunk, and the first one after it."""
        start = chunk * self.samples
        return start, min(start + self.samples, len(self.values))

    def remove(self) -> None:
        """Remove the file."""
        os.unlink(self._path)

    def _view(self, chunk: int) -> Int:
        start, stop = self.bounds(chunk)
        return self.values[start:stop]

    @staticmethod
    def _sum_up(lengths: Int) -> int:
        return (1 << 32) | zlib.crc32(np.ascontiguousarray(lengths).data)


def _measure_chunks(
    dataset: Dataset,
    measure: Callable[[Mapping[str, Any]], int],
    chunks: _Chunks,
    processes: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Measure the chunks that are missing, in processes; in this one if one chunk is enough."""
    missing = chunks.list_missing()
    done = chunks.count - len(missing)

    def report() -> None:
        if progress is not None:
            progress(min(done * chunks.samples, len(chunks.values)), len(chunks.values))

    report()
    if processes == 1 or len(missing) <= 1:
        with contextlib.closing(_ChunkReader(dataset, measure)) as reader:
            for chunk in missing:
                chunks.put(chunk, reader.measure(*chunks.bounds(chunk)))
                done += 1
                report()
        return
    for chunk, lengths in _measure_in_processes(dataset, measure, chunks, missing, processes):
        chunks.put(chunk, lengths)
        done += 1
        report()


def _measure_in_processes(
    dataset: Dataset,
    measure: Callable[[Mapping[str, Any]], int],
    chunks: _Chunks,
    missing: list[int],
    processes: int,
) -> Iterator[tuple[int, Int]]:
    pool = ProcessPoolExecutor(
        min(processes, len(missing)), get_context("spawn"), _open_reader, (dataset, measure)
    )
    waiting: dict[Future[Int], int] = {}
    rest = iter(missing)
    try:
        while True:
            while len(waiting) < _ahead * processes and (chunk := next(rest, None)) is not None:
                waiting[pool.submit(_measure_chunk, *chunks.bounds(chunk))] = chunk
            if not waiting:
                return
            for future in wait(waiting, return_when="FIRST_COMPLETED").done:
                yield waiting.pop(future), future.result()
    except BrokenProcessPool:
        raise WorkerError(
            "a process that measured lengths was killed or ended by itself: what is finished is "
            "kept, so run it again, with fewer processes if memory was short"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


class _ChunkReader:
    """Reader of samples that measures each."""

    def __init__(self, dataset: Dataset, measure: Callable[[Mapping[str, Any]], int]) -> None:
        index = dataset.index
        measure_sample = dataset.compose_decode(measure)
        assert measure_sample is not None
        self._measure = measure_sample
        self._reader = FieldReader(index)
        self._rows = max(1, min(256, int(limits.lengths_batch_bytes / max(1, index.mean_bytes))))

    def measure(self, start: int, stop: int) -> Int:
        """Return the lengths of the samples [start, stop)."""
        lengths = np.empty(stop - start, np.int64)
        for first in range(start, stop, self._rows):
            ids = np.arange(first, min(first + self._rows, stop), dtype=np.uint64)
            planned, buffer = self._reader.read_step(ids)
            index = self._reader.index
            sample_of = open_samples(index, planned, build_fields(index, planned, buffer), 0, 0)
            for row in range(len(ids)):
                sample = sample_of(row)
                key = sample["__key__"]  # the function may change its dict
                try:
                    length = self._measure(sample)
                except Exception as error:
                    error.add_note(f"penstock: raised by decode for sample {key!r}")
                    raise
                lengths[first - start + row] = _check_length(length, first + row)
        return lengths

    def close(self) -> None:
        self._reader.close()


def _check_length(value: Any, sample: int) -> int:
    is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 2**63:
        raise DataError(
            f"the length of sample {sample:,} is {value!r:.100}: return an integer from 0 on"
        )
    return int(value)


_reader: list[_ChunkReader] = []  # of a process that measures


def _open_reader(dataset: Dataset, measure: Callable[[Mapping[str, Any]], int]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _reader.append(_ChunkReader(dataset, measure))


def _end_with_parent() -> None:
    """End this process with its parent: one that is killed does not tell its pool's processes."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _measure_chunk(start: int, stop: int) -> Int:
    return _reader[0].measure(start, stop)
