"""Freshness: a saved index is used if its data is as it was indexed, and else made and saved again.

An index fits a request if it is of the same place, format and options. It is fresh if size and time
of each source are as they were (`find_staleness`), and what the format reads from the files
(`Index.stamp`). A racy index is never fresh.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .. import limits
from ..engine.open import is_url
from ..engine.store import Progress, Store, build_storage_error
from ..errors import FormatError, PenstockError, SidecarError
from .formats.detection import choose_format
from .formats.registry import FORMATS
from .formats.shards import Location
from .sidecar import is_own, list_saved_paths
from .table import Index, find_outside

_SOURCES_OF_A_FILE = 4
"""Most files that one named file may mean: data and the format's own index."""


def list_index_paths(place: Location) -> list[str]:
    """List the paths at which the index of a place is looked for and saved."""
    if place.splits is not None:
        return list_saved_paths(f"{place.path}?split={','.join(place.splits)}", beside=False)
    return list_saved_paths(place.path, beside=place.kind != "pattern" and not is_url(place.path))


def load_index(path: str, root: str) -> Index:
    """Load a saved index of the data below `root`; as `Index.load`."""
    return Index.load(path, root, outside=is_own(path))


def find_staleness(index: Index, store: Store) -> str | None:
    """Compare the sources with the store: the reason why the index is stale, or None.

    It asks for the time and size of each source, and reads no data.
    """
    was = index.sources
    now, errors = store.probe(was)
    folder = was.size < 0
    wrong = errors != np.where(folder, errno.EISDIR, 0)
    wrong |= now.mtime_ns != was.mtime_ns
    wrong |= (now.size != was.size) & ~folder
    for row in np.flatnonzero(wrong)[:1].tolist():
        path, error = now.path(row).rstrip("/"), int(errors[row])
        if error not in (0, errno.EISDIR):
            return f"{path}: {os.strerror(error)}"
        if not folder[row] and now.size[row] != was.size[row]:
            sizes = f"{now.size[row]:,} bytes, but had {was.size[row]:,}"
            return f"{path} has {sizes} when it was indexed"
        return f"{path} was written to after it was indexed"
    return None


def flag_if_racy(index: Index, scanned_ns: int) -> Index:
    """Return the same index, racy if a source changed close to the scan at `scanned_ns`."""
    times = index.sources.mtime_ns
    coarse = bool(len(times)) and not (times % 1_000_000_000).any()  # whole seconds, or two
    margin_ns = 2_000_000_000 if coarse else 50_000_000
    return replace(index, racy=bool((np.abs(times - scanned_ns) <= margin_ns).any()))


class IndexRequest:
    """Place, format and options that an index is wanted for."""

    def __init__(
        self,
        place: Location,
        store: Store,
        format: str | None,
        options: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> None:
        self.place, self.store, self._progress = place, store, progress
        self._unknown: PenstockError | None = None
        self._options = dict(options)
        try:
            self._format = choose_format(store, place, format, options)
        except FormatError as error:  # a saved index may still know what the file is
            self._unknown = error
            return
        self._options = self._format.canonical(options)
        reading, passing = self._format.reading, self._format.passing
        self._making = {key: value for key, value in self._options.items() if key not in reading}
        self._saved = {key: value for key, value in self._making.items() if key not in passing}
        if place.splits is not None:
            self._saved["splits"] = [*place.splits]

    @property
    def format(self) -> str:
        """Name of the format, which is known unless making the index fails."""
        return "" if self._unknown is not None else self._format.name

    def find(self, how: str) -> tuple[Index, str | None]:
        """Load or build the index. Return it, and the path where it is saved, if it is.

        how:  see `index` of `penstock.open`.
        """
        if how == "memory":
            return self.build(), None
        if how not in ("auto", "read", "rebuild"):
            path = os.path.abspath(how)
            return self._load(path), path
        if how != "rebuild":
            for path in list_index_paths(self.place):
                saved = self._load_if_fresh(path)
                if saved is not None:
                    return saved, path
        built = self.build()
        if how == "read":
            return built, None
        saved_path = self.save(built)
        if saved_path is not None:
            with contextlib.suppress(OSError, SidecarError):  # others may replace it meanwhile
                if os.path.getsize(saved_path) > limits.sidecar_bytes_verified_max:
                    saved = load_index(saved_path, self.store.root)
                    if saved.fingerprint == built.fingerprint:
                        return saved, saved_path  # mapped, where `built` takes memory
        return built, saved_path

    def attach(self, index: Index) -> Index:
        """Return the index with the fields that are made of the bytes when they are read."""
        entry = FORMATS[index.format]
        if not entry.reading:
            return index
        options = self._options if self._unknown is None else entry.canonical(self._options)
        reading = {name: value for name, value in options.items() if name in entry.reading}
        return entry.attach(index, **reading)

    def build(self, started_ns: int | None = None) -> Index:
        """Make the index; `started_ns` is when its files were listed, by default now."""
        if self._unknown is not None:
            raise self._unknown
        started_ns = time.time_ns() if started_ns is None else started_ns
        built = self._format.build(self.store, self.place, self._progress, **self._making)
        return flag_if_racy(replace(built, options=self._saved), started_ns)

    def _load(self, path: str) -> Index:
        """Load the saved index at the path that the user names."""
        try:
            saved = load_index(path, self.store.root)
        except OSError as error:
            raise build_storage_error(error.errno or errno.EIO, path) from None
        reason = self._find_reason(saved)
        if reason is not None:
            what = f"{path} does not describe {self.place.path} as it is now: {reason}"
            raise SidecarError(f"{what}: rebuild it by `penstock index --force`")
        return saved

    def _load_if_fresh(self, path: str) -> Index | None:
        try:
            saved = load_index(path, self.store.root)
        except OSError:
            return None
        except SidecarError as error:
            warnings.warn(f"{error}; it is made again now", RuntimeWarning, stacklevel=4)
            return None
        return None if saved.racy or self._find_reason(saved) else saved

    def save(self, index: Index) -> str | None:
        """Save the index at the first path that can be written; if none can, only warn.

        An index of files outside the place (a listing may name such) is saved in the user's cache.
        """
        problem: OSError | None = None
        for path in list_index_paths(self.place):
            if not is_own(path) and find_outside(index.files) is not None:
                continue
            try:
                if is_own(path):
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                index.save(path)
                return path
            except OSError as error:
                problem = error
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    break
        what = f"{self.place.path}: the index could not be saved ({problem})"
        remedy = "make room or a writable place, or use index='memory'"
        warnings.warn(f"{what}, each open makes it: {remedy}", RuntimeWarning, stacklevel=4)
        return None

    def _find_reason(self, saved: Index) -> str | None:
        """Find the reason why the saved index is not of the request, or of the data as it is."""
        place, entry = self.place, FORMATS.get(saved.format)
        few = range(min(len(saved.sources), _SOURCES_OF_A_FILE))
        named = () if place.kind != "file" else (saved.files.name(0), *map(saved.sources.name, few))
        if named and place.name not in named:
            return f"it is of {saved.sources.name(0)}"
        if self._unknown is None and saved.format != self._format.name:
            return f"it was made as {saved.format!r}, not as {self._format.name!r}"
        if self._unknown is None and saved.options != self._saved:
            return f"it was made with {dict(saved.options)}, not with {self._saved}"
        reason = find_staleness(saved, self.store)
        if reason is not None or entry is None:
            return reason
        try:  # a change that the files' content shows, but not size or time
            now = entry.load("read_stamps")(self.store, saved.files) if entry.stamped else None
        except PenstockError as error:
            return str(error)
        return None if now == saved.stamp else f"its files say {now}, and said {saved.stamp}"
