"""The protocol of a repository, as steps: what each operation asks of storage, in which order.
Pure.

`FolderSteps` is that of a folder, `PrefixSteps` that of a prefix in an object store. `Repository`
performs them over real storage.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from ..errors import DataError, FormatError, MissingError, PenstockError, StorageError
from .actions import CheckShard, Steps, WarnUser
from .manifest import CheckpointIndex, Memory, Piece, ShardEntry, decode_index

AGAIN = "save again: nothing was committed"
"""Remedy for a save that failed, once the cause is gone."""
_reads_max = 3
"""Reads of an index that comes with other damage each time, before it is given up."""
KEEP_MIN = 2
"""Checkpoints that are never removed: if the last one proves damaged, there is another."""


class CheckpointEntry(NamedTuple):
    """A committed checkpoint; entries sort in the order of their commits. path: where its shards
    lie."""

    sequence: int
    step: int
    path: str


class LastAttempt(NamedTuple):
    """The attempt of the last checkpoint; None if there is none, or its index cannot be read.

    path:     of the checkpoint.
    is_lost:  True if the index is damaged where it lies.
    damage:   text of the error if it is damaged on its way: it may name any attempt.
    """

    attempt: str | None = None
    path: str | None = None
    is_lost: bool = False
    damage: str = ""


class RepositoryLock(Protocol):
    """The right of one job to write to a repository."""

    def check(self) -> Steps[None]:
        """Raise UsageError if another job has taken over."""

    def close(self) -> None:
        """Let others write. May be called again."""


class RepositorySteps(ABC):
    """The protocol of one place of committed checkpoints. Reading needs no lock; `begin` and the
    calls after it do."""

    path: str
    reader: Any = None
    """Opens the shards of this place; the driver sets it."""

    @abstractmethod
    def entries(self) -> Steps[list[CheckpointEntry]]:
        """List the committed checkpoints, oldest first."""

    def entry(self, step: int | None = None) -> Steps[CheckpointEntry]:
        """Return the latest checkpoint, or the latest of a step; MissingError if there is none."""
        entries = yield from self.entries()
        wanted = [entry for entry in entries if step is None or entry.step == step]
        if wanted:
            return wanted[-1]
        if step is None:
            raise MissingError(f"there is no checkpoint in {self.path}: save one first")
        steps = ", ".join(str(entry.step) for entry in entries) or "none"
        raise MissingError(f"{self.path} has no checkpoint of step {step}: it has {steps}")

    def find_previous(self, entry: CheckpointEntry) -> Steps[CheckpointEntry | None]:
        """Find the checkpoint that was committed before this one and still exists; None if there is
        none."""
        entries = yield from self.entries()
        earlier = [other for other in entries if other.sequence < entry.sequence]
        return earlier[-1] if earlier else None

    def name_previous(self, error: DataError, entry: CheckpointEntry) -> Steps[DataError]:
        """Add the name of the previous checkpoint, if there is one, to the error of a damaged
        checkpoint."""
        previous = yield from self.find_previous(entry)
        if previous is None:
            return error
        return type(error)(f"{error}. The checkpoint before it is of step {previous.step}")

    # -- committing --------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, step: int, attempt: str) -> Steps[str]:
        """Make a place for the shards of an attempt, and return its path; each rank may call it."""

    @abstractmethod
    def write(
        self, attempt_path: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Any
    ) -> Steps[ShardEntry]:
        """Write a shard from memory; it survives a power cut when this returns. If this raises,
        nothing of the shard is left, as far as that can be done.

        memory, pieces:  see `Flush.write`.
        """

    @abstractmethod
    def put(self, attempt_path: str, name: str, file: str, flush: Any) -> Steps[None]:
        """Copy a shard from a file of this host; otherwise as `write`."""

    @abstractmethod
    def commit(
        self, attempt_path: str, index: CheckpointIndex, lock: RepositoryLock
    ) -> Steps[CheckpointEntry]:
        """Commit an attempt whose shards have been written: make it a checkpoint. If this raises,
        it is none; only if the very last action failed may it exist, so that the next reader finds
        it."""

    def sync_names(self) -> Steps[None]:
        """Let the names of checkpoints and attempts that are there survive a power cut."""
        yield from ()

    @abstractmethod
    def abandon(self, attempt_path: str) -> Steps[None]:
        """Remove an attempt, as far as that can be done."""

    # -- removing ----------------------------------------------------------------------------------

    def retain(self, keep: int, last: str | None = None) -> Steps[None]:
        """Remove the checkpoints that `list_removable` lists."""
        for entry in (yield from self.list_removable(keep, last)):
            yield from self.remove(entry)

    def list_removable(
        self, keep: int, last: str | None = None
    ) -> Steps[Sequence[CheckpointEntry]]:
        """List all but the last `keep` checkpoints, never the last two. Those whose index is seen
        to be damaged, perhaps on its way, are not counted, and go once as many later ones are
        there.

        last:  the path of the checkpoint that counts as the last; None is the latest.
        """
        entries = yield from self.entries()
        while last is not None and entries and entries[-1].path != last:
            entries.pop()
        whole = [entry for entry in entries if entry.step >= 0]
        least = max(keep, KEEP_MIN)
        if len(whole) < least:
            return ()
        return entries[: entries.index(whole[-least])]

    def thin(self, keep: int, path: str) -> Steps[None]:
        """Call `retain` after a commit, which stands whatever happens: an error becomes a warning.

        path:  of the checkpoint that was committed. Later ones are of a job that has taken over,
               and keeps as many as it wants.
        """
        try:
            yield from self.retain(keep, path)
        except PenstockError as error:
            yield WarnUser(f"a checkpoint was committed, but older ones were not removed: {error}")

    @abstractmethod
    def remove(self, entry: CheckpointEntry) -> Steps[None]:
        """Make a checkpoint none any more, then remove its shards."""

    @abstractmethod
    def leftovers(self) -> Steps[list[str]]:
        """List attempts and removals that were cut off. The job that holds the lock may remove
        them."""

    @abstractmethod
    def collect(self, lock: RepositoryLock) -> Steps[None]:
        """Remove leftovers, as far as that can be done. lock: this job's; what another job makes
        that has taken over is not removed."""

    @abstractmethod
    def lock(self, session: bytes) -> Steps[RepositoryLock]:
        """Become the job that writes here. UsageError if another job holds the lock and it is not
        taken over. session: names the process and the session of the job."""

    # -- reading -----------------------------------------------------------------------------------

    def index(self, entry: CheckpointEntry) -> Steps[CheckpointIndex]:
        """Read the index of a checkpoint; FormatError if it is damaged or another's."""
        where = self.index_path(entry)
        index = decode_index((yield from self.read_index(entry)), where)
        if index.step != entry.step:
            raise FormatError(
                f"{where} is of step {index.step}, and was listed as of step {entry.step}: if its"
                " folder was renamed, undo that"
            )
        return index

    def find_last_attempt(self) -> Steps[LastAttempt]:
        """Find the attempt of the last checkpoint. MissingError if the repository is not there."""
        for entry in reversed((yield from self.entries())):
            with contextlib.suppress(MissingError):  # it is none, or not any more
                return (yield from self._read_attempt(entry))
        return LastAttempt()

    def _read_attempt(self, entry: CheckpointEntry) -> Steps[LastAttempt]:
        """Read the attempt of a checkpoint, again if its index is damaged: damage that is where the
        index lies is the same each time."""
        where, before = self.index_path(entry), None
        for _ in range(_reads_max):
            data = yield from self.read_index(entry)
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
        """Return the path of a checkpoint, as its index has it."""
        return entry.path

    @abstractmethod
    def read_index(self, entry: CheckpointEntry) -> Steps[bytes]:
        """Read the bytes of the index of a checkpoint; MissingError if it is gone, or none."""

    @abstractmethod
    def index_path(self, entry: CheckpointEntry) -> str:
        """Return where the index of a checkpoint is, for messages."""

    def check_shard(self, folder: str, shard: ShardEntry) -> Steps[Sequence[Piece]]:
        """Return the pieces of a shard; FormatError or MissingError unless it is the one that the
        entry names."""
        pieces: Sequence[Piece] = yield CheckShard(self.reader, folder, shard)
        return pieces


@contextlib.contextmanager
def translate_read_errors(path: str) -> Iterator[None]:
    """Turn errors of the system while reading into errors of penstock."""
    try:
        yield
    except FileNotFoundError:
        raise MissingError(
            f"{path} is not there: the job that writes there may have removed it; list the"
            " checkpoints that are left, and load one of them"
        ) from None
    except (MissingError, StorageError):
        raise
    except OSError as error:
        failed = StorageError(
            f"{path} cannot be read: {error.strerror or error}: check the folder and its file"
            " system"
        )
        failed.errno = error.errno
        raise failed from None
