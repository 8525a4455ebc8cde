"""Tiers: folders of this host where shards wait until the repository has them. They are fast, and
lost with the host.

    .lock                                   the job that writes here
    step-<N>.<attempt>.<id>.held/           a save; <id> is a checksum of its repository's path
        rank-<r>.shard                      of the ranks of this host, as for the repository
        index                               put last, by rank 0 alone: all ranks have written

Once the index exists, all shards of a save are synced, here, on tiers of other hosts, or in the
repository already: the save is held. The index names the checkpoint that was the last committed at
that time, so that saves which a run went back behind are not committed later.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from ..arguments import check_path
from ..engine import storage_errors
from ..errors import DataError, FormatError, StorageError, UsageError
from .all_gather import Ranks
from .flushing import Flush
from .folder_repository import INDEX, remove_shards_folder, write_index, write_synced
from .manifest import (
    CheckpointIndex,
    Memory,
    Piece,
    ShardEntry,
    decode_index,
    encode_index,
    seal,
    unseal,
)
from .repository import Repository
from .shards import translate_read_errors
from .storage import CheckpointStorage
from .tier_choice import REPOSITORY, Rates, TierRoom
from .write_lock import FolderLock

_RESERVE = 16
"""Divisor of a tier's file system: one part of this many is left to others."""


@dataclass(frozen=True, slots=True)
class LocalTier:
    """A folder of this host for `Checkpoints(local=...)`, and the bytes of it that may be used.
    None is all that its file system has free, except for a sixteenth of the file system. Give it
    for /dev/shm: files there take memory."""

    path: str | os.PathLike[str]
    bytes: int | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None and not (type(self.bytes) is int and self.bytes > 0):
            raise UsageError(f"LocalTier.bytes is {self.bytes!r}: use None or a number above 0")
        if "://" in check_path("LocalTier.path", self.path):
            raise UsageError(f"{self.path} is no folder: a tier is a folder of this host")


Local = str | os.PathLike[str] | LocalTier | Sequence[str | os.PathLike[str] | LocalTier]


def parse_local(local: Local) -> list[LocalTier]:
    """List the tiers that `local=` names."""
    several = isinstance(local, Sequence) and not isinstance(local, str)
    tiers: list[Any] = list(cast(Any, local)) if several else [local]
    if not tiers:
        raise UsageError(f"local={local!r}: name one tier or more, or leave it out")
    return [tier if isinstance(tier, LocalTier) else LocalTier(tier) for tier in tiers]


@dataclass(frozen=True, slots=True)
class HeldSave:
    """The content of the index on a tier. after: the attempt that was last committed in the
    repository; None if there was none."""

    after: str | None
    index: CheckpointIndex

    def encode(self) -> list[Any]:
        """Encode as JSON has it."""
        return [self.after, encode_index(self.index).decode()]

    @classmethod
    def decode(cls, document: Sequence[Any], where: str) -> HeldSave:
        """Decode what `encode` returned."""
        if type(document) is not list or [type(part) for part in document] not in (
            [str, str],
            [type(None), str],
        ):
            raise FormatError(f"{where} is {document!r:.80}, not the index of a held save")
        after, text = document
        return cls(after, decode_index(text.encode(), where))


class Tiers:
    """The tiers of a host, as one of its ranks sees them. All ranks of a job `open` it at once.

    The lowest of the ranks that name the same tiers leads them: it holds their locks, measures
    their room, and lists the saves held before. A tier that cannot be written is left out, with a
    warning. UsageError if another job has a tier.
    """

    def __init__(
        self,
        tiers: Sequence[LocalTier],
        repository_path: str,
        rank: int,
        writer: bytes,
        storage: CheckpointStorage | None = None,
    ) -> None:
        self.storage = storage or CheckpointStorage(is_shared=False)
        self.paths = [os.path.abspath(tier.path) for tier in tiers]
        self._bytes_max = [tier.bytes for tier in tiers]
        self.rank, self._writer = rank, writer
        self._repository_id = f"{zlib.crc32(repository_path.encode()):08x}"
        self._locks: list[FolderLock] = []
        self._warned: set[int] = set()
        self.rates = Rates([REPOSITORY, *range(len(tiers))])
        self.group: list[int] = []
        """Ranks that name these tiers."""
        self.leading = False
        self._left_out: set[int] = set()

    @classmethod
    def open(
        cls,
        tiers: Sequence[LocalTier],
        repository_path: str,
        ranks: Ranks,
        writer: bytes,
        storage: CheckpointStorage | None = None,
    ) -> Self:
        """Make the tiers, and lock them. writer: names the process and the session of the job."""
        opened = cls(tiers, repository_path, ranks.place.rank, writer, storage)
        identities = ranks.run_together(opened._identify)
        own = identities[opened.rank]
        opened.group = [rank for rank, other in enumerate(identities) if other == own]
        opened.leading = opened.group[0] == opened.rank
        try:
            out_rows = ranks.run_together(opened._take_locks)
        except BaseException:
            opened.close()
            raise
        opened._left_out = set(out_rows[opened.group[0]] or ())
        return opened

    def _identify(self) -> list[Any]:
        """Make the folders of the tiers, and return values that are equal in ranks with the same
        tiers."""
        host = self.storage.identify_host()
        identities: list[Any] = []
        for number, path in enumerate(self.paths):
            try:
                with storage_errors(path, "try again"):
                    identities.append(self.storage.identify_folder(path))
            except StorageError as error:
                self.record_failure(number, error)
                identities.append(path)
        return [host, identities]

    def _take_locks(self) -> list[int]:
        """Take the locks. Returns the tiers that cannot be written."""
        left_out = []
        for number, path in enumerate(self.paths if self.leading else ()):
            try:
                self._locks.append(FolderLock(self.storage, path, self._writer))
            except StorageError as error:
                self.record_failure(number, error)
                left_out.append(number)
        return left_out

    def record_failure(self, number: int, error: Exception) -> None:
        """Record that a tier failed: it is not used for some time. Warns once."""
        self.rates.record_failure(number)
        if number not in self._warned:
            self._warned.add(number)
            self.storage.warn(
                f"{error}. Until then, checkpoints are made without {self.paths[number]}"
            )

    def measure_rooms(self, held_bytes: Sequence[int]) -> list[TierRoom]:
        """Measure the room of each tier. held_bytes: bytes that this job already has on each
        tier."""
        rooms = []
        for number, held in enumerate(held_bytes):
            free = self._measure_free(number, held)
            rooms.append(TierRoom(free, self.rates[number]))
        return rooms

    def _measure_free(self, number: int, held: int) -> int:
        if number in self._left_out:
            return -1
        try:
            free, total = self.storage.measure_room(self.paths[number])
        except OSError:
            return -1
        most = self._bytes_max[number]
        if most is not None:
            return min(int(free), most - held)
        return int(free) - int(total) // _RESERVE

    # -- holding -----------------------------------------------------------------------------------

    def get_folder(self, number: int, step: int, attempt: str) -> str:
        """Return where a tier has the shards of an attempt."""
        return os.path.join(self.paths[number], f"step-{step}.{attempt}.{self._repository_id}.held")

    def _make_folder(self, number: int, step: int, attempt: str) -> str:
        """Make a folder for the shards of an attempt; each rank may call it."""
        path = self.get_folder(number, step, attempt)
        with storage_errors(path, "try again"), contextlib.suppress(FileExistsError):
            self.storage.make_folder(path)
        self.storage.sync_folder(self.paths[number], "try again")
        return path

    def write_shard(
        self,
        number: int,
        step: int,
        attempt: str,
        name: str,
        memory: Memory,
        pieces: Sequence[Piece],
        flush: Flush,
    ) -> ShardEntry:
        """Write a shard to a tier; it survives a power cut when this returns."""

        def write(path: str) -> ShardEntry:
            return self.storage.write_shard(path, memory, pieces, flush)

        return write_synced(self.storage, self._make_folder(number, step, attempt), name, write)

    def put_index(self, held: HeldSave) -> None:
        """Put the index of a save on the first tier that takes it; the save is held from then
        on."""
        data = seal("held", held.encode())
        step, attempt = held.index.step, held.index.attempt
        for number in range(len(self.paths)):
            if number in self._left_out or self.rates[number] == 0:
                continue
            try:
                with storage_errors(self.get_folder(number, step, attempt), "try again"):
                    write_index(self.storage, self._make_folder(number, step, attempt), data)
            except StorageError as error:
                self.record_failure(number, error)
            else:
                break

    def remove(self, step: int, attempt: str) -> None:
        """Make a save not held any more, then remove the parts that this rank has. Other ranks do
        the same. Files that cannot be removed now are removed when the tiers are used next."""
        names = ([INDEX, f"{INDEX}.part"] if self.rank == 0 else []) + [f"rank-{self.rank}.shard"]
        folders = [self.get_folder(number, step, attempt) for number in range(len(self.paths))]
        for name in names:
            for folder in folders:
                path = f"{folder}/{name}"
                is_there = self.storage.has_name(path)
                if is_there and not self.storage.is_link(folder):
                    with contextlib.suppress(OSError):
                        self.storage.remove_file(path)
        for folder in folders:
            with contextlib.suppress(OSError):  # other ranks have files in it still, or it is gone
                self.storage.remove_folder(folder)

    def close(self) -> None:
        """Let others write to the tiers. May be called again."""
        while self._locks:
            self._locks.pop().close()

    # -- what was held before ----------------------------------------------------------------------

    def list_held_folders(self) -> list[tuple[str, str]]:
        """List the folders of this repository's saves on the tiers, with their attempts; empty
        except in the leader. StorageError if a tier cannot be looked at: what is held there is not
        taken for gone, and removed."""
        pattern = re.compile(rf"step-\d+\.([0-9a-f]+)\.{self._repository_id}\.held")
        folders: list[tuple[str, str]] = []
        for number, path in enumerate(self.paths if self.leading else ()):
            if number in self._left_out:
                continue
            with translate_read_errors(path):
                names = self.storage.list_folder(path)
            folders += [
                (f"{path}/{name}", match[1]) for name in names if (match := pattern.fullmatch(name))
            ]
        return folders

    def clear(self) -> None:
        """Remove the folders that `list_held_folders` lists."""
        for path, _ in self.list_held_folders():
            with contextlib.suppress(OSError):
                remove_shards_folder(self.storage, path)


def copy_to_repository(
    repository: Repository, attempt_path: str, folder: str, shard: ShardEntry, flush: Flush
) -> None:
    """Copy a shard from its folder on a tier to the repository. MissingError or FormatError if it
    is not held any more; StorageError if the repository does not take it."""
    repository.storage.check_shard(folder, shard)
    try:
        repository.copy_shard(attempt_path, shard.file, f"{folder}/{shard.file}", flush)
    except DataError as error:
        raise StorageError(str(error)) from None


def read_held_save(storage: CheckpointStorage, folder: str) -> HeldSave | None:
    """Read the index in a held folder; None if there is none that is whole and of this folder."""
    path = f"{folder}/{INDEX}"
    try:
        with translate_read_errors(path):
            data = storage.read_file(path)
        held = HeldSave.decode(unseal("held", data, path), path)
    except DataError:
        return None
    name = folder.rpartition("/")[2]
    return held if name.startswith(f"step-{held.index.step}.{held.index.attempt}.") else None
