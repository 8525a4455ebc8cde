"""The page's recipe for albumentations: equal runs on any number of threads."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docsite.blocks import find_blocks

import penstock
from penstock import images
from tests.images import pictures

PAGE = Path(__file__).parents[2] / "docs" / "images" / "augmentations.md"


class Compose:
    """albumentations' Compose as far as the page uses it: one generator, which calls advance."""

    def __init__(self, operations: list[Any]) -> None:
        self._operations = operations
        self._random = np.random.default_rng()

    def set_random_seed(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, image: Any) -> dict[str, Any]:
        for operation in self._operations:
            image = operation(image, self._random)
        return {"image": image}


def add_noise(p: float) -> Any:
    def operation(image: Any, random: np.random.Generator) -> Any:
        return image if random.random() >= p else image ^ random.integers(0, 8, dtype=np.uint8)

    return operation


def test_the_recipe_is_equal_on_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread and three give the same images, with albumentations or what stands for it."""
    if not importlib.util.find_spec("albumentations"):
        module: Any = types.ModuleType("albumentations")
        module.Compose, module.ColorJitter, module.GaussianBlur = Compose, add_noise, add_noise
        monkeypatch.setitem(sys.modules, "albumentations", module)
    (block,) = (block for block in find_blocks(PAGE.read_text()) if "albumentations" in block.text)
    names: dict[str, Any] = {"crop": images.RandomResizedCrop(20, flip=0.5)}
    exec(block.text, names)
    dataset = penstock.open(pictures.write_folder(tmp_path, 24))
    runs = []
    for threads in (1, 3):
        with penstock.Loader(
            dataset, 4, seed=0, decode=names["decode"], decode_threads=threads
        ) as loader:
            runs.append(np.stack([batch["image"] for batch in loader]))
    assert (runs[0] == runs[1]).all()
