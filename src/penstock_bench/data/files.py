"""Data files: their names and places, DLIO's, so that each finds the other's files; and a file to
write, with the shape of its samples and their bytes on demand.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.engine import AtomicFile
from penstock.errors import MissingError, UsageError

from ..workload.sections import DatasetSpec
from .samples import Bytes, SampleContents

# -- names and places ------------------------------------------------------------------------------


if TYPE_CHECKING:
    from ..workload.sections import DatasetSpec

PARTS = ("train", "valid")
_COMPRESSED = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz"}


def folder_of(data: DatasetSpec, root: str = "./") -> str:
    """The folder of a workload's data; an absolute data_folder ignores the storage_root."""
    return os.path.normpath(os.path.join(root, data.data_folder))


def suffix_of(data: DatasetSpec) -> str:
    """The end of the names, without the dot: the format, and the compression of text."""
    return data.format + (_COMPRESSED.get(data.compression, "") if data.format == "csv" else "")


def data_paths(data: DatasetSpec, part: str, root: str = "./") -> list[str]:
    """List the paths of "train" or "valid" by number, whether the files exist or not."""
    return list(_iterate_paths(data, part, root))


def _iterate_paths(data: DatasetSpec, part: str, root: str) -> Iterator[str]:
    count, dealt = data.files(part), data.subfolders(part)
    folder, suffix = os.path.join(folder_of(data, root), part), suffix_of(data)
    width, deep = len(str(count)), len(str(dealt))
    for number in range(count):
        name = f"{data.file_prefix}_{number:0{width}d}_of_{count}.{suffix}"
        yield (
            os.path.join(folder, f"{number % dealt:0{deep}d}", name)
            if dealt
            else f"{folder}/{name}"
        )


def index_path(data: DatasetSpec, part: str, path: str, root: str = "./") -> str:
    """The path of DLIO's index of a TFRecord file."""
    return os.path.join(folder_of(data, root), "index", part, f"{os.path.basename(path)}.idx")


def find_paths(data: DatasetSpec, part: str, root: str = "./") -> list[str]:
    """Find the files of "train" or "valid", as many as asked for, in DLIO's order: by path, or, if
    there are sub-folders, by name. Other files in the folder are ignored. With skip_listing nothing
    is looked up.

    MissingError if there are too few; UsageError if the sub-folders differ from the workload.
    """
    folder, suffix = os.path.join(folder_of(data, root), part), suffix_of(data)
    wanted, dealt = data.files(part), data.subfolders(part)
    if not wanted or data.skip_listing:
        return data_paths(data, part, root)
    folders, names = _list_folder(folder)
    below = [
        os.path.join(subfolder, name)
        for subfolder in folders
        for name in _select_names(_list_folder(os.path.join(folder, subfolder))[1], suffix)
    ]
    paths = below if dealt else _select_names(names, suffix)
    if len(folders) != dealt and (dealt or (below and not paths)):
        key = "num_subfolders_train" if part == "train" else "num_subfolders_eval"
        raise UsageError(
            f"{folder}: found {len(folders)} subfolders, config says {dealt}; "
            f"set dataset.{key}={len(folders)}"
        )
    if len(paths) < wanted:
        key = "num_files_train" if part == "train" else "num_files_eval"
        raise MissingError(
            f"{wanted:,} files expected, {len(paths):,} found in {folder} (format {data.format}): "
            f"generate them (penstock bench generate), or lower dataset.{key}"
        )
    paths.sort(key=os.path.basename)
    return [os.path.join(folder, name) for name in paths[:wanted]]


def _list_folder(folder: str) -> tuple[list[str], list[str]]:
    """The folders and the files in a folder, sorted, without hidden ones."""
    folders: list[str] = []
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    (folders if entry.is_dir() else names).append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingError(
            f"{folder} is not there: generate the data (penstock bench generate), or check "
            f"dataset.data_folder and storage.storage_root"
        ) from None
    return sorted(folders), sorted(names)


def _select_names(names: list[str], suffix: str) -> list[str]:
    """The names of data files: DLIO takes upper-case endings as well, in sub-folders."""
    endings = (f".{suffix}", f".{suffix.upper()}")
    return [name for name in names if name.endswith(endings)]


# -- a file to write -------------------------------------------------------------------------------

_GROUP_BYTES = 4 << 20
_COLUMN_BITS = 40
"""The bit at which the number of a column begins in the number by which contents know a file."""

_buffers = threading.local()

IMAGES = ("jpeg", "png")
"""Formats with one image a file, whatever num_samples_per_file says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A file to write.

    number:  among the files of its part.
    shape:   of a sample, in elements of dtype.
    column:  0, or, of a column of a table, its number from 1 on.
    columns: of a table, instead of its samples.
    made:    receives the numbers of bytes made; may raise to stop.
    beside:  opens a file that belongs to this one, and is finished with it.
    """

    data: DatasetSpec
    part: str
    number: int
    path: str
    root: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    contents: SampleContents
    made: Callable[[int], None]
    beside: Callable[[str], AtomicFile]
    column: int = 0
    columns: tuple[Draft, ...] = ()

    @property
    def count(self) -> int:
        """Samples of the file."""
        return 1 if self.data.format in IMAGES else self.data.num_samples_per_file

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[Bytes]:
        """The bytes of all samples, one after the other; a piece is valid until the next."""
        part, number = PARTS.index(self.part), self.number + (self.column << _COLUMN_BITS)
        for piece in self.contents.pieces(part, number, self.shape, self.count):
            self.made(len(piece))
            yield piece

    def groups(self, samples: int | None = None) -> Iterator[npt.NDArray[Any]]:
        """The samples as arrays (samples, *shape), `samples` or some at once; valid until the next
        of
        any column."""
        at_once = samples or max(1, _GROUP_BYTES // self.sample_bytes)
        room = min(self.count, at_once) * self.sample_bytes
        buffer, held = _reuse_buffer(room, self.column), 0
        for piece in self.pieces():
            while len(piece):
                taken = min(len(piece), room - held)
                buffer[held : held + taken] = piece[:taken]
                piece, held = piece[taken:], held + taken
                if held == room:
                    yield self._samples(buffer)
                    held = 0
        if held:
            yield self._samples(buffer[:held])

    def _samples(self, buffer: Bytes) -> npt.NDArray[Any]:
        return buffer.view(self.dtype).reshape(-1, *self.shape)

    def records(self) -> Iterator[memoryview]:
        """The bytes of each sample; valid until the next."""
        for group in self.groups():
            whole, size = memoryview(group.reshape(-1).view(np.uint8).data), self.sample_bytes
            yield from (whole[at : at + size] for at in range(0, len(whole), size))


def _reuse_buffer(size: int, column: int) -> Bytes:
    """A buffer that this thread keeps, so that the system does not find pages for each file."""
    held: dict[int, Bytes] = _buffers.__dict__.setdefault("held", {})
    if column not in held or len(held[column]) < size:
        held[column] = np.empty(size, np.uint8)
    return held[column][:size]
