"""Directory of a zip archive: the places of the stored members' bytes.

Every value that an archive holds twice is compared: central and local headers, ZIP64 and plain end
records. An archive after a few other bytes can be read if all offsets agree with that.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...engine import StoreFile
from ...errors import FormatError

STORED, DEFLATED = 0, 8

_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_COMMENT_MAX = 65_535
_U16, _U32 = 0xFFFF, 0xFFFFFFFF
_DESCRIPTOR = 1 << 3  # sizes follow the data, and are 0 in the local header


class ZipMember(NamedTuple):
    """One entry: its name, the place of its local header, and its data as stored.

    offset, size:  of the data, once `located`; size is of the stored bytes.
    """

    name: str
    method: int
    encrypted: bool
    header: int
    offset: int
    size: int


class _End(NamedTuple):
    """Content of the end records: the directory, and the shift of all offsets."""

    entries: int
    start: int
    size: int
    shift: int


def list_members(source: StoreFile) -> list[ZipMember]:
    """List all entries but folders, with the place of their data; FormatError at a contradiction.

    Reads the end, the directory, and the local header of every entry.
    """
    end = _read_end(source)
    entries = _read_directory(source, end)
    files = []
    edge = 0
    names: set[str] = set()
    for entry in sorted(entries, key=lambda each: each[0].header):
        member = _locate_data(source, *entry)
        if member.header < edge:
            raise source.flaw(member.header, f"member {member.name!r} overlaps the one before it")
        edge = member.offset + member.size
        if edge > end.start:
            raise source.flaw(
                member.offset,
                f"member {member.name!r} of {member.size:,} bytes reaches into the directory at "
                f"{end.start:,}: the archive is damaged",
            )
        if member.name in names:
            raise source.flaw(member.header, f"two members are called {member.name!r}")
        names.add(member.name)
        if not member.name.endswith("/"):
            files.append(member)
    return files


def _read_end(source: StoreFile) -> _End:
    """Read the end records, which must end at the end of the file."""
    length = min(source.size, _END.size + _COMMENT_MAX + _LOCATOR.size)
    tail = source.read(source.size - length, length)
    begins = []
    at = tail.find(b"PK\5\6")
    while at >= 0:
        if at + _END.size <= len(tail):
            comment = _END.unpack_from(tail, at)[-1]
            if at + _END.size + comment == len(tail):
                begins.append(at)
        at = tail.find(b"PK\5\6", at + 1)
    if len(begins) != 1:
        what = "no end record" if not begins else f"{len(begins)} end records, of which one lies,"
        raise FormatError(
            f"{source.path}: {what} at the end of a zip archive: it is truncated or damaged: "
            f"save it again"
        )
    at = begins[0]
    position = source.size - length + at
    _, disk, disk_start, here, count, size, offset, _ = _END.unpack_from(tail, at)
    if at >= _LOCATOR.size and tail[at - _LOCATOR.size : at][:4] == b"PK\6\7":
        return _read_end64(source, tail, at, position, (count, size, offset))
    if _U16 in (here, count, disk) or _U32 in (size, offset):
        raise source.flaw(position, "the end record refers to a ZIP64 record that is not there")
    if disk or disk_start or here != count:
        raise source.flaw(position, "the archive is a part of several: join them")
    return _check_end(source, position, count, size, offset, position)


def _read_end64(
    source: StoreFile, tail: bytes, at: int, position: int, plain: tuple[int, int, int]
) -> _End:
    locator = position - _LOCATOR.size
    _, disk, announced, disks = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
    begin = locator - _END64.size
    record = source.read(max(begin, 0), _END64.size)
    if begin < 0 or record[:4] != b"PK\6\6" or len(record) < _END64.size:
        raise source.flaw(locator, "there is no ZIP64 end record of 56 bytes before its locator")
    _, length, _, _, number, number_start, here, count, size, offset = _END64.unpack(record)
    if length != _END64.size - 12:
        raise source.flaw(begin, f"the ZIP64 end record has {length:,} bytes, not 44")
    if disk or number or number_start or disks > 1 or here != count:
        raise source.flaw(begin, "the archive is a part of several: join them")
    for name, short, limit, wide in zip(
        ("members", "directory bytes", "directory offset"),
        plain,
        (_U16, _U32, _U32),
        (count, size, offset),
        strict=True,
    ):
        if short not in (limit, wide):
            raise source.flaw(position, f"the end records say {short:,} and {wide:,} {name}")
    end = _check_end(source, begin, count, size, offset, begin)
    if announced + end.shift != begin:
        raise source.flaw(locator, f"the ZIP64 end record is at {begin:,}, not at {announced:,}")
    return end


def _check_end(
    source: StoreFile, position: int, count: int, size: int, offset: int, end: int
) -> _End:
    start = end - size
    if start < 0 or offset > start:
        raise source.flaw(
            position, f"a directory of {size:,} bytes at {offset:,} does not fit before the end"
        )
    if count * _CENTRAL.size > size:
        raise source.flaw(position, f"{count:,} members do not fit a directory of {size:,} bytes")
    return _End(count, start, size, start - offset)


def _read_directory(source: StoreFile, end: _End) -> list[tuple[ZipMember, bytes, int]]:
    """Read the entries of the directory, with their names as bytes, and their flags."""
    data = source.read(end.start, end.size)
    entries = []
    at = 0
    for _ in range(end.entries):
        where = end.start + at
        if at + _CENTRAL.size > len(data):
            raise source.flaw(where, "the directory ends before its last member")
        entry = _CENTRAL.unpack_from(data, at)
        magic, _, _, flags, method, _, _, _, stored, size, *lengths, disk, _, _, offset = entry
        name_bytes, extra_bytes, comment_bytes = lengths
        if magic != b"PK\1\2":
            raise source.flaw(
                where, f"a member of the directory should begin here, but {magic!r} does"
            )
        at += _CENTRAL.size
        raw = data[at : at + name_bytes]
        extra = data[at + name_bytes : at + name_bytes + extra_bytes]
        at += name_bytes + extra_bytes + comment_bytes
        if at > len(data):
            raise source.flaw(where, "a member's name or extra field leaves the directory")
        size, stored, offset = _widen(source, where, extra, size, stored, offset)
        if disk not in (0, _U16):
            raise source.flaw(where, "the archive is a part of several: join them")
        if method == STORED and stored != size:
            raise source.flaw(
                where, f"a stored member has {stored:,} bytes, but {size:,} uncompressed"
            )
        name = raw.decode("utf-8" if flags & 1 << 11 else "cp437", "replace")
        member = ZipMember(name, method, bool(flags & 1), offset + end.shift, 0, stored)
        entries.append((member, raw, flags))
    if at != len(data):
        raise source.flaw(end.start + at, f"{len(data) - at:,} bytes follow the last member")
    return entries


def _widen(
    source: StoreFile, where: int, extra: bytes, size: int, stored: int, offset: int
) -> tuple[int, int, int]:
    """Return sizes and offset, taking those that do not fit 32 bits from the ZIP64 field."""
    wanted = [value == _U32 for value in (size, stored, offset)]
    if not any(wanted):
        return size, stored, offset
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4
        if kind == 1:
            field = extra[at : at + length]
            if len(field) < 8 * sum(wanted):
                break
            values = iter(struct.unpack_from(f"<{sum(wanted)}Q", field))
            size, stored, offset = (
                next(values) if wide else value
                for wide, value in zip(wanted, (size, stored, offset), strict=True)
            )
            return size, stored, offset
        at += length
    raise source.flaw(where, "a member says that its sizes are in a ZIP64 field, but has none")


def _locate_data(source: StoreFile, member: ZipMember, raw: bytes, flags: int) -> ZipMember:
    """Add the place of a member's data, which only its local header holds."""
    if member.header + _LOCAL.size > source.size:
        raise source.flaw(
            member.header, f"member {member.name!r} begins beyond the end of the file"
        )
    head = source.read(member.header, _LOCAL.size + len(raw))
    magic, _, local_flags, method, _, _, _, stored, size, name_bytes, extra_bytes = (
        _LOCAL.unpack_from(head)
    )
    if magic != b"PK\3\4":
        raise source.flaw(member.header, f"member {member.name!r} does not begin here: {magic!r}")
    if head[_LOCAL.size :] != raw or name_bytes != len(raw):
        raise source.flaw(
            member.header, f"member {member.name!r} is called {head[_LOCAL.size :]!r} here"
        )
    if method != member.method or (local_flags ^ flags) & 1:
        raise source.flaw(
            member.header,
            f"member {member.name!r} is stored in another way than the directory says",
        )
    known = (member.size, _U32, *((0,) if flags & _DESCRIPTOR else ()))
    if stored not in known or (method == STORED and size not in known):
        raise source.flaw(
            member.header,
            f"member {member.name!r} has {stored:,} bytes here, but {member.size:,} in the "
            f"directory",
        )
    return member._replace(offset=member.header + _LOCAL.size + name_bytes + extra_bytes)
