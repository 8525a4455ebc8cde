"""LeRobot data sets written by PyAV and pyarrow, for tests; and what their samples must be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.convert.films import keep_policy
from tests.index.formats.films import read_film

av.logging.set_level(None)

TEXTS = ("pick the cube", "fold the towel", "größer")
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "libx264": {"g": "6", "bf": "2"},
    "libsvtav1": {"g": "2", "preset": "10", "crf": "35"},
}


class Robots(NamedTuple):
    """A data set as it was written, a row after the other.

    frames:  of each camera. `first` is the first row of each episode, and the count.
    """

    path: Path
    fps: float
    first: np.ndarray[Any, np.dtype[np.int64]]
    columns: Mapping[str, np.ndarray[Any, Any]]
    frames: Mapping[str, np.ndarray[Any, np.dtype[np.uint8]]]

    def find_rows(self, row: int, seconds: Sequence[float]) -> tuple[list[int], list[bool]]:
        """Find the rows at some seconds from a row, one by one, and which are outside."""
        episode = int(self.columns["episode_index"][row])
        begin, end = self.first[episode : episode + 2].tolist()
        around = [row + round(one * self.fps) for one in seconds]
        return [min(max(one, begin), end - 1) for one in around], [
            not begin <= one < end for one in around
        ]


def write_robots(
    path: Path,
    lengths: Sequence[int],
    version: str = "v3.0",
    cameras: Sequence[str] = ("observation.images.top", "observation.images.wrist"),
    fps: float = 10,
    codec: str = "libx264",
    files: Sequence[int] = (),
    size: tuple[int, int] = (32, 48),
    seed: int = 0,
    spare: int = 0,
) -> Robots:
    """Write a data set of episodes of these lengths.

    files:  number of the file of each episode, in v3; all in one by default.
    spare:  frames behind each episode's that no row has.
    """
    random = np.random.default_rng(seed)
    is_joint = version >= "v3"
    count = len(lengths)
    of = np.array(files or [0] * count) if is_joint else np.arange(count)
    first = np.append(0, np.cumsum(lengths))
    rows = int(first[-1])
    episode = np.repeat(np.arange(count), lengths)
    frame = np.arange(rows) - first[episode]
    columns: dict[str, np.ndarray[Any, Any]] = {
        "observation.state": random.normal(size=(rows, 5)).astype(np.float32),
        "action": random.normal(size=(rows, 3)).astype(np.float32),
        "grid": random.integers(0, 9, (rows, 2, 3)),
        "next.done": frame == np.repeat(lengths, lengths) - 1,
        "timestamp": (frame / fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": episode,
        "index": np.arange(rows),
        "task_index": episode % len(TEXTS),
    }
    features: dict[str, Any] = {
        name: {"dtype": str(one.dtype), "shape": list(one.shape[1:]) or [1], "names": None}
        for name, one in columns.items()
    }
    for camera in cameras:
        features[camera] = {"dtype": "video", "shape": [*size, 3], "names": None, "info": {}}
    part = "chunk-{chunk_index:03d}/file-{file_index:03d}"
    old = "chunk-{episode_chunk:03d}"
    info = {
        "codebase_version": version,
        "robot_type": "arm",
        "total_episodes": count,
        "total_frames": rows,
        "total_tasks": len(TEXTS),
        "chunks_size": 1000 if is_joint else 2,
        "fps": fps,
        "splits": {"train": f"0:{count}"},
        "data_path": f"data/{part}.parquet"
        if is_joint
        else f"data/{old}/episode_{{episode_index:06d}}.parquet",
        "video_path": f"videos/{{video_key}}/{part}.mp4"
        if is_joint
        else f"videos/{old}/{{video_key}}/episode_{{episode_index:06d}}.mp4",
        "features": features,
    }
    (path / "meta").mkdir(parents=True)
    (path / "meta/info.json").write_text(json.dumps(info, indent=1))

    def name(kind: str, number: int, **more: Any) -> Path:
        """Name the file of an episode (v2), or of this number (v3)."""
        values = {"chunk_index": 0, "file_index": number}
        if not is_joint:
            values = {"episode_chunk": number // 2, "episode_index": number}
        file = path / info[f"{kind}_path"].format(**values, **more)  # type: ignore[index]
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    for number in np.unique(of).tolist():
        chosen = np.isin(episode, np.flatnonzero(of == number))
        arrays = {
            key: pa.array(one[chosen].tolist(), _type_of(one)) for key, one in columns.items()
        }
        pq.write_table(pa.table(arrays), name("data", number), row_group_size=7)
    frames, starts = {}, {}
    for camera in cameras:
        kept, start = [], np.zeros(count)
        for number in np.unique(of).tolist():
            film = name("video", number, video_key=camera)
            chosen = np.flatnonzero(of == number).tolist()
            written = [lengths[one] + spare for one in chosen]
            _write_film(film, sum(written), fps, codec, size, random)
            seen = read_film(film).frames
            begins = np.append(0, np.cumsum(written))[:-1].tolist()
            for one, begin in zip(chosen, begins, strict=True):
                start[one] = begin / fps
                kept.append(seen[begin : begin + lengths[one]])
        frames[camera], starts[camera] = np.concatenate(kept), start
    if is_joint:
        table: dict[str, Any] = {
            "episode_index": np.arange(count),
            "tasks": [[TEXTS[one % len(TEXTS)]] for one in range(count)],
            "length": list(lengths),
            "dataset_from_index": first[:-1],
            "dataset_to_index": first[1:],
            "data/chunk_index": np.zeros(count, np.int64),
            "data/file_index": of,
        }
        for camera in cameras:
            table[f"videos/{camera}/chunk_index"] = np.zeros(count, np.int64)
            table[f"videos/{camera}/file_index"] = of
            table[f"videos/{camera}/from_timestamp"] = starts[camera]
            table[f"videos/{camera}/to_timestamp"] = starts[camera] + np.array(lengths) / fps
        (path / "meta/episodes/chunk-000").mkdir(parents=True)
        pq.write_table(pa.table(table), path / "meta/episodes/chunk-000/file-000.parquet")
        tasks = pa.table({"task_index": list(range(len(TEXTS))), "__index_level_0__": TEXTS})
        pq.write_table(tasks, path / "meta/tasks.parquet")
    else:
        lines = [
            {"episode_index": one, "tasks": [TEXTS[one % len(TEXTS)]], "length": length}
            for one, length in enumerate(lengths)
        ]
        (path / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
        lines = [{"task_index": one, "task": text} for one, text in enumerate(TEXTS)]
        (path / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return Robots(path, fps, first, columns, frames)


def _type_of(column: np.ndarray[Any, Any]) -> pa.DataType:
    made = pa.from_numpy_dtype(column.dtype)
    for _ in column.shape[1:]:
        made = pa.list_(made)
    return made


def _write_film(
    path: Path,
    count: int,
    fps: float,
    codec: str,
    size: tuple[int, int],
    random: np.random.Generator,
) -> None:
    """Write a film of noise: no two frames are alike."""
    with keep_policy(), av.open(str(path), "w") as out:
        rate = Fraction(fps).limit_denominator(1 << 16)
        stream = out.add_stream(codec, rate=rate, options=dict(OPTIONS[codec]))
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        for _ in range(count):
            picture = random.integers(0, 255, (size[0] // 8, size[1] // 8, 3), np.uint8)
            picture = picture.repeat(8, 0).repeat(8, 1)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))
