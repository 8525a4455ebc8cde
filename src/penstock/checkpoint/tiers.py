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
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..arguments import check_path
from ..cache import machine_identity
from ..engine import storage_errors, sync_folder
from ..errors import DataError, FormatError, StorageError, UsageError
from . import shards
from .all_gather import Ranks
from .fault_points import mark_point
from .flushing import Flush
from .folder_repository import (
    INDEX,
    Folder,
    FolderLock,
    empty_folder,
    put_index,
    translate_read_errors,
)
from .manifest import CheckpointIndex, ShardEntry, decode_index, encode_index, seal, unseal
from .repositories import resolve_path
from .repository import Repository
from .tier_choice import REPOSITORY, Rates, TierRoom

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
    """The tiers of a host, as one of its ranks sees them. All ranks of a job make it at once.

    The lowest of the ranks that name the same tiers leads them: it holds their locks, measures
    their room, and lists the saves held before. A tier that cannot be written is left out, with a
    warning. UsageError if another job has a tier.
    """

    def __init__(
        self,
        tiers: Sequence[LocalTier],
        repository_path: str,
        ranks: Ranks,
        session: str,
    ) -> None:
        self.paths = [resolve_path(tier.path) for tier in tiers]
        self._bytes_max = [tier.bytes for tier in tiers]
        self.rank = ranks.place.rank
        self._repository_id = f"{zlib.crc32(repository_path.encode()):08x}"
        self._locks: list[FolderLock] = []
        self._warned: set[int] = set()
        self.rates = Rates([REPOSITORY, *range(len(tiers))])
        identities = ranks.run_together(lambda: [machine_identity(), self._make_folders()])
        self.group = [
            rank for rank, identity in enumerate(identities) if identity == identities[self.rank]
        ]
        """Ranks that name these tiers."""
        self.leading = self.group[0] == self.rank
        try:
            out = ranks.run_together(lambda: self._take_locks(session))[self.group[0]]
        except BaseException:
            self.close()
            raise
        self._left_out: set[int] = set(out or ())

    def _make_folders(self) -> list[Any]:
        """Make the folders of the tiers, and return values that are equal in ranks with the same
        tiers."""
        identities: list[Any] = []
        for number, path in enumerate(self.paths):
            try:
                with storage_errors(path, "try again"):
                    os.makedirs(path, exist_ok=True)
                    folder = os.stat(path)
                identities.append([folder.st_dev, folder.st_ino])
            except StorageError as error:
                self.record_failure(number, error)
                identities.append(path)
        return identities

    def _take_locks(self, session: str) -> list[int]:
        """Take the locks. Returns the tiers that cannot be written."""
        left_out = []
        for number, path in enumerate(self.paths if self.leading else ()):
            try:
                self._locks.append(FolderLock(path, session))
            except StorageError as error:
                self.record_failure(number, error)
                left_out.append(number)
        return left_out

    def record_failure(self, number: int, error: Exception) -> None:
        """Record that a tier failed: it is not used for some time. Warns once."""
        self.rates.record_failure(number)
        if number not in self._warned:
            self._warned.add(number)
            warnings.warn(
                f"{error}. Until then, checkpoints are made without {self.paths[number]}",
                RuntimeWarning,
                stacklevel=2,
            )

    def measure_rooms(self, held_bytes: Sequence[int]) -> list[TierRoom]:
        """Measure the room of each tier. held_bytes: bytes that this job already has on each
        tier."""
        return [
            TierRoom(self._measure_free(number, held), self.rates[number])
            for number, held in enumerate(held_bytes)
        ]

    def _measure_free(self, number: int, held: int) -> int:
        if number in self._left_out:
            return -1
        try:
            system = os.statvfs(self.paths[number])
        except OSError:
            return -1
        free = system.f_bavail * system.f_frsize
        most = self._bytes_max[number]
        if most is not None:
            return min(free, most - held)
        return free - system.f_blocks * system.f_frsize // _RESERVE

    # -- holding -----------------------------------------------------------------------------------

    def get_folder(self, number: int, step: int, attempt: str) -> str:
        """Return where a tier has the shards of an attempt."""
        return os.path.join(self.paths[number], f"step-{step}.{attempt}.{self._repository_id}.held")

    def begin(self, number: int, step: int, attempt: str) -> str:
        """Make a folder for the shards of an attempt; each rank may call it."""
        path = self.get_folder(number, step, attempt)
        with storage_errors(path, "try again"), contextlib.suppress(FileExistsError):
            mark_point(f"make {path}")
            os.mkdir(path)
        sync_folder(self.paths[number])
        return path

    def put_index(self, held: HeldSave) -> None:
        """Put the index of a save on the first tier that takes it; the save is held from then
        on."""
        data = seal("held", held.encode())
        for number in range(len(self.paths)):
            if number in self._left_out or self.rates[number] == 0:
                continue
            try:
                with storage_errors(
                    self.get_folder(number, held.index.step, held.index.attempt), "try again"
                ):
                    put_index(self.begin(number, held.index.step, held.index.attempt), data)
            except StorageError as error:
                self.record_failure(number, error)
            else:
                break

    def remove(self, step: int, attempt: str) -> None:
        """Make a save not held any more, then remove the parts that this rank has. Other ranks do
        the same. Files that cannot be removed now are removed when the tiers are used next."""
        names = ([INDEX, f"{INDEX}.part"] if self.rank == 0 else []) + [f"rank-{self.rank}.shard"]
        for name in names:
            for number in range(len(self.paths)):
                folder = self.get_folder(number, step, attempt)
                path = os.path.join(folder, name)
                if os.path.lexists(path) and not os.path.islink(folder):
                    mark_point(f"remove {path}")
                    with contextlib.suppress(OSError):
                        os.unlink(path)
        for number in range(len(self.paths)):
            with contextlib.suppress(OSError):  # other ranks have files in it still, or it is gone
                os.rmdir(self.get_folder(number, step, attempt))

    def close(self) -> None:
        """Let others write to the tiers. May be called again."""
        while self._locks:
            self._locks.pop().close()

    # -- what was held before ----------------------------------------------------------------------

    def list_held_folders(self) -> Iterator[tuple[str, str]]:
        """List the folders of this repository's saves on the tiers, with their attempts; empty
        except in the leader."""
        name = re.compile(rf"step-\d+\.([0-9a-f]+)\.{self._repository_id}\.held")
        for path in self.paths if self.leading else ():
            with contextlib.suppress(OSError):
                for folder in sorted(os.listdir(path)):
                    if match := name.fullmatch(folder):
                        yield os.path.join(path, folder), match[1]

    def clear(self) -> None:
        """Remove the folders that `list_held_folders` lists."""
        for path, _ in list(self.list_held_folders()):
            with contextlib.suppress(OSError):
                mark_point(f"clear {path}")
                empty_folder(path)


def copy_to_repository(
    repository: Repository, attempt_path: str, folder: str, shard: ShardEntry, flush: Flush
) -> None:
    """Copy a shard from its folder on a tier to the repository. MissingError or FormatError if it
    is not held any more; StorageError if the repository does not take it."""
    shards.list_shard_pieces(Folder(os.path.dirname(folder)), folder, shard)
    try:
        repository.put(attempt_path, shard.file, f"{folder}/{shard.file}", flush)
    except DataError as error:
        raise StorageError(str(error)) from None


def find_whole_shards(folder: str) -> list[ShardEntry]:
    """Find the shards in a held folder that are whole: every byte is read."""
    entries, repository = [], Folder(folder)
    for name in sorted(os.listdir(folder)):
        if name.endswith(".shard"):
            with contextlib.suppress(DataError, StorageError):
                pieces, shard = shards.read_manifest(repository, f"{folder}/{name}")
                shards.read_pieces(repository, folder, pieces, lambda _: None)
                entries.append(shard)
    return entries


def read_held_save(folder: str) -> HeldSave | None:
    """Read the index in a held folder; None if there is none that is whole and of this folder."""
    path = os.path.join(folder, INDEX)
    try:
        with translate_read_errors(path), open(path, "rb") as file:
            held = HeldSave.decode(unseal("held", file.read(), path), path)
    except (DataError, StorageError):
        return None
    of_folder = os.path.basename(folder).startswith(f"step-{held.index.step}.{held.index.attempt}.")
    return held if of_folder else None
