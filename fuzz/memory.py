"""A store whose files are byte strings, and what is demanded of an index made from them."""

from __future__ import annotations

import errno
import fnmatch
import functools
import os
import posixpath
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fuzz.structure import PART
from penstock.dataset.fields import build_fields
from penstock.engine.globbing import expand_braces
from penstock.engine.store import Listing, StoreFile
from penstock.errors import MissingError, PenstockError
from penstock.extent import Files
from penstock.index.formats import FORMATS, Location
from penstock.index.layout import Chunked
from penstock.index.table import Index
from penstock.plan.steps import plan_samples

ROOT = "/fuzz"

_read_bytes_max = 1 << 24
"""Samples of more bytes are not read: an index may claim no more than its files hold."""


class MemoryStore:
    """Files by name; folders are what their names imply."""

    root = ROOT

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self.contents = dict(contents)

    def scan(self, extensions: Sequence[str] = (), progress: Any = None) -> Listing:
        names = sorted(
            (name for name in self.contents if not extensions or name.endswith(tuple(extensions))),
            key=os.fsencode,
        )
        above = sorted({posixpath.dirname(name) for name in names} | {""})
        folder = np.array([above.index(posixpath.dirname(name)) for name in names], np.int32)
        return Listing(self._files(names), folder, self.folders(above))

    def some(self, count: int) -> list[str]:
        return list(self.contents)[:count]

    def match(self, pattern: str) -> list[str]:
        found = (fnmatch.filter(self.contents, each) or [each] for each in expand_braces(pattern))
        return [name for names in found for name in names]

    def probe(self, files: Files, progress: Any = None) -> tuple[Files, Any]:
        names = [posixpath.normpath(files.name(file)) for file in range(len(files))]
        errors = [0 if name in self.contents else errno.ENOENT for name in names]
        return self._files(names), np.array(errors, np.int32)

    def stat(self, names: Sequence[str], said_by: Any = None, progress: Any = None) -> Files:
        for row, name in enumerate(names):
            if posixpath.normpath(name) not in self.contents:
                raise MissingError(f"{said_by(row) if said_by else ''}{name} does not exist")
        return self._files(names)

    def folders(self, names: Sequence[str]) -> Files:
        size = np.full(len(names), -1, np.int64)
        return Files.of(self.root, list(names), size, np.ones(len(names), np.int64))

    def read(self, name: str, offset: int, length: int) -> bytes:
        assert offset >= 0
        assert length >= 0
        if posixpath.normpath(name) not in self.contents:
            raise MissingError(f"{name} does not exist")
        return self.contents[posixpath.normpath(name)][offset : offset + length]

    def parse(self, files: Files, parse: Any, progress: Any = None) -> list[Any]:
        found = []
        for number in range(len(files)):
            fetch = functools.partial(self.read, files.name(number))
            found.append(
                parse(number, StoreFile(files.path(number), int(files.size[number]), fetch, -1))
            )
        return found

    def _files(self, names: Sequence[str]) -> Files:
        found = (self.contents.get(posixpath.normpath(name), b"") for name in names)
        size = np.array([len(content) for content in found], np.int64)
        return Files.of(self.root, list(names), size, np.ones(len(names), np.int64))


def joined_parts(*contents: bytes) -> bytes:
    """Several files as one input."""
    return PART.join(contents)


def parted(data: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """One input as several files; the last takes what is left, missing ones are not there."""
    return dict(zip(names, data.split(PART, len(names) - 1), strict=False))


def is_chosen(data: bytes) -> bool:
    """True for half of all inputs, always the same: which of two ways an input is opened."""
    return zlib.crc32(data) & 1 == 1


def _is_read(contents: Mapping[str, bytes]) -> bool:
    """Return whether samples of these files are read."""
    return sum(map(zlib.crc32, contents.values())) % 4 == 0


def examine(
    format: str,
    contents: Mapping[str, bytes],
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Index | None:
    """The index of these files as a format reads them, or None where it refused them.

    name:  the file that is opened; None opens the folder of them all.

    Anything but a PenstockError, and an index that points outside its files, is a finding. Of a
    quarter of all contents, always the same, the first, middle and last samples are read and
    decoded: that takes as long as the index.
    """
    store = MemoryStore(contents)
    entry = FORMATS[format]
    place = (
        Location("folder", "", ROOT) if name is None else Location("file", name, f"{ROOT}/{name}")
    )
    try:
        index = entry.build(store, place, None, **entry.canonical(dict(options or {})))
    except PenstockError:
        return None
    count = index.count
    for layout, part in zip(index.layouts, index.fields, strict=True):
        assert layout.count == count, f"{part.name}: {layout.count} of {count} samples"
        assert layout.flaw(index.files) is None, f"{part.name}: {layout.flaw(index.files)}"
        assert (part.codec is None) != isinstance(layout, Chunked)
    assert index.label_column is None or len(index.label_column) == count
    assert index.names is None or len(index.names) == count
    if count and _is_read(contents):
        samples = sorted({0, count // 2, count - 1})
        # One batch costs as much as one sample. What damage keeps it from is read by itself.
        if read_samples(store, index, samples) is None and len(samples) > 1:
            for sample in samples:
                read_samples(store, index, [sample])
    return index


def read_samples(store: MemoryStore, index: Index, samples: Sequence[int]) -> dict[str, Any] | None:
    """Read samples as a loader reads a batch; None if one of them is refused or too large."""
    ids, bounds = np.array(samples, np.uint64), np.array([0, len(samples)], np.int64)
    index.keys(ids.astype(np.int64))
    (group,) = plan_samples(index, ids, bounds, 0, None)
    (planned,) = group.steps
    made = len(samples) * sum(field.nbytes or 0 for field in index.made)
    if max(planned.layout.bytes, made) > _read_bytes_max:
        return None
    buffer = np.zeros(planned.layout.bytes, np.uint8)
    for file, offset, length, _, target in zip(
        *(column.tolist() for column in planned.requests[:-1]), strict=True
    ):
        data = store.read(index.files.name(file), offset, length)
        assert len(data) == length
        buffer[target : target + length] = np.frombuffer(data, np.uint8)
    try:
        return build_fields(index, planned, buffer)
    except PenstockError:
        return None
