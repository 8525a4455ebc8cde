"""Files about data: selections, weights, lengths; each names the data that it was saved for.

A file has the form of a sidecar (docs/format.md), is written whole or not at all, and is mapped.
Small files are verified when they are opened, larger ones by their header only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from .. import limits
from ..engine.atomic_file import storage_errors
from ..engine.store import build_storage_error
from ..errors import SidecarError, UsageError
from ..index.sidecar import read_sidecar, write_sidecar
from ..order.selection import Bitmap
from ..order.weighted import WeightTable

_Spilled = TypeVar("_Spilled", bound=Bitmap | WeightTable)


@dataclass(frozen=True)
class Saved:
    """Kind of a file about data.

    format:   of the header.
    noun:     with its article, for messages.
    again:    how to make the file again, for messages.
    columns:  dtype of each array.
    """

    format: str
    noun: str
    again: str
    columns: Mapping[str, Any]

    def save(
        self, path: str, data: str, columns: Mapping[str, npt.NDArray[Any]], **header: Any
    ) -> None:
        """Write a file; StorageError if that fails, and then nothing has the name `path`.

        data:  fingerprint of the data.
        """
        sections = {
            name: column.view(np.int64) if column.dtype == np.uint64 else column
            for name, column in columns.items()
        }
        with storage_errors(path, "save it again"):
            write_sidecar(path, {"format": self.format, "data": data, **header}, sections)

    def load(
        self, path: str, data: str, *, version: str | None = None, digest: str | None = None
    ) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Map a file of this data. Return its header, and the columns by name.

        version, digest:  of the data's files and of the content, if they must be the same.

        Raises SidecarError if the file is damaged or of other data, UsageError if it is of another
        kind, MissingError or StorageError if it cannot be read.
        """
        try:
            verify = os.path.getsize(path) <= limits.selection_bytes_inline_max
            header, sections = read_sidecar(path, verify)
        except OSError as error:
            raise build_storage_error(error.errno or errno.EIO, path) from None
        except SidecarError as error:
            what = str(error).partition(": rebuild it")[0]
            raise SidecarError(f"{what}: {self.again}") from None
        if header.get("format") != self.format:
            raise UsageError(f"{path} is not {self.noun}: {self.again}")
        if header.get("data") != data:
            self.refuse(path, f"for data {header.get('data')!r}, and this is {data!r}")
        if version is not None and header.get("version") != version:
            self.refuse(path, "for another version of the data, which has been written since")
        if digest not in (None, header.get("digest")):
            self.refuse(path, "with other content than before")
        with self.refuse_damaged(path):
            columns = {name: sections[name].view(dtype) for name, dtype in self.columns.items()}
        return header, columns

    @contextlib.contextmanager
    def refuse_damaged(self, path: str) -> Iterator[None]:
        """Raise SidecarError where a header, or an array, is not as it was saved."""
        try:
            yield
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SidecarError(f"{path} is damaged ({error!r}): {self.again}") from None

    def refuse(self, path: str, reason: str) -> NoReturn:
        """Raise the SidecarError for a file that was saved for something else."""
        raise SidecarError(f"{path} is {self.noun} that was saved {reason}: {self.again}")


SELECTION = Saved(
    "selection-1",
    "a selection",
    "save the selection again with save_selection()",
    {"words": np.uint64, "counts": np.uint64, "bases": np.uint64, "hints": np.uint32},
)
WEIGHTS = Saved(
    "weights-1",
    "a table of weights",
    "save the weights again with set_weights(path=)",
    {"weights": np.uint32, "bases": np.uint64},
)


@dataclass(frozen=True, eq=False)
class SavedBitmap(Bitmap):
    """A bitmap whose arrays are a mapped file, of the data with this fingerprint."""

    path: str
    data: str

    def __reduce__(self) -> tuple[Any, ...]:
        if self.nbytes <= limits.selection_bytes_inline_max:
            return super().__reduce__()
        return load_selection, (self.path, self.data, self.digest)


@dataclass(frozen=True, eq=False)
class SavedWeightTable(WeightTable):
    """A table whose arrays are a mapped file, of the data with this fingerprint."""

    path: str
    data: str

    def __reduce__(self) -> tuple[Any, ...]:
        return load_weights, (self.path, self.data, self.digest)


def save_selection(path: str, bitmap: Bitmap, data: str, commit: str = "") -> None:
    """Save a set of the samples of `data`; `commit` is the data's at its hub, if it has one."""
    header: dict[str, Any] = {"count": bitmap.count, "selected": len(bitmap), "commit": commit}
    columns = {name: getattr(bitmap, name) for name in SELECTION.columns}
    SELECTION.save(path, data, columns, **header, digest=bitmap.digest)


def load_selection(
    path: str, data: str, digest: str | None = None, commit: str = ""
) -> SavedBitmap:
    """Map a saved set of the samples of `data`, in 10 ms whatever its size; see `Saved.load`."""
    path = os.path.abspath(path)
    header, columns = SELECTION.load(path, data, digest=digest)
    was = header.get("commit")
    if was and commit and was != commit:
        what = f"{path} is a selection of commit {was}, and the data is of {commit} now"
        raise SidecarError(f"{what}: open hf://...@{was}, or {SELECTION.again}")
    with SELECTION.refuse_damaged(path):
        count, digest = int(header["count"]), str(header["digest"])
        return SavedBitmap(count=count, digest=digest, path=path, data=data, **columns)


def save_weights(path: str, table: WeightTable, data: str) -> None:
    """Save weights of the samples of `data`."""
    columns: dict[str, npt.NDArray[Any]] = {"weights": table.weights, "bases": table.bases}
    WEIGHTS.save(path, data, columns, digest=table.digest)


def load_weights(path: str, data: str, digest: str | None = None) -> SavedWeightTable:
    """Map saved weights of the samples of `data`; see `Saved.load`."""
    path = os.path.abspath(path)
    header, columns = WEIGHTS.load(path, data, digest=digest)
    with WEIGHTS.refuse_damaged(path):
        return SavedWeightTable(digest=str(header["digest"]), path=path, data=data, **columns)


def spill(value: _Spilled, data: str, folder: str) -> _Spilled:
    """Return the same set or weights in a file; it is saved in `folder` unless it is there."""
    if isinstance(value, SavedBitmap | SavedWeightTable):
        return value
    is_set = isinstance(value, Bitmap)
    save: Any = save_selection if is_set else save_weights
    load: Any = load_selection if is_set else load_weights
    path = os.path.join(folder, f"{value.digest}.{'selection' if is_set else 'weights'}")
    try:
        spilled: _Spilled = load(path, data, value.digest)
    except (SidecarError, UsageError, OSError):  # not there yet, or damaged since
        os.makedirs(folder, exist_ok=True)
        save(path, value, data)
        spilled = load(path, data, value.digest)
    return spilled


def allot_array(count: int, dtype: Any, folder: str, inline_max: int) -> npt.NDArray[Any]:
    """Return an array in memory, or above `inline_max` numbers in an unlinked file in `folder`.

    StorageError if there is no room.
    """
    if count <= inline_max:
        return np.empty(count, dtype)
    with storage_errors(folder, "try again"):
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # A full disk is an error here: while the array is written, it would end the process.
            os.posix_fallocate(file.fileno(), 0, np.dtype(dtype).itemsize * count)
            return np.memmap(file, dtype, "r+", shape=(count,))
