"""Performs the actions of the protocol over files, object stores, ranks and threads."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, TypeVar

from .. import limits
from ..engine import (
    Bucket,
    ObjectInfo,
    ObjectRefused,
    map_in_threads,
    require_whole,
    retry_until,
    sync_folder,
    write_all,
)
from ..errors import StorageError, UsageError
from ..own_files import check_own_folder, open_new, open_own
from ..ranks import machine_identity
from . import actions, shards
from .actions import Action, Steps
from .background import BackgroundTask, mark_done, mark_point
from .manifest import Piece, ShardEntry, encode_manifest

T = TypeVar("T")


def perform(steps: Steps[T]) -> T:
    """Perform the actions of these steps, and return their result. Errors of actions are raised in
    the steps, and what the steps raise is raised here."""
    try:
        action = next(steps)
        while True:
            try:
                outcome = _performers[type(action)](action)
            except BaseException as error:
                action = steps.throw(error)
            else:
                action = steps.send(outcome)
    except StopIteration as end:
        result: T = end.value
        return result


@contextlib.contextmanager
def _mark(verb: str, past: str, what: str) -> Iterator[None]:
    mark_point(f"{verb} {what}")
    yield
    mark_done(f"{past} {what}")


# -- files -----------------------------------------------------------------------------------------


def _make_folder(action: actions.MakeFolder) -> None:
    with _mark("make", "made", action.path):
        os.mkdir(action.path)


def _find_path(action: actions.FindPath) -> bool:
    try:
        os.stat(action.path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _read_file(action: actions.ReadFile) -> bytes:
    with open(action.path, "rb") as file:
        return file.read()


def _write_file(action: actions.WriteFile) -> None:
    mark_point(f"write {action.path}")
    file = open_new(action.path)
    try:
        write_all(file, action.data, 0)
        if action.sync:
            mark_point(f"sync {action.path}")
            os.fsync(file)
    finally:
        os.close(file)
    mark_done(f"wrote {action.path}")


def _write_shard(action: actions.WriteShard) -> ShardEntry:
    entry: ShardEntry = action.flush.write(action.path, action.memory, action.pieces)
    return entry


def _copy_shard(action: actions.CopyShard) -> None:
    with shards.open_shard_file(action.source) as source:
        action.flush.copy(action.path, source)


def _rename_path(action: actions.RenamePath) -> None:
    with _mark("rename", "renamed", action.source):
        os.rename(action.source, action.target)


def _remove_file(action: actions.RemoveFile) -> None:
    with _mark("remove", "removed", action.path):
        os.unlink(action.path)


def _remove_folder(action: actions.RemoveFolder) -> None:
    with _mark("remove", "removed", action.path):
        os.rmdir(action.path)


def _sync_folder(action: actions.SyncFolder) -> None:
    with _mark("sync folder", "synced folder", action.path):
        sync_folder(action.path, action.again)


def _measure_room(action: actions.MeasureRoom) -> tuple[int, int]:
    system = os.statvfs(action.path)
    return system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize


def _identify_folder(action: actions.IdentifyFolder) -> list[int]:
    os.makedirs(action.path, exist_ok=True)
    folder = os.stat(action.path)
    return [folder.st_dev, folder.st_ino]


class _LockFile:
    """A file that this process has locked, if the file system has locks."""

    def __init__(self, action: actions.TakeLock) -> None:
        self._file = open_own(action.path, os.O_RDWR | os.O_CREAT)
        try:
            self._take(action)
        except BaseException:
            os.close(self._file)
            raise
        self._finalizer = weakref.finalize(self, os.close, self._file)
        self._finalizer.atexit = False  # the end of the process lets others write, not before
        _lock_files.add(self)

    def _take(self, action: actions.TakeLock) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 200, 0).decode(errors="replace").strip()
            raise UsageError(
                f"{action.folder} is written by another job ({holder or 'unknown'}): give each job"
                " a folder of its own, or end that one"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        os.ftruncate(self._file, 0)
        write_all(self._file, action.session, 0)

    def close(self) -> None:
        """Let others write. May be called again."""
        self._finalizer()


_lock_files: weakref.WeakSet[_LockFile] = weakref.WeakSet()


def _release_locks() -> None:
    """Release the locks in a forked worker, which may outlive the job."""
    for lock in _lock_files:
        lock.close()


os.register_at_fork(after_in_child=_release_locks)


def _read_lock(action: actions.ReadLock) -> bytes:
    file = open_own(action.path, os.O_RDONLY)
    try:
        return os.read(file, 200)
    finally:
        os.close(file)


# -- objects ---------------------------------------------------------------------------------------


def _ask(request: Callable[[], T]) -> T:
    return retry_until(request, limits.object_deadline_s)


def _list_objects(action: actions.ListObjects) -> tuple[list[str], list[ObjectInfo]]:
    bucket: Bucket = action.bucket
    return _ask(lambda: bucket.level(action.key))


def _fetch_objects(action: actions.FetchObjects) -> list[bytes | None]:
    bucket: Bucket = action.bucket

    def fetch(key: str) -> bytes | None:
        try:
            fetched = bucket.fetch(key, 0, action.stop)
            return bytes(require_whole(fetched, 0, action.stop).data)
        except ObjectRefused as error:
            if error.code == errno.ENOENT:
                return None
            if error.code == errno.ERANGE:  # it is empty
                return b""
            raise

    keys = action.keys
    return map_in_threads(lambda i: _ask(lambda: fetch(keys[i])), len(keys))


def _put_object(action: actions.PutObject) -> None:
    bucket: Bucket = action.bucket
    with _mark("put", "wrote", f"{bucket.url}/{action.key}"):
        _ask(lambda: bucket.put(action.key, action.data, new=action.new))


def _delete_objects(action: actions.DeleteObjects) -> None:
    bucket: Bucket = action.bucket
    with _mark("delete", "deleted", f"{bucket.url}/{action.keys[0]}"):
        _ask(lambda: bucket.delete(action.keys))


def _upload_shard(action: actions.UploadShard) -> ShardEntry:
    memory = action.memory
    end, crc = encode_manifest(action.pieces, len(memory))
    size = len(memory) + len(end)

    def read_turns() -> Generator[memoryview, None, None]:
        with closing(action.flush.take_turns(len(memory))) as turns:
            for at, stop in turns:
                yield memory[at:stop].data
        yield memoryview(end)

    with closing(read_turns()) as parts:
        _upload(action, parts, size)
    return ShardEntry(action.key.rpartition("/")[2], size, crc)


def _upload_file(action: actions.UploadFile) -> None:
    with shards.open_shard_file(action.source) as source:
        size = source.bytes

        def read_turns() -> Generator[memoryview, None, None]:
            with closing(action.flush.take_turns(size)) as turns:
                for at, stop in turns:
                    part = shards.allocate_block(stop - at)[: stop - at]
                    if source.read(part, at) < len(part):
                        raise StorageError(f"{action.source} became shorter while it was copied")
                    yield part.data

        with closing(read_turns()) as parts:
            _upload(action, parts, size)


def _upload(
    action: actions.UploadShard | actions.UploadFile, data: Iterator[memoryview], size: int
) -> None:
    bucket: Bucket = action.bucket
    with _mark("put", "uploaded", action.url):
        if size <= limits.object_part_bytes:
            whole_data = b"".join(data)
            _ask(lambda: bucket.put(action.key, whole_data))
            return
        try:
            bucket.upload(action.key, data, size)
        except ObjectRefused:
            if not _is_uploaded(bucket, action.key, size):
                raise


def _is_uploaded(bucket: Bucket, key: str, size: int) -> bool:
    """Tell whether an upload was finished by a request whose answer was lost. Nobody else uses its
    name."""
    try:
        return bucket.head(key).size == size
    except ObjectRefused:
        return False


# -- the rest --------------------------------------------------------------------------------------


def _check_shard(action: actions.CheckShard) -> tuple[Piece, ...]:
    return shards.list_shard_pieces(action.reader or shards.FILES, action.folder, action.shard)


def _read_pieces(action: actions.ReadPieces) -> None:
    shards.read_pieces(action.reader, action.folder, action.pieces, action.target)


def _exchange_texts(action: actions.ExchangeTexts) -> list[str]:
    mark_point("wait for the other ranks")
    texts: list[str] = action.gather(action.text)
    mark_done("heard from the other ranks")
    return texts


def _warn_user(action: actions.WarnUser) -> None:
    warnings.warn(action.text, RuntimeWarning, stacklevel=4)


def _start_drain(action: actions.StartDrain) -> BackgroundTask:
    return BackgroundTask("penstock-checkpoint-drain", lambda: perform(action.steps()))


def _join_drain(action: actions.JoinDrain) -> None:
    action.task.thread.join()


_performers: dict[type[Action], Callable[[Any], Any]] = {
    actions.MakeFolder: _make_folder,
    actions.ListFolder: lambda action: sorted(os.listdir(action.path)),
    actions.FindPath: _find_path,
    actions.FindLink: lambda action: os.path.islink(action.path),
    actions.FindName: lambda action: os.path.lexists(action.path),
    actions.CheckOwnFolder: lambda action: check_own_folder(action.path),
    actions.MeasureFile: lambda action: os.stat(action.path).st_size,
    actions.ReadFile: _read_file,
    actions.WriteFile: _write_file,
    actions.WriteShard: _write_shard,
    actions.CopyShard: _copy_shard,
    actions.RenamePath: _rename_path,
    actions.RemoveFile: _remove_file,
    actions.RemoveFolder: _remove_folder,
    actions.SyncFolder: _sync_folder,
    actions.TakeLock: _LockFile,
    actions.ReadLock: _read_lock,
    actions.ListObjects: _list_objects,
    actions.FetchObjects: _fetch_objects,
    actions.PutObject: _put_object,
    actions.DeleteObjects: _delete_objects,
    actions.UploadShard: _upload_shard,
    actions.UploadFile: _upload_file,
    actions.CheckShard: _check_shard,
    actions.ReadPieces: _read_pieces,
    actions.FindWholeShards: lambda action: shards.find_whole_shards(action.folder),
    actions.ExchangeTexts: _exchange_texts,
    actions.ReadClock: lambda _: time.perf_counter(),
    actions.MeasureRoom: _measure_room,
    actions.IdentifyFolder: _identify_folder,
    actions.IdentifyHost: lambda _: machine_identity(),
    actions.WarnUser: _warn_user,
    actions.StartDrain: _start_drain,
    actions.JoinDrain: _join_drain,
}
