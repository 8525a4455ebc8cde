"""Repositories: places where checkpoints are committed, and loaded from.

`Folder` is a repository in a file system, `Prefix` one in an object store. They differ in how
shards are read, and in their protocol (`RepositorySteps`), which this module performs over real
storage; a committed checkpoint means the same in both.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from ..errors import DataError
from .flushing import Flush, ShardSource
from .manifest import SESSION_DIGITS, CheckpointIndex, Memory, Piece, ShardEntry
from .perform import perform
from .repository_steps import CheckpointEntry, RepositoryLock, RepositorySteps


class Repository(ABC):
    """Committed checkpoints of one place. The methods perform those of `steps`, which say what they
    do."""

    readers = 4
    """Pieces to read at once, for the best rate."""
    is_shared = True
    """True for storage that others use, too: its reads take turns with all of this process."""
    takes_over = False
    """True if `lock` takes over from the job that holds the lock, which can commit nothing then;
    otherwise `lock` is refused."""

    def __init__(self, steps: RepositorySteps) -> None:
        self.steps, self.path = steps, steps.path
        steps.reader = self

    def entries(self) -> list[CheckpointEntry]:
        """List the committed checkpoints, oldest first."""
        return perform(self.steps.entries())

    def entry(self, step: int | None = None) -> CheckpointEntry:
        """Return the latest checkpoint, or the latest of a step; MissingError if there is none."""
        return perform(self.steps.entry(step))

    def find_previous(self, entry: CheckpointEntry) -> CheckpointEntry | None:
        """Find the checkpoint before this one that still exists; None if there is none."""
        return perform(self.steps.find_previous(entry))

    def name_previous(self, error: DataError, entry: CheckpointEntry) -> DataError:
        """Add the name of the previous checkpoint, if there is one, to the error of a damaged
        checkpoint."""
        return perform(self.steps.name_previous(error, entry))

    def begin(self, step: int, attempt: str) -> str:
        """Make a place for the shards of an attempt, and return its path; each rank may call it."""
        return perform(self.steps.begin(step, attempt))

    def write(
        self, attempt_path: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Flush
    ) -> ShardEntry:
        """Write a shard from memory; it survives a power cut when this returns."""
        return perform(self.steps.write(attempt_path, name, memory, pieces, flush))

    def put(self, attempt_path: str, name: str, file: str, flush: Flush) -> None:
        """Copy a shard from a file of this host; otherwise as `write`."""
        perform(self.steps.put(attempt_path, name, file, flush))

    def commit(
        self, attempt_path: str, index: CheckpointIndex, lock: RepositoryLock
    ) -> CheckpointEntry:
        """Commit an attempt whose shards have been written: make it a checkpoint."""
        return perform(self.steps.commit(attempt_path, index, lock))

    def abandon(self, attempt_path: str) -> None:
        """Remove an attempt, as far as that can be done."""
        perform(self.steps.abandon(attempt_path))

    def retain(self, keep: int, last: str | None = None) -> None:
        """Remove the checkpoints that `list_removable` lists."""
        perform(self.steps.retain(keep, last))

    def list_removable(self, keep: int) -> Sequence[CheckpointEntry]:
        """List all but the last `keep` checkpoints, never the last two. Damaged ones do not
        count."""
        return perform(self.steps.list_removable(keep))

    def thin(self, keep: int, path: str) -> None:
        """Call `retain` after a commit, which stands whatever happens: errors become warnings."""
        perform(self.steps.thin(keep, path))

    def remove(self, entry: CheckpointEntry) -> None:
        """Make a checkpoint none any more, then remove its shards."""
        perform(self.steps.remove(entry))

    def leftovers(self) -> list[str]:
        """List attempts and removals that were cut off."""
        return perform(self.steps.leftovers())

    def collect(self, lock: RepositoryLock) -> None:
        """Remove leftovers, as far as that can be done."""
        perform(self.steps.collect(lock))

    def lock(self, session: str = "") -> RepositoryLock:
        """Become the job that writes here. session: of the job's saves, if it makes any."""
        return perform(self.steps.lock(describe_writer(session)))

    def index(self, entry: CheckpointEntry) -> CheckpointIndex:
        """Read the index of a checkpoint; FormatError if it is damaged or another's."""
        return perform(self.steps.index(entry))

    def index_path(self, entry: CheckpointEntry) -> str:
        """Return where the index of a checkpoint is, for messages."""
        return self.steps.index_path(entry)

    @abstractmethod
    def committed_s(self, entry: CheckpointEntry) -> float:
        """Return the time of a commit, in seconds since 1970."""

    @abstractmethod
    def open_shard(self, path: str) -> AbstractContextManager[ShardSource]:
        """Open a shard by the path of its checkpoint and its name, joined by a slash."""


def make_session() -> str:
    """Make the name of a session, which no other job has."""
    return secrets.token_hex(SESSION_DIGITS // 2)


def describe_writer(session: str) -> bytes:
    """Describe this process and a session of it, as locks name them."""
    where = f"process {os.getpid()} on {os.uname().nodename}"
    return (f"{where}, session {session}\n" if session else f"{where}\n").encode()
