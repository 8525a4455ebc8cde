"""Reading of shards: their pieces are located, and every byte is checked against its checksum."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from ..engine.native import crc32c
from ..engine.storage_queue import PROCESS_QUEUE, Turn
from ..engine.threads import ThreadPool
from ..errors import DataError, MissingError, StorageError
from .flushing import ShardSource
from .manifest import (
    TRAILER_BYTES,
    Memory,
    Piece,
    ShardEntry,
    build_damage_error,
    decode_pieces,
    locate_manifest,
    pad_length,
)

_READ_BYTES = 4 << 20
"""Bytes that are read and summed at a time, while the processor's caches hold them."""


class ShardStorage:
    """A place of shards.

    readers:    number of pieces to read at once, for the best rate.
    is_shared:  False for the disks of this host: their reads wait for no turn and are only counted.
    """

    readers = 4
    is_shared = True

    def open_shard(self, path: str) -> AbstractContextManager[ShardSource]:
        """Open a shard by its path: its folder and its name."""
        return open_shard_file(path)

    def check_shard(self, folder: str, shard: ShardEntry) -> Sequence[Piece]:
        """Return the pieces of a shard in a folder; FormatError or MissingError if it is not the
        shard that the entry names."""
        path = f"{folder}/{shard.file}"
        pieces, actual = self.read_manifest(path)
        if actual != shard:
            how = f"it has {actual.bytes:,} bytes, and is not the one that the index names"
            raise build_damage_error(path, how)
        return pieces

    def read_manifest(self, path: str) -> tuple[Sequence[Piece], ShardEntry]:
        """Read the manifest of a shard: its pieces, and its entry for an index."""
        name = os.path.basename(path)
        with self.open_shard(path) as source:
            size = source.bytes
            trailer = _read(source, TRAILER_BYTES, max(0, size - TRAILER_BYTES))
            start, length = locate_manifest(trailer, size, path)
            manifest = _read(source, length, start)
        return decode_pieces(manifest, name, start, path), ShardEntry(name, size, crc32c(manifest))

    def read_pieces(
        self, folder: str, pieces: Iterable[Piece], target: Callable[[Piece], Memory | None]
    ) -> None:
        """Read the bytes of pieces, several at a time, and compare them with their checksums.

        target:  returns the memory for a piece: `piece.padded_bytes`, the last of them zeros; or
                 None to check the piece only.

        FormatError names the file and the piece that is damaged; StorageError the file that cannot
        be read.
        """
        turns = _Turns(self.is_shared)
        with ThreadPool(self.readers) as threads:
            tasks = [
                threads.submit(self._read_piece, folder, piece, target(piece), turns)
                for piece in pieces
            ]
            try:
                for task in tasks:
                    task.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                turns.give_up()
                raise

    def _read_piece(self, folder: str, piece: Piece, target: Memory | None, turns: _Turns) -> None:
        path = f"{folder}/{piece.file}"
        size = piece.padded_bytes
        scratch = np.empty(min(_READ_BYTES, size), np.uint8) if target is None else target
        crc = 0
        with self.open_shard(path) as source:
            for at in range(0, size, _READ_BYTES):
                length = min(_READ_BYTES, size - at)
                start = 0 if target is None else at
                memory = scratch[start : start + length]
                with turns.take(length):
                    count = source.read(memory, piece.offset + at)
                if count < length:
                    raise build_damage_error(path, f"it ends inside piece {piece.name!r}")
                crc = crc32c(memory.data, crc)
        if crc != piece.crc32c:
            raise build_damage_error(
                path,
                f"piece {piece.name!r} at {piece.offset:,}, {piece.length:,} bytes, does not match"
                " its checksum",
            )

    def find_whole_shards(self, folder: str) -> list[ShardEntry]:
        """Return the shards in a folder that are whole: every byte is read. StorageError if one
        cannot be read."""
        entries = []
        for name in sorted(os.listdir(folder)):
            if name.endswith(".shard"):
                with contextlib.suppress(DataError):
                    pieces, shard = self.read_manifest(f"{folder}/{name}")
                    self.read_pieces(folder, pieces, lambda _: None)
                    entries.append(shard)
        return entries


class _Turns:
    """Turns of reads among all that the process reads and writes, for several threads.

    is_shared:  False if no read has to wait.
    """

    def __init__(self, is_shared: bool) -> None:
        self._is_shared, self._is_over = is_shared, False
        self._put: list[Turn] = []

    @contextlib.contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Wait until `size` bytes may be read; OSError after `give_up`."""
        if not (self._is_shared and PROCESS_QUEUE.is_bounded):
            yield
            PROCESS_QUEUE.count("read", "checkpoint", size)
            return
        turn = PROCESS_QUEUE.put("read", "checkpoint", size)
        self._put.append(turn)
        if self._is_over:
            turn.give_up()
        with turn:
            yield
        self._put.remove(turn)

    def give_up(self) -> None:
        """End all waits."""
        self._is_over = True
        for turn in list(self._put):
            turn.give_up()


def _read(source: ShardSource, size: int, at: int) -> bytes:
    """Read bytes of a shard, or fewer at its end."""
    data = np.empty(size, np.uint8)
    return data[: source.read(data, at)].tobytes()


def allocate_block(size: int) -> Memory:
    """Allocate memory for a block of this size, and for the zeros that are read with it."""
    return np.empty(pad_length(size), np.uint8)


# -- shards in files -------------------------------------------------------------------------------


class _File(NamedTuple):
    """A shard in a file, open to be read."""

    file: int

    @property
    def bytes(self) -> int:
        return os.fstat(self.file).st_size

    def read(self, into: Memory, at: int) -> int:
        filled = 0
        while filled < len(into) and (
            count := os.preadv(self.file, [into[filled:].data], at + filled)
        ):
            filled += count
        return filled


@contextlib.contextmanager
def open_shard_file(path: str) -> Iterator[ShardSource]:
    """Open a shard in a file. MissingError if there is none."""
    with translate_read_errors(path):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield _File(file)
        finally:
            os.close(file)


@contextlib.contextmanager
def translate_read_errors(path: str) -> Iterator[None]:
    """Turn errors of the system while reading into errors of penstock."""
    try:
        yield
    except FileNotFoundError:
        raise MissingError(
            f"{path} is not there: its job may have removed it; list the checkpoints again"
        ) from None
    except (MissingError, StorageError):
        raise
    except OSError as error:
        failed = StorageError(
            f"{path} cannot be read: {error.strerror or error}: check the file system"
        )
        failed.errno = error.errno
        raise failed from None
