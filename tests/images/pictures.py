"""Pictures of any size, made and not stored, and what Pillow makes of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

Pixels = npt.NDArray[np.uint8]


def paint(width: int, height: int, seed: int = 0) -> Pixels:
    """Paint waves with some noise: smooth and sharp, in colours, (height, width, 3)."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    angles = random.uniform(0.02, 0.4, (3, 2)) @ np.stack([x.ravel(), y.ravel()])
    waves = 127 + 100 * np.sin(angles + random.uniform(0, 6, (3, 1)))
    noise = random.normal(0, 12, waves.shape)
    levels = np.clip(waves + noise, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(levels.T).reshape(height, width, 3)


def encode(pixels: Pixels, format: str = "JPEG", mode: str = "RGB", **options: Any) -> bytes:
    """Return the pixels as the bytes of a file."""
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, format, **options)
    return file.getvalue()


def decode(data: bytes) -> Pixels:
    """Return the pixels that Pillow decodes."""
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def resize(pixels: Pixels, width: int, height: int) -> npt.NDArray[np.int64]:
    """Return what Pillow makes of a resize with antialiasing."""
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    return np.array(image).astype(np.int64)


def write_folder(folder: Path, count: int = 20, **options: Any) -> Path:
    """Write pictures of several sizes and kinds of JPEG to a folder of two classes."""
    kinds = [{"quality": 90}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}]
    for number in range(count):
        kind = kinds[number % len(kinds)] | options
        pixels = paint(60 + 13 * (number % 7), 50 + 17 * (number % 5), number)
        place = folder / f"class-{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:03}.jpg").write_bytes(encode(pixels, **kind))
    return folder
