"""The sound of one file: what it is, and the table of its packets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ... import limits
from ...engine.store import StoreFile
from ...extent import Int


class SoundTrack(NamedTuple):
    """The sound of one file, in packets.

    codec, config:  the name of FFmpeg's decoder, and what it is given first.
    dtype:     of the numbers that come out of it.
    frames:    samples of each channel.
    start:     int64 (packets + 1,), the first sample of each packet, and the end; below 0 for what
               no one hears.
    at:        int64 (packets + 1,), the byte at which each begins, and the end.
    since:     int64 (packets,), number of the packet from which on a decoder that was reset has to
               be fed to give what it would give if it had all of them; -1: from the first one.
    is_paged:  packets are pages of Ogg: of page `since` the last packet is fed, and counts for
               nothing.
    is_plain:  the numbers are stored as they are, from the first packet on.
    runs:      where packets are in a file that has other things between them: the byte, as `at`
               counts, at which each run of them begins, and the end; and its byte of the file.
    begin:     seconds from the start of a film to the first sample.
    """

    codec: str
    config: bytes
    dtype: str
    rate: int
    channels: int
    frames: int
    start: Int
    at: Int
    since: Int
    is_paged: bool = False
    is_plain: bool = False
    runs: tuple[Int, Int] | None = None
    begin: float = 0.0

    def cut(self, samples: int) -> SoundTrack:
        """Cut numbers of one size from one packet into packets of so many samples."""
        if self.config or len(self.since) > 1 or not self.codec.startswith("pcm_"):
            return self
        start = np.append(np.arange(0, self.frames, samples), self.frames)
        at = self.at[0] + start * ((self.at[1] - self.at[0]) // self.frames)
        return self._replace(start=start, at=at, since=np.arange(len(start) - 1))


def check_sound(source: StoreFile, at: int, rate: int, channels: int) -> None:
    """Check a rate and a number of channels (FormatError)."""
    if not 0 < rate <= limits.sound_rate_max or not 0 < channels <= limits.sound_channels_max:
        what = f"{channels:,} channels of {rate:,} samples a second"
        raise source.flaw(at, f"{what}: the file is damaged, or no sound")


def read_whole(source: StoreFile) -> bytes:
    """Read a file whose packets have to be looked for; FormatError if it is too large."""
    if source.size > limits.sound_file_bytes_max:
        what = f"{source.size:,} bytes, and sound in packets is read up to"
        raise source.flaw(0, f"{what} {limits.sound_file_bytes_max:,}: cut it into files")
    return source.read(0, source.size)


def skip_tags(data: bytes) -> int:
    """Return the byte behind the ID3 tags at the start of a file."""
    at = 0
    while data[at : at + 3] == b"ID3" and len(data) >= at + 10:
        size = 0
        for seven in data[at + 6 : at + 10]:
            size = size << 7 | seven & 0x7F
        at += 10 + size + (10 if data[at + 5] & 0x10 else 0)  # a footer
    return at


def find_tags(data: bytes, end: int) -> int:
    """Return the byte at which tags at the end of a file begin (ID3, APE), or `end`."""
    if data[max(0, end - 128) : end].startswith(b"TAG"):
        end -= 128
    if data[max(0, end - 32) : end].startswith(b"APETAGEX"):
        size = int.from_bytes(data[end - 20 : end - 16], "little")
        header = 32 if data[end - 9] & 0x80 else 0  # the highest bit of the flags
        end = max(0, end - size - header)
    return end
