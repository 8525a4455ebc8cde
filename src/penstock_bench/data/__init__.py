"""Data files of a workload: DLIO's names and places, so that each finds the other's files."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingError, UsageError, missing_library

if TYPE_CHECKING:
    from ..workload.sections import DatasetSpec


def import_library(module: str, extra: str, what: str) -> Any:
    """Import a module of a library. UsageError, with the extra of penstock that has the library, if
    it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = {"PIL": "pillow"}.get(error.name or "", error.name or module)
        raise missing_library(package, extra, what) from None


PARTS = ("train", "valid")
_COMPRESSED = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz"}


def folder_of(data: DatasetSpec, root: str = "./") -> str:
    """The folder of a workload's data, or its URL, if `root` is one; else an absolute data_folder
    ignores the root."""
    if "://" in root:
        inner = os.path.normpath(data.data_folder).strip("/")
        return f"{root.rstrip('/')}/{inner}".removesuffix("/.")
    return os.path.normpath(os.path.join(root, data.data_folder))


def suffix_of(data: DatasetSpec) -> str:
    """The end of the names, without the dot: the format, and the compression of text."""
    return data.format + (_COMPRESSED.get(data.compression, "") if data.format == "csv" else "")


def data_paths(data: DatasetSpec, part: str, root: str = "./") -> list[str]:
    """List the paths of "train" or "valid" by number, whether the files exist or not."""
    count, dealt = data.files(part), data.subfolders(part)
    folder, suffix = os.path.join(folder_of(data, root), part), suffix_of(data)
    width, deep = len(str(count)), len(str(dealt))
    paths = []
    for number in range(count):
        below = f"{number % dealt:0{deep}d}/" if dealt else ""
        paths.append(f"{folder}/{below}{data.file_prefix}_{number:0{width}d}_of_{count}.{suffix}")
    return paths


def index_path(data: DatasetSpec, part: str, path: str, root: str = "./") -> str:
    """The path of DLIO's index of a TFRecord file."""
    return os.path.join(folder_of(data, root), "index", part, f"{os.path.basename(path)}.idx")


def find_paths(data: DatasetSpec, part: str, root: str = "./") -> list[str]:
    """Find the files of "train" or "valid", as many as asked for, in DLIO's order: by path, or, if
    there are sub-folders, by name. Other files in the folder are ignored. With skip_listing nothing
    is looked up.

    MissingError if there are too few; UsageError if the sub-folders differ from the workload.
    """
    folder, suffix = os.path.join(folder_of(data, root), part), suffix_of(data)
    wanted, dealt = data.files(part), data.subfolders(part)
    if not wanted or data.skip_listing:
        return data_paths(data, part, root)
    folders, names = _list_folder(folder)
    below = [
        os.path.join(subfolder, name)
        for subfolder in folders
        for name in _select_names(_list_folder(os.path.join(folder, subfolder))[1], suffix)
    ]
    paths = below if dealt else _select_names(names, suffix)
    if len(folders) != dealt and (dealt or (below and not paths)):
        key = "num_subfolders_train" if part == "train" else "num_subfolders_eval"
        raise UsageError(
            f"{folder}: found {len(folders)} subfolders, config says {dealt}; "
            f"set dataset.{key}={len(folders)}"
        )
    if len(paths) < wanted:
        key = "num_files_train" if part == "train" else "num_files_eval"
        raise MissingError(
            f"{wanted:,} files expected, {len(paths):,} found in {folder} (format {data.format}): "
            f"lower dataset.{key}, or generate them"
        )
    paths.sort(key=os.path.basename)
    return [os.path.join(folder, name) for name in paths[:wanted]]


def _list_folder(folder: str) -> tuple[list[str], list[str]]:
    """The folders and the files in a folder, sorted, without hidden ones."""
    folders: list[str] = []
    names: list[str] = []
    if "://" in folder:
        return _list_prefix(folder)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    (folders if entry.is_dir() else names).append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingError(
            f"{folder} is not there: check dataset.data_folder and storage.storage_root, or "
            f"generate the data"
        ) from None
    return sorted(folders), sorted(names)


def _list_prefix(url: str) -> tuple[list[str], list[str]]:
    """Likewise of a prefix of an object store."""
    from penstock.engine import open_store

    files = open_store(url).scan().files
    names = [files.name(row) for row in range(len(files))]
    folders = {name.partition("/")[0] for name in names if "/" in name}
    return sorted(folders), sorted(name for name in names if "/" not in name)


def _select_names(names: list[str], suffix: str) -> list[str]:
    """The names of data files: DLIO takes upper-case endings as well, in sub-folders."""
    endings = (f".{suffix}", f".{suffix.upper()}")
    return [name for name in names if name.endswith(endings)]
