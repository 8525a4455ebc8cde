"""Staging: data is copied to a nearer place before the first step, which is timed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from penstock.engine import ThreadPool
from penstock.errors import StorageError

_THREADS = 16

Paths = Mapping[str, Sequence[str]]


@contextmanager
def room(place: str, name: str, first: bool) -> Iterator[str]:
    """Make a folder of this name below `place`, and remove it afterwards.

    first:  True on the one rank that makes and removes the folder that several share.
    """
    folder = os.path.join(place, name)
    if not first:
        yield folder
        return
    try:
        os.makedirs(folder)
    except OSError as error:
        raise StorageError(f"no folder can be made in {place}: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_files(
    paths: Paths, folder: str, first: bool
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Copy the files of each part into the folder, if `first`; return their paths and folders
    there, by part. StorageError if there is no room, or a file cannot be copied."""
    copies, folders = {}, {}
    for part, sources in paths.items():
        root = os.path.commonpath([os.path.dirname(path) for path in sources])
        folders[part] = os.path.join(folder, part)
        targets = [os.path.join(folders[part], os.path.relpath(source, root)) for source in sources]
        copies[part] = targets
        if first:
            _copy_all(sources, targets)
    return copies, folders


def _copy_all(sources: Sequence[str], targets: Sequence[str]) -> None:
    pairs = [
        (source + more, target + more)
        for source, target in zip(sources, targets, strict=True)
        for more in ("", ".off.idx", ".sz.idx")
        if not more or os.path.exists(source + more)
    ]
    total = sum(os.stat(source).st_size for source, _ in pairs)
    for place in {os.path.dirname(target) for target in targets}:
        os.makedirs(place, exist_ok=True)
    free = shutil.disk_usage(os.path.dirname(targets[0])).free
    if total > free:
        raise StorageError(
            f"{os.path.dirname(targets[0])}: {total:,} bytes are to be staged and {free:,} are "
            "free: make room, or stage elsewhere"
        )
    with ThreadPool(_THREADS) as threads:
        for _ in threads.map(_copy, *zip(*pairs, strict=True)):
            pass


def _copy(source: str, target: str) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise StorageError(f"staging {source} to {target}: {error.strerror or error}") from None
