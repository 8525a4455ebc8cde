"""Sound: files of WAV, FLAC, MP3, Ogg and M4A, of which a sample is some seconds, or the whole.

Of WAV, M4A and films (MP4, MOV) the header is read. The others are read once, because their packets
have to be looked for; nothing is decoded. In a folder, class sub-folders give labels, as for
images. All files have one rate and one number of channels.

clips   a dict; without `frames` and `seconds`, each file is one sample, of a length of its own.

    frames    samples of a clip, of each channel; or `seconds`, to the nearest sample.
    stride    from the start of a clip to the next, in the same unit; by default the clip's length.
    short     "skip": only whole clips are samples; what is left at a file's end is in none. "pad":
              one more clip is 0 behind the end, and the field "sound_valid" marks what the file
              has. "error": as "skip", and a file shorter than a clip is an error.

sound   "float32": from -1 to 1, whatever the file has; or "stored": the numbers of the file, all of
        one type. The index is the same. Of films, it says that their sound is wanted.

The fields are `sound`, (samples, channels), `time`, the seconds from the file's start to the clip,
and `rate`, the samples of a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...engine.store import StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int
from ..attributes import Attribute, ClipValues, WindowMask
from ..clips import ClipCut
from ..fields import Codec, Field, Scaling
from ..layout import Boxes, Chunked, Packets, Pieces, RowTable, Windows
from ..table import Index
from ..windows import FileGrids, WindowGrid
from . import options
from .audio_flac import parse_flac
from .audio_mp3 import parse_mp3
from .audio_mp4 import parse_mp4
from .audio_ogg import parse_ogg
from .audio_wav import parse_wav
from .media_tracks import SoundTrack, join_chunks, skip_tags
from .registry import FORMATS
from .shards import Scan
from .tree import MediaFiles, list_media
from .windowing import ArrayPart, WindowRequest, cut_windows, join_parts


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    sound = options.one_of("float32", "stored")
    return options.normalize(given, clips=_check_clips, extensions=options.EXTENSIONS, sound=sound)


def _check_clips(name: str, value: Any) -> dict[str, Any] | None:
    checks = {"frames": options.whole(1, 1 << 40), "seconds": options.number(1e-6, 1e9)}
    more = {"stride": options.STRIDE, "short": options.SHORT}
    given = options.check_keys(name, value, "sound", **checks, **more)
    if not given:
        return None
    units = [unit for unit in checks if unit in given]
    if len(units) != 1:
        raise UsageError(f"{name} is {dict(value)!r:.100}: give frames= or seconds=")
    given["stride"] = checks[units[0]](f"{name}: stride", given.get("stride", given[units[0]]))
    return {"short": "skip"} | given


def build(
    scan: Scan, clips: Mapping[str, Any] | None = None, extensions: Sequence[str] = ()
) -> Index:
    """The index of the clips of all files, one file after the other; or of the files."""
    listed = list_media(scan, extensions or FORMATS["audio"].endings)
    tracks = scan.parse(listed.files, lambda _, source: parse_sound(source))
    _check_alike(listed.files, tracks)
    return _index_files(listed, tracks) if clips is None else _index_clips(listed, tracks, clips)


def attach_fields(index: Index, sound: str = "float32") -> Index:
    """Return the index whose samples are floats from -1 to 1, or numbers as they are stored."""
    field = index.fields[0]
    if sound == "stored" or field.dtype == np.float32:
        return index
    scaling, dtype = None, field.dtype
    if dtype.kind != "f":
        full = float(1 << (8 * dtype.itemsize - 1))
        scaling = Scaling(np.array([full * (dtype.kind == "u")]), np.array([full]), None)
    return replace(index, fields=(replace(field, scaling=scaling, as_dtype=np.dtype("f4")),))


_TAGS_BYTES_MAX = 1 << 24  # pictures are in them


def parse_sound(source: StoreFile) -> SoundTrack:
    """Parse the sound of a file, by its first bytes."""
    head = source.read(0, 12)
    if head[:4] in (b"RIFF", b"RF64", b"BW64") and head[8:] == b"WAVE":
        return parse_wav(source)
    at = 0
    while at < _TAGS_BYTES_MAX and (size := skip_tags(head)):
        at += size
        head = source.read(at, 12)
    if head.startswith(b"fLaC"):
        return parse_flac(source)
    if any(head.startswith(magic, at) for at, magic in FORMATS["mp4"].magic):
        return parse_mp4(source)
    if head.startswith(b"OggS"):
        return parse_ogg(source)
    if head[:1] == b"\xff" or source.path.lower().endswith(".mp3"):
        return parse_mp3(source)
    what = f"it begins with {head[:8]!r}, as no WAV, FLAC, MP3, Ogg or MP4 does"
    raise source.flaw(0, f"{what}: leave the file out, by extensions= or a pattern")


def _check_alike(files: Files, tracks: Sequence[SoundTrack]) -> None:
    first = tracks[0]
    for number, track in enumerate(tracks):
        if (track.rate, track.channels) != (first.rate, first.channels):
            what = f"{files.path(number)} has {track.channels} channels of {track.rate:,} a second"
            other = f"{files.path(0)} {first.channels} of {first.rate:,}"
            remedy = "write all alike, by `ffmpeg -ar 16000 -ac 1`, or open those alike"
            raise FormatError(f"{what}, and {other}: {remedy}")
        if track.frames < 1:
            raise FormatError(f"{files.path(number)} has no samples: leave it out")


# -- clips -----------------------------------------------------------------------------------------


def _index_clips(
    listed: MediaFiles, tracks: Sequence[SoundTrack], asked: Mapping[str, Any]
) -> Index:
    """Make the index of clips of files."""
    rate, channels = tracks[0].rate, tracks[0].channels
    unit = rate if "seconds" in asked else 1
    length = asked["seconds" if "seconds" in asked else "frames"]
    size, stride = (max(1, round(one * unit)) for one in (length, asked["stride"]))
    frames = np.array([track.frames for track in tracks], np.int64)
    if asked["short"] != "pad":
        listed.check_short(frames < size, frames, "samples", f"{size:,}", asked["short"])
    dtype = _find_dtype(tracks)
    fill = "80" if dtype == np.uint8 else bytes(dtype.itemsize).hex()
    axes = ("frame", "channel")
    parts = [
        ArrayPart(listed.files.path(number), (length, channels), axes, dtype, fill)
        for number, length in enumerate(frames.tolist())
    ]
    drop = "pad" if asked["short"] == "pad" else "partial"
    request = WindowRequest({"frame": size}, {"frame": stride}, drop=drop, sample="file")
    ((_, _, grid),), masks, _ = cut_windows({"sound": join_parts(parts, request)}, request)
    layout: Boxes | Windows
    if _is_plain(tracks, dtype):
        field = Field("sound", dtype, grid.room, made_shape=grid.size[1:])
        base = np.array([track.at[0] for track in tracks], np.int64)
        layout = Boxes(grid, np.arange(len(tracks) + 1), base, dtype.itemsize)
    else:
        field, layout = _lay_out_windows(tracks, grid, dtype, _choose_chunk(size, stride, rate))
    attributes = (
        ClipValues.make("time", np.float64, layout, rate=rate),
        ClipValues.make("rate", np.int64, layout, rate=rate),
        *(replace(mask, name="sound_valid") for mask in masks),
    )
    assert grid.files is not None
    return listed.make_index("audio", [(field, layout)], attributes, grid.files.first)


def _lay_out_windows(
    tracks: Sequence[SoundTrack], grid: WindowGrid, dtype: np.dtype[Any], chunk: int
) -> tuple[Field, Windows]:
    """Lay out windows of packets, in chunks of so many samples, or of a file that has fewer."""
    frames = np.array([track.frames for track in tracks], np.int64)
    sizes = np.minimum(chunk, frames)
    table, packets, how = _join_tracks(tracks, dtype, sizes)
    one = np.ones_like(frames)
    in_files = np.stack([one, sizes, one * grid.shape[2]], 1)
    most = tuple(in_files.max(axis=0).tolist())
    files = np.arange(len(tracks) + 1)
    field = Field("sound", dtype, grid.size, Codec("sound", how), made_shape=grid.size[1:])
    return field, Windows(files, table, grid, most, in_files, packets=packets)


def _join_tracks(
    tracks: Sequence[SoundTrack], dtype: np.dtype[Any], sizes: Int
) -> tuple[RowTable | Pieces, Packets, dict[str, Any]]:
    """Cut each file into chunks of its size, and join them: where they are, their packets, and how
    their codec makes samples of them."""
    chunks = [
        track.cut(np.append(np.arange(0, track.frames, size), track.frames))
        for track, size in zip(tracks, sizes.tolist(), strict=True)
    ]
    table, packets, configs = join_chunks(chunks)
    sound = {"rate": tracks[0].rate, "channels": tracks[0].channels, "dtype": dtype.str}
    return table, packets, {"configs": configs, **sound}


def cut_beside(
    files: Files, tracks: Sequence[SoundTrack], clips: ClipCut
) -> tuple[tuple[Field, Windows], list[Attribute]]:
    """Cut the sound of films into windows as long as their clips, at the same seconds: the second
    field of an index and its layout, and attributes."""
    _check_alike(files, tracks)
    rate, channels = tracks[0].rate, tracks[0].channels
    size, pace, count = round(clips.frames / clips.fps * rate), clips.stride * rate, len(tracks)
    frames = np.array([track.frames for track in tracks], np.int64)
    one, clips_of = np.ones(count, np.int64), np.maximum(np.diff(clips.first), 1)
    pictures = clips.times.find_seconds(clips.times.films[:-1])
    begin = np.array([track.begin for track in tracks])
    begin = np.floor((pictures - begin) * rate + 0.5).astype(np.int64)

    def make_grid(axes: int) -> WindowGrid:
        shape, steps, every = (
            np.stack(columns[:axes], 1)
            for columns in ((one * count, frames, one * channels), (one, clips_of, one), (one,) * 3)
        )
        return WindowGrid(
            tuple(shape.max(axis=0).tolist()),
            (1, size, channels)[:axes],
            (0, 0, 0)[:axes],
            (1, max(1, round(pace)), 1)[:axes],
            tuple(steps.max(axis=0).tolist()),
            (1, 1, 1)[:axes],
            clips.count,
            ("file", "frame", "channel")[:axes],
            bytes(4).hex(),
            FileGrids(clips.first, shape, steps, every, begin),
            pace,
        )

    field, layout = _lay_out_windows(tracks, make_grid(3), np.dtype("<f4"), max(1, rate // 2))
    attributes = [
        ClipValues.make("rate", np.int64, layout, 1, rate),
        WindowMask.make("sound_valid", make_grid(2)),
    ]
    return (field, layout), attributes


def _choose_chunk(size: int, stride: int, rate: int) -> int:
    """Choose the samples of a chunk: those that clips have in common, where they are not few."""
    common = math.gcd(size, stride)
    return common if 4 * common >= rate else max(1, rate // 2)


def _find_dtype(tracks: Sequence[SoundTrack]) -> np.dtype[Any]:
    """Find the type of the numbers of all files: floats where they differ."""
    types = {track.dtype for track in tracks}
    return np.dtype(types.pop() if len(types) == 1 else "<f4")


def _is_plain(tracks: Sequence[SoundTrack], dtype: np.dtype[Any]) -> bool:
    """True if all files have the samples as they are, of this type."""
    return all(track.is_plain and np.dtype(track.dtype) == dtype for track in tracks)


def _index_files(listed: MediaFiles, tracks: Sequence[SoundTrack]) -> Index:
    """Make the index of whole files."""
    frames = np.array([track.frames for track in tracks], np.int64)
    dtype, channels = _find_dtype(tracks), tracks[0].channels
    layout: RowTable | Chunked
    if _is_plain(tracks, dtype):
        offset, end = np.array([(track.at[0], track.at[-1]) for track in tracks], np.int64).T
        layout, codec = RowTable(None, offset.copy(), end - offset), None
    else:
        table, packets, how = _join_tracks(tracks, dtype, frames)
        layout = Chunked(np.arange(len(tracks) + 1), table, packets=packets)
        codec = Codec("sound", {**how, "whole": True})
    field = Field("sound", dtype, None, codec, element=(channels,))
    rate = Attribute("rate", "numbers", np.full(len(tracks), tracks[0].rate, np.int64))
    return listed.make_index("audio", [(field, layout)], [rate])
