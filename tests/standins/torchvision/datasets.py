"""Folders of images, a class a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

import torch


class ImageFolder(torch.utils.data.Dataset[Any]):
    """Images below the folders of a root, in their order, with the number of the folder."""

    def __init__(self, root: str, transform: Any) -> None:
        self.transform = transform
        self.classes = sorted(path.name for path in Path(root).iterdir())
        self.samples = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((Path(root) / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        path, target = self.samples[number]
        return self.transform(Image.open(path).convert("RGB")), target
