"""Reading of shards: their pieces are located, and every byte is checked against its checksum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import numpy as np

from ..engine import ThreadPool, crc32c
from .array_leaves import Memory
from .flushing import ShardSource
from .manifest import (
    TRAILER_BYTES,
    Piece,
    ShardEntry,
    build_damage_error,
    decode_pieces,
    locate_manifest,
    pad_length,
)
from .repository import Repository

_READ_BYTES = 4 << 20
"""Bytes that are read and summed at a time, while the processor's caches hold them."""


def list_shard_pieces(repository: Repository, folder: str, shard: ShardEntry) -> tuple[Piece, ...]:
    """List the pieces of a shard; FormatError if it is not the shard that the index names."""
    path = f"{folder}/{shard.file}"
    pieces, actual = read_manifest(repository, path)
    if actual.bytes != shard.bytes:
        raise build_damage_error(path, f"it has {actual.bytes:,} bytes, but had {shard.bytes:,}")
    if actual.crc32c != shard.crc32c:
        raise build_damage_error(path, "its manifest is not the one that the index names")
    return pieces


def read_manifest(repository: Repository, path: str) -> tuple[tuple[Piece, ...], ShardEntry]:
    """Read the manifest of a shard: its pieces, and the entry by which an index would name it."""
    name = os.path.basename(path)
    with repository.open_shard(path) as source:
        size = source.bytes
        begin, length = locate_manifest(
            _read(source, TRAILER_BYTES, max(0, size - TRAILER_BYTES)), size, path
        )
        manifest = _read(source, length, begin)
    return decode_pieces(manifest, name, begin, path), ShardEntry(name, size, crc32c(manifest))


def read_pieces(
    repository: Repository,
    folder: str,
    wanted: Iterable[Piece],
    target: Callable[[Piece], Memory | None],
) -> None:
    """Read the bytes of pieces, several at a time, and compare them with their checksums.

    target:  returns where the bytes of a piece go: `piece.padded_bytes` of them, the last of them
             zeros; None if they are only to be checked.

    FormatError names the file and the piece that is damaged; StorageError the file that cannot be
    read.
    """
    with ThreadPool(repository.readers) as threads:
        tasks = [threads.submit(_read_piece, repository, folder, piece, target) for piece in wanted]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _read_piece(
    repository: Repository, folder: str, piece: Piece, target: Callable[[Piece], Memory | None]
) -> None:
    path = f"{folder}/{piece.file}"
    target_memory = target(piece)
    scratch = (
        np.empty(min(_READ_BYTES, piece.padded_bytes), np.uint8)
        if target_memory is None
        else target_memory
    )
    crc = 0
    with repository.open_shard(path) as source:
        for at in range(0, piece.padded_bytes, _READ_BYTES):
            size = min(_READ_BYTES, piece.padded_bytes - at)
            part = scratch[:size] if target_memory is None else target_memory[at : at + size]
            if source.read(part, piece.offset + at) < size:
                raise build_damage_error(path, f"it ends inside piece {piece.name!r}")
            crc = crc32c(part.data, crc)
    if crc != piece.crc32c:
        raise build_damage_error(
            path,
            f"piece {piece.name!r} at {piece.offset:,}, {piece.length:,} bytes, does not match its"
            " checksum",
        )


def _read(source: ShardSource, size: int, at: int) -> bytes:
    """Read bytes of a shard, or fewer at its end."""
    data = np.empty(size, np.uint8)
    return data[: source.read(data, at)].tobytes()


def allocate_block(size: int) -> Memory:
    """Allocate memory for a block of this size, and for the zeros that are read with it."""
    return np.empty(pad_length(size), np.uint8)
