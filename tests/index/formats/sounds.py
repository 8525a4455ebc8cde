"""Sound written and read by PyAV, for tests: what it decodes from start to end is the oracle."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import numpy.typing as npt
import pytest

av.logging.set_level(None)

KINDS: Mapping[str, Mapping[str, Any]] = {
    "wav": {"suffix": ".wav"},
    "wav of bytes": {"suffix": ".wav", "codec": "pcm_u8"},
    "wav of 24": {"suffix": ".wav", "codec": "pcm_s24le", "channels": 2},
    "wav of 32": {"suffix": ".wav", "codec": "pcm_s32le"},
    "wav of floats": {"suffix": ".wav", "codec": "pcm_f32le", "channels": 2},
    "wav of doubles": {"suffix": ".wav", "codec": "pcm_f64le"},
    "wav of A-law": {"suffix": ".wav", "codec": "pcm_alaw", "rate": 8000},
    "wav of u-law": {"suffix": ".wav", "codec": "pcm_mulaw", "channels": 2},
    "wav of three": {"suffix": ".wav", "channels": 3},
    "rf64": {"suffix": ".wav", "muxer": {"rf64": "always"}},
    "flac": {"suffix": ".flac", "codec": "flac"},
    "flac of 24": {"suffix": ".flac", "codec": "flac", "format": "s32", "channels": 2},
    "mp3": {"suffix": ".mp3", "codec": "libmp3lame", "bits": 64_000},
    "mp3 of few bits": {"suffix": ".mp3", "codec": "libmp3lame", "bits": 8_000, "rate": 24_000},
    "mp3 of many bits": {"suffix": ".mp3", "codec": "libmp3lame", "bits": 320_000}
    | {
        "rate": 48_000,
        "channels": 2,
    },
    "mp3 of varying": {"suffix": ".mp3", "codec": "libmp3lame", "options": {"q": "5"}}
    | {
        "rate": 44_100,
        "channels": 2,
    },
    "mp3 without notes": {"suffix": ".mp3", "codec": "libmp3lame", "muxer": {"write_xing": "0"}},
    "opus": {"suffix": ".opus", "codec": "libopus", "rate": 48_000},
    "opus of speech": {"suffix": ".opus", "codec": "libopus", "rate": 48_000, "bits": 10_000}
    | {
        "options": {"application": "voip"},
        "channels": 2,
    },
    "opus of short packets": {"suffix": ".ogg", "codec": "libopus", "rate": 48_000}
    | {
        "options": {"frame_duration": "2.5"},
        "muxer": {"page_duration": "100000"},
    },
    "vorbis": {"suffix": ".ogg", "codec": "libsndfile's", "rate": 44_100, "channels": 2},
    **{
        name: {"suffix": ".m4a", "codec": "aac", "rate": 44_100, "container": "mp4"}
        # without noise, which a decoder makes up
        | {"options": {"aac_pns": "0"}, **more}
        for name, more in {
            "m4a": {},
            "m4a of two": {"channels": 2, "rate": 48_000, "muxer": {"movflags": "faststart"}},
            "m4a of fragments": {"muxer": {"movflags": "empty_moov", "frag_duration": "700000"}},
            "m4a with an edit list": {"edit": (5000, 2112)},
            "m4a of a film": {"pictures": 7.0, "edit": (6000, 1024)},
            "mov of a film": {"pictures": 7.0, "container": "mov", "channels": 2},
            "fragments of a film": {"pictures": 7.0}
            | {"muxer": {"movflags": "frag_keyframe+empty_moov"}},
            "alac": {"codec": "alac", "options": {}},
            "alac of 24": {"codec": "alac", "options": {}, "format": "s32p", "container": "mov"},
            "opus in m4a": {"codec": "libopus", "options": {}, "rate": 48_000},
            "mp3 in m4a": {"codec": "libmp3lame", "options": {}, "channels": 2},
        }.items()
    },
}
"""Kinds of files, by what `write_sound` is told."""


class Sound(NamedTuple):
    """Sound as PyAV decodes it from start to end, (samples, channels): as it is, and as floats."""

    path: Path
    rate: int
    stored: npt.NDArray[Any]
    floats: npt.NDArray[np.float32]


def make_sound(seconds: float, rate: int, channels: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Make tones that rise and fall, and noise."""
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    tones = sum(np.sin(6.28 * 110 * n * time * (1 + 0.1 * np.sin(time))) / n for n in range(1, 9))
    sound = 0.2 * tones * (0.6 + 0.4 * np.sin(8 * time)) + 0.02 * random.standard_normal(len(time))
    return np.stack([sound * (1 - 0.3 * n) for n in range(channels)], 1).astype(np.float32)


def write_sound(
    path: Path,
    seconds: float,
    codec: str = "pcm_s16le",
    suffix: str = ".wav",
    rate: int = 16_000,
    channels: int = 1,
    bits: int = 0,
    format: str = "",
    options: Mapping[str, str] | None = None,
    muxer: Mapping[str, str] | None = None,
    container: str | None = None,
    pictures: float = 0.0,
    edit: tuple[int, int] | None = None,
    seed: int = 0,
) -> Sound:
    """Write sound, and read it.

    pictures:  seconds of them beside the sound.
    edit:  of an MP4's list: thousandths of a second, and the first sample.
    """
    path = path.with_suffix(suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    if codec == "libsndfile's":  # PyAV has no encoder of Vorbis that says right times
        soundfile = pytest.importorskip("soundfile")
        soundfile.write(path, make_sound(seconds, rate, channels, seed), rate)
        return read_sound(path)
    layout = {1: "mono", 2: "stereo", 3: "3.0"}[channels]
    with av.open(str(path), "w", format=container, options=dict(muxer or {})) as out:
        if pictures:
            film = out.add_stream("mpeg4", rate=25, options={"g": "5"})
            film.width, film.height, film.pix_fmt = 32, 32, "yuv420p"
        stream = out.add_stream(codec, rate=rate, options=dict(options or {}), layout=layout)
        if bits:
            stream.bit_rate = bits
        if format:
            stream.format = format
        own = np.ascontiguousarray(make_sound(seconds, rate, channels, seed).T)
        frame = av.AudioFrame.from_ndarray(own, format="fltp", layout=layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(stream.format, layout, rate)
        fifo = av.AudioFifo()
        for number in range(round(25 * pictures)):
            picture = np.full((48, 32), number, np.uint8)
            out.mux(film.encode(av.VideoFrame.from_ndarray(picture, format="yuv420p")))
        if pictures:
            out.mux(film.encode(None))
        for part in resampler.resample(frame):
            fifo.write(part)
        size = stream.codec_context.frame_size or 4096
        while fifo.samples:
            out.mux(stream.encode(fifo.read(size, partial=True)))
        out.mux(stream.encode(None))
    if edit:
        data = bytearray(path.read_bytes())
        struct.pack_into(">Ii", data, data.rindex(b"elst") + 12, *edit)
        path.write_bytes(data)
    return read_sound(path)


def read_sound(path: Path) -> Sound:
    """Decode sound from start to end."""
    parts = []
    with av.open(str(path)) as file:
        stream = file.streams.audio[0]
        for frame in file.decode(stream):
            part = frame.to_ndarray()
            channels = frame.layout.nb_channels
            parts.append(part.T if frame.format.is_planar else part.reshape(-1, channels))
    stored = np.concatenate(parts)
    floats = stored.astype(np.float64)
    if stored.dtype.kind in "iu":
        full = 2.0 ** (8 * stored.itemsize - 1)
        floats = (floats - full * (stored.dtype.kind == "u")) / full
    return Sound(path, stream.rate, stored, floats.astype(np.float32))
