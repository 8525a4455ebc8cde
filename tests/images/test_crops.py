"""Crops: the rule, the mapping from random words, and the constants that never change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import images
from penstock._core import ImageTransform
from penstock.order.augmentation import derive_epoch_key

Crop = tuple[int, int, int, int, int]


def choose(transform: images.RandomResizedCrop, width: int, height: int, words: list[int]) -> Crop:
    native: ImageTransform = transform._native
    left, top, w, h, flips, *_ = native.choose_crop(height, width, np.array(words, np.uint64))
    return left, top, w, h, flips


def draw(seed: int, epoch: int, sample: int) -> list[int]:
    words: list[int] = penstock.rng(seed, epoch, sample).bit_generator.random_raw(44).tolist()
    return words


def unit(word: int) -> float:
    return (word >> 11) * 2.0**-53


def expect(
    width: int,
    height: int,
    words: list[int],
    area: tuple[float, float],
    ratio: tuple[float, float],
    flip: float,
) -> Crop:
    """Return the crop by the rule as docs/images/crops.md states it."""
    flips = int(unit(words[40]) < flip)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for turn in range(10):
        of_area, of_ratio, of_top, of_left = words[4 * turn : 4 * turn + 4]
        part = width * height * (area[0] + unit(of_area) * (area[1] - area[0]))
        shape = math.exp(low + unit(of_ratio) * (high - low))
        w, h = round(math.sqrt(part * shape)), round(math.sqrt(part / shape))
        if 0 < w <= width and 0 < h <= height:
            top, left = of_top * (height - h + 1) >> 64, of_left * (width - w + 1) >> 64
            return left, top, w, h, flips
    w, h = width, height
    if width / height < ratio[0]:
        h = min(height, max(1, round(width / ratio[0])))
    elif width / height > ratio[1]:
        w = min(width, max(1, round(height * ratio[1])))
    return (width - w) // 2, (height - h) // 2, w, h, flips


@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.lists(st.integers(0, 2**64 - 1), min_size=44, max_size=44),
    st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted),
    st.tuples(st.floats(0.1, 8), st.floats(0.1, 8)).map(sorted),
)
def test_the_core_draws_crops_by_the_rule(
    width: int, height: int, words: list[int], area: list[float], ratio: list[float]
) -> None:
    """The core's crop is that of the rule in plain Python, for any words and sizes."""
    transform = images.RandomResizedCrop(8, area, ratio, flip=0.5)
    found = choose(transform, width, height, words)
    bounds = (area[0], area[1]), (ratio[0], ratio[1])
    assert found == expect(width, height, words, *bounds, 0.5)
    left, top, w, h, _ = found
    assert 0 <= left < left + w <= width
    assert 0 <= top < top + h <= height


CONSTANTS = [
    # seed, epoch, sample; width and height; left, top, width, height, flipped
    ((0, 0, 0), (500, 375), (110, 22, 368, 328, 1)),
    ((0, 0, 1), (500, 375), (88, 91, 231, 277, 0)),
    ((0, 1, 0), (500, 375), (228, 123, 216, 202, 1)),
    ((1, 0, 0), (500, 375), (3, 31, 413, 312, 0)),
    ((9223372036854775808, 7, 1281166), (375, 500), (36, 30, 319, 314, 0)),
    ((12, 89, 5), (1, 1), (0, 0, 1, 1, 0)),
    ((12, 89, 6), (4000, 3000), (860, 1154, 1019, 1035, 1)),
    ((12, 89, 7), (1000, 10), (493, 0, 13, 10, 1)),
    ((12, 89, 8), (333, 500), (91, 124, 188, 157, 0)),
    ((3, 2, 1), (64, 48), (18, 2, 36, 41, 0)),
    ((3, 2, 9), (4288, 2848), (1897, 580, 2151, 1802, 0)),
    ((99, 0, 123456789), (500, 333), (362, 55, 114, 149, 1)),
]


@pytest.mark.parametrize(("stream", "size", "crop"), CONSTANTS)
def test_crops_never_change(
    stream: tuple[int, int, int], size: tuple[int, int], crop: Crop
) -> None:
    """Crops of version 1 of the mapping, as constants: a change would change every run."""
    assert choose(images.RandomResizedCrop(224, flip=0.5), *size, draw(*stream)) == crop


def test_the_core_draws_the_words_of_rng() -> None:
    """A loader's crop of a sample comes from the words of `penstock.rng`."""
    key = np.array([derive_epoch_key(7, 3), 11], np.uint64)
    assert np.random.Philox(key=key).random_raw(44).tolist() == draw(7, 3, 11)


def test_crops_that_never_fit_are_the_largest_in_the_middle() -> None:
    """An image of 1000 x 10 has a crop of its whole height in the middle."""
    transform = images.RandomResizedCrop(8, (1.0, 1.0), (3 / 4, 4 / 3))
    assert choose(transform, 1000, 10, [0] * 44)[:4] == (493, 0, 13, 10)
    assert choose(transform, 10, 1000, [0] * 44)[:4] == (0, 493, 10, 13)
