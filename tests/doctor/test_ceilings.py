"""Measured ceilings: what was measured is what is said, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import limits
from penstock.doctor import ceilings
from penstock.engine.host import find_mount
from penstock.engine.open import open_engine
from penstock.errors import ChangedError, MissingError, StorageError, UsageError
from penstock_bench.measurement import CHARGED, measure_use

RECORD = 64 * 1024
COUNT = 256


@pytest.fixture
def records(tmp_path: Path) -> penstock.Dataset:
    """16 MiB of records in one file."""
    path = tmp_path / "records.bin"
    path.write_bytes(os.urandom(COUNT * RECORD))
    return penstock.open(path, record_bytes=RECORD, index="memory")


@pytest.fixture
def photos(tmp_path: Path) -> penstock.Dataset:
    """60 files of 10 kB."""
    (tmp_path / "photos").mkdir()
    for number in range(60):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(os.urandom(10_000))
    return penstock.open(tmp_path / "photos", index="memory")


def choice_of(dataset: penstock.Dataset) -> Any:
    engine = open_engine(dataset.index.files, penstock.Budget(), dataset.index.mean_bytes)
    engine.close()
    return engine.choice


def test_cold_reads_come_from_the_device(records: penstock.Dataset) -> None:
    """A measurement that is reported as cold was fetched completely from the device, and is
    reported as such."""
    path = records.index.files.path(0)
    mount = find_mount(path)
    if mount is None or mount.file_system not in CHARGED - {"tmpfs", "ramfs", "overlay"}:
        pytest.skip(f"reads from the device are not charged on {mount}")
    Path(path).read_bytes()
    before = measure_use()
    ceiling = ceilings.measure_storage(records)
    spent = measure_use().since(before)
    assert ceiling is not None
    if not ceiling.cold:
        pytest.skip(f"{path} cannot be dropped from the page cache")
    assert spent.device_bytes is not None
    assert spent.device_bytes >= ceiling.probed.large_bytes + ceiling.probed.reads * RECORD
    for supply in (ceiling.bandwidth, ceiling.iops):
        assert supply.per_s > 0
        assert "dropped from the page cache first" in supply.how
    assert f"{ceiling.probed.reads:,} reads of samples" in ceiling.iops.how
    assert ceiling.bandwidth.per_s >= ceiling.iops.per_s * RECORD * 0.999, "samples are bytes, too"
    assert ceiling.latency_ns > 0


def test_data_in_memory_cannot_be_cold(tmp_path: Path) -> None:
    """On tmpfs it is measured as it lies, and said not to be cold."""
    mount = find_mount("/dev/shm")
    if mount is None or mount.file_system != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    path = f"/dev/shm/penstock-test-{os.getpid()}.bin"
    try:
        Path(path).write_bytes(bytes(COUNT * 1024))
        ceiling = ceilings.measure_storage(penstock.open(path, record_bytes=1024, index="memory"))
    finally:
        os.unlink(path)
    assert ceiling is not None
    assert not ceiling.cold
    assert "could not be dropped" in ceiling.iops.how


def test_the_least_data_there_is(tmp_path: Path) -> None:
    """One record is measured; samples without bytes are not."""
    (tmp_path / "one.bin").write_bytes(b"x" * 100)
    ceiling = ceilings.measure_storage(
        penstock.open(tmp_path / "one.bin", record_bytes=100, index="memory")
    )
    assert ceiling is not None
    assert ceiling.probed.reads == 1
    (tmp_path / "empty").mkdir()
    for name in "abc":
        (tmp_path / "empty" / name).touch()
    empty = penstock.open(tmp_path / "empty", index="memory")
    assert len(empty) == 3
    assert ceilings.measure_storage(empty) is None
    assert ceilings.estimate_demand(empty, choice_of(empty)).bytes == 0


def test_large_samples_take_little_memory(tmp_path: Path) -> None:
    """A sample of 1 GB, of which most is a hole, is read in part: no buffer holds 32 of it."""
    with open(tmp_path / "large.bin", "wb") as file:
        file.truncate(4 << 30)
    large = penstock.open(tmp_path / "large.bin", record_bytes=1 << 30, index="memory")
    ceiling = ceilings.measure_storage(large)
    assert ceiling is not None
    assert ceiling.probed.reads > 0
    assert 0 < ceiling.probed.large_bytes <= 64 * limits.run_bytes_max
    demand = ceilings.estimate_demand(large, choice_of(large))
    assert (demand.bytes, demand.reads) == (1 << 30, (1 << 30) // limits.run_bytes_max)


def test_a_file_that_changed_is_named(records: penstock.Dataset) -> None:
    """The error of a read is raised, not measured."""
    os.truncate(records.index.files.path(0), 10)
    with pytest.raises(ChangedError, match=r"records\.bin at byte"):
        ceilings.measure_storage(records)


def test_demand_of_records_and_of_files(
    records: penstock.Dataset, photos: penstock.Dataset, tmp_path: Path
) -> None:
    """Bytes and reads as a loader counts them; files that are kept open are not opened."""
    demand = ceilings.estimate_demand(records, choice_of(records), decoded_bytes=1000)
    assert (demand.bytes, demand.reads, demand.opens) == (RECORD, 1, 0)
    assert demand.copied_bytes == RECORD + 1000
    with penstock.Loader(records, 1, budget=penstock.Budget(mmap="off")) as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    assert demand.reads * COUNT >= stats["runs"], "neighbours may be read together"
    assert demand.bytes * COUNT == stats["bytes"]
    demand = ceilings.estimate_demand(photos, choice_of(photos))
    assert (demand.bytes, demand.reads, demand.opens) == (10_000, 1, 0)


def test_demand_of_several_fields_and_bands(tmp_path: Path) -> None:
    """Fields that lie apart are read apart; bands are read once for all that they hold."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "two.h5", "w") as file:
        file["a"] = np.random.default_rng(0).random((64, 4096))
        file["b"] = np.random.default_rng(1).random((64, 4096))
    two = penstock.open(tmp_path / "two.h5", index="memory")
    demand = ceilings.estimate_demand(two, choice_of(two))
    assert (demand.reads, demand.bytes) == (2, 2 * 4096 * 8)
    with h5py.File(tmp_path / "bands.h5", "w") as file:
        file.create_dataset(
            "a", data=np.zeros((64, 16), np.float32), chunks=(8, 16), compression="gzip"
        )
    bands = penstock.open(tmp_path / "bands.h5", index="memory")
    demand = ceilings.estimate_demand(bands, choice_of(bands))
    assert demand.reads == 1 / 8


def test_files_that_are_not_kept_open_are_opened_for_each_read(photos: penstock.Dataset) -> None:
    """In a process that may open few files, each read opens one."""
    import resource

    choice = choice_of(photos)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        demand = ceilings.estimate_demand(photos, choice)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert demand.opens == demand.reads == 1


def test_opening_is_measured(photos: penstock.Dataset) -> None:
    """Opens a second, of the files that there are; a missing one is named."""
    supply = ceilings.measure_opening(photos.index.files, threads=2)
    assert supply is not None
    assert supply.per_s > 0
    assert "of 60 files by 2 threads" in supply.how
    os.unlink(photos.index.files.path(0))
    with pytest.raises(MissingError, match=r"0\.jpg does not exist"):
        ceilings.measure_opening(photos.index.files, threads=2)


def test_decoding_is_measured_as_loaders_call_it(records: penstock.Dataset) -> None:
    """Samples as loaders pass them; the size of what is returned is told."""
    keys = set()

    def decode(sample: dict[str, Any]) -> dict[str, Any]:
        keys.update(sample)
        sample.clear()  # a decoder may change its dict
        return {"x": np.zeros(100, np.float32), "y": [b"1234", np.int64(3)]}

    rates = ceilings.measure_decoding(records, decode, threads=2)
    assert keys == {"data", "__key__", "__id__", "__epoch__"}
    assert rates.decoded_bytes == 400 + 4 + 8
    assert rates.all_cores.per_s > 0
    assert "in 2 threads" in rates.all_cores.how
    assert "decode" in rates.all_cores.how


def test_a_decode_that_fails_names_the_sample(photos: penstock.Dataset) -> None:
    """With its error, and what it is called with."""
    with pytest.raises(UsageError, match=r"failed for sample '\d+\.jpg' of .*KeyError\('image'\)"):
        ceilings.measure_decoding(photos, lambda sample: sample["image"])


def test_copying_is_measured() -> None:
    """All cores together."""
    assert ceilings.measure_copy_rate().per_s > 0


def test_writing_leaves_nothing(tmp_path: Path) -> None:
    """Written bytes reached the disk, and the file is gone."""

    def count_written() -> int:
        return int(Path("/proc/self/io").read_text().partition("\nwrite_bytes: ")[2].split()[0])

    before = count_written()
    supply = ceilings.measure_writing(str(tmp_path))
    written = count_written() - before
    assert supply.per_s > 0
    assert list(tmp_path.iterdir()) == []
    mount = find_mount(str(tmp_path))
    if mount is not None and mount.file_system == "ext4":
        assert written >= limits.ceiling_written_bytes


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    """Missing folders and places that take no files."""
    with pytest.raises(MissingError, match="none does not exist"):
        ceilings.measure_writing(str(tmp_path / "none"))
    with pytest.raises((StorageError, MissingError), match="/proc"):
        ceilings.measure_writing("/proc/self")


def test_the_fastest_real_device_says_its_speed(tmp_path: Path) -> None:
    """Only devices that are up and have hardware count; the loopback and bridges do not."""
    assert ceilings.read_link_speed(tmp_path) is None
    for name, state, speed, hardware in (
        ("lo", "unknown", None, False),
        ("br0", "up", "100000", False),
        ("eth0", "up", "10000", True),
        ("eth1", "down", "40000", True),
        ("eth2", "up", "-1", True),
    ):
        device = tmp_path / name
        device.mkdir()
        (device / "operstate").write_text(f"{state}\n")
        if speed is not None:
            (device / "speed").write_text(f"{speed}\n")
        if hardware:
            (device / "device").mkdir()
    supply = ceilings.read_link_speed(tmp_path)
    assert supply is not None
    assert supply.per_s == 1.25e9
    assert "eth0 says 10,000 Mbit/s: nominal" in supply.how


ENCODED = {
    "jpg": (b"\xff\xd8\xff\xe0", "images"),
    "png": (b"\x89PNG\r\n\x1a\n", "images"),
    "webp": (b"RIFF\x10\0\0\0WEBP", "images"),
    "bmp": (b"BM\x10\0\0\0\0\0\0\0\0\0", "images"),
    "flac": (b"fLaC", "audio"),
    "wav": (b"RIFF\x10\0\0\0WAVE", "audio"),
    "mp3": (b"\xff\xfb\x90", "audio"),
    "bin": (b"BMBMBMBMBMBM", ""),
}


@pytest.mark.parametrize("ending", ENCODED)
def test_what_samples_hold_is_seen_by_their_bytes(tmp_path: Path, ending: str) -> None:
    """Not by names, which tables do not have; only images are decoded without another package."""
    head, kind = ENCODED[ending]
    (tmp_path / "0.sample").write_bytes(head.ljust(100, b"\0"))
    found, decode = ceilings.find_decode(penstock.open(tmp_path, index="memory"))
    assert found == kind
    assert kind != "images" or decode is not None
    assert kind != "" or decode is None


def test_compressed_chunks_are_timed(tmp_path: Path, records: penstock.Dataset) -> None:
    """Each chunk once, of the fields that have chunks; data without any has no such ceiling."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"a": np.arange(20_000), "b": np.random.default_rng(0).random(20_000)})
    parquet.write_table(table, tmp_path / "t.parquet", compression="zstd", row_group_size=5_000)
    supply = ceilings.measure_unpacking(penstock.open(tmp_path / "t.parquet", index="memory"))
    assert supply is not None
    assert supply.per_s > 1000
    assert "each chunk once an epoch" in supply.how
    assert ceilings.measure_unpacking(records) is None
