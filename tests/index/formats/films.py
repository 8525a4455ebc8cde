"""Films written and read by PyAV, for tests: what it decodes from start to end is the oracle."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np

from penstock.convert.films import keep_policy

av.logging.set_level(None)
os.environ.setdefault("SVT_LOG", "0")  # of an encoder that prints by itself

CLOSED: Mapping[str, str] = {"g": "12", "bf": "3"}
_OPEN = "keyint=12:min-keyint=1:bframes=3:open-gop=1:scenecut=0:b-adapt=0"
OPEN: Mapping[str, str] = {"x264-params": _OPEN}
"""Frames that are shown before a keyframe refer to it and to the group before."""

KINDS: Mapping[str, Mapping[str, Any]] = {
    "closed": {"options": CLOSED},
    "open": {"options": OPEN},
    "fragments": {"options": OPEN, "muxer": {"movflags": "frag_keyframe+empty_moov"}},
    "tables and fragments": {"options": CLOSED, "muxer": {"movflags": "frag_keyframe"}},
    "dash": {
        "options": CLOSED,
        "muxer": {"movflags": "frag_every_frame+default_base_moof+delay_moov"},
    },
    "faststart": {"options": CLOSED, "muxer": {"movflags": "faststart"}, "has_sound": True},
    "mov": {"options": OPEN, "suffix": ".mov", "has_sound": True},
    "hevc": {"codec": "libx265", "options": {"x265-params": f"{_OPEN}:log-level=none"}},
    "av1": {"codec": "libsvtav1", "options": {"g": "10", "preset": "10", "crf": "35"}},
    "av1 of two": {"codec": "libsvtav1", "options": {"g": "2", "preset": "10", "crf": "35"}},
    "vp9": {"codec": "libvpx-vp9", "options": {"g": "12", "cpu-used": "8"}},
    "mpeg4": {"codec": "mpeg4", "options": {"g": "12", "bf": "2"}},
    "mjpeg": {"codec": "mjpeg", "options": {}, "pixels": "yuvj420p"},
    "variable": {"options": CLOSED, "rate": None},
}
"""Kinds of films, by what `write_film` is told."""


class Film(NamedTuple):
    """A film as PyAV decodes it from start to end: the frames, and the time of each."""

    path: Path
    frames: np.ndarray[Any, np.dtype[np.uint8]]
    times: np.ndarray[Any, np.dtype[np.float64]]


def write_film(
    path: Path,
    count: int,
    codec: str = "libx264",
    options: Mapping[str, str] = CLOSED,
    muxer: Mapping[str, str] | None = None,
    size: tuple[int, int] = (48, 64),
    rate: int | None = 30,
    pixels: str = "yuv420p",
    has_sound: bool = False,
    seed: int = 0,
    suffix: str = ".mp4",
) -> Film:
    """Write a film of noise that moves, and read it.

    rate:  frames a second; None: at times that differ.
    """
    path = path.with_suffix(suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    height, width = size
    noise = random.integers(0, 255, (height // 8 + 1, width // 8 + 1, 3)).astype(np.uint8)
    noise = noise.repeat(8, 0).repeat(8, 1)[:height, :width]
    with keep_policy(), av.open(str(path), "w", options=dict(muxer or {})) as out:
        stream = out.add_stream(codec, rate=rate or 30, options=dict(options))
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        if rate is None:
            stream.codec_context.time_base = Fraction(1, 1000)
        sound = None
        if has_sound:
            sound = out.add_stream("aac", rate=48000)
            sound.layout = "mono"
        for number in range(count):
            picture = np.roll(noise, (number * 3, number * 5), (0, 1)).copy()
            picture[:8, :8] = random.integers(0, 255, (8, 8, 3))
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if rate is None:
                frame.pts, frame.time_base = number * 33 + number * number % 20, Fraction(1, 1000)
            out.mux(stream.encode(frame))
            if sound is not None:
                silence = np.zeros((1, 1600), np.float32)
                tone = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
                tone.sample_rate = 48000
                out.mux(sound.encode(tone))
        out.mux(stream.encode(None))
        if sound is not None:
            out.mux(sound.encode(None))
    return read_film(path)


def read_film(path: Path) -> Film:
    """Decode a film from start to end."""
    with av.open(str(path)) as film:
        stream = film.streams.video[0]
        stream.thread_type = "NONE"
        frames = [(frame.to_ndarray(format="rgb24"), frame.time) for frame in film.decode(stream)]
    return Film(path, np.stack([one for one, _ in frames]), np.array([time for _, time in frames]))


def take_clip(film: Film, first: int, count: int, every: int) -> np.ndarray[Any, Any]:
    """Take the frames of a clip; behind the end, the last one again."""
    return film.frames[np.minimum(first + every * np.arange(count), len(film.frames) - 1)]


def list_starts(film: Film, count: int, every: int, stride: int, is_padded: bool) -> Sequence[int]:
    """List the first frames of the clips of a film, one by one."""
    starts = []
    for start in range(0, len(film.frames), stride):
        has_all = start + (count - 1) * every < len(film.frames)
        if has_all or is_padded:
            starts.append(start)
        if is_padded and start + (count - 1) * every >= len(film.frames) - 1:
            break
    return starts
