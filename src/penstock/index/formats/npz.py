"""Arrays in a zip archive, as numpy.savez writes them. Each is a field; its first axis counts
samples.

One file, or several (a pattern, a list) with the same arrays. By default all arrays of the
archive are fields, and have to have the same number of rows.

fields, label:  see `penstock.index.formats.column_choice`; the label is an array of one integer a
                sample.

Compressed archives (numpy.savez_compressed) would have to be unpacked as a whole, and are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...engine.store import Progress, Store, StoreFile
from ...errors import FormatError, UsageError
from ...extent import Int
from ..fields import Field
from ..layout import Fixed
from ..table import Index
from . import column_choice, npy, zip
from .shards import Location, list_files, number_first

_SUFFIX = ".npy"


class _NpzArrays(NamedTuple):
    """Arrays of one file: the fields, the bytes where their rows start, the number of rows."""

    fields: list[Field]
    base: list[int]
    rows: int
    labels: Int | None


def sniff(head: bytes, name: str) -> bool:
    """True if a file is an archive whose first member is an array, or whose name ends in .npz."""
    if not head.startswith((b"PK\3\4", b"PK\5\6")):
        return False
    length = int.from_bytes(head[26:28], "little")
    return head[30 : 30 + length].endswith(_SUFFIX.encode()) or name.lower().endswith(".npz")


def build(
    store: Store,
    place: Location,
    progress: Progress | None = None,
    *,
    fields: Sequence[str] | None = None,
    label: str | None = None,
) -> Index:
    """The index of the rows of all arrays, file after file."""
    files, sources = list_files(store, place, progress)
    contents = store.parse(files, lambda _, source: _parse_arrays(source, fields, label), progress)
    for file, arrays in enumerate(contents):
        if arrays.fields != contents[0].fields or (arrays.labels is None) != (
            contents[0].labels is None
        ):
            raise FormatError(f"{files.path(file)} holds other arrays: choose some by fields=")
    first = number_first([arrays.rows for arrays in contents])
    if not first[-1]:
        raise FormatError(f"{files.path(0)} holds no samples: its arrays have no rows")
    layouts = []
    for number, part in enumerate(contents[0].fields):
        assert part.nbytes is not None
        base = np.array([arrays.base[number] for arrays in contents], np.int64)
        layouts.append(Fixed(first, base, part.nbytes))
    labels = [arrays.labels for arrays in contents if arrays.labels is not None]
    return Index(
        format="npz",
        files=files,
        fields=tuple(contents[0].fields),
        layouts=tuple(layouts),
        sources=sources,
        label_column=np.concatenate(labels) if labels else None,
    )


def _parse_arrays(source: StoreFile, fields: Sequence[str] | None, label: str | None) -> _NpzArrays:
    """Parse the chosen arrays of one archive."""
    members = {
        member.name.removesuffix(_SUFFIX): member
        for member in zip.list_members(source)
        if fields is None or member.name.endswith(_SUFFIX)
    }
    if not members:
        raise FormatError(f"{source.path} holds no arrays: save some with numpy.savez")
    wanted = (
        set(members)
        if fields is None
        else {*fields, *((label,) if label else column_choice.DEFAULTS)}
    )
    headers = {
        name: _read_header(source, member) for name, member in members.items() if name in wanted
    }
    integers = {
        name
        for name, header in headers.items()
        if header.dtype.kind in "ui" and len(header.shape) == 1
    }
    names, label = column_choice.choose_columns(source.path, list(members), integers, fields, label)
    parts, base, rows = [], [], {}
    for name in (*names, *((label,) if label else ())):
        what, header = f"{source.path}, array {name!r}", headers[name]
        part = npy.make_field(what, header, name)
        assert part.nbytes is not None
        npy.check_room(what, header, part.nbytes, members[name].size)
        rows[name] = header.shape[0]
        if name != label:
            parts.append(part)
            base.append(members[name].offset + header.data_offset)
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} {count:,}" for name, count in rows.items())
        raise UsageError(f"{source.path}: numbers of rows differ ({counts}): give fields=")
    labels = None
    if label:
        header, member = headers[label], members[label]
        length = header.shape[0] * header.dtype.itemsize
        data = source.read(member.offset + header.data_offset, length)
        labels = column_choice.convert_labels(source.path, label, np.frombuffer(data, header.dtype))
    return _NpzArrays(parts, base, rows[names[0]], labels)


def _read_header(source: StoreFile, member: zip.ZipMember) -> npy.NpyHeader:
    """Read the header of an array; FormatError unless its rows can be read in place."""
    what = f"{source.path}, member {member.name!r}"
    if not member.name.endswith(_SUFFIX):
        raise FormatError(f"{what} is not an array: choose arrays with fields=")
    if member.encrypted:
        raise FormatError(f"{what} is encrypted: save the arrays with numpy.savez")
    if member.method != zip.STORED:
        raise FormatError(f"{what} is compressed, and has no place: use numpy.savez")
    return npy.read_header(source, what, member.offset)


def _describe_fields(fields: Sequence[Field]) -> str:
    return ", ".join(f"{part.name} ({part.dtype} {list(part.shape or ())})" for part in fields)
