"""Storage of checkpoints in virtual memory: files that a power cut takes unless they were synced,
and objects that exist whole or not at all.

Both have the calls of `penstock.checkpoint.storage`, with the outcomes of real storage. A file's
content survives a power cut once it was synced, a name once its folder was; of the changes of a
folder's names since, the first ones survive, and some of the others, as chance has it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from penstock.checkpoint import manifest
from penstock.engine import crc32c, storage_errors
from penstock.engine.object_client import ObjectInfo, ObjectRefused
from penstock.errors import DataError, MissingError, UsageError

FOLDER = "/repository"
PREFIX = "run/"
URL = "s3://bucket/run"
"""Where the repository is: in a folder, or below a prefix of a bucket, which has this URL."""

OBJECT_CALLS = frozenset(
    {
        "put_object",
        "delete_objects",
        "upload_shard",
        "list_objects",
        "fetch_objects",
    }
)


class Call(NamedTuple):
    """A call of a `CheckpointStorage`: the name of the method, and its arguments."""

    name: str
    args: tuple[Any, ...] = ()


class CalledStorage:
    """A `CheckpointStorage` whose calls a function performs."""

    def __init__(self, perform: Callable[[Call], Any]) -> None:
        self._perform = perform

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args: self._perform(Call(name, args))


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
    torn:      the part of the bytes that a write leaves which does not end.
    owner:     of the locks that are taken.
    changed:   paths whose content or presence has changed, until somebody clears the set.
    """

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self._root = _VirtualFolder()
        self._locks: dict[str, object] = {}
        self.is_lying = False
        self.torn = 1.0
        self.owner: object = None

    # -- calls of `CheckpointStorage` ----------------------------------------------------------

    def make_folder(self, path: str) -> None:
        self._make_folder(path)

    def list_folder(self, path: str) -> list[str]:
        return sorted(self._find_folder(path).names)

    def find_path(self, path: str) -> bool:
        return self._look_up(path) is not None

    has_name = find_path

    def is_link(self, path: str) -> bool:
        return False

    def check_own_folder(self, path: str) -> None:
        self._find_folder(path)

    def measure_file(self, path: str) -> int:
        return len(self.read_file(path))

    def read_file(self, path: str) -> bytes:
        node = self._look_up(path)
        if not isinstance(node, _VirtualFile):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node.data

    read_lock = read_file

    def write_file(self, path: str, data: bytes, sync: bool = True) -> None:
        self._write(path, data, sync)

    def write_shard(self, path: str, content: Any, flush: Any) -> manifest.ShardEntry:
        data, entry = encode_shard(path.rpartition("/")[2], content, self.read_shard)
        with storage_errors(path):
            if self._look_up(path) is not None and not isinstance(content, str):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            self._write(path, data, True)
        return entry

    def rename(self, source: str, target: str) -> None:
        self._rename(source, target)

    def remove_file(self, path: str) -> None:
        self._remove(path, _VirtualFile)

    def remove_folder(self, path: str) -> None:
        self._remove(path, _VirtualFolder)

    def sync_folder(self, path: str, again: str) -> None:
        with storage_errors(path):
            folder = self._find_folder(path)
        if not self.is_lying:
            folder.sync()

    def take_lock(self, path: str, folder: str, writer: bytes) -> VirtualLock:
        if path in self._locks:
            raise UsageError(f"{folder} is written by another job")
        self._locks[path] = self.owner
        self._write(path, writer, False)
        return VirtualLock(self, path, self.owner)

    def measure_room(self, path: str) -> tuple[int, int]:
        return 1 << 30, 1 << 30

    def identify_folder(self, path: str) -> str:
        self.make_folders(path)
        return path

    def check_shard(self, folder: str, shard: manifest.ShardEntry) -> Sequence[manifest.Piece]:
        return check_shard(folder, shard, self.read_shard)

    def read_pieces(self, folder: str, pieces: Sequence[manifest.Piece], target: Any) -> None:
        read_pieces(folder, pieces, target, self.read_shard)

    def find_whole_shards(self, folder: str) -> list[manifest.ShardEntry]:
        names = [name for name in sorted(self._find_folder(folder).names) if name[-6:] == ".shard"]
        whole = [_find_whole(folder, name, self.read_shard) for name in names]
        return [entry for entry in whole if entry is not None]

    # -- what a run does with them -------------------------------------------------------------

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

    def read_shard(self, path: str) -> bytes:
        """Return the content of a shard; MissingError if there is none."""
        try:
            return self.read_file(path)
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

    def _write(self, path: str, data: bytes, sync: bool) -> None:
        parent, name = self._find_parent(path)
        written = data[: int(self.torn * len(data))]
        is_synced = sync and self.torn == 1.0 and not self.is_lying
        parent.change({name: _VirtualFile(written, written if is_synced else None)})
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
    read_file:       reads a file of the host that uploads it.
    changed:         keys that were written or deleted, until somebody clears the set.
    """

    def __init__(
        self,
        has_conditions: bool = True,
        read_file: Callable[[str], bytes] = lambda path: Path(path).read_bytes(),
    ) -> None:
        self._read_file = read_file
        self.changed: set[str] = set()
        self.objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._versions = 0
        self._has_conditions = has_conditions

    # -- calls of `ObjectStorage` --------------------------------------------------------------

    def list_objects(self, key: str) -> tuple[list[str], list[ObjectInfo]]:
        rests = {name: name[len(key) :] for name in self.objects if name.startswith(key)}
        folders = {rest.partition("/")[0] for rest in rests.values() if "/" in rest}
        return sorted(folders), [self.objects[name][1] for name in rests if "/" not in rests[name]]

    def fetch_objects(self, keys: Sequence[str], stop: int) -> list[bytes | None]:
        pairs = [self.objects.get(key) for key in keys]
        return [None if pair is None else pair[0][:stop] for pair in pairs]

    def put_object(self, key: str, data: bytes, new: bool) -> None:
        if new and not self._has_conditions:
            raise ObjectRefused(errno.ENOTSUP, "501")
        if new and key in self.objects:
            raise ObjectRefused(errno.EEXIST, "412")
        self._put(key, data)

    def delete_objects(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)
        self.changed.update(keys)

    def upload_shard(self, key: str, url: str, content: Any, flush: Any) -> manifest.ShardEntry:
        data, entry = encode_shard(key.rpartition("/")[2], content, self._read_file)
        self._put(key, data)
        return entry

    # -- what a run does with them -------------------------------------------------------------

    def read_shard(self, key: str) -> bytes:
        """Return an object; MissingError if there is none."""
        if key not in self.objects:
            raise MissingError(f"{key} is not there")
        return self.objects[key][0]

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
        self.bucket = VirtualBucket(has_conditions, self.files.read_shard)

    def perform(self, call: Call, owner: object = None, torn: float = 1.0) -> Any:
        """Perform a call, and return its result. owner: of a lock that it takes; torn: the part of
        the bytes that a write leaves."""
        name, args = call
        if name in OBJECT_CALLS:
            return getattr(self.bucket, name)(*args)
        if name in _SHARD_CALLS and args[0].startswith(URL):
            return _SHARD_CALLS[name](*args, self._read_object)
        self.files.owner, self.files.torn = owner, torn
        try:
            return getattr(self.files, name)(*args)
        finally:
            self.files.owner, self.files.torn = None, 1.0

    def read_checkpoint(self, path: str, index_path: str) -> tuple[Any, ...]:
        """Read all that a checkpoint consists of: its index if that lies apart, and the names and
        contents of what lies below its path."""
        if not path.startswith(URL):
            files = sorted(self.files.list_paths(path))
            return tuple((file.removeprefix(path), self.files.read_file(file)) for file in files)
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
    name: str, content: Any, read_file: Callable[[str], bytes]
) -> tuple[bytes, manifest.ShardEntry]:
    """Return the bytes of a shard, and its entry. content: see `shards.ShardContent`."""
    if isinstance(content, str):
        data = read_file(content)
        return data, manifest.ShardEntry(name, len(data), 0)
    memory, pieces = content
    end, crc = manifest.encode_manifest(pieces, len(memory))
    return memory.tobytes() + end, manifest.ShardEntry(name, len(memory) + len(end), crc)


def check_shard(
    folder: str, shard: manifest.ShardEntry, read: Callable[[str], bytes]
) -> Sequence[manifest.Piece]:
    """Do what `CheckpointStorage.check_shard` does, with shards that `read` reads by path."""
    path = f"{folder}/{shard.file}"
    pieces, entry = _read_manifest(path, read(path))
    if entry != shard:
        raise manifest.build_damage_error(path, "it is not the shard of the index")
    return pieces


def read_pieces(
    folder: str, pieces: Sequence[manifest.Piece], target: Any, read: Callable[[str], bytes]
) -> None:
    """Do what `CheckpointStorage.read_pieces` does, with shards that `read` reads by path."""
    for piece in pieces:
        _read_piece(folder, piece, read(f"{folder}/{piece.file}"), target(piece))


_SHARD_CALLS: dict[str, Callable[..., Any]] = {
    "check_shard": check_shard,
    "read_pieces": read_pieces,
}


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
