"""Shards: writing them in turns behind training, and reading them, with every byte checked against
its checksum.

The budget sets the rate of a write, and so does the broker if there is one: checkpoints of the jobs
that share storage take turns there, see `TransferPermit`. Both may change during a write. If the
process's queue has a bound, each turn is a request there, behind reads that a rank waits for.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

import numpy as np

from ..budget import Budget
from ..engine.native import crc32c
from ..engine.request_queue import RateAccount
from ..engine.storage_queue import PROCESS_QUEUE, Turn, number_file
from ..engine.threads import ThreadPool, WakeUp
from ..errors import DataError, MissingError, StorageError
from ..sharing.client import find_socket
from ..sharing.transfer_permit import TransferPermit
from .background import mark
from .manifest import (
    TRAILER_BYTES,
    Memory,
    Piece,
    ShardEntry,
    build_damage_error,
    decode_pieces,
    encode_manifest,
    locate_manifest,
    pad_length,
)

_TURN_BYTES_MAX = 32 << 20
"""Bytes of a write, at most: the kernel cuts it into requests that the device takes, all under way
at once."""
_TURN_BYTES_MIN = 1 << 20
_TURN_S = 0.1
"""Time of the rate that one write uses."""
_READ_BYTES = 4 << 20
"""Bytes that are read and summed at a time, while the processor's caches hold them."""


# -- writing in turns ------------------------------------------------------------------------------


@dataclass(eq=False)
class Flush:
    """The turns of writing one shard, once. `adopt` and `stop` may be called by another thread
    during the write. The code that makes a flush closes it.

    shared:   True if others use the storage, so that the broker is asked, if there is one.
    stopped:  True once `stop` was called.
    """

    budget: Budget
    shared: bool = field(default=True, kw_only=True)
    stopped: bool = field(default=False, init=False)
    _account: RateAccount = field(default_factory=RateAccount, init=False)
    _permit: TransferPermit | None = field(default=None, init=False)
    _turns: list[Turn] = field(default_factory=list, init=False)
    """The turn that is written or waited for, and the one after it."""
    _is_writing: bool = field(default=False, init=False)
    """True from the first turn to the last."""
    _process_rate: float | None = field(default=None, init=False)
    """The rate of all reads and writes of this process, as the queue was told."""
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _news: WakeUp = field(default_factory=WakeUp, init=False)
    """Wakes the thread that writes."""

    def adopt(self, budget: Budget) -> None:
        """Change the rate, from the next turn on."""
        with self._lock:
            self.budget = budget
            self._bound_process()
        self._news.send()

    def stop(self) -> None:
        """End the writes soon, with ECANCELED; a system call that hangs is not interrupted."""
        with self._lock:
            self.stopped = True
            turns = list(self._turns)
        self._news.send()
        for turn in turns:
            turn.give_up()
        self.close()

    def check(self) -> None:
        """Raise StorageError, ECANCELED, if `stop` was called."""
        if self.stopped:
            failed = StorageError("the save was abandoned: nothing was committed")
            failed.errno = errno.ECANCELED
            raise failed

    def close(self) -> None:
        """Tell the broker that the writes are over. May be called again."""
        if self._permit is not None:
            self._permit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take_turns(
        self, size: int, file: int | None = None
    ) -> Generator[tuple[int, int], None, None]:
        """Divide the bytes of a write into turns [start, stop): whole MiB, or the rest. Waits until
        a turn may be written; a turn ends when the next one is wanted. In the process's queue the
        next one waits already while a turn is written. Raises as `check` does.

        file:  descriptor of the file that is written, if it is one.
        """
        start, next_length, turns = 0, 0, self._turns
        try:
            self._is_writing = True
            if self.budget.process_bytes_per_s is not None:
                self._bound_process()
            while start < size:
                mark("wait for a turn to write")
                length = next_length if turns else self._wait_for_rate(size - start)
                if self.shared and not turns:
                    broker = find_socket(os.environ)
                    if self._permit is not None or (broker is not None and broker.exists()):
                        self._wait_for_broker(length, size - start)
                    if PROCESS_QUEUE.is_bounded:
                        self._put_turn(length, file, start)
                if turns:
                    turns[0].wait()
                    self.check()
                    stop = start + length
                    if stop < size and self.budget.bytes_per_s is None and self._permit is None:
                        next_length = self._wait_for_rate(size - stop)
                        self._put_turn(next_length, file, stop)
                written_bytes = 0
                try:
                    yield start, start + length
                    written_bytes = length
                finally:
                    if turns:
                        turns.pop(0).end(written_bytes)
                    else:
                        PROCESS_QUEUE.count("write", "checkpoint", written_bytes)
                start += length
        finally:
            while turns:
                turns.pop().end(0)
            with self._lock:
                self._is_writing = False
                if self._process_rate is not None:
                    self._bound_process()

    def _bound_process(self) -> None:
        """Bound what the process draws from storage by the budget, while bytes are written."""
        with self._lock:
            is_bound = self._is_writing and self.shared
            self._process_rate = self.budget.process_bytes_per_s if is_bound else None
            PROCESS_QUEUE.limit(self, self._process_rate)

    def _wait_for_rate(self, left_bytes: int) -> int:
        """Wait until the budget's rate allows another turn, and return its bytes."""
        while True:
            with self._lock:
                self.check()
                rate, now_ns = self.budget.bytes_per_s, time.monotonic_ns()
                self._account.set_rate(rate, now_ns)
                wait_ns = self._account.find_wait_ns(now_ns)
                if not wait_ns:
                    process_rate = PROCESS_QUEUE.bytes_per_s if self.shared else None
                    slowest = min(rate or math.inf, process_rate or math.inf)
                    whole = int(min(slowest * _TURN_S, _TURN_BYTES_MAX)) & -_TURN_BYTES_MIN
                    length = min(left_bytes, max(_TURN_BYTES_MIN, whole))
                    self._account.charge(length, now_ns)
                    return length
            self._news.wait(wait_ns * 1e-9)

    def _wait_for_broker(self, length: int, left_bytes: int) -> None:
        """Wait until the broker allows a turn. left_bytes: of the whole write."""
        if self._permit is None:
            with self._lock:  # `stop` closes the permit, or is found by `check`
                self.check()
                self._permit = TransferPermit(left_bytes)
        self._permit.wait(length)

    def _put_turn(self, length: int, file: int | None, offset: int) -> None:
        """Ask the process's queue for the turn of these bytes."""
        number = None if file is None else number_file(file)
        turn = PROCESS_QUEUE.put("write", "checkpoint", length, file=number, offset=offset)
        with self._lock:  # `stop` either finds the turn, or is found by `check`
            self._turns.append(turn)
        self.check()


def lay_out_pieces(pieces: Sequence[Piece], checksums: Sequence[int]) -> list[Piece]:
    """Return the pieces with their offsets in the file, one after the other, and their
    checksums."""
    placed, at = [], 0
    for piece, crc in zip(pieces, checksums, strict=True):
        placed.append(piece._replace(offset=at, crc32c=crc))
        at += piece.padded_bytes
    return placed


# -- reading ---------------------------------------------------------------------------------------


class ShardSource(Protocol):
    """A shard that is open to be read, by one thread."""

    @property
    def bytes(self) -> int:
        """Bytes of the shard."""

    def read(self, into: Memory, at: int) -> int:
        """Fill memory with the bytes from `at` on. Returns the bytes read: fewer only at the
        end."""


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
            what = f"piece {piece.name!r} at {piece.offset:,}, {piece.length:,} bytes"
            raise build_damage_error(path, f"{what}, does not match its checksum")

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


ShardContent = tuple[Memory, Sequence[Piece]] | str
"""The content of a shard to be written: page-aligned memory of the pieces, each with its zeros
behind it, and the pieces as `lay_out_pieces` returns them; or the path of a shard's file on this
host."""


@contextlib.contextmanager
def open_content(
    content: ShardContent,
) -> Iterator[tuple[ShardEntry, Callable[[int, int], Memory], bytes]]:
    """Open the content of a shard: its entry, for a file without name and checksum; a function that
    returns the bytes of a turn [start, stop), page-aligned; and the bytes behind the turns.

    MissingError or StorageError if a file cannot be read, FormatError if it becomes shorter."""
    if not isinstance(content, str):
        memory, pieces = content
        end, crc = encode_manifest(pieces, len(memory))
        entry = ShardEntry("", len(memory) + len(end), crc)
        yield entry, lambda start, stop: memory[start:stop], end
        return
    with open_shard_file(content) as file:

        def read(start: int, stop: int) -> Memory:
            memory = np.frombuffer(mmap.mmap(-1, stop - start), np.uint8)
            with translate_read_errors(content):
                if file.read(memory, start) < len(memory):
                    raise build_damage_error(content, "it became shorter while it was copied")
            return memory

        yield ShardEntry("", file.bytes, 0), read, b""


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
        if os.path.islink(path):
            raise build_damage_error(path, "it is a symbolic link, which penstock does not make")
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
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
        what = f"{path} is not there: its job may have removed it"
        raise MissingError(f"{what}; list the checkpoints again") from None
    except (MissingError, StorageError):
        raise
    except OSError as error:
        failed = StorageError(
            f"{path} cannot be read: {error.strerror or error}: check the file system"
        )
        failed.errno = error.errno
        raise failed from None
