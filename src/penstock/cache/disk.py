"""The disk tier of a node: cache blocks in a file on its local disk, for its ranks and later runs.

A folder of this tier holds three files:

    tier.lock    one line with the pid of each process that uses the folder. All of them,
                 ranks of one job, hold a shared flock, so another job's exclusive one is refused
    tier.table   a page: magic, version, number of slots, identity, note, CRC-32C of these; then 24
                 bytes a slot: offset in tier.data (0: none), length, CRC-32C of identity, slot,
                 offset, length and the cache block
    tier.data    a page that is not used; then cache blocks, each at a multiple of 4096, padded
                 with zeros

Cache blocks are written and read past the page cache if the file system allows it. Nothing is
synced. A cache block or an entry that a crash has torn, or that is damaged in any other way, fails
its checksum, compared on every read; it is then read from storage again. The room of such
a cache block, and of one whose writer was killed, is not used again before the folder is emptied.

The state of the slots (ready, or being filled by whom) is in shared memory (`slab`). The
first rank makes it from the table, and the others attach to it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import mmap
import os
import struct
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from .. import limits
from ..engine.native import Arena, crc32c, move_blocks
from ..engine.protocol import Buffer
from ..engine.storage_queue import PROCESS_QUEUE
from ..errors import StorageError, UsageError
from ..extent import Int
from ..own_files import check_private_folder, open_own
from .shared_memory import (
    LEFT_OUT,
    READY,
    Codes,
    Mask,
    SlabAddress,
    SlabCounters,
    SlotTable,
    check_identity,
)

_PAGE = 4096
_MAGIC = b"PENSTIER"
_VERSION = 2
_HEADER = struct.Struct("<8sIQ16s24s")  # magic, version, slots, identity, note; then their checksum
_CRC = struct.Struct("<I")
_ENTRY = np.dtype([("at", "<i8"), ("length", "<i8"), ("crc", "<u4"), ("unused", "<u4")])
_PART_BYTES = 4 << 20
"""Bytes that are copied, and then written together."""
_SALT = struct.Struct("<16sqqq")
"""Identity, slot, offset, length: a cache block is right in one place only."""


class DiskCounters(NamedTuple):
    """Totals of this rank.

    read, written:  cache blocks.
    damaged:        cache blocks that failed their checksum, or could not be read; each was a miss.
    """

    read: int
    written: int
    damaged: int


class DiskTier:
    """Cache blocks in a folder on a local disk; the layout is in the module's docstring.

    A read returns the bytes that were written, or a miss. A full disk or a failed write ends
    writing, with one warning, for this rank and this run; reading goes on. Methods may be called
    from any thread; reads and writes wait for the disk with the GIL released.

    arena:  memory for cache blocks that are to be written, or were read; bounded, and recycled.

    The first rank of a host opens it. The others attach through any process that has it.
    """

    def __init__(self, folder: str, slots: SlotTable, identity: bytes, lock: FileIO) -> None:
        self.folder = folder
        self._slots = slots
        self._identity = identity
        self._lock_file = lock
        self._table = own_descriptor(open_own, os.path.join(folder, "tier.table"), os.O_RDWR)
        self._data = _open_direct(folder)
        self.arena = Arena(limits.disk_buffers_bytes_max)
        self.is_writable = True
        """True while cache blocks are still written: no write of this rank has failed."""
        self._lock = threading.Lock()
        self._counted = {"read": 0, "written": 0, "damaged": 0}

    @classmethod
    def open(
        cls, folder: str, slots: int, room_bytes: int, identity: bytes, note: bytes = b""
    ) -> Self:
        """Open the tier of a folder, for the first rank of a host; make the folder if there is
        none.

        slots, identity, note:  the contents that an earlier run left are used if all three are the
                     same as now, and discarded otherwise.
        note:        up to 24 bytes, for `read_note` in later runs that do not know them.
        room_bytes:  most that tier.data may have; cache blocks are at multiples of 4096.

        Raises UsageError if another job uses the folder, StorageError if the system refuses.
        """
        with _storage_errors(folder):
            os.makedirs(folder, exist_ok=True)
            check_private_folder(folder, "the disk tier")
            lock = _open_lock_file(folder)
            try:
                _lock_folder(folder, lock, fcntl.LOCK_EX)
                os.ftruncate(lock.fileno(), 0)
                os.write(lock.fileno(), b"%d\n" % os.getpid())
                folder_identity = _hash_folder_identity(lock, identity)
                shared = SlotTable.create(slots, room_bytes, folder_identity, alignment=_PAGE)
                _restore(folder, shared, room_bytes, _pack_header(slots, identity, note), slots)
                _lock_folder(folder, lock, fcntl.LOCK_SH)
                return cls(folder, shared, identity, lock)
            except BaseException:
                lock.close()  # not with the last reference: a traceback has one, too
                raise

    @classmethod
    def attach(cls, folder: str, address: SlabAddress | tuple[int, int], identity: bytes) -> Self:
        """Attach to the tier that another process of this host has opened; errors as
        `SlotTable.attach`."""
        with _storage_errors(folder):
            lock = _open_lock_file(folder)
            try:
                _lock_folder(folder, lock, fcntl.LOCK_SH)
                os.write(lock.fileno(), b"%d\n" % os.getpid())
                shared = SlotTable.attach(address, _hash_folder_identity(lock, identity))
                return cls(folder, shared, identity, lock)
            except BaseException:
                lock.close()
                raise

    @property
    def address(self) -> SlabAddress:
        """Address by which others attach."""
        return self._slots.address

    def claim(self, slots: Int) -> Codes:
        """Claim slots; return READY, MINE (to be given to `write` or `abandon`) or BUSY for each.

        Once nothing is written any more, a slot that is not READY is LEFT_OUT: nobody is to wait
        for it.
        """
        if self.is_writable:
            return self._slots.claim(slots)
        return np.where(self._slots.offsets(slots) >= 0, READY, LEFT_OUT).astype(np.uint8)

    def abandon(self, slots: Int) -> None:
        """Give claims back, so that others may claim."""
        self._slots.abandon(slots)

    def write(self, slots: Int, cache_blocks: Sequence[Buffer]) -> Mask:
        """Keep cache blocks of slots that are claimed here; the claims end.

        The mask is False for a cache block that was not kept: its slot is not claimed here, the
        room is used up, or writing failed.
        """
        kept = self._slots.holds(slots)
        sizes = np.array([_pad_size(cache_block.nbytes) for cache_block in cache_blocks], np.int64)
        first = 0
        while first < len(slots):  # a part at a time: each is copied
            count = int(np.searchsorted(np.cumsum(sizes[first:]), _PART_BYTES, "right"))
            last = first + max(1, count)
            mine = first + np.flatnonzero(kept[first:last])
            kept[mine] = self._write(slots[mine], [cache_blocks[i] for i in mine.tolist()])
            first = last
        return kept

    def read(self, slots: Int, lengths: Int) -> list[Buffer | None]:
        """Read cache blocks of these sizes; None for a block that is not ready, or is
        damaged.

        A slot whose cache block is damaged, or of another length, is empty from now on, and may be
        claimed again.
        """
        places = self._slots.offsets(slots) + _PAGE  # first: an entry is written before it
        entries = np.zeros(len(slots), _ENTRY)
        move_blocks(self._table.fileno(), False, _find_entries(slots), _view_entries(entries))
        is_there = places >= _PAGE
        rows = np.flatnonzero(
            is_there & (entries["at"] == places) & (entries["length"] == lengths)
        ).tolist()
        padded = self._take_parts([_pad_size(int(lengths[i])) for i in rows])
        moved = move_blocks(self._data.fileno(), False, places[rows].tolist(), padded)
        blocks: list[Buffer | None] = [None] * len(slots)
        for i, count, data in zip(rows, moved, padded, strict=True):
            block = data[: int(lengths[i])]
            checksum = self._checksum(int(slots[i]), int(places[i]), block)
            if count >= len(block) and checksum == entries["crc"][i]:
                blocks[i] = block
        self._count("read", sum(block is not None for block in blocks))
        bad = [i for i, block in enumerate(blocks) if block is None and is_there[i]]
        self._count("damaged", len(bad))
        self._slots.drop(slots[bad], places[bad] - _PAGE)
        PROCESS_QUEUE.count("read", "prefetch", sum(map(len, padded)))
        return blocks

    def counters(self) -> SlabCounters:
        """Return the totals of all ranks; cache blocks that an earlier run left count as
        published."""
        return self._slots.counters()

    def own_counters(self) -> DiskCounters:
        return DiskCounters(**self._counted)

    def close(self) -> None:
        """Give claims and files back; with the last rank the folder is free for another job.

        No other thread may be reading or writing. May be called again.
        """
        self._slots.close()
        for file in (self._data, self._table, self._lock_file):
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, slots: Int, cache_blocks: Sequence[Buffer]) -> Mask:
        """Keep cache blocks of slots that are claimed here, written together."""
        kept = np.zeros(len(slots), bool)
        try:
            lengths = np.array([block.nbytes for block in cache_blocks], np.int64)
            at = np.full(len(slots), -1)
            for i in range(len(slots)) if self.is_writable else ():
                at[i] = self._slots.allocate(lengths[i : i + 1])[0]
            rows = np.flatnonzero(at >= 0)
            places = at + _PAGE
            padded = self._take_parts([_pad_size(int(lengths[i])) for i in rows])
            entries = np.zeros(len(rows), _ENTRY)
            for number, (i, data) in enumerate(zip(rows.tolist(), padded, strict=True)):
                block = cache_blocks[i]
                data[: block.nbytes] = block
                data[block.nbytes :] = 0
                checksum = self._checksum(int(slots[i]), int(places[i]), block)
                entries[number] = (places[i], block.nbytes, checksum, 0)
            moved = move_blocks(self._data.fileno(), True, places[rows].tolist(), padded)
            PROCESS_QUEUE.count("write", "sweep", sum(max(0, count) for count in moved))
            is_whole = np.array(moved, np.int64) == [len(data) for data in padded]
            entries, whole = entries[is_whole], rows[is_whole]
            _write_all(self._table, _find_entries(slots[whole]), _view_entries(entries))
            kept[whole] = self._slots.publish(slots[whole], at[whole], lengths[whole])
            if not is_whole.all():
                raise _make_write_error(min(moved))
        except OSError as error:
            self._stop_writing(error)
        finally:
            self._slots.abandon(slots[~kept])
        self._count("written", int(kept.sum()))
        return kept

    def _take_parts(self, sizes: Sequence[int]) -> list[Buffer]:
        """Return buffers of these sizes, whole pages, in one piece of memory."""
        ends = np.cumsum(sizes, dtype=np.int64).tolist()
        memory = self.arena.take(ends[-1] if ends else 0)
        return [memory[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def _checksum(self, slot: int, place: int, cache_block: Buffer) -> int:
        salt = _SALT.pack(self._identity, slot, place, cache_block.nbytes)
        return int(crc32c(cache_block, crc32c(salt)))

    def _count(self, what: str, number: int) -> None:
        with self._lock:
            self._counted[what] += number

    def _stop_writing(self, error: OSError) -> None:
        with self._lock:
            first, self.is_writable = self.is_writable, False
        if first:
            what = f"the disk tier in {self.folder} keeps no more cache blocks: {error.strerror}"
            remedy = "free space or repair the disk; the rest is read from storage"
            warnings.warn(f"{what}: {remedy}", RuntimeWarning, stacklevel=4)


def own_descriptor(open_it: Callable[..., int], *arguments: object) -> FileIO:
    """Open a descriptor by a call; return its owner, with whose last reference it is closed.

    No interrupt comes between the call's return and the owner: all of it is one call of C.
    """
    return next(map(FileIO, itertools.starmap(open_it, [arguments]), ["r+b"]))


def _pad_size(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _open_direct(folder: str) -> FileIO:
    """Open the data past the page cache, or through it if the file system cannot do otherwise."""
    path, flags = os.path.join(folder, "tier.data"), os.O_RDWR
    try:
        file = own_descriptor(open_own, path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return own_descriptor(open_own, path, flags)
    try:
        os.preadv(file.fileno(), [mmap.mmap(-1, _PAGE)], 0)
    except OSError:  # some refuse only when it comes to reading
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
    return file


def _find_entries(slots: Int) -> list[int]:
    """Return the places of entries in the table."""
    places: list[int] = (_PAGE + slots * _ENTRY.itemsize).tolist()
    return places


def _view_entries(entries: npt.NDArray[np.void]) -> list[Buffer]:
    """Return the bytes of each entry."""
    return list(entries.view(np.uint8).reshape(-1, _ENTRY.itemsize))


def _write_all(file: FileIO, places: list[int], blocks: list[Buffer]) -> None:
    """Write blocks, many at a time; OSError if one of them is not written whole."""
    for count, block in zip(move_blocks(file.fileno(), True, places, blocks), blocks, strict=True):
        if count < len(block):
            raise _make_write_error(count)


def _make_write_error(moved: int) -> OSError:
    """Make the error for a write that `move_blocks` reports; a short one is a full disk."""
    error = -moved if moved < 0 else errno.ENOSPC
    return OSError(error, os.strerror(error))


@contextlib.contextmanager
def _storage_errors(folder: str) -> Iterator[None]:
    """Turn an error of the system into one that names the folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            error.errno,
            f"the disk tier in {folder} cannot be used: {os.strerror(error.errno or 0)}: give it a"
            " folder on a local disk that this user may write to, with room in it",
        ) from None


def _open_lock_file(folder: str) -> FileIO:
    """Open the folder's lock file; the lock that it will have is its owner's."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    return own_descriptor(open_own, os.path.join(folder, "tier.lock"), flags)


def _lock_folder(folder: str, lock: FileIO, operation: int) -> None:
    """Lock the folder's lock file; raise UsageError if another job holds the lock."""
    try:
        fcntl.flock(lock, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _make_in_use_error(folder) from None


def _hash_folder_identity(lock: FileIO, identity: bytes) -> bytes:
    """Return the identity of a folder's slots, so that nobody attaches by another folder."""
    check_identity(identity)
    folder = os.fstat(lock.fileno())
    text = b"%s %d %d" % (identity, folder.st_dev, folder.st_ino)
    return hashlib.blake2b(text, digest_size=16).digest()


def _make_in_use_error(folder: str) -> UsageError:
    with open(os.path.join(folder, "tier.lock"), "rb") as file:
        pids = [int(line) for line in file.read(1 << 16).split() if line.isdigit()]
    pids = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    if pids == [os.getpid()]:
        who, remedy = (
            "another loader of this process",
            "close that one, or give each another folder",
        )
    else:
        who = f"another job, process {' '.join(map(str, pids)) or 'unknown'}"
        remedy = "give each job another folder, or end that one"
    return UsageError(f"the disk tier in {folder} is in use by {who}: {remedy}")


def read_note(folder: str) -> bytes | None:
    """Return the note of the run that left the folder, 24 bytes; None for any other folder."""
    try:
        table = own_descriptor(open_own, os.path.join(folder, "tier.table"), os.O_RDONLY)
    except (OSError, UsageError):
        return None
    with table:
        header = os.pread(table.fileno(), _HEADER.size + _CRC.size, 0)
    if len(header) < _HEADER.size + _CRC.size:
        return None
    magic, version, slots, identity, note = _HEADER.unpack_from(header)
    known = (magic, version) == (_MAGIC, _VERSION)
    return note if known and header == _pack_header(slots, identity, note) else None


def _pack_header(slots: int, identity: bytes, note: bytes) -> bytes:
    if len(note) > 24:
        raise UsageError(f"the note has {len(note)} bytes: use up to 24")
    header = _HEADER.pack(_MAGIC, _VERSION, slots, identity, note)
    return header + _CRC.pack(crc32c(header))


def _restore(folder: str, shared: SlotTable, room_bytes: int, header: bytes, slots: int) -> None:
    """Make the slots ready that an earlier run left, or create the files."""
    table_bytes = _PAGE + slots * _ENTRY.itemsize
    flags = os.O_RDWR | os.O_CREAT
    with (
        own_descriptor(open_own, os.path.join(folder, "tier.table"), flags) as table,
        own_descriptor(open_own, os.path.join(folder, "tier.data"), flags) as data,
    ):
        table_bytes_now = os.fstat(table.fileno()).st_size
        same = table_bytes_now == table_bytes and os.pread(table.fileno(), len(header), 0) == header
        if not same:
            # The data first: a table of cache blocks that are not there is harmless, the opposite
            # is not.
            for file, size in ((data, 0), (data, _PAGE), (table, 0), (table, table_bytes)):
                os.ftruncate(file.fileno(), size)
            _write_all(table, [0], [np.frombuffer(bytearray(header), np.uint8)])
            return
        if os.fstat(data.fileno()).st_size > _PAGE + room_bytes:  # the room was larger then
            os.ftruncate(data.fileno(), _PAGE + room_bytes)
        entries = np.fromfile(table, _ENTRY, slots, offset=_PAGE)
        end = min(os.fstat(data.fileno()).st_size, _PAGE + room_bytes)
        at, length = entries["at"], entries["length"]
        good = (at >= _PAGE) & (at % _PAGE == 0) & (at <= end) & (length >= 0)
        good &= length <= end - np.where(good, at, 0)
        kept = np.flatnonzero(good)
        at, length = at[kept] - _PAGE, length[kept]
        # Later writes go behind all of it.
        shared.allocate(np.array([(at + length).max(initial=0)]))
        shared.claim(kept)  # of slots that nobody else knows yet
        shared.publish(kept, at, length)
