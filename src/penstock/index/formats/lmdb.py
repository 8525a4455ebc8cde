"""LMDB environments, read as extents: their B+tree is walked once, and liblmdb is not needed.

An environment is one file: `data.mdb` of its folder, or a file of any name (MDB_NOSUBDIR). Data
versions 1 (LMDB 0.9), 2 and 3 (LMDB 1.0), 64 bit and little-endian, are read. A value is a sample
of opaque bytes: nothing is unpickled. Its key is the sample's name. Bytes that are not UTF-8 become
text as by `os.fsdecode`, and integer keys (MDB_INTEGERKEY) become decimal numbers. Of several
databases `database=` names one; "" is the main database, with values beside the named ones.

The keys `__len__` and `__keys__`, of common writers, are left out
(`exclude=`). Databases with several values for a key, and encrypted environments, are refused.

A value too large for its leaf has pages of its own, with a header. With `verify=True` all of these
headers are read and compared, a small read for each value. This is the default on local file
systems, but not where each read is a message (NFS, Lustre, FUSE, object stores). Everything else is
always checked: every page of the tree, and that each value is inside the file, on its
own. Without the headers, such a page that was overwritten or never written goes unnoticed: a sample
then has other bytes. In data version 1 the number of these pages is not compared either.

An index is of one commit and keeps its number (txnid). A later commit makes it stale, and reads
from a file that was written to raise ChangedError. This is stricter than LMDB's own rules need,
because training data does not change.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...engine.store import Progress, Store, StoreFile
from ...errors import ChangedError, FormatError, MissingError, UsageError
from ...extent import Files, Int, Names, joined, unseen
from ..fields import Field
from ..layout import RowTable
from ..table import Index
from .shards import Location, check_named_once, number_first

DATA = "data.mdb"
"""Name of the file of an environment that is a folder."""


_EXCLUDED = ("__keys__", "__len__")
_ORDERS = ("key", "file")
_MAGIC = (bytes.fromhex("DEC0EFBE"), bytes.fromhex("BEEFC0DE"))
_HEAD_BYTES = 192
_META_HEADERS = {1: 16, 2: 24, 3: 24}
"""Bytes before a meta on its page, by data version."""


def is_dataset(store: Store) -> bool:
    """True if the root is an environment, by the name of its file, damaged or not."""
    _, errors = store.probe(unseen(store.root, [DATA]))
    return not errors[0]


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form, without those that have their default."""
    normalized: dict[str, Any] = {}
    database = options.get("database")
    if isinstance(database, bytes):
        database = os.fsdecode(database)
    if database is not None:
        if not isinstance(database, str):
            raise UsageError(f"database is {database!r}: give the name of one in the environment")
        normalized["database"] = database
    for name in ("datum", "verify"):
        value = options.get(name)
        if value not in (None, True, False):
            raise UsageError(f"{name} is {value!r}: use True or False")
        if value is not None and (value or name == "verify"):
            normalized[name] = bool(value)
    order = options.get("order", "key")
    if order not in _ORDERS:
        raise UsageError(f"order is {order!r}: use 'key', or 'file' for ascending offsets")
    if order != "key":
        normalized["order"] = order
    if options.get("exclude") is not None:
        exclude = _normalize_keys(options["exclude"])
        if exclude != list(_EXCLUDED):
            normalized["exclude"] = exclude
    return normalized


def _normalize_keys(exclude: Any) -> list[str]:
    keys = [exclude] if isinstance(exclude, str | bytes) else exclude
    if not isinstance(keys, Iterable):
        raise UsageError(f"exclude is {exclude!r}: give the keys that are not samples")
    keys = list(keys)
    if not all(isinstance(key, str | bytes) for key in keys):
        raise UsageError(f"exclude is {exclude!r}: give the keys as text or bytes")
    return sorted({os.fsdecode(key) for key in keys})


class _LmdbRecords(NamedTuple):
    """Records of one environment."""

    names: Names
    offset: Int
    length: Int
    label: Int | None
    shape: tuple[int, ...] | None
    stamp: list[int]


def build(
    store: Store,
    place: Location,
    progress: Progress | None,
    *,
    database: str | None = None,
    datum: bool = False,
    order: str = "key",
    exclude: Sequence[str] = _EXCLUDED,
    verify: bool | None = None,
) -> Index:
    """The index of all records, environment after environment."""
    files, sources = _list_files(store, place)

    def parse(_: int, source: StoreFile) -> _LmdbRecords:
        records = source.walk(
            "lmdb",
            database=None if database is None else os.fsencode(database),
            exclude=[os.fsencode(key) for key in exclude],
            file_order=order == "file",
            datum=datum,
            verify=source.local if verify is None else verify,
        )
        now = _read_stamp(source)
        stamp = [records["txnid"], records["psize"], records["version"]]
        if now != stamp:
            raise ChangedError(f"{source.path}: it was written to meanwhile: open it again")
        keys = Names(records["keys"], records["ends"])
        return _LmdbRecords(
            _write_decimal(keys) if records["integer_keys"] else keys,
            records["offset"],
            records["length"],
            records["label"] if datum and records["labelled"] else None,
            records["shape"] if datum and any(records["shape"]) else None,
            stamp,
        )

    walked = store.parse(files, parse, progress)
    counts = [len(records.length) for records in walked]
    if not sum(counts):
        raise FormatError(f"{files.path(0)} holds no samples: write some, or see exclude=")
    filled = [each for each in walked if len(each.length)]
    shape = filled[0].shape if len({each.shape for each in filled}) == 1 else None
    labelled = any(each.label is not None for each in filled)
    return Index(
        format="lmdb",
        files=files,
        fields=(Field("data", np.dtype(np.uint8), shape),),
        layouts=(
            RowTable(
                np.repeat(np.arange(len(files), dtype=np.uint32), counts),
                _concatenate([each.offset for each in walked]),
                _concatenate([each.length for each in walked]),
            ),
        ),
        sources=sources,
        label_column=_concatenate([_take_labels(each) for each in walked]) if labelled else None,
        names=_concatenate_names([each.names for each in walked]),
        stamp=[each.stamp for each in walked],
    )


def read_stamps(store: Store, files: Files) -> list[list[int]]:
    """Read the current commit of each environment: transaction, page size, data version."""
    return store.parse(files, lambda _, source: _read_stamp(source))


def _read_stamp(source: StoreFile) -> list[int]:
    head = source.read(0, _HEAD_BYTES)
    for version, header in _META_HEADERS.items():
        if head[header : header + 4] == _MAGIC[0] and head[header + 4] == version:
            page_bytes = int.from_bytes(head[header + 24 : header + 28], "little")
            metas = [head, source.read(page_bytes, _HEAD_BYTES)]
            txnids = [int.from_bytes(m[header + 128 : header + 136], "little") for m in metas]
            return [max(txnids), page_bytes, version]
    raise source.flaw(0, "the first meta page has changed")


def _list_files(store: Store, place: Location) -> tuple[Files, Files]:
    """List the environments' files, and the sources that must stay unchanged.

    For an environment that is a folder only `data.mdb` counts: readers make a lock file beside it.
    """
    if place.kind == "folder":
        files = store.stat([DATA])
        return files, files
    if place.kind == "file":
        files = store.stat([place.name])
        return files, files
    names = list_environments(store, place)
    files = store.stat(names)
    inside = {name.removesuffix(DATA).rstrip("/") for name in names if _is_inside(name)}
    outside = {os.path.dirname(name) for name in names if not _is_inside(name)}
    folders = store.folders(sorted({"", *outside, *(os.path.dirname(each) for each in inside)}))
    return files, joined(folders, files)


def _is_inside(name: str) -> bool:
    return os.path.basename(name) == DATA


def list_environments(store: Store, place: Location) -> list[str]:
    """List the environments' files that a place's patterns match, as files or folders."""
    names: list[str] = []
    for pattern in place.names:
        matched = store.match(pattern)
        if matched:
            _, errors = store.probe(unseen(store.root, matched))
            folders = (errors == errno.EISDIR).tolist()
            paths = [
                os.path.join(name, DATA) if is_folder else name
                for name, is_folder in zip(matched, folders, strict=True)
            ]
            _check_environments(store, [name for name in paths if name not in matched])
        else:  # shell patterns give files alone
            paths = store.match(os.path.join(pattern, DATA))
        if not paths:
            raise MissingError(f"{os.path.join(store.root, pattern)} matches no environment")
        names += paths
    check_named_once(store, names)
    return names


def _check_environments(store: Store, names: Sequence[str]) -> None:
    """Raise FormatError if a listed folder has no `data.mdb`: it may hold anything else."""
    _, errors = store.probe(unseen(store.root, names))
    for name, error in zip(names, errors.tolist(), strict=True):
        if error == errno.ENOENT:
            folder = os.path.dirname(os.path.join(store.root, name))
            raise FormatError(f"{folder} is a folder without {DATA}: open it by itself, and mix")


def _concatenate(columns: Sequence[Int]) -> Int:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _take_labels(walked: _LmdbRecords) -> Int:
    return np.zeros(len(walked.length), np.int64) if walked.label is None else walked.label


def _concatenate_names(names: Sequence[Names]) -> Names:
    """Concatenate names."""
    if len(names) == 1:
        return names[0]
    starts = number_first([len(name.text) for name in names])
    ends = [each.ends + start for each, start in zip(names, starts.tolist(), strict=False)]
    return Names(np.concatenate([each.text for each in names]), np.concatenate(ends))


def _write_decimal(keys: Names) -> Names:
    """Write integer keys, all of one width, as decimal numbers."""
    if not len(keys):
        return keys
    width = int(keys.ends[0])
    return Names.of([str(number) for number in keys.text.view(f"<u{width}").tolist()])
