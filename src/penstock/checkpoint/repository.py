"""A home: where checkpoints are committed, and loaded from.

`Folder` is one of a file system, `Prefix` one of an object store. They differ in how shards are
written and read, and in what the commit is; what is committed means the same in both.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from ..errors import DataError, MissingError, PenstockError
from .array_leaves import Memory
from .flushing import Flush, ShardSource
from .manifest import CheckpointIndex, Piece, Shard

AGAIN = "save again: nothing was committed"
"""What helps where a save failed, once the cause is gone."""
KEEP_MIN = 2
"""Checkpoints that are never removed: should the last one prove damaged, there is another."""


class CheckpointEntry(NamedTuple):
    """A committed checkpoint; they sort as they were committed. path: where its shards lie."""

    sequence: int
    step: int
    path: str


class RepositoryLock(Protocol):
    """Held by the job that writes to a home."""

    def check(self) -> None:
        """UsageError where another job has taken over."""

    def close(self) -> None:
        """Others may write. May be called again."""


class Repository(ABC):
    """Committed checkpoints of one place. Reading needs no lock; `begin` and what follows do."""

    path: str
    readers = 4
    """Pieces that are best read at once."""
    takes_over = False
    """Whether `lock` takes it from who holds it, and who can commit nothing then; it is refused
    otherwise."""

    @abstractmethod
    def entries(self) -> list[CheckpointEntry]:
        """What is committed, oldest first."""

    def entry(self, step: int | None = None) -> CheckpointEntry:
        """The latest, or the latest of a step; MissingError where there is none."""
        entries = self.entries()
        wanted = [each for each in entries if step is None or each.step == step]
        if wanted:
            return wanted[-1]
        if step is None:
            raise MissingError(f"there is no checkpoint in {self.path}: save one first")
        there = ", ".join(str(each.step) for each in entries) or "none"
        raise MissingError(f"{self.path} has no checkpoint of step {step}: it has {there}")

    def before(self, entry: CheckpointEntry) -> CheckpointEntry | None:
        """What was committed before, and is still there."""
        earlier = [each for each in self.entries() if each.sequence < entry.sequence]
        return earlier[-1] if earlier else None

    def offering(self, error: DataError, entry: CheckpointEntry) -> DataError:
        """What is wrong with a checkpoint, with the one before named, if there is one."""
        before = self.before(entry)
        if before is None:
            return error
        return type(error)(f"{error}. The one before it is of step {before.step}")

    # -- committing --------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, step: int, attempt: str) -> str:
        """A place for the shards of an attempt; each rank may call it."""

    @abstractmethod
    def write(
        self, begun: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Flush
    ) -> Shard:
        """A shard, from memory; it is there to stay when this returns. Where it raises, nothing of
        it is left, as far as that can be done.

        memory, pieces:  see `Flush.write`.
        """

    @abstractmethod
    def put(self, begun: str, name: str, file: str, flush: Flush) -> None:
        """A shard that lies in a file of this host, copied; otherwise as `write`."""

    @abstractmethod
    def commit(self, begun: str, index: CheckpointIndex, lock: RepositoryLock) -> CheckpointEntry:
        """Make an attempt, whose shards are there to stay, a checkpoint. Where this raises, it is
        none; save that the last thing that it does may be heard of only by who looks."""

    @abstractmethod
    def abandon(self, begun: str) -> None:
        """Remove an attempt, as far as that can be done."""

    # -- removing ----------------------------------------------------------------------------------

    def retain(self, keep: int) -> list[CheckpointEntry]:
        """Remove all but the last `keep` checkpoints; returns those. Never the last two."""
        gone = self.entries()[: -max(keep, KEEP_MIN)]
        for entry in gone:
            self.remove(entry)
        return gone

    def thin(self, keep: int) -> None:
        """`retain`, after a commit that stands whatever comes of it: what fails is a warning."""
        try:
            self.retain(keep)
        except PenstockError as error:
            warnings.warn(
                f"a checkpoint was committed, but older ones were not removed: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    @abstractmethod
    def remove(self, entry: CheckpointEntry) -> None:
        """The checkpoint is none any more, then its shards are removed."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """Attempts and removals that were cut off. Whoever holds the lock may remove them."""

    @abstractmethod
    def collect(self) -> list[str]:
        """Remove what was cut off; returns what is gone."""

    @abstractmethod
    def lock(self, session: str) -> RepositoryLock:
        """Become the one that writes here; UsageError where another job holds it, and it is not
        taken over."""

    # -- reading -----------------------------------------------------------------------------------

    @abstractmethod
    def index(self, entry: CheckpointEntry) -> CheckpointIndex:
        """The index of a checkpoint; FormatError where it is damaged or another's."""

    @abstractmethod
    def index_path(self, entry: CheckpointEntry) -> str:
        """Where its index is, for messages."""

    @abstractmethod
    def committed_s(self, entry: CheckpointEntry) -> float:
        """When it was committed, in seconds since 1970."""

    @abstractmethod
    def opened(self, path: str) -> AbstractContextManager[ShardSource]:
        """A shard, by the path of its checkpoint and its name, joined by a slash."""
