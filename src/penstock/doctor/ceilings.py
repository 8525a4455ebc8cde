"""Ceilings: the most that this machine and the storage of some data deliver, each measured alone.

Every measurement takes a bounded time (`limits.ceiling_s`, and one operation that has started),
works with the data's own files, and reports how it was made. A ceiling that cannot be measured
is None.
"""

from __future__ import annotations

import copy
import errno
import importlib.util
import io
import itertools
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import limits
from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.sample import Decode, choose_gap
from ..engine.host import ProbeResult, measure_copying
from ..engine.open import is_url, open_engine, read_extent
from ..engine.page_cache import drop_extents
from ..engine.protocol import ReadMethod
from ..engine.read_method import compute_open_files_max
from ..engine.store import build_storage_error
from ..engine.threads import ThreadPool
from ..errors import PenstockError, UsageError
from ..extent import Extents, Files, Requests
from ..images.transforms import Decode as Image
from ..index.codecs import CompressedChunk, decode_samples
from ..index.fields import Codec
from ..index.layout import Chunked
from ..index.read_cost import measure_cost
from ..plan.steps import plan_samples
from .roofline import Demand, Supply

_planned_samples = 64
_unpacked_fields = 4


class StorageCeiling(NamedTuple):
    """Read rates of some data.

    bandwidth:  bytes/s of large reads, several in flight, or of samples if these were faster.
    iops:       reads/s of samples, many in flight; each includes the open that it needs.
    latency_ns: duration of one such read, alone.
    cold:       True if the reads did not come from the page cache.
    """

    bandwidth: Supply
    iops: Supply
    latency_ns: float
    cold: bool
    probed: ProbeResult


class DecodingCeiling(NamedTuple):
    """Rate of a decode function.

    all_cores:      samples/s of one thread on each core.
    decoded_bytes:  mean size of its result for a sample.
    """

    all_cores: Supply
    decoded_bytes: float


def measure_storage(dataset: Dataset, budget: Budget | None = None) -> StorageCeiling | None:
    """Measure reads of this data through the engine that a loader would use; takes 0.5 s.

    The extents to be read, and only those, are dropped from the page cache first. If that is
    impossible (memory file systems, maps of other processes), the data is read as it is.

    None if there are no bytes to read. Raises the error of a read that failed.
    """
    index = dataset.index
    if index.count == 0 or index.total_bytes == 0:
        return None
    budget = budget or Budget()
    if budget.mmap == "auto":
        budget = budget.replace(mmap="off")  # which is for what is in the page cache
    engine = open_engine(index.files, budget, index.mean_bytes)
    passed_by = is_url(index.files.root) or engine.choice.direct
    is_cold = True

    def ready(extents: Extents) -> Extents:
        nonlocal is_cold
        if passed_by or not is_cold:
            return extents
        dropped = drop_extents(index.files, extents, limits.cold_s)
        is_cold = len(dropped.file) > 0
        return dropped if is_cold else extents

    try:
        probed = measure_cost(index, engine, ready=ready)
    finally:
        engine.close()
    how = "past the page cache" if passed_by else "dropped from the page cache first"
    if not (passed_by or is_cold):
        how = "in place: it could not be dropped from the page cache"
    how += f", {engine.choice.backend}, {_format_count(engine.choice.threads, 'thread')}"
    small = f"{_format_count(probed.reads, 'read')} of samples, {how}"
    bandwidth = Supply(
        probed.bytes_per_s, f"{probed.large_bytes / 1e6:,.3g} MB in large reads, {how}"
    )
    sampled = probed.reads_per_s * probed.read_bytes / probed.reads
    if sampled > probed.bytes_per_s:
        bandwidth = Supply(sampled, f"{probed.read_bytes / 1e6:,.3g} MB in {small}")
    iops = Supply(probed.reads_per_s, small)
    return StorageCeiling(bandwidth, iops, probed.latency_ns, is_cold, probed)


def estimate_demand(dataset: Dataset, choice: ReadMethod, decoded_bytes: float = 0.0) -> Demand:
    """Estimate the storage and memory traffic of a sample in an exact shuffle. Data in compressed
    chunks is assumed to be read chunk by chunk.

    choice:         how the engine reads.
    decoded_bytes:  size of a decode function's result, copied into a batch.
    """
    index = dataset.index
    if index.count == 0:
        return Demand()
    chunked = [layout for layout in index.layouts if isinstance(layout, Chunked)]
    if chunked:
        read_bytes = index.mean_bytes
        reads = sum(len(layout.chunk_samples) / index.count for layout in chunked)
    else:
        ids = np.unique(np.linspace(0, index.count - 1, _planned_samples).astype(np.uint64))
        gap, ends = choose_gap(index, choice), np.array([0, 1], np.int64)
        planned = [
            step.requests
            for number in ids
            for group in plan_samples(index, np.array([number]), ends, 0, gap)
            for step in group.steps
        ]
        reads = sum(_count_reads(requests) for requests in planned) / len(ids)
        read_bytes = sum(int(requests.length.sum()) for requests in planned) / len(ids)
    kept_open = is_url(index.files.root) or len(index.files) <= compute_open_files_max()
    return Demand(
        bytes=read_bytes,
        reads=reads,
        opens=0.0 if kept_open else reads,
        copied_bytes=read_bytes + decoded_bytes,
    )


def _count_reads(requests: Requests) -> int:
    """Count the read operations; one reads at most `limits.run_bytes_max`."""
    if not len(requests.length):
        return 0
    sizes = np.add.reduceat(requests.length, requests.runs[:-1])
    return int(np.maximum(1, -(-sizes // limits.run_bytes_max)).sum())


def measure_opening(files: Files, threads: int = limits.scan_threads) -> Supply | None:
    """Measure how many of these files a second `threads` threads open; takes 0.25 s. None for
    objects.

    The kernel knows the names of recently opened files and cannot be told to forget only those,
    so on shared storage the first open may be slower.
    """
    if is_url(files.root) or not len(files):
        return None
    count = min(len(files), limits.ceiling_files_max)
    paths = [files.path(int(file)) for file in np.linspace(0, len(files) - 1, count)]

    def one(number: int) -> None:
        path = paths[number % count]
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise build_storage_error(error.errno or errno.EIO, path) from None

    rate, done = _measure_rate(one, threads)
    opens = f"{_format_count(done, 'open')} of {_format_count(count, 'file')}"
    return Supply(rate, f"{opens} by {threads} threads, names known")


def _format_count(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def measure_copy_rate() -> Supply:
    """Measure the bytes a second that all cores together copy in memory; takes 0.1 s."""
    cores = len(os.sched_getaffinity(0))
    return Supply(measure_copying(cores), f"{cores} threads, 32 MiB each")


def measure_decoding(
    dataset: Dataset, decode: Decode, threads: int | None = None
) -> DecodingCeiling:
    """Measure the samples a second of a decode function, called as loaders call it; takes 0.25 s,
    and the time to read a few samples.

    Raises UsageError if it fails, naming the sample.
    """
    samples = _draw_samples(dataset)
    threads = threads or len(os.sched_getaffinity(0))
    name = getattr(decode, "__qualname__", repr(decode))
    sizes: list[int] = []

    def one(number: int) -> None:
        sample = samples[number % len(samples)]
        try:
            result = decode(copy.copy(sample))
        except Exception as error:
            what = f"decode function {name} failed for sample {sample['__key__']!r} of"
            fields = f"it is called with a dict of the sample's fields ({', '.join(sample)})"
            raise UsageError(f"{what} {dataset.path}: {error!r}: {fields}") from error
        if number < len(samples):
            sizes.append(_sum_bytes(result))

    rate, done = _measure_rate(one, threads)
    supply = Supply(rate, f"{name}, {done:,} samples in {threads} threads")
    return DecodingCeiling(supply, float(np.mean(sizes)))


_ENCODED = {
    r"\xff\xd8\xff|\x89PNG|GIF8|BM....\0{4}|II\*\0|MM\0\*|RIFF....WEBP": "images",
    r"fLaC|OggS|ID3|\xff[\xf2\xf3\xfa\xfb]|RIFF....WAVE": "audio",
}
"""Kind of a sample, by its first bytes."""


def find_decode(dataset: Dataset) -> tuple[str, Decode | None]:
    """Find what samples hold ("images", "audio", "" if neither), and what decodes them here; None
    if nothing does. One sample is read."""
    for name, value in dataset[0].items():
        head = bytes(value[:12]) if isinstance(value, bytes) else b""
        for pattern, kind in _ENCODED.items():
            if not re.match(pattern.encode("latin-1"), head, re.DOTALL):
                continue
            if kind == "images":
                return kind, Image(field=name)
            if importlib.util.find_spec("soundfile") is None:
                return kind, None
            import soundfile

            return kind, lambda sample, name=name: soundfile.read(io.BytesIO(sample[name]))[0]
    return "", None


def measure_unpacking(dataset: Dataset) -> Supply | None:
    """Measure the samples a second of compressed chunks that all cores decompress, if each chunk is
    decompressed once; takes 0.25 s, or one chunk, for each of the largest fields. None without."""
    index, cores = dataset.index, len(os.sched_getaffinity(0))
    coded = [
        (field.codec, layout)
        for field, layout in zip(index.fields, index.layouts, strict=True)
        if isinstance(layout, Chunked) and field.codec is not None
    ]
    coded.sort(key=lambda pair: -pair[1].total_bytes)
    took_s, measured_bytes, chunks = 0.0, 0, 0
    first = np.zeros(1, np.int64)
    for codec, layout in coded[:_unpacked_fields]:
        sizes = layout.chunk_samples
        numbers = np.unique(np.linspace(0, len(sizes) - 1, limits.ceiling_samples_max // 8))
        loaded = [_read_chunk(dataset, layout, int(number)) for number in numbers]

        def one(number: int, codec: Codec = codec, loaded: list[CompressedChunk] = loaded) -> None:
            decode_samples(codec.name, codec.options, [loaded[number % len(loaded)]], first, first)

        rate, done = _measure_rate(one, cores)
        took_s += 1 / (rate * float(np.mean([chunk.samples for chunk in loaded])))
        measured_bytes, chunks = measured_bytes + layout.total_bytes, chunks + done
    if not took_s:
        return None
    share = measured_bytes / sum(layout.total_bytes for _, layout in coded)
    how = f"{chunks:,} chunks decompressed in {cores} threads, each chunk once an epoch"
    return Supply(share / took_s, how)


def _read_chunk(dataset: Dataset, layout: Chunked, number: int) -> CompressedChunk:
    extents, _ = layout.pieces(np.array([number]))
    where = f"chunk {number:,} of {dataset.path}"
    pieces = [
        read_extent(dataset.index.files, file, offset, length, where)
        for file, offset, length in zip(*(column.tolist() for column in extents), strict=True)
    ]
    samples = int(layout.count_rows(np.array([number]))[0])
    data, inside = memoryview(b"".join(pieces)), layout.describe_inside(number)
    return CompressedChunk(number, data, extents.length.tolist(), samples, inside)


def _draw_samples(dataset: Dataset) -> list[dict[str, Any]]:
    """Read some samples from everywhere, in the form that decode receives; at least one."""
    count = min(len(dataset), limits.ceiling_samples_max)
    if count == 0:
        raise UsageError(f"{dataset.path} holds no samples: there is nothing to decode")
    samples: list[dict[str, Any]] = []
    until, size = time.monotonic() + limits.ceiling_s, 0
    numbers = np.linspace(0, len(dataset) - 1, count).astype(int).tolist()
    for number in np.random.Generator(np.random.Philox(key=0)).permutation(numbers).tolist():
        sample = dataset[number]
        sample["__id__"], sample["__epoch__"] = sample.stream[2], 0
        samples.append(sample)
        size += _sum_bytes(samples[-1])
        if size > limits.ceiling_samples_bytes_max or time.monotonic() > until:
            break
    return samples


def _sum_bytes(value: Any) -> int:
    """Sum the bytes of the arrays and byte strings of a sample."""
    if isinstance(value, Mapping):
        return sum(_sum_bytes(inner) for inner in value.values())
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    size = getattr(value, "nbytes", None)  # of numpy, torch, and memoryviews
    if isinstance(size, int):
        return size
    if isinstance(value, Sequence) and not isinstance(value, str):
        return sum(_sum_bytes(inner) for inner in value)
    return 0


def read_link_speed(devices: Path = Path("/sys/class/net")) -> Supply | None:
    """Return the nominal speed of the fastest network device that is up; None if no device reports
    one.

    Nominal, of one device: the real rates of other hosts and of storage have to be measured with
    them.
    """
    speeds: list[tuple[int, str]] = []
    for device in sorted(devices.glob("*")):
        try:
            if (device / "device").exists() and (device / "operstate").read_text() == "up\n":
                speeds.append((int((device / "speed").read_text()), device.name))
        except (OSError, ValueError):  # virtual devices have no speed
            continue
    speed_mbit, name = max(speeds, default=(0, ""))
    if speed_mbit <= 0:
        return None
    return Supply(speed_mbit * 1e6 / 8, f"{name} says {speed_mbit:,} Mbit/s: nominal")


def measure_writing(folder: str) -> Supply:
    """Measure the bytes a second written to a file in this folder, 8 MiB at a time, each synced
    before the next; takes 0.25 s, and leaves nothing behind.

    Raises MissingError or StorageError if that is impossible.
    """
    random = np.random.Generator(np.random.Philox(key=time.time_ns()))
    block = random.bytes(limits.ceiling_written_bytes)  # not to be compressed
    written = 0
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            began = time.perf_counter()
            while (took := time.perf_counter() - began) < limits.ceiling_s or not written:
                written += file.write(block)
                os.fdatasync(file.fileno())
    except OSError as error:
        if isinstance(error, PenstockError):
            raise
        raised = build_storage_error(error.errno or errno.EIO, folder)
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            how = f"{error.strerror}: make it writable, or make room"
            raised.args = (f"{folder} cannot be written to: {how}",)
        raise raised from None
    return Supply(written / took, f"{written / 1e6:,.3g} MB, synced every 8 MiB")


def _measure_rate(one: Callable[[int], object], threads: int) -> tuple[float, int]:
    """Call `one` from several threads for a while; return calls a second and the number of calls,
    at least one.

    The number of the call is its argument.
    """
    numbers = itertools.count()
    start = threading.Barrier(threads)

    def many() -> tuple[int, float, float]:
        start.wait()
        began, done = time.perf_counter(), 0
        until = began + limits.ceiling_s
        while True:
            one(next(numbers))
            done += 1
            if (now := time.perf_counter()) > until:
                return done, began, now

    with ThreadPool(threads) as pool:
        runs = [future.result() for future in [pool.submit(many) for _ in range(threads)]]
    took_s = max(ended for _, _, ended in runs) - min(began for _, began, _ in runs)
    done = sum(run[0] for run in runs)
    return done / max(took_s, 1e-9), done
