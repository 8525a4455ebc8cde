"""WAV files (RIFF, RF64, BW64): where the samples are, and what numbers they are."""

from __future__ import annotations

import struct

import numpy as np

from ...engine.store import StoreFile
from .media_tracks import SoundTrack, check_sound

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_KINDS = {
    (_PCM, 8): ("pcm_u8", "|u1"),
    (_PCM, 16): ("pcm_s16le", "<i2"),
    (_PCM, 24): ("pcm_s24le", "<i4"),
    (_PCM, 32): ("pcm_s32le", "<i4"),
    (_FLOAT, 32): ("pcm_f32le", "<f4"),
    (_FLOAT, 64): ("pcm_f64le", "<f8"),
    (6, 8): ("pcm_alaw", "<i2"),
    (7, 8): ("pcm_mulaw", "<i2"),
}
"""FFmpeg's name for each kind of numbers and their bits, and the type that it makes of them."""
_CHUNKS_MAX = 4096
_UNKNOWN = 0xFFFFFFFF  # the size in RF64, and in files that were written to a pipe


def parse_wav(source: StoreFile) -> SoundTrack:
    """Parse the chunks of a WAV file up to its samples."""
    is_wide = source.read(0, 4) in (b"RF64", b"BW64")
    at, wide_size, form = 12, 0, None
    for _ in range(_CHUNKS_MAX):
        if at + 8 > source.size:
            break
        kind, size = struct.unpack("<4sI", source.read(at, 8))
        left = source.size - at - 8
        if kind == b"data" and size == _UNKNOWN:
            size = wide_size if is_wide else left
        if kind == b"data" and form is not None:
            if size > left:
                what = f"samples of {size:,} bytes, and {left:,} are left"
                raise source.flaw(at, f"{what}: the file is cut, copy it again")
            codec, dtype, bits, channels, rate = form
            block = channels * bits // 8
            frames, is_plain = size // block, np.dtype(dtype).itemsize * 8 == bits
            start, since = np.array([0, frames]), np.zeros(1, np.int64)
            bytes_of = at + 8 + start * block
            return SoundTrack(
                codec, b"", dtype, rate, channels, frames, start, bytes_of, since, is_plain=is_plain
            )
        if kind == b"ds64" and size >= 16 <= left:
            wide_size = struct.unpack("<QQ", source.read(at + 8, 16))[1]
        elif kind == b"fmt ":
            form = _parse_form(source, at, source.read(at + 8, min(size, 40)))
        at += 8 + size + size % 2
    raise source.flaw(min(at, source.size), "no 'fmt ' with 'data' behind it: the file is damaged")


def _parse_form(source: StoreFile, at: int, data: bytes) -> tuple[str, str, int, int, int]:
    """Parse 'fmt ': FFmpeg's name of the numbers, their type and bits, the channels, the rate."""
    if len(data) < 16:
        raise source.flaw(at, f"'fmt ' of {len(data)} bytes: the file is damaged")
    kind, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", data)
    if kind == _EXTENSIBLE and len(data) >= 26:
        (kind,) = struct.unpack_from("<H", data, 24)
    if (kind, bits) not in _KINDS:
        known = "integers of 8 to 32 bits, floats, A-law and u-law are read"
        what = f"samples of {bits} bits in encoding {kind:#06x}; {known}"
        raise source.flaw(at, f"{what}: re-encode it, by `ffmpeg -c:a pcm_s16le`")
    check_sound(source, at, rate, channels)
    if block != channels * bits // 8:
        what = f"{channels} channels of {bits} bits in {block} bytes"
        raise source.flaw(at, f"{what}: the file is damaged")
    return *_KINDS[kind, bits], bits, channels, rate
