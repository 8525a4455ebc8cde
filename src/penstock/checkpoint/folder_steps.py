"""The protocol of a repository in a folder of a file system: its files, the commit, and the removal
of old checkpoints, as steps. Pure.

    .lock                            the job that writes here: it holds a flock, and is named in it
    step-<N>.<sequence>/             a checkpoint; sequence counts commits, whatever their steps
        rank-<r>.shard, index
    step-<N>.<attempt>.incomplete/   a save under way, or left by a job that was killed

A checkpoint is made under the last of these names and synced: shards first, then the index, then
the folder itself. A rename commits it, and is synced too. After a crash, a folder is either a whole
checkpoint under the name of one, or it is ignored and removed by the next job that writes here. If
a run went back to an earlier step, its next commit is the latest, as it has the higher sequence.

The removal of a checkpoint begins with its index: a folder without an index is no checkpoint.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from ..engine import storage_errors
from ..errors import StorageError, UsageError
from .actions import (
    Action,
    CheckOwnFolder,
    CopyShard,
    FindLink,
    FindName,
    FindPath,
    ListFolder,
    MakeFolder,
    MeasureFile,
    ReadFile,
    ReadLock,
    RemoveFile,
    RemoveFolder,
    RenamePath,
    Steps,
    SyncFolder,
    TakeLock,
    WriteFile,
    WriteShard,
)
from .manifest import CheckpointIndex, Memory, Piece, ShardEntry, encode_index
from .repository_steps import (
    AGAIN,
    CheckpointEntry,
    RepositoryLock,
    RepositorySteps,
    translate_read_errors,
)

INDEX = "index"
_COMMITTED = re.compile(r"step-(\d+)\.(\d+)")
_INCOMPLETE = re.compile(r"step-\d+\.[0-9a-z]+\.incomplete")
_OURS = re.compile(r"index(\.part)?|rank-\d+\.shard")


class FolderSteps(RepositorySteps):
    """Committed checkpoints in a folder, which is there. path: absolute."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._unremoved: list[str] = []  # no checkpoints, and not removed yet

    def entries(self) -> Steps[list[CheckpointEntry]]:
        entries = []
        for name in (yield from self._list_names()):
            if match := _COMMITTED.fullmatch(name):
                path = f"{self.path}/{name}"
                if (yield from find_path(f"{path}/{INDEX}")):
                    entries.append(CheckpointEntry(int(match[2]), int(match[1]), path))
        return sorted(entries)

    # -- committing --------------------------------------------------------------------------------

    def begin(self, step: int, attempt: str) -> Steps[str]:
        path = f"{self.path}/step-{step}.{attempt}.incomplete"
        with storage_errors(path, AGAIN), contextlib.suppress(FileExistsError):
            yield MakeFolder(path)
        return path

    def write(
        self, attempt_path: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Any
    ) -> Steps[ShardEntry]:
        entry: ShardEntry = yield from write_synced(
            attempt_path, name, lambda path: WriteShard(path, memory, pieces, flush)
        )
        return entry

    def put(self, attempt_path: str, name: str, file: str, flush: Any) -> Steps[None]:
        yield from write_synced(attempt_path, name, lambda path: CopyShard(path, file, flush))

    def commit(
        self, attempt_path: str, index: CheckpointIndex, lock: RepositoryLock
    ) -> Steps[CheckpointEntry]:
        """Commit as `RepositorySteps.commit` says. If only the very last action failed, the sync of
        a name that is there already, the next commit syncs that name too."""
        yield from self._clear()
        for shard in index.shards:
            with storage_errors(attempt_path, AGAIN):
                size = yield from _measure_file(f"{attempt_path}/{shard.file}")
            if size != shard.bytes:
                raise StorageError(
                    f"{attempt_path}: {shard.file} has {size:,} bytes, but {shard.bytes:,} were"
                    " written: is the folder shared by all ranks? Save again: nothing was committed"
                )
        sequence = (yield from self._find_last_sequence()) + 1
        path = f"{self.path}/step-{index.step}.{sequence}"
        with storage_errors(attempt_path, AGAIN):
            yield from put_index(attempt_path, encode_index(index))
            yield from lock.check()
            try:
                yield RenamePath(attempt_path, path)
            except OSError:
                is_left = yield FindName(attempt_path)
                if is_left or not (yield from find_path(path)):
                    raise  # else it is done, and the answer was lost
        yield SyncFolder(self.path, f"save again: {path} is there, but a power cut may take it")
        return CheckpointEntry(sequence, index.step, path)

    def sync_names(self) -> Steps[None]:
        yield SyncFolder(self.path, "save again: a power cut may take what was written last")

    def abandon(self, attempt_path: str) -> Steps[None]:
        """Remove the shards of an attempt. If that fails, the next commit or the next call tries
        again."""
        yield from self._clear(attempt_path)

    # -- removing ----------------------------------------------------------------------------------

    def remove(self, entry: CheckpointEntry) -> Steps[None]:
        self._unremoved.append(entry.path)
        is_link = yield FindLink(entry.path)
        if not is_link:  # else the link goes, and nothing that it leads to
            with storage_errors(entry.path, "try again"):
                yield RemoveFile(f"{entry.path}/{INDEX}")
                yield SyncFolder(entry.path, "try again")
        yield from self._clear()

    def leftovers(self) -> Steps[list[str]]:
        entries = yield from self.entries()
        committed = {entry.path for entry in entries}
        names = yield from self._list_names()
        return [
            path
            for name in names
            if (path := f"{self.path}/{name}") not in committed
            and (_INCOMPLETE.fullmatch(name) or _COMMITTED.fullmatch(name))
        ]

    def collect(self, lock: RepositoryLock) -> Steps[None]:
        left = yield from self.leftovers()
        yield from lock.check()  # no other job had begun when these were listed: none is its own
        for path in left:
            yield from self._clear(path)

    def _clear(self, *paths: str) -> Steps[None]:
        """Remove folders that are no checkpoints; those that cannot be removed are tried again the
        next time."""
        left, self._unremoved = dict.fromkeys((*self._unremoved, *paths)), []
        for path in left:
            try:
                yield from empty_folder(path)
            except FileNotFoundError:
                pass
            except OSError:
                self._unremoved.append(path)

    # -- reading -----------------------------------------------------------------------------------

    def read_index(self, entry: CheckpointEntry) -> Steps[bytes]:
        path = self.index_path(entry)
        with translate_read_errors(path):
            data: bytes = yield ReadFile(path)
        return data

    def index_path(self, entry: CheckpointEntry) -> str:
        return f"{entry.path}/{INDEX}"

    def lock(self, session: bytes) -> Steps[FolderLock]:
        return (yield from lock_folder(self.path, session))

    def _list_names(self) -> Steps[list[str]]:
        with translate_read_errors(self.path):
            names: list[str] = yield ListFolder(self.path)
        return names

    def _find_last_sequence(self) -> Steps[int]:
        """Find the highest sequence number in use, also by removals that were cut off."""
        names = yield from self._list_names()
        matches = map(_COMMITTED.fullmatch, names)
        return max((int(match[2]) for match in matches if match), default=0)


class FolderLock:
    """The lock of the one job that writes to a folder: a flock if the file system has it, and the
    session in the file, which is checked before each commit, if it has none."""

    def __init__(self, path: str, session: bytes, held: Any) -> None:
        self.path, self._session, self._held = path, session, held

    def check(self) -> Steps[None]:
        """Raise UsageError if another job has taken over."""
        session = b""
        with contextlib.suppress(FileNotFoundError):
            session = yield ReadLock(self.path)
        if session != self._session:
            holder = session.decode(errors="replace").strip() or "the file is empty or gone"
            raise UsageError(
                f"{self.path} belongs to another job now ({holder}): nothing was committed; let one"
                " job write to the folder"
            )

    def close(self) -> None:
        """Let others write. May be called again."""
        self._held.close()


def lock_folder(folder: str, session: bytes) -> Steps[FolderLock]:
    """Become the job that writes to a folder; UsageError if another does."""
    path = f"{folder}/.lock"
    with storage_errors(path, "try again"):
        held = yield TakeLock(path, folder, session)
    return FolderLock(path, session, held)


def write_synced(folder: str, name: str, write: Callable[[str], Action]) -> Steps[Any]:
    """Make a shard, and sync its name afterwards. If that fails, the file is removed, as far as
    that can be done. Returns the result of `write`, which is given the path."""
    path = f"{folder}/{name}"
    with storage_errors(folder, AGAIN):
        yield CheckOwnFolder(folder)
    try:
        result = yield write(path)
        yield SyncFolder(folder, AGAIN)
    except BaseException:
        with contextlib.suppress(OSError):  # room for others, who may be about to write here
            yield RemoveFile(path)
        raise
    return result


def put_index(folder: str, data: bytes) -> Steps[None]:
    """Make the index of a folder, whole or not at all. It survives a power cut when this
    returns."""
    part, final = f"{folder}/{INDEX}.part", f"{folder}/{INDEX}"
    yield CheckOwnFolder(folder)
    yield WriteFile(part, data)  # of a try that failed, there may be one
    yield RenamePath(part, final)
    yield SyncFolder(folder, AGAIN)


def find_path(path: str) -> Steps[bool]:
    """Tell whether a path exists. StorageError if that cannot be told: the path is not taken for
    gone, and removed."""
    with translate_read_errors(path):
        is_there: bool = yield FindPath(path)
    return is_there


def _measure_file(path: str) -> Steps[int]:
    try:
        size: int = yield MeasureFile(path)
    except FileNotFoundError:
        return -1
    return size


def empty_folder(path: str) -> Steps[None]:
    """Remove a folder and those of its files that are ours; OSError if it contains others. A link
    to a folder is removed, and nothing that it leads to."""
    is_link = yield FindLink(path)
    if is_link:
        yield RemoveFile(path)
        return
    names = yield ListFolder(path)
    if INDEX in names:
        yield RemoveFile(f"{path}/{INDEX}")
    if not path.endswith(".incomplete"):
        # The index is the first to be gone, also after a power cut, and if a job that was killed
        # has removed it.
        yield SyncFolder(path, "try again")
    for name in names:
        if name != INDEX and _OURS.fullmatch(name):
            yield RemoveFile(f"{path}/{name}")
    yield RemoveFolder(path)
