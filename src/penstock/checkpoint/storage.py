"""Storage of checkpoints: files of this host or of a shared file system, and objects of a bucket.

All changes that checkpoints make to storage are calls of a `CheckpointStorage`, as are the clock,
warnings and threads of the code between them. The virtual cluster of the tests implements the same
calls over modelled storage in virtual time, and puts faults between any two of them. A process may
end before any call: the calls made until then are all that is left of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from typing import Protocol, TypeVar

from .. import limits
from ..engine.atomic_file import storage_errors, sync_folder, write_all
from ..engine.object_client import Bucket, ObjectInfo, ObjectRefused, retry_until
from ..engine.store import map_in_threads
from ..errors import MissingError, PenstockError, StorageError, UsageError
from ..own_files import check_own_folder, open_new, open_own
from ..ranks.gather import machine_identity
from . import shards
from .background import BackgroundThread, mark
from .manifest import Memory, ShardEntry
from .shards import Flush, ShardContent, ShardSource, open_content

AGAIN = "save again: nothing was committed"
"""Remedy for a save that failed, once the cause is gone."""
_PAGE = 4096

_libc = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


class StorageLock(Protocol):
    """A lock of a folder for one process."""

    def close(self) -> None:
        """Let other processes take the lock. May be called again."""


class CheckpointStorage(shards.ShardStorage):
    """Files with their shards, and the surroundings of a process: clock, warnings, threads."""

    def __init__(self, *, is_shared: bool = True) -> None:
        self.is_shared = is_shared

    # -- surroundings ------------------------------------------------------------------------------

    def read_clock(self) -> float:
        """Return the time in seconds, by a clock that only goes forward."""
        return time.perf_counter()

    def warn(self, text: str) -> None:
        """Warn the user; training continues."""
        warnings.warn(text, RuntimeWarning, stacklevel=4)

    def start_thread(self, name: str, work: Callable[[], Exception | None]) -> BackgroundThread:
        """Start a thread behind training."""
        thread = BackgroundThread(name, work)
        thread.start_awaited()
        return thread

    def identify_host(self) -> str:
        """Return a text that is equal on all ranks of this host, and on no others."""
        return machine_identity()

    def identify_folder(self, path: str) -> list[int]:
        """Make a folder and its parents, and return the folder's identity, whatever its path."""
        os.makedirs(path, exist_ok=True)
        folder = os.stat(path)
        return [folder.st_dev, folder.st_ino]

    # -- folders and names -------------------------------------------------------------------------

    def make_folder(self, path: str) -> None:
        """Make a folder; FileExistsError if there is one."""
        mark(f"make {path}")
        os.mkdir(path)
        mark(f"made {path}", is_done=True)

    def list_folder(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(os.listdir(path))

    def find_path(self, path: str) -> bool:
        """Return True if a path leads to a file or folder; links are followed."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_link(self, path: str) -> bool:
        """Return True if a path is a symbolic link."""
        return os.path.islink(path)

    def has_name(self, path: str) -> bool:
        """Return True if a name exists, even as a link that leads nowhere."""
        return os.path.lexists(path)

    check_own_folder = staticmethod(check_own_folder)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a folder."""
        mark(f"rename {source}")
        os.rename(source, target)
        mark(f"renamed {source}", is_done=True)

    def remove_file(self, path: str) -> None:
        """Remove a file or a link."""
        mark(f"remove {path}")
        os.unlink(path)
        mark(f"removed {path}", is_done=True)

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder; OSError if it is not empty."""
        mark(f"remove {path}")
        os.rmdir(path)
        mark(f"removed {path}", is_done=True)

    def sync_folder(self, path: str, again: str) -> None:
        """Make the names in a folder survive a power cut. again: the remedy in its error."""
        mark(f"sync folder {path}")
        sync_folder(path, again)
        mark(f"synced folder {path}", is_done=True)

    def measure_room(self, path: str) -> tuple[int, int]:
        """Return the free bytes of a file system, and all its bytes."""
        system = os.statvfs(path)
        return system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize

    # -- files -------------------------------------------------------------------------------------

    def measure_file(self, path: str) -> int:
        """Return the bytes of a file."""
        return os.stat(path).st_size

    def read_file(self, path: str) -> bytes:
        """Return the content of a file."""
        with open(path, "rb") as file:
            return file.read()

    def write_file(self, path: str, data: bytes, sync: bool = True) -> None:
        """Write a file, and sync it if `sync`. A file with this name is replaced."""
        mark(f"write {path}")
        file = open_new(path)
        try:
            write_all(file, data, 0)
            if sync:
                mark(f"sync {path}")
                os.fsync(file)
        finally:
            os.close(file)
        mark(f"wrote {path}", is_done=True)

    def write_shard(
        self, path: str, content: ShardContent, flush: Flush, sync: bool = True
    ) -> ShardEntry:
        """Write the file of a shard in turns, and sync its content, not its name; past the page
        cache if the budget and the file system allow it. Returns its entry, without a checksum if
        the content is a file.

        A file of this name is replaced by a file; from memory, FileExistsError. After an error or
        `Flush.stop`, a part of the file may be there.
        """
        with ExitStack() as files:
            entry, read, end = files.enter_context(open_content(content))
            files.enter_context(storage_errors(path, AGAIN))
            size = entry.bytes - len(end)
            if isinstance(content, str):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            mark(f"create {path}")
            flags = os.O_WRONLY | os.O_CLOEXEC
            file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)  # no link is followed
            files.callback(os.close, file)
            mark(f"reserve {path}")
            # A full disk is noticed before anything is written. os.posix_fallocate is not used: it
            # writes all bytes if the file system does not know the call.
            if size and _libc.fallocate(file, 0, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
                code = ctypes.get_errno()
                if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise OSError(code, os.strerror(code))
            direct, is_direct = -1, flush.budget.direct != "off" and size >= _PAGE
            for start, stop in files.enter_context(closing(flush.take_turns(size, file))):
                mark(f"write {path} from byte {start:,} on")
                data = read(start, stop)
                whole = len(data) // _PAGE * _PAGE if is_direct else 0
                try:
                    if whole and direct < 0:
                        direct = os.open(path, flags | os.O_DIRECT | os.O_NOFOLLOW)
                        files.callback(os.close, direct)
                    if whole:
                        write_all(direct, data[:whole].data, start)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    if flush.budget.direct == "required":
                        what = f"Budget.direct is 'required', which {path} refuses"
                        raise UsageError(f"{what}: use 'auto'") from None
                    is_direct, whole = False, 0  # some refuse only when it comes to writing
                write_all(file, data[whole:].data, start + whole)
            mark(f"end {path}")
            write_all(file, end, size)
            mark(f"sync {path}")
            if sync:
                os.fdatasync(file)
            mark(f"synced {path}", is_done=True)
        return entry._replace(file=os.path.basename(path))

    def take_lock(self, path: str, folder: str, writer: bytes) -> StorageLock:
        """Lock a folder for this process and write the writer's name to the lock file. UsageError
        if another process has the lock."""
        return _LockFile(path, folder, writer)

    def read_lock(self, path: str) -> bytes:
        """Return the writer's name in a lock file; FileNotFoundError if the file is gone."""
        file = open_own(path, os.O_RDONLY)
        try:
            return os.read(file, 200)
        finally:
            os.close(file)


class _LockFile:
    """A lock file of this process; no lock if the file system has none."""

    def __init__(self, path: str, folder: str, writer: bytes) -> None:
        self._file = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            self._take(folder)
            os.ftruncate(self._file, 0)
            write_all(self._file, writer, 0)
        except BaseException:
            os.close(self._file)
            raise
        self._finalizer = weakref.finalize(self, _close, self._file)
        self._finalizer.atexit = False  # the end of the process lets others write, not before
        _lock_files.add(self)

    def _take(self, folder: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 200, 0).decode(errors="replace").strip()
            what = f"{folder} is written by another job ({holder or 'unknown'})"
            raise UsageError(f"{what}: give each job its folder, or end that one") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise

    def close(self) -> None:
        """Let other processes take the lock. May be called again."""
        self._finalizer()


_lock_files: weakref.WeakSet[_LockFile] = weakref.WeakSet()


def _close(file: int) -> None:
    with contextlib.suppress(OSError):  # a file system that is gone has no lock any more
        os.close(file)


def _release_locks() -> None:
    """Release the locks in a forked worker: it may outlive the job."""
    for lock in _lock_files:
        lock.close()


os.register_at_fork(after_in_child=_release_locks)


# -- objects ---------------------------------------------------------------------------------------


class ObjectStorage(CheckpointStorage):
    """Objects below a key of a bucket. Calls raise ObjectRefused once retries do not help.

    url, key:  where checkpoints are; the key ends with a slash, or is empty.
    """

    readers = limits.checkpoint_requests

    def __init__(self, bucket: Bucket, url: str, key: str) -> None:
        super().__init__()
        self._bucket, self._url, self._key = bucket, url, key

    def list_objects(self, key: str) -> tuple[list[str], list[ObjectInfo]]:
        """Return the folders and the objects directly below a key."""
        return _ask(lambda: self._bucket.level(key))

    def fetch_objects(self, keys: Sequence[str], stop: int) -> list[bytes | None]:
        """Return the bytes of objects up to `stop`; None for objects that do not exist."""

        def fetch(key: str) -> bytes | None:
            try:
                return bytes(self._bucket.fetch(key, 0, stop).data)
            except ObjectRefused as error:
                if error.code == errno.ENOENT:
                    return None
                if error.code == errno.ERANGE:  # it is empty
                    return b""
                raise

        return map_in_threads(lambda i: _ask(lambda: fetch(keys[i])), len(keys))

    def put_object(self, key: str, data: bytes, new: bool) -> None:
        """Write an object. new: ObjectRefused with EEXIST if it exists.

        A request without an answer may have been performed, or may be performed later.
        """
        mark(f"put {self._bucket.url}/{key}")
        _ask(lambda: self._bucket.put(key, data, new=new))
        mark(f"wrote {self._bucket.url}/{key}", is_done=True)

    def delete_objects(self, keys: Sequence[str]) -> None:
        """Delete objects that may exist."""
        mark(f"delete {self._bucket.url}/{keys[0]}")
        _ask(lambda: self._bucket.delete(keys))
        mark(f"deleted {self._bucket.url}/{keys[0]}", is_done=True)

    def upload_shard(self, key: str, url: str, content: ShardContent, flush: Flush) -> ShardEntry:
        """Write a shard to an object in turns, whole or not at all; otherwise as `write_shard`.
        url: in messages."""
        with open_content(content) as (entry, read, end), storage_errors(url, AGAIN):

            def read_turns() -> Generator[memoryview, None, None]:
                with closing(flush.take_turns(entry.bytes - len(end))) as turns:
                    for start, stop in turns:
                        yield read(start, stop).data
                if end:
                    yield memoryview(end)

            mark(f"put {url}")
            with closing(read_turns()) as data:
                if entry.bytes <= limits.object_part_bytes:
                    whole_data = b"".join(data)
                    _ask(lambda: self._bucket.put(key, whole_data))
                else:
                    try:
                        self._bucket.upload(key, data, entry.bytes)
                    except ObjectRefused:
                        if not self._is_uploaded(key, entry.bytes):
                            raise
            mark(f"uploaded {url}", is_done=True)
        return entry._replace(file=key.rpartition("/")[2])

    def _is_uploaded(self, key: str, size: int) -> bool:
        """Return True if a request whose answer was lost finished an upload. Nobody else uses its
        name."""
        try:
            return self._bucket.head(key).size == size
        except ObjectRefused:
            return False

    def open_shard(self, path: str) -> AbstractContextManager[ShardSource]:
        if "://" not in path:  # on a tier
            return super().open_shard(path)
        key = self._key + path.removeprefix(f"{self._url}/")
        return contextlib.nullcontext(_ObjectShard(self._bucket, path, key))


class _ObjectShard:
    """A shard in an object, open to be read."""

    def __init__(self, bucket: Bucket, url: str, key: str) -> None:
        self._bucket, self._url, self._key = bucket, url, key

    @property
    def bytes(self) -> int:
        return ask_service(self._url, lambda: _ask(lambda: self._bucket.head(self._key).size))

    def read(self, into: Memory, at: int) -> int:
        stop = at + len(into)

        def fetch() -> int:
            try:
                data = self._bucket.fetch(self._key, at, stop).data
            except ObjectRefused as error:
                if error.code == errno.ERANGE:
                    return 0
                raise
            into[: len(data)].data[:] = data
            return len(data)

        return ask_service(self._url, lambda: _ask(fetch)) if len(into) else 0


def _ask(request: Callable[[], T]) -> T:
    return retry_until(request, limits.object_deadline_s)


def ask_service(url: str, request: Callable[[], T], again: str = "") -> T:
    """Make a request to a service and return its answer; raise the error of a refusal.

    again:  the remedy once the cause is gone, for a write; empty for a read.
    """
    try:
        return request()
    except ObjectRefused as error:
        raise build_service_error(error, url, again) from None


def build_service_error(error: ObjectRefused, url: str, again: str = "") -> PenstockError:
    """Build the error that a service's refusal means for a checkpoint."""
    if error.code == errno.ENOENT and not again:
        remedy = "list the checkpoints again, or check the name and AWS_ENDPOINT_URL"
        return MissingError(f"{url} is not there ({error.what}): {remedy}")
    remedy = "check the service and the network"
    if error.code == errno.EACCES:
        remedy = "check the credentials and their permissions (docs/objects.md)"
    elif error.code == errno.ENOENT:
        remedy = "check the name, and the service's endpoint (AWS_ENDPOINT_URL)"
    done, more = ("written", f", and {again}") if again else ("read", "")
    storage_error = StorageError(f"{url} cannot be {done}: {error.what}: {remedy}{more}")
    storage_error.errno = error.code
    return storage_error
