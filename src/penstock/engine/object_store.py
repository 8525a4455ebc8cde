"""Objects behind a URL as a store: s3://, gs://, az://, http:// and https://.

A prefix is treated as a folder. Objects have no modification times. Where a table of files has a
time, an object has its *version* (63 bits of a digest of its etag) and a folder a digest of its
direct content (names, sizes and versions), so that a file that is added, removed or changed is
noticed.

HTTP has no listings: a file has to be named there, and its folder never changes.
"""

from __future__ import annotations

import errno
import functools
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .. import limits
from ..errors import UsageError
from ..extent import Files, unseen
from .globbing import cut_at_special, expand_braces, find_fixed_folder, has_magic, translate_pattern
from .hub import HubLocation, open_hub_bucket, parse_hub_url
from .leftovers import is_left_over
from .object_client import (
    Bucket,
    ObjectInfo,
    ObjectLocation,
    ObjectRefused,
    hash_content,
    open_service_bucket,
    parse_service_url,
    retry_until,
)
from .store import (
    Listing,
    Parse,
    Progress,
    Store,
    StoreFile,
    build_changed_error,
    build_storage_error,
    map_in_threads,
)

T = TypeVar("T")

_LISTED_PER_NAME = 16
"""Listed objects for which one request for a single object is saved: a page of a listing costs as
much as a few such requests, and describes a thousand objects."""
_ASKED_SINGLY_MAX = 64


def parse_object_url(url: str) -> ObjectLocation:
    """Parse a URL of a service or of the hub. Its secrets stay in this process."""
    if url[:5].lower() == "hf://":
        repository, commit, path = parse_hub_url(url)
        return ObjectLocation(HubLocation(repository, commit, "").url, path)
    return parse_service_url(url)


def parse_root(root: str) -> ObjectLocation:
    """Parse the root of a store; it holds no secrets."""
    scheme, _, rest = root.partition("://")
    if scheme == "hf":
        return parse_object_url(root.rstrip("/"))
    bucket, _, key = rest.partition("/")
    return ObjectLocation(f"{scheme}://{bucket}", key.rstrip("/"))


def open_bucket(url: str, stall_s: float = limits.object_stall_s) -> Bucket:
    """Return the bucket of a URL, or the files of a commit of the hub, shared by all users."""
    if url.startswith("hf://"):
        return open_hub_bucket(url, stall_s)  # type: ignore[return-value]
    return open_service_bucket(url, stall_s)


class ObjectStore(Store):
    """The objects below a URL; see `penstock.engine.Store`."""

    def __init__(self, root: str) -> None:
        where = parse_root(root)
        self.root = f"{where.bucket}/{where.key}" if where.key else where.bucket
        self._bucket = open_bucket(where.bucket)
        self._prefix = f"{where.key}/" if where.key else ""

    def scan(self, extensions: Sequence[str] = (), progress: Progress | None = None) -> Listing:
        objects = self._list_files("", progress)
        folders, versions = _group_by_folder(objects)
        numbers = {name: number for number, name in enumerate(folders)}
        endings = tuple(extension.lower() for extension in extensions)
        files = [info for info in objects if not endings or info.name.lower().endswith(endings)]
        files.sort(key=lambda info: info.name.encode())
        folder = [numbers[posixpath.dirname(info.name)] for info in files]
        return Listing(
            self._build_table(files),
            np.array(folder, np.int32),
            Files.of(
                self.root, folders, np.full(len(folders), -1, np.int64), np.array(versions, "i8")
            ),
        )

    def some(self, count: int) -> list[str]:
        def ask() -> list[str]:
            names: list[str] = []
            for page in self._bucket.listing(self._prefix):
                # An empty object may mark a folder.
                names += [info.name for info in self._select_visible(page) if info.size]
                if len(names) >= count:
                    break
            return names[:count]

        return self._ask(self.root, ask)

    def write(self, name: str, path: str) -> None:
        """Write an object with the bytes of a file of this machine: it appears whole or not."""

        def upload() -> None:
            with open(path, "rb") as file:
                pieces = iter(lambda: file.read(limits.object_part_bytes), b"")
                self._bucket.upload(self._prefix + name, pieces, os.path.getsize(path))

        self._ask(f"{self.root}/{name}", upload)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; it is no error if they do not exist."""
        keys = [self._prefix + name for name in names]
        for at in range(0, len(keys), 1000):
            self._ask(self.root, functools.partial(self._bucket.delete, keys[at : at + 1000]))

    def match(self, pattern: str) -> list[str]:
        names: dict[str, None] = {}
        for alternative in expand_braces(pattern):
            if not has_magic(alternative):
                names[alternative] = None
                continue
            fixed = find_fixed_folder(alternative)
            form = re.compile(translate_pattern(alternative), re.DOTALL)
            named = {part for part in alternative.split("/") if part.startswith(".")}
            listed = [info.name for info in self._list_files(fixed, hidden=bool(named))]
            matches = [
                name
                for name in listed
                if form.fullmatch(name)
                and not _is_hidden("/".join(part for part in name.split("/") if part not in named))
            ]
            names.update(dict.fromkeys(sorted(matches, key=str.encode)))
        return list(names)

    def probe(
        self, files: Files, progress: Progress | None = None
    ) -> tuple[Files, npt.NDArray[np.int32]]:
        names = [files.name(row) for row in range(len(files))]
        # A folder has no size, and the digest of its content.
        folder = (files.size < 0) & (files.mtime_ns >= 0)
        known: dict[str, _State] = {}
        known |= self._look_up_folders([names[row] for row in np.flatnonzero(folder)])
        known |= self._describe_names([names[row] for row in np.flatnonzero(~folder)])
        unknown = [name for name in dict.fromkeys(names) if name not in known]
        states = map_in_threads(lambda row: self._look_up(unknown[row]), len(unknown), progress)
        known |= dict(zip(unknown, states, strict=True))
        if progress is not None:
            progress(len(names))
        columns = np.array([known[name] for name in names], np.int64).reshape(-1, 3)
        size, version, code = columns.T
        now = Files(self.root, files.names, files.ends, size.copy(), version.copy())
        return now, code.astype(np.int32)

    def folders(self, names: Sequence[str]) -> Files:
        states = self._look_up_folders(names)
        for name in names:
            if states[name].code != errno.EISDIR:
                raise build_storage_error(states[name].code or errno.ENOTDIR, f"{self.root}/{name}")
        versions = np.array([states[name].version for name in names], np.int64)
        return Files.of(self.root, names, np.full(len(names), -1, np.int64), versions)

    def read(self, name: str, offset: int, length: int) -> bytes:
        return self._read(name, offset, length)[0]

    def parse(self, files: Files, parse: Parse[T], progress: Progress | None = None) -> list[T]:
        def parse_one(number: int) -> T:
            path, size = files.path(number), int(files.size[number])
            version = int(files.mtime_ns[number])
            seen = 0

            def fetch(offset: int, length: int) -> bytes:
                nonlocal seen
                data, found_size, found_version = self._read(files.name(number), offset, length)
                if data:
                    _check_same(size, version, found_size, found_version, path)
                    seen += 1
                return data

            result = parse(number, StoreFile(path, size, fetch, -1))
            if not seen:  # nothing was read that could have shown a change
                now = self._ask(self.root, lambda: self._bucket.head(self._build_key(path)))
                _check_same(size, version, now.size, now.version, path)
            return result

        return map_in_threads(parse_one, len(files), progress)

    # -- asking --------------------------------------------------------------------------------

    def _build_key(self, name: str) -> str:
        """Build the key of a file; the name may also be a whole URL below the bucket."""
        name = name.removeprefix(f"{self.root}/")
        return posixpath.normpath(self._prefix + name) if name else self._prefix.rstrip("/")

    def _ask(self, url: str, ask: Callable[[], T]) -> T:
        """Call `ask` with retries; a failure becomes the storage error for the URL."""
        try:
            return retry_until(ask, limits.object_listing_deadline_s)
        except ObjectRefused as error:
            raise build_storage_error(error.code, url, f" ({error.what})") from None

    def _read(self, name: str, offset: int, length: int) -> tuple[bytes, int, int]:
        """Read the bytes of a range, and the size and version of the object; 0 and 0 if nothing is
        read."""
        if length <= 0:
            return b"", 0, 0
        key = self._build_key(name)

        def ask() -> tuple[bytes, int, int]:
            try:
                answer = self._bucket.fetch(key, offset, offset + length)
            except ObjectRefused as error:
                if error.code == errno.ERANGE:
                    return b"", 0, 0
                if error.code == errno.ENOTSUP and not self._bucket.head(key).size:
                    return b"", 0, 0
                raise
            return bytes(answer.data), answer.size, answer.version

        return self._ask(f"{self.root}/{name}", ask)

    def _look_up(self, name: str) -> _State:
        """Look up a name; StorageError if the service does not answer, as the data may be there."""

        def ask() -> _State:
            try:
                info = self._bucket.head(self._build_key(name))
            except ObjectRefused as error:
                if error.code != errno.ENOENT:
                    raise
                return _State(-1, -1, errno.ENOENT)
            return _State(info.size, info.version, 0)

        state = self._ask(f"{self.root}/{name}", ask)
        if state.code and self._bucket.listable:
            return self._look_up_folders([name])[name]
        return state

    def _describe_names(self, names: Sequence[str]) -> dict[str, _State]:
        """Describe files by listing their folders, if that is cheaper than single requests."""
        if len(names) < _ASKED_SINGLY_MAX or not self._bucket.listable:
            return {}
        per_folder: dict[str, list[str]] = defaultdict(list)
        for name in names:
            per_folder[posixpath.dirname(name)].append(name)
        many = [item for item in per_folder.items() if len(item[1]) >= _ASKED_SINGLY_MAX]

        def describe_one(number: int) -> dict[str, _State]:
            folder, wanted = many[number][0], set(many[number][1])

            def ask() -> dict[str, _State]:
                listed_max = _LISTED_PER_NAME * len(wanted)
                states: dict[str, _State] = {}
                for page in self._bucket.listing(self._build_prefix(folder)):
                    for info in self._select_visible(page, hidden=True):
                        if info.name in wanted:
                            states[info.name] = _State(info.size, info.version, 0)
                    listed_max -= len(page)
                    if len(states) == len(wanted) or listed_max < 0:
                        break
                return states

            return self._ask(f"{self.root}/{folder}", ask)

        known: dict[str, _State] = {}
        for states in map_in_threads(describe_one, len(many)):
            known |= states
        return known

    # -- listing -------------------------------------------------------------------------------

    def _build_prefix(self, folder: str) -> str:
        """Build the prefix of everything below a folder."""
        key = self._build_key(folder)
        return f"{key}/" if key and key != "." else ""

    def _list_files(
        self, folder: str, progress: Progress | None = None, hidden: bool = False
    ) -> list[ObjectInfo]:
        """List all files below a folder, with names relative to the root; also `hidden` ones."""

        def ask() -> list[ObjectInfo]:
            objects: list[ObjectInfo] = []
            for page in self._bucket.listing(self._build_prefix(folder)):
                objects += self._select_visible(page, hidden)
                if progress is not None:
                    progress(len(objects))
            return _drop_markers(objects)

        return self._ask(f"{self.root}/{folder}" if folder else self.root, ask)

    def _select_visible(self, page: Iterable[ObjectInfo], hidden: bool = False) -> list[ObjectInfo]:
        """Return the objects with names relative to the root, without hidden ones and sidecars."""
        skip = len(self._prefix)
        return [
            info._replace(name=name)
            for info in page
            if (name := info.name[skip:]) and (hidden or not _is_hidden(name))
        ]

    def _look_up_folders(self, names: Sequence[str]) -> dict[str, _State]:
        if not self._bucket.listable:
            return {name: _State(-1, 0, errno.EISDIR) for name in names}
        if len(names) > _ASKED_SINGLY_MAX:
            folders, versions = _group_by_folder(self._list_files(posixpath.commonpath(names)))
            there = dict(zip(folders, versions, strict=True))
            gone = _State(-1, -1, errno.ENOENT)
            return {
                name: _State(-1, there[name], errno.EISDIR) if name in there else gone
                for name in names
            }
        states = map_in_threads(lambda i: self._look_up_folder(names[i]), len(names))
        return dict(zip(names, states, strict=True))

    def _look_up_folder(self, name: str) -> _State:
        below = self._build_prefix(name)
        folders, files = self._ask(
            f"{self.root}/{name}" if name else self.root, lambda: self._bucket.level(below)
        )
        shown = {folder for folder in folders if not _is_hidden(folder)}
        inside = [
            info._replace(name=inner)
            for info in files
            if (inner := info.name[len(below) :])
            and not _is_hidden(inner)
            and (info.size or inner not in shown)
        ]
        if not shown and not inside and (not files or not name):
            return _State(-1, -1, errno.ENOENT)
        return _State(-1, _compute_folder_version(inside, shown), errno.EISDIR)

    def _build_table(self, objects: Sequence[ObjectInfo]) -> Files:
        return Files.of(
            self.root,
            [info.name for info in objects],
            np.array([info.size for info in objects], np.int64),
            np.array([info.version for info in objects], np.int64),
        )


class _State(NamedTuple):
    """State of a name; `code` is 0, EISDIR, or the errno of the failure."""

    size: int
    version: int
    code: int


# -- folders ---------------------------------------------------------------------------------------


def _is_hidden(name: str) -> bool:
    """True for hidden files, files in hidden folders, and sidecars: they are no data."""
    return is_left_over(name) or name.endswith(".penstock")


def _drop_markers(objects: list[ObjectInfo]) -> list[ObjectInfo]:
    """Leave out the empty objects that some tools write for folders."""
    if not any(info.size == 0 for info in objects):
        return objects
    folders: set[str] = set()
    for info in objects:
        folder = posixpath.dirname(info.name)
        while folder and folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    return [info for info in objects if info.size or info.name not in folders]


def _group_by_folder(objects: Sequence[ObjectInfo]) -> tuple[list[str], list[int]]:
    """Return the folders of these files, the root first, and their versions."""
    files: dict[str, list[ObjectInfo]] = {"": []}
    folders: dict[str, set[str]] = {"": set()}
    for info in objects:
        folder, _, name = info.name.rpartition("/")
        if folder not in files:
            inner = folder
            while inner not in files:
                files[inner], folders[inner] = [], folders.get(inner, set())
                outer, _, last = inner.rpartition("/")
                folders.setdefault(outer, set()).add(last)
                inner = outer
        files[folder].append(info._replace(name=name))
    names = sorted(files, key=str.encode)
    return names, [_compute_folder_version(files[name], folders[name]) for name in names]


def _compute_folder_version(files: Iterable[ObjectInfo], folders: Iterable[str]) -> int:
    lines = [f"{info.name}\0{info.size}\0{info.version}" for info in files]
    lines += [f"{name}/" for name in folders]
    return hash_content(b"folder", "\n".join(sorted(lines)).encode("utf-8", "surrogateescape"))


# -- opening ---------------------------------------------------------------------------------------


class ObjectSource(NamedTuple):
    """Objects named by URLs: a folder, one file or patterns, in a store."""

    kind: Literal["folder", "file", "pattern"]
    names: tuple[str, ...]
    path: str
    store: ObjectStore


def locate_objects(*urls: str) -> ObjectSource:
    """Locate the folder, file or patterns that URLs name. `path` and the store's root hold none of
    the URLs' secrets."""
    places = [parse_object_url(url) for url in urls]
    if len({place.bucket for place in places}) > 1:
        first, other, *_ = dict.fromkeys(place.bucket for place in places)
        raise UsageError(f"{first} and {other} are two places: name files of one bucket or server")
    bucket, path = places[0].bucket, ", ".join(place.url for place in places)
    keys = [place.key for place in places]
    if len(keys) > 1 or has_magic(keys[0]) or "{" in keys[0]:
        root = posixpath.commonpath([posixpath.dirname(cut_at_special(key)) for key in keys])
        names = tuple(key[len(root) :].lstrip("/") for key in keys)
        return ObjectSource("pattern", names, path, ObjectStore(f"{bucket}/{root}"))
    key = keys[0].rstrip("/")
    outer, _, name = key.rpartition("/")
    store = ObjectStore(f"{bucket}/{outer}")
    if name and keys[0] == key:
        _, errors = store.probe(unseen(store.root, [name]))
        if not errors[0]:
            return ObjectSource("file", (name,), path, store)
        if errors[0] != errno.EISDIR:
            store.stat([name])  # says why
    return ObjectSource(
        "folder", ("",), ObjectLocation(bucket, key).url, ObjectStore(f"{bucket}/{key}")
    )


def read_sample(files: Files, file: int, offset: int, length: int, where: str) -> bytes:
    """Read the bytes of one extent; ChangedError unless the object is as it was indexed."""
    store = ObjectStore(files.root)
    if length == 0:
        return b""
    data, size, version = store._read(files.name(file), offset, length)
    if not size and not data:
        raise build_changed_error(where, "nothing is there")
    _check_same(int(files.size[file]), int(files.mtime_ns[file]), size, version, where)
    if len(data) != length:
        raise build_changed_error(where, f"only {len(data):,} bytes are there")
    return data


def _check_same(size: int, version: int, now_size: int, now_version: int, where: str) -> None:
    """Raise ChangedError unless an object has the size and version of the table."""
    if now_size != size:
        raise build_changed_error(where, f"the object has {now_size:,} bytes and had {size:,}")
    if now_version != version:
        raise build_changed_error(where, "the object was written to")
