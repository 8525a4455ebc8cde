"""Folders with an index.json: a list of the files of a data set and their content."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import limits
from ...engine.store import Store
from ...errors import FormatError
from ...extent import Files, joined, unseen
from .shards import check_below, check_inside

NAME = "index.json"

_HEAD_BYTES = 4096
_BYTES_MAX = 1 << 30
_LOOKED_AT = 8


def is_manifest(store: Store, *words: bytes) -> bool:
    """True if the root has an index.json that holds these words near its beginning."""
    _, errors = store.probe(unseen(store.root, [NAME]))
    if errors[0]:
        return False
    head = store.read(NAME, 0, _HEAD_BYTES)
    return all(word in head for word in words)


def has_shards(store: Store, shard: re.Pattern[str]) -> bool:
    """True if some files below the root have names of shards."""
    return any(shard.fullmatch(os.path.basename(name)) for name in store.some(_LOOKED_AT))


@dataclass(frozen=True)
class Manifest:
    """Content of an index.json; each entry is checked when it is asked for."""

    store: Store
    path: str
    files: Files
    value: Mapping[str, Any]

    @classmethod
    def read(cls, store: Store, what: str, shard: re.Pattern[str]) -> Manifest:
        """Read the index.json of the store's root.

        FormatError if there is none that can be read.
        """
        files, errors = store.probe(unseen(store.root, [NAME]))
        path = files.path(0)
        if errors[0]:
            lists = store.match(f"*/{NAME}") if has_shards(store, shard) else []
            below_it = ", ".join(os.path.dirname(name) for name in lists[:_LOOKED_AT])
            raise FormatError(
                f"{store.root} has no {NAME}, which {what} come with: open "
                + (f"one of its splits ({below_it})" if below_it else "the folder that has it")
            )
        size = int(files.size[0])
        if size > _BYTES_MAX:
            raise FormatError(f"{path} has {size:,} bytes, more than any list of files")
        text = store.read(NAME, 0, size)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path} is no JSON ({error}): fetch it again") from None
        if not isinstance(value, dict):
            raise FormatError(f"{path} is a JSON {type(value).__name__}, not an object")
        return cls(store, path, files, value)

    def flaw(self, message: str) -> FormatError:
        """Make the error for a flaw in the file."""
        return FormatError(f"{self.path}: {message}")

    def list_of(self, entry: Mapping[str, Any], key: str, where: str = "it") -> list[Any]:
        """Return a list; the lists `shards` and `chunks` must have only objects in them."""
        entries = entry.get(key)
        if not isinstance(entries, list):
            raise self.flaw(f"{where} has no list {key!r}")
        if key in ("shards", "chunks"):
            for number, each in enumerate(entries):
                if not isinstance(each, dict):
                    raise self.flaw(f"{key}[{number}] is no object")
        return entries

    def count_of(self, entry: Mapping[str, Any], key: str, where: str) -> int:
        """Return a number that is not negative."""
        count = entry.get(key)
        if type(count) is not int or not 0 <= count < limits.order_count_max:
            raise self.flaw(f"{where}: {key!r} is {count!r}, and not a number from 0 on")
        return count

    def name_of(self, entry: Mapping[str, Any], key: str, where: str) -> str:
        """Return the name of a file below the root."""
        name = entry.get(key)
        if not isinstance(name, str):
            raise self.flaw(f"{where}: {key!r} is {name!r}, and not the name of a file")
        return check_below(f"{self.path}, {where}: ", name)

    def check_inside(self, names: Sequence[str]) -> None:
        """Check that no file is named twice, and no link leads out of the root (FormatError)."""
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise self.flaw(f"it names {twice!r} twice")
        check_inside(self.store, f"{self.path}: ", names)

    def sources(self, files: Files) -> Files:
        """Sources that must stay unchanged: the list itself, and the files."""
        return joined(self.files, files)
