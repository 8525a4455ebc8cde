"""The rate at which containers are indexed, against the floor: reading the file by 4 MiB into one
buffer.

    python -m benchmarks.indexing [FOLDER] [--bytes 2_000_000_000]

The files are written once into FOLDER (default bench-data/), read once before the clock starts
(warm), and both contenders take turns. What is timed is penstock.open without a saved index; the
ratio is that of the floor's time to it. `make bench-formats` has these rows in its record.
"""

from __future__ import annotations

import argparse
import mmap
import os
import struct
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import penstock
from penstock import _core

from .pairing import bootstrap_interval
from .record import Row, table
from .text import take_turns

ROUNDS = 10
BLOCK_BYTES = 4 << 20
TARGET, LABELLED = 0.7, 0.8
LMDB_S = 0.25


def tar_parts(record_bytes: int, payload: bytes) -> Iterator[bytes]:
    """A sample's members for ever: an image of about that size, and a label."""
    number = 0
    while True:
        for extension, data in (("jpg", payload[: record_bytes + number % 64]), ("cls", b"7")):
            info = tarfile.TarInfo(f"train/{number:09}.{extension}")
            info.size = len(data)
            yield info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)
        number += 1


def tfrecord_parts(record_bytes: int, payload: bytes) -> Iterator[bytes]:
    """Records for ever, with right checksums."""

    def masked(data: bytes) -> bytes:
        crc = _core.crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    records = []
    for spare in range(64):
        data = payload[: record_bytes + spare]
        length = struct.pack("<Q", len(data))
        records.append(length + masked(length) + data + masked(data))
    while True:
        yield from records


def recordio_parts(record_bytes: int, payload: bytes) -> Iterator[bytes]:
    """Records for ever; none holds the magic."""
    magic = struct.pack("<I", 0xCED7230A)
    while True:
        for spare in range(64):
            data = payload[: record_bytes + spare].replace(magic, b"none")
            yield magic + struct.pack("<I", len(data)) + data + bytes(-len(data) % 4)


Parts = Callable[[int, bytes], Iterator[bytes]]
PARTS: dict[str, Parts] = {
    "tar": tar_parts,
    "tfrecord": tfrecord_parts,
    "recordio": recordio_parts,
}


def written(folder: Path, container: str, record_bytes: int, size: int) -> Path:
    """A file of about that size, made if it is not there."""
    path = folder / f"indexing-{record_bytes}-{size}.{container}"
    if not path.exists():
        payload = np.random.default_rng(1).bytes(record_bytes + 64)
        part = path.with_suffix(".part")
        if container == "lmdb":
            environment(part)
            part.rename(path)
            return path
        with open(part, "wb", buffering=BLOCK_BYTES) as file:
            for number, data in enumerate(PARTS[container](record_bytes, payload)):
                file.write(data)
                if file.tell() >= size and (container != "tar" or number % 2):  # with its label
                    break
            if container == "tar":
                file.write(bytes(10240))
        part.rename(path)
    return path


def environment(path: Path) -> None:
    """A million records of 64 to 160 bytes, in order of key."""
    import lmdb

    random = np.random.default_rng(1)
    payload = random.bytes(160)
    sizes = random.integers(64, 161, 1_000_000).tolist()
    with lmdb.open(str(path), subdir=False, lock=False, sync=False, map_size=1 << 32) as written:
        for first in range(0, len(sizes), 100_000):
            rows = range(first, first + 100_000)
            with written.begin(write=True) as transaction:
                items = [(b"%09d" % row, payload[: sizes[row]]) for row in rows]
                transaction.cursor().putmulti(items, append=True)


def floor(path: Path, buffer: memoryview) -> int:
    """The bytes of the file, read in blocks."""
    file, at = os.open(path, os.O_RDONLY), 0
    try:
        while n := os.preadv(file, [buffer], at):
            at += n
    finally:
        os.close(file)
    return at


def opened(path: Path, container: str, options: dict[str, object]) -> int:
    """The number of samples, indexed anew."""
    return len(penstock.open(path, format=container, index="memory", **options))


def timed(work: Callable[[], int]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


KINDS: list[tuple[str, int, dict[str, object]]] = [
    ("tar", 4_000, {"label": "cls"}),
    ("tar", 100_000, {"label": "cls"}),
    ("tfrecord", 4_000, {}),
    ("tfrecord", 4_000, {"check": "all"}),
    ("tfrecord", 100_000, {}),
    ("tfrecord", 100_000, {"check": "all"}),
    ("recordio", 4_000, {}),
    ("recordio", 100_000, {}),
    ("lmdb", 112, {}),
]


def rows(folder: Path, size: int, rounds: int, seed: int) -> tuple[list[Row], dict[str, Any]]:
    """All rows, and their raw values."""
    folder.mkdir(parents=True, exist_ok=True)
    # A bytearray begins 16 bytes behind a page, where copies take up to six times as long.
    buffer = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    found: list[Row] = []
    raw: dict[str, Any] = {}
    for container, record_bytes, options in KINDS:
        path = written(folder, container, record_bytes, size)
        total = floor(path, buffer)  # which makes it warm
        both = [partial(floor, path, buffer), partial(opened, path, container, options)]
        pairs = take_turns(*(partial(timed, one) for one in both), rounds)
        floors = [total / pair[0] / 1e9 for pair in pairs]
        opens = [total / pair[1] / 1e9 for pair in pairs]
        ratios = [ours / theirs for ours, theirs in zip(opens, floors, strict=True)]
        words = "".join(f", {name} {value}" for name, value in options.items())
        name = f"index / {container} {record_bytes:,} B{words}"
        raw[name] = {"seconds": pairs, "bytes": total}
        if container == "lmdb":
            value = median(pair[1] for pair in pairs)
            found.append(
                Row(
                    name,
                    value,
                    "s",
                    median(pair[0] for pair in pairs),
                    target=LMDB_S,
                    met=value <= LMDB_S,
                    note="target is an upper limit",
                )
            )
            continue
        low, high = bootstrap_interval(ratios, seed)
        ratio = median(ratios)
        target = LABELLED if "label" in options else TARGET
        gate = container != "recordio"
        found.append(
            Row(
                name,
                median(opens),
                "GB/s",
                median(floors),
                ratio,
                target if gate else None,
                ratio >= target if gate else None,
                low,
                high,
            )
        )
        print(f"{name}: {ratio:.2f} ({low:.2f}..{high:.2f})", file=sys.stderr, flush=True)
    return found, raw


def main() -> None:
    """Measure all rows and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("bench-data"))
    parser.add_argument("--bytes", type=int, default=2_000_000_000)
    arguments = parser.parse_args()
    print(table(rows(arguments.folder, arguments.bytes, ROUNDS, 1)[0]))


if __name__ == "__main__":
    main()
