"""Repositories: places where checkpoints are committed, loaded from and deleted.

`Folder` is a repository in a file system, `Prefix` (`object_repository`) one in an object store. A
committed checkpoint means the same in both. A reader finds whole checkpoints only, whatever fails.
Reading needs no lock; `start_attempt` and the methods after it need the `WriteLock`: one job at a
time has it, and a job that was replaced commits nothing.

A save commits by `Repository.commit`, as the last of its changes: a rename in a folder, one new
object in an object store. The next job deletes what dead attempts left (`delete_leftovers`).

In a folder:

    .lock                            the job that writes here: a flock if the file system has it,
                                     and the job's name, which is checked before each commit
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
import secrets
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

from ..arguments import suggest_path
from ..engine.atomic_file import storage_errors
from ..errors import DataError, FormatError, MissingError, StorageError, UsageError
from .manifest import (
    SESSION_DIGITS,
    CheckpointIndex,
    ShardEntry,
    decode_index,
)
from .shards import Flush, ShardContent, translate_read_errors
from .storage import AGAIN, CheckpointStorage, StorageLock

INDEX = "index"
_COMMITTED = re.compile(r"step-(\d+)\.(\d+)")
_INCOMPLETE = re.compile(r"step-\d+\.[0-9a-z]+\.incomplete")
_OURS = re.compile(r"index(\.part)?|rank-\d+\.shard")
_READS_MAX = 3
"""Reads of an index that comes with other damage each time, before it is given up."""


class WriteLock(Protocol):
    """The right of one job to write to a repository."""

    def check(self) -> None:
        """Raise UsageError if another job has taken over."""

    def close(self) -> None:
        """Let other jobs write. May be called again."""


def make_session() -> str:
    """Make the name of a session, unique to a job."""
    return secrets.token_hex(SESSION_DIGITS // 2)


def describe_writer(session: str = "") -> bytes:
    """Describe this process and its session, as locks name them."""
    where = f"process {os.getpid()} on {os.uname().nodename}"
    return (f"{where}, session {session}\n" if session else f"{where}\n").encode()


class CheckpointEntry(NamedTuple):
    """A committed checkpoint; entries sort in the order of their commits. path: of its shards."""

    sequence: int
    step: int
    path: str


class LastAttempt(NamedTuple):
    """The attempt of the last checkpoint; None if there is none, or its index cannot be read.

    path:     of the checkpoint.
    is_lost:  True if the index is damaged in storage.
    damage:   text of the error if it is damaged on its way: it may name any attempt.
    """

    attempt: str | None = None
    path: str | None = None
    is_lost: bool = False
    damage: str = ""


class Repository(ABC):
    """The committed checkpoints of one place.

    takes_over:  True if `lock` takes over from the job that has the lock, which can commit nothing
                 then; otherwise `lock` is refused.
    """

    takes_over = False

    def __init__(self, path: str, storage: CheckpointStorage) -> None:
        self.path, self.storage = path, storage

    # -- reading -----------------------------------------------------------------------------------

    @abstractmethod
    def entries(self) -> list[CheckpointEntry]:
        """List the committed checkpoints, oldest first."""

    def entry(self, step: int | None = None) -> CheckpointEntry:
        """Return the latest checkpoint, or the latest of a step; MissingError if there is none."""
        entries = self.entries()
        wanted = [entry for entry in entries if step is None or entry.step == step]
        if wanted:
            return wanted[-1]
        if step is None:
            raise MissingError(f"there is no checkpoint in {self.path}: save one first")
        steps = ", ".join(str(entry.step) for entry in entries) or "none"
        raise MissingError(f"{self.path} has no checkpoint of step {step}: it has {steps}")

    def find_previous(self, entry: CheckpointEntry) -> CheckpointEntry | None:
        """Return the checkpoint that was committed before this one and still exists, or None."""
        earlier = [other for other in self.entries() if other.sequence < entry.sequence]
        return earlier[-1] if earlier else None

    def name_previous(self, error: DataError, entry: CheckpointEntry) -> DataError:
        """Add the name of the previous checkpoint, if there is one, to the error of a damaged
        checkpoint."""
        previous = self.find_previous(entry)
        if previous is None:
            return error
        return type(error)(f"{error}. The checkpoint before it is of step {previous.step}")

    def read_index(self, entry: CheckpointEntry) -> CheckpointIndex:
        """Read the index of a checkpoint; FormatError if it is damaged or another's."""
        where = self.index_path(entry)
        index = decode_index(self.read_index_bytes(entry), where)
        if index.step != entry.step:
            steps = f"step {index.step}, not of step {entry.step} as its folder"
            raise FormatError(f"{where} is of {steps}: if that was renamed, undo it")
        return index

    @abstractmethod
    def read_index_bytes(self, entry: CheckpointEntry) -> bytes:
        """Read the bytes of the index of a checkpoint; MissingError if it is gone, or none."""

    @abstractmethod
    def index_path(self, entry: CheckpointEntry) -> str:
        """Return the path of a checkpoint's index, for messages."""

    @abstractmethod
    def committed_s(self, entry: CheckpointEntry) -> float:
        """Return the time of a commit, in seconds since 1970; 0 if it is not known."""

    def find_last_attempt(self) -> LastAttempt:
        """Find the attempt of the last checkpoint. MissingError if the repository is not there."""
        for entry in reversed(self.entries()):
            with contextlib.suppress(MissingError):  # it is none, or not any more
                return self._read_attempt(entry)
        return LastAttempt()

    def _read_attempt(self, entry: CheckpointEntry) -> LastAttempt:
        """Read the attempt of a checkpoint, again if its index is damaged: damage in storage is the
        same each time."""
        where, before = self.index_path(entry), None
        for _ in range(_READS_MAX):
            data = self.read_index_bytes(entry)
            try:
                index = decode_index(data, where)
                return LastAttempt(index.attempt, self.locate_shards(entry, index))
            except FormatError as error:
                if data == before:
                    return LastAttempt(path=entry.path, is_lost=True)
                before, damage = data, f"{error}"
        damage += "; other bytes come each time, so it is damaged on its way"
        return LastAttempt(damage=f"{damage}: check the storage and the network")

    def locate_shards(self, entry: CheckpointEntry, index: CheckpointIndex) -> str:
        """Return the path of a checkpoint's shards, as its index names it."""
        return entry.path

    # -- committing --------------------------------------------------------------------------------

    @abstractmethod
    def lock(self, writer: bytes | None = None) -> WriteLock:
        """Become the job that writes here. UsageError if another job has the lock and it is not
        taken over. writer: see `describe_writer`; by default this process."""

    @abstractmethod
    def start_attempt(self, step: int, attempt: str) -> str:
        """Make a place for the shards of an attempt, and return its path; each rank may call it."""

    @abstractmethod
    def write_shard(
        self, attempt_path: str, name: str, content: ShardContent, flush: Flush
    ) -> ShardEntry:
        """Write a shard; it survives a power cut when this returns. If this raises, nothing of the
        shard stays unless it cannot be removed."""

    @abstractmethod
    def commit(self, attempt_path: str, index: CheckpointIndex, lock: WriteLock) -> CheckpointEntry:
        """Make an attempt whose shards have been written a checkpoint. If this raises, it is none;
        only if the very last call failed may it exist, so that the next reader finds it."""

    def sync_names(self) -> None:  # noqa: B027 - objects need no sync
        """Make the names of checkpoints and attempts survive a power cut."""

    @abstractmethod
    def abandon(self, attempt_path: str) -> None:
        """Remove an attempt; errors are ignored."""

    # -- deleting ----------------------------------------------------------------------------------

    @abstractmethod
    def delete(self, entry: CheckpointEntry) -> None:
        """Delete a checkpoint: first its index, then its shards."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """List attempts and deletions that were cut off. The job that has the lock may remove
        them."""

    @abstractmethod
    def delete_leftovers(self, lock: WriteLock) -> None:
        """Delete leftovers; files that cannot be removed stay. lock: this job's; the attempts of a
        job that has taken over stay."""


def lock_repository(repository: Repository, writer: bytes, clear: bool) -> WriteLock:
    """Become the job that writes to a repository. writer: see `describe_writer`.

    clear:  delete leftovers; only once held saves were recovered, because leftovers may be theirs.
    """
    lock = repository.lock(writer)
    try:
        if clear:
            repository.delete_leftovers(lock)
    except BaseException:
        lock.close()
        raise
    return lock


# -- folders -------------------------------------------------------------------------------------


class FolderLock:
    """The lock of the one job that writes to a folder. Raises UsageError if another job has it."""

    def __init__(self, storage: CheckpointStorage, folder: str, writer: bytes) -> None:
        self.path, self._storage, self._writer = f"{folder}/.lock", storage, writer
        with storage_errors(self.path, "try again"):
            self._lock: StorageLock = storage.take_lock(self.path, folder, writer)

    def check(self) -> None:
        """Raise UsageError if another job has taken over."""
        writer = b""
        with contextlib.suppress(FileNotFoundError):
            writer = self._storage.read_lock(self.path)
        if writer != self._writer:
            holder = writer.decode(errors="replace").strip() or "the file is empty or gone"
            what = f"{self.path} belongs to another job now ({holder}): nothing was committed"
            raise UsageError(f"{what}; let one job write to the folder")

    def close(self) -> None:
        """Let other jobs write. May be called again."""
        self._lock.close()


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
            near = suggest_path(where)
            raise MissingError(f"{where} is not a folder{near}: name the folder of the checkpoints")
        return folder

    # -- reading -----------------------------------------------------------------------------------

    def entries(self) -> list[CheckpointEntry]:
        entries = []
        for name in self._list_names():
            path = f"{self.path}/{name}"
            match = _COMMITTED.fullmatch(name)
            if match and _find_path(self.storage, f"{path}/{INDEX}"):
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
        self, attempt_path: str, name: str, content: ShardContent, flush: Flush
    ) -> ShardEntry:
        path = f"{attempt_path}/{name}"
        with storage_errors(attempt_path, AGAIN):
            self.storage.check_own_folder(attempt_path)
        try:
            entry = self.storage.write_shard(path, content, flush)
            self.storage.sync_folder(attempt_path, AGAIN)
        except BaseException:
            with contextlib.suppress(OSError):  # room for others, who may be about to write here
                self.storage.remove_file(path)
            raise
        return entry

    def commit(self, attempt_path: str, index: CheckpointIndex, lock: WriteLock) -> CheckpointEntry:
        """Commit as `Repository.commit` says. If only the very last call failed, the sync of a name
        that exists already, the next commit syncs that name too."""
        if self._unremoved:
            self._clear()
        with storage_errors(attempt_path, AGAIN):
            for shard in index.shards:
                size = -1
                with contextlib.suppress(FileNotFoundError):
                    size = self.storage.measure_file(f"{attempt_path}/{shard.file}")
                if size != shard.bytes:
                    what = f"{attempt_path}: {shard.file} has {size:,} of {shard.bytes:,} bytes"
                    raise StorageError(f"{what}: do all ranks share the folder? {AGAIN}")
            # The highest number in use, also by deletions that were cut off.
            matches = map(_COMMITTED.fullmatch, self.storage.list_folder(self.path))
            sequence = max((int(match[2]) for match in matches if match), default=0) + 1
            path = f"{self.path}/step-{index.step}.{sequence}"
            write_index(self.storage, attempt_path, index.encoded)
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

    def sync_names(self) -> None:
        again = "save again: a power cut may take what was written last"
        self.storage.sync_folder(self.path, again)

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
