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
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...arguments import check_number, check_whole
from ...engine.store import StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int, Names
from ..attributes import Attribute, SoundTimes, WindowMask
from ..clips import ClipCut, Films, Packets
from ..fields import Codec, Field, Scaling
from ..layout import Boxes, Layout, Pieces, RowTable, SoundWindows, Windows
from ..table import Index
from ..windows import FileGrids, WindowGrid
from . import options
from .audio_flac import parse_flac
from .audio_mp3 import parse_mp3
from .audio_mp4 import parse_mp4
from .audio_ogg import parse_ogg
from .audio_tracks import SoundTrack, skip_tags
from .audio_wav import parse_wav
from .chunk_grid import ChunkGrid
from .registry import FORMATS
from .shards import Scan, number_first
from .tree import MediaFiles, list_media
from .windowing import ArrayPart, WindowRequest, build_index

_KNOWN = ("frames", "seconds", "stride", "short")


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    sound = options.one_of("float32", "stored")
    return options.normalize(given, clips=_check_clips, extensions=options.EXTENSIONS, sound=sound)


def _check_clips(name: str, value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping) or not set(value) <= {*_KNOWN}:
        named = f" {sorted(set(value) - {*_KNOWN})[0]!r}" if isinstance(value, Mapping) else ""
        what = f"{name} is {value!r:.100}{': sound has no' * bool(named)}{named}"
        raise UsageError(f"{what}: give a dict of {', '.join(_KNOWN)}")
    given = {key: one for key, one in value.items() if one is not None}
    units = [unit for unit in ("frames", "seconds") if unit in given]
    if not units and not given:
        return None
    if len(units) != 1:
        raise UsageError(f"{name} is {dict(value)!r:.100}: give frames= or seconds=")
    clips: dict[str, Any] = {}
    for key in (units[0], "stride"):
        one = given.get(key, given[units[0]])
        clips[key] = (
            check_whole(f"{name}: {key}", one, 1, 1 << 40)
            if units == ["frames"]
            else float(check_number(f"{name}: {key}", one, least=1e-6, most=1e9))
        )
    short = options.one_of("skip", "pad", "error", is_kept=True)
    return clips | {"short": short(f"{name}: short", given.get("short", "skip"))}


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


def parse_sound(source: StoreFile) -> SoundTrack:
    """Parse the sound of a file, by its first bytes."""
    head = source.read(0, 12)
    if head[:4] in (b"RIFF", b"RF64", b"BW64") and head[8:] == b"WAVE":
        return parse_wav(source)
    if head.startswith(b"ID3"):
        at = skip_tags(source.read(0, 10))
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
    files, sources, classes, labels = listed
    rate, channels = tracks[0].rate, tracks[0].channels
    unit = rate if "seconds" in asked else 1
    length = asked["seconds" if "seconds" in asked else "frames"]
    size, stride = (max(1, round(one * unit)) for one in (length, asked["stride"]))
    _check_short(files, tracks, size, asked["short"])
    dtype, chunk = _find_dtype(tracks), _choose_chunk(size, stride, rate)
    is_plain = all(one.is_plain and np.dtype(one.dtype) == dtype for one in tracks)
    fill = "80" if dtype == np.uint8 else bytes(dtype.itemsize).hex()
    parts, cut, tables = [], [], []
    for number, track in enumerate(tracks):
        values: int | ChunkGrid = int(track.at[0])
        shape, own = (track.frames, channels), min(chunk, track.frames)
        if not is_plain:
            edges = np.append(np.arange(0, track.frames, own), track.frames)
            cut.append(track.cut(own))
            tables.append(_cut_chunks(cut[-1], edges))
            file = np.full(len(edges) - 1, number, np.uint32)
            extents = file, tables[-1].offset, tables[-1].length
            values = ChunkGrid(shape, (own, channels), dtype.itemsize, *extents)
        path, axes = files.path(number), ("frame", "channel")
        parts.append(ArrayPart(path, shape, axes, dtype, fill, values))
    drop = "pad" if asked["short"] == "pad" else "partial"
    request = WindowRequest({"frame": size}, {"frame": stride}, drop=drop, sample="file")
    packets, how = (None, {}) if is_plain else _join_chunks(cut, tables, dtype)
    codecs = {"sound": Codec("sound", how)}
    made = build_index("audio", files, sources, {"sound": parts}, codecs, request)
    layout = made.layouts[0]
    assert isinstance(layout, Boxes | Windows)
    grid = layout.grid
    assert grid.files is not None
    if isinstance(layout, Windows) and packets is not None:
        layout = SoundWindows.make(replace(layout, chunks=_place_chunks(cut, tables)), packets)
    attributes = (
        SoundTimes.make("time", np.float64, grid, rate),
        SoundTimes.make("rate", np.int64, grid, rate),
        *(replace(mask, name="sound_valid") for mask in made.attributes),
    )
    if labels is not None:
        labels = np.repeat(labels, np.diff(grid.files.first))
    fields = made.fields
    return Index("audio", files, fields, (layout,), sources, classes, labels, attributes=attributes)


def cut_beside(
    files: Files, tracks: Sequence[SoundTrack], clips: ClipCut
) -> tuple[tuple[Field, SoundWindows], list[Attribute]]:
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

    own = np.minimum(max(1, rate // 2), frames)
    edges = [np.append(np.arange(0, n, step), n) for n, step in zip(frames, own, strict=True)]
    tables = [_cut_chunks(*pair) for pair in zip(tracks, edges, strict=True)]
    dtype = np.dtype("<f4")
    packets, how = _join_chunks(tracks, tables, dtype)
    grid, chunks = make_grid(3), _place_chunks(tracks, tables)
    in_files = np.stack([one, own, one * channels], 1)
    chunk = tuple(in_files.max(axis=0).tolist())
    layout = Windows(np.arange(count + 1), chunks, grid, chunk, in_files)
    attributes = [
        SoundTimes.make("rate", np.int64, grid, rate, 1),
        WindowMask.make("sound_valid", make_grid(2)),
    ]
    made = (size, channels)
    field = Field("sound", dtype, grid.size, Codec("sound", how), made_shape=made)
    return (field, SoundWindows.make(layout, packets)), attributes


def _check_short(files: Files, tracks: Sequence[SoundTrack], size: int, short: str) -> None:
    """Check that files are as long as a clip; FormatError if none is, or one may not be shorter."""
    lengths = np.array([track.frames for track in tracks])
    less = np.flatnonzero(lengths < size)
    if not len(less) or short == "pad":
        return
    what = f"{files.path(int(less[0]))} has {int(lengths[less[0]]):,} samples"
    what = f"{what}, fewer than a clip of {size:,}"
    if short == "error" or len(less) == len(files):
        raise FormatError(f"{what}: give shorter clips, or short='pad' or 'skip'")
    if len(less) > 1:
        what = f"{what}, and {len(less) - 1:,} files more are as short"
    warnings.warn(f"{what}: they are left out", RuntimeWarning, stacklevel=2)


def _choose_chunk(size: int, stride: int, rate: int) -> int:
    """Choose the samples of a chunk: those that clips have in common, where they are not few."""
    common = math.gcd(size, stride)
    return common if 4 * common >= rate else max(1, rate // 2)


def _find_dtype(tracks: Sequence[SoundTrack]) -> np.dtype[Any]:
    """Find the type of the numbers of all files: floats where they differ."""
    types = {track.dtype for track in tracks}
    return np.dtype(types.pop() if len(types) == 1 else "<f4")


def _index_files(listed: MediaFiles, tracks: Sequence[SoundTrack]) -> Index:
    """Make the index of whole files."""
    files, sources, classes, labels = listed
    frames = np.array([track.frames for track in tracks], np.int64)
    dtype, channels = _find_dtype(tracks), tracks[0].channels
    layout: Layout
    if all(one.is_plain and np.dtype(one.dtype) == dtype for one in tracks):
        offset, end = np.array([(track.at[0], track.at[-1]) for track in tracks], np.int64).T
        layout, codec = RowTable(None, offset.copy(), end - offset), None
    else:
        tables = [_cut_chunks(track, np.array([0, track.frames])) for track in tracks]
        packets, how = _join_chunks(tracks, tables, dtype)
        first = np.arange(len(tracks) + 1, dtype=np.int64)
        layout = Films(first, _place_chunks(tracks, tables), packets, frames)
        codec = Codec("sound", {**how, "whole": True})
    field = Field("sound", dtype, None, codec, element=(channels,))
    rate = Attribute("rate", "numbers", np.full(len(tracks), tracks[0].rate, np.int64))
    names = Names(files.names, files.ends)
    return Index(
        "audio", files, (field,), (layout,), sources, classes, labels, names, attributes=(rate,)
    )


# -- chunks ----------------------------------------------------------------------------------------


class _Chunks(NamedTuple):
    """Chunks of a file: where their bytes are, their packets, the place of their first sample among
    what comes out of these, and whether their first page only brings a decoder into its state."""

    offset: Int
    length: Int
    begin: Int
    end: Int
    place: Int
    is_primed: npt.NDArray[np.bool_]


def _cut_chunks(track: SoundTrack, edges: Int) -> _Chunks:
    """Cut a file into chunks of the samples between these places."""
    start = track.start
    since = track.since[np.searchsorted(start, edges[:-1], side="right") - 1]
    begin, end = np.maximum(since, 0), np.searchsorted(start, edges[1:])
    place = edges[:-1] - start[since + 1 if track.is_paged else begin]
    offset = track.at[begin]
    return _Chunks(offset, track.at[end] - offset, begin, end, place, track.is_paged & (since >= 0))


def _place_chunks(tracks: Sequence[SoundTrack], tables: Sequence[_Chunks]) -> RowTable | Pieces:
    """Find where the bytes of chunks are in the files."""
    rows: list[tuple[Any, ...]] = []
    for number, (track, table) in enumerate(zip(tracks, tables, strict=True)):
        first, offset = track.runs or (track.at[[0, -1]], track.at[:1])
        begin, end = table.offset, table.offset + table.length
        low = np.searchsorted(first, begin, side="right") - 1
        counts = np.searchsorted(first, end) - low
        run = np.arange(counts.sum()) + np.repeat(low - np.cumsum(counts) + counts, counts)
        begin = np.maximum(first[run], np.repeat(begin, counts))
        end = np.minimum(first[run + 1], np.repeat(end, counts))
        file = np.full(len(run), number, np.uint32)
        rows.append((counts, file, offset[run] + begin - first[run], end - begin))
    counts, *extents = map(np.concatenate, zip(*rows, strict=True))
    return RowTable(*extents) if (counts == 1).all() else Pieces(number_first(counts), *extents)


def _join_chunks(
    tracks: Sequence[SoundTrack], tables: Sequence[_Chunks], dtype: np.dtype[Any]
) -> tuple[Packets, dict[str, Any]]:
    """Join the packets of all files, and say how their codec makes samples of them."""
    size, config = [], []
    kinds: dict[tuple[str, str, str], int] = {}
    for track, table in zip(tracks, tables, strict=True):
        size.append(np.diff(track.at))
        packings = ("pages", "primed") if track.is_paged else ("", "")
        named = [(track.codec, track.config.hex(), packing) for packing in packings]
        numbers = [kinds.setdefault(kind, len(kinds)) for kind in named]
        config.append(np.where(table.is_primed, numbers[1], numbers[0]))
    base = np.repeat(number_first(list(map(len, size)))[:-1], [len(one.begin) for one in tables])
    columns = (np.concatenate(column) for column in zip(*(one[2:5] for one in tables), strict=True))
    begin, end, place = columns
    packets = Packets(
        np.concatenate(size).astype(np.uint32),
        np.zeros(0, np.int16),
        begin + base,
        end + base,
        place,
        np.concatenate(config).astype(np.uint32),
    )
    sound = {"rate": tracks[0].rate, "channels": tracks[0].channels, "dtype": dtype.str}
    return packets, {"configs": [list(kind) for kind in kinds], **sound}
