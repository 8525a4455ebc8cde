"""python -m benchmarks.clips [--quick]: random clips of films, against libraries that decode them.

Films are made by PyAV: 256 x 256 and 1080p in H.264, a keyframe every 8, 30 and 250 frames, and AV1
with one every 2, as LeRobot writes. Clips of 16 frames come in an exact shuffle, a whole epoch. The
same clips, in the same order, are decoded by two threads of torchcodec (approximate mode), PyAV,
decord and OpenCV, each in a process of its own (`clip_rivals`), by the clock, turn by turn; and by
a bare loop in C over packets in memory, with the libraries that PyAV has (`floors/clips_floor.c`);
there clips are denser. A loader is measured over its epochs, as a training has it, from the second
on; another row is the time to a new loader's first batch. "Nothing kept" decodes every
clip in each epoch. All frames of a loader's first epoch are compared with those that PyAV decodes
from start to end, and each rival's first clips with the loader's.
Then from an object store 20 ms away and from slow storage, where rivals seek or read whole films,
of ten seconds and of three minutes; what a bare loop over packets in memory does beside the same
rival is the most that anybody could reach here, where two cores decode. Bytes read as emulated
storage counts them; the index of 10,000 films; memory of 1080p.
Record: benchmarks/results/clips.json.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import av
import numpy as np

import penstock
from penstock.convert.films import keep_policy
from penstock.index.layout import Clips

from . import emulation
from .__main__ import finish
from .contender import ROOT
from .objects import serving
from .record import Record, Row
from .scale.costs import read_status
from .text import make_row, take_turns

THREADS = 2
FRAMES = 16
RIVALS = ("torchcodec", "PyAV", "decord", "OpenCV")
LIBRARIES = ROOT / "build" / "clips"
"""Where `make bench-clips` puts the rivals that no other benchmark has."""
NOTHING = penstock.Budget(decoded_bytes=0)
LARGE_BATCHES = NOTHING.replace(readahead_bytes=1 << 30)
"""For batches of 200 MB, of which the default has room for one, decoded by one thread."""
STORAGE = {"read_ns": 5_000_000, "meta_ns": 5_000_000, "bytes_per_s": 200e6}


class Kind(NamedTuple):
    """A kind of films: what is encoded, and how many of them and frames of each there are.

    stride:  of the clips beside rivals.
    dense:   of the clips beside the bare loop: for epochs of a second or so. 11 has no divisor in
             common with distances of keyframes, so that clips begin anywhere between them.
    rivals:  those that are tried.
    """

    name: str
    size: int
    keys: int
    codec: str = "libx264"
    films: int = 12
    frames: int = 300
    stride: int = FRAMES
    dense: int = FRAMES
    rivals: tuple[str, ...] = RIVALS

    @property
    def budget(self) -> penstock.Budget:
        """Nothing is kept, and each thread has room for a batch."""
        return NOTHING if self.size < 1080 else LARGE_BATCHES

    @property
    def folder(self) -> str:
        return f"{self.size}-{self.codec}-{self.keys}-{self.films}x{self.frames}"


# torchcodec won with all kinds in seven records. Beside it decord and OpenCV had 0.2 to 0.9 of its
# rate: one kind shows them.
FEW = RIVALS[:2]
SMALL = [
    Kind(f"256 x 256, keyframes every {keys}", 256, keys, stride=stride, dense=dense, rivals=rivals)
    for keys, stride, dense, rivals in (
        (8, 16, 11, FEW),
        (30, 16, 11, RIVALS),
        (250, 24, 16, FEW),
    )
]
LARGE = [
    Kind(f"1080p, keyframes every {keys}", 1080, keys, films=1, stride=stride, dense=24, rivals=FEW)
    for keys, stride in ((30, 24), (250, 48))
]
LONG = Kind(
    *("256 x 256, keyframes every 30, of 3 minutes", 256, 30),
    films=4,
    frames=5400,
    stride=160,
    rivals=FEW,
)
AV1 = Kind(
    *("256 x 256, AV1, keyframes every 2", 256, 2, "libsvtav1"), films=8, dense=11, rivals=FEW
)


# -- films -----------------------------------------------------------------------------------------


def write_films(folder: Path, kind: Kind) -> Path:
    """Scenes that pan, with something that moves in front and the grain of a camera."""
    where = folder / kind.folder
    if where.exists():
        return where
    part = where.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    height, width = kind.size, kind.size if kind.size < 1080 else 1920
    for number in range(kind.films):
        random = np.random.default_rng(number)
        coarse = random.integers(0, 255, (height // 16 + 20, width // 16 + 20, 3), np.uint8)
        scene = av.VideoFrame.from_ndarray(coarse, format="rgb24")
        scene = scene.reformat(2 * width, 2 * height, interpolation="BICUBIC").to_ndarray()
        grain = random.integers(0, 12, (2 * height, 2 * width, 1), np.uint8)
        options = {"g": str(kind.keys), "keyint_min": str(kind.keys), "sc_threshold": "0"}
        if kind.codec == "libsvtav1":
            options = {"g": "2", "crf": "30", "preset": "8"}
        elif kind.size >= 1080:
            options["preset"] = "veryfast"
        muxer = {"movflags": "faststart"}
        with keep_policy(), av.open(str(part / f"{number:03}.mp4"), "w", options=muxer) as out:
            stream = out.add_stream(kind.codec, rate=30, options=options)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for at in range(kind.frames):
                x, y = at * 2 % width, at % height
                frame = np.minimum(scene[y : y + height, x : x + width], 240)
                frame += grain[at * 37 % height :][:height, at * 61 % width :][:, :width]
                box = height // 5
                left, top = at * 5 % (width - box), at * 3 % (height - box)
                frame[top : top + box, left : left + box] = 255 - frame[:box, :box]
                out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            out.mux(stream.encode(None))
    part.rename(where)
    os.sync()
    return where


def open_clips(where: Path | str, films: int = 0, stride: int = FRAMES) -> Any:
    """Open clips of some films of a folder; 0: of all."""
    what: Any = where
    if films:
        what = [f"{where}/{number:03}.mp4" for number in range(films)]
    return penstock.open(what, index="memory", clips={"frames": FRAMES, "stride": stride})


def list_clips(data: Any, numbers: Sequence[int], base: str) -> list[list[Any]]:
    """The clips for a rival: path or URL, first frame, frames."""
    origins = data.origins(np.array(numbers, np.int64))
    names = [Path(data.index.files.path(int(film))).name for film in origins["film"]]
    pairs = zip(names, origins["frame"].tolist(), strict=True)
    return [[f"{base}/{name}", first, FRAMES] for name, first in pairs]


# -- who reads -------------------------------------------------------------------------------------


Taken = tuple[float, float]
"""Seconds by the clock, and of processors."""


class Kept(NamedTuple):
    """A loader that keeps no frames, and whose first epoch is over.

    run:      times one more epoch, of the same clips in the same order.
    numbers:  of these clips.
    sums:     of their frames in the first epoch, if asked for.
    """

    run: Callable[[], Taken]
    numbers: list[int]
    sums: list[int]


@contextmanager
def keep_loader(
    data: Any, seed: int, batch: int = 16, budget: penstock.Budget = NOTHING, sums: bool = False
) -> Iterator[Kept]:
    numbers: list[int] = []
    found: list[int] = []
    with penstock.Loader(data, batch, seed=seed, budget=budget) as loader:

        def run() -> Taken:
            loader.set_epoch(0)
            began = time.perf_counter(), time.process_time()
            for _ in loader:
                pass
            return time.perf_counter() - began[0], time.process_time() - began[1]

        for got in loader:
            numbers += got.ids.tolist()
            if sums:
                found += [zlib.crc32(np.ascontiguousarray(clip)) for clip in got["frames"]]
        yield Kept(run, numbers, found)


def time_start(data: Any, seed: int, batch: int, budget: penstock.Budget) -> float:
    """Seconds from a new loader to its first batch."""
    began = time.perf_counter()
    with penstock.Loader(data, batch, seed=seed, budget=budget) as loader:
        next(iter(loader))
        return time.perf_counter() - began


class Rival:
    """Another reader, in its process, which starts meanwhile."""

    def __init__(self, name: str, how: str = "") -> None:
        self.name = f"{name}, {how}" if how else name
        paths = os.pathsep.join(filter(None, [str(ROOT), *sys.path, str(LIBRARIES)]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.clip_rivals", f"{name}:{how}"],
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @cached_property
    def start(self) -> dict[str, str]:
        """Its version as "ready", or as "absent" why there is none."""
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                said: dict[str, Any] = json.loads(line)
                return said
        return {"absent": "it ended", "failed": "it ended"}

    def run(self, clips: Sequence[Any], sums: bool = False) -> dict[str, Any]:
        """Decode clips: seconds and sums, or how it failed."""
        if absent := self.start.get("absent"):
            return {"failed": absent}
        assert self._process.stdin is not None
        try:
            print(json.dumps({"clips": clips, "sums": sums}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return {"failed": "it ended"}
        return self._read()

    def time(self, clips: Sequence[Any]) -> Taken:
        answer = self.run(clips)
        return answer["seconds"], answer["cpu"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()  # it holds nothing that its end would keep, and that takes a second
        self._process.wait()


@contextmanager
def start_rivals(*hows: str, names: Sequence[str] = RIVALS) -> Iterator[list[Rival]]:
    with ExitStack() as stack:
        rivals = [Rival(name, how) for name in names for how in hows or ("",)]
        for rival in rivals:
            stack.callback(rival.close)
        yield rivals


class Floor:
    """The bare loop in C, over the packets of clips. RuntimeError where it cannot be built."""

    def __init__(self, data: Any, numbers: Sequence[int], folder: Path) -> None:
        source = Path(__file__).parent / "floors" / "clips_floor.c"
        built = ROOT / "build" / "clips_floor"
        built.parent.mkdir(exist_ok=True)
        words = ["cc", "-O2", "-o", str(built), str(source), "-ldl", "-lpthread"]
        try:
            subprocess.run(words, check=True, capture_output=True)
            libraries = [
                next(Path(av.__file__).parents[1].glob(f"av.libs/lib{name}-*.so*"))
                for name in ("avutil", "avcodec", "swscale")
            ]
        except (OSError, subprocess.CalledProcessError, StopIteration) as error:
            raise RuntimeError(f"no bare loop here: {error!r:.100}") from None
        packets = folder / "packets"
        decoder = write_packets(data, numbers, packets)
        words = [str(built), *map(str, libraries), decoder, str(packets), str(THREADS)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def check(self, data: Any, numbers: Sequence[int]) -> None:
        """Compare the frames of all clips with those that are decoded here, one by one."""
        packets_sum = self.run("skip sum")[1]
        assert self.run("plain sum")[1] == packets_sum == sum_pieces(data, numbers), "other frames"

    def run(self, how: str) -> tuple[Taken, int]:
        """Time for all clips; "plain", or with "skip" by the rule that the loader has."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(how, file=self._process.stdin, flush=True)
        clock_ns, cpu_ns, found = map(int, self._process.stdout.readline().split())
        return (clock_ns * 1e-9, cpu_ns * 1e-9), found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def list_pieces(data: Any, numbers: Sequence[int]) -> Iterator[tuple[int, Any, Any]]:
    """The groups of clips one by one: place of the clip, the group, its rows."""
    layout = data.index.layouts[0]
    assert isinstance(layout, Clips)
    clips = np.array(numbers, np.int64)
    for place, group in zip(*map(np.ndarray.tolist, layout.find_pairs(clips)), strict=True):
        yield place, group, layout.find_frames(clips[[place]], np.array([group]))[2]


def write_packets(data: Any, numbers: Sequence[int], path: Path) -> str:
    """Write what the bare loop reads; the decoder's name is returned."""
    index = data.index
    layout, options = index.layouts[0], index.fields[0].codec.options
    height, width = options["frame"]
    kinds = {name for name, *_ in options["configs"]}
    with path.open("wb") as out:
        for _, group, rows in list_pieces(data, numbers):
            packets = layout.packets.list_packets(np.array([group]))
            config = bytes.fromhex(options["configs"][int(packets.config[0])][1])
            sizes = packets.sizes
            head = [len(sizes), len(rows), width, height, len(config)]
            table = np.stack([sizes, packets.rows, np.isin(packets.rows, rows)], 1)
            body = np.array(head, "i4").tobytes() + table.astype("i4").tobytes() + config
            extents, _ = layout.pieces(np.array([group]))
            for file, offset, length in zip(
                extents.file, extents.offset, extents.length, strict=True
            ):
                with open(index.files.path(int(file)), "rb") as film:
                    film.seek(int(offset))
                    body += film.read(int(length))
            out.write(body + bytes(-len(body) % 4))
    return {"av1": "libdav1d"}.get(kind := kinds.pop(), kind)


def sum_pieces(data: Any, numbers: Sequence[int]) -> int:
    """The sum of the bare loop, of frames decoded here."""
    total, at, clip = 0, -1, None
    weights = np.arange(1, 252, dtype=np.uint64)
    for place, _, rows in list_pieces(data, numbers):
        if place != at:
            at, clip, done = place, data[numbers[place]]["frames"], 0
        assert clip is not None
        pixels = clip[done : done + len(rows)].reshape(-1)
        done += len(rows)
        columns = np.pad(pixels, (0, -len(pixels) % 251)).reshape(-1, 251)
        total += int(columns.sum(0, dtype=np.uint64) @ weights)
    return total % 2**64


# -- what is measured ------------------------------------------------------------------------------


class Bench(NamedTuple):
    """The run: its record, films, and how long it measures."""

    record: Record
    folder: Path
    seed: int
    rounds: int
    films: int

    def add(self, name: str, value: float | None, unit: str, **more: Any) -> None:
        """Add a row; one with a target and `most` is met by at most that."""
        if (most := more.pop("most", None)) is not None:
            more |= {"target": most, "met": None if value is None else value <= most}
        self.append(Row(name, value, unit, **more))

    def append(self, row: Row) -> None:
        """Add a row, and print it: a run takes a quarter of an hour."""
        self.record.rows.append(row)
        ratio = "" if row.ratio is None else f", {row.ratio:.2f}"
        ratio += "" if row.low is None else f" ({row.low:.2f}..{row.high:.2f})"
        print(f"{row.name}: {row.value} {row.unit}{ratio} {row.note}", flush=True)

    def race(
        self,
        name: str,
        ours: Callable[[], Taken],
        theirs: Callable[[], Taken],
        count: int,
        target: float | None,
        note: str = "",
    ) -> None:
        """Add the row of these turns by the clock, and processor time a clip beside it, which other
        work on the machine changes less."""
        pairs = take_turns(ours, theirs, self.rounds)
        clock = [[ours[0], theirs[0]] for ours, theirs in pairs]
        row = make_row(name, clock, count, "clips/s", target, self.seed, note)
        cpu = [1e6 * median(pair[side][1] for pair in pairs) / count for side in (0, 1)]
        row = replace(row, cpu_us_per_sample=cpu[0], floor_cpu_us_per_sample=cpu[1])
        self.append(row)
        self.record.raw[name] = {"seconds": clock, "cpu": cpu}


def try_rivals(
    bench: Bench,
    where: str,
    rivals: Sequence[Rival],
    clips: Sequence[Any],
    sums: Sequence[int],
    cool: Callable[[], object] = lambda: None,
) -> list[tuple[float, Rival]]:
    """Let each decode the first quarter of the clips, and compare its frames; fastest first.

    cool:  called before each pass: one that compares, and one that is timed.
    """
    able = []
    few = clips[: max(8, len(clips) // 4)]
    for rival in rivals:
        cool()
        answer = rival.run(few, True)
        note = answer.get("failed", "")
        if not note and (differing := sum(map(operator.ne, answer["sums"], sums))):
            note = f"{differing} of {len(few)} clips have other pixels"
        cool()
        rate = None if "failed" in answer else len(few) / rival.run(few)["seconds"]
        bench.add(f"{where}: {rival.name}", rate, "clips/s", note=note)
        if rate:
            able.append((rate, rival))
    return sorted(able, key=lambda one: -one[0])


def check_frames(data: Any, numbers: Sequence[int], sums: Sequence[int]) -> None:
    """Compare clips with what PyAV decodes from the films' starts."""
    origins = data.origins(np.array(numbers, np.int64))
    wanted: dict[int, dict[int, int]] = {}
    for film, first, found in zip(*map(np.ndarray.tolist, origins.values()), sums, strict=True):
        wanted.setdefault(film, {})[first] = found
    for film, clips in wanted.items():
        held: list[np.ndarray] = []
        with av.open(data.index.files.path(film)) as source:
            for number, frame in enumerate(source.decode(video=0)):
                held = [*held[-(FRAMES - 1) :], frame.to_ndarray(format="rgb24")]
                if (found := clips.pop(number - FRAMES + 1, None)) is not None:
                    assert zlib.crc32(np.stack(held)) == found, (film, number)
        assert not clips, "clips beyond the film's end"


def measure_kind(bench: Bench, kind: Kind) -> None:
    """Clips from local files; rivals start anew, as torchcodec's memory grows from kind to kind."""
    with start_rivals(names=kind.rivals) as rivals:
        where = write_films(bench.folder, kind)
        batch = 16 if kind.size < 1080 else 2
        _measure_local(bench, kind, where, batch, rivals)
        bench.record.configuration["rivals"] = {
            one.name: " ".join(one.start.values()) for one in rivals
        }
    _measure_floor(bench, kind, where, batch)


def _measure_local(
    bench: Bench, kind: Kind, where: Path, batch: int, rivals: Sequence[Rival]
) -> None:
    data = open_clips(where, min(bench.films, kind.films), kind.stride)
    with keep_loader(data, bench.seed, batch, kind.budget, sums=True) as kept:
        check_frames(data, kept.numbers, kept.sums)
        clips = list_clips(data, kept.numbers, str(where))
        if able := try_rivals(bench, kind.name, rivals, clips, kept.sums):
            best = able[0][1]
            name = f"{kind.name}, exact, nothing kept / best of the others, 2 threads"
            bench.race(name, kept.run, lambda: best.time(clips), len(clips), 1.0, best.name)


def _measure_floor(bench: Bench, kind: Kind, where: Path, batch: int) -> None:
    """Clips beside the bare loop over their packets, and what starting a loader costs once."""
    name = f"{kind.name}, exact, nothing kept / a bare C loop"
    data = open_clips(where, min(bench.films, kind.films), kind.dense)
    starts = [time_start(data, bench.seed, batch, kind.budget) for _ in range(bench.rounds)]
    note = f"of {batch} clips; all of the epoch's {len(data):,} are in the rows below"
    bench.add(f"{kind.name}: a new loader's first batch", 1e3 * median(starts), "ms", note=note)
    with (
        tempfile.TemporaryDirectory() as folder,
        keep_loader(data, bench.seed, batch, kind.budget) as kept,
    ):
        numbers = kept.numbers
        try:
            some = Floor(data, numbers[: 4 * batch], Path(folder))
        except RuntimeError as error:
            bench.add(name, None, "clips/s", note=str(error))
            return
        some.check(data, numbers[: 4 * batch])
        some.close()
        floor = Floor(data, numbers, Path(folder))
        bench.race(name, kept.run, lambda: floor.run("skip")[0], len(numbers), 0.95)
        floor.close()


def measure_index(bench: Bench, films: int) -> None:
    """The index of many films: links to those that there are."""
    where = write_films(bench.folder, SMALL[1])
    made = sorted(where.iterdir())
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        for number in range(films):
            os.link(made[number % len(made)], Path(folder, f"{number:05}.mp4"))
        open_clips(folder)
        taken = []
        for _ in range(3):
            began = time.perf_counter()
            open_clips(folder)
            taken.append(time.perf_counter() - began)
        bench.add(f"index of {films:,} films, warm", median(taken), "s", most=3.0)
    if missing := emulation.usable():
        bench.add("index: bytes read", None, "% of the files", note=missing)
        return
    with emulation.Shared() as storage:  # of each film once, as links are of the same bytes
        open_clips(storage.mount(where, direct=True).path)
        read = 100 * storage.counters()["bytes"] / sum(film.stat().st_size for film in made)
    bench.add("index: bytes read", read, "% of the files", most=1.0)


def sum_groups(data: Any, numbers: Sequence[int]) -> int:
    """Bytes of the groups of each of these clips."""
    layout = data.index.layouts[0]
    return int(layout.lengths(layout.find_pairs(np.array(numbers))[1]).sum())


def measure_bytes(bench: Bench, kind: Kind, rivals: Sequence[Rival]) -> None:
    """Bytes that storage gives for a clip, beside those of its groups."""
    where = write_films(bench.folder, kind)
    name = f"{kind.name}: bytes read a clip / bytes of its groups"
    if missing := emulation.usable():
        bench.add(name, None, "", note=missing)
        return
    with emulation.Shared() as storage:
        base = storage.mount(where, direct=True).path
        data = open_clips(base, bench.films)
        storage.reset()
        with keep_loader(data, bench.seed) as kept:
            numbers, read = kept.numbers, storage.counters()["bytes"]
        wanted = sum_groups(data, numbers)
        bench.add(name, read / wanted, "", most=1.05, note=f"{wanted / len(numbers):,.0f} bytes")
        few = numbers[:24]  # of which rivals, who take clip by clip, read as much each
        clips, wanted = list_clips(data, few, base), sum_groups(data, few)
        for rival in rivals:
            storage.reset()
            answer = rival.run(clips)
            value = None if "failed" in answer else storage.counters()["bytes"] / wanted
            bench.add(f"{name}, {rival.name}", value, "", note=answer.get("failed", ""))


def measure_objects(bench: Bench, kind: Kind) -> None:
    """Clips from an object store 20 ms away."""
    where = write_films(bench.folder, kind)
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        os.mkdir(bucket := Path(folder, "films"))
        for film in where.iterdir():
            os.link(film, bucket / film.name)
        with serving(0, Path(folder), 20) as port:
            data = open_clips("s3://films", min(bench.films, kind.films), kind.stride)
            base = f"http://127.0.0.1:{port}/films"
            _measure_far(bench, f"object store 20 ms away, {kind.name}", kind, data, base)


def measure_storage(bench: Bench, kind: Kind) -> None:
    """Clips from slow storage, of which the page cache holds nothing as a pass begins."""
    where = write_films(bench.folder, kind)
    name = f"storage with {STORAGE['read_ns'] / 1e6:g} ms a read, {kind.name}"
    if missing := emulation.usable():
        bench.add(name, None, "clips/s", note=missing)
        return
    with emulation.Shared(**STORAGE, calibrate=True) as storage:
        base = storage.mount(where).path
        data = open_clips(base, min(bench.films, kind.films), kind.stride)

        def cool() -> None:
            drop_pages(base)
            storage.reset()

        def count() -> int:
            return int(storage.counters()["bytes"])

        _measure_far(bench, name, kind, data, base, cool, count)


def drop_pages(folder: str) -> None:
    """Let the kernel forget what it holds of the files of a folder."""
    for path in Path(folder).iterdir():
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def _measure_far(
    bench: Bench,
    name: str,
    kind: Kind,
    data: Any,
    base: str,
    cool: Callable[[], object] = lambda: None,
    count: Callable[[], int] | None = None,
    target: float = 5.0,
) -> None:
    """Race the best of those that seek or read whole films.

    cool:   called before each pass.
    count:  bytes that storage has given since `cool`, to check that each pass reads its clips.
    """
    cool()
    # Over HTTP, PyAV had 0.4 to 0.9 of torchcodec's rate in three records.
    hows, names = (("seeks", "reads whole films"), FEW[:1]) if "://" in base else ((), kind.rivals)
    with (
        start_rivals(*hows, names=names) as rivals,
        keep_loader(data, bench.seed, sums=True) as kept,
    ):
        numbers = kept.numbers
        clips = list_clips(data, numbers, base)
        able = try_rivals(bench, name, rivals, clips, kept.sums, cool)
        if not able:
            bench.add(name, None, "clips/s", target=target, note="no rival reads this")
            return
        best = able[0][1]
        layout = data.index.layouts[0]
        least = int(layout.lengths(np.unique(layout.find_pairs(np.array(numbers))[1])).sum())
        given: dict[str, list[int]] = {"ours": [], "theirs": []}

        def run(who: str, one: Callable[[], Taken]) -> Taken:
            cool()
            taken = one()
            if count is not None:
                given[who].append(count())
                assert given[who][-1] >= least, f"{who}: {given[who][-1]:,} of {least:,} bytes"
            return taken

        def theirs() -> Taken:
            return run("theirs", lambda: best.time(clips))

        full = f"{name}, exact, nothing kept / best of the others, 2 threads"
        bench.race(full, lambda: run("ours", kept.run), theirs, len(numbers), target, best.name)
        bench.record.raw[full]["bytes"] = given
        near = open_clips(bench.folder / kind.folder, min(bench.films, kind.films), kind.stride)
        with tempfile.TemporaryDirectory() as folder:
            try:
                floor = Floor(near, numbers, Path(folder))
            except RuntimeError as error:
                bench.add(f"{name}: the most that can be", None, "clips/s", note=str(error))
                return
            most = len(numbers) / median(floor.run("skip")[0][0] for _ in range(3))
            floor.close()
        other = len(numbers) / median(pair[1] for pair in bench.record.raw[full]["seconds"])
        name = f"{name}: a bare C loop over packets in memory / best of the others"
        bench.append(Row(name, most, "clips/s", other, most / other, note=best.name))


def measure_memory(bench: Bench) -> None:
    """Memory of four threads that decode 1080p, in a process of its own."""
    where = write_films(bench.folder, LARGE[0])
    words = [sys.executable, "-m", "benchmarks.clips", "--memory", str(where)]
    said = json.loads(subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout)
    value = said["grown"] / said["budget"]
    note = f"{said['grown'] / 1e6:,.0f} MB of resident memory beyond that before the first batch, "
    note += f"of a budget of {said['budget'] / 1e6:,.0f} MB; batches of {said['batch'] / 1e6:,.0f}"
    bench.add("1080p, 4 threads: memory / budget", value, "", most=1.0, note=note)


def report_memory(where: str) -> None:
    """Print the growth of resident memory as JSON. Counted is all: frames that decoders hold,
    batches, read-ahead, frames kept for later clips."""
    budget = penstock.Budget(readahead_bytes=1 << 30)
    data = penstock.open(where, index="memory", clips={"frames": 8})
    data[0]
    before = read_status("VmHWM")  # ru_maxrss would be the parent's
    size = 0
    with penstock.Loader(data, 2, seed=0, budget=budget, decode_threads=4) as loader:
        for number, batch in enumerate(loader):
            size = batch["frames"].nbytes
            if number == 40:
                break
    grown = 1e6 * (read_status("VmHWM") - before)
    print(json.dumps({"grown": grown, "budget": budget.readahead_bytes, "batch": size}))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clips", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few films and pairs")
    parser.add_argument("--folder", default=str(ROOT / "bench-data" / "clips"))
    parser.add_argument(
        "--only", default="", help="of local, index, bytes, objects, storage, memory"
    )
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        report_memory(options.memory)
        return
    only = set(filter(None, options.only.split(",")))
    name = "clips" + ("-quick" if options.quick else "") + ("-partial" if only else "")
    record = Record(name, options.seed, vars(options) | {"frames": FRAMES, "threads": THREADS})
    rounds = options.rounds or (2 if options.quick else 5)
    folder = Path(options.folder)
    bench = Bench(record, folder, options.seed, rounds, 4 if options.quick else 12)
    kinds = [SMALL[1], AV1] if options.quick else [*SMALL, *LARGE, AV1]
    if not only or "local" in only:
        for kind in kinds:
            measure_kind(bench, kind)
            record.write()  # a run that is cut short keeps what it has
    if not only or "bytes" in only:
        with start_rivals() as rivals:
            for kind in kinds[:1] if options.quick else SMALL[1:]:
                measure_bytes(bench, kind, rivals)
        record.write()
    if not only or "index" in only:
        measure_index(bench, 500 if options.quick else 10_000)
        record.write()
    if not only or "objects" in only:
        for kind in kinds[:1] if options.quick else (SMALL[1], LONG):
            measure_objects(bench, kind)
            record.write()
    if not only or "storage" in only:
        for kind in kinds[:1] if options.quick else (SMALL[1], LONG):
            measure_storage(bench, kind)
    if not only or "memory" in only:
        measure_memory(bench)
    finish(record)


if __name__ == "__main__":
    main()
