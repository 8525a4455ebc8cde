"""Shards read again: their pieces found, and nothing believed without its checksum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from ..native import crc32c
from .folder import reading
from .leaves import Memory
from .manifest import TRAILER_BYTES, Piece, Shard, damaged, manifest_place, padded, pieces_of

_READ_BYTES = 4 << 20
"""Read and summed at a time, while the processor's caches hold it."""
_THREADS = 4


def pieces(folder: str, shard: Shard) -> tuple[Piece, ...]:
    """The pieces of a shard; FormatError where it is not what the index says."""
    path = os.path.join(folder, shard.file)
    found, there = examined(path)
    if there.bytes != shard.bytes:
        raise damaged(path, f"it has {there.bytes:,} bytes, and had {shard.bytes:,}")
    if there.crc32c != shard.crc32c:
        raise damaged(path, "its manifest is not the one that the index names")
    return found


def examined(path: str) -> tuple[tuple[Piece, ...], Shard]:
    """What a shard says of itself: its pieces, and how an index would name it."""
    name = os.path.basename(path)
    with _opened(path) as file:
        size = os.fstat(file).st_size
        begin, length = manifest_place(_read(file, TRAILER_BYTES, size - TRAILER_BYTES), size, path)
        manifest = _read(file, length, begin)
    return pieces_of(manifest, name, begin, path), Shard(name, size, crc32c(manifest))


def read(folder: str, wanted: Iterable[Piece], target: Callable[[Piece], Memory | None]) -> None:
    """Read pieces, several at a time.

    target:  where the bytes of a piece go: `piece.padded` of them, the last of them zeros; None
             where they are only to be checked.

    FormatError names the file and the piece that is damaged, StorageError what cannot be read.
    """
    with ThreadPoolExecutor(_THREADS) as threads:
        tasks = [threads.submit(_read_piece, folder, piece, target) for piece in wanted]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _read_piece(folder: str, piece: Piece, target: Callable[[Piece], Memory | None]) -> None:
    path = os.path.join(folder, piece.file)
    into = target(piece)
    scratch = np.empty(min(_READ_BYTES, piece.padded), np.uint8) if into is None else into
    crc = 0
    with _opened(path) as file:
        for at in range(0, piece.padded, _READ_BYTES):
            size = min(_READ_BYTES, piece.padded - at)
            part = scratch[:size] if into is None else into[at : at + size]
            got = 0
            while got < size:
                more = os.preadv(file, [part[got:].data], piece.offset + at + got)
                if more == 0:
                    raise damaged(path, f"it ends in piece {piece.name!r}")
                got += more
            crc = crc32c(part.data, crc)
    if crc != piece.crc32c:
        raise damaged(
            path,
            f"piece {piece.name!r} at {piece.offset:,}, {piece.length:,} bytes, does not have its"
            " checksum",
        )


@contextmanager
def _opened(path: str) -> Iterator[int]:
    with reading(path):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield file
        finally:
            os.close(file)


def _read(file: int, size: int, at: int) -> bytes:
    """Bytes of a file, or fewer at its end."""
    found = b""
    while len(found) < size and (
        more := os.pread(file, size - len(found), max(at, 0) + len(found))
    ):
        found += more
    return found


def block_memory(size: int) -> Memory:
    """Memory for a block of so many bytes, and the zeros that are read with it."""
    return np.empty(padded(size), np.uint8)
