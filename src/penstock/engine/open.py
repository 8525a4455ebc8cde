"""Choice of a store and an engine by place: files of this machine, or objects behind a URL.

The root of a table of files decides: a path, or a URL such as "s3://bucket/folder". If
PENSTOCK_TRACE is set, engines are recorded (`penstock.engine.recording`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..budget import Budget
from ..errors import PenstockError, UsageError
from ..extent import Files
from . import store as stores
from .native import NativeEngine
from .protocol import ReadingEngine as ReadingEngine
from .storage_queue import PROCESS_QUEUE, QueuedEngine


def is_url(place: str) -> bool:
    """True if a path or root is a URL of an object store."""
    return "://" in place


def open_store(root: str) -> stores.Store:
    """Open the store of everything below a root."""
    if is_url(root):
        from .object_store import ObjectStore  # its library is optional

        return ObjectStore(root)
    return stores.Posix(root)


def open_engine(files: Files, budget: Budget, mean_bytes: float) -> ReadingEngine:
    """Open an engine that reads these files, at its turn while a rate bounds the process."""
    engine = _create_engine(files, budget, mean_bytes)
    asked = os.environ.get("PENSTOCK_TRACE")
    if asked:
        from .recording import RecordedEngine  # only recorded jobs need it

        engine = RecordedEngine(engine, files, asked)
    return QueuedEngine(engine, len(files), budget)


def _create_engine(files: Files, budget: Budget, mean_bytes: float) -> ReadingEngine:
    if files.mirrors:
        from .mirrored import MirroredEngine, divide_budget  # most data has no mirrors

        places = (replace(files, mirrors=()), *files.mirrors)
        place_budget = divide_budget(budget, len(places))
        holders = np.stack([place.size >= 0 for place in places], axis=1)
        return MirroredEngine(
            [_create_engine(place, place_budget, mean_bytes) for place in places], holders
        )
    if is_url(files.root):
        from .remote import RemoteEngine

        return RemoteEngine(files, budget=budget)
    return NativeEngine(
        files, budget=budget, mean_bytes=mean_bytes, tallies=PROCESS_QUEUE.read_tallies
    )


def add_mirrors(files: Files, roots: Sequence[str]) -> Files:
    """Return the table with mirrors: files of the same names and sizes below other roots.

    UsageError if a root holds none of them.
    """
    mirrors = []
    for root in roots:
        now, errors = open_store(root).probe(replace(files, root=root, mirrors=()))
        is_there = (errors == 0) & (now.size == files.size)
        if not is_there.any():
            raise UsageError(
                f"mirrors: {root} has none of the {len(files):,} files below {files.root}, such as"
                f" {files.name(0) if len(files) else ''!r} of {files.size[:1].sum():,} bytes: give"
                " the folder that holds copies of them, under the same names"
            )
        size = np.where(is_there, now.size, -1)
        mirrors.append(replace(files, root=now.root, size=size, mtime_ns=now.mtime_ns))
    return replace(files, mirrors=tuple(mirrors))


def read_extent(files: Files, file: int, offset: int, length: int, where: str) -> bytes:
    """Read the bytes of one extent; ChangedError unless the file is as it was indexed."""
    try:
        return _read_extent(files, file, offset, length, where)
    except PenstockError:
        for mirror in files.mirrors:
            if mirror.size[file] >= 0:
                with contextlib.suppress(PenstockError):
                    return _read_extent(mirror, file, offset, length, where)
        raise


def _read_extent(files: Files, file: int, offset: int, length: int, where: str) -> bytes:
    if is_url(files.root):
        from . import object_store

        return object_store.read_sample(files, file, offset, length, where)
    return stores.read_sample(files, file, offset, length, where)
