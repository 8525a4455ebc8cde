"""Compressed files unpacked once, into a folder of this user's.

The folder is named by the names, sizes and times of the files (objects: etags), so that changed
files are unpacked anew. A file appears in it whole or not at all. Processes that unpack the same
files take turns, by a lock that ends with its process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from ...engine import AtomicFile, Progress, Store, StoreFile, storage_errors
from ...errors import LimitError
from ...own_files import check_own_folder, open_own
from ..codecs import lines as codec
from ..codecs import load_zstandard
from . import jsonl_frames, shards
from .location import Location

_STEP_BYTES = 4096
"""Bytes unpacked at a time: a thousand blocks of Zstandard at most, 128 MiB."""
_COPY_BYTES = 1 << 20
_WINDOW_BYTES_MAX = 1 << 27
"""Largest window of Zstandard: that of `zstd --ultra --long=27`, which it reads by default."""
_ENDINGS = (".gz", ".bgz", ".bgzf", ".zst", ".zstd")


def unpack_files(
    store: Store,
    place: Location,
    folder: str,
    bytes_max: int | None = None,
    extensions: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Unpack the files of a place below the folder, unless they are there; the paths to open.

    bytes_max:  of all that lies in the folder; by default half of what is free there, and what it
                has already.
    """
    files, _ = shards.list_files(store, place, progress, extensions)
    state = hashlib.blake2b(os.fsencode(store.root), digest_size=12)
    for column in (files.names, files.ends, files.size, files.mtime_ns):
        state.update(column.tobytes())
    target = os.path.join(folder, state.hexdigest())
    given = [files.name(number).lstrip("/") for number in range(len(files))]
    names = [_strip(shards.check_below("unpack=: ", name)) for name in given]
    shards.check_named_once(store, names)
    with storage_errors(target, "open the data again"):
        os.makedirs(target, mode=0o700, exist_ok=True)
        for own in (folder, target):
            check_own_folder(own)
        lock = open_own(f"{target}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        absent = [not os.path.exists(os.path.join(target, name)) for name in names]
        if any(absent):
            budget = _Budget(folder, bytes_max)

            def unpack(number: int, source: StoreFile) -> None:
                if absent[number]:
                    _unpack_file(source, os.path.join(target, names[number]), budget)

            store.parse(files, unpack, progress)
    finally:
        os.close(lock)
    if place.kind == "folder":
        return (target,)
    return tuple(os.path.join(target, name) for name in names)


def _strip(name: str) -> str:
    stem, ending = os.path.splitext(name)
    return stem if ending.lower() in _ENDINGS else name


class _Budget:
    """Room in a folder for what is unpacked."""

    def __init__(self, folder: str, bytes_max: int | None) -> None:
        self._folder, held = folder, _count_bytes(folder)
        free = shutil.disk_usage(folder).free
        self._room = (free // 2 if bytes_max is None else bytes_max - held, bytes_max, held)
        self.left = self._room[0]

    def take(self, size: int, source: StoreFile) -> None:
        """Take room; LimitError if there is none."""
        self.left -= size
        if self.left >= 0:
            return
        room, asked, held = self._room
        bound = "half of what is free there" if asked is None else f"unpack={asked:,}"
        raise LimitError(
            f"{source.path} does not fit into {self._folder} unpacked: it has {held:,} bytes, and "
            f"{max(room, 0):,} more are allowed ({bound}): remove what is not used there, give "
            f"a larger unpack=, another XDG_CACHE_HOME, or cut the file into small frames"
        )


def _count_bytes(folder: str) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _unpack_file(source: StoreFile, path: str, budget: _Budget) -> None:
    with storage_errors(path, "open the data again"):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    file = AtomicFile(path)
    try:
        for piece in _iterate_text(source):
            budget.take(len(piece), source)
            file.write(piece)
        file.sync()
        file.commit()
    finally:
        file.discard()


def _iterate_text(source: StoreFile) -> Iterator[bytes]:
    """Iterate over the text of a file; one that is not compressed is copied."""
    window, at = jsonl_frames.FileWindow(source), 0
    if not jsonl_frames.is_compressed(source.read(0, 4)):
        while piece := bytes(window.view(at, _COPY_BYTES)):
            yield piece
            at += len(piece)
        return
    while at < source.size:
        head = bytes(window.view(at, 8))
        if head[:4] in jsonl_frames.SKIPPABLE:
            at += 8 + int.from_bytes(head[4:], "little")
            if at > source.size:
                raise source.flaw(
                    source.size, "a skippable frame is cut: restore the file from a good copy"
                )
        elif at and not any(head):
            at += len(head)  # zeros that fill up a block
        else:
            at = yield from _unpack_stream(source, window, at)


def _unpack_stream(
    source: StoreFile, window: jsonl_frames.FileWindow, at: int
) -> Generator[bytes, None, int]:
    """Unpack a frame or member; returns where it ends."""
    stream, errors = _open_stream(source, at, bytes(window.view(at, 4)))
    start = at
    while not stream.eof:
        piece = bytes(window.view(at, _STEP_BYTES))
        if not piece:
            raise source.flaw(
                start, "what was compressed is cut: restore the file from a good copy"
            )
        at += len(piece)
        try:
            text = stream.decompress(piece)
        except errors as error:
            raise source.flaw(start, f"{error}: restore the file from a good copy") from None
        yield text
    return at - len(stream.unused_data)


def _open_stream(source: StoreFile, at: int, magic: bytes) -> tuple[Any, type[Exception]]:
    """Open a decompressor; with the class of its errors."""
    if magic.startswith(codec.GZIP):
        return zlib.decompressobj(31), zlib.error
    if magic == codec.ZSTD:
        library = load_zstandard()
        opened = library.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        return opened.decompressobj(), library.ZstdError
    raise source.flaw(
        at,
        f"{magic!r} is the start of no frame of Zstandard or gzip: restore the file from a good "
        f"copy",
    )
