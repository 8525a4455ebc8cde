"""The page cache: how much of some files is in it, and dropping files from it.

cachestat(2) counts pages and touches none. Without cachestat (before Linux 6.5, or forbidden)
mincore samples up to 64 places of each file. Neither reports on files that the process may read but
not write. A figure that cannot be measured is None, never a guess.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import stat
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from .. import limits
from ..errors import PenstockError
from ..extent import Extents, Files
from .read_method import measure_resident_fraction
from .store import build_storage_error, map_in_threads

Paths = Files | Sequence[str]

_page_bytes = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)
_cachestat = 451  # the same number on every architecture that has io_uring
_folio_bytes = 2 << 20  # pages are kept, and dropped, together up to this size
_open_at_once = 64
_synced_pages_max = (256 << 20) // _page_bytes  # where time matters, more is not waited for


class Residency(NamedTuple):
    """Part of some files that is in the page cache.

    cached_bytes, total_bytes: of the files that were examined.
    files, of_files:           how many were examined, and from how many they were drawn.
    how:                       "cachestat" (exact), or "mincore" (a lower bound, from some places).
    """

    cached_bytes: int
    total_bytes: int
    files: int
    of_files: int
    how: Literal["cachestat", "mincore"]

    @property
    def fraction(self) -> float:
        """Cached part of the examined bytes; 1 if there are none."""
        return self.cached_bytes / self.total_bytes if self.total_bytes else 1.0


class _Pages(NamedTuple):
    """Pages of a range of a file. unsettled: dirty pages and pages being written."""

    cached: int
    unsettled: int


def measure_residency(
    paths: Paths,
    *,
    files_max: int = limits.residency_files_max,
    seconds: float = limits.residency_s,
) -> Residency | None:
    """Measure how much of these files is cached now; None if the kernel reports on none of them.

    Of more files, `files_max` are drawn, the same each time, and fewer if the time runs out.
    Missing files and files that are not regular are left out. Memory file systems (tmpfs) count as
    cached completely.
    """
    cached_bytes = total_bytes = files = 0
    exact = True
    until = time.monotonic() + seconds
    for path in _draw_paths(paths, files_max):
        counts = _measure_cached_bytes(path)
        if counts is not None:
            cached_bytes, total_bytes = cached_bytes + counts[0], total_bytes + counts[1]
            exact = exact and counts[2]
            files += 1
        if time.monotonic() > until:
            break
    if files == 0:
        return None
    how: Literal["cachestat", "mincore"] = "cachestat" if exact else "mincore"
    return Residency(cached_bytes, total_bytes, files, len(paths), how)


def evict(paths: Paths) -> Residency | None:
    """Drop all of these files from the page cache; return their residency afterwards, if it can be
    measured.

    Dirty pages are written first. Pages that some process has mapped, and memory file systems,
    stay: the result shows it. MissingError or StorageError for a file that cannot be opened.
    """
    path_of = _get_path_reader(paths)

    def drop(number: int) -> None:
        path = path_of(number)
        file = _open_path(path)
        try:
            if not _drop(file, 0, 0):
                # Syncing clean files costs a flush of the disk each: only those that need it.
                _sync(file)
                _drop(file, 0, 0)
        except OSError as error:
            raise build_storage_error(error.errno or errno.EIO, path) from None
        finally:
            os.close(file)

    map_in_threads(drop, len(paths))
    return measure_residency(paths)


def drop_extents(files: Files, extents: Extents, seconds: float) -> Extents:
    """Drop extents from the page cache, in order, while there is time; return the dropped ones.

    Only the pages they touch are dropped, so that other processes lose little. No extent is
    returned twice, or shares a page with an earlier one. The first extent that is known to stay in
    the cache ends the list.
    """
    until = time.monotonic() + seconds
    taken: set[tuple[int, int]] = set()
    kept: list[int] = []
    opened: dict[int, int] = {}
    rows = zip(*(column.tolist() for column in extents), strict=True)
    try:
        for row, (file, offset, length) in enumerate(rows):
            if time.monotonic() > until:
                break
            first, last = offset // _page_bytes, -(-(offset + length) // _page_bytes)
            touched = {(file, page) for page in range(first, last)}
            if touched & taken:
                continue
            if file not in opened:
                if len(opened) == _open_at_once:
                    os.close(opened.pop(next(iter(opened))))
                opened[file] = _open_path(files.path(file))
                pages = _count_pages(opened[file], 0, 0)
                if pages is not None and 0 < pages.unsettled <= _synced_pages_max:
                    _sync(opened[file])
            if _drop_around(opened[file], first * _page_bytes, last * _page_bytes) is False:
                break
            taken |= touched
            kept.append(row)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
    chosen = np.array(kept, np.int64)
    return Extents(extents.file[chosen], extents.offset[chosen], extents.length[chosen])


def _get_path_reader(paths: Paths) -> Callable[[int], str]:
    return paths.path if isinstance(paths, Files) else paths.__getitem__


def _draw_paths(paths: Paths, most: int) -> list[str]:
    """Draw files from everywhere, in random order, so that stopping early still covers
    everywhere."""
    count = len(paths)
    numbers = random.Random(count).sample(range(count), min(count, most))
    path_of = _get_path_reader(paths)
    return [path_of(number) for number in numbers]


def _open_path(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise build_storage_error(error.errno or errno.EIO, path) from None


def _measure_cached_bytes(path: str) -> tuple[int, int, bool] | None:
    """Return the cached bytes, all bytes, and whether the count is exact; None if unknown."""
    try:
        file = _open_path(path)
    except PenstockError:
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return None
        pages = _count_pages(file, 0, 0)
        if pages is not None:  # the last page may be of the file in part
            return min(status.st_size, pages.cached * _page_bytes), status.st_size, True
        fraction = measure_resident_fraction(path)
        return None if fraction is None else (int(fraction * status.st_size), status.st_size, False)
    finally:
        os.close(file)


def _drop(file: int, start: int, end: int) -> bool | None:
    """Drop a range of pages; return whether it left the page cache, None if that is unknown. An
    `end` of 0 is the end of the file."""
    os.posix_fadvise(file, start, max(0, end - start), os.POSIX_FADV_DONTNEED)
    pages = _count_pages(file, start, max(0, end - start))
    return None if pages is None else pages.cached == 0


def _drop_around(file: int, start: int, end: int) -> bool | None:
    """Drop a range; the kernel may do it only together with the folios at its ends."""
    done = _drop(file, start, end)
    if done is False:
        _drop(file, start // _folio_bytes * _folio_bytes, -(-end // _folio_bytes) * _folio_bytes)
        done = _drop(file, start, end)
    return done


def _sync(file: int) -> None:
    with contextlib.suppress(OSError):  # then pages stay, and are counted
        os.fdatasync(file)


def _count_pages(file: int, offset: int, length: int) -> _Pages | None:
    """Count pages by cachestat(2); None if the kernel has no such call, or refuses it for this
    file."""
    span = (ctypes.c_uint64 * 2)(offset, length)
    counts = (ctypes.c_uint64 * 5)()  # cached, dirty, being written, evicted, evicted lately
    if _libc.syscall(_cachestat, file, span, counts, 0) != 0:
        return None
    return _Pages(counts[0], counts[1] + counts[2])
