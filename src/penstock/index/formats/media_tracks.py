"""Tracks of video and of sound: each frame's bytes, its place in the sequence shown, and its time.

A *packet* is what the container calls a sample: the bytes of one frame, or of some samples of
sound. Packets are stored in the sequence of decoding, frames are numbered in the sequence of
showing; where B-frames are used, these differ. Frames before the first keyframe, and those that an
edit list leaves out, are not counted: players and FFmpeg do not show them either.

A *chunk* is what is decoded at once. Of video it is a group of pictures: to have the frames from a
keyframe to the next. Its packets begin at the keyframe, and end with the last one of its frames. In
an open group frames that are shown before the next keyframe refer to it: the group has its packet
too. Of sound a chunk is any run of samples. It has the packets before them, too, by which a decoder
comes into its state.

The core's `walk_mp4` reads headers of MP4: `moov` at the start or the end, and each `moof`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine.store import StoreFile
from ...extent import Int
from ..layout import Packets, Pieces, RowTable
from .shards import number_first


class TrackChunks(NamedTuple):
    """Chunks of the packets of one file, which are counted from its first one on.

    kinds:    what decoders are told: the codec, its header in hexadecimal, and one thing more.
    kind:     int64 (chunks,), number of the kind of each chunk.
    size, shift, begin, end, place, frames:  as `Packets` has them.
    pieces:   int64 (chunks,), extents of each chunk; `offset` and `length` have all of them.
    """

    kinds: Sequence[tuple[Any, ...]]
    kind: Int
    size: npt.NDArray[Any]
    shift: npt.NDArray[np.int16]
    begin: Int
    end: Int
    place: Int
    frames: Int
    pieces: Int
    offset: Int
    length: Int


def join_chunks(
    tracks: Sequence[TrackChunks], first_file: int = 0
) -> tuple[RowTable | Pieces, Packets, list[list[Any]]]:
    """Join the chunks of files: where they are, their packets, and what their decoders are given.

    first_file:  number of the first one's file in the index.
    """
    packets = number_first([len(track.size) for track in tracks])
    base = np.repeat(packets[:-1], [len(track.frames) for track in tracks])
    numbers: dict[tuple[Any, ...], int] = {}
    config = np.concatenate(
        [
            np.array([numbers.setdefault(kind, len(numbers)) for kind in track.kinds])[track.kind]
            for track in tracks
        ]
    )
    size, shift, begin, end, place, frames, pieces, offset, length = (
        np.concatenate(column) for column in zip(*(track[2:] for track in tracks), strict=True)
    )
    joined = Packets(
        size.astype(np.uint32),
        shift if shift.any() else shift[:0],
        begin + base,
        end + base,
        place,
        frames,
        config.astype(np.uint32) if len(numbers) > 1 else np.zeros(1, np.uint32),
    )
    files = np.arange(first_file, first_file + len(tracks), dtype=np.uint32)
    extents = np.repeat(files, [len(track.offset) for track in tracks]), offset, length
    is_one = (pieces == 1).all()
    table = RowTable(*extents) if is_one else Pieces(number_first(pieces), *extents)
    return table, joined, [list(kind) for kind in numbers]


class FilmTrack(NamedTuple):
    """The video track of one file.

    shape:   height and width of an upright frame.
    times:   int64 (runs, 3): number of the frame at which frames of one distance begin, its time
             and that distance, in ticks, of which a second has `scale`.
    end:     time at which the last frame ends.
    chunks:  groups of pictures. Of their kind, the third is the quarter turns clockwise that show a
             frame upright; none of a mirror.
    """

    shape: tuple[int, int]
    times: Int
    scale: int
    end: int
    chunks: TrackChunks


def parse_film(source: StoreFile, is_one_group: bool = False) -> FilmTrack:
    """Parse the first video track of a file; FormatError if there is none that can be read.

    is_one_group:  whether all its frames are one group.
    """
    found = source.walk("mp4", one_group=is_one_group)
    size, begin, turns = found["size"], found["first_packet"], found["turns"]
    shape = found["height"], found["width"]
    chunks = TrackChunks(
        [(found["codec"], found["config"].hex(), turns)],
        np.zeros(len(begin), np.int64),
        size,
        found["shift"] if len(found["shift"]) else np.zeros(len(size), np.int16),
        begin,
        found["last_packet"] + 1,
        found["place"] - begin,
        found["frames"],
        found["pieces"],
        found["offset"],
        found["length"],
    )
    times = found["times"].reshape(-1, 3)
    upright = shape[::-1] if turns % 2 else shape
    return FilmTrack(upright, times, found["scale"], found["end"], chunks)


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

    def cut(self, edges: Int) -> TrackChunks:
        """Cut the sound into chunks of the samples between these places."""
        start, at, since = self.start, self.at, self.since
        if self.codec.startswith("pcm_"):  # numbers of one size: each chunk is a packet
            start, since = edges, np.arange(len(edges) - 1)
            at = at[0] + edges * ((at[1] - at[0]) // self.frames)
        since = since[np.searchsorted(start, edges[:-1], side="right") - 1]
        begin, end = np.maximum(since, 0), np.searchsorted(start, edges[1:])
        first, offset = self.runs or (at[[0, -1]], at[:1])
        low = np.searchsorted(first, at[begin], side="right") - 1
        counts = np.searchsorted(first, at[end]) - low
        run = np.arange(counts.sum()) + np.repeat(low - np.cumsum(counts) + counts, counts)
        first_byte = np.maximum(first[run], np.repeat(at[begin], counts))
        last_byte = np.minimum(first[run + 1], np.repeat(at[end], counts))
        packings = ("pages", "primed") if self.is_paged else ("",)
        return TrackChunks(
            [(self.codec, self.config.hex(), packing) for packing in packings],
            (self.is_paged & (since >= 0)).astype(np.int64),
            np.diff(at),
            np.zeros(len(at) - 1, np.int16),
            begin,
            end,
            edges[:-1] - start[since + 1 if self.is_paged else begin],
            np.diff(edges),
            counts,
            offset[run] + first_byte - first[run],
            last_byte - first_byte,
        )


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
