"""python -m benchmarks.clip_rivals NAME: a reader of clips, in a process of its own, for
`benchmarks.clips`.

It says {"ready": version} or {"absent": why}. To each line {"clips": [[path, first, frames], ...],
"sums": bool} it answers {"seconds", "cpu", "sums"}: two threads have decoded these clips, one
after the other, into RGB of 8 bits, each by opening its film, as no library here keeps thousands of
films open. Where paths are URLs, a film is read by fsspec: by seeking ("seeks"), or as a whole.
"""

from __future__ import annotations

import io
import json
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

THREADS = 2
Read = Callable[[str, int, int], np.ndarray]
"""Function that reads frames of a film: its path, the first frame, and how many."""


@cache
def _web() -> Any:
    import fsspec

    return fsspec.filesystem("http")


def _open(path: str, seeks: bool) -> Any:
    """The argument for a library: a path; of a URL a file that seeks, or all bytes."""
    if "://" not in path:
        return path
    return _web().open(path, block_size=1 << 18) if seeks else io.BytesIO(_web().cat_file(path))


def make_torchcodec(seeks: bool) -> tuple[Read, str]:
    import torchcodec
    from torchcodec.decoders import VideoDecoder

    def read(path: str, first: int, frames: int) -> np.ndarray:
        made = VideoDecoder(
            _open(path, seeks),
            seek_mode="approximate",
            dimension_order="NHWC",
            num_ffmpeg_threads=1,
        )
        return made.get_frames_in_range(first, first + frames).data.numpy()

    return read, torchcodec.__version__


def make_pyav(seeks: bool) -> tuple[Read, str]:
    import av

    def read(path: str, first: int, frames: int) -> np.ndarray:
        taken: list[np.ndarray] = []
        with av.open(_open(path, seeks)) as film:
            stream = film.streams.video[0]
            stream.thread_type = "NONE"
            stream.codec_context.thread_count = 1
            rate, base = stream.average_rate, stream.time_base
            step = 1 / (rate * base)
            start = stream.start_time or 0
            film.seek(int(start + first * step), stream=stream)
            for frame in film.decode(stream):
                if round((frame.pts - start) / step) >= first:
                    taken.append(frame.to_ndarray(format="rgb24"))
                    if len(taken) == frames:
                        break
        return np.stack(taken)

    return read, av.__version__


def make_decord(seeks: bool) -> tuple[Read, str]:
    import decord

    def read(path: str, first: int, frames: int) -> np.ndarray:
        made = decord.VideoReader(_open(path, seeks), num_threads=1)
        return made.get_batch(range(first, first + frames)).asnumpy()

    return read, decord.__version__


def make_opencv(seeks: bool) -> tuple[Read, str]:
    import os

    os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = "threads;1"
    import cv2

    cv2.setNumThreads(1)

    def read(path: str, first: int, frames: int) -> np.ndarray:
        film = cv2.VideoCapture(path, cv2.CAP_FFMPEG)  # URLs by its own FFmpeg
        film.set(cv2.CAP_PROP_POS_FRAMES, first)
        taken = [cv2.cvtColor(film.read()[1], cv2.COLOR_BGR2RGB) for _ in range(frames)]
        film.release()
        return np.stack(taken)

    return read, cv2.__version__


KINDS: dict[str, Callable[[bool], tuple[Read, str]]] = {
    "torchcodec": make_torchcodec,
    "PyAV": make_pyav,
    "decord": make_decord,
    "OpenCV": make_opencv,
}


def main() -> None:
    name, _, how = sys.argv[1].partition(":")
    try:
        read, version = KINDS[name](how == "seeks")
    except Exception as error:  # a library without another one is no rival
        print(json.dumps({"absent": f"{type(error).__name__}: {str(error).strip()[:200]}"}))
        return
    print(json.dumps({"ready": version}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any] = {}

        def work(clip: Any, sums: bool = asked["sums"]) -> int:
            frames = read(*clip)
            return zlib.crc32(np.ascontiguousarray(frames)) if sums else 0

        began, cpu_began = time.perf_counter(), time.process_time()
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                answer["sums"] = list(pool.map(work, asked["clips"]))
        except Exception as error:
            answer["failed"] = f"{type(error).__name__}: {str(error).strip()[:200]}"
        answer["seconds"] = time.perf_counter() - began
        answer["cpu"] = time.process_time() - cpu_began
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
