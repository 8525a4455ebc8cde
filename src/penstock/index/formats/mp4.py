"""Films: MP4 and MOV files, of which a sample is a clip, or the whole.

The index is made of the files' headers (see `media_tracks`); no frame is decoded. In a folder,
class sub-folders give labels, as for images. Of several tracks, the first one of video is read.

clips   a dict; without `frames` and `seconds`, each film is one sample, of frames of its own.

    frames    of a clip; `every` so many frames of the film, by default each.
    stride    from the start of a clip to the next, in frames; by default the clip's own length.
    seconds   of a clip, with `fps`, its frames a second: each is the one that the film shows then.
              `stride` is in seconds too.
    short     "skip": only whole clips are samples; what is left at a film's end is in none. "pad":
              one more clip repeats the last frame, and the field "frame_valid" marks what is in the
              film. "error": as "skip", and a film shorter than a clip is an error.
    size      (height, width) to which frames are scaled, which films of several sizes need.
    layout    "hwc", or "chw": where the channels are.
    sound     True, with `seconds`: the sound of the same seconds too, as float32 (see `audio`).

The fields are `frames`, uint8, and `time`, the seconds from the film's start to each frame; with
`sound`, also `sound`, (samples, channels), 0 where the film has none, which "sound_valid" marks,
and `rate`, the samples of a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import limits
from ...arguments import check_whole
from ...engine.store import StoreFile
from ...errors import UsageError
from ...extent import Files, Int
from ..attributes import Attribute, ClipValues
from ..clips import ClipCut, Clips, FrameCut, FrameTimes
from ..fields import Codec, Field
from ..layout import Chunked, Layout, Packets, Pieces, RowTable
from ..table import Index
from . import options
from .audio import cut_beside
from .audio_mp4 import parse_mp4
from .media_tracks import FilmTrack, SoundTrack, join_chunks, parse_film
from .shards import Scan, number_first
from .tree import MediaFiles, list_media

ENDINGS = (".mp4", ".m4v", ".mov")


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    return options.normalize(given, clips=_check_clips, extensions=options.EXTENSIONS)


def _check_clips(name: str, value: Any) -> dict[str, Any] | None:
    """Check the clips that are asked for, and return all that they are made of."""
    given = options.check_keys(name, value, "it", **_CHECKS)
    clips = {key: given.pop(key) for key in ("sound", "size", "layout") if key in given}
    units = given.keys() - {"stride", "short"}
    if "frames" in units and units <= {"frames", "every"}:
        every = given.setdefault("every", 1)
        stride = given.get("stride", given["frames"] * every)
        given["stride"] = _CHECKS["every"](f"{name}: stride", stride)
    elif units == {"seconds", "fps"}:
        seconds, fps = given.pop("seconds"), given["fps"]
        frames = round(seconds * fps)
        if frames < 1 or abs(frames - seconds * fps) > 1e-6 * frames:
            what = f"{name}: {seconds:g} seconds have {seconds * fps:g} frames at fps={fps:g}"
            raise UsageError(f"{what}: let it be a whole number")
        stride = options.number(1e-6, 1e9)(f"{name}: stride", given.get("stride", seconds))
        given |= {"frames": frames, "stride": stride}
    elif given:
        what = f"{name} is {dict(value)!r:.100}"
        raise UsageError(f"{what}: give frames= (and every=), or seconds= and fps=")
    if "sound" in clips and "fps" not in given:
        raise UsageError(f"{name}: sound=True needs seconds= and fps=, in place of frames=")
    return clips | ({"short": "skip"} | given if given else {}) or None


def check_size(name: str, value: Any) -> list[int]:
    """Check the size to which frames are scaled."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise UsageError(f"{name} is {value!r:.100}: give (height, width)")
    return [check_whole(name, one, 1, 1 << 15) for one in value]


_CHECKS: dict[str, options.Check] = {
    "frames": options.whole(1, limits.film_frames_max),
    "every": options.whole(1, limits.film_frames_max),
    "seconds": options.number(1e-6, 1e6),
    "fps": options.number(1e-6, 1e6),
    "stride": options.STRIDE,
    "short": options.SHORT,
    "size": check_size,
    "layout": options.one_of("hwc", "chw"),
    "sound": options.one_of(False, True),
}


def build(
    scan: Scan, clips: Mapping[str, Any] | None = None, extensions: Sequence[str] = ()
) -> Index:
    """The index of the clips of all films, one film after the other; or of the films."""
    asked = dict(clips or {})
    listed = list_media(scan, extensions or ENDINGS)

    def parse(_: int, source: StoreFile) -> tuple[FilmTrack, SoundTrack | None]:
        sound = parse_mp4(source) if "sound" in asked else None
        return parse_film(source, is_one_group="frames" not in asked), sound

    films, sounds = zip(*scan.parse(listed.files, parse), strict=True)
    joint = join_films("frames", listed.files, films, asked)
    if "frames" not in asked:
        return _index_films(listed, joint)
    cut = _cut_films(listed, joint.times, asked)
    columns: list[tuple[Field, Layout]] = [joint.cut(cut)]
    layout = columns[0][1]
    attributes: list[Attribute] = [ClipValues.make("time", np.float64, layout)]
    if cut.is_padded:
        attributes.append(ClipValues.make("frame_valid", bool, layout))
    if "sound" in asked:
        column, more = cut_beside(listed.files, sounds, cut)
        columns.append(column)
        attributes += more
    return listed.make_index("mp4", columns, attributes, cut.first)


def _cut_films(listed: MediaFiles, times: FrameTimes, asked: Mapping[str, Any]) -> ClipCut:
    """Cut films into clips; FormatError if there are none, or if a film is too short for one."""
    cut = ClipCut.make(
        times,
        is_padded=asked["short"] == "pad",
        frames=asked["frames"],
        every=asked.get("every", 1),
        fps=asked.get("fps", 0.0),
        stride=float(asked["stride"]),
    )
    each = f"every {asked['every']}" if "every" in asked else f"at {asked['fps']:g} fps"
    clip, has_none = f"{asked['frames']:,}, {each}", np.diff(cut.first) == 0
    listed.check_short(has_none, np.diff(times.films), "frames", clip, asked["short"])
    if cut.count > limits.order_count_max:
        raise UsageError(f"there would be {cut.count:,} clips: give a larger stride")
    return cut


def _index_films(listed: MediaFiles, films: JointFilms) -> Index:
    """Make the index of whole films."""
    frames, shape = np.diff(films.times.films), films.shape
    largest = int(frames.max()) * math.prod(shape)
    if largest > limits.decoded_chunk_bytes_max:
        path = listed.files.path(int(frames.argmax()))
        what = f"{path} has {int(frames.max()):,} frames of {shape}, too many for one sample"
        raise UsageError(f"{what}: give clips=dict(frames=...)")
    layout = Chunked(np.arange(len(frames) + 1), films.chunks, packets=films.packets)
    codec = Codec("film", {**films.how, "whole": True})
    field = Field(films.name, np.dtype(np.uint8), None, codec, element=shape)
    seconds = films.times.find_seconds(np.arange(films.times.films[-1]))
    time = Attribute("time", "numbers", seconds, films.times.films[1:])
    return listed.make_index("mp4", [(field, layout)], [time])


# -- all films, one after the other ----------------------------------------------------------------


class JointFilms(NamedTuple):
    """Films of one field, one after the other.

    shape:   of one frame; `how` its codec makes it.
    groups:  int64 (groups + 1,), number of each group's first frame.
    """

    name: str
    shape: tuple[int, ...]
    how: Mapping[str, Any]
    times: FrameTimes
    groups: Int
    chunks: RowTable | Pieces
    packets: Packets

    def cut(self, cut: ClipCut | FrameCut) -> tuple[Field, Clips]:
        """Cut the films into samples of some frames: the field, and its layout."""
        shape = cut.frames, *self.shape
        field = Field(self.name, np.dtype(np.uint8), shape, Codec("film", self.how))
        return field, Clips(self.groups, self.chunks, cut, self.shape, packets=self.packets)


def join_films(
    name: str,
    files: Files,
    films: Sequence[FilmTrack],
    asked: Mapping[str, Any],
    first_file: int = 0,
) -> JointFilms:
    """Join the films of a field, whose sizes must be one (UsageError).

    asked:  `size` and `layout`.
    first_file:  number of the first film's file in the index.
    """
    shape = films[0].shape
    how: dict[str, Any] = {key: asked[key] for key in ("size", "layout") if key in asked}
    if "size" in asked:
        shape = asked["size"][0], asked["size"][1]
    else:
        how["frame"] = list(shape)
        for number, film in enumerate(films):
            if film.shape != shape:
                what = f"{files.path(number)} has frames of {film.shape[1]} x {film.shape[0]}"
                others = f"others of {shape[1]} x {shape[0]}"
                raise UsageError(f"{what}, {others}: give a size=(height, width)")
    chunks, packets, how["configs"] = join_chunks([film.chunks for film in films], first_file)
    made = (3, *shape) if "layout" in asked else (*shape, 3)
    groups = number_first(packets.frames)
    return JointFilms(name, made, how, _join_times(films), groups, chunks, packets)


def _join_times(films: Sequence[FilmTrack]) -> FrameTimes:
    frames = number_first([int(film.chunks.frames.sum()) for film in films])
    runs = [film.times for film in films]
    first, start, step = np.concatenate(runs).T.copy()
    first += np.repeat(frames[:-1], [len(one) for one in runs])
    scale = np.array([film.scale for film in films], np.int64)
    end = np.array([film.end for film in films], np.int64)
    return FrameTimes(frames, scale, end, first, start, step)
