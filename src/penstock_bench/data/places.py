"""Where the data of a workload are: a folder, or a prefix of an object store, whose keys are the
paths that files would have."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.convert import lock_folder
from penstock.engine import AtomicFile, open_store, storage_errors, sync_folder
from penstock.errors import MissingError

if TYPE_CHECKING:
    from ..workload.sections import StorageSpec


def is_object(path: str) -> bool:
    """True for a URL."""
    return "://" in path


def set_environment(storage: StorageSpec) -> None:
    """Put what a workload says of its object store into the environment, where the client looks
    first."""
    if storage.storage_type != "s3":
        return
    options: dict[str, Any] = {**storage.storage_options}
    variables = {
        "AWS_ENDPOINT_URL_S3": options.get("endpoint_url"),
        "AWS_ACCESS_KEY_ID": options.get("access_key_id"),
        "AWS_SECRET_ACCESS_KEY": options.get("secret_access_key"),
        "AWS_REGION": options.get("region"),
    }
    os.environ |= {name: value for name, value in variables.items() if value}


class FolderPlace:
    """A folder of this machine, or one that is mounted."""

    def list_below(self, folder: str) -> Iterator[str]:
        """The paths of all files below a folder, which may be missing."""
        for inner_folder, _, names in os.walk(folder):
            yield from (os.path.join(inner_folder, name) for name in names)

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; None if it is missing."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return Path(path).read_bytes()
        return None

    def open(self, path: str) -> AtomicFile:
        """A file to be written."""
        return AtomicFile(path)

    def sync(self, paths: Iterable[str]) -> None:
        """Make the names of files durable."""
        for folder in {os.path.dirname(path) for path in paths}:
            sync_folder(folder)

    def remove(self, paths: Iterable[str], folder: str) -> None:
        """Remove files, and the folders below and at `folder`, which have no others."""
        with storage_errors(folder):
            for path in paths:
                os.unlink(path)
            for at, _, _ in os.walk(folder, topdown=False):
                os.rmdir(at)

    def make_folders(self, folders: Iterable[str]) -> None:
        for folder in sorted(folders):
            with storage_errors(folder):
                os.makedirs(folder, exist_ok=True)

    def lock(self, folder: str) -> AbstractContextManager[None]:
        """Lock the folder against another run."""
        return lock_folder(folder, "generating data in")

    def measure_room(self, folder: str) -> int | None:
        """Bytes that there is room for; None if that is not known."""
        above = (Path(folder).absolute(), *Path(folder).absolute().parents)
        return shutil.disk_usage(next(path for path in above if path.exists())).free


class ObjectFile(AtomicFile):
    """A file that becomes an object when it is committed."""

    def __init__(self, url: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        super().__init__(os.path.join(self._folder.name, "object"))
        self.url = url

    def sync(self) -> None:
        with storage_errors(self.path):
            self.file.close()

    def commit(self, *, durable: bool = True) -> None:
        """Write the object: it appears whole or not at all, and is durable then."""
        folder, name = posixpath.split(self.url)
        store: Any = open_store(folder)
        store.write(name, self.temporary)

    def discard(self) -> None:
        super().discard()
        self._folder.cleanup()


class ObjectPlace(FolderPlace):
    """A prefix of an object store. There are no folders, and no locks: one run writes at a time."""

    def list_below(self, folder: str) -> Iterator[str]:
        with contextlib.suppress(MissingError):
            files = open_store(folder).scan().files
            yield from (files.path(row) for row in range(len(files)))

    def read(self, path: str) -> bytes | None:
        folder, name = posixpath.split(path)
        store = open_store(folder)
        with contextlib.suppress(MissingError):
            size = int(store.stat([name]).size[0])
            return store.read(name, 0, size)
        return None

    def open(self, path: str) -> AtomicFile:
        return ObjectFile(path)

    def sync(self, paths: Iterable[str]) -> None:
        pass

    def remove(self, paths: Iterable[str], folder: str) -> None:
        store: Any = open_store(folder)
        store.delete([path.removeprefix(f"{folder}/") for path in paths])

    def make_folders(self, folders: Iterable[str]) -> None:
        pass

    def lock(self, folder: str) -> AbstractContextManager[None]:
        return nullcontext()

    def measure_room(self, folder: str) -> int | None:
        return None


def choose_place(folder: str) -> FolderPlace:
    """The place of a workload's data."""
    return ObjectPlace() if is_object(folder) else FolderPlace()
