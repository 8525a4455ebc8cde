"""A folder of checkpoints: what is committed, how one gets there, and what is removed when.

    .lock                            the job that writes here: it holds a flock, and is named in it
    step-<N>.<sequence>/             a checkpoint; sequence counts commits, whatever their steps
        rank-<r>.shard, index
    step-<N>.<attempt>.incomplete/   on its way, or left by a job that was killed

A checkpoint is made under the last name and synced, shards first, then the index, then the folder
itself; a rename commits it, and is synced. Whatever a crash leaves is either whole under a name
of a checkpoint, or not looked at, and removed by the next job that writes here. Where a run went
back to an earlier step, what it commits then is the latest, as it has the higher sequence.

What is removed loses its index first: without it, a folder is no checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..engine import storage_errors, sync_folder, write_all
from ..errors import FormatError, MissingError, StorageError, UsageError
from . import repository
from .array_leaves import Memory
from .fault_points import reached
from .flushing import Flush, ShardSource
from .manifest import CheckpointIndex, Piece, Shard, index_bytes, index_of
from .repository import AGAIN, CheckpointEntry, Repository

INDEX = "index"
_COMMITTED = re.compile(r"step-(\d+)\.(\d+)")
_INCOMPLETE = re.compile(r"step-\d+\.[0-9a-z]+\.incomplete")
_OURS = re.compile(r"index(\.part)?|rank-\d+\.shard")


class Folder(Repository):
    """Committed checkpoints of a folder. MissingError where there is none, unless it is to be
    made."""

    def __init__(self, path: str | os.PathLike[str], *, make: bool = False) -> None:
        self.path = os.path.abspath(os.fspath(path))
        if make:
            with storage_errors(self.path, "try again"):
                os.makedirs(self.path, exist_ok=True)
        self._left: list[str] = []  # no checkpoints, and not removed yet
        if not _is_there(os.path.join(self.path, "")):
            raise MissingError(f"{self.path} is not a folder: name the folder of the checkpoints")

    def entries(self) -> list[CheckpointEntry]:
        found = []
        for name in self._names():
            if match := _COMMITTED.fullmatch(name):
                path = os.path.join(self.path, name)
                if _is_there(os.path.join(path, INDEX)):
                    found.append(CheckpointEntry(int(match[2]), int(match[1]), path))
        return sorted(found)

    # -- committing --------------------------------------------------------------------------------

    def begin(self, step: int, attempt: str) -> str:
        path = os.path.join(self.path, f"step-{step}.{attempt}.incomplete")
        with storage_errors(path, AGAIN), contextlib.suppress(FileExistsError):
            reached(f"make {path}")
            os.mkdir(path)
        return path

    def write(
        self, begun: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Flush
    ) -> Shard:
        with synced(begun, name) as path:
            return flush.write(path, memory, pieces)

    def put(self, begun: str, name: str, file: str, flush: Flush) -> None:
        with self.opened(file) as source, synced(begun, name) as path:
            flush.copy(path, source)

    def commit(
        self, begun: str, index: CheckpointIndex, lock: repository.RepositoryLock
    ) -> CheckpointEntry:
        """Where only the very last step failed, syncing a name that is there already, the next
        commit syncs it, too."""
        self._clear()
        for shard in index.shards:
            with storage_errors(begun, AGAIN):
                size = _size(os.path.join(begun, shard.file))
            if size != shard.bytes:
                raise StorageError(
                    f"{begun}: {shard.file} has {size:,} bytes, and {shard.bytes:,} were written:"
                    " is the folder shared by all ranks? Save again: nothing was committed"
                )
        last = max((entry.sequence for entry in self._taken()), default=0)
        entry = CheckpointEntry(last + 1, index.step, "")
        entry = entry._replace(path=os.path.join(self.path, f"step-{index.step}.{last + 1}"))
        with storage_errors(begun, AGAIN):
            put_index(begun, index_bytes(index))
            lock.check()
            reached(f"rename {begun}")
            try:
                os.rename(begun, entry.path)
            except OSError:
                if not _is_there(entry.path):  # or it is done, and the answer was lost
                    raise
        reached(f"sync folder {self.path}")
        sync_folder(self.path, f"save again: {entry.path} is there, but a power cut may take it")
        reached(f"committed {entry.path}")
        return entry

    def abandon(self, begun: str) -> None:
        """What cannot be removed now is tried again with the next commit, or the next of these."""
        reached(f"abandon {begun}")
        self._clear(begun)

    # -- removing ----------------------------------------------------------------------------------

    def remove(self, entry: CheckpointEntry) -> None:
        self._left.append(entry.path)
        with storage_errors(entry.path, "try again"):
            reached(f"unindex {entry.path}")
            os.unlink(os.path.join(entry.path, INDEX))
            sync_folder(entry.path, "try again")
        reached(f"remove {entry.path}")
        self._clear()
        reached(f"removed {entry.path}")

    def leftovers(self) -> list[str]:
        committed = {os.path.basename(entry.path) for entry in self.entries()}
        return [
            os.path.join(self.path, name)
            for name in self._names()
            if _INCOMPLETE.fullmatch(name) or (_COMMITTED.fullmatch(name) and name not in committed)
        ]

    def collect(self) -> list[str]:
        found = self.leftovers()
        for path in found:
            reached(f"collect {path}")
            self._clear(path)
        return [path for path in found if path not in self._left]

    def _clear(self, *paths: str) -> None:
        """Remove what is no checkpoint; what cannot be removed is tried again the next time."""
        left, self._left = dict.fromkeys((*self._left, *paths)), []
        for path in left:
            try:
                emptied(path)
            except FileNotFoundError:
                pass
            except OSError:
                self._left.append(path)

    # -- reading -----------------------------------------------------------------------------------

    def index(self, entry: CheckpointEntry) -> CheckpointIndex:
        path = self.index_path(entry)
        with reading(path), open(path, "rb") as file:
            data = file.read()
        index = index_of(data, path)
        if index.step != entry.step:
            raise FormatError(f"{path} is of step {index.step}: the folder was renamed; undo that")
        return index

    def index_path(self, entry: CheckpointEntry) -> str:
        return os.path.join(entry.path, INDEX)

    def committed_s(self, entry: CheckpointEntry) -> float:
        with reading(entry.path):
            return os.stat(self.index_path(entry)).st_mtime

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[ShardSource]:
        with reading(path):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield _File(file)
            finally:
                os.close(file)

    def lock(self, session: str) -> FolderLock:
        return FolderLock(self.path, session)

    def _names(self) -> list[str]:
        with reading(self.path):
            return sorted(os.listdir(self.path))

    def _taken(self) -> Iterator[CheckpointEntry]:
        """All sequence numbers that are used, also by removals that were cut off."""
        for name in self._names():
            if match := _COMMITTED.fullmatch(name):
                yield CheckpointEntry(int(match[2]), int(match[1]), name)


class FolderLock:
    """One writer per folder: a flock where the file system has it, and the session in the file,
    which is looked at before each commit, where it does not."""

    def __init__(self, folder: str, session: str) -> None:
        self.path = os.path.join(folder, ".lock")
        self._session = session.encode()
        with storage_errors(self.path, "try again"):
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._take(folder)
            except BaseException:
                os.close(self._file)
                raise
        _locks.add(self)

    def _take(self, folder: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 200, 0).decode(errors="replace").strip()
            raise UsageError(
                f"{folder} is written by another job ({holder or 'unknown'}): give each job a"
                " folder of its own, or end that one"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        os.ftruncate(self._file, 0)
        write_all(self._file, self._session, 0)

    def check(self) -> None:
        """UsageError where another job has taken over."""
        found = b""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            found = file.read(200)
        if found != self._session:
            holder = found.decode(errors="replace").strip() or "it is gone"
            raise UsageError(
                f"{self.path} is of another job now ({holder}): nothing was committed; let one job"
                " write to the folder"
            )

    def close(self) -> None:
        """Others may write. May be called again."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget() -> None:
    """A forked worker, which may outlive the job, does not hold its lock."""
    for lock in _locks:
        lock.close()


os.register_at_fork(after_in_child=_forget)


class _File(NamedTuple):
    """A shard in a file."""

    file: int

    @property
    def bytes(self) -> int:
        return os.fstat(self.file).st_size

    def read(self, into: Memory, at: int) -> int:
        got = 0
        while got < len(into) and (more := os.preadv(self.file, [into[got:].data], at + got)):
            got += more
        return got


@contextlib.contextmanager
def synced(folder: str, name: str) -> Iterator[str]:
    """Where a shard is made; its name is there to stay after this. Where that fails, nothing of it
    is left, as far as that can be done."""
    path = os.path.join(folder, name)
    try:
        yield path
        reached(f"sync folder {folder}")
        sync_folder(folder, AGAIN)
    except BaseException:
        with contextlib.suppress(OSError):  # room for others, who may be about to write here
            os.unlink(path)
        raise


def put_index(folder: str, data: bytes) -> None:
    """Make the index of a folder, whole or not at all; it is there to stay when this returns."""
    part, final = os.path.join(folder, INDEX + ".part"), os.path.join(folder, INDEX)
    reached(f"write {final}")
    with open(part, "wb", buffering=0) as file:  # of a try that failed, there may be one
        write_all(file.fileno(), data, 0)
        reached(f"sync {final}")
        os.fsync(file.fileno())
    reached(f"rename {final}")
    os.rename(part, final)
    reached(f"sync folder {folder}")
    sync_folder(folder, AGAIN)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns what the system says against reading into our errors."""
    try:
        yield
    except FileNotFoundError:
        raise MissingError(
            f"{path} is not there: it was removed, by the job that writes there perhaps; list what"
            " is left, and load that"
        ) from None
    except (MissingError, StorageError):
        raise
    except OSError as error:
        failed = StorageError(
            f"{path} cannot be read: {os.strerror(error.errno or 0)}: check the folder and its file"
            " system"
        )
        failed.errno = error.errno
        raise failed from None


def _is_there(path: str) -> bool:
    """StorageError where that cannot be told: it is not taken for gone, and removed."""
    with reading(path):
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1


def emptied(path: str) -> None:
    """Remove a folder and what of it is ours; OSError where there is more in it."""
    names = os.listdir(path)
    if INDEX in names:  # the first to be gone, also after a power cut
        os.unlink(os.path.join(path, INDEX))
        sync_folder(path)
        names.remove(INDEX)
    for name in names:
        if _OURS.fullmatch(name):
            os.unlink(os.path.join(path, name))
    os.rmdir(path)
