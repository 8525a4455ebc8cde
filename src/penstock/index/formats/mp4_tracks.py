"""Video tracks of MP4 files: each frame's bytes, its place in the sequence shown, and its time.

A *packet* is what the container calls a sample: the bytes of one frame. Packets are stored in the
sequence of decoding, frames are numbered in the sequence of showing; where B-frames are used, these
differ. Frames before the first keyframe, and those that an edit list leaves out, are not counted:
players and FFmpeg do not show them either.

A *group* is what is decoded to have the frames from a keyframe to the next. Its packets begin at
the keyframe, and end with the last one of its frames. In an open group frames that are shown before
the next keyframe refer to it: the group has its packet too.

    stsz       bytes of each packet       stsc, stco, co64   where they are
    stts       from a packet to the next, in ticks           ctts   from decoding to showing
    stss       keyframes; without it, all are                elst   which part is shown, and when
    trun       all of this, of the packets of one fragment
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine.store import StoreFile
from ...errors import FormatError
from ...extent import Int
from .mp4_boxes import KINDS, Box, BoxReader, BoxTree

_CODECS = {
    b"avc1": ("h264", b"avcC"),
    b"avc3": ("h264", b"avcC"),
    b"hvc1": ("hevc", b"hvcC"),
    b"hev1": ("hevc", b"hvcC"),
    b"av01": ("av1", b"av1C"),
    b"vp09": ("vp9", b""),
    b"vp08": ("vp8", b""),
    b"mp4v": ("", b"esds"),
    b"jpeg": ("mjpeg", b""),
    b"mjpa": ("mjpeg", b""),
}
"""Codec of each type of sample entry, and the box that has what its decoder needs to know."""
_MPEG_CODECS = {0x20: "mpeg4", 0x6C: "mjpeg"} | dict.fromkeys(range(0x60, 0x66), "mpeg2video")
_ENTRY_BYTES = 78  # of a video sample entry, behind its type
_NOT_SYNC, _DEPENDS = 1 << 16, 1 << 24  # flags of packets in fragments
_ahead_max = (1 << 15) - 1  # places between a frame's turns in decoding and in showing


class FilmTrack(NamedTuple):
    """The video track of one file. Packets and places are counted from the file's first on.

    codec, config:  the name of the decoder, and what it is given first.
    size:     uint32 (packets,), bytes of each.
    shift:    int16 (packets,), place in the sequence shown less the packet's number; None: all 0.
    frames:   int64 (groups,), frames of each group.
    first_packet, last_packet:  int64 (groups,): its packets, `last_packet` among them.
    place:    int64 (groups,), place of its first frame in the sequence shown.
    pieces:   int64 (groups,), extents of each group; `offset` and `length` have all of them.
    times:    int64 (runs, 3): number of the frame at which frames of one distance begin, its time
              and that distance, in ticks, of which a second has `scale`.
    end:      time at which the last frame ends.
    """

    codec: str
    config: bytes
    width: int
    height: int
    size: npt.NDArray[np.uint32]
    shift: npt.NDArray[np.int16] | None
    frames: Int
    first_packet: Int
    last_packet: Int
    place: Int
    pieces: Int
    offset: Int
    length: Int
    times: Int
    scale: int
    end: int


class _Packets(NamedTuple):
    """Packets of a track: where they are, int64 each, and the numbers of the keyframes.

    decoded:   time at which each is decoded; `duration` to the next.
    delay:     from decoding to showing; None: 0.
    is_whole:  False in fragmented files, whose edit lists only move times.
    """

    size: Int
    offset: Int
    decoded: Int
    duration: Int
    delay: Int | None
    keys: Int
    is_whole: bool


def parse_film(source: StoreFile, is_one_group: bool = False) -> FilmTrack:
    """Parse the first video track of a file; FormatError if there is none that can be read.

    is_one_group:  whether all its frames are one group.
    """
    reader = BoxReader(source)
    movie: Box | None = None
    fragments: list[Box] = []
    for box in reader.scan(0, source.size, _PROBED_BYTES):
        if box.start == 0 and box.kind not in KINDS:
            raise source.flaw(0, f"it begins with {box.kind!r}, as no MP4 or MOV does")
        if box.kind == b"moov" and movie is None:
            movie = box
        elif box.kind == b"moof":
            fragments.append(box)
    if movie is None:
        what = "it has no 'moov', which lists its frames: its recording was not finished"
        raise source.flaw(0, f"{what}; record it again, or repair it")
    header = reader.walk(movie)
    track, number = _find_track(reader, movie, header)
    codec, config, width, height = _parse_entry(reader, _take(reader, movie, track, b"stsd"))
    (scale,) = _read_clock(reader, _take(reader, movie, track, b"mdhd"))
    packets = _read_fragments(reader, header, fragments, number) if fragments else None
    if packets is None:
        packets = _read_tables(reader, movie, track)
    if not len(packets.size):
        raise reader.flaw(movie, "the video track has no frames")
    _check_packets(source, packets)
    shown = _read_edits(reader, header, track, scale) if b"elst" in track.leaves else _Edit()
    if is_one_group:
        packets = packets._replace(keys=packets.keys[:1])
    return _lay_out(reader, movie, packets, shown, (codec, config, width, height), scale)


_PROBED_BYTES = 512  # read at a box of a file, which may be all of a small one


def _take(reader: BoxReader, movie: Box, track: BoxTree, kind: bytes) -> Box:
    box = track.leaves.get(kind)
    if box is None:
        raise reader.flaw(movie, f"its video track has no {kind.decode()!r}")
    return box


def _find_track(reader: BoxReader, movie: Box, header: BoxTree) -> tuple[BoxTree, int]:
    """Find the first video track that is enabled, or else the first, and its number."""
    tracks: list[tuple[bool, BoxTree, int]] = []
    kinds = []
    for box, track in header.list(b"trak"):
        handler = _take(reader, box, track, b"hdlr")
        (kind,) = reader.unpack(handler, "4s", 8)
        kinds.append(kind.decode("latin-1"))
        if kind == b"vide":
            head = _take(reader, box, track, b"tkhd")
            (flags,) = reader.unpack(head, ">I")
            (number,) = reader.unpack(head, ">I", 20 if flags >> 24 else 12)
            tracks.append((not flags & 1, track, number))
    if not tracks:
        what = f"tracks of {', '.join(kinds)}" if kinds else "no tracks"
        raise reader.source.flaw(movie.start, f"{what}, and none of video: leave the file out")
    return min(tracks, key=lambda one: one[0])[1:]


def _read_clock(reader: BoxReader, box: Box) -> tuple[int]:
    """Read the ticks of a second."""
    (version,) = reader.unpack(box, "B")
    (scale,) = reader.unpack(box, ">I", 20 if version else 12)
    if not 0 < scale < 1 << 31:
        raise reader.flaw(box, f"a second of {scale:,} ticks")
    return (scale,)


# -- what its decoder is told ----------------------------------------------------------------------


def _parse_entry(reader: BoxReader, box: Box) -> tuple[str, bytes, int, int]:
    """Parse the sample entry: the codec, what its decoder is given, and the size of a frame."""
    (count,) = reader.unpack(box, ">I", 4)
    if count != 1:
        what = f"its frames are of {count} kinds"
        raise reader.source.flaw(box.start, f"{what}, of which one is read: encode it anew")
    entry = next(reader.scan(box.body + 8, box.end), None)
    if entry is None:
        raise reader.flaw(box, "no entry")
    width, height = reader.unpack(entry, ">HH", 24)
    if not 0 < width * height <= limits.image_pixels_max:
        raise reader.flaw(entry, f"frames of {width} x {height}")
    if entry.kind not in _CODECS:
        kind = entry.kind.decode("latin-1")
        known = ", ".join(sorted({name for name, _ in _CODECS.values() if name}))
        what = f"frames are encoded as {kind!r}; {known} and mpeg4 are read"
        raise reader.source.flaw(entry.start, f"{what}: encode the film anew")
    codec, wanted = _CODECS[entry.kind]
    inside = {one.kind: one for one in reader.scan(entry.body + _ENTRY_BYTES, entry.end)}
    if not wanted:
        return codec, b"", width, height
    if wanted not in inside:
        raise reader.flaw(entry, f"no {wanted.decode()!r}")
    if inside[wanted].end - inside[wanted].body > limits.header_bytes_max:
        raise reader.flaw(inside[wanted], "too large")
    config = reader.body(inside[wanted])
    if wanted == b"esds":
        codec, config = _parse_descriptors(reader, inside[wanted], config)
    return codec, config, width, height


def _parse_descriptors(reader: BoxReader, box: Box, data: bytes) -> tuple[str, bytes]:
    """Parse the descriptors of MPEG-4: the codec, and what its decoder is given."""
    codec, config, at = "", b"", 4
    while at + 2 <= len(data):
        tag, size, at = data[at], 0, at + 1
        while at < len(data):
            size, more, at = size << 7 | data[at] & 0x7F, data[at] & 0x80, at + 1
            if not more:
                break
        if tag == 3:  # an elementary stream: its number and flags, then descriptors
            flags = data[at + 2] if at + 2 < len(data) else 0
            at += 3 + (2 if flags & 0x80 else 0) + (2 if flags & 0x20 else 0)
        elif tag == 4:  # a decoder: the type of object, then descriptors
            codec = _MPEG_CODECS.get(data[at] if at < len(data) else 0, "")
            at += 13
        else:
            if tag == 5:
                config = data[at : at + size]
            at += size
    if not codec:
        raise reader.source.flaw(box.start, "frames are of no codec that is read: encode them anew")
    return codec, config


# -- packets ---------------------------------------------------------------------------------------


def _read_tables(reader: BoxReader, movie: Box, track: BoxTree) -> _Packets:
    """Read the packets of the tables of a track."""
    box = _take(reader, movie, track, b"stsz")
    same, count = reader.unpack(box, ">II", 4)
    if not same:
        size = reader.table(box, ">u4", 12, count).astype(np.int64)
    elif count * same > reader.source.size or count > limits.film_frames_max:
        raise reader.flaw(box, f"{count:,} frames of {same:,} bytes")
    else:
        size = np.full(count, same, np.int64)
    if not count:
        return _Packets(size, size, size, size, None, size, True)
    offset = _place_packets(reader, movie, track, size)
    duration = _repeat(reader, _take(reader, movie, track, b"stts"), ">u4", count)
    delays, keys = track.leaves.get(b"ctts"), np.arange(count)
    delay = None if delays is None else _repeat(reader, delays, ">i4", count)
    if (sync := track.leaves.get(b"stss")) is not None:
        (listed,) = reader.unpack(sync, ">I", 4)
        keys = reader.table(sync, ">u4", 8, listed).astype(np.int64) - 1
        if not listed:
            raise reader.flaw(sync, "no keyframe: no frame can be decoded")
        if keys[0] < 0 or keys[-1] >= count or (np.diff(keys) <= 0).any():
            raise reader.flaw(sync, f"keyframes are not {listed:,} of {count:,} frames, in order")
    decoded = np.cumsum(duration) - duration
    return _Packets(size, offset, decoded, duration, delay, keys, True)


def _place_packets(reader: BoxReader, movie: Box, track: BoxTree, size: Int) -> Int:
    """Find where packets are, of the chunks that they are in."""
    wide = b"co64" in track.leaves
    chunks = _take(reader, movie, track, b"co64" if wide else b"stco")
    (count,) = reader.unpack(chunks, ">I", 4)
    start = reader.table(chunks, ">u8" if wide else ">u4", 8, count)
    if count and int(start.max()) > reader.source.size:
        raise reader.flaw(
            chunks, f"frames at byte {int(start.max()):,}, beyond the end of the file"
        )
    box = _take(reader, movie, track, b"stsc")
    (listed,) = reader.unpack(box, ">I", 4)
    runs = reader.table(box, ">u4", 8, 3 * listed).reshape(listed, 3).astype(np.int64)
    first = np.append(runs[:, 0], count + 1)
    if not listed or first[0] != 1 or (np.diff(first) <= 0).any():
        raise reader.flaw(box, f"{listed:,} runs do not make up {count:,} chunks")
    ends = np.cumsum(np.repeat(np.minimum(runs[:, 1], len(size)), np.diff(first)))
    if ends[-1] < len(size):
        raise reader.flaw(box, f"chunks of {ends[-1]:,} frames in all, and there are {len(size):,}")
    number = np.arange(len(size))
    chunk = np.searchsorted(ends, number, side="right")
    before = np.cumsum(size) - size
    head = np.append(0, ends[:-1])[chunk]  # the first packet of each packet's chunk
    offset: Int = start.astype(np.int64)[chunk] + before - before[head]
    return offset


def _repeat(reader: BoxReader, box: Box, dtype: str, count: int) -> Int:
    """Read a table of runs of equal values, and return the value of each of `count` packets."""
    (listed,) = reader.unpack(box, ">I", 4)
    runs = reader.table(box, [("count", ">u4"), ("value", dtype)], 8, listed)
    lengths = runs["count"].astype(np.int64)
    if (total := int(lengths.sum())) != count:
        raise reader.flaw(box, f"times of {total:,} frames, and there are {count:,}")
    return np.repeat(runs["value"].astype(np.int64), lengths)


class _Defaults(NamedTuple):
    """Values that the packets of a fragment have unless they say else."""

    duration: int
    size: int
    flags: int


_TFHD_DEFAULTS = ((0x02, None), (0x08, "duration"), (0x10, "size"), (0x20, "flags"))
_RUN_COLUMNS = ((0x100, "duration"), (0x200, "size"), (0x400, "flags"), (0x800, "delay"))


def _read_fragments(
    reader: BoxReader, header: BoxTree, fragments: Sequence[Box], number: int
) -> _Packets | None:
    """Read the packets of the fragments of a track; None if it has none there."""
    defaults = _Defaults(0, 0, 0)
    for box, _ in header.list(b"trex"):
        track, _, *values = reader.unpack(box, ">5I", 4)
        if track == number:
            defaults = _Defaults(*values)
    columns: list[dict[str, Int]] = []
    clock = count = 0
    for fragment in fragments:
        end = fragment.start
        for box, inside in reader.walk(fragment).list(b"traf"):
            head = _take(reader, box, inside, b"tfhd")
            flags, track = reader.unpack(head, ">II")
            base = fragment.start if flags & 0x20000 else end
            at, own = 8, defaults
            if flags & 1:
                (base,), at = reader.unpack(head, ">Q", at), 16
            for bit, name in _TFHD_DEFAULTS:
                if flags & bit:
                    (value,) = reader.unpack(head, ">I", at)
                    own, at = own if name is None else own._replace(**{name: value}), at + 4
            if (time := inside.leaves.get(b"tfdt")) is not None and track == number:
                (version,) = reader.unpack(time, "B")
                (clock,) = reader.unpack(time, ">Q" if version else ">I", 4)
                if clock >= 1 << 62:
                    raise reader.flaw(time, f"a fragment at tick {clock:,}")
            end = base
            for run, _ in inside.list(b"trun"):
                read = _read_run(reader, run, own, base, end)
                end = read.pop("end")
                if track != number or not len(read["size"]):
                    continue
                count += len(read["size"])
                if count > limits.film_frames_max:
                    what = f"more than {limits.film_frames_max:,} frames"
                    raise reader.source.flaw(run.start, f"{what}: cut the film")
                duration = read["duration"]
                read["decoded"] = clock + np.cumsum(duration) - duration
                clock += int(duration.sum())
                columns.append(read)
    if not columns:
        return None
    joined = {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}
    keys = np.flatnonzero(joined["flags"] & (_NOT_SYNC | _DEPENDS) == 0)
    if not len(keys):
        raise reader.source.flaw(fragments[0].start, "no keyframe: no frame can be decoded")
    return _Packets(
        joined["size"],
        joined["offset"],
        joined["decoded"],
        joined["duration"],
        joined["delay"] if joined["delay"].any() else None,
        keys,
        False,
    )


def _read_run(
    reader: BoxReader, box: Box, defaults: _Defaults, base: int, follows: int
) -> dict[str, Any]:
    """Read the packets of a run: columns, and `end`, where the next run starts by default."""
    flags, count = reader.unpack(box, ">II")
    at, start = 8, follows
    if flags & 1:
        (shift,), at = reader.unpack(box, ">i", at), at + 4
        start = base + shift
    if not 0 <= start <= reader.source.size:
        raise reader.flaw(box, f"frames at byte {start:,}, outside the file")
    first_flags = None
    if flags & 4:
        (first_flags,), at = reader.unpack(box, ">I", at), at + 4
    names = [name for bit, name in _RUN_COLUMNS if flags & bit]
    dtype = [(name, ">i4" if name == "delay" else ">u4") for name in names]
    if "size" not in names and count * max(1, defaults.size) > reader.source.size:
        raise reader.flaw(box, f"{count:,} frames of {defaults.size:,} bytes")
    rows = reader.table(box, dtype, at, count) if names else np.empty(count, [("size", ">u4")])
    read: dict[str, Any] = {"delay": np.zeros(count, np.int64)}
    for name in (*_Defaults._fields, "delay"):
        if name in names:
            read[name] = rows[name].astype(np.int64)
        elif name != "delay":
            read[name] = np.full(count, getattr(defaults, name), np.int64)
    if first_flags is not None and count:
        read["flags"][0] = first_flags
    ends = start + np.cumsum(read["size"])
    read["offset"] = ends - read["size"]
    return read | {"end": int(ends[-1]) if count else start}


def _check_packets(source: StoreFile, packets: _Packets) -> None:
    """Check that all packets are in the file (FormatError)."""
    offset, size = packets.offset, packets.size
    is_outside = (offset < 0) | (offset > source.size - size) | (size <= 0)
    for at in np.flatnonzero(is_outside)[:1].tolist():
        what = f"frame {at:,} of {len(size):,} has {size[at]:,} bytes at byte {offset[at]:,}"
        remedy = "the file is cut or damaged, copy it again"
        raise FormatError(f"{source.path}: {what}, and the file has {source.size:,}: {remedy}")


# -- frames ----------------------------------------------------------------------------------------


class _Edit(NamedTuple):
    """The part of a track that is shown, in ticks: from `start` to `stop`; and `delay` before."""

    start: int = 0
    stop: int | None = None
    delay: int = 0


def _read_edits(reader: BoxReader, header: BoxTree, track: BoxTree, scale: int) -> _Edit:
    """Read the edit list; FormatError if it shows more than one part."""
    box = track.leaves[b"elst"]
    flags, count = reader.unpack(box, ">II")
    wide = flags >> 24
    dtype = (
        [("duration", ">u8"), ("start", ">i8")] if wide else [("duration", ">u4"), ("start", ">i4")]
    )
    edits = reader.table(box, [*dtype, ("rate", ">i4")], 8, count)
    shown = np.flatnonzero(edits["start"] >= 0)
    if not len(shown):
        return _Edit()
    first = int(shown[0])
    if len(shown) > 1 or (edits["rate"][shown] >> 16 != 1).any():
        what = "its edit list shows several parts, or at another speed"
        raise reader.source.flaw(box.start, f"{what}: write the film without")
    if b"mvhd" not in header.leaves:
        raise reader.flaw(box, "no 'mvhd', whose ticks it counts")
    (ticks,) = _read_clock(reader, header.leaves[b"mvhd"])
    duration, start = int(edits["duration"][first]), int(edits["start"][first])
    delay = sum(edits["duration"][:first].tolist())
    if max(duration, start, delay) >= 1 << 61:
        raise reader.flaw(box, f"an edit of {duration:,} ticks at {start:,}")
    stop = start + (duration * scale + ticks // 2) // ticks if duration else None
    return _Edit(start, stop, (delay * scale + ticks // 2) // ticks)


def _lay_out(
    reader: BoxReader,
    movie: Box,
    packets: _Packets,
    edit: _Edit,
    coded: tuple[str, bytes, int, int],
    scale: int,
) -> FilmTrack:
    """Number the frames that are shown, and divide the packets into groups."""
    count, keys = len(packets.size), packets.keys
    shown = packets.decoded if packets.delay is None else packets.decoded + packets.delay
    number = np.arange(count)
    packet_of, place = number, number  # by place in the sequence shown; by packet
    if packets.delay is not None or (np.diff(shown) < 0).any():
        packet_of = np.argsort(shown, kind="stable")
        place = np.empty(count, np.int64)
        place[packet_of] = number
        shown = shown[packet_of]
    shift = place - number
    if np.abs(shift).max() > _ahead_max:
        raise reader.flaw(movie, f"a frame is shown {np.abs(shift).max():,} frames before its turn")
    key_place = place[keys]
    if (np.diff(key_place) <= 0).any():
        raise reader.flaw(movie, "keyframes are shown in another sequence than they are decoded in")
    first, end = 0, count
    if packets.is_whole:
        first = int(np.searchsorted(shown, edit.start))
        end = count if edit.stop is None else int(np.searchsorted(shown, edit.stop))
    first = max(first, int(key_place[0]))
    if end <= first:
        raise reader.flaw(movie, "its edit list shows none of the frames")
    edges = np.clip(np.append(key_place, count), first, end)
    frames = np.diff(edges)
    start = edges[:-1][frames > 0]
    frames = frames[frames > 0]
    earliest = np.minimum.reduceat(packet_of[:end], start)
    last_packet = np.maximum.reduceat(packet_of[:end], start)
    if earliest.min() < keys[0]:
        raise reader.flaw(movie, "a frame behind the first keyframe is decoded before it")
    first_packet = keys[np.searchsorted(keys, earliest, side="right") - 1]
    pieces, offset, length = _cut_pieces(packets, first_packet, last_packet)
    times = shown[first:end] - edit.start + edit.delay
    distances = np.diff(times)
    begins = np.flatnonzero(
        np.append(True, distances[1:] != distances[:-1])[: max(1, end - first - 1)]
    )
    steps = distances[begins] if len(distances) else packets.duration[packet_of[first : first + 1]]
    return FilmTrack(
        *coded,
        packets.size.astype(np.uint32),
        shift.astype(np.int16) if shift.any() else None,
        frames,
        first_packet,
        last_packet,
        start,
        pieces,
        offset,
        length,
        np.stack([begins, times[begins], steps], 1),
        scale,
        int(times[-1] + packets.duration[packet_of[end - 1]]),
    )


def _cut_pieces(packets: _Packets, first: Int, last: Int) -> tuple[Int, Int, Int]:
    """Cut the packets of each group into extents: their number, and offset and length of each."""
    ends = packets.offset + packets.size
    breaks = np.flatnonzero(packets.offset[1:] != ends[:-1])
    if not len(breaks):
        offset = packets.offset[first]
        return np.ones(len(first), np.int64), offset, ends[last] - offset
    edges = np.append(0, breaks + 1)
    run, last_run = (np.searchsorted(edges, at, side="right") - 1 for at in (first, last))
    pieces = last_run - run + 1
    group = np.repeat(np.arange(len(first)), pieces)
    of_run = np.arange(len(group)) - (np.cumsum(pieces) - pieces)[group] + run[group]
    low = np.maximum(edges[of_run], first[group])
    high = np.minimum(np.append(edges[1:], len(ends))[of_run] - 1, last[group])
    offset = packets.offset[low]
    return pieces, offset, ends[high] - offset
