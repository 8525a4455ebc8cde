"""python -m benchmarks.images [--quick] [--photos FOLDER]: random crops of photographs.

RandomResizedCrop(224) with a flip by penstock, with and without its index of positions, against
libjpeg's crop and skip with penstock's resize (a floor in C++, where libjpeg's headers are), and
against other libraries (`image_rivals`), each on one thread. All make the same crops of the same
files in memory, but for FFCV, which has a format and draws of its own. Contenders take turns; the
rates are those of processor time, of all threads. Record: benchmarks/results/images.json, or
images-quick.json with --quick.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import penstock
from penstock import images
from penstock._core import ImageTransform, RowPositions
from penstock.images.positions import NO_POSITIONS, find_positions
from penstock.loader.collate import Arrays
from penstock.order.augmentation import derive_epoch_key

from .__main__ import build_floors, finish
from .contender import ROOT
from .corpus import Corpora, Sizes
from .image_rivals import OWN_FORMAT, RIVALS, Absent, Rival, finish_by_pillow
from .record import Record, Row
from .suite import FLOORS
from .text import make_row, take_turns

SIZE = 224


class Photographs:
    """Files in memory, their crops, and ways to make these.

    data:  the files, one after the other, with bounds.
    """

    def __init__(self, folder: Path, area: tuple[float, float], most: int) -> None:
        dataset = penstock.open(folder)
        self.transform = images.RandomResizedCrop(SIZE, area, flip=0.5, boxes=True)
        report = find_positions(dataset)
        self.positions = report.saved
        self.total_bytes = dataset.index.total_bytes
        count = min(most, len(dataset))
        # Those that every contender decodes.
        known = np.flatnonzero(np.diff(self.positions.first))[:count]
        self.numbers = known.astype(np.uint64)
        self.paths = [dataset.index.files.path(int(number)) for number in known]
        self.files = [Path(path).read_bytes() for path in self.paths]
        self.bounds = np.cumsum([0, *map(len, self.files)], dtype=np.int64)
        self.values = np.frombuffer(b"".join(self.files), np.uint8)
        self.keys = np.full(len(known), derive_epoch_key(0, 0), np.uint64)
        reader: Any = self.transform.open_data(dataset.index, None, Arrays())
        self.native: ImageTransform = reader.native
        self.out = np.empty(len(known) * self.native.row_bytes, np.uint8)
        self.crops = np.zeros(7 * len(known), np.int32)
        self.run(NO_POSITIONS)
        self.boxes = self.crops.reshape(-1, 7).tolist()

    def run(self, positions: RowPositions) -> None:
        """Make all crops by penstock."""
        problems = self.native.transform_rows(
            self.values,
            self.bounds,
            0,
            len(self.files),
            self.keys,
            self.numbers,
            positions,
            self.out,
            self.crops,
            np.empty(0, np.int64),
        )
        assert not [problem for problem in problems if problem[1]], problems

    def list_crops(self) -> str:
        """Lines of paths and crops, as the floor reads them."""
        return "".join(
            f"{path} {left} {top} {width} {height} {flips}\n"
            for path, (left, top, width, height, flips, _, _) in zip(
                self.paths, self.boxes, strict=True
            )
        )


def time_work(work: Callable[[], Any]) -> float:
    """Processor seconds of all threads."""
    began = time.process_time()
    work()
    return time.process_time() - began


# -- rows ------------------------------------------------------------------------------------------


def rival_rows(
    photographs: Photographs,
    name: str,
    rivals: dict[str, Rival],
    scratch: Path,
    rounds: int,
    seed: int,
) -> list[tuple[Row, Any]]:
    """R without an index against other libraries, over photographs."""
    found: list[tuple[Row, Any]] = []
    for rival, (use, target) in rivals.items():
        title = f"R, {name}, no index / {rival}"
        try:
            theirs = use(photographs, scratch)
        except Absent as error:
            found.append((Row(title, None, "", note=str(error)), None))
            continue
        ours = partial(photographs.run, NO_POSITIONS)
        times = partial(time_work, ours), partial(time_work, theirs)
        found.append(compare(title, photographs, *times, target, rounds, seed))
    return found


def compare(
    title: str,
    photographs: Photographs,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    target: float | None,
    rounds: int,
    seed: int,
) -> tuple[Row, Any]:
    """One row: images a second of processor time, pair by pair."""
    ours(), theirs()
    pairs = take_turns(ours, theirs, rounds)
    count = len(photographs.files)
    row = make_row(title, pairs, count, "images/s", target or 0, seed, "of processor time")
    if target is None:
        row = Row(
            **{name: getattr(row, name) for name in row.__dataclass_fields__}
            | {"target": None, "met": None}
        )
    return row, {"seconds": pairs, "images": count}


def floor_rows(
    photographs: Photographs,
    name: str,
    targets: tuple[float | None, float | None],
    rounds: int,
    seed: int,
) -> list[tuple[Row, Any]]:
    """R without and with an index against libjpeg's crop and skip with the same resize."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(photographs.list_crops())
        file.flush()
        command = [str(FLOORS / "images_floor"), file.name]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as floor:
            assert floor.stdin is not None
            assert floor.stdout is not None

            def decode() -> float:
                print(file=floor.stdin, flush=True)
                made, nanoseconds = map(int, floor.stdout.readline().split())
                assert made == len(photographs.files), (made, len(photographs.files))
                return nanoseconds * 1e-9

            try:
                decode()
            except (ValueError, BrokenPipeError):
                note = "libjpeg's headers are not installed"
                return [(Row(f"R, {name} / libjpeg crop and skip", None, "", note=note), None)]
            found = []
            for title, positions, target in (
                ("no index", NO_POSITIONS, targets[0]),
                ("index", photographs.positions.native, targets[1]),
            ):
                ours = partial(time_work, partial(photographs.run, positions))
                row_title = f"R, {name}, {title} / floor: libjpeg crop and skip, same resize"
                found.append(compare(row_title, photographs, ours, decode, target, rounds, seed))
            floor.stdin.close()
    return [one for one in found if one[0].target is not None]


def resize_row(photographs: Photographs, rounds: int, seed: int) -> tuple[Row, Any]:
    """The resize of crops alone against Pillow's."""
    parts = []
    for data, (left, top, width, height, *_) in zip(
        photographs.files[:100], photographs.boxes, strict=False
    ):
        pixels = images.Decode()(data)
        parts.append(np.ascontiguousarray(pixels[top : top + height, left : left + width]))
    pictures = [Image.fromarray(part) for part in parts]
    resize = images.Resize(SIZE)._native
    out, words = np.empty(resize.row_bytes, np.uint8), np.zeros(44, np.uint64)

    def ours() -> None:
        for part in parts:
            resize.transform_pixels(part, words, out)

    def theirs() -> None:
        for picture in pictures:
            picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR)

    pairs = take_turns(partial(time_work, ours), partial(time_work, theirs), rounds)
    row = make_row(
        "Resize to 224, uint8 / Pillow", pairs, len(parts), "images/s", 5, seed, "of processor time"
    )
    return row, {"seconds": pairs, "images": len(parts)}


def bytes_row(folder: Path) -> tuple[Row, Any]:
    """The bytes that an epoch reads with positions, of those of the files."""
    dataset = penstock.open(folder)
    transform = images.RandomResizedCrop(SIZE, flip=0.5)
    with penstock.Loader(dataset, 64, seed=0, decode=transform) as loader:
        for _ in loader:
            pass
        share = loader.stats()["bytes"] / dataset.index.total_bytes
    return Row(
        "bytes read, index / bytes of the files", share, "", None, share, 0.75, share <= 0.75
    ), None


COPIES = 5
"""Links to each photograph, so that an epoch takes much longer than it begins."""


Times = tuple[float, float]
"""Seconds that pass, and seconds of processors."""


def read_clocks() -> Any:
    """Read both clocks."""
    return np.array((time.perf_counter(), time.process_time()))


def run_loader(folder: Path, transform: Any, threads: int) -> Times:
    """Times of an epoch of a loader, behind one that has taken all memory."""
    dataset = penstock.open(folder)
    with penstock.Loader(dataset, 16, seed=0, decode=transform, decode_threads=threads) as loader:
        for _ in loader:
            pass
        began = read_clocks()
        for _ in loader:
            pass
        return tuple(read_clocks() - began)


def run_bare(folder: Path, transform: Any, threads: int) -> Times:
    """Times of reading all files and of the core's calls on 8 at a time, in bare threads."""
    dataset = penstock.open(folder)
    native = transform.open_data(dataset.index, None, Arrays()).native
    files = dataset.index.files
    numbers = np.arange(len(dataset), dtype=np.uint64)
    keys = np.full(len(dataset), derive_epoch_key(0, 0), np.uint64)
    none = np.empty(0, np.int32), np.empty(0, np.int64)
    most = 8 * max(os.path.getsize(files.path(number)) for number in range(len(dataset)))
    memory = [np.zeros((2, max(most, 8 * native.row_bytes)), np.uint8) for _ in range(threads)]

    def work(first: int) -> None:
        values, out = memory[first]
        view = memoryview(values)
        for start in range(first * 8, len(dataset), threads * 8):
            end = min(start + 8, len(dataset))
            bounds = np.zeros(end - start + 1, np.int64)
            for row, number in enumerate(range(start, end)):
                with open(files.path(number), "rb", buffering=0) as file:
                    bounds[row + 1] = bounds[row] + file.readinto(view[bounds[row] :])
            problems = native.transform_rows(
                values,
                bounds,
                0,
                end - start,
                keys[start:end],
                numbers[start:end],
                NO_POSITIONS,
                out[: (end - start) * native.row_bytes],
                *none,
            )
            assert not any(problem[1] > 1 for problem in problems), problems

    def run() -> None:
        workers = [threading.Thread(target=work, args=(first,)) for first in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    run()
    began = read_clocks()
    run()
    return tuple(read_clocks() - began)


def loader_rows(folder: Path, count: int, rounds: int, seed: int) -> list[tuple[Row, Any]]:
    """Whole epochs of a loader without an index, then with one: normalised float16 against uint8;
    and two threads against as many bare ones, by both clocks."""
    plain = images.RandomResizedCrop(SIZE, flip=0.5)
    normal = images.RandomResizedCrop(
        SIZE,
        flip=0.5,
        layout="chw",
        dtype="float16",
        mean=images.IMAGENET_MEAN,
        std=images.IMAGENET_STD,
    )
    found: list[tuple[Row, Any]] = []

    def add(title: str, pairs: list[list[Any]], clock: int, target: float, note: str) -> None:
        seconds = [[float(side[clock]) for side in pair] for pair in pairs]
        row = make_row(title, seconds, count, "images/s", target, seed, note)
        found.append((row, {"seconds": seconds, "images": count}))

    ours, bare = partial(run_loader, folder, plain, 2), partial(run_bare, folder, plain, 2)
    pairs = take_turns(ours, bare, rounds)
    for clock, note in enumerate(("of the time that passes", "of processor time")):
        title = f"epoch of a loader, 2 threads / bare loop of the same calls, 2 threads, {note}"
        add(title, pairs, clock, 0.97, note)
    for name in ("no index", "index"):
        if name == "index":
            find_positions(penstock.open(folder))
        sides = [partial(run_loader, folder, one, 1) for one in (normal, plain)]
        pairs = take_turns(*sides, rounds)
        title = f"epoch, {name}, float16 CHW normalised / uint8 HWC"
        add(title, pairs, 1, 0.95, "of processor time")
    return found


def error_rows(photographs: Photographs) -> list[tuple[Row, Any]]:
    """Differences of the whole pipeline from Pillow's, and the size of the index."""
    photographs.run(photographs.positions.native)
    made = photographs.out.reshape(-1, SIZE, SIZE, 3).astype(np.int64)
    means, most, same = [], 0, 0
    for row, (data, (left, top, width, height, flips, _, _)) in enumerate(
        zip(photographs.files, photographs.boxes, strict=True)
    ):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        same += bool((images.Decode()(data) == np.asarray(image)).all())
        theirs = finish_by_pillow(image, (left, top, width, height), bool(flips))
        difference = np.abs(made[row] - theirs)
        means.append(float(difference.mean()))
        most = max(most, int(difference.max()))
    count = len(photographs.files)
    mean = float(np.mean(means))
    size = Path(photographs.positions.path).stat().st_size / photographs.total_bytes
    return [
        (Row("whole pipeline - Pillow, mean", mean, "levels", None, mean, 0.2, mean <= 0.2), None),
        (Row("whole pipeline - Pillow, most", most, "levels", None, most, 1.0, most <= 1), None),
        (Row("decoded as Pillow", same, "images", count, same / count, 1.0, same == count), None),
        (Row("index / bytes of the files", size, "", None, size, 0.007, size <= 0.007), None),
    ]


def make_photographs(quick: bool) -> Path:
    """Write synthetic photographs, if they are not there."""
    return Corpora(ROOT / "bench-data", Sizes.quick() if quick else Sizes(), 0).images()


def reencode(folder: Path, target: Path) -> Path:
    """Write the photographs of a folder again: 4:2:0, quality 90."""
    target.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if path.is_file():
            image = Image.open(path).convert("RGB")
            image.save(target / f"{number:05}.jpg", quality=90, subsampling=2)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description="Random crops of photographs, on one core.")
    parser.add_argument("--photos", type=Path, help="folder of JPEG; by default synthetic ones")
    parser.add_argument("--quick", action="store_true", help="60 images, few rounds")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rounds, most = (3, 60) if arguments.quick else (7, 200)
    build_floors()
    source = arguments.photos or make_photographs(arguments.quick)
    name = "images" + "-quick" * arguments.quick
    record = Record(name, arguments.seed, {"quick": arguments.quick, "size": SIZE})
    seed = arguments.seed
    with tempfile.TemporaryDirectory() as scratch:
        # Links, so that nothing is written beside the photographs.
        photos = Path(scratch) / "photos"
        photos.mkdir()
        chosen = sorted(path for path in source.rglob("*") if path.is_file())[:most]
        for number, path in enumerate(chosen):
            (photos / f"{number:05}.jpg").write_bytes(path.read_bytes())
        bare = Path(scratch) / "bare"
        bare.mkdir()  # which has no index yet, and epochs that take much longer than they begin
        for path, copy in itertools.product(photos.iterdir(), range(COPIES)):
            os.link(path, bare / f"{path.stem}-{copy}.jpg")
        q90 = reencode(photos, Path(scratch) / "q90")
        whole = Photographs(photos, (0.08, 1.0), most)
        lower = Photographs(q90, (0.08, 1.0), most)
        small = Photographs(photos, (0.05, 0.4), most)
        place = Path(scratch)
        found = rival_rows(whole, "photos", RIVALS, place, rounds, seed)
        found += rival_rows(lower, "q90", OWN_FORMAT, place, rounds, seed)
        found += floor_rows(whole, "photos", (1.0, 1.35), rounds, seed)
        found += floor_rows(lower, "q90", (0.95, 1.2), rounds, seed)
        found += floor_rows(small, "area 5..40 %, photos", (None, 1.7), rounds, seed)
        found.append(resize_row(whole, rounds, seed))
        found += loader_rows(bare, COPIES * len(chosen), rounds, seed)
        found.append(bytes_row(photos))
        found += error_rows(whole)
    for row, raw in found:
        record.rows.append(row)
        if raw is not None:
            record.raw[row.name] = raw
    finish(record)


if __name__ == "__main__":
    main()
