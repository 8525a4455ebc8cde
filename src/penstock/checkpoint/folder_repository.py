"""A repository in a folder of a file system: `folder_steps` is its protocol."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from ..arguments import suggest_path
from ..engine import storage_errors
from ..errors import MissingError, UsageError
from . import shards
from .flushing import ShardSource
from .folder_steps import FolderSteps, find_path
from .perform import perform
from .repository import Repository
from .repository_steps import CheckpointEntry, translate_read_errors


class Folder(Repository):
    """Committed checkpoints in a folder. MissingError if there is no such folder, unless `make`."""

    def __init__(self, path: str | os.PathLike[str], *, make: bool = False) -> None:
        where = os.path.abspath(os.fspath(path))
        if os.path.isfile(where):
            raise UsageError(f"{where} is a file: name a folder for the checkpoints")
        if make:
            with storage_errors(where, "try again"):
                os.makedirs(where, exist_ok=True)
        if not perform(find_path(os.path.join(where, ""))):
            raise MissingError(
                f"{where} is not a folder{suggest_path(where)}: name the folder of the checkpoints"
            )
        super().__init__(FolderSteps(where))

    def committed_s(self, entry: CheckpointEntry) -> float:
        with translate_read_errors(entry.path):
            return os.stat(self.index_path(entry)).st_mtime

    def open_shard(self, path: str) -> AbstractContextManager[ShardSource]:
        return shards.open_shard_file(path)
