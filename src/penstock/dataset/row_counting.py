"""Rows of an epoch, counted by a thread behind training, and kept in a file that processes share.

The file has a word for each window: its rows, and 32 bits by which it is known that they were
counted for these data, this seed, epoch and rule, and for this window. A word is written whole, so
that processes fill one file together, each from another window on, and none waits for another.
A word that is damaged, or not there, is counted again.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import threading
import weakref
from collections.abc import Iterator

import numpy as np

from .. import limits
from ..engine.threads import start_threads
from ..order.keys import Words, hash_words
from ..order.packed_order import PackedOrder
from ..ranks.place import Place

_prelude_bytes = 1024


RowTablePlace = tuple[str, str, str]
"""Place of the files with counted rows: a path without an end, identity and version of the data."""


class EpochRows:
    """The rows of one epoch: their order, their counts, and a thread that completes these.

    base:   order of epoch 0.
    place:  of this rank; it decides at which window its thread starts.
    table:  where counts of large data are kept, if they are.
    """

    def __init__(
        self, base: PackedOrder, epoch: int, place: Place, table: RowTablePlace | None
    ) -> None:
        self.base = base
        self.order = base.at_epoch(epoch)
        self.counts = self.order.counts
        self._task = _CountingTask(self.order, place, table)
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._task.stop.set)

    def start(self) -> None:
        """Start the thread, unless it runs or everything is counted."""
        if self._thread is None and not self.counts.complete:
            self._task.stop.clear()
            self._thread = threading.Thread(
                target=self._task.run_behind, name="penstock-rows", daemon=True
            )
            start_threads([self._thread])

    def count_all(self) -> int:
        """Count all rows, with the thread if it runs, and return their number."""
        self._task.run()
        return self.counts.sum()

    def close(self) -> None:
        """End the thread, after the window that it counts."""
        self._task.stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


class _CountingTask:
    """Counting of all windows of an epoch, by one thread or several."""

    def __init__(self, order: PackedOrder, place: Place, table: RowTablePlace | None) -> None:
        self._order, self._counts = order, order.counts
        windows = order.windows
        first = windows * place.rank // place.world_size
        self._sequence: Iterator[int] = itertools.chain(range(first, windows), range(first))
        self._file: _RowFile | None = None
        if table is not None and len(order.inner) >= limits.packing_table_documents_min:
            self._file = _RowFile(order, table)
            self._take_over()
        self.stop = threading.Event()

    def run_behind(self) -> None:
        """Count in a thread that yields to all others."""
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), limits.packing_thread_nice)
        # An error of a window is raised where that is needed: at its step, or by `run`.
        with contextlib.suppress(Exception):  # the user's functions raise what they like
            self._count(self._sequence, self.stop)

    def run(self) -> None:
        """Count until all windows are counted, also those that another thread has begun."""
        if not self._counts.complete:
            self._count(self._sequence, None)
            self._count(iter(range(self._order.windows)), None)

    def _count(self, sequence: Iterator[int], stop: threading.Event | None) -> None:
        done = 0
        for window in sequence:  # each is taken by one thread: `next` is atomic
            if stop is not None and stop.is_set():
                return
            if self._counts.is_counted(window):
                continue
            rows = self._order.count_window(window)
            self._counts.fill(window, rows)
            if self._file is not None:
                self._file.put(window, rows)
                done += 1
                if done % limits.packing_table_interval == 0:
                    self._take_over()

    def _take_over(self) -> None:
        """Take over what other processes have counted."""
        assert self._file is not None
        for window, rows in self._file.read():
            if not self._counts.is_counted(window):
                self._counts.fill(window, rows)


class _RowFile:
    """File of the rows of one epoch's windows. Where there is no place for it, it keeps nothing."""

    def __init__(self, order: PackedOrder, table: RowTablePlace) -> None:
        stem, identity, version = table
        about = {
            "rows": 1,
            "data": identity,
            "version": version,
            "order": order.algorithm,
            "seed": order.seed,
            "epoch": order.epoch,
            "rule": order.rule.name,
            "window": order.rule.window,
            "windows": order.windows,
        }
        text = json.dumps(about).encode()
        digest = hashlib.blake2b(text, digest_size=8)
        self._key = int.from_bytes(digest.digest(), "little")
        self._windows = order.windows
        self._descriptor = -1
        path = f"{stem}.{digest.hexdigest()}.rows"
        with contextlib.suppress(OSError):
            self._descriptor = _open_file(path, text.ljust(_prelude_bytes), 8 * order.windows)
            weakref.finalize(self, os.close, self._descriptor)
        folder, name = os.path.split(stem)
        with contextlib.suppress(OSError):  # an epoch has a file: remove the least recent
            entries = [one for one in os.scandir(folder) if one.name.startswith(f"{name}.")]
            tables = [one for one in entries if one.name.endswith(".rows") and one.path != path]
            tables.sort(key=lambda one: one.stat().st_mtime_ns)
            for old in tables[: -limits.packing_tables_kept]:
                os.unlink(old.path)

    def put(self, window: int, rows: int) -> None:
        """Write the rows of a window."""
        if self._descriptor < 0 or rows >= 1 << 32:
            return
        word = self._seal(np.array([window], np.uint64), np.array([rows], np.uint64))
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, word.tobytes(), _prelude_bytes + 8 * window)

    def read(self) -> list[tuple[int, int]]:
        """Return the windows that are counted, and their rows."""
        if self._descriptor < 0:
            return []
        data = b""
        with contextlib.suppress(OSError):
            data = os.pread(self._descriptor, 8 * self._windows, _prelude_bytes)
        words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64)
        rows = words & np.uint64(0xFFFFFFFF)
        windows = np.arange(len(words), dtype=np.uint64)
        whole = np.flatnonzero(self._seal(windows, rows) == words)
        return list(zip(whole.tolist(), rows[whole].tolist(), strict=True))

    def _seal(self, windows: Words, rows: Words) -> Words:
        """Return the words of windows with these rows."""
        check = hash_words(windows << np.uint64(32) | rows, self._key)
        # Never 0, which is a word that was not written.
        return (check | np.uint64(1 << 32)) & np.uint64(0xFFFFFFFF << 32) | rows


def _open_file(path: str, prelude: bytes, room: int) -> int:
    """Open the file of a table, made if it is not there or not one; OSError if that fails."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.pread(descriptor, len(prelude), 0) == prelude:
            return descriptor
        os.close(descriptor)
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        os.pwrite(descriptor, prelude, 0)
        os.posix_fallocate(descriptor, 0, len(prelude) + room)
        os.replace(temporary, path)  # of two that do so at once, one shares with nobody
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return descriptor
