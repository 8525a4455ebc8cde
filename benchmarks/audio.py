"""python -m benchmarks.audio [--quick]: clips of sound, against a loop over libsndfile.

Files of 60 s of 16 kHz (Opus: 48 kHz) are written by libsndfile: WAV, FLAC, MP3, Ogg Vorbis, Opus.
Clips of 2 s come in an exact shuffle, a whole epoch. The same clips, in the
same order, are read by `soundfile` in two threads, each seeking in files that it keeps open,
or opening the file for each clip, and put into batches; turn by turn. Some clips are compared with
what PyAV decodes from a file's start to its end, of both readers.
Record: benchmarks/results/audio.json.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np

import penstock

from .__main__ import finish
from .contender import ROOT
from .record import Record, Row
from .text import make_row, take_turns

try:
    import soundfile
except ImportError:
    soundfile = None

THREADS, BATCH, SECONDS, CLIP = 2, 32, 60, 2.0
WANTED = 0.9


class Kind(NamedTuple):
    """A kind of files, by what libsndfile is told."""

    name: str
    ending: str
    container: str
    subtype: str
    rate: int = 16_000


KINDS = (
    Kind("WAV", "wav", "WAV", "PCM_16"),
    Kind("FLAC", "flac", "FLAC", "PCM_16"),
    Kind("MP3", "mp3", "MP3", "MPEG_LAYER_III"),
    Kind("Ogg Vorbis", "ogg", "OGG", "VORBIS"),
    Kind("Ogg Opus", "opus", "OGG", "OPUS", 48_000),
)


def write_files(folder: Path, kind: Kind, count: int) -> list[Path]:
    """Write files of tones that rise and fall, and noise."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03}.{kind.ending}" for number in range(count)]
    time_s = np.arange(SECONDS * kind.rate) / kind.rate
    for number, path in enumerate(paths):
        if path.exists():
            continue
        random = np.random.default_rng(number)
        pitch = 90 + 10 * (number % 9) + 20 * np.sin(time_s)
        phase = 2 * np.pi * np.cumsum(pitch) / kind.rate
        sound = sum(np.sin(n * phase) / n for n in range(1, 12)) * (0.5 + 0.4 * np.sin(9 * time_s))
        sound = 0.2 * sound + 0.01 * random.standard_normal(len(time_s))
        part = path.with_suffix(".part")
        soundfile.write(part, sound, kind.rate, kind.subtype, format=kind.container)
        part.rename(path)
    return paths


@contextmanager
def quiet() -> Iterator[None]:
    """Discard what libraries of C print: mpg123 complains where a seek was too short."""
    before, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nothing)


def run_loader(folder: Path, seed: int, numbers: list[int] | None = None) -> float:
    """Seconds of one epoch of a new loader."""
    data = penstock.open(folder, index="memory", clips={"seconds": CLIP})
    began = time.perf_counter()
    with penstock.Loader(data, BATCH, seed=seed, drop_last=False) as loader:
        for batch in loader:
            if numbers is not None:
                numbers += batch.ids.tolist()
    return time.perf_counter() - began


def run_soundfile(clips: Sequence[tuple[Path, int]], frames: int, keeps_open: bool) -> float:
    """Seconds in which two threads of `soundfile` read clips into batches."""
    own = threading.local()

    def read(clip: tuple[Path, int]) -> Any:
        path, start = clip
        if not keeps_open:
            return soundfile.read(path, frames, start, dtype="float32", always_2d=True)[0]
        files = own.__dict__
        if str(path) not in files:
            files[str(path)] = soundfile.SoundFile(path)
        files[str(path)].seek(start)
        return files[str(path)].read(frames, dtype="float32", always_2d=True)

    began = time.perf_counter()
    batch = np.empty((BATCH, frames, 1), np.float32)
    with quiet(), ThreadPoolExecutor(THREADS) as pool:
        for number, sound in enumerate(pool.map(read, clips, chunksize=8)):
            batch[number % BATCH] = sound
        return time.perf_counter() - began


def decode_whole(path: Path) -> Any:
    """Decode a file from its start by PyAV."""
    with av.open(str(path)) as file:
        parts = [frame.to_ndarray() for frame in file.decode(audio=0)]
    whole = np.concatenate(parts, 1)[0]
    full = 1 if whole.dtype.kind == "f" else 2.0 ** (8 * whole.itemsize - 1)
    return (whole / full).astype(np.float32)


def count_differing(
    read: Callable[[int], Any], clips: Sequence[tuple[Path, int]], wholes: dict[Path, Any]
) -> tuple[int, float]:
    """Count clips that are not as in the whole files, by more than rounding; and the largest
    difference."""
    differing, most = 0, 0.0
    for number, (path, start) in enumerate(clips):
        sound = read(number)[:, 0]
        difference = float(np.abs(sound - wholes[path][start:][: len(sound)]).max())
        differing, most = differing + (difference > 1e-5), max(most, difference)
    return differing, most


def measure_kind(record: Record, folder: Path, kind: Kind, files: int, rounds: int) -> None:
    """Rows of one kind of files."""
    files = files * KINDS[0].rate // kind.rate  # as many samples as of the others
    folder = folder / f"{kind.ending}-{files}"
    paths, frames = write_files(folder, kind, files), round(CLIP * kind.rate)
    data = penstock.open(folder, index="memory", clips={"seconds": CLIP})
    began = time.process_time()
    penstock.open(folder, index="memory", clips={"seconds": CLIP})
    cost = (time.process_time() - began) / files * 1e3
    record.rows.append(Row(f"{kind.name}: index", cost, "ms/file", note="of processor time"))
    numbers: list[int] = []
    run_loader(folder, record.seed, numbers)
    origins = data.origins(np.array(numbers))
    places = zip(origins["file"].tolist(), origins["frame"].tolist(), strict=True)
    clips = [(paths[file], start) for file, start in places]
    some = clips[:64]
    wholes = {path: decode_whole(path) for path in {path for path, _ in some}}
    ours = count_differing(lambda row: data[numbers[row]]["sound"], some, wholes)
    assert ours == (0, 0.0), f"{kind.name}: {ours} of {len(some)} clips have other samples"

    def read(row: int) -> Any:
        path, start = some[row]
        return soundfile.read(path, frames, start, dtype="float32", always_2d=True)[0]

    with quiet():
        theirs, most = count_differing(read, some, wholes)
    note = f"soundfile: {theirs} of {len(some)} clips differ from a decode from the start"
    note += f" by up to {most:.1g}" * bool(theirs)
    for how, keeps_open in (("files kept open", True), ("opened for each clip", False)):
        name = f"{kind.name}: clips of {CLIP:g} s / soundfile, {how}"
        pairs = take_turns(
            partial(run_loader, folder, record.seed),
            partial(run_soundfile, clips, frames, keeps_open),
            rounds,
        )
        row = make_row(name, pairs, len(clips), "clips/s", WANTED, record.seed, note)
        record.rows.append(row)
        record.raw[name] = {"seconds": pairs}


def main() -> None:
    """Print the rows, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audio", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few files and pairs")
    parser.add_argument("--folder", type=Path, default=ROOT / "bench-data" / "audio")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    files, rounds = (8, 2) if options.quick else (32, 5)
    rounds = options.rounds or rounds
    shown = {"files": files, "rounds": rounds, "threads": THREADS, "batch": BATCH}
    record = Record("audio" + "-quick" * options.quick, options.seed, shown)
    if soundfile is None:
        print("soundfile is left out, and so is this benchmark: pip install soundfile")
        return
    for kind in KINDS:
        measure_kind(record, options.folder, kind, files, rounds)
        record.write()  # a run that is cut short keeps what it has
    finish(record)


if __name__ == "__main__":
    main()
