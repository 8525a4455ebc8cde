"""Flat files of tokens; the first two bytes say the window and the type."""

from __future__ import annotations

import struct

from fuzz.memory import examine

_TYPES = (None, "<u2", "<u4", "u1", "<f8")


def seeds() -> list[bytes]:
    """Write tokens of llm.c, with its header, and without any."""
    found = [bytes([2, number]) + bytes(range(24)) for number in range(len(_TYPES))]
    for magic, width in ((20240520, 2), (20240801, 4)):
        head = struct.pack("<3i", magic, 1, 5).ljust(1024, b"\0")
        found.append(bytes([2, 0]) + head + bytes(range(5 * width)))
    return found


def one(data: bytes) -> None:
    """Index the data as one file; the top bit of byte 1 skips a header of so many bytes."""
    window, kind = [*data[:2], 1, 0][:2]
    options: dict[str, object] = {"window": window or 1 << 39}
    if _TYPES[kind % len(_TYPES)] is not None:
        options["dtype"] = _TYPES[kind % len(_TYPES)]
    if kind & 0x80:
        options["header_bytes"] = kind & 0x7F
    examine("tokens", {"x.bin": data[2:]}, options, name="x.bin")
