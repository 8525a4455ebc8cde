"""Films: the tables of their headers, and packets of pictures and sound that are decoded."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import av
import numpy as np

from fuzz.memory import examine, is_chosen

av.logging.set_level(None)
_OPEN = "keyint=6:min-keyint=1:bframes=2:open-gop=1:scenecut=0:b-adapt=0"


def seeds() -> list[bytes]:
    """Write films with the header at either end, and in fragments, with sound and without."""
    fragments = {"movflags": "frag_keyframe+empty_moov"}
    kinds = [
        ("mp4", {}, False),
        ("mp4", {"movflags": "faststart"}, True),
        ("mov", {}, False),
        ("mp4", fragments, True),
        ("mp4", {"movflags": "frag_every_frame+default_base_moof"}, False),
    ]
    return [_write_film(format, options, has_sound) for format, options, has_sound in kinds]


def _write_film(format: str, options: dict[str, str], has_sound: bool) -> bytes:
    path = Path(tempfile.mkdtemp(prefix="penstock-fuzz-")) / "film"
    with av.open(str(path), "w", format=format, options=options) as film:
        stream = film.add_stream("libx264", rate=30, options={"x264-params": _OPEN})
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        sound = film.add_stream("aac", rate=48000) if has_sound else None
        for number in range(14):
            picture = np.full((32, 32, 3), number * 16, np.uint8)
            film.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            if sound is not None:
                silence = np.zeros((2, 1024), np.float32)
                tone = av.AudioFrame.from_ndarray(silence, format="fltp", layout="stereo")
                tone.sample_rate = 48000
                film.mux(sound.encode(tone))
        for coded in (stream, sound):
            if coded is not None:
                film.mux(coded.encode(None))
    data = path.read_bytes()
    shutil.rmtree(path.parent)
    return data


def one(data: bytes) -> None:
    """Index a film, whole or in clips; some are decoded."""
    clips = {"frames": 3, "every": 2, "stride": 2, "short": "pad"}
    if is_chosen(data[::-1]):
        clips = {"seconds": 0.2, "fps": 10, "short": "pad"}
        if is_chosen(data[1::2]):
            clips["sound"] = True
    examine("mp4", {"x.mp4": data}, {"clips": clips} if is_chosen(data) else {}, name="x.mp4")
