"""Changes that would make decoding cheaper: measured on images that are known to gain, or not."""

from __future__ import annotations

import collections
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import images
from penstock.images.gains import measure_gains
from penstock.images.positions import find_positions
from penstock.loader.collate import Arrays
from tests.images import pictures

low = images.RandomResizedCrop(16, (0.05, 0.1))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of pictures of which a crop needs a small part."""
    folder = tmp_path_factory.mktemp("images") / "train"
    folder.mkdir()
    for number in range(6):
        data = pictures.encode(pictures.paint(400, 500, number), quality=95)
        (folder / f"{number}.jpg").write_bytes(data)
    return folder


def list_gains(dataset: Any, transform: Any, path: str | None) -> list[Any]:
    return list(transform.open_data(dataset.index, path, Arrays()).measure_gains(dataset.index))


def test_small_crops_gain_by_positions_and_by_smaller_copies(large: Path, tmp_path: Path) -> None:
    """Both are named with the command that makes them; after one of them only the other is left."""
    folder = tmp_path / "train"
    shutil.copytree(large, folder)
    dataset = penstock.open(folder)
    gains = list_gains(dataset, low, str(folder))
    assert len(gains) == 2
    assert f"penstock index --positions {folder}" in gains[0].how
    assert "penstock convert --to tar --resize 19" in gains[1].how
    assert all(gain.factor > 1.2 and "measured on 6 images" in gain.how for gain in gains)
    find_positions(dataset)
    (left,) = list_gains(dataset, low, str(folder))
    assert "--resize 19" in left.how


def test_nothing_is_named_that_gains_nothing(tmp_path: Path) -> None:
    """Whole small images need all rows and have no smaller copy; Decode asks for every pixel."""
    folder = pictures.write_folder(tmp_path / "train", 6, progressive=False)
    dataset = penstock.open(folder, index="memory")
    assert list_gains(dataset, images.CenterCrop(40), None) == []
    assert list_gains(dataset, images.Resize(200), None) == []
    assert list_gains(dataset, images.Decode(), str(folder)) == []
    assert list_gains(dataset, images.Resize(20, rotate=True), str(folder)) == []


def test_images_of_other_kinds_and_damaged_ones_are_no_trouble(tmp_path: Path) -> None:
    """Pillow's images gain by copies, and what cannot be decoded is left out."""
    folder = tmp_path / "train"
    folder.mkdir()
    for number in range(4):
        data = pictures.encode(pictures.paint(300, 400, number), progressive=True)
        (folder / f"{number}.jpg").write_bytes(data[:200] if number == 0 else data)
    dataset = penstock.open(folder, index="memory")
    (gain,) = list_gains(dataset, low, str(folder))
    assert "measured on 3 images" in gain.how
    for path in folder.iterdir():
        path.unlink()
    assert list_gains(dataset, low, str(folder)) == []


def test_measuring_ends_before_its_time(large: Path) -> None:
    """An image that would take as long as those before, and too long, is not begun."""
    dataset = penstock.open(large, index="memory")
    for image_s, count in ((0.1, 6), (0.35, 5), (5.0, 1)):
        ticks = itertools.count(0, image_s)
        gains = measure_gains(
            dataset.index, 0, low._native, None, "data", 19, clock=lambda ticks=ticks: next(ticks)
        )
        assert gains
        assert all(f"measured on {count} images" in gain.how for gain in gains)


def test_a_loader_explains_what_would_help_its_decoding(large: Path, tmp_path: Path) -> None:
    """Steps without compute are bound by decoding, and the remedies are of these images."""
    (tmp_path / "many").mkdir()
    for number, path in itertools.product(range(8), large.iterdir()):
        os.link(path, tmp_path / "many" / f"{number}{path.name}")
    dataset = penstock.open(tmp_path / "many", index="memory")
    options: Any = {"decode": low, "rank": 0, "world_size": 1}
    with penstock.Loader(dataset, 4, **options) as loader:
        for _ in range(20):  # a machine that does other things may delay copies for once
            collections.deque(loader, 0)
            found = loader.explain()
            if found.bound == "decode":
                break
        assert found.bound == "decode"
        assert any(f"--positions {tmp_path / 'many'}" in remedy.how for remedy in found.remedies)
        assert loader.explain().remedies == found.remedies


def test_nothing_is_measured_of_compressed_chunks(large: Path, tmp_path: Path) -> None:
    """Whose parts are chunks, not images."""
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows = pa.table({"image_bytes": [path.read_bytes() for path in large.iterdir()] * 2})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=4)
    dataset = penstock.open(tmp_path / "a.parquet", index="memory")
    assert list_gains(dataset, low, None) == []
