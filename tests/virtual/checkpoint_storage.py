"""Storage of checkpoints in virtual memory: files that a power cut takes unless they were synced,
and objects that exist whole or not at all.

Both perform the actions of `penstock.checkpoint.actions` as `penstock.checkpoint.perform` does. A
file's content survives a power cut once it was synced, a name once its folder was; of the changes
of a folder's names since, the first ones survive, and some of the others, as chance has it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from penstock.checkpoint import actions, manifest
from penstock.engine import ObjectInfo, ObjectRefused, crc32c, storage_errors
from penstock.errors import DataError, MissingError, UsageError

FOLDER = "/repository"
PREFIX = "run/"
URL = "s3://bucket/run"
"""Where the repository is: in a folder, or below a prefix of a bucket, which has this URL."""

OBJECT_ACTIONS = frozenset(
    {
        actions.PutObject,
        actions.DeleteObjects,
        actions.UploadShard,
        actions.UploadFile,
        actions.ListObjects,
        actions.FetchObjects,
    }
)
_Change = dict[str, "_VirtualFile | _VirtualFolder | None"]


class _VirtualFile:
    """A file: its content, and the content that a power cut leaves; None for any part of it."""

    def __init__(self, data: bytes, synced: bytes | None) -> None:
        self.data, self.synced = data, synced


class _VirtualFolder:
    """A folder: its names, those that a power cut leaves, and the changes since."""

    def __init__(self) -> None:
        self.names: dict[str, _VirtualFile | _VirtualFolder] = {}
        self.durable: dict[str, _VirtualFile | _VirtualFolder] = {}
        self.changes: list[_Change] = []

    def change(self, change: _Change) -> None:
        """Change names together."""
        _apply(self.names, change)
        self.changes.append(change)

    def sync(self) -> None:
        """Let the names survive a power cut."""
        self.durable, self.changes = dict(self.names), []


def _apply(names: dict[str, _VirtualFile | _VirtualFolder], change: _Change) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


@lru_cache(1 << 16)
def _split_path(path: str) -> tuple[str, ...]:
    return tuple(filter(None, path.split("/")))


def _refuse(code: int, what: str, path: str) -> OSError:
    return OSError(code, what, path)


class VirtualFiles:
    """A file system of several hosts.

    is_lying:  True if syncs end well and do nothing.
    changed:   paths whose content or presence has changed, until somebody clears the set.
    """

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self._root = _VirtualFolder()
        self._locks: dict[str, object] = {}
        self.is_lying = False

    def perform(self, action: actions.Action, owner: object = None, torn: float = 1.0) -> Any:
        """Perform an action, and return its result. owner: of a lock that it takes.

        torn:  the part of the bytes that a write leaves which does not end.
        """
        match action:
            case actions.MakeFolder(path):
                self._make_folder(path)
            case actions.ListFolder(path):
                return sorted(self._find_folder(path).names)
            case actions.FindPath(path) | actions.FindName(path):
                return self._look_up(path) is not None
            case actions.FindLink():
                return False
            case actions.CheckOwnFolder(path):
                self._find_folder(path)
            case actions.MeasureFile(path):
                return len(self.read(path))
            case actions.ReadFile(path) | actions.ReadLock(path):
                return self.read(path)
            case actions.WriteFile(path, data, sync):
                self._write(path, data, sync, torn)
            case actions.WriteShard(path, memory, pieces):
                data, entry = encode_shard(path.rpartition("/")[2], memory, pieces)
                with storage_errors(path):
                    if self._look_up(path) is not None:
                        raise FileExistsError(errno.EEXIST, "File exists", path)
                    self._write(path, data, True, torn)
                return entry
            case actions.CopyShard(path, source):
                data = self.read_shard(source)
                with storage_errors(path):
                    self._write(path, data, True, torn)
            case actions.RenamePath(source, target):
                self._rename(source, target)
            case actions.RemoveFile(path):
                self._remove(path, _VirtualFile)
            case actions.RemoveFolder(path):
                self._remove(path, _VirtualFolder)
            case actions.SyncFolder(path):
                with storage_errors(path):
                    folder = self._find_folder(path)
                if not self.is_lying:
                    folder.sync()
            case actions.TakeLock(path, folder, session):
                if path in self._locks:
                    raise UsageError(f"{folder} is written by another job")
                self._locks[path] = owner
                self._write(path, session, False, 1.0)
                return VirtualLock(self, path, owner)
            case actions.MeasureRoom():
                return 1 << 30, 1 << 30
            case actions.IdentifyFolder(path):
                self.make_folders(path)
                return path
            case _:
                return perform_on_shards(action, self.read_shard, self._list_shards)
        return None

    def make_folders(self, path: str) -> None:
        """Make a folder with those that it lies in; they survive a power cut."""
        parts = path.strip("/").split("/")
        for end in range(1, len(parts) + 1):
            if self._look_up("/" + "/".join(parts[:end])) is None:
                self._make_folder("/" + "/".join(parts[:end]))
                self._find_folder("/" + "/".join(parts[: end - 1])).sync()

    def free_locks(self, owner: object) -> None:
        """Free the locks of a process that has ended."""
        self._locks = {path: held for path, held in self._locks.items() if held is not owner}

    def free_lock(self, path: str, owner: object) -> None:
        """Free one lock, if this process has it."""
        if self._locks.get(path) is owner:
            del self._locks[path]

    def read(self, path: str) -> bytes:
        """Return the content of a file; FileNotFoundError if there is none."""
        node = self._look_up(path)
        if not isinstance(node, _VirtualFile):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node.data

    def read_shard(self, path: str) -> bytes:
        """Return the content of a shard; MissingError if there is none."""
        try:
            return self.read(path)
        except FileNotFoundError:
            raise MissingError(f"{path} is not there") from None

    def list_paths(self, folder: str = "") -> Iterator[str]:
        """List all files and folders below a folder."""
        for name, node in self._find_folder(folder).names.items():
            yield f"{folder}/{name}"
            if isinstance(node, _VirtualFolder):
                yield from self.list_paths(f"{folder}/{name}")

    def cut_power(self, draw: random.Random) -> None:
        """Lose what was not synced, or a part of it."""
        self._cut(self._root, draw)
        self._locks.clear()

    def _cut(self, folder: _VirtualFolder, draw: random.Random) -> None:
        first = draw.randint(0, len(folder.changes))
        part = draw.choice((0.0, 0.5))
        for number, change in enumerate(folder.changes):
            if number < first or draw.random() < part:
                _apply(folder.durable, change)
        folder.names = folder.durable
        folder.sync()
        for node in folder.names.values():
            if isinstance(node, _VirtualFolder):
                self._cut(node, draw)
            elif node.synced is None:
                node.data = node.data[: int(len(node.data) * draw.choice((0, 0.5, 1)))]
            else:
                node.data = node.synced

    def _list_shards(self, folder: str) -> list[str]:
        return [name for name in sorted(self._find_folder(folder).names) if name[-6:] == ".shard"]

    def _look_up(self, path: str) -> _VirtualFile | _VirtualFolder | None:
        node: _VirtualFile | _VirtualFolder | None = self._root
        for name in _split_path(path):
            if not isinstance(node, _VirtualFolder):
                return None
            node = node.names.get(name)
        return node

    def _find_folder(self, path: str) -> _VirtualFolder:
        node = self._look_up(path)
        if not isinstance(node, _VirtualFolder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def _find_parent(self, path: str) -> tuple[_VirtualFolder, str]:
        parent, _, name = path.rpartition("/")
        return self._find_folder(parent), name

    def _make_folder(self, path: str) -> None:
        parent, name = self._find_parent(path)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        parent.change({name: _VirtualFolder()})
        self.changed.add(path)

    def _write(self, path: str, data: bytes, sync: bool, torn: float) -> None:
        parent, name = self._find_parent(path)
        left = data[: int(torn * len(data))]
        is_synced = sync and torn == 1.0 and not self.is_lying
        parent.change({name: _VirtualFile(left, left if is_synced else None)})
        self.changed.add(path)

    def _rename(self, source: str, target: str) -> None:
        parent, name = self._find_parent(source)
        node = parent.names.get(name)
        new_parent, new_name = self._find_parent(target)
        assert new_parent is parent, "a rename within a folder"
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)
        there = parent.names.get(new_name)
        if isinstance(there, _VirtualFolder) and there.names:
            raise _refuse(errno.ENOTEMPTY, "Directory not empty", target)
        parent.change({name: None, new_name: node})
        self.changed |= {source, target}

    def _remove(self, path: str, kind: type[_VirtualFile | _VirtualFolder]) -> None:
        parent, name = self._find_parent(path)
        node = parent.names.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if not isinstance(node, kind):
            raise _refuse(errno.EISDIR, "Is a directory", path)
        if isinstance(node, _VirtualFolder) and node.names:
            raise _refuse(errno.ENOTEMPTY, "Directory not empty", path)
        parent.change({name: None})
        self.changed.add(path)


class VirtualLock:
    """A lock that a process holds."""

    def __init__(self, files: VirtualFiles, path: str, owner: object) -> None:
        self._files, self._path, self._owner = files, path, owner

    def close(self) -> None:
        """Let others have it. May be called again."""
        self._files.free_lock(self._path, self._owner)


class VirtualBucket:
    """The objects of a bucket.

    has_conditions:  False if it refuses to write only what is new.
    changed:         keys that were written or deleted, until somebody clears the set.
    """

    def __init__(self, has_conditions: bool = True) -> None:
        self.changed: set[str] = set()
        self.objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._versions = 0
        self._has_conditions = has_conditions

    def perform(self, action: actions.Action, read_file: Callable[[str], bytes]) -> Any:
        """Perform an action, and return its result. read_file: reads a file of this host."""
        match action:
            case actions.ListObjects(_, key):
                return self._list(key)
            case actions.FetchObjects(_, keys, stop):
                found = [self.objects.get(key) for key in keys]
                return [None if pair is None else pair[0][:stop] for pair in found]
            case actions.PutObject(_, key, data, new):
                if new and not self._has_conditions:
                    raise ObjectRefused(errno.ENOTSUP, "501")
                if new and key in self.objects:
                    raise ObjectRefused(errno.EEXIST, "412")
                self._put(key, data)
            case actions.DeleteObjects(_, keys):
                for key in keys:
                    self.objects.pop(key, None)
                self.changed.update(keys)
            case actions.UploadShard(_, key, _, memory, pieces):
                data, entry = encode_shard(key.rpartition("/")[2], memory, pieces)
                self._put(key, data)
                return entry
            case actions.UploadFile(_, key, _, source):
                self._put(key, read_file(source))
            case _:
                raise AssertionError(f"{action} asks no bucket")
        return None

    def read_shard(self, key: str) -> bytes:
        """Return an object; MissingError if there is none."""
        if key not in self.objects:
            raise MissingError(f"{key} is not there")
        return self.objects[key][0]

    def _list(self, key: str) -> tuple[list[str], list[ObjectInfo]]:
        rests = {name: name[len(key) :] for name in self.objects if name.startswith(key)}
        folders = {rest.partition("/")[0] for rest in rests.values() if "/" in rest}
        return sorted(folders), [self.objects[name][1] for name in rests if "/" not in rests[name]]

    def _put(self, key: str, data: bytes) -> None:
        self._versions += 1
        self.changed.add(key)
        self.objects[key] = data, ObjectInfo(key, len(data), self._versions)


class VirtualStorage:
    """All storage of a run: the files of its hosts, the repository's folder, and a bucket."""

    def __init__(self, hosts: int, has_conditions: bool) -> None:
        self.files = VirtualFiles()
        for path in (FOLDER, *(f"/host-{host}" for host in range(hosts))):
            self.files.make_folders(path)
        self.bucket = VirtualBucket(has_conditions)

    def perform(self, action: actions.Action, owner: object = None, torn: float = 1.0) -> Any:
        """Perform an action, as `VirtualFiles.perform` and `VirtualBucket.perform` do."""
        if type(action) in OBJECT_ACTIONS:
            return self.bucket.perform(action, self.files.read_shard)
        if isinstance(action, actions.CheckShard | actions.ReadPieces) and action.folder.startswith(
            URL
        ):
            return perform_on_shards(action, self._read_object, lambda _: [])
        return self.files.perform(action, owner, torn)

    def read_checkpoint(self, path: str, index_path: str) -> tuple[Any, ...]:
        """Read all that a checkpoint consists of: its index if that lies apart, and the names and
        contents of what lies below its path."""
        if not path.startswith(URL):
            files = sorted(self.files.list_paths(path))
            return tuple((file.removeprefix(path), self.files.read(file)) for file in files)
        key, objects = f"{_get_key(path)}/", self.bucket.objects
        names = sorted(name for name in objects if name.startswith(key))
        parts = ((name.removeprefix(key), objects[name][0]) for name in names)
        return (objects.get(_get_key(index_path), (None,))[0], *parts)

    def take_changed(self) -> set[str]:
        """Return the paths, and the URLs of the repository's objects, that have changed since the
        last call."""
        changed, self.files.changed = self.files.changed, set()
        if self.bucket.changed:
            changed |= {f"{URL}/{key.removeprefix(PREFIX)}" for key in self.bucket.changed}
            self.bucket.changed.clear()
        return changed

    def _read_object(self, url: str) -> bytes:
        return self.bucket.read_shard(_get_key(url))


def _get_key(url: str) -> str:
    return PREFIX + url.removeprefix(f"{URL}/")


def encode_shard(
    name: str, memory: Any, pieces: Sequence[manifest.Piece]
) -> tuple[bytes, manifest.ShardEntry]:
    """Return the bytes of a shard, and its entry."""
    end, crc = manifest.encode_manifest(pieces, len(memory))
    return memory.tobytes() + end, manifest.ShardEntry(name, len(memory) + len(end), crc)


def perform_on_shards(
    action: actions.Action,
    read: Callable[[str], bytes],
    list_shards: Callable[[str], list[str]],
) -> Any:
    """Perform an action on the shards of a folder, which `read` reads by path."""
    match action:
        case actions.CheckShard(_, folder, shard):
            path = f"{folder}/{shard.file}"
            pieces, entry = _read_manifest(path, read(path))
            if entry != shard:
                raise manifest.build_damage_error(path, "it is not the shard of the index")
            return pieces
        case actions.ReadPieces(_, folder, wanted, target):
            for piece in wanted:
                _read_piece(folder, piece, read(f"{folder}/{piece.file}"), target(piece))
            return None
        case actions.FindWholeShards(folder):
            found = [_find_whole(folder, name, read) for name in list_shards(folder)]
            return [whole for whole in found if whole is not None]
    raise AssertionError(f"{action} is not performed here")


@lru_cache(1 << 10)
def _read_manifest(
    path: str, data: bytes
) -> tuple[tuple[manifest.Piece, ...], manifest.ShardEntry]:
    begin, length = manifest.locate_manifest(data[-manifest.TRAILER_BYTES :], len(data), path)
    name, part = path.rpartition("/")[2], data[begin : begin + length]
    entry = manifest.ShardEntry(name, len(data), crc32c(part))
    return manifest.decode_pieces(part, name, begin, path), entry


def _read_piece(folder: str, piece: manifest.Piece, data: bytes, target: Any) -> None:
    part = data[piece.offset : piece.offset + piece.padded_bytes]
    if crc32c(part) != piece.crc32c:
        raise manifest.build_damage_error(f"{folder}/{piece.file}", f"piece {piece.name!r}")
    if target is not None:
        target[:].data[:] = part


def _find_whole(folder: str, name: str, read: Callable[[str], bytes]) -> manifest.ShardEntry | None:
    try:
        data = read(f"{folder}/{name}")
        pieces, entry = _read_manifest(f"{folder}/{name}", data)
        for piece in pieces:
            _read_piece(folder, piece, data, None)
    except DataError:
        return None
    return entry
