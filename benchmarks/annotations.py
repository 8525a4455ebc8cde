"""python -m benchmarks.annotations [--quick]: labels of images, files of the hub, and lengths.

COCO and Pascal VOC: making the index against a parse by Python's library alone, which checks and
keeps nothing; batches of images with their boxes against a bare loop that reads the same files and
takes the boxes from arrays, in two threads. The hub: records in an exact shuffle over hf://, from a
server on the loopback, against ranged requests over connections that stay open. Lengths by a
function of the text against a bare loop of pread and orjson. Contenders take turns on warm files;
rates are those of processor time, that of the server too. Record:
benchmarks/results/annotations.json.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import threading
import xml.parsers.expat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from tests.hub import serve_hub, sha256

import penstock
from penstock.dataset import measure_lengths

from .__main__ import finish
from .contender import ROOT
from .record import Record
from .text import (
    BATCH,
    THREADS,
    Bare,
    make_row,
    processor_s,
    take_turns,
    write_web_lines,
)

BOXES = 7
"""Boxes of an image on average, as COCO has them."""
IMAGE_BYTES = 20_000
RECORD_BYTES = 16_384
URL = "hf://datasets/org/name/rows.bin"


def time_run(run: Callable[[], int], expected: int) -> float:
    """Processor seconds of a run, which has to give this number."""
    began = processor_s()
    found = run()
    spent = processor_s() - began
    assert found == expected, f"{found:,}, not {expected:,}"
    return spent


def share_work(numbers: Any, work: Callable[[list[int]], int]) -> int:
    """The sum of what two threads find in batches of the numbers."""
    found = [0] * THREADS

    def run(thread: int) -> None:
        for first in range(thread * BATCH, len(numbers), THREADS * BATCH):
            found[thread] += work(numbers[first : first + BATCH].tolist())

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(found)


# -- labels ----------------------------------------------------------------------------------------


def write_labels(folder: Path, count: int) -> Path:
    """Images of bytes by chance, with boxes and outlines of COCO and boxes of VOC, made if they are
    not there."""
    if (folder / "ready").exists():
        return folder
    random = np.random.default_rng(1)
    for part in ("coco/annotations", "coco/train", "voc/Annotations"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    images, entries = [], []
    for number in range(count):
        name = f"{number:012}"
        (folder / "coco/train" / f"{name}.jpg").write_bytes(random.bytes(IMAGE_BYTES))
        images.append({"id": number, "file_name": f"{name}.jpg", "width": 640, "height": 480})
        objects = []
        for _ in range(int(random.integers(0, 2 * BOXES + 1))):
            x, y, width, height = random.uniform(1, 300, 4).round(2).tolist()
            entry = {
                "segmentation": [random.uniform(0, 480, 46).round(2).tolist()],
                "area": width * height,
                "iscrowd": 0,
                "image_id": number,
                "bbox": [x, y, width, height],
                "category_id": len(entries) % 80 + 1,
                "id": len(entries) + 1,
            }
            entries.append(entry)
            objects.append(
                f"<object><name>c{entry['category_id']}</name><difficult>0</difficult><bndbox>"
                f"<xmin>{x}</xmin><ymin>{y}</ymin><xmax>{x + width}</xmax><ymax>{y + height}</ymax>"
                f"</bndbox></object>"
            )
        (folder / "voc/Annotations" / f"{name}.xml").write_text(
            f"<annotation><size><width>640</width><height>480</height></size>{''.join(objects)}"
            f"</annotation>"
        )
    categories = [{"id": number, "name": f"c{number}"} for number in range(1, 81)]
    document = {"images": images, "annotations": entries, "categories": categories}
    (folder / "coco/annotations/instances_train.json").write_text(json.dumps(document))
    (folder / "voc/JPEGImages").symlink_to(folder / "coco/train")
    (folder / "ready").touch()
    return folder


def parse_bare(coco: Path) -> int:
    """Parse COCO's document, and nothing else."""
    with (coco / "annotations/instances_train.json").open("rb") as file:
        return len(json.load(file)["images"])


def parse_bare_voc(voc: Path) -> int:
    """Parse each document of VOC, and nothing else."""
    names = os.listdir(voc / "Annotations")
    for name in names:
        xml.parsers.expat.ParserCreate().Parse((voc / "Annotations" / name).read_bytes(), True)
    return len(names)


def read_labels(dataset: penstock.Dataset) -> Callable[[], int]:
    """The bare loop: files in a new order each time, and their boxes."""
    boxes, ends = next(
        (each.values, each.ends) for each in dataset.index.attributes if each.name == "boxes"
    )
    assert ends is not None
    paths = [dataset.index.files.path(number) for number in range(len(dataset))]
    draw = np.random.default_rng(1)

    def work(batch: list[int]) -> int:
        images = []
        for number in batch:
            file = os.open(paths[number], os.O_RDONLY)
            images.append(os.pread(file, IMAGE_BYTES, 0))
            os.close(file)
        rows = [boxes[ends[number - 1] if number else 0 : ends[number]] for number in batch]
        return sum(map(len, images)) + len(np.concatenate(rows))

    return lambda: share_work(draw.permutation(len(paths)), work)


def walk_labels(loader: penstock.Loader) -> int:
    """Bytes of images and boxes of an epoch."""
    return sum(batch["image"].nbytes + len(batch["boxes"].values) for batch in loader)


def label_rows(record: Record, folder: Path, count: int, rounds: int) -> None:
    """Indexing COCO and VOC, and batches of COCO."""
    folder = write_labels(folder, count)
    for name, bare in (("coco", parse_bare), ("voc", parse_bare_voc)):
        place = folder / name
        ours = partial(
            time_run, lambda place=place: len(penstock.open(place, index="memory")), count
        )
        pairs = take_turns(ours, partial(time_run, partial(bare, place), count), rounds)
        add(record, f"index / {name.upper()} parsed by the library", pairs, count, "images/s", None)
    dataset = penstock.open(folder / "coco", index="memory", fields=["boxes", "labels"])
    total = count * IMAGE_BYTES + len(dataset.index.attributes[0].values)
    with penstock.Loader(dataset, BATCH, seed=record.seed, rank=0, world_size=1) as loader:
        pairs = take_turns(
            partial(time_run, partial(walk_labels, loader), total),
            partial(time_run, read_labels(dataset), total),
            rounds,
        )
    add(record, "images with boxes / bare loop", pairs, count, "samples/s", None)


# -- the hub ---------------------------------------------------------------------------------------


def read_ranges(address: str, count: int) -> Callable[[], int]:
    """The bare loop: each record by a ranged request, in a new order each time."""
    parts = urlsplit(address)
    draw = np.random.default_rng(1)
    opened = [http.client.HTTPConnection(str(parts.hostname), parts.port) for _ in range(THREADS)]
    free = list(opened)

    def work(batch: list[int]) -> int:
        connection, found = free.pop(), 0
        for number in batch:
            first = number * RECORD_BYTES
            span = f"bytes={first}-{first + RECORD_BYTES - 1}"
            connection.request("GET", f"{parts.path}?{parts.query}", headers={"Range": span})
            found += len(connection.getresponse().read())
        free.append(connection)
        return found

    return lambda: share_work(draw.permutation(count), work)


def hub_row(record: Record, count: int, rounds: int) -> None:
    """Records over hf:// against ranged requests of the same server."""
    data = np.random.default_rng(1).bytes(count * RECORD_BYTES)
    with serve_hub() as hub:
        hub.commit({"rows.bin": data})
        os.environ["HF_ENDPOINT"] = hub.url
        dataset = penstock.open(URL, dtype="u1", shape=(RECORD_BYTES,), index="memory")
        address = f"{hub.bytes_url}/{sha256(data)}?signature={hub.signature}"
        with penstock.Loader(dataset, 64, seed=record.seed, rank=0, world_size=1) as loader:
            name = dataset.fields[0].name
            pairs = take_turns(
                partial(time_run, lambda: sum(batch[name].nbytes for batch in loader), len(data)),
                partial(time_run, read_ranges(address, count), len(data)),
                rounds,
            )
    add(record, "hf:// / ranged requests", pairs, count, "samples/s", None)


# -- lengths ---------------------------------------------------------------------------------------


def count_characters(sample: Mapping[str, Any]) -> int:
    """The length of a text."""
    return len(sample["text"])


def length_row(record: Record, path: Path, rounds: int) -> None:
    """Lengths by a function against a bare loop that measures and keeps nothing."""
    dataset = penstock.open(path, fields="text", index="memory")
    bare = Bare(path, dataset)
    characters = bare()

    def measure() -> int:
        measure_lengths(dataset, count_characters, processes=THREADS, force=True)
        return int(dataset.lengths.sum())

    pairs = take_turns(
        partial(time_run, measure, characters), partial(time_run, bare, characters), rounds
    )
    add(record, "lengths by a function / bare loop", pairs, len(dataset), "samples/s", None)


def add(
    record: Record,
    name: str,
    pairs: list[list[float]],
    amount: float,
    unit: str,
    target: float | None,
) -> None:
    record.rows.append(
        make_row(name, pairs, amount, unit, target, record.seed, "of processor time")
    )
    record.raw[name] = {"seconds": pairs, "samples": amount}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.annotations", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and few pairs")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(options.data).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    size, rounds = (20_000_000, 3) if options.quick else (50_000_000, 5)
    images, records = (1_000, 256) if options.quick else (4_000, 1_000)
    name = "annotations-quick" if options.quick else "annotations"
    record = Record(name, options.seed, vars(options))
    label_rows(record, folder / f"labels-{images}", images, rounds)
    hub_row(record, records, rounds)
    length_row(record, write_web_lines(folder, size), rounds)
    finish(record)


if __name__ == "__main__":
    main()
