"""LMDB environments, read as extents: their B+tree is walked once, and liblmdb is not needed.

An environment is one file: `data.mdb` of its folder, or a file of any name (MDB_NOSUBDIR). Data
versions 1 (LMDB 0.9), 2 and 3 (LMDB 1.0), 64 bit and little-endian, are read. A value is a sample
of opaque bytes: nothing is unpickled. Its key is the sample's name. Bytes that are not UTF-8 become
text as by `os.fsdecode`, and integer keys (MDB_INTEGERKEY) become decimal numbers. Of several
databases `database=` names one; "" is the main database, with values beside the named ones.

The keys `__len__` and `__keys__`, of common writers, are left out (`exclude=`). Where there is
`num-samples`, as in data sets of text in images, `image-%09d` and `label-%09d` are two fields of a
sample: the bytes and a text. `exclude=["num-samples"]` makes a sample of each value.

Databases with several values for a key, and encrypted environments, are refused.

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
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...engine.store import Store, StoreFile
from ...errors import ChangedError, FormatError, MissingError, UsageError
from ...extent import Files, Int, Names, joined, unseen
from ..fields import Field
from ..table import Index
from . import options, splits
from .shards import Location, Scan, check_named_once, join_names, lay_out_extents

DATA = "data.mdb"
"""Name of the file of an environment that is a folder."""


_EXCLUDED = ("__keys__", "__len__")
_COUNTER = "num-samples"
_IMAGE, _LABEL = b"image-", b"label-"
_DIGITS = 9
_MAGIC = (bytes.fromhex("DEC0EFBE"), bytes.fromhex("BEEFC0DE"))
_HEAD_BYTES = 192
_META_HEADERS = {1: 16, 2: 24, 3: 24}
"""Bytes before a meta on its page, by data version."""


def is_dataset(store: Store) -> bool:
    """True if the root is an environment, by the name of its file, damaged or not."""
    return not store.probe(unseen(store.root, [DATA]))[1].any()


def has_data_beside(store: Store, name: str) -> bool:
    """True if a lock, which readers make, is of an environment."""
    data = f"{name.removesuffix('lock.mdb')}{DATA}"
    return not store.probe(unseen(store.root, [data]))[1].any()


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form, without those that have their default."""
    return options.normalize(
        given,
        database=lambda name, value: _decode_keys(name, [value])[0],
        datum=options.one_of(False, True),
        order=options.one_of("key", "file"),
        exclude=_normalize_exclude,
        verify=options.one_of(True, False, is_kept=True),
    )


def _normalize_exclude(name: str, value: Any) -> list[str] | None:
    keys = sorted(set(_decode_keys(name, [value] if isinstance(value, str | bytes) else value)))
    return None if keys == list(_EXCLUDED) else keys


def _decode_keys(name: str, keys: Any) -> list[str]:
    if not isinstance(keys, Iterable) or not all(isinstance(key, str | bytes) for key in keys):
        raise UsageError(f"{name} is {keys!r}: give keys of the environment, as text or bytes")
    return [os.fsdecode(key) for key in keys]


class _LmdbRecords(NamedTuple):
    """Records of one environment."""

    names: Names
    offset: Int
    length: Int
    label: Int | None
    shape: tuple[int, ...] | None
    stamp: list[int]


def build(
    scan: Scan,
    database: str | None = None,
    datum: bool = False,
    order: str = "key",
    exclude: Sequence[str] = _EXCLUDED,
    verify: bool | None = None,
) -> Index:
    """The index of all records, environment after environment."""
    store, place = scan.store, scan.place
    if place.kind == "folder" and not is_dataset(store) and store.match(f"**/{DATA}"):
        place = replace(place, kind="pattern", names=(f"**/{DATA}",))  # of several environments
    if place.kind == "pattern":
        names = list_environments(store, place)
        files = store.stat(names)
        # The folder of an environment's own folder, or of its file: another may come there.
        above = [re.sub(rf"(^|/){DATA}$", "", name) for name in names]
        sources = joined(store.folders(sorted({"", *map(os.path.dirname, above)})), files)
    else:  # of a folder only `data.mdb` counts: readers make a lock file beside it
        files = sources = store.stat([DATA if place.kind == "folder" else place.name])

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
        if records["integer_keys"] and len(keys):  # all of one width
            numbers = keys.text.view(f"<u{int(keys.ends[0])}").tolist()
            keys = Names.of([str(number) for number in numbers])
        return _LmdbRecords(
            keys,
            records["offset"],
            records["length"],
            records["label"] if datum and records["labelled"] else None,
            records["shape"] if datum and any(records["shape"]) else None,
            stamp,
        )

    walked = scan.parse(files, parse)
    paired = [_find_pairs(files.path(n), records) for n, records in enumerate(walked)]
    filled = [records for records in walked if len(records.length)]
    if not filled:
        raise FormatError(f"{files.path(0)} holds no samples: write some, or see exclude=")
    shape = filled[0].shape if len({records.shape for records in filled}) == 1 else None
    labels = None
    if any(records.label is not None for records in filled):
        columns = [
            np.zeros(len(records.length), np.int64) if records.label is None else records.label
            for records in walked
        ]
        labels = np.concatenate(columns)
    rows = [
        [slice(None)] if count is None else [slice(count), slice(count, 2 * count)]
        for count in paired
    ]
    if len({*map(len, rows)}) > 1:
        odd = files.path(list(map(len, rows)).index(1))
        raise FormatError(f"{odd} has no {_COUNTER!r}, as others have: open it by itself")
    fields: tuple[Field, ...] = (Field("data", np.dtype(np.uint8), shape),)
    keys = [records.names for records in walked]
    if len(rows[0]) > 1:
        byte = np.dtype(np.uint8)
        fields = (Field("image", byte, None), Field("label", byte, None, text="text"))
        keys = [
            Names(one.text[: int(one.ends[slices[1].start - 1])], one.ends[slices[0]])
            for one, slices in zip(keys, rows, strict=True)
        ]
    layouts = tuple(
        lay_out_extents(
            [one.offset[slices[n]] for one, slices in zip(walked, rows, strict=True)],
            [one.length[slices[n]] for one, slices in zip(walked, rows, strict=True)],
        )
        for n in range(len(fields))
    )
    return Index(
        "lmdb",
        files,
        fields,
        layouts,
        sources,
        label_column=labels,
        names=join_names(keys),
        stamp=[records.stamp for records in walked],
    )


def _find_pairs(path: str, records: _LmdbRecords) -> int | None:
    """Count the pairs of an environment that has a counter; None if it has none.

    FormatError if there are other keys, or an image or label is alone.
    """
    names, width, at = records.names, len(_IMAGE) + _DIGITS, len(_IMAGE)
    text = names.text.tobytes()
    places = [match.start() for match in re.finditer(_COUNTER.encode(), text)]
    rows = np.searchsorted(names.ends, places, side="right").tolist()
    if not any(names[row] == _COUNTER for row in rows):
        return None
    count = (len(names) - 1) // 2
    whole = len(text) == 2 * count * width + len(_COUNTER) and names[2 * count] == _COUNTER
    if whole and count and (np.diff(names.ends[: 2 * count]) == width).all():
        images, labels = names.text[: 2 * count * width].reshape(2, count, width)
        heads = [images[:, :at] == list(_IMAGE), labels[:, :at] == list(_LABEL)]
        if np.all(heads) and (images[:, at:] == labels[:, at:]).all():
            return count
    raise FormatError(
        f"{path} has {_COUNTER!r}, and others than pairs of image-%09d and label-%09d: give "
        f"exclude=[{_COUNTER!r}] for a sample of each value"
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
            inside = [name for name in paths if name not in matched]
            missing = np.flatnonzero(store.probe(unseen(store.root, inside))[1] == errno.ENOENT)
            for row in missing[:1].tolist():  # such a folder may hold anything else
                folder = os.path.dirname(os.path.join(store.root, inside[row]))
                raise FormatError(
                    f"{folder} is a folder without {DATA}: open it by itself, and mix"
                )
        else:  # shell patterns give files alone
            paths = store.match(os.path.join(pattern, DATA))
        if not paths:
            raise MissingError(f"{os.path.join(store.root, pattern)} matches no environment")
        names += paths
    check_named_once(store, names)
    rows = splits.choose(unseen(store.root, names), place)
    return names if rows is None else [names[row] for row in rows]
