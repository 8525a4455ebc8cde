"""Transforms with torchvision's names and attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

import torch


class Compose:
    def __init__(self, transforms: Sequence[Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class RandomResizedCrop:
    def __init__(self, size: int) -> None:
        self.size, self.scale, self.ratio = (size, size), (0.08, 1.0), (3 / 4, 4 / 3)
        self.interpolation, self.antialias = "bilinear", True

    def __call__(self, image: Any) -> Any:
        side = math.sqrt(torch.empty(1).uniform_(*self.scale).item())
        width, height = (max(1, int(length * side)) for length in image.size)
        left = int(torch.randint(image.width - width + 1, (1,)))
        top = int(torch.randint(image.height - height + 1, (1,)))
        box = (left, top, left + width, top + height)
        return image.crop(box).resize(self.size, Image.Resampling.BILINEAR)


class RandomHorizontalFlip:
    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        flips = torch.rand(1).item() < self.p
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flips else image


class ToTensor:
    def __call__(self, image: Any) -> Any:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std, self.inplace = mean, std, False

    def __call__(self, image: Any) -> Any:
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (image - mean) / std


for _kind in (Compose, RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize):
    _kind.__module__ = "torchvision.transforms.transforms"
