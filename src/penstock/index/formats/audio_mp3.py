"""MP3 files: their frames, and the frames before one that have bits of it.

A frame says its length, and has the same number of samples as all others. Its bits may begin in
frames before it, the "reservoir"; the samples that come out of it depend on two frames before.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from ...engine.store import StoreFile
from ...extent import Int
from .media_tracks import SoundTrack, check_sound, find_tags, read_whole, skip_tags

_KBITS_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KBITS_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_RATES = (44_100, 48_000, 32_000)
_SEARCHED_BYTES = 1 << 16
_DECODER_DELAY = 529
_WRITERS = (b"LAME", b"Lavf", b"Lavc")


@functools.cache
def _list_lengths() -> tuple[list[int], list[int]]:
    """List the bytes of a frame, and its rate, by the second and third byte of its header; 0 if
    they are none of layer III."""
    lengths, rates = [0] * (1 << 16), [0] * (1 << 16)
    for word in range(1 << 16):
        version, layer, bits, kind = word >> 11 & 3, word >> 9 & 3, word >> 4 & 15, word >> 2 & 3
        if word >> 13 != 7 or version == 1 or layer != 1 or not 0 < bits < 15 or kind == 3:
            continue
        rate = _RATES[kind] // {3: 1, 2: 2, 0: 4}[version]
        kbits, factor = (_KBITS_1[bits], 144) if version == 3 else (_KBITS_2[bits], 72)
        lengths[word], rates[word] = factor * 1000 * kbits // rate + (word >> 1 & 1), rate
    return lengths, rates


def _walk(data: bytes, at: int, end: int, most: int = 1 << 62) -> list[int]:
    """List where frames begin that are back to back from `at` on, and the end of the last."""
    lengths, edges = _list_lengths()[0], [at]
    while at + 4 <= end and data[at] == 255 and len(edges) <= most:
        length = lengths[data[at + 1] << 8 | data[at + 2]]
        if not length:
            break
        at += length
        edges.append(at)
    return edges


def read_head(head: bytes) -> tuple[int, int, int]:
    """Read the rate, the channels and the samples of a frame; 0 for what is none."""
    rate = _list_lengths()[1][head[1] << 8 | head[2]]
    return rate, 1 if head[3] >> 6 == 3 else 2, 1152 if head[1] & 8 else 576


def parse_mp3(source: StoreFile) -> SoundTrack:
    """Parse the frames of an MP3 file."""
    data = read_whole(source)
    end, at = find_tags(data, len(data)), skip_tags(data)
    first = at
    while len(found := _walk(data, first, end, 3)) < 4 and (len(found) < 2 or found[-1] != end):
        first = data.find(b"\xff", first + 1, min(at + _SEARCHED_BYTES, end))
        if first < 0:
            what = "no frames of MP3, one behind the other"
            raise source.flaw(at, f"{what}: it is cut, or of another kind (layer III is read)")
    edges = np.array(_walk(data, first, end))
    if edges[-1] > end or data[edges[-1] : end].strip(b"\0"):
        what = "the last frame is cut" if edges[-1] > end else "what is here is no frame of MP3"
        raise source.flaw(int(min(edges[-1], end)), f"{what}: copy the file again, or re-encode it")
    array = np.frombuffer(data, np.uint8)
    head = np.stack([array[edges[:-1] + byte] for byte in range(4)], 1)
    same = head & np.array([0, 0xFE, 0x0C, 0], np.uint8)
    is_mono = head[:, 3] >> 6 == 3
    for frame in np.flatnonzero((same != same[0]).any(axis=1) | (is_mono != is_mono[0]))[
        :1
    ].tolist():
        what = "a frame of another rate, or of other channels, than those before it"
        raise source.flaw(int(edges[frame]), f"{what}: encode the file anew")
    rate, channels, samples = read_head(head[0].tobytes())
    check_sound(source, first, rate, channels)
    is_tag, before, behind = _parse_tag(data[edges[0] : edges[1]], samples)
    if is_tag:
        edges, head = edges[1:], head[1:]
    count = len(edges) - 1
    start = np.arange(count + 1) * samples - before
    since = _find_since(array, edges, head, samples == 1152, channels == 1)
    frames = max(0, count * samples - before - behind)
    return SoundTrack("mp3float", b"", "<f4", rate, channels, frames, start, edges, since)


def _parse_tag(frame: bytes, samples: int) -> tuple[bool, int, int]:
    """Parse the first frame: whether it has notes on the file and no sound, and the samples before
    and behind it that its encoder has added, as FFmpeg believes them."""
    if frame[36:40] == b"VBRI":
        return True, 0, 0
    at = next((at for at in (36, 21, 13) if frame[at : at + 4] in (b"Xing", b"Info")), 0)
    flags = int.from_bytes(frame[at + 4 : at + 8], "big") if at else 0
    if not flags & 3:
        return False, 0, 0
    at += 8 + 4 * sum(bool(flags & bit) for bit in (1, 2, 8)) + 100 * bool(flags & 4)
    if not frame[at : at + 9].startswith(_WRITERS):
        return True, 0, 0
    both = int.from_bytes(frame[at + 21 : at + 24], "big")
    before, behind = both >> 12, both & 0xFFF
    return True, before + _DECODER_DELAY, max(0, behind - _DECODER_DELAY) if flags & 1 else 0


def _find_since(
    data: npt.NDArray[np.uint8], edges: Int, head: npt.NDArray[np.uint8], is_first: bool, mono: bool
) -> Int:
    """Find the frame at which the bits begin of each frame, and of the two before it."""
    checked = np.where(head[:, 1] & 1, 0, 2)  # bytes of a checksum
    at = np.minimum(edges[:-1] + 4 + checked, len(data) - 2)
    words = data[at].astype(np.int64) << 8 | data[at + 1]
    back = words >> 7 if is_first else words >> 8
    side = (17 if mono else 32) if is_first else (9 if mono else 17)
    bits = np.append(0, np.cumsum(np.maximum(np.diff(edges) - 4 - checked - side, 0)))
    begin = bits[:-1] - back
    for _ in range(2):
        begin[1:] = np.minimum(begin[1:], begin[:-1])
    numbers = np.arange(len(begin))
    since: Int = np.searchsorted(bits, begin, side="right") - 1
    return np.maximum(np.minimum(since, numbers - 2), 0)
