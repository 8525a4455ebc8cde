"""The formats of generated files, a module each, imported when it is first used.

Each has `write(part, draft)`, which writes the draft's samples into the part, and what belongs
beside the file into parts that it gets of `draft.beside`; it neither makes them durable nor gives
them their names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from penstock.engine import AtomicFile

from ..file_draft import Draft
from ..workload.sections import DatasetSpec

Write = Callable[[AtomicFile, Draft], None]


LAYOUTS = {
    "npz": "npz",
    "npy": "npy",
    "hdf5": "hdf5",
    "tfrecord": "tfrecord",
    "csv": "csv",
    "jpeg": "image",
    "png": "image",
    "indexed_binary": "indexed",
    "mmap_indexed_binary": "indexed",
    "tar": "tar",
    "lmdb": "lmdb",
    "parquet": "parquet",
    "synthetic": "synthetic",
}
"""The module of each format."""


def choose_writer(data: DatasetSpec) -> Write:
    """The function that writes a workload's files."""
    module = importlib.import_module(f".{LAYOUTS[data.format]}", __package__)
    write: Write = module.write
    return write
