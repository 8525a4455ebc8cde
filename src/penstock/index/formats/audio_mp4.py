"""Sound of MP4 files (M4A, MOV): packets by the tables of the header; they are not read.

FFmpeg's rules hold. A packet has as many samples as its codec says, whatever the tables say.
Samples before the start of an edit list are decoded and left out; a packet that begins before its
end counts as a whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...engine.store import StoreFile
from .audio_mp3 import read_head
from .media_tracks import SoundTrack, check_sound

_AAC_RATES = 96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350
_MP3_BACK = 32
"""Packets of MP3 before one that may have bits of it: 511 bytes, and 24 are the shortest."""


def parse_mp4(source: StoreFile) -> SoundTrack:
    """Parse the first track of sound of a file; FormatError if there is none that can be read."""
    found = source.walk("mp4", sound=True)
    codec, config, rate, channels, length, back, dtype = _read_coding(source, found)
    check_sound(source, 0, rate, channels)
    scale, size, times = found["scale"], found["size"], found["times"].reshape(-1, 3)
    count = len(size)
    told = round(int(times[0, 2]) * rate / scale)
    length = length or told
    if not 0 < length <= rate:
        raise source.flaw(0, f"packets of {length:,} samples, of {rate:,} a second: re-encode it")
    start = np.arange(count + 1, dtype=np.int64) * length
    if codec == "alac":  # the last one may be shorter
        number, time, step = times[-1].tolist()
        last = found["end"] - time - (count - 1 - number) * step
        start[-1] = start[-2] + min(max(1, round(last * rate / scale)), length)
    skipped = min(round(found["start"] * rate / scale), 1 << 62)
    stop = min(-(-found["stop"] * rate // scale), 1 << 62)
    heard = int(np.searchsorted(start[:-1], stop))
    if not heard:
        raise source.flaw(0, "its edit list has none of the sound: write the file without")
    start = start[: heard + 1] - skipped
    at = np.append(0, np.cumsum(size[:heard], dtype=np.int64))
    since = np.maximum(np.arange(heard) - -(-back // length), -1)
    first = np.append(0, np.cumsum(found["length"]))
    frames = max(0, int(start[-1]))
    begin = (int(times[0, 1]) + found["start"]) / scale
    track = SoundTrack(codec, config, dtype, rate, channels, frames, start, at, since)
    return track._replace(runs=(first, found["offset"]), begin=begin)


def _read_coding(
    source: StoreFile, found: dict[str, Any]
) -> tuple[str, bytes, int, int, int, int, str]:
    """Return FFmpeg's name of the codec and what its decoder is given, the rate, the channels, the
    samples of a packet (0: as the tables say), those that are decoded before the first one of a
    clip, and the type of numbers that come out of it."""
    codec, config, channels = found["codec"], found["config"], found["channels"]
    if codec == "mp3":
        head = source.read(int(found["offset"][0]), min(4, int(found["size"][0])))
        rate, channels, length = read_head(head.ljust(4, b"\0"))
        return "mp3float", b"", rate, channels, length, _MP3_BACK * length, "<f4"
    if codec == "alac" and len(config) >= 28:
        rate = int.from_bytes(config[24:28], "big")
        length, dtype = int.from_bytes(config[4:8], "big"), "<i2" if config[9] == 16 else "<i4"
        config = b"\0\0\0\x24alac" + config[:28]
        return "alac", config, rate, config[21], length, 0, dtype
    if codec == "opus" and len(config) >= 11:
        gain = config[9:7:-1]  # of what is skipped, the edit list says how much
        head = b"OpusHead\1" + config[1:2] + bytes(6) + gain + config[10:]
        return "opus", head, 48_000, config[1], 0, 48_000, "<f4"
    bits = int.from_bytes(config[:5].ljust(5, b"\0"), "big") if codec == "aac" else 0
    kind, number, has_bands = bits >> 35, bits >> 31 & 15, config[2:4] == b"\x56\xe5"
    if kind != 2 or (has_bands and bits & 0x80) or (number > 12 and number != 15):
        what = f"sound as {codec} with {config[:8].hex()!r}, and of AAC the kind LC is read"
        raise source.flaw(0, f"{what}: re-encode it, by `ffmpeg -c:a aac`")
    rate = bits >> 7 & 0xFFFFFF if number == 15 else _AAC_RATES[number]
    rest = bits >> 2 if number == 15 else bits >> 26
    channels = {0: channels, 7: 8}.get(rest >> 1 & 15, rest >> 1 & 15)
    return "aac", config, rate, channels, 960 if rest & 1 else 1024, 1, "<f4"
