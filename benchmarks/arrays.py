"""python -m benchmarks.arrays [--quick]: windows of arrays, against loops over their libraries.

Weather: two fields in Zarr, a day a chunk (zstd), windows of 24 hours and the 6 behind them on 64 x
64 places. The same windows, in the same random order, are read by two threads that index the arrays
of zarr; and by penstock, with memory for a quarter of the decoded data and for all of it. In blocks
(shuffle="auto") the windows are others. Volumes: patches of 96^3 in HDF5 (gzip), against
two threads with h5py. One sample a file of 4 MB, NPZ and HDF5, against two threads that open
and read. Statistics of 1 GB of a .npy and of the weather, against reading and decoding them alone.
By the clock, turn by turn; the same against xbatcher and MONAI (`array_rivals`). Windows of 10^9
and more: opening, memory, planning.
Record: benchmarks/results/arrays.json.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr

import penstock
from penstock.dataset.sample import FieldReader
from penstock.dataset.stats import _divide
from penstock.index.codecs import registry
from penstock.plan.batch_layout import place_batches

from .__main__ import finish
from .array_rivals import Pass, time_monai, time_xbatcher
from .contender import ROOT
from .record import Record, Row
from .text import make_row, take_turns

THREADS = 2
HOURS, LATITUDES, LONGITUDES = 24, 128, 256
WEATHER = {
    "window": {"time": 24, "lat": 64, "lon": 64},
    "stride": {"time": 6, "lat": 32, "lon": 32},
    "target": {"time": (24, 30)},
}
APART = {"window": WEATHER["window"]}
"""Windows side by side, none of which reads what another one does."""
PATCH = 96
BILLION = 40_000
Other = Callable[[Sequence[int]], Pass]
"""A way to read these samples, which gives a function that does so and times it, and a note."""


def write_weather(path: Path, days: int) -> Path:
    """Two smooth fields with a little noise, rounded as observations are."""
    if path.exists():
        return path
    random = np.random.default_rng(1)
    group = zarr.open_group(path, mode="w")
    shape = (days * HOURS, LATITUDES, LONGITUDES)
    coarse = random.normal(size=(shape[0], LATITUDES // 8, LONGITUDES // 8)).astype("f4")
    smooth = np.cumsum(coarse, axis=0).repeat(8, axis=1).repeat(8, axis=2)
    for name in ("t2m", "wind"):
        made = group.create_array(
            name,
            shape=shape,
            chunks=(HOURS, LATITUDES, LONGITUDES),
            dtype="f4",
            dimension_names=("time", "lat", "lon"),
            compressors=zarr.codecs.ZstdCodec(level=3),
        )
        made[:] = (smooth + random.normal(size=shape).astype("f4") * 0.01).round(2)
    return path


def write_volumes(path: Path, count: int) -> Path:
    """Volumes of 192^3 in chunks of 48^3, as scans are: smooth, with noise, 16 bits."""
    if not path.exists():
        random = np.random.default_rng(2)
        with h5py.File(part := path.with_suffix(".part"), "w") as file:
            made = file.create_dataset(
                "scan", (count, 192, 192, 192), "i2", chunks=(1, 48, 48, 48), compression="gzip"
            )
            for number in range(count):
                coarse = random.normal(0, 300, (24, 24, 24))
                smooth = coarse.repeat(8, 0).repeat(8, 1).repeat(8, 2)
                made[number] = (smooth + random.normal(0, 4, smooth.shape)).astype("i2")
        part.rename(path)
        os.sync()  # what is measured next does not wait for it
    return path


def write_files(folder: Path, kind: str, count: int) -> Path:
    """Simulations of 4 MB, one a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"{number:04}.{kind}"
        if path.exists():
            continue
        values = np.random.default_rng(number).normal(size=(4, 64, 64, 64)).astype("f4")
        if kind == "npz":
            np.savez(path, field=values)
            continue
        with h5py.File(path, "w") as file:
            file["field"] = values
    return folder


def time_loader(
    open_data: Callable[[], Any], batch: int, count: int, seed: int, **options: Any
) -> tuple[float, list[int]]:
    """Seconds that a new loader takes for so many samples, and their numbers. The data is opened
    again, so that nothing of it is decoded yet."""
    data = open_data()
    began, numbers = time.perf_counter(), []
    with penstock.Loader(data, batch, seed=seed, **options) as loader:
        for got in loader:
            numbers += got.ids.tolist()
            if len(numbers) >= count:
                break
        return time.perf_counter() - began, numbers


def time_threads(read: Callable[[int], Any], numbers: Iterable[int]) -> float:
    """Seconds of two threads that read samples one by one."""
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(read, numbers):
            pass
    return time.perf_counter() - began


def loop(read: Callable[[int], Any]) -> Other:
    """Two threads that read samples one by one."""
    return lambda numbers: (partial(time_threads, read, numbers), "")


class Race:
    """Pairs of penstock and another reader of the same samples."""

    def __init__(self, record: Record, rounds: int, seed: int) -> None:
        self.record, self.rounds, self.seed = record, rounds, seed

    def run(
        self,
        name: str,
        open_data: Callable[[], Any],
        other: Other,
        count: int,
        target: float | None,
        batch: int = 16,
        **options: Any,
    ) -> None:
        """Add the row; the other reads what the loader has just read, in its order, unless it has
        an order of its own."""
        numbers = time_loader(open_data, batch, count, self.seed, **options)[1][:count]
        try:
            theirs, note = other(numbers)
        except ModuleNotFoundError as error:
            note = f"{error.name} is not installed: make bench-arrays installs it"
            self.record.rows.append(Row(name, None, "samples/s", target=target, note=note))
            return

        def ours() -> float:
            return time_loader(open_data, batch, count, self.seed, **options)[0]

        pairs = take_turns(ours, theirs, self.rounds)
        row = make_row(name, pairs, len(numbers), "samples/s", target, self.seed, note)
        self.record.rows.append(row)
        self.record.raw[name] = {"seconds": pairs}


def count_decodes(
    open_data: Callable[[], Any], codec: str, chunks: int, seed: int, **options: Any
) -> float:
    """Decodes of a chunk in an epoch."""
    done = 0
    decode = registry.CODECS[codec]

    def counted(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        return decode(*arguments)

    registry.CODECS[codec] = counted
    try:
        time_loader(open_data, 16, len(open_data()), seed, **options)
    finally:
        registry.CODECS[codec] = decode
    return done / chunks


def measure_weather(race: Race, path: Path, days: int, count: int) -> None:
    open_data = partial(penstock.open, path, index="memory", **WEATHER)
    data = open_data()
    group = zarr.open_group(path, mode="r")
    fields = [group["t2m"], group["wind"]]
    across = (LONGITUDES - 64) // 32 + 1
    down = (LATITUDES - 64) // 32 + 1
    decoded = 2 * days * HOURS * LATITUDES * LONGITUDES * 4

    def read(number: int) -> list[Any]:
        hour, place = divmod(number, across * down)
        lat, lon = (32 * at for at in divmod(place, across))
        hour *= 6
        box = slice(lat, lat + 64), slice(lon, lon + 64)
        return [
            field[(slice(hour + low, hour + high), *box)]
            for field in fields
            for low, high in ((0, 24), (24, 30))
        ]

    sample, batch = data[len(data) - 1], read(len(data) - 1)
    expected = zip(("t2m", "t2m_target", "wind", "wind_target"), batch, strict=True)
    assert all(np.array_equal(sample[name], one) for name, one in expected)
    quarter = penstock.Budget(decoded_bytes=decoded // 4)
    whole = penstock.Budget(decoded_bytes=decoded + (decoded >> 3))
    block = across * down * (days * HOURS // 4 - 60) // 6
    large = {"block": block, "group": 1, "budget": quarter}
    of_days: dict[str, Any] = {"shuffle": "blocked", "block": 8, "group": 4, "budget": quarter}
    zarr_loop = "a loop over zarr, 2 threads", loop(read)
    xbatcher = "xbatcher + DataLoader", partial(time_xbatcher, path, False)
    loaded = "xbatcher + DataLoader, all loaded before", partial(time_xbatcher, path, True)
    for name, (other, theirs), wanted, options in (
        ("exact, 25 % decoded", zarr_loop, 3, {"budget": quarter}),
        ("exact, all decoded", zarr_loop, 3, {"budget": whole}),
        ("as auto chooses", zarr_loop, None, {"shuffle": "auto"}),
        ("exact, 25 % decoded", xbatcher, 5, {"budget": quarter}),
        ("exact, all decoded", xbatcher, 5, {"budget": whole}),
        ("exact, all decoded", loaded, None, {"budget": whole}),
    ):
        race.run(f"windows, {name} / {other}", open_data, theirs, count, wanted, **options)
    apart = partial(penstock.open, path, index="memory", **APART)
    for name, opener, target, options in (
        ("exact, 25 % decoded", open_data, 2.5, {"budget": quarter}),
        ("exact, all decoded", open_data, None, {"budget": whole}),
        ("as auto chooses", open_data, None, {"shuffle": "auto"}),
        ("in large blocks, 25 % decoded", open_data, 1.05, {"shuffle": "blocked", **large}),
        ("windows side by side, exact, 25 % decoded", apart, 2.5, {"budget": quarter}),
        ("windows side by side, in blocks of a day", apart, 1.05, of_days),
    ):
        decodes = count_decodes(opener, "zarr", 2 * days, race.seed, **options)
        met = None if target is None else decodes <= target
        note = ""
        if options == {"budget": quarter}:
            numbers = opener().order(race.seed).run(0, len(opener())).astype(int)
            wide = opener is apart
            shape = (LATITUDES // 64, LONGITUDES // 64) if wide else (down, across)
            at = np.stack(np.unravel_index(numbers, (len(opener()) // math.prod(shape), *shape)), 1)
            at *= (24, 2, 2) if wide else (6, 1, 1)
            held = days * HOURS * LATITUDES * LONGITUDES // 1024 / 4
            least = bound_decodes(at.tolist(), 24 if wide else 30, days, held)
            note = f"at least {least:.3g} for this order and memory"
        name = f"decodes of a chunk an epoch, {name}"
        race.record.rows.append(Row(name, decodes, "", target=target, met=met, note=note))
    took, numbers = time_loader(apart, 16, len(apart()), race.seed, budget=quarter)
    rate = Row("windows side by side, exact, 25 % decoded", len(numbers) / took, "samples/s")
    race.record.rows.append(rate)


def bound_decodes(starts: Sequence[Sequence[int]], reach: int, days: int, held: float) -> float:
    """The least decodes of a day by any plan that keeps pieces of days: of some windows in a row,
    a day is decoded, unless all that they want of it was held before, of all days as much as
    memory has.

    starts:  of windows, in their order: the hour, and 32s of latitude and longitude.
    held:    memory, in places of an hour and 32 x 32.
    """
    most = 0
    for together in (2**power for power in range(4, len(starts).bit_length())):
        decodes = 0
        for first in range(0, len(starts), together):
            wanted = np.zeros((days * HOURS, LATITUDES // 32, LONGITUDES // 32), bool)
            for hour, lat, lon in starts[first : first + together]:
                wanted[hour : hour + reach, lat : lat + 2, lon : lon + 2] = True
            sizes = np.sort(wanted.reshape(days, -1).sum(axis=1))
            sizes = sizes[sizes > 0]
            covered = np.searchsorted(np.cumsum(sizes), held, "right") if first else 0
            decodes += len(sizes) - int(covered)
        most = max(most, decodes)
    return most / days


def measure_volumes(race: Race, path: Path, count: int) -> None:
    window = {"0": 1, "1": PATCH, "2": PATCH, "3": PATCH}
    stride = {"0": 1, "1": 32, "2": 32, "3": 32}
    options: dict[str, Any] = {"isolate": False, "window": window, "stride": stride}
    open_data = partial(penstock.open, path, index="memory", **options)
    data = open_data()
    file = h5py.File(path)
    scan, steps = file["scan"], (192 - PATCH) // 32 + 1

    def read(number: int) -> Any:
        volume, *at = np.unravel_index(number, (scan.shape[0], steps, steps, steps))
        return scan[(int(volume), *(slice(32 * int(a), 32 * int(a) + PATCH) for a in at))]

    assert np.array_equal(data[len(data) - 1]["scan"][0], read(len(data) - 1))

    def take_volumes(numbers: Sequence[int]) -> Pass:
        return time_monai(path, steps**3, sorted(numbers, key=lambda number: number // steps**3))

    blocks = 4 * steps**3  # whole volumes
    by_volume: dict[str, Any] = {"shuffle": "blocked", "block": steps**3, "group": 4}
    for name, other, each, how, target in (
        ("exact / a loop over h5py, 2 threads", loop(read), count, {}, 3),
        ("exact / MONAI's PatchDataset", partial(time_monai, path, 1), count // 4, {}, 3),
        ("in blocks / MONAI, a volume at a time", take_volumes, blocks, by_volume, 3),
    ):
        race.run(f"patches 96^3, {name}", open_data, other, each, target, batch=8, **how)
    file.close()


def measure_files(race: Race, folder: Path, count: int) -> None:
    for kind in ("npz", "h5"):
        where = write_files(folder / f"files-{kind}", kind, count)
        open_data = partial(penstock.open, where, index="memory", sample="file")
        data = open_data()
        paths = sorted(where.iterdir())

        def read(number: int, paths: list[Path] = paths, kind: str = kind) -> Any:
            if kind == "npz":
                with np.load(paths[number]) as file:
                    return file["field"]
            with h5py.File(paths[number]) as file:
                return file["field"][()]

        assert np.array_equal(data[1]["field"], read(1))
        name = f"one sample a file, {kind} of 4 MB / open + read, 2 threads"
        race.run(name, open_data, loop(read), count, 0.9, batch=4)


def write_numbers(path: Path, rows: int) -> Path:
    """Temperatures of 32 bits, a MB a row."""
    if not path.exists():
        array = np.lib.format.open_memmap(path, "w+", "f4", (rows, 256, 1024))
        for number in range(rows):
            array[number] = np.random.default_rng(number).normal(280, 10, (256, 1024))
        array.flush()
    return path


def prepare(path: Path, is_cold: bool) -> None:
    """Take a file out of the page cache, if it shall come from the disk."""
    if is_cold:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def time_reading(path: Path, is_cold: bool, passes: int) -> float:
    """Seconds of two threads that read and decode what `stats` does, in its batches. The data is
    opened again for each pass, so that nothing of it is decoded yet."""
    seconds = 0.0
    for _ in range(passes):
        prepare(path, is_cold)
        data = penstock.open(path, index="memory")
        rows, samples = _divide(data)

        def read(first: int, data: Any = data, rows: int = rows, samples: int = samples) -> None:
            with closing(FieldReader(data.index)) as reader:
                for at in range(first, min(first + samples, len(data)), rows):
                    numbers = np.arange(at, min(at + rows, len(data)), dtype=np.uint64)
                    reader.read(data.ids(numbers))

        seconds += time_threads(read, range(0, len(data), samples))
    return seconds


def time_stats(path: Path, is_cold: bool, bins: int) -> float:
    prepare(path, is_cold)
    data = penstock.open(path, index="memory")
    began = time.perf_counter()
    data.stats(bins=bins, threads=THREADS, force=True)
    return time.perf_counter() - began


def compare_stats(data: Any, arrays: Mapping[str, Any]) -> float:
    """The largest relative difference of mean and deviation from numpy's, in float64."""
    worst = 0.0
    for name, stats in data.load_stats().items():
        values = arrays[name]
        ends = range(0, values.shape[0], 64)
        mean = sum(values[at : at + 64].sum(dtype=np.float64) for at in ends) / stats.count
        squares = (np.square(values[at : at + 64] - np.float64(mean)).sum() for at in ends)
        sd = (sum(squares) / stats.count) ** 0.5
        worst = max(worst, abs(stats.mean / mean - 1), abs(stats.sd / sd - 1))
    return worst


def measure_stats(race: Race, numbers: Path, weather: Path) -> None:
    """Statistics against reading and decoding alone, and against numpy."""
    record, worst = race.record, 0.0
    arrays = {
        numbers: {"data": np.load(numbers, mmap_mode="r")},
        weather: zarr.open_group(weather),
    }
    for path, name, bins, is_cold, target in (
        (numbers, "npy from disk / reading", 0, True, 0.7),
        (numbers, "npy from the page cache / reading", 0, False, None),
        (numbers, "npy from the page cache, 64 bins / reading twice", 64, False, None),
        (weather, "Zarr (zstd) / decoding", 0, False, 0.7),
        (weather, "Zarr (zstd), 64 bins / decoding twice", 64, False, 0.7),
    ):
        data = penstock.open(path, index="memory")
        amount = len(data) * sum(field.nbytes or 0 for field in data.index.made) / 1e9
        ours = partial(time_stats, path, is_cold, bins)
        theirs = partial(time_reading, path, is_cold, 2 if bins else 1)
        pairs = take_turns(ours, theirs, race.rounds)
        name = f"statistics of {name}, 2 threads"
        record.rows.append(make_row(name, pairs, amount, "GB/s", target, race.seed, ""))
        record.raw[name] = {"seconds": pairs}
        if not bins:
            worst = max(worst, float(compare_stats(data, arrays[path])))
    name = "statistics / numpy in float64, largest relative difference"
    note = "target is an upper limit"
    record.rows.append(Row(name, worst, "", target=1e-12, met=worst <= 1e-12, note=note))


def measure_billion(record: Record, path: Path, seed: int) -> None:
    """Windows of 64 x 64 and of 64 neighbours, of files of holes."""
    rows = path / "billion.npy"
    long = path / "long.npy"
    for name, shape in ((rows, (BILLION, BILLION)), (long, (1_100_000_000,))):
        if not name.exists():
            np.lib.format.open_memmap(name, "w+", "u1", shape).flush()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    plane = penstock.open(rows, index="memory", window={0: 64, 1: 64}, stride={0: 1, 1: 1})
    took = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    line = penstock.open(long, index="memory", window={0: 64}, stride={0: 1})
    record.rows += [
        Row(f"{len(plane):,} windows: open", took, "s", target=0.2, met=took <= 0.2),
        Row("... memory", grown, "MB", target=100.0, met=grown <= 100),
    ]
    for data, name, target in ((line, "of one run", 0.3), (plane, "of 64 runs", None)):
        count = 1 << 15
        ids = data.order(seed).run(0, count).astype(np.uint64)
        planning = partial(place_batches, data.index, ids, np.arange(0, count + 1, 256))
        planning()
        began = time.thread_time()
        planning()
        each = (time.thread_time() - began) / count * 1e6
        met = None if target is None else each <= target
        row = Row(f"... plan a window {name}", each, "us", target=target, met=met)
        record.rows.append(row)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arrays", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and few pairs")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(options.data).resolve() / "arrays"
    folder.mkdir(parents=True, exist_ok=True)
    # As many samples a day and a volume in both: how often a chunk is wanted decides the ratios.
    days, volumes, rounds = (18, 8, 3) if options.quick else (36, 16, 5)
    rows = 256 if options.quick else 1024
    record = Record("arrays-quick" if options.quick else "arrays", options.seed, vars(options))
    race = Race(record, rounds, options.seed)
    measure_billion(record, folder, options.seed)
    measure_weather(race, write_weather(folder / f"weather-{days}.zarr", days), days, days * 8 // 3)
    record.write()  # a run that is cut short keeps what it has
    measure_volumes(race, write_volumes(folder / f"volumes-{volumes}.h5", volumes), volumes * 4)
    record.write()
    measure_files(race, folder, 96)
    record.write()
    numbers = write_numbers(folder / f"field-{rows}.npy", rows)
    measure_stats(race, numbers, folder / f"weather-{days}.zarr")
    finish(record)


if __name__ == "__main__":
    main()
