"""Images for the demo: where they come from, and how a sample's bytes become an array."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import penstock
from penstock import images
from penstock.errors import DecodeError, LimitError

EXTENSIONS = ("jpg", "jpeg", "jpe", "png", "gif", "bmp", "webp", "tif", "tiff", "ppm", "pgm")
IMAGES_MAX, BYTES_MAX = 4_000, 150_000_000  # of the user's: enough for a demo of minutes


@dataclass(frozen=True)
class Decode:
    """Turns a sample into {"image": uint8 (channels, side, side), "label", "key", "whole"}.

    An image that cannot be decoded becomes a black one with "whole" False: the demo counts it with
    weight 0 and names it. A decode function that raises would end the run instead, with the file's
    name in the error.
    """

    side: int
    channels: int

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        try:
            image = self._resize(sample["data"])[: self.channels]  # grey: three channels alike
        except (DecodeError, LimitError):
            image = None
        whole = image is not None
        if image is None:
            image = np.zeros((self.channels, self.side, self.side), np.uint8)
        label = sample.get("label", -1)
        return {"image": image, "label": label, "key": sample["__key__"], "whole": whole}

    @cached_property
    def _resize(self) -> images.Resize:
        return images.Resize(self.side, layout="chw")


def write_digits(folder: Path) -> tuple[Path, Path]:
    """The digits of scikit-learn as PNG files in class sub-folders; every fifth is held out."""
    if not folder.exists():
        from sklearn.datasets import load_digits  # slow to import, and needed only once

        digits = load_digits()
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            part = "test" if number % 5 == 4 else "train"
            path = unfinished / part / str(label) / f"{number:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 15).astype(np.uint8)).save(path)
        unfinished.rename(folder)
    return folder / "train", folder / "test"


def open_images(path: Path) -> penstock.Dataset:
    """A folder of images, or a listing that the demo wrote, which names those of the user."""
    if path.is_dir():
        return penstock.open(path)
    return penstock.open(path, outside=True)


@dataclass(frozen=True)
class Found:
    """The user's images as two listings, and their classes, if the folder has any."""

    train: Path
    test: Path
    classes: tuple[str, ...] | None
    count: int
    total: int


def list_images(folder: Path, target: Path) -> Found:
    """Writes train.txt and test.txt: a path and a label on each line, every fifth held out.

    Nothing is written to the user's folder. Of many images a fair sample is taken.
    """
    dataset = penstock.open(folder, extensions=EXTENSIONS, index="memory")
    total = len(dataset)
    affordable = max(40, int(BYTES_MAX / max(1, dataset.index.mean_bytes)))
    count = min(total, IMAGES_MAX, affordable)
    chosen = penstock.Order(total, seed=0).samples(np.arange(count, dtype=np.uint64))
    labels = dataset.index.labels(chosen)
    lines: dict[str, list[str]] = {"train": [], "test": []}
    for at, number in enumerate(chosen.tolist()):
        path = os.path.join(folder, dataset.index.key(number))
        if "\n" not in path:
            label = "" if labels is None else f"\t{labels[at]}"
            lines["test" if at % 5 == 4 else "train"].append(f"{path}{label}\n")
    target.mkdir(parents=True, exist_ok=True)
    for part, text in lines.items():
        (target / f"{part}.txt").write_text("".join(text), errors="surrogateescape")
    return Found(target / "train.txt", target / "test.txt", dataset.classes, count, total)
