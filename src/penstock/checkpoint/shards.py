"""Shards read again: their pieces found, and nothing believed without its checksum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..engine import crc32c
from .array_leaves import Memory
from .flushing import ShardSource
from .manifest import TRAILER_BYTES, Piece, Shard, damaged, manifest_place, padded, pieces_of
from .repository import Repository

_READ_BYTES = 4 << 20
"""Read and summed at a time, while the processor's caches hold it."""


def pieces(home: Repository, folder: str, shard: Shard) -> tuple[Piece, ...]:
    """The pieces of a shard; FormatError where it is not what the index says."""
    path = f"{folder}/{shard.file}"
    found, there = examined(home, path)
    if there.bytes != shard.bytes:
        raise damaged(path, f"it has {there.bytes:,} bytes, and had {shard.bytes:,}")
    if there.crc32c != shard.crc32c:
        raise damaged(path, "its manifest is not the one that the index names")
    return found


def examined(home: Repository, path: str) -> tuple[tuple[Piece, ...], Shard]:
    """What a shard says of itself: its pieces, and how an index would name it."""
    name = os.path.basename(path)
    with home.opened(path) as source:
        size = source.bytes
        begin, length = manifest_place(
            _read(source, TRAILER_BYTES, max(0, size - TRAILER_BYTES)), size, path
        )
        manifest = _read(source, length, begin)
    return pieces_of(manifest, name, begin, path), Shard(name, size, crc32c(manifest))


def read(
    home: Repository, folder: str, wanted: Iterable[Piece], target: Callable[[Piece], Memory | None]
) -> None:
    """Read pieces, several at a time.

    target:  where the bytes of a piece go: `piece.padded` of them, the last of them zeros; None
             where they are only to be checked.

    FormatError names the file and the piece that is damaged, StorageError what cannot be read.
    """
    with ThreadPoolExecutor(home.readers) as threads:
        tasks = [threads.submit(_read_piece, home, folder, piece, target) for piece in wanted]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _read_piece(
    home: Repository, folder: str, piece: Piece, target: Callable[[Piece], Memory | None]
) -> None:
    path = f"{folder}/{piece.file}"
    into = target(piece)
    scratch = np.empty(min(_READ_BYTES, piece.padded), np.uint8) if into is None else into
    crc = 0
    with home.opened(path) as source:
        for at in range(0, piece.padded, _READ_BYTES):
            size = min(_READ_BYTES, piece.padded - at)
            part = scratch[:size] if into is None else into[at : at + size]
            if source.read(part, piece.offset + at) < size:
                raise damaged(path, f"it ends in piece {piece.name!r}")
            crc = crc32c(part.data, crc)
    if crc != piece.crc32c:
        raise damaged(
            path,
            f"piece {piece.name!r} at {piece.offset:,}, {piece.length:,} bytes, does not have its"
            " checksum",
        )


def _read(source: ShardSource, size: int, at: int) -> bytes:
    """Bytes of a shard, or fewer at its end."""
    found = np.empty(size, np.uint8)
    return found[: source.read(found, at)].tobytes()


def block_memory(size: int) -> Memory:
    """Memory for a block of so many bytes, and the zeros that are read with it."""
    return np.empty(padded(size), np.uint8)
