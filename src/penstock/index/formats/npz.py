"""Arrays in a zip archive, as numpy.savez writes them. Each is a field; its first axis counts
samples.

One file, or several (a pattern, a list) with the same arrays. By default all arrays of the
archive are fields, and have to have the same number of rows.

fields, label:  see `penstock.index.formats.options`; the label is an array of one integer a
                sample.

Compressed archives (numpy.savez_compressed) would have to be unpacked as a whole, and are refused.
"""

from __future__ import annotations

import itertools
import struct
import zipfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...engine.store import StoreFile
from ...errors import FormatError, UsageError
from ...extent import Int
from ..fields import Field
from ..layout import Fixed
from ..table import Index
from . import column_choice, npy
from .sandbox import BlockFile
from .shards import Columns, Scan, number_first

_SUFFIX = ".npy"
_LOCAL = struct.Struct("<4s5H3I2H")
_DAMAGED = (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error)


class _NpzArrays(NamedTuple):
    """Arrays of one file: the fields, the bytes where their rows start, the number of rows."""

    fields: list[Field]
    base: list[int]
    rows: int
    labels: Int | None


class ZipMember(NamedTuple):
    """One entry: its name, its method of compression, and the place of its data as stored."""

    name: str
    method: int
    encrypted: bool
    offset: int
    size: int


def sniff(head: bytes, name: str) -> bool:
    """True if a file is an archive whose first member is an array, or whose name ends in .npz."""
    if not head.startswith((b"PK\3\4", b"PK\5\6")):
        return False
    length = int.from_bytes(head[26:28], "little")
    return head[30 : 30 + length].endswith(_SUFFIX.encode()) or name.lower().endswith(".npz")


def build(scan: Scan, fields: Columns = None, label: str | None = None) -> Index:
    """The index of the rows of all arrays, file after file."""
    files, sources = scan.list_files()
    contents = scan.parse(files, lambda _, source: _parse_arrays(source, fields, label))
    labels = [arrays.labels for arrays in contents if arrays.labels is not None]
    for file, arrays in enumerate(contents):
        if arrays.fields != contents[0].fields or len(labels) not in (0, len(contents)):
            raise FormatError(f"{files.path(file)} holds other arrays: choose some by fields=")
    first = number_first([arrays.rows for arrays in contents])
    if not first[-1]:
        raise FormatError(f"{files.path(0)} holds no samples: its arrays have no rows")
    layouts = []
    for number, part in enumerate(contents[0].fields):
        assert part.nbytes is not None
        base = np.array([arrays.base[number] for arrays in contents], np.int64)
        layouts.append(Fixed(first, base, part.nbytes))
    label_column = np.concatenate(labels) if labels else None
    parts = tuple(contents[0].fields)
    return Index("npz", files, parts, tuple(layouts), sources, label_column=label_column)


def _parse_arrays(source: StoreFile, fields: Sequence[str] | None, label: str | None) -> _NpzArrays:
    """Parse the chosen arrays of one archive."""
    members = {
        member.name.removesuffix(_SUFFIX): member
        for member in _list_members(source)
        if fields is None or member.name.endswith(_SUFFIX)
    }
    if not members:
        raise FormatError(f"{source.path} holds no arrays: save some with numpy.savez")
    wanted = {*(fields or members), *((label,) if label else column_choice.DEFAULTS)}
    headers = {name: _read_header(source, members[name]) for name in members if name in wanted}
    integers = {n for n, h in headers.items() if h.dtype.kind in "ui" and len(h.shape) == 1}
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
        dtype, (count,), start = headers[label]
        data = source.read(members[label].offset + start, count * dtype.itemsize)
        labels = column_choice.convert_labels(source.path, label, np.frombuffer(data, dtype))
    return _NpzArrays(parts, base, rows[names[0]], labels)


def _read_header(source: StoreFile, member: ZipMember) -> npy.NpyHeader:
    """Read the header of an array; FormatError unless its rows can be read in place."""
    what = f"{source.path}, member {member.name!r}"
    if not member.name.endswith(_SUFFIX):
        raise FormatError(f"{what} is not an array: choose arrays with fields=")
    if member.encrypted:
        raise FormatError(f"{what} is encrypted: save the arrays with numpy.savez")
    if member.method != zipfile.ZIP_STORED:
        raise FormatError(f"{what} is compressed, and has no place: use numpy.savez")
    return npy.read_header(source, what, member.offset)


# -- the archive -----------------------------------------------------------------------------------


def _list_members(source: StoreFile) -> list[ZipMember]:
    """List all entries but folders, with the place of their data; FormatError at a contradiction.

    Reads the end, the directory, and the local header of every entry.
    """
    file = BlockFile(source)
    try:
        with zipfile.ZipFile(file) as archive:
            entries, end = archive.infolist(), archive.start_dir
            members = [_locate_data(file, entry) for entry in entries]
    except _DAMAGED as error:
        if file.error is not None:
            raise file.error from None
        raise FormatError(f"{source.path}: damaged or truncated archive: {error}") from None
    if len({member.name for member in members}) < len(members):
        raise FormatError(f"{source.path}: two members have one name: save the archive again")
    places = sorted((member.offset, member.offset + member.size) for member in members)
    for (_, stop), (start, _) in itertools.pairwise([*places, (end, end)]):
        if stop > start:
            raise source.flaw(start, "members of the archive overlap: damaged")
    return [member for member in members if not member.name.endswith("/")]


def _locate_data(file: BlockFile, entry: zipfile.ZipInfo) -> ZipMember:
    """Locate a member's data, whose place only its local header tells."""
    file.seek(entry.header_offset)
    head = file.read(_LOCAL.size) or b""
    magic, _, flags, method, *_, name_bytes, extra_bytes = _LOCAL.unpack(head)
    name = (file.read(name_bytes) or b"").decode("utf-8" if flags & 1 << 11 else "cp437", "replace")
    # The two headers are written together: where they differ, one of them is damaged.
    if magic != b"PK\3\4" or method != entry.compress_type or name != entry.orig_filename:
        raise zipfile.BadZipFile(f"member {entry.filename!r} has another header at its place")
    if method == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
        raise zipfile.BadZipFile(f"stored member {entry.filename!r} has two sizes")
    offset = entry.header_offset + _LOCAL.size + name_bytes + extra_bytes
    return ZipMember(entry.filename, method, bool(entry.flag_bits & 1), offset, entry.compress_size)
