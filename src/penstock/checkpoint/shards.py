"""Reading of shards: their pieces are located, and every byte is checked against its checksum."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import numpy as np

from ..engine import PROCESS_QUEUE, ThreadPool, Turn, crc32c
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


class ShardReader(Protocol):
    """A place of shards.

    readers:    pieces to read at once, for the best rate.
    is_shared:  False for the disks of this host, whose reads wait for no turn and are only counted.
    """

    @property
    def readers(self) -> int: ...
    @property
    def is_shared(self) -> bool: ...

    def open_shard(self, path: str) -> AbstractContextManager[ShardSource]:
        """Open a shard by its path."""


def list_shard_pieces(reader: ShardReader, folder: str, shard: ShardEntry) -> tuple[Piece, ...]:
    """List the pieces of a shard; FormatError if it is not the shard that the index names."""
    path = f"{folder}/{shard.file}"
    pieces, actual = read_manifest(reader, path)
    if actual.bytes != shard.bytes:
        raise build_damage_error(path, f"it has {actual.bytes:,} bytes, but had {shard.bytes:,}")
    if actual.crc32c != shard.crc32c:
        raise build_damage_error(path, "its manifest is not the one that the index names")
    return pieces


def read_manifest(reader: ShardReader, path: str) -> tuple[tuple[Piece, ...], ShardEntry]:
    """Read the manifest of a shard: its pieces, and the entry by which an index would name it."""
    name = os.path.basename(path)
    with reader.open_shard(path) as source:
        size = source.bytes
        begin, length = locate_manifest(
            _read(source, TRAILER_BYTES, max(0, size - TRAILER_BYTES)), size, path
        )
        manifest = _read(source, length, begin)
    return decode_pieces(manifest, name, begin, path), ShardEntry(name, size, crc32c(manifest))


def read_pieces(
    reader: ShardReader,
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
    turns = _Turns(reader.is_shared)
    with ThreadPool(reader.readers) as threads:
        tasks = [
            threads.submit(_read_piece, reader, folder, piece, target, turns) for piece in wanted
        ]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            turns.give_up()
            raise


class _Turns:
    """Turns of reads among all that the process reads and writes, for several threads.

    is_shared:  False if no read has to wait.
    """

    def __init__(self, is_shared: bool) -> None:
        self._is_shared, self._is_over = is_shared, False
        self._put: list[Turn] = []

    @contextlib.contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Wait until so many bytes may be read; OSError if all was given up."""
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
        """Let no thread wait any more."""
        self._is_over = True
        for turn in list(self._put):
            turn.give_up()


def _read_piece(
    reader: ShardReader,
    folder: str,
    piece: Piece,
    target: Callable[[Piece], Memory | None],
    turns: _Turns,
) -> None:
    path = f"{folder}/{piece.file}"
    target_memory = target(piece)
    scratch = (
        np.empty(min(_READ_BYTES, piece.padded_bytes), np.uint8)
        if target_memory is None
        else target_memory
    )
    crc = 0
    with reader.open_shard(path) as source:
        for at in range(0, piece.padded_bytes, _READ_BYTES):
            size = min(_READ_BYTES, piece.padded_bytes - at)
            part = scratch[:size] if target_memory is None else target_memory[at : at + size]
            with turns.take(size):
                count = source.read(part, piece.offset + at)
            if count < size:
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


def find_whole_shards(reader: ShardReader, folder: str) -> list[ShardEntry]:
    """Find the shards in a folder of a tier that are whole: every byte is read. StorageError if one
    cannot be read."""
    entries = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".shard"):
            with contextlib.suppress(DataError):
                pieces, shard = read_manifest(reader, f"{folder}/{name}")
                read_pieces(reader, folder, pieces, lambda _: None)
                entries.append(shard)
    return entries


@contextlib.contextmanager
def translate_read_errors(path: str) -> Iterator[None]:
    """Turn errors of the system while reading into errors of penstock."""
    try:
        yield
    except FileNotFoundError:
        raise MissingError(
            f"{path} is not there: the job that writes there may have removed it; list the"
            " checkpoints that are left, and load one of them"
        ) from None
    except (MissingError, StorageError):
        raise
    except OSError as error:
        failed = StorageError(
            f"{path} cannot be read: {error.strerror or error}: check the folder and its file"
            " system"
        )
        failed.errno = error.errno
        raise failed from None
