"""Repositories: places where checkpoints are committed, and loaded from.

`Folder` is a repository in a file system, `Prefix` one in an object store. They differ in how
shards are written and read, and in the action that commits; a committed checkpoint means the same
in both.
"""

from __future__ import annotations

import os
import secrets
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from ..errors import DataError, MissingError, PenstockError
from .array_leaves import Memory
from .flushing import Flush, ShardSource
from .manifest import SESSION_DIGITS, CheckpointIndex, Piece, ShardEntry

AGAIN = "save again: nothing was committed"
"""Remedy for a save that failed, once the cause is gone."""
KEEP_MIN = 2
"""Checkpoints that are never removed: if the last one proves damaged, there is another."""


class CheckpointEntry(NamedTuple):
    """A committed checkpoint; entries sort in the order of their commits. path: where its shards
    lie."""

    sequence: int
    step: int
    path: str


class RepositoryLock(Protocol):
    """The right of one job to write to a repository."""

    def check(self) -> None:
        """Raise UsageError if another job has taken over."""

    def close(self) -> None:
        """Let others write. May be called again."""


class Repository(ABC):
    """Committed checkpoints of one place. Reading needs no lock; `begin` and the calls after it
    do."""

    path: str
    readers = 4
    """Pieces to read at once, for the best rate."""
    takes_over = False
    """True if `lock` takes over from the job that holds the lock, which can commit nothing then;
    otherwise `lock` is refused."""

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
        """Find the checkpoint that was committed before this one and still exists; None if there is
        none."""
        earlier = [other for other in self.entries() if other.sequence < entry.sequence]
        return earlier[-1] if earlier else None

    def name_previous(self, error: DataError, entry: CheckpointEntry) -> DataError:
        """Add the name of the previous checkpoint, if there is one, to the error of a damaged
        checkpoint."""
        previous = self.find_previous(entry)
        if previous is None:
            return error
        return type(error)(f"{error}. The checkpoint before it is of step {previous.step}")

    # -- committing --------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, step: int, attempt: str) -> str:
        """Make a place for the shards of an attempt, and return its path; each rank may call it."""

    @abstractmethod
    def write(
        self, attempt_path: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Flush
    ) -> ShardEntry:
        """Write a shard from memory; it survives a power cut when this returns. If this raises,
        nothing of the shard is left, as far as that can be done.

        memory, pieces:  see `Flush.write`.
        """

    @abstractmethod
    def put(self, attempt_path: str, name: str, file: str, flush: Flush) -> None:
        """Copy a shard from a file of this host; otherwise as `write`."""

    @abstractmethod
    def commit(
        self, attempt_path: str, index: CheckpointIndex, lock: RepositoryLock
    ) -> CheckpointEntry:
        """Commit an attempt whose shards have been written: make it a checkpoint. If this raises,
        it is none; only if the very last action failed may it exist, so that the next reader finds
        it."""

    @abstractmethod
    def abandon(self, attempt_path: str) -> None:
        """Remove an attempt, as far as that can be done."""

    # -- removing ----------------------------------------------------------------------------------

    def retain(self, keep: int, last: str | None = None) -> None:
        """Remove all but the last `keep` checkpoints, never the last two.

        last:  the path of the checkpoint that counts as the last; None is the latest.
        """
        entries = self.entries()
        while last is not None and entries and entries[-1].path != last:
            entries.pop()
        for entry in entries[: -max(keep, KEEP_MIN)]:
            self.remove(entry)

    def thin(self, keep: int, path: str) -> None:
        """Call `retain` after a commit, which stands whatever happens: an error becomes a warning.

        path:  of the checkpoint that was committed. Later ones are of a job that has taken over,
               and keeps as many as it wants.
        """
        try:
            self.retain(keep, path)
        except PenstockError as error:
            warnings.warn(
                f"a checkpoint was committed, but older ones were not removed: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    @abstractmethod
    def remove(self, entry: CheckpointEntry) -> None:
        """Make a checkpoint none any more, then remove its shards."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """List attempts and removals that were cut off. The job that holds the lock may remove
        them."""

    @abstractmethod
    def collect(self, lock: RepositoryLock) -> None:
        """Remove leftovers, as far as that can be done. lock: this job's; what another job makes
        that has taken over is not removed."""

    @abstractmethod
    def lock(self, session: str = "") -> RepositoryLock:
        """Become the job that writes here. UsageError if another job holds the lock and it is not
        taken over. session: of the job's saves, if it makes any."""

    # -- reading -----------------------------------------------------------------------------------

    @abstractmethod
    def index(self, entry: CheckpointEntry) -> CheckpointIndex:
        """Read the index of a checkpoint; FormatError if it is damaged or another's."""

    @abstractmethod
    def index_path(self, entry: CheckpointEntry) -> str:
        """Return where the index of a checkpoint is, for messages."""

    @abstractmethod
    def committed_s(self, entry: CheckpointEntry) -> float:
        """Return the time of a commit, in seconds since 1970."""

    @abstractmethod
    def open_shard(self, path: str) -> AbstractContextManager[ShardSource]:
        """Open a shard by the path of its checkpoint and its name, joined by a slash."""


def make_session() -> str:
    """Make the name of a session, which no other job has."""
    return secrets.token_hex(SESSION_DIGITS // 2)


def describe_writer(session: str) -> str:
    """Describe this process and a session of it, as locks name them."""
    where = f"process {os.getpid()} on {os.uname().nodename}"
    return f"{where}, session {session}\n" if session else f"{where}\n"
