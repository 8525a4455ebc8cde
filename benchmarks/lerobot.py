"""python -m benchmarks.lerobot [--quick]: a LeRobot data set, against LeRobot's own dataset.

Three cameras of 256 x 256 in AV1 with a keyframe every 2 frames, as LeRobot writes: episodes of 250
frames at 30 a second, four to a film. Samples in an exact shuffle have three frames of each camera
(`delta_timestamps` of -0.2, -0.1 and 0 s), two of the state and the next 50 actions. LeRobot's
dataset with torchcodec, under a DataLoader with the number of workers that is fastest here, reads
as many samples in a new process, by the clock, turn by turn, each from its first batch on.
Values of some samples are compared. Record: benchmarks/results/lerobot.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock

from .__main__ import finish
from .clips import Kind, write_films
from .contender import ROOT
from .lerobot_rival import BATCH, sum_values
from .record import Record, Row
from .text import make_row, take_turns

CAMERAS = [f"observation.images.{name}" for name in ("top", "left", "right")]
FPS, LENGTH, TO_A_FILM = 30, 250, 4
WORKERS = (2, 4)
"""Without workers it took 1.5 to 2.6 times as long."""
LIBRARIES = ROOT / "build" / "lerobot"
"""Where `make bench-clips` puts LeRobot."""
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"


def write_robots(folder: Path, films: int) -> Path:
    """Write a data set (v3.0) of so many films a camera."""
    path = folder / f"robots-{films}"
    if path.exists():
        return path
    frames = LENGTH * TO_A_FILM
    kind = Kind("", 256, 2, "libsvtav1", len(CAMERAS) * films, frames)
    made = sorted(write_films(folder, kind).iterdir())
    part = path.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    count, rows, random = films * TO_A_FILM, films * frames, np.random.default_rng(0)
    of, first = np.arange(count) // TO_A_FILM, np.arange(count + 1) * LENGTH
    start = np.arange(count) % TO_A_FILM * LENGTH / FPS
    columns: dict[str, Any] = {
        "observation.state": random.normal(size=(rows, 14)).astype("f4"),
        "action": random.normal(size=(rows, 14)).astype("f4"),
        "timestamp": (np.arange(rows) % LENGTH / FPS).astype("f4"),
        "frame_index": np.arange(rows) % LENGTH,
        "episode_index": np.arange(rows) // LENGTH,
        "index": np.arange(rows),
        "task_index": np.zeros(rows, np.int64),
    }
    features: dict[str, Any] = {
        name: {"dtype": str(one.dtype), "shape": one.shape[1:] or (1,), "names": None}
        for name, one in columns.items()
    }
    episodes = {
        "episode_index": np.arange(count),
        "tasks": [["pick it"]] * count,
        "length": np.full(count, LENGTH),
        "dataset_from_index": first[:-1],
        "dataset_to_index": first[1:],
        "data/chunk_index": np.zeros(count, np.int64),
        "data/file_index": of,
    }
    for number, camera in enumerate(CAMERAS):
        features[camera] = {"dtype": "video", "shape": (256, 256, 3), "names": None, "info": {}}
        where = f"videos/{camera}"
        (part / where / "chunk-000").mkdir(parents=True)
        for film in range(films):
            os.link(made[number * films + film], part / where / f"chunk-000/file-{film:03}.mp4")
        episodes |= {f"{where}/chunk_index": np.zeros(count, np.int64), f"{where}/file_index": of}
        episodes |= {f"{where}/from_timestamp": start}
        episodes |= {f"{where}/to_timestamp": start + LENGTH / FPS}
    info = {
        "codebase_version": "v3.0",
        "total_episodes": count,
        "total_frames": rows,
        "total_tasks": 1,
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{count}"},
        "data_path": f"data/{FILE}.parquet",
        "video_path": f"videos/{{video_key}}/{FILE}.mp4",
        "features": features,
    }
    for name in ("data", "meta/episodes"):
        (part / name / "chunk-000").mkdir(parents=True)
    (part / "meta/info.json").write_text(json.dumps(info))
    (part / "meta/stats.json").write_text("{}")
    pq.write_table(pa.table(episodes), part / "meta/episodes/chunk-000/file-000.parquet")
    text: dict[str, Any] = {
        "name": "task",
        "field_name": "task",
        "pandas_type": "unicode",
        "numpy_type": "object",
    }
    text["metadata"] = None  # of the index of a data frame, as LeRobot reads it
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": [text]}
    tasks = pa.table({"task_index": [0], "task": ["pick it"]})
    tasks = tasks.replace_schema_metadata({"pandas": json.dumps(pandas)})
    pq.write_table(tasks, part / "meta/tasks.parquet")
    for film in range(films):
        cut = slice(film * frames, film * frames + frames)
        table = {
            name: one[cut] if one.ndim == 1 else list(one[cut]) for name, one in columns.items()
        }
        pq.write_table(pa.table(table), part / f"data/chunk-000/file-{film:03}.parquet")
    part.rename(path)
    os.sync()
    return path


def run_loader(data: Any, seed: int, samples: int) -> float:
    """Seconds of a new loader from its first batch on."""
    with penstock.Loader(data, BATCH, seed=seed, shuffle="exact") as loader:
        batches = iter(loader)
        next(batches)
        began = time.perf_counter()
        for _ in range(samples // BATCH):
            next(batches)
        return time.perf_counter() - began


class LeRobot:
    """LeRobot's dataset over a folder, in a process (`lerobot_rival`)."""

    def __init__(self, path: Path) -> None:
        paths = os.pathsep.join([str(LIBRARIES), str(ROOT), *filter(None, sys.path)])
        caches = {"HF_HOME": str(path.parent / "hub")}
        self._path = path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.lerobot_rival"],
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | caches,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **asked: Any) -> dict[str, Any]:
        """The answer of a new process, or {"absent"}: why there is none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it says why
            line = json.dumps({"path": str(self._path), **asked})
            print(line, file=self._process.stdin, flush=True)
        lines = (line for line in self._process.stdout if line.startswith("{"))
        said: dict[str, Any] = json.loads(next(lines, '{"absent": "it ended, as said above"}'))
        return said

    def close(self) -> None:
        """End it."""
        with suppress(BrokenPipeError):
            self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lerobot", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little data, few pairs")
    parser.add_argument("--folder", default=str(ROOT / "bench-data" / "clips"))
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    films, samples = (1, 256) if options.quick else (8, 1280)
    rounds = options.rounds or (2 if options.quick else 5)
    name = "lerobot" + "-quick" * options.quick
    record = Record(name, options.seed, vars(options) | {"batch": BATCH, "samples": samples})
    path = write_robots(folder, films)
    penstock.open(path, index="memory")
    began = time.perf_counter()
    penstock.open(path, index="memory")
    note = f"{films * TO_A_FILM * LENGTH:,} rows, {films * len(CAMERAS)} films"
    record.rows.append(Row("index", time.perf_counter() - began, "s", note=note))
    lerobot = LeRobot(path)
    actions = {"action": [row / FPS for row in range(50)], "observation.state": [-0.1, 0.0]}
    for what, near, target in (
        ("3 cameras, 3 frames each", [-0.2, -0.1, 0.0], 3.0),
        ("3 cameras, the present frame", [0.0], None),
    ):
        deltas = dict.fromkeys(CAMERAS, near) | actions
        data = penstock.open(path, delta_timestamps=deltas, layout="chw", index="memory")
        row = f"{what}, exact shuffle / LeRobot's own dataset, 2 cores"
        ids = np.random.default_rng(options.seed).integers(0, len(data), 20).tolist()
        said = lerobot.ask(deltas=deltas, ids=ids)
        if "absent" in said:
            record.rows.append(Row(row, None, "samples/s", target=target, note=said["absent"]))
            continue
        assert said["sums"] == [sum_values(data[one], deltas) for one in ids], "other values"
        tried = {
            workers: lerobot.ask(deltas=deltas, workers=workers, samples=samples // 8)
            for workers in WORKERS
        }
        best = min(tried, key=lambda one: tried[one]["seconds"] / tried[one]["samples"])

        def theirs(deltas: Any = deltas, best: int = best) -> float:
            said = lerobot.ask(deltas=deltas, workers=best, samples=samples // 4)
            return float(said["seconds"]) * samples / said["samples"]

        ours = partial(run_loader, data, options.seed, samples)
        pairs = take_turns(ours, theirs, rounds)
        note = f"torchcodec, {best} workers; 20 samples compared: equal"
        record.rows.append(make_row(row, pairs, samples, "samples/s", target, options.seed, note))
        record.raw[row] = {"seconds": pairs, "workers": tried}
    lerobot.close()
    finish(record)


if __name__ == "__main__":
    main()
