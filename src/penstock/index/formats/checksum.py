"""CRC-32C of a few bytes, for headers and indexes while parsing. The core does bulk data."""

from __future__ import annotations

import functools

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected


def compute_crc32c(data: bytes) -> int:
    """Compute CRC-32C (reflected; the state begins as all ones and is inverted at the end)."""
    table = _make_table()
    state = 0xFFFFFFFF
    for byte in data:
        state = state >> 8 ^ table[(state ^ byte) & 255]
    return state ^ 0xFFFFFFFF


@functools.cache
def _make_table() -> tuple[int, ...]:
    return tuple(map(_compute_entry, range(256)))


def _compute_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value
