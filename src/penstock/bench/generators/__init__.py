"""The formats of generated files, a module each, imported when it is first used.

Each has `write(part, draft)`, which writes the draft's samples into the part, and what belongs
beside the file into parts that it gets of `draft.beside`; it neither makes them durable nor gives
them their names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import UsageError
from ...writers import Part
from ..draft import Draft
from ..workload import Data

Write = Callable[[Part, Draft], None]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a format is written.

    module:        of this package.
    compressions:  those it knows besides "none".
    """

    module: str
    compressions: tuple[str, ...] = ()


LAYOUTS = {
    "npz": Layout("npz", ("zip",)),
    "npy": Layout("npy"),
    "hdf5": Layout("hdf5", ("gzip", "lzf")),
    "tfrecord": Layout("tfrecord"),
    "csv": Layout("csv", ("gzip", "bz2", "xz")),
    "jpeg": Layout("image"),
    "png": Layout("image"),
    "indexed_binary": Layout("indexed"),
    "mmap_indexed_binary": Layout("indexed"),
    "tar": Layout("tar"),
    "lmdb": Layout("lmdb"),
    "parquet": Layout("parquet", ("gzip",)),
    "synthetic": Layout("synthetic"),
}


def layout_of(data: Data) -> Layout:
    """The layout of a workload's files; UsageError where format or compression is none of ours."""
    found = LAYOUTS.get(data.format)
    if found is None:
        raise UsageError(f"dataset.format is {data.format!r}: use one of {', '.join(LAYOUTS)}")
    if data.compression not in ("none", *found.compressions):
        known = " and ".join(("none", *found.compressions))
        raise UsageError(
            f"dataset.compression is {data.compression!r}: {data.format} supports {known}"
        )
    return found


def writer_of(data: Data) -> Write:
    """What writes a workload's files."""
    module = importlib.import_module(f".{layout_of(data).module}", __package__)
    write: Write = module.write
    return write
