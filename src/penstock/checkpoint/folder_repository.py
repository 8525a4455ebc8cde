"""A repository in a folder of a file system.

    .lock                            the job that writes here; see `write_lock`
    step-<N>.<sequence>/             a checkpoint; sequence counts commits, whatever their steps
        rank-<r>.shard, index
    step-<N>.<attempt>.incomplete/   a save under way, or left by a job that was killed

A checkpoint is made under the last of these names and synced: shards first, then the index, then
the folder itself. A rename commits it, and is synced too. After a crash, a folder is either a whole
checkpoint under the name of one, or it is ignored and removed by the next job that writes here. If
a run went back to an earlier step, its next commit is the latest, as it has the higher sequence.

The deletion of a checkpoint starts with its index: a folder without an index is no checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..arguments import suggest_path
from ..engine.atomic_file import storage_errors
from ..errors import MissingError, StorageError, UsageError
from .flushing import Flush
from .manifest import CheckpointIndex, Memory, Piece, ShardEntry, encode_index
from .repository import CheckpointEntry, Repository
from .shards import translate_read_errors
from .storage import CheckpointStorage
from .write_lock import AGAIN, FolderLock, WriteLock, describe_writer

INDEX = "index"
_COMMITTED = re.compile(r"step-(\d+)\.(\d+)")
_INCOMPLETE = re.compile(r"step-\d+\.[0-9a-z]+\.incomplete")
_OURS = re.compile(r"index(\.part)?|rank-\d+\.shard")

T = TypeVar("T")


class Folder(Repository):
    """Committed checkpoints in a folder. path: relative to the current folder, or absolute."""

    def __init__(
        self, path: str | os.PathLike[str], storage: CheckpointStorage | None = None
    ) -> None:
        super().__init__(os.path.abspath(os.fspath(path)), storage or CheckpointStorage())
        self._unremoved: list[str] = []  # no checkpoints, and not removed yet

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, make: bool = False) -> Folder:
        """Open a folder, and make it if `make`; MissingError if there is no such folder."""
        folder = cls(path)
        where = folder.path
        if os.path.isfile(where):
            raise UsageError(f"{where} is a file: name a folder for the checkpoints")
        if make:
            with storage_errors(where, "try again"):
                os.makedirs(where, exist_ok=True)
        if not _find_path(folder.storage, os.path.join(where, "")):
            raise MissingError(
                f"{where} is not a folder{suggest_path(where)}: name the folder of the checkpoints"
            )
        return folder

    # -- reading -----------------------------------------------------------------------------------

    def entries(self) -> list[CheckpointEntry]:
        entries = []
        for name in self._list_names():
            if match := _COMMITTED.fullmatch(name):
                path = f"{self.path}/{name}"
                if _find_path(self.storage, f"{path}/{INDEX}"):
                    entries.append(CheckpointEntry(int(match[2]), int(match[1]), path))
        return sorted(entries)

    def read_index_bytes(self, entry: CheckpointEntry) -> bytes:
        path = self.index_path(entry)
        with translate_read_errors(path):
            return self.storage.read_file(path)

    def index_path(self, entry: CheckpointEntry) -> str:
        return f"{entry.path}/{INDEX}"

    def committed_s(self, entry: CheckpointEntry) -> float:
        with translate_read_errors(entry.path):
            return os.stat(self.index_path(entry)).st_mtime

    def _list_names(self) -> list[str]:
        with translate_read_errors(self.path):
            return self.storage.list_folder(self.path)

    # -- committing --------------------------------------------------------------------------------

    def lock(self, writer: bytes | None = None) -> FolderLock:
        return FolderLock(self.storage, self.path, writer or describe_writer())

    def start_attempt(self, step: int, attempt: str) -> str:
        path = f"{self.path}/step-{step}.{attempt}.incomplete"
        with storage_errors(path, AGAIN), contextlib.suppress(FileExistsError):
            self.storage.make_folder(path)
        return path

    def write_shard(
        self, attempt_path: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Flush
    ) -> ShardEntry:
        return write_synced(
            self.storage,
            attempt_path,
            name,
            lambda path: self.storage.write_shard(path, memory, pieces, flush),
        )

    def copy_shard(self, attempt_path: str, name: str, file: str, flush: Flush) -> None:
        write_synced(
            self.storage,
            attempt_path,
            name,
            lambda path: self.storage.copy_shard(path, file, flush),
        )

    def commit(self, attempt_path: str, index: CheckpointIndex, lock: WriteLock) -> CheckpointEntry:
        """Commit as `Repository.commit` says. If only the very last call failed, the sync of a name
        that exists already, the next commit syncs that name too."""
        self._clear()
        for shard in index.shards:
            with storage_errors(attempt_path, AGAIN):
                size = self._measure_file(f"{attempt_path}/{shard.file}")
            if size != shard.bytes:
                raise StorageError(
                    f"{attempt_path}: {shard.file} has {size:,} of {shard.bytes:,} bytes: do all"
                    f" ranks share the folder? {AGAIN}"
                )
        sequence = self._find_last_sequence() + 1
        path = f"{self.path}/step-{index.step}.{sequence}"
        with storage_errors(attempt_path, AGAIN):
            write_index(self.storage, attempt_path, encode_index(index))
            lock.check()
            try:
                self.storage.rename(attempt_path, path)
            except OSError:
                if self.storage.has_name(attempt_path) or not _find_path(self.storage, path):
                    raise  # else it is done, and the answer was lost
        self.storage.sync_folder(
            self.path, f"save again: {path} is there, but a power cut may take it"
        )
        return CheckpointEntry(sequence, index.step, path)

    def _measure_file(self, path: str) -> int:
        """Return the bytes of a file; -1 if there is none."""
        try:
            return self.storage.measure_file(path)
        except FileNotFoundError:
            return -1

    def _find_last_sequence(self) -> int:
        """Return the highest sequence number in use, also by deletions that were cut off."""
        matches = map(_COMMITTED.fullmatch, self._list_names())
        return max((int(match[2]) for match in matches if match), default=0)

    def sync_names(self) -> None:
        self.storage.sync_folder(
            self.path, "save again: a power cut may take what was written last"
        )

    def abandon(self, attempt_path: str) -> None:
        """Remove the shards of an attempt. If that fails, the next commit or the next call tries
        again."""
        self._clear(attempt_path)

    # -- deleting ----------------------------------------------------------------------------------

    def delete(self, entry: CheckpointEntry) -> None:
        self._unremoved.append(entry.path)
        if not self.storage.is_link(entry.path):  # else only the link goes, not its target
            with storage_errors(entry.path, "try again"):
                self.storage.remove_file(f"{entry.path}/{INDEX}")
                self.storage.sync_folder(entry.path, "try again")
        self._clear()

    def leftovers(self) -> list[str]:
        committed = {entry.path for entry in self.entries()}
        return [
            path
            for name in self._list_names()
            if (path := f"{self.path}/{name}") not in committed
            and (_INCOMPLETE.fullmatch(name) or _COMMITTED.fullmatch(name))
        ]

    def delete_leftovers(self, lock: WriteLock) -> None:
        paths = self.leftovers()
        lock.check()  # no other job had started when these were listed: none is its own
        for path in paths:
            self._clear(path)

    def _clear(self, *paths: str) -> None:
        """Remove folders that are no checkpoints; the next call tries again where this one
        fails."""
        remaining, self._unremoved = dict.fromkeys((*self._unremoved, *paths)), []
        for path in remaining:
            try:
                remove_shards_folder(self.storage, path)
            except FileNotFoundError:
                pass
            except OSError:
                self._unremoved.append(path)


# -- folders of shards, also on tiers --------------------------------------------------------------


def write_synced(
    storage: CheckpointStorage, folder: str, name: str, write: Callable[[str], T]
) -> T:
    """Write a shard's file and sync its name. After an error the file is removed if possible.
    Returns the result of `write`, which takes the path."""
    path = f"{folder}/{name}"
    with storage_errors(folder, AGAIN):
        storage.check_own_folder(folder)
    try:
        result = write(path)
        storage.sync_folder(folder, AGAIN)
    except BaseException:
        with contextlib.suppress(OSError):  # room for others, who may be about to write here
            storage.remove_file(path)
        raise
    return result


def write_index(storage: CheckpointStorage, folder: str, data: bytes) -> None:
    """Write the index of a folder, whole or not at all. It survives a power cut when this
    returns."""
    partial, final = f"{folder}/{INDEX}.part", f"{folder}/{INDEX}"
    storage.check_own_folder(folder)
    storage.write_file(partial, data)  # replaces the file of a try that failed
    storage.rename(partial, final)
    storage.sync_folder(folder, AGAIN)


def remove_shards_folder(storage: CheckpointStorage, path: str) -> None:
    """Remove a folder of shards and its index; OSError if it contains files of others. A link to a
    folder is removed, and its target stays."""
    if storage.is_link(path):
        storage.remove_file(path)
        return
    names = storage.list_folder(path)
    if INDEX in names:
        storage.remove_file(f"{path}/{INDEX}")
    if not path.endswith(".incomplete"):
        # The index has to be gone first, also after a power cut, and if a killed job removed it.
        storage.sync_folder(path, "try again")
    for name in names:
        if name != INDEX and _OURS.fullmatch(name):
            storage.remove_file(f"{path}/{name}")
    storage.remove_folder(path)


def _find_path(storage: CheckpointStorage, path: str) -> bool:
    """Return True if a path exists. StorageError if that is not known: a path that cannot be looked
    at must not count as gone, or it is removed."""
    with translate_read_errors(path):
        return storage.find_path(path)
