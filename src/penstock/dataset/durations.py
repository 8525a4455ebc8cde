"""Durations of sound, from the headers of WAV and FLAC. Pure."""

from __future__ import annotations

import struct
from typing import Any

from ..errors import FormatError


def measure_duration(sound: Any) -> int:
    """Return the milliseconds of WAV or FLAC, rounded. FormatError if it is neither, or broken."""
    data = memoryview(sound).cast("B")
    try:
        if bytes(data[:4]) in (b"RIFF", b"RF64") and bytes(data[8:12]) == b"WAVE":
            return _measure_wav(data)
        if bytes(data[:4]) == b"fLaC":
            return _measure_flac(data)
    except (struct.error, ZeroDivisionError):
        raise FormatError(
            f"sound of {len(data):,} bytes has a broken header: repair or leave out the sample"
        ) from None
    raise FormatError(
        f"sound that begins with {bytes(data[:4])!r} is neither WAV nor FLAC: measure its length "
        "by a function of yours (--by module:function)"
    )


def _measure_wav(data: memoryview) -> int:
    at, byte_rate = 12, 0
    while True:
        kind, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if kind == b"fmt ":
            (byte_rate,) = struct.unpack_from("<8xI", data, at)
        if kind == b"data":
            # A stream that was written without seeking says more than there is.
            return round(int(min(size, len(data) - at)) * 1000 / int(byte_rate))
        at += size + size % 2


def _measure_flac(data: memoryview) -> int:
    (bits,) = struct.unpack_from(">Q", data, 18)  # of the first block, STREAMINFO
    rate, samples = int(bits) >> 44, int(bits) & ((1 << 36) - 1)
    return round(samples * 1000 / rate)
