"""Selections in files: a bitmap with its counts, the data that it is of, and checksums.

The file has the form of a sidecar (docs/format.md), is written whole or not at all, and is mapped.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import limits
from ..engine import storage_errors
from ..engine import store as stores
from ..errors import SidecarError, UsageError
from ..index import read_sidecar, write_sidecar
from ..order import Bitmap


class SavedKind(NamedTuple):
    """Kind of a saved file: the format in its header, noun, writer, and how to make it again."""

    format: str
    noun: str
    writer: str
    again: str


_kind = SavedKind(
    "selection-1",
    "selection",
    "save_selection()",
    "save the selection again with save_selection()",
)
_nouns = {"selection-1": "a selection", "weights-1": "a table of weights", "lengths-1": "lengths"}
_columns = {"words": np.uint64, "counts": np.uint64, "bases": np.uint64, "hints": np.uint32}


@dataclass(frozen=True, eq=False)
class SavedBitmap(Bitmap):
    """A bitmap whose arrays are a mapped file.

    data:  fingerprint of the data that it is of.
    """

    path: str
    data: str

    def __reduce__(self) -> tuple[Any, ...]:
        if self.nbytes <= limits.selection_bytes_inline_max:
            return super().__reduce__()
        return load_selection, (self.path, self.data, self.digest)


def save_selection(path: str, bitmap: Bitmap, data: str, commit: str = "") -> None:
    """Write a file of the set; StorageError if that fails, and then nothing has the name `path`.

    commit:  of the data at its hub, if it comes from one.
    """
    sections = {
        name: getattr(bitmap, name).view(np.int64 if kind is np.uint64 else kind)
        for name, kind in _columns.items()
    }
    header = {
        "format": _kind.format,
        "count": bitmap.count,
        "selected": len(bitmap),
        "digest": bitmap.digest,
        "data": data,
        "commit": commit,
    }
    with storage_errors(path, "save it again"):
        write_sidecar(path, header, sections)


def load_selection(
    path: str, data: str, digest: str | None = None, commit: str = ""
) -> SavedBitmap:
    """Map the file of a set of the samples of `data`, in 10 ms whatever its size.

    Files up to `limits.selection_bytes_inline_max` are verified; larger ones by their header only.

    digest:  of the set; None takes any.
    commit:  of the data at its hub, if it comes from one.

    Raises SidecarError if the file is damaged, or of other data, another commit or another set;
    MissingError or StorageError if it cannot be read.
    """
    path = os.path.abspath(path)
    header, sections = read_saved(path, _kind, data)
    was = header.get("commit")
    if was and commit and was != commit:
        raise SidecarError(
            f"{path} is a selection of commit {was} of the data, and its revision is {commit} now: "
            f"open the commit of the selection, as by hf://...@{was}, or {_kind.again}"
        )
    try:
        columns = {name: sections[name].view(kind) for name, kind in _columns.items()}
        found = SavedBitmap(
            count=int(header["count"]),
            digest=str(header["digest"]),
            path=path,
            data=data,
            **columns,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SidecarError(f"{path}: this is no selection ({error!r}): {_kind.again}") from None
    if digest not in (None, found.digest):
        raise SidecarError(f"{path} holds another selection than it did: {_kind.again}")
    return found


def read_saved(path: str, kind: SavedKind, data: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header, and the mapped sections, of a saved file of this kind and of this data.

    Files up to `limits.selection_bytes_inline_max` are verified; larger ones by their header only.
    """
    try:
        verify = os.path.getsize(path) <= limits.selection_bytes_inline_max
        header, sections = read_sidecar(path, verify)
    except OSError as error:
        raise stores.build_storage_error(error.errno or errno.EIO, path) from None
    except SidecarError as error:
        what = str(error).partition(": rebuild it")[0]
        raise SidecarError(f"{what}: {kind.again}") from None
    if header.get("format") != kind.format:
        held = _nouns.get(str(header.get("format")), "an index")
        raise UsageError(f"{path} is {held}, no {kind.noun}: give a file that {kind.writer} wrote")
    if header.get("data") != data:
        raise SidecarError(
            f"{path} is a {kind.noun} of data with fingerprint {header.get('data')!r}, and this "
            f"dataset has {data!r}: use the data that it was saved for, or {kind.again}"
        )
    return header, sections


def spill_selection(bitmap: Bitmap, data: str, folder: str) -> Bitmap:
    """Return the same set in a file, for which it is saved in `folder` if it has none."""
    if isinstance(bitmap, SavedBitmap):
        return bitmap
    path = os.path.join(folder, f"{bitmap.digest}.selection")
    try:
        return load_selection(path, data, bitmap.digest)
    except (SidecarError, OSError):
        pass  # not there yet, or damaged since
    try:
        os.makedirs(folder, exist_ok=True)
        save_selection(path, bitmap, data)
    except OSError:
        return bitmap  # no room for a file: it is pickled as it is
    return load_selection(path, data, bitmap.digest)
