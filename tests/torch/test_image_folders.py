"""torchvision's ImageFolder in our DataLoader: `explain` names the lines that penstock takes."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from penstock.torch.image_folders import FolderReading, open_image_folder  # noqa: E402
from penstock.torch.loader import DataLoader  # noqa: E402
from tests.images import pictures  # noqa: E402
from tests.images.torchvision_operations import STANDINS  # noqa: E402

# ruff: noqa: NPY002 (numpy's global generator is what users draw from)


class DatasetFolder:
    """torchvision's, as far as penstock reads it. Images are decoded many times: it is slow."""

    def __init__(self, root: Path, transform: Any = None, **options: Any) -> None:
        self.root, self.transform = root, transform
        self.classes = sorted(place.name for place in root.iterdir() if place.is_dir())
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples = [
            (str(path), number)
            for name, number in self.class_to_idx.items()
            for path in sorted((root / name).rglob("*.jpg"))
        ]
        self.targets = [number for _, number in self.samples]
        self.extensions: Any = (".jpg",)
        self.target_transform = None
        self.loader = pil_loader
        vars(self).update(options)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        path, target = self.samples[number]
        random.random(), np.random.random(), torch.rand(1)
        for _ in range(20):
            item = self.transform(self.loader(path))
        return torch.from_numpy(item.copy()), target


class ImageFolder(DatasetFolder):
    pass


ImageFolder.__module__ = "torchvision.datasets.folder"


class Annotated(ImageFolder):
    def __getitem__(self, number: int) -> Any:
        return number


def pil_loader(path: str) -> Any:
    return pictures.Image.open(path).convert("RGB")


def read_bytes(path: str) -> bytes:
    return Path(path).read_bytes()


TRANSFORM = STANDINS.Compose([STANDINS.Resize((20, 24)), STANDINS.ToTensor()])
GIVEN: dict[str, Any] = dict.fromkeys(("collate_fn", "sampler", "batch_sampler")) | {
    "batch_size": 4
}


def read(dataset: Any, **given: Any) -> FolderReading:
    reading = open_image_folder(dataset, GIVEN | given, DataLoader)
    assert reading is not None
    return reading


def test_the_lines_that_explain_names_run(tmp_path: Path) -> None:
    """`explain` of a loader of an ImageFolder prints four lines, which give the same images."""
    pictures.write_folder(tmp_path, 12)
    dataset = ImageFolder(tmp_path, TRANSFORM)
    loader = DataLoader(dataset, batch_size=4, shuffle=False)
    theirs = list(loader)
    text = str(loader.explain())
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert len(lines) == 4
    assert "penstock's own decoding: a thread decodes" in text
    names: dict[str, Any] = {"transform": TRANSFORM}
    exec("\n".join(lines), names)
    for (ours, labels), (images, targets) in zip(names["loader"], theirs, strict=True):
        assert ours.dtype == images.dtype
        assert (ours - images).abs().max() * 255 <= 1.01
        assert labels.tolist() == targets.tolist()
    assert text == str(loader.explain())  # measured once


def test_the_lines_open_what_the_folder_has(tmp_path: Path) -> None:
    """Notes beside images, and folders that look like splits, are options of the named lines."""
    pictures.write_folder(tmp_path / "train", 4)
    pictures.write_folder(tmp_path / "test", 4)
    reading = read(ImageFolder(tmp_path, TRANSFORM))
    assert "extensions=['.jpg'], split=''" in reading._list_lines()
    (tmp_path / "train" / "class-0" / "notes.txt").write_text("notes")
    reading = read(ImageFolder(tmp_path / "train", TRANSFORM))
    assert "train', extensions=['.jpg'])" in reading._list_lines()
    (tmp_path / "train" / "class-0" / ".hidden.jpg").write_bytes(b"")
    assert "other files" in read(ImageFolder(tmp_path / "train", TRANSFORM)).problem


def test_the_lines_have_the_loaders_arguments(tmp_path: Path) -> None:
    """All that are not the usual ones; objects by the names of their arguments."""
    pictures.write_folder(tmp_path, 12)
    options: dict[str, Any] = {"drop_last": True, "seed": 0, "generator": torch.Generator()}
    loader = DataLoader(ImageFolder(tmp_path, TRANSFORM), 5, True, **options)
    folder = open_image_folder(loader.dataset, loader._given, DataLoader)
    assert folder is not None
    text = folder._list_lines()
    assert (
        "(dataset, batch_size=5, shuffle=True, drop_last=True, generator=generator, seed=0, d"
        in text
    )
    names: dict[str, Any] = {"transform": TRANSFORM} | options
    exec("\n".join(line.strip() for line in text.splitlines()), names)
    assert len(list(names["loader"])) == len(loader) == 2
    single = DataLoader(loader.dataset, None)
    folder = open_image_folder(single.dataset, single._given, DataLoader)
    assert folder is not None
    assert "DataLoader(dataset, batch_size=None, decode=" in folder._list_lines()


def test_measuring_moves_no_generator(tmp_path: Path) -> None:
    """The next draws of the process are those that it would have made without `explain`."""
    pictures.write_folder(tmp_path, 4)
    reading = read(ImageFolder(tmp_path, TRANSFORM))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    threads = torch.get_num_threads()
    (gain,) = reading.measure_gains()
    assert gain.factor > 1
    assert before == (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    )
    assert torch.get_num_threads() == threads


def test_the_time_is_bounded(tmp_path: Path) -> None:
    """By a clock of a second for each reading one image is timed, behind the first."""
    pictures.write_folder(tmp_path, 30)
    reading = read(ImageFolder(tmp_path, TRANSFORM))
    (gain,) = reading.measure_gains(itertools.count().__next__)
    assert "measured on 1 images" in gain.how


def test_what_cannot_be_translated_is_named(tmp_path: Path) -> None:
    """Each part of the user's that the core cannot have is named, and nothing is measured."""
    pictures.write_folder(tmp_path, 4)
    some = ImageFolder(tmp_path).samples[1:]  # of which the user has left one out
    jitter = STANDINS.Compose([STANDINS.ColorJitter(0.4), STANDINS.ToTensor()])
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (ImageFolder(tmp_path, jitter), {}, "ColorJitter is not in the core"),
        (ImageFolder(tmp_path), {}, "no transform="),
        (Annotated(tmp_path, TRANSFORM), {}, "Annotated has its own __getitem__"),
        (ImageFolder(tmp_path, TRANSFORM, loader=read_bytes), {}, "its loader= is"),
        (ImageFolder(tmp_path, TRANSFORM, target_transform=abs), {}, "target_transform="),
        (ImageFolder(tmp_path, TRANSFORM, extensions=None), {}, "is_valid_file="),
        (ImageFolder(tmp_path, TRANSFORM), {"collate_fn": list}, "collate_fn="),
        (ImageFolder(tmp_path, TRANSFORM), {"sampler": range(4)}, "sampler= is"),
        (ImageFolder(tmp_path, TRANSFORM), {"batch_sampler": [[1, 2]]}, "sampler= is"),
        (ImageFolder(tmp_path, TRANSFORM, samples=some), {}, "other files or classes"),
    ]
    for dataset, given, words in cases:
        reading = read(dataset, **given)
        assert words in reading.note
        assert reading.measure_gains() == ()
    loader = DataLoader(cases[0][0], 2)
    assert "ColorJitter" in loader.explain().setup.note
    assert open_image_folder(DatasetFolder(tmp_path), GIVEN, DataLoader) is None
