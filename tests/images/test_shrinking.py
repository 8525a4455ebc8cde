"""JPEGs that are shrunken while they are decoded: the pixels of libjpeg at that scale."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import images
from penstock._core import count_jpeg_kernels, decode_jpeg, find_jpeg_positions
from penstock.errors import UsageError
from penstock.images.positions import find_positions
from tests.images import pictures

none = np.empty(0, np.uint8)


def decode_at(data: bytes, shrink: int) -> pictures.Pixels:
    """Return what Pillow's libjpeg decodes at 1/2, 1/4 or 1/8."""
    image = pictures.Image.open(io.BytesIO(data))
    size = tuple(-(-side // shrink) for side in image.size)
    ((name, _, offset, arguments),) = image.tile
    image.tile = [(name, (0, 0, *size), offset, arguments)]
    image.decoderconfig, image._size = (shrink, 0), size
    return np.array(image.convert("RGB"))


@given(
    st.integers(1, 150),
    st.integers(1, 150),
    st.integers(1, 100),
    st.sampled_from([{"subsampling": 0}, {"subsampling": 2}, {"mode": "L"}]),
    st.sampled_from([{}, {"restart_marker_blocks": 3}, {"restart_marker_rows": 1}]),
    st.sampled_from([2, 4, 8]),
    st.integers(0, 99),
    st.data(),
)
def test_pixels_are_those_of_libjpeg(
    width: int, height: int, quality: int, kind: Any, marks: Any, shrink: int, seed: int, draw: Any
) -> None:
    """Bit for bit, whole and in parts, with positions and without, with restart markers and
    without, by all kernels."""
    data = pictures.encode(pictures.paint(width, height, seed), quality=quality, **kind, **marks)
    file = np.frombuffer(data, np.uint8)
    expected = decode_at(data, shrink)
    high, wide = expected.shape[:2]
    left, top = draw.draw(st.integers(0, wide - 1)), draw.draw(st.integers(0, high - 1))
    part = expected[top:, left : left + draw.draw(st.integers(1, wide - left))]
    for kernel in range(count_jpeg_kernels()):
        positions, _ = find_jpeg_positions(file, kernel, none)
        out = np.empty_like(expected)
        _, problem = decode_jpeg(file, 0, 0, out, kernel, none, shrink=shrink)
        assert (problem[0], (out == expected).all()) == (0, True)
        for known in (none, positions):
            out = np.zeros(part.shape, np.uint8)
            options: Any = {"shrink": shrink, "stretch_only": len(known) > 0}
            _, problem = decode_jpeg(file, left, top, out, kernel, known, **options)
            assert (problem[0], (out == part).all()) == (0, True)


def test_scaled_crops_differ_little(tmp_path: Path) -> None:
    """Results stay near those of whole pixels, and images that stay too small are the same."""
    smooth = pictures.resize(pictures.paint(80, 60), 640, 480).astype(np.uint8)
    for kind in ({"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"mode": "L"}):
        data = pictures.encode(smooth, quality=92, **kind)  # type: ignore[arg-type]
        for size in (20, 50, 110):
            for transform in (images.RandomResizedCrop, images.Resize, images.CenterCrop):
                options: Any = {"resize": size} if transform is images.CenterCrop else {}
                rng = [penstock.rng(0, 0, size) for _ in range(2)]
                plain: npt.NDArray[Any] = transform(size, **options)(data, rng[0])
                scaled = transform(size, scale="dct", **options)(data, rng[1])
                difference = abs(plain.astype(int) - scaled)
                assert difference.mean() < 0.7
                is_whole = kind == {"subsampling": 1} or 4 * size > 480
                assert not is_whole or not difference.any()
    with pytest.raises(UsageError, match="scale is 'fast'"):
        images.Resize(8, scale="fast")  # type: ignore[arg-type]


def test_drawings_differ_no_more_than_the_page_says() -> None:
    """Beside edges between black and white whole pixels are off by more; markers change nothing."""
    random = np.random.default_rng(0)
    differences = []
    for _ in range(6):
        drawing = np.zeros((400, 500, 3), np.uint8)
        for left, top, width, height in random.integers(1, (500, 400, 60, 60), (200, 4)):
            drawing[top : top + height, left : left + width] = 255 * random.integers(0, 2, 3)
        made = []
        for options in ({}, {"restart_marker_rows": 1}, {"restart_marker_blocks": 5}):
            data = pictures.encode(drawing, quality=75, subsampling=2, **options)
            made.append(images.Resize(100, scale="dct")(data))
        assert (made[0] == made[1]).all()
        assert (made[0] == made[2]).all()
        differences.append(abs(images.Resize(100)(data).astype(int) - made[0]).max())
    assert 20 < max(differences) <= 40


def test_positions_change_no_scaled_pixel(tmp_path: Path) -> None:
    """Reads of the needed rows, with the positions of all kinds of files, give the same images."""
    folder = tmp_path / "train"
    folder.mkdir()
    for number in range(9):
        data = pictures.encode(pictures.paint(300, 400, number), subsampling=number % 3)
        (folder / f"{number}.jpg").write_bytes(data)
    dataset = penstock.open(folder)
    crop = images.RandomResizedCrop(12, (0.1, 0.5), scale="dct", boxes=True)
    found = []
    for _ in range(2):
        with penstock.Loader(dataset, 9, decode=crop) as loader:
            batches = [batch for _ in range(3) for batch in loader]
            found.append([np.array(batch["image"]) for batch in batches])
            assert loader.stats()["decoded"] == {"core": 27}
        find_positions(dataset)
    assert (np.array(found[0]) == np.array(found[1])).all()
