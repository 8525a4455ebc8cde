"""Generation of a workload's data: the same bytes for one seed, by any number of ranks, and
through any number of interrupted runs.

Files are written under hidden names, made durable, and only then renamed: a file with its name is
finished. A hidden file in the data folder describes the data, so that a later run continues it, and
a changed workload is noticed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from penstock.engine import AtomicFile, ThreadPool
from penstock.errors import LimitError, StorageError, UsageError

from ..workload.sections import DatasetSpec, ParquetColumnSpec
from . import PARTS, data_paths, folder_of, index_path
from .formats import IMAGES, WRITERS, Draft, Writer
from .places import FolderPlace, choose_place, is_object
from .samples import Model, SampleContents, Shapes, make_contents, shapes

MANIFEST = ".penstock-generate.json"
"""In the data folder: DLIO looks at what is in the folders of parts, never there."""

SEED = 10
"""DLIO's seed; MLPerf's rules forbid changing it between runs."""

_VERSION = 1
_GROUP_FILES = 8
_GROUP_BYTES = 64 << 20
_WAIT_S = 60.0
_LOOK_S = 0.2

_DATA_FILE = re.compile(
    rf"\.?.+_\d+_of_\d+\.({'|'.join(WRITERS)})(\.gz|\.bz2|\.xz)?(\.off\.idx|\.sz\.idx)?(\.part)?",
    re.DOTALL,
)

Progress = Callable[[int, int], None]
"""Receives now and then the bytes of samples that are made, and of all."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Result of one rank's run.

    files, bytes:      of all parts and ranks; bytes of samples, before any compression.
    written:           files that this run wrote; others were there, or are other ranks'.
    """

    folder: str
    files: int
    bytes: int
    written: int
    written_bytes: int
    seconds: float


@dataclass(slots=True)
class _Plan:
    """The data to write: for each part, paths and shapes of files; and the values behind them."""

    data: DatasetSpec
    root: str
    place: FolderPlace
    contents: dict[np.dtype[Any], SampleContents]
    write: Writer
    paths: dict[str, list[str]]
    shapes: dict[str, Shapes]
    identity: dict[str, dict[str, Any]] = field(default_factory=dict)

    def bytes_of(self, part: str, numbers: Sequence[int] | slice) -> int:
        """Bytes of samples in these files."""
        samples = 1 if self.data.format in IMAGES else self.data.num_samples_per_file
        element = "u1" if _list_columns(self.data) else self.data.record_element_type
        elements = int(self.shapes[part][numbers].prod(axis=1).sum()) * samples
        return elements * np.dtype(element).itemsize

    def draft(
        self,
        part: str,
        number: int,
        made: Callable[[int], None],
        beside: Callable[[str], AtomicFile],
    ) -> Draft:
        """One of the files."""
        dtype = np.dtype(self.data.record_element_type)
        whole = Draft(
            data=self.data,
            part=part,
            number=number,
            path=self.paths[part][number],
            root=self.root,
            shape=tuple(self.shapes[part][number].tolist()),
            dtype=dtype,
            contents=self.contents[dtype],
            made=made,
            beside=beside,
        )
        columns = []
        for column, column_spec in enumerate(_list_columns(self.data), 1):
            dtype = np.dtype(column_spec.dtype)
            change: dict[str, Any] = {"dtype": dtype, "contents": self.contents[dtype]}
            columns.append(replace(whole, column=column, shape=(column_spec.size,), **change))
        return replace(whole, columns=tuple(columns))


def _list_columns(data: DatasetSpec) -> tuple[ParquetColumnSpec, ...]:
    return data.parquet.columns if data.format == "parquet" else ()


def generate_data(
    data: DatasetSpec,
    parts: Sequence[str] = PARTS,
    *,
    root: str = "./",
    seed: int = SEED,
    sizes: Model = "normal",
    kind: str = "random",
    threads: int | None = None,
    rank: int = 0,
    ranks: int = 1,
    barrier: Callable[[], None] | None = None,
    force: bool = False,
    bytes_max: int | None = None,
    progress: Progress | None = None,
) -> Generated:
    """Write the data of a workload that is not there yet.

    Bytes and names depend on data, sizes, kind and seed alone. A run that was ended, even killed,
    is continued by the same call. Of several ranks each writes its share of the files.

    sizes, kind:  see `penstock_bench.data.samples`.
    root:         the workload's storage_root.
    barrier:      waits for all ranks. Without one, ranks wait for what rank 0 writes first.
    force:        removes the data files of anything else that is there.
    bytes_max:    bytes of samples of all ranks beyond which nothing is written; None is no bound.
    UsageError if other data is there, or the workload cannot be written; LimitError beyond
    bytes_max; StorageError if the disk
    is full or failed.
    """
    started = time.monotonic()
    plan = _make_plan(data, parts, root, seed, sizes, kind)
    folder = folder_of(data, root)
    if ranks > 1 and force and barrier is None:
        raise UsageError(
            f"force would remove what other ranks of {ranks} write: run it once with one rank, or "
            f"remove {folder}"
        )
    if bytes_max is not None:
        _check_size(plan, folder, bytes_max, anew=force)
    with ExitStack() as stack:
        if rank == 0:
            stack.enter_context(plan.place.lock(folder))
            _prepare(plan, folder, force)
        if barrier is not None:
            barrier()
        elif rank:
            _await_manifest(plan, folder)
        run = _GenerationRun(plan, rank, ranks)
        run.check_room(folder)
        # Writing waits for the device: more threads than cores keep it busy.
        run.write(threads or min(16, 2 * len(os.sched_getaffinity(0))), progress)
    return Generated(
        folder,
        sum(map(len, plan.paths.values())),
        sum(plan.bytes_of(path, slice(None)) for path in plan.paths),
        sum(len(numbers) for numbers in run.missing.values()),
        run.total_bytes,
        time.monotonic() - started,
    )


def _check_size(plan: _Plan, folder: str, bytes_max: int, *, anew: bool) -> None:
    """Raise LimitError if more than `bytes_max` of samples are missing, of all ranks."""
    total = sum(
        plan.bytes_of(part, slice(None) if anew else _find_missing(plan.place, paths, 0, 1))
        for part, paths in plan.paths.items()
    )
    if total > bytes_max:
        free = plan.place.measure_room(folder)
        room = "" if free is None else f"{free / 1e9:,.1f} GB are free there; "
        name = folder if is_object(folder) else os.path.abspath(folder)
        raise LimitError(
            f"{name} would get {total / 1e9:,.1f} GB of samples, and {room}up to "
            f"{bytes_max / 1e9:,.1f} GB are generated without being asked: say --yes, or lower "
            f"dataset.num_files_train"
        )


def _make_plan(
    data: DatasetSpec, parts: Sequence[str], root: str, seed: int, sizes: Model, kind: str
) -> _Plan:
    write = WRITERS[data.format]
    if kind != "random" and data.format == "synthetic":
        raise UsageError(f"contents is {kind!r}: synthetic files hold no samples")
    types = [data.record_element_type, *(element.dtype for element in _list_columns(data))]
    made = {np.dtype(element): make_contents(kind, seed, element) for element in types}
    plan = _Plan(data, root, choose_place(folder_of(data, root)), made, write, {}, {})
    for part in parts:
        plan.paths[part] = data_paths(data, part, root)
        plan.shapes[part] = shapes(data, part, sizes, seed)
        plan.identity[part] = _describe_part(data, part, seed, sizes, kind)
    return plan


# -- what is there already -------------------------------------------------------------------------


def _describe_part(
    data: DatasetSpec, part: str, seed: int, sizes: Model, kind: str
) -> dict[str, Any]:
    """All values that decide the bytes of a part, by the names that users know."""
    listed = sizes if isinstance(sizes, str) else json.dumps([float(size) for size in sizes])
    key = "train" if part == "train" else "eval"
    chosen = {name: value for name, value in asdict(data).items() if name in _DECIDING}
    if data.compression == "none":
        del chosen["compression_level"]
    if data.format == "hdf5":
        chosen["hdf5"] = asdict(data.hdf5)
    if data.format == "parquet":
        columns = [[size.name, size.dtype, size.size] for size in data.parquet.columns]
        chosen["parquet"] = {"row_group_size": data.parquet.row_group_size, "columns": columns}
    identity = {f"dataset.{name}": value for name, value in chosen.items()}
    identity |= {
        f"dataset.num_files_{key}": data.files(part),
        f"dataset.num_subfolders_{key}": data.subfolders(part),
        "sizes": listed if isinstance(sizes, str) else hashlib.sha256(listed.encode()).hexdigest(),
        "contents": kind,
        "seed": seed,
    }
    if sizes == "dlio" and part == "valid":
        identity["dataset.num_files_train"] = data.num_files_train  # its draws come first
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain


_DECIDING = frozenset(
    (
        *("record_length_bytes", "record_length_bytes_stdev", "record_dims"),
        *("record_element_type", "num_samples_per_file", "file_prefix", "format"),
        *("compression", "compression_level"),
    )
)


def _prepare(plan: _Plan, folder: str, force: bool) -> None:
    """Refuse or remove other data, say what is coming, make its folders."""
    recorded = _read_manifest(plan.place, folder)
    for part, identity in plan.identity.items():
        if part in recorded:
            before = recorded[part]
            changed = [name for name in identity | before if identity.get(name) != before.get(name)]
            if not changed:
                continue
            name = changed[0]
            why = f"{name}={before.get(name)!r}, and now {name}={identity.get(name)!r} is asked"
            remedy = "give what was given then"
        else:
            there = next(plan.place.list_below(os.path.join(folder, part)), None)
            if there is None:
                continue
            why, remedy = f"not written by this command (such as {there})", "read it as it is"
        if not force:
            raise UsageError(
                f"{folder} holds data of {part!r} that is other: {why}: {remedy}, choose another "
                f"dataset.data_folder, or use force (--force) to replace it"
            )
    if force:
        for part in plan.identity:
            _clear(plan.place, folder, part)
    if force or any(recorded.get(part) != plan.identity[part] for part in plan.identity):
        text = {"version": _VERSION, "parts": recorded | plan.identity}
        with plan.place.open(os.path.join(folder, MANIFEST)) as manifest:
            manifest.write(json.dumps(text, indent=1).encode() + b"\n")
            manifest.sync()
            manifest.commit()
    _make_folders(plan)


def _read_manifest(place: FolderPlace, folder: str) -> dict[str, dict[str, Any]]:
    """Read the description of a data folder, by part."""
    path = os.path.join(folder, MANIFEST)
    if (text := place.read(path)) is None:
        return {}
    try:
        manifest = json.loads(text)
        if manifest["version"] != _VERSION:
            raise ValueError(f"version {manifest['version']}")
        return {part: dict(identity) for part, identity in manifest["parts"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({error!r}): remove the folder {folder}") from None


def _clear(place: FolderPlace, folder: str, part: str) -> None:
    """Remove the data files of a part, and nothing else."""
    below = os.path.join(folder, part)
    paths = list(place.list_below(below))
    for path in paths:
        if not _DATA_FILE.fullmatch(os.path.basename(path)):
            raise UsageError(
                f"{path} is no data file of a benchmark, and is not removed: move it away, or "
                f"choose another dataset.data_folder"
            )
    lists = place.list_below(os.path.join(folder, "index", part))
    place.remove([*paths, *(path for path in lists if ".idx" in path)], below)


def _make_folders(plan: _Plan) -> None:
    for part, paths in plan.paths.items():
        # DLIO lists the folder of a part, whether or not it is to hold anything.
        folders = {os.path.join(folder_of(plan.data, plan.root), part)}
        folders |= {os.path.dirname(path) for path in paths}
        if plan.data.format == "tfrecord" and paths:
            folders.add(os.path.dirname(index_path(plan.data, part, paths[0], plan.root)))
        plan.place.make_folders(folders)


def _await_manifest(plan: _Plan, folder: str) -> None:
    """Wait until rank 0 has described the data."""
    until = time.monotonic() + _WAIT_S
    while True:
        recorded = _read_manifest(plan.place, folder)
        if all(recorded.get(part) == identity for part, identity in plan.identity.items()):
            break
        if time.monotonic() > until:
            raise UsageError(
                f"{folder} holds nothing of rank 0 after {_WAIT_S:g} s, or other data: check that "
                f"all ranks see this folder, and that rank 0 did not fail"
            )
        time.sleep(0.05)
    _make_folders(plan)


# -- writing ---------------------------------------------------------------------------------------


class _Stopped(Exception):
    """Another thread failed, or the user stopped the run."""


class _GenerationRun:
    """The files that one rank writes, on several threads."""

    def __init__(self, plan: _Plan, rank: int, ranks: int) -> None:
        self.plan = plan
        self.missing = {
            part: _find_missing(plan.place, paths, rank, ranks)
            for part, paths in plan.paths.items()
        }
        self.total_bytes = sum(
            plan.bytes_of(part, numbers) for part, numbers in self.missing.items()
        )
        self._made, self._lock, self._stop = 0, threading.Lock(), threading.Event()

    def check_room(self, folder: str) -> None:
        """Raise StorageError if the missing files cannot fit, instead of after hours of writing."""
        data = self.plan.data
        if data.compression != "none" or data.format in (*IMAGES, "synthetic"):
            return
        free = self.plan.place.measure_room(folder)
        if free is not None and free < self.total_bytes:
            failed = StorageError(
                f"{folder} has room for {free:,} bytes, and {self.total_bytes:,} are to be "
                f"written: make room there, or lower dataset.num_files_train"
            )
            failed.errno = errno.ENOSPC
            raise failed

    def write(self, threads: int, progress: Progress | None) -> None:
        """Write all missing files; finished ones stay if something fails."""
        pending: set[Future[None]] = set()
        with ThreadPool(threads, "penstock-generate") as pool:
            try:
                for part, numbers in self._groups():
                    while len(pending) >= 2 * threads:
                        pending = self._wait(pending, progress)
                    pending.add(pool.submit(self._write_group, part, numbers))
                while pending:
                    pending = self._wait(pending, progress)
            except BaseException:  # Ctrl-C, too
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _wait(self, pending: set[Future[None]], progress: Progress | None) -> set[Future[None]]:
        done, not_done = wait(pending, _LOOK_S, FIRST_COMPLETED)
        for future in done:
            future.result()
        if progress is not None:
            progress(self._made, self.total_bytes)
        return not_done

    def _groups(self) -> Iterator[tuple[str, list[int]]]:
        """Files that are synced together: some, or one that is large."""
        for part, numbers in self.missing.items():
            group: list[int] = []
            for number in numbers:
                group.append(number)
                if len(group) == _GROUP_FILES or self.plan.bytes_of(part, group) >= _GROUP_BYTES:
                    yield part, group
                    group = []
            if group:
                yield part, group

    def _write_group(self, part: str, numbers: Iterable[int]) -> None:
        with ExitStack() as stack:
            opened: list[AtomicFile] = []

            def beside(path: str) -> AtomicFile:
                opened.append(stack.enter_context(self.plan.place.open(path)))
                return opened[-1]

            for number in numbers:
                draft = self.plan.draft(part, number, self._count, beside)
                self.plan.write(beside(draft.path), draft)
            for file in opened:
                file.sync()
            for file in reversed(opened):  # a data file that is there has all that belongs to it
                file.commit(durable=False)
            self.plan.place.sync(file.path for file in opened)

    def _count(self, count: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        with self._lock:
            self._made += count


def _find_missing(place: FolderPlace, paths: list[str], rank: int, ranks: int) -> list[int]:
    """The numbers of a rank's files that are not there."""
    there: set[str] = set()
    for folder in {os.path.dirname(path) for path in paths}:
        there.update(place.list_below(folder))
    return [n for n in range(rank, len(paths), ranks) if paths[n] not in there]
