"""Megatron's .idx, then its .bin; the first byte says whether windows are asked for."""

from __future__ import annotations

import struct

from fuzz.memory import examine, joined_parts, parted


def seeds() -> list[bytes]:
    """Three sequences in two documents, adjacent and not."""
    found = []
    for pointers in ((0, 6, 14), (12, 18, 0)):
        head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 3, 3)
        table = struct.pack("<3i3q3q", 3, 4, 6 if pointers[0] else 5, *pointers, 0, 2, 3)
        tokens = bytes(26 if pointers[0] else 24)
        found += [bytes([first]) + joined_parts(head + table, tokens) for first in (0, 3)]
    return found


def one(data: bytes) -> None:
    """By the .idx."""
    options = {"window": data[0]} if data[:1] > b"\0" else None
    examine("megatron", parted(data[1:], ["x.idx", "x.bin"]), options, name="x.idx")
