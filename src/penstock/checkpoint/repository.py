"""Repositories: places where checkpoints are committed, loaded from and deleted.

`Folder` is a repository in a file system, `Prefix` one in an object store. A committed checkpoint
means the same in both. A reader finds whole checkpoints only, whatever fails. Reading needs no
lock; `start_attempt` and the methods after it need the `WriteLock`.

A save commits by `Repository.commit`, as the last of its changes: a rename in a folder, one new
object in an object store. Old checkpoints are deleted after that (`delete_old_after_commit`), but
never the last `KEEP_MIN`. The next job deletes what dead attempts left (`delete_leftovers`).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import DataError, FormatError, MissingError, PenstockError
from .flushing import Flush
from .manifest import CheckpointIndex, Memory, Piece, ShardEntry, decode_index
from .storage import CheckpointStorage
from .write_lock import WriteLock

_READS_MAX = 3
"""Reads of an index that comes with other damage each time, before it is given up."""
KEEP_MIN = 2
"""Checkpoints that are never deleted: if the last one proves damaged, there is another."""


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
            raise FormatError(
                f"{where} is of step {index.step}, and was listed as of step {entry.step}: if its"
                " folder was renamed, undo that"
            )
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
        self, attempt_path: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Flush
    ) -> ShardEntry:
        """Write a shard from memory; it survives a power cut when this returns. If this raises,
        nothing of the shard stays unless it cannot be removed.

        memory, pieces:  see `Flush.write`.
        """

    @abstractmethod
    def copy_shard(self, attempt_path: str, name: str, file: str, flush: Flush) -> None:
        """Copy a shard from a file of this host; otherwise as `write_shard`."""

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

    def list_old(self, keep: int, last: str | None = None) -> Sequence[CheckpointEntry]:
        """List all but the last `keep` checkpoints, never the last two. Checkpoints whose index is
        damaged, perhaps on its way, are not counted, and go once as many later ones are there.

        last:  the path of the checkpoint that counts as the last; None is the latest.
        """
        entries = self.entries()
        while last is not None and entries and entries[-1].path != last:
            entries.pop()
        whole = [entry for entry in entries if entry.step >= 0]
        least = max(keep, KEEP_MIN)
        if len(whole) < least:
            return ()
        return entries[: entries.index(whole[-least])]

    def delete_old(self, keep: int, last: str | None = None) -> None:
        """Delete the checkpoints that `list_old` lists."""
        for entry in self.list_old(keep, last):
            self.delete(entry)

    def delete_old_after_commit(self, keep: int, path: str) -> None:
        """Call `delete_old` after a commit; an error becomes a warning.

        path:  of the checkpoint that was committed. Later ones are of a job that has taken over,
               and keeps as many as it wants.
        """
        try:
            self.delete_old(keep, path)
        except PenstockError as error:
            self.storage.warn(
                f"a checkpoint was committed, but older ones were not removed: {error}"
            )

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
