"""ArrayRecord: the first bytes of the first block, and of the last."""

from __future__ import annotations

import struct

from fuzz.memory import examine, joined_parts, parted

_BLOCK = 1 << 16


def _chunk(kind: bytes, records: int, data: bytes) -> bytes:
    return (
        struct.pack("<QQQ", 0, len(data), 0)
        + kind
        + records.to_bytes(7, "little")
        + bytes(8)
        + data
    )


def _simple(*records: bytes) -> bytes:
    sizes = bytes(map(len, records))
    return b"\0" + bytes([len(sizes)]) + sizes + b"".join(records)


def seeds() -> list[bytes]:
    """Two records and a footer in the first block."""
    signature = bytes.fromhex("83af70d10d884a3f") + bytes(56)
    records = [_chunk(b"r", 1, _simple(b"abc")), _chunk(b"r", 1, _simple(b"defgh"))]
    second = 64 + len(records[0])
    footer = second + len(records[1])
    told = [b"\x0a\x04\x08\x01\x10\x02"]
    told += [bytes([8, 64, 16, 3, 24, 1]), bytes([8, second, 16, 5, 24, 1])]
    offset = bytes([footer % 128 | 128, footer // 128])
    magic = bytes.fromhex("dec0ebfe84cec3c971")
    postscript = _chunk(b"r", 3, _simple(*[b"\x08" + offset + b"\x10" + magic] * 3))
    head = signature + b"".join(records) + _chunk(b"r", 3, _simple(*told))
    return [joined_parts(head, bytes(24) + postscript)]


def one(data: bytes) -> None:
    """Both filled up to a block."""
    parts = parted(data, ["head", "tail"])
    whole = b"".join(part[:_BLOCK].ljust(_BLOCK, b"\0") for part in parts.values())
    examine("arrayrecord", {"x": whole}, name="x")
