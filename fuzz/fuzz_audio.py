"""Sound: headers of WAV, frames of FLAC, pages of Ogg, tables of MP4, and packets to decode."""

from __future__ import annotations

import io
import struct
from typing import Any

import av
import numpy as np

from fuzz.memory import examine, is_chosen

av.logging.set_level(None)


def seeds() -> list[bytes]:
    """Write short files of each kind."""
    rf64 = struct.pack("<4sI4s4sI", b"RF64", (1 << 32) - 1, b"WAVE", b"fmt ", 16)
    rf64 += struct.pack("<HHIIHH4sI", 7, 1, 8000, 8000, 1, 8, b"data", 400) + bytes(400)
    return [
        rf64,
        _write("wav", "pcm_s16le", 8_000, "mono"),
        _write("wav", "pcm_s24le", 8_000, "stereo"),
        _write("flac", "flac", 16_000, "stereo"),
        b"ID3\4\0\0\0\0\0\4abcd" + _write("mp3", "libmp3lame", 16_000, "mono"),
        _write("mp3", "libmp3lame", 32_000, "stereo"),
        _write("ogg", "libopus", 48_000, "mono", {"page_duration": "20000"}),
        _write("mp4", "aac", 44_100, "stereo"),
        _write("mp4", "alac", 16_000, "mono"),
        _write("mov", "libmp3lame", 16_000, "mono"),
        _write("mp4", "libopus", 48_000, "stereo", {"movflags": "frag_every_frame+empty_moov"}),
        _write("ogg", "vorbis", 44_100, "stereo", {"page_duration": "20000"}),
    ]


def _write(
    format: str, codec: str, rate: int, layout: str, muxer: dict[str, str] | None = None
) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=format, options=muxer or {}) as out:
        stream: Any = out.add_stream(codec, rate=rate, layout=layout, options={"strict": "-2"})
        noise = np.random.default_rng(rate).standard_normal((stream.channels, 1500)) / 300
        frame = av.AudioFrame.from_ndarray(noise.astype(np.float32), "fltp", layout)
        frame.sample_rate = rate
        fifo = av.AudioFifo()
        for part in av.AudioResampler(stream.format, layout, rate).resample(frame):
            fifo.write(part)
        size = stream.codec_context.frame_size or 1000
        while fifo.samples:
            out.mux(stream.encode(fifo.read(size, partial=True)))
        out.mux(stream.encode(None))
    return file.getvalue()


def one(data: bytes) -> None:
    """Index a file, whole or in clips; some are decoded."""
    clips = {"frames": 700, "stride": 300, "short": "pad"}
    if is_chosen(data[::-1]):
        clips = {"seconds": 0.05}
    examine("audio", {"x": data}, {"clips": clips} if is_chosen(data) else {}, name="x")
