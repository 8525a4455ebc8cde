"""Which store and which engine serve a place: files of this machine, or objects behind a URL.

The root of a table of files decides: a path, or a URL such as "s3://bucket/folder". Where
PENSTOCK_TRACE is set, engines are recorded (`penstock.recorded`).
"""

from __future__ import annotations

import os

from . import store as stores
from .budget import Budget
from .extent import Files
from .native import NativeEngine
from .native import Reader as Reader


def is_url(place: str) -> bool:
    """Whether a path or root is that of an object store."""
    return "://" in place


def store_at(root: str) -> stores.Store:
    """The store of everything below a root."""
    if is_url(root):
        from .objects import ObjectStore  # its library is optional

        return ObjectStore(root)
    return stores.Posix(root)


def engine_for(files: Files, budget: Budget, mean_bytes: float) -> Reader:
    """An engine that reads these files."""
    engine = _engine_for(files, budget, mean_bytes)
    asked = os.environ.get("PENSTOCK_TRACE")
    if not asked:
        return engine
    from .recorded import Recorded, trace_path  # jobs that are not recorded do without

    return Recorded(engine, files, trace_path(asked))


def _engine_for(files: Files, budget: Budget, mean_bytes: float) -> Reader:
    if is_url(files.root):
        from .object_engine import ObjectEngine

        return ObjectEngine(files, budget=budget, mean_bytes=mean_bytes)
    return NativeEngine(files, budget=budget, mean_bytes=mean_bytes)


def read_extent(files: Files, file: int, offset: int, length: int, where: str) -> bytes:
    """The bytes of one extent, or an error: ChangedError unless the file is as it was indexed."""
    if is_url(files.root):
        from . import objects

        return objects.read_sample(files, file, offset, length, where)
    return stores.read_sample(files, file, offset, length, where)
