"""The data every contender reads: made once from a seed, kept under one folder, reused.

A corpus is complete when its file or folder carries its final name; it is written under another
name first, so an interrupted run is simply made again.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .contender import ROOT

CHUNK_BYTES = 16 << 20
OPEN_COUNT = 1_000_000_000
OPEN_RECORD_BYTES = 512


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of everything; `quick` keeps the shapes and shrinks the counts."""

    records: int = 200_000
    files: int = 20_000
    cold: int = 16_384
    images: int = 2_000

    @classmethod
    def quick(cls) -> Sizes:
        # More files than a loader is likely to keep open, so that each is opened in each epoch.
        return cls(records=50_000, files=5_000, cold=8_192, images=400)


@dataclass(frozen=True, slots=True)
class Corpora:
    """Paths of the corpora below `folder`; each is made when it is first asked for."""

    folder: Path
    sizes: Sizes
    seed: int

    def records(self, record_bytes: int) -> Path:
        """Random records of one size, one after the other in one file."""
        count = self.sizes.records
        path = self.folder / f"records-{record_bytes}-{count}-seed{self.seed}.bin"
        return self.made(path, lambda to: write_random(to, count * record_bytes, self.seed))

    def cold(self, record_bytes: int) -> Path:
        """The same in a file of its own, so that evicting it disturbs nobody else."""
        count = self.sizes.cold
        path = self.folder / f"cold-{record_bytes}-{count}-seed{self.seed}.bin"
        return self.made(path, lambda to: write_random(to, count * record_bytes, self.seed))

    def files(self, file_bytes: int) -> Path:
        """A folder of random files of one size."""
        count = self.sizes.files
        path = self.folder / f"files-{file_bytes}-{count}-seed{self.seed}"
        return self.made(path, lambda to: write_files(to, count, file_bytes, self.seed))

    def images(self) -> Path:
        """A folder of synthetic photographs, 500 x 375 JPEG, quality 90, 4:2:0."""
        path = self.folder / f"jpeg-{self.sizes.images}-seed{self.seed}"
        return self.made(path, lambda to: write_images(to, self.sizes.images, self.seed))

    def lmdb(self, value_bytes: int, count: int) -> Path:
        """Random values in one LMDB file, written as Caffe's converters do; see `write_lmdb`."""
        folder = self.folder / f"lmdb-{value_bytes}-{count}-seed{self.seed}"
        self.made(folder, lambda to: write_lmdb(to, count, value_bytes, self.seed))
        return folder / "data.mdb"

    def sparse(self) -> Path:
        """A file of 10^9 records that occupies no disk."""
        path = self.folder / f"sparse-{OPEN_RECORD_BYTES}-{OPEN_COUNT}.bin"
        return self.made(path, lambda to: truncate(to, OPEN_COUNT * OPEN_RECORD_BYTES))

    def ffcv(self, record_bytes: int) -> Path:
        """The records in FFCV's container."""
        return self._converted("ffcv", record_bytes, ".beton")

    def litdata(self, record_bytes: int) -> Path:
        """The records in LitData's chunks."""
        return self._converted("litdata", record_bytes, "")

    def _converted(self, peer: str, record_bytes: int, suffix: str) -> Path:
        source = self.records(record_bytes)
        command = [sys.executable, "-m", "benchmarks.baselines.convert", peer]
        return self.made(
            source.with_name(f"{peer}-{source.stem}{suffix}"),
            lambda to: run([*command, str(source), str(record_bytes), str(to)]),
        )

    def made(self, path: Path, write: Callable[[Path], None]) -> Path:
        """The path, written by `write` if it is not there yet."""
        if path.exists():
            return path
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_name("partial-" + path.name)
        remove(partial)
        start = time.perf_counter()
        print(f"corpus: making {path.name} ...", end=" ", file=sys.stderr, flush=True)
        write(partial)
        partial.rename(path)
        os.sync()  # else the first timings share the disk and the cores with write-back
        print(f"{time.perf_counter() - start:.1f} s", file=sys.stderr)
        return path


def random_chunks(total: int, seed: int) -> Iterator[bytes]:
    """`total` random bytes in chunks."""
    random = np.random.default_rng(seed)
    for at in range(0, total, CHUNK_BYTES):
        yield random.bytes(min(CHUNK_BYTES, total - at))


def write_random(path: Path, total: int, seed: int) -> None:
    """One file of random bytes."""
    with path.open("wb") as file:
        for chunk in random_chunks(total, seed):
            file.write(chunk)


def write_files(folder: Path, count: int, file_bytes: int, seed: int) -> None:
    """Random files of one size."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    for number in range(count):
        (folder / f"{number:08d}.bin").write_bytes(random.bytes(file_bytes))


def write_images(folder: Path, count: int, seed: int) -> None:
    """Smooth random colours plus noise: as hard to decode as a photograph of the same size."""
    import simplejpeg
    from PIL import Image

    folder.mkdir()
    random = np.random.default_rng(seed)
    noises = random.normal(0, 16, (8, 375, 500, 3)).astype(np.int16)
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC))
        noise = np.roll(noises[number % 8], int(random.integers(375)), axis=0)
        pixels = np.clip(smooth + noise, 0, 255).astype(np.uint8)
        data = simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling="420")
        (folder / f"{number:08d}.jpg").write_bytes(data)


def write_lmdb(folder: Path, count: int, value_bytes: int, seed: int) -> None:
    """Keys 00000000, 00000001, ... in order; a commit for every thousand."""
    import lmdb

    folder.mkdir()
    random = np.random.default_rng(seed)
    map_bytes = count * (value_bytes + 8192) + (64 << 20)
    path = str(folder / "data.mdb")
    with lmdb.open(path, map_size=map_bytes, subdir=False, lock=False, sync=False) as environment:
        for start in range(0, count, 1000):
            with environment.begin(write=True) as transaction:
                for number in range(start, min(start + 1000, count)):
                    transaction.put(b"%08d" % number, random.bytes(value_bytes), append=True)


def truncate(path: Path, size: int) -> None:
    """A sparse file."""
    with path.open("wb") as file:
        file.truncate(size)


def run(command: list[str]) -> None:
    """Runs a converter; its words appear only when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = (done.stdout + done.stderr).strip().splitlines()[-3:]
        words = " | ".join(tail).replace(f"{ROOT}/", "")  # records keep it
        raise RuntimeError(f"{command[3]} conversion failed: {words}")


def remove(path: Path) -> None:
    """Removes what an interrupted run left."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def files_below(path: Path) -> list[Path]:
    """The file itself, or all files of a folder."""
    return sorted(path.rglob("*")) if path.is_dir() else [path]


def make_warm(path: Path) -> None:
    """Reads everything once, into one small buffer, after the kernel has let go of it: pages as
    readahead takes them. Where a file was written piece by piece, its pages lie apart, and a copy
    of 4 KiB takes up to a quarter longer; files are compared, not who wrote them."""
    buffer = bytearray(1 << 20)
    for entry in files_below(path):
        if entry.is_file():
            make_cold(entry)
            with entry.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def make_cold(path: Path) -> None:
    """Writes the file back and asks the kernel to drop its pages; other files keep theirs."""
    with path.open("rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


CACHESTAT = 451


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Cached(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    ]


def resident_pages(path: Path) -> int | None:
    """Pages of the file in the page cache; None where the kernel (before 6.5) cannot say."""
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    seen = _Cached()
    with path.open("rb") as file:
        whole = _Range(0, 0)
        failed = libc.syscall(
            ctypes.c_long(CACHESTAT), file.fileno(), ctypes.byref(whole), ctypes.byref(seen), 0
        )
    return None if failed else int(seen.cached)
