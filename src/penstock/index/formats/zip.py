"""Directory of a zip archive: the places of the stored members' bytes."""

from __future__ import annotations

import itertools
import struct
import zipfile
from typing import NamedTuple

from ...engine.store import StoreFile
from ...errors import FormatError
from .block_file import BlockFile

STORED = zipfile.ZIP_STORED
_LOCAL = struct.Struct("<4s5H3I2H")
_DAMAGED = (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error)


class ZipMember(NamedTuple):
    """One entry: its name, its method of compression, and the place of its data as stored."""

    name: str
    method: int
    encrypted: bool
    offset: int
    size: int


def list_members(source: StoreFile) -> list[ZipMember]:
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
    if method == STORED and entry.compress_size != entry.file_size:
        raise zipfile.BadZipFile(f"stored member {entry.filename!r} has two sizes")
    offset = entry.header_offset + _LOCAL.size + name_bytes + extra_bytes
    return ZipMember(entry.filename, method, bool(entry.flag_bits & 1), offset, entry.compress_size)
