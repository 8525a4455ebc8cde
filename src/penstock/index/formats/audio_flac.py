"""FLAC files: their frames. Each says at which sample it begins, but not how long it is.

A frame begins with 15 bits that are known, and its header ends with a checksum of 8 bits. What
looks like one within a frame does not have the number that comes next: frames are a chain.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...engine.store import StoreFile
from ...extent import Int
from .media_tracks import SoundTrack, check_sound, find_tags, read_whole, skip_tags

_HEAD_BYTES = 16  # the longest header
_SIZES = np.array([0, 192, 576, 1152, 2304, 4608, 0, 0, *(256 << n for n in range(8))])

_SIZE_BYTES = np.array([0, 0, 0, 0, 0, 0, 1, 2, *[0] * 8])
_RATE_BYTES = np.array([*[0] * 12, 1, 2, 2, 0])


def _make_crc8() -> npt.NDArray[np.uint8]:
    table = np.arange(256, dtype=np.int64)
    for _ in range(8):
        table = table << 1 ^ np.where(table & 0x80, 0x107, 0)
    return table.astype(np.uint8)


_crc8 = _make_crc8()


def parse_flac(source: StoreFile) -> SoundTrack:
    """Parse the header and the frames of a FLAC file."""
    data = read_whole(source)
    at = skip_tags(data) + 4
    info = data[at + 4 : at + 38]
    if data[at - 4 : at] != b"fLaC" or len(info) < 34 or data[at] & 0x7F:
        raise source.flaw(at, "no stream of FLAC with its header: the file is cut or damaged")
    is_last = 0
    while not is_last:
        if at + 4 > len(data):
            raise source.flaw(len(data), "the file is cut within its header: copy it again")
        is_last = data[at] & 0x80
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "big")
    word = int.from_bytes(info[10:18], "big")
    rate, channels, bits = word >> 44, (word >> 41 & 7) + 1, (word >> 36 & 31) + 1
    total = word & (1 << 36) - 1
    check_sound(source, 8, rate, channels)
    end = find_tags(data, len(data))
    if at + 2 > end:
        raise source.flaw(min(at, end), "no frames of FLAC: the file is cut")
    places, starts, sizes = _find_heads(data, at, end, channels, info)
    chosen: list[int] = []
    expected = 0
    for row, begin in enumerate(starts.tolist()):
        if begin == expected and (chosen or places[row] == at):
            chosen.append(row)
            expected += int(sizes[row])
    if not chosen or (total and expected != total):
        last = int(places[chosen[-1]]) if chosen else at
        what = f"frames follow each other up to sample {expected:,}, of {total:,}"
        raise source.flaw(last, f"{what}: the file is cut or damaged")
    edges = np.append(places[chosen], end)
    start = np.append(starts[chosen], expected)
    config = info[:4] + bytes(6) + ((word >> 36) << 36).to_bytes(8, "big") + bytes(16)
    dtype = "<i2" if bits <= 16 else "<i4"
    since = np.arange(len(chosen))
    return SoundTrack("flac", config, dtype, rate, channels, expected, start, edges, since)


def _find_heads(
    data: bytes, first: int, end: int, channels: int, info: bytes
) -> tuple[Int, Int, Int]:
    """Find what looks like headers of frames: where they are, the sample and the samples that each
    says."""
    array = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(array[first : end - 1] == 0xFF) + first
    at = at[(array[at + 1] == array[first + 1]) & (array[at + 1] & 0xFE == 0xF8)]
    padded = np.append(array, np.zeros(_HEAD_BYTES, np.uint8))
    head = padded[at[:, None] + np.arange(_HEAD_BYTES)].astype(np.int64)
    size_code, rate_code, layout = head[:, 2] >> 4, head[:, 2] & 15, head[:, 3] >> 4
    known = np.where(layout < 8, layout + 1, np.where(layout < 11, 2, 0)) == channels
    known &= (size_code > 0) & (rate_code < 15) & (head[:, 3] & 1 == 0)
    more = np.zeros(len(at), np.int64)  # bytes of the number behind its first
    for ones in range(2, 8):
        more = np.where(head[:, 4] >> (7 - ones) == (2 << ones) - 2, ones - 1, more)
    known &= (more > 0) | (head[:, 4] < 0x80)
    number = np.where(more > 0, head[:, 4] & (0x3F >> more), head[:, 4])
    for byte in range(6):
        following = head[:, 5 + byte]
        number = np.where(byte < more, number << 6 | following & 0x3F, number)
        known &= (byte >= more) | (following >> 6 == 2)
    rows, behind = np.arange(len(at)), 5 + more
    one, two = head[rows, behind], head[rows, behind] << 8 | head[rows, behind + 1]
    size = np.where(size_code == 6, one + 1, np.where(size_code == 7, two + 1, _SIZES[size_code]))
    length = behind + _SIZE_BYTES[size_code] + _RATE_BYTES[rate_code]
    checksum = np.zeros(len(at), np.uint8)
    for byte in range(_HEAD_BYTES - 1):
        passed = _crc8[checksum ^ head[:, byte].astype(np.uint8)]
        checksum = np.where(byte < length, passed, checksum)
    known &= checksum == head[rows, np.minimum(length, _HEAD_BYTES - 1)]
    is_fixed = not data[first + 1] & 1
    start = number * int.from_bytes(info[2:4], "big") if is_fixed else number
    return at[known], start[known], size[known]
