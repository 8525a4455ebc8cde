"""A repository in a folder of a file system: its files, the commit, and the removal of old
checkpoints.

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
import errno
import fcntl
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..arguments import suggest_path
from ..engine import storage_errors, sync_folder, write_all
from ..errors import FormatError, MissingError, StorageError, UsageError
from ..own_files import check_own_folder, open_new, open_own
from . import repository
from .array_leaves import Memory
from .fault_points import mark_done, mark_point
from .flushing import Flush, ShardSource
from .manifest import CheckpointIndex, Piece, ShardEntry, decode_index, encode_index
from .repository import AGAIN, CheckpointEntry, Repository, describe_writer

INDEX = "index"
_COMMITTED = re.compile(r"step-(\d+)\.(\d+)")
_INCOMPLETE = re.compile(r"step-\d+\.[0-9a-z]+\.incomplete")
_OURS = re.compile(r"index(\.part)?|rank-\d+\.shard")


class Folder(Repository):
    """Committed checkpoints in a folder. MissingError if there is no such folder, unless `make`."""

    def __init__(self, path: str | os.PathLike[str], *, make: bool = False) -> None:
        self.path = os.path.abspath(os.fspath(path))
        if os.path.isfile(self.path):
            raise UsageError(f"{self.path} is a file: name a folder for the checkpoints")
        if make:
            with storage_errors(self.path, "try again"):
                os.makedirs(self.path, exist_ok=True)
        self._unremoved: list[str] = []  # no checkpoints, and not removed yet
        if not _is_there(os.path.join(self.path, "")):
            near = suggest_path(self.path)
            raise MissingError(
                f"{self.path} is not a folder{near}: name the folder of the checkpoints"
            )

    def entries(self) -> list[CheckpointEntry]:
        entries = []
        for name in self._list_names():
            if match := _COMMITTED.fullmatch(name):
                path = os.path.join(self.path, name)
                if _is_there(os.path.join(path, INDEX)):
                    entries.append(CheckpointEntry(int(match[2]), int(match[1]), path))
        return sorted(entries)

    # -- committing --------------------------------------------------------------------------------

    def begin(self, step: int, attempt: str) -> str:
        path = os.path.join(self.path, f"step-{step}.{attempt}.incomplete")
        with storage_errors(path, AGAIN), contextlib.suppress(FileExistsError):
            mark_point(f"make {path}")
            os.mkdir(path)
        return path

    def write(
        self, attempt_path: str, name: str, memory: Memory, pieces: Sequence[Piece], flush: Flush
    ) -> ShardEntry:
        with create_synced(attempt_path, name) as path:
            return flush.write(path, memory, pieces)

    def put(self, attempt_path: str, name: str, file: str, flush: Flush) -> None:
        with self.open_shard(file) as source, create_synced(attempt_path, name) as path:
            flush.copy(path, source)

    def commit(
        self, attempt_path: str, index: CheckpointIndex, lock: repository.RepositoryLock
    ) -> CheckpointEntry:
        """Commit as `Repository.commit` says. If only the very last action failed, the sync of a
        name that is there already, the next commit syncs that name too."""
        self._clear()
        for shard in index.shards:
            with storage_errors(attempt_path, AGAIN):
                size = _get_file_bytes(os.path.join(attempt_path, shard.file))
            if size != shard.bytes:
                raise StorageError(
                    f"{attempt_path}: {shard.file} has {size:,} bytes, but {shard.bytes:,} were"
                    " written: is the folder shared by all ranks? Save again: nothing was committed"
                )
        sequence = self._find_last_sequence() + 1
        path = os.path.join(self.path, f"step-{index.step}.{sequence}")
        with storage_errors(attempt_path, AGAIN):
            put_index(attempt_path, encode_index(index))
            lock.check()
            mark_point(f"rename {attempt_path}")
            try:
                os.rename(attempt_path, path)
            except OSError:
                if os.path.lexists(attempt_path) or not _is_there(path):
                    raise  # else it is done, and the answer was lost
        mark_point(f"sync folder {self.path}")
        sync_folder(self.path, f"save again: {path} is there, but a power cut may take it")
        mark_done(f"committed {path}")
        return CheckpointEntry(sequence, index.step, path)

    def abandon(self, attempt_path: str) -> None:
        """Remove the shards of an attempt. If that fails, the next commit or the next call tries
        again."""
        mark_point(f"abandon {attempt_path}")
        self._clear(attempt_path)

    # -- removing ----------------------------------------------------------------------------------

    def remove(self, entry: CheckpointEntry) -> None:
        self._unremoved.append(entry.path)
        if not os.path.islink(entry.path):  # else the link goes, and nothing that it leads to
            with storage_errors(entry.path, "try again"):
                mark_point(f"unindex {entry.path}")
                os.unlink(os.path.join(entry.path, INDEX))
                sync_folder(entry.path, "try again")
        mark_point(f"remove {entry.path}")
        self._clear()
        mark_done(f"removed {entry.path}")

    def leftovers(self) -> list[str]:
        committed = {os.path.basename(entry.path) for entry in self.entries()}
        return [
            os.path.join(self.path, name)
            for name in self._list_names()
            if _INCOMPLETE.fullmatch(name) or (_COMMITTED.fullmatch(name) and name not in committed)
        ]

    def collect(self, lock: repository.RepositoryLock) -> None:
        left = self.leftovers()
        lock.check()  # no other job had begun when these were listed: none of them is its own
        for path in left:
            mark_point(f"collect {path}")
            self._clear(path)

    def _clear(self, *paths: str) -> None:
        """Remove folders that are no checkpoints; those that cannot be removed are tried again the
        next time."""
        left, self._unremoved = dict.fromkeys((*self._unremoved, *paths)), []
        for path in left:
            try:
                empty_folder(path)
            except FileNotFoundError:
                pass
            except OSError:
                self._unremoved.append(path)

    # -- reading -----------------------------------------------------------------------------------

    def index(self, entry: CheckpointEntry) -> CheckpointIndex:
        path = self.index_path(entry)
        with translate_read_errors(path), open(path, "rb") as file:
            data = file.read()
        index = decode_index(data, path)
        if index.step != entry.step:
            raise FormatError(f"{path} is of step {index.step}: its folder was renamed; undo that")
        return index

    def index_path(self, entry: CheckpointEntry) -> str:
        return os.path.join(entry.path, INDEX)

    def committed_s(self, entry: CheckpointEntry) -> float:
        with translate_read_errors(entry.path):
            return os.stat(self.index_path(entry)).st_mtime

    @contextlib.contextmanager
    def open_shard(self, path: str) -> Iterator[ShardSource]:
        with translate_read_errors(path):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield _File(file)
            finally:
                os.close(file)

    def lock(self, session: str = "") -> FolderLock:
        return FolderLock(self.path, session)

    def _list_names(self) -> list[str]:
        with translate_read_errors(self.path):
            return sorted(os.listdir(self.path))

    def _find_last_sequence(self) -> int:
        """Find the highest sequence number in use, also by removals that were cut off."""
        matches = map(_COMMITTED.fullmatch, self._list_names())
        return max((int(match[2]) for match in matches if match), default=0)


class FolderLock:
    """The lock of the one job that writes to a folder: a flock if the file system has it, and the
    session in the file, which is checked before each commit, if it has none."""

    def __init__(self, folder: str, session: str) -> None:
        self.path = os.path.join(folder, ".lock")
        self._session = describe_writer(session).encode()
        with storage_errors(self.path, "try again"):
            self._file = open_own(self.path, os.O_RDWR | os.O_CREAT)
            try:
                self._take(folder)
            except BaseException:
                os.close(self._file)
                raise
        self._finalizer = weakref.finalize(self, os.close, self._file)
        self._finalizer.atexit = False  # the end of the process lets others write, not before
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
        """Raise UsageError if another job has taken over."""
        session = b""
        with contextlib.suppress(FileNotFoundError):
            file = open_own(self.path, os.O_RDONLY)
            try:
                session = os.read(file, 200)
            finally:
                os.close(file)
        if session != self._session:
            holder = session.decode(errors="replace").strip() or "the file is empty or gone"
            raise UsageError(
                f"{self.path} belongs to another job now ({holder}): nothing was committed; let one"
                " job write to the folder"
            )

    def close(self) -> None:
        """Let others write. May be called again."""
        self._finalizer()


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _release_locks() -> None:
    """Release the locks in a forked worker, which may outlive the job."""
    for lock in _locks:
        lock.close()


os.register_at_fork(after_in_child=_release_locks)


class _File(NamedTuple):
    """A shard in a file, open to be read."""

    file: int

    @property
    def bytes(self) -> int:
        return os.fstat(self.file).st_size

    def read(self, into: Memory, at: int) -> int:
        filled = 0
        while filled < len(into) and (
            count := os.preadv(self.file, [into[filled:].data], at + filled)
        ):
            filled += count
        return filled


@contextlib.contextmanager
def create_synced(folder: str, name: str) -> Iterator[str]:
    """Give the path at which to make a shard, and sync its name afterwards. If that fails, the file
    is removed, as far as that can be done."""
    path = os.path.join(folder, name)
    with storage_errors(folder, AGAIN):
        check_own_folder(folder)
    try:
        yield path
        mark_point(f"sync folder {folder}")
        sync_folder(folder, AGAIN)
    except BaseException:
        with contextlib.suppress(OSError):  # room for others, who may be about to write here
            os.unlink(path)
        raise


def put_index(folder: str, data: bytes) -> None:
    """Make the index of a folder, whole or not at all. It survives a power cut when this
    returns."""
    part, final = os.path.join(folder, INDEX + ".part"), os.path.join(folder, INDEX)
    mark_point(f"write {final}")
    check_own_folder(folder)
    file = open_new(part)  # of a try that failed, there may be one
    try:
        write_all(file, data, 0)
        mark_point(f"sync {final}")
        os.fsync(file)
    finally:
        os.close(file)
    mark_point(f"rename {final}")
    os.rename(part, final)
    mark_point(f"sync folder {folder}")
    sync_folder(folder, AGAIN)


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
            f"{path} cannot be read: {os.strerror(error.errno or 0)}: check the folder and its file"
            " system"
        )
        failed.errno = error.errno
        raise failed from None


def _is_there(path: str) -> bool:
    """True if a path exists. StorageError if that cannot be told: the path is not taken for gone,
    and removed."""
    with translate_read_errors(path):
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def _get_file_bytes(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1


def empty_folder(path: str) -> None:
    """Remove a folder and those of its files that are ours; OSError if it contains others. A link
    to a folder is removed, and nothing that it leads to."""
    if os.path.islink(path):
        os.unlink(path)
        return
    names = os.listdir(path)
    if INDEX in names:  # the first to be gone, also after a power cut
        os.unlink(os.path.join(path, INDEX))
        sync_folder(path)
        names.remove(INDEX)
    for name in names:
        if _OURS.fullmatch(name):
            os.unlink(os.path.join(path, name))
    os.rmdir(path)
