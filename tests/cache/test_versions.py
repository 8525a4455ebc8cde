"""Tiers hold one version of the data: bytes of another one are never served."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.engine.object_store import open_bucket
from penstock.errors import ChangedError, MissingError, UsageError
from tests.cache.test_cache import disagree, run, total
from tests.services import S3, environment, moto
from tests.slices import first

ROWS, WIDTH = 240, 512
SIZE = ROWS * WIDTH


def values(version: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(version).integers(0, 256, (ROWS, WIDTH), dtype=np.uint8)


class Records:
    """One file of records."""

    options: dict[str, Any] = {"record_bytes": WIDTH}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        self.path = folder / "records.bin"

    def write(self, version: int) -> None:
        """Write a version in place; a second passes between two."""
        values(version).tofile(self.path)
        os.utime(self.path, (1e9 + version, 1e9 + version))


class Replaced(Records):
    """The same, by another file that takes the name."""

    def write(self, version: int) -> None:
        other = self.path.with_suffix(".part")
        values(version).tofile(other)
        os.utime(other, (1e9 + version, 1e9 + version))
        other.replace(self.path)


class Tree(Records):
    """A file for each sample, of which one in three differs between two versions."""

    options: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tree"
        self.path.mkdir()
        for row in range(ROWS):
            (self.path / f"{row:04}.bin").write_bytes(values(0)[row].tobytes())

    def write(self, version: int) -> None:
        for row in range(0, ROWS, 3):
            path = self.path / f"{row:04}.bin"
            path.write_bytes(values(version)[row].tobytes())
            os.utime(path, (1e9 + version, 1e9 + version))


def whole(place: Records, version: int) -> np.ndarray[Any, Any]:
    """All samples of a version."""
    data = values(version)
    if isinstance(place, Tree):
        data = values(0)
        data[::3] = values(version)[::3]
    return data


class Objects(Records):
    """Records in an object of S3, whose version is its entity tag."""

    def __init__(self, folder: Path) -> None:
        self.path = "s3://versions/records.bin"  # type: ignore[assignment]

    def write(self, version: int) -> None:
        open_bucket("s3://versions").put("records.bin", values(version).tobytes())


@pytest.fixture(scope="module")
def bucket() -> Iterator[None]:
    """A bucket of a service on the loopback."""
    with moto() as port, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(port).items():
            patch.setenv(name, value)
        S3(port, "versions")
        yield


KINDS = [Records, Replaced, Tree, Objects]


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("hosts", first(1, [[0, 1], [0], [0, 0]]))
@pytest.mark.parametrize("kind", first(1, KINDS))
def test_a_disk_of_another_version_is_refilled(
    kind: Callable[[Path], Records], hosts: list[int], tmp_path: Path
) -> None:
    """Data of the same names and sizes that was written again: later runs get the new bytes, and a
    version that is still the same is read from the disk."""
    (tmp_path / "data").mkdir()
    place = kind(tmp_path / "data")
    read: list[int] = []
    for version in (1, 2, 2):
        if version not in read:
            place.write(version)
        read.append(version)
        dataset = penstock.open(place.path, index="memory", **place.options)
        data = whole(place, version)
        identity = dataset.fingerprint

        def check(batch: penstock.Batch) -> None:
            assert (batch["data"] == data[batch.ids]).all()  # noqa: B023

        told = run(
            dataset,
            hosts,
            SIZE // 2 // len(set(hosts)),
            epochs=2,
            cache_block_bytes=2000,
            disk=(tmp_path, 4 << 20),
            check=check,
            global_batch_size=40,
        )
        loaded = total(told, "loaded_bytes")
        assert (loaded < SIZE) is (len(read) == 3), read
        assert dataset.fingerprint == identity


def test_a_version_is_of_times_and_an_identity_is_not(tmp_path: Path) -> None:
    """A copy with its times has the same version; another time of writing is another version."""
    place = Records(tmp_path)
    place.write(1)
    one = penstock.open(place.path, index="memory", **place.options).index
    copy = Records(tmp_path / "copy")
    copy.path.parent.mkdir()
    copy.write(1)
    same = penstock.open(copy.path, index="memory", **place.options).index
    assert (same.version, same.fingerprint) == (one.version, one.fingerprint)
    place.write(2)
    other = penstock.open(place.path, index="memory", **place.options).index
    assert other.version != one.version
    assert other.fingerprint == one.fingerprint


def test_ranks_that_see_other_versions_are_refused(tmp_path: Path) -> None:
    """Ranks that opened the data before and after it was written again would mix its bytes."""
    place = Records(tmp_path)
    place.write(1)
    before = penstock.open(place.path, index="memory", **place.options)
    place.write(2)
    after = penstock.open(place.path, index="memory", **place.options)
    with pytest.raises(
        UsageError, match=r"rank 1 sees other times of writing in .*start the job again"
    ):
        disagree(before, after)


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("kind", KINDS)
def test_files_are_looked_at_again_at_the_start_of_an_epoch(
    kind: Callable[[Path], Records], tmp_path: Path
) -> None:
    """Kept bytes of a file that was written again since are an error, as without a cache."""
    place = kind(tmp_path)
    place.write(1)
    dataset = penstock.open(place.path, index="memory", **place.options)
    cache = penstock.Cache(ram_bytes=2 * SIZE, cache_block_bytes=2000)
    with penstock.Loader(dataset, 40, cache=cache, rank=0, world_size=1) as loader:
        for _ in range(2):
            assert sum(len(batch.ids) for batch in loader) == ROWS
        place.write(2)
        with pytest.raises(ChangedError, match=r"of another size or time of writing since"):
            next(iter(loader))
        with pytest.raises(ChangedError):  # and it stays one
            next(iter(loader))


def test_a_kept_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """A vanished file is told with a cache too."""
    place = Tree(tmp_path)
    dataset = penstock.open(place.path, index="memory")
    cache = penstock.Cache(ram_bytes=2 * SIZE, cache_block_bytes=2000)
    with penstock.Loader(dataset, 40, cache=cache, rank=0, world_size=1) as loader:
        assert sum(len(batch.ids) for batch in loader) == ROWS
        (place.path / "0100.bin").unlink()
        with pytest.raises(MissingError, match=r"0100\.bin does not exist"):
            next(iter(loader))
