"""Images in penstock.torch.DataLoader: tensors with the pixels of the function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import images
from penstock.errors import UsageError
from tests.images import pictures

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures.write_folder(tmp_path_factory.mktemp("images") / "train", 9)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"sampler": [3, 1, 4]}])
def test_tensors_have_the_pixels_of_the_function(folder: Path, options: Any) -> None:
    """Threads, the calling thread and samplers give the same images, as tensors."""
    dataset = penstock.open(folder, index="memory")
    crop = images.RandomResizedCrop(16, layout="chw", dtype="float16", flip=0.5)
    if "sampler" not in options:
        options = options | {"shuffle": True}
    loader = penstock.torch.DataLoader(dataset, 4, seed=3, decode=crop, **options)
    rows = 0
    for batch in loader:
        assert batch["image"].dtype == torch.float16
        assert batch["label"].dtype == torch.int64
        for row, number in enumerate(batch.ids.tolist()):
            rows += 1
            if "sampler" in options:
                continue  # such rows draw by their place in the sampler
            made = crop(dataset[number], penstock.rng(3, 0, number))["image"]
            assert torch.equal(batch["image"][row], torch.from_numpy(made))
    assert rows == (3 if "sampler" in options else 9)


def test_workers_that_load_batches_use_positions(tmp_path: Path) -> None:
    """Processes, and the calling thread with a sampler, give the same pixels with positions."""
    folder = pictures.write_folder(tmp_path / "train", 9)
    crop = images.RandomResizedCrop(16, flip=0.5, boxes=True)
    processes: Any = {"workers": "processes", "num_workers": 1, "shuffle": True}
    found = []
    for _ in range(2):
        dataset = penstock.open(folder)
        for options in (processes, {"sampler": [3, 1, 4, 1]}):
            loader = penstock.torch.DataLoader(dataset, 4, seed=3, decode=crop, **options)
            batches = [batch for _ in range(2) for batch in loader]
            loader.close()
            for batch in batches if options is processes else ():
                for row, number in enumerate(batch.ids.tolist()):
                    made = crop(dataset[number], penstock.rng(3, batch.epoch, number))
                    assert torch.equal(batch["image"][row], torch.from_numpy(made["image"]))
            found.append([(batch["image"], batch["crop"], batch.ids) for batch in batches])
        images.find_positions(dataset)
    for one, other in zip(found[:2], found[2:], strict=True):
        for parts in zip(one, other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(*parts, strict=True))
    drawn = found[1][0][0]
    assert not torch.equal(drawn[1], drawn[3])  # a sample that comes twice is drawn anew


def test_bfloat16_is_torchs(folder: Path) -> None:
    """Tensors of bfloat16 need no other library, and hold the rounded values of float32."""
    dataset = penstock.open(folder, index="memory")
    found = {}
    for dtype in ("bfloat16", "float32"):
        transform = images.Resize(16, dtype=dtype)  # type: ignore[arg-type]
        (batch,) = penstock.torch.DataLoader(dataset, 9, decode=transform)
        found[dtype] = batch["image"]
    assert found["bfloat16"].dtype == torch.bfloat16
    assert torch.equal(found["bfloat16"], found["float32"].to(torch.bfloat16))


def test_whole_images_are_ragged_tensors(folder: Path) -> None:
    """Images in their own sizes come as tensors of pixels with their offsets."""
    dataset = penstock.open(folder, index="memory")
    (batch,) = penstock.torch.DataLoader(dataset, 9, decode=images.Decode())
    height, width = batch["size"][4].tolist()
    made = batch["image"][4].reshape(height, width, 3).numpy()
    assert (made == pictures.decode(dataset[int(batch.ids[4])]["data"])).all()


def test_data_without_images_is_told_at_once(tmp_path: Path) -> None:
    """A DataLoader of numbers refuses a transform of images when it is made."""
    (tmp_path / "x.bin").write_bytes(bytes(160))
    dataset = penstock.open(tmp_path / "x.bin", dtype="float32", shape=(4,))
    with pytest.raises(UsageError, match="no field with the bytes of images"):
        penstock.torch.DataLoader(dataset, 4, decode=images.Resize(8))
