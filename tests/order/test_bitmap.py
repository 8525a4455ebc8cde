"""Bitmaps: rank and select against numpy, on every processor alike, and within their size."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._core import Bitmap as CoreBitmap
from penstock._core import count_bits
from penstock.errors import UsageError
from penstock.order.selection import Bitmap, JointBitmap, map_numbers

counts = st.integers(1, 5000) | st.sampled_from([511, 2048, 2049, 70_000])
densities = st.sampled_from([0.0, 0.001, 0.1, 0.5, 0.97, 1.0])


def draw_mask(count: int, density: float, seed: int, run: int = 1) -> np.ndarray[Any, Any]:
    """Truth values of a density, in runs of equal ones."""
    random = np.random.default_rng(seed)
    return np.repeat(random.random(-(-count // run)) < density, run)[:count]


def from_mask(mask: np.ndarray[Any, Any]) -> Bitmap:
    samples = np.flatnonzero(mask).astype(np.uint64)
    return Bitmap.from_samples(len(mask), np.random.default_rng(0).permutation(samples))


@given(
    count=counts,
    density=densities,
    run=st.sampled_from([1, 700, 3000]),
    seed=st.integers(0, 2**32),
)
def test_rank_and_select_are_numpys(count: int, density: float, run: int, seed: int) -> None:
    """The k-th sample is flatnonzero's k-th, and has the number k, with the instructions of this
    processor and with portable ones; numbers and samples outside are named by their index."""
    mask = draw_mask(count, density, seed, run)
    expected = np.flatnonzero(mask).astype(np.uint64)
    bitmap = from_mask(mask)
    assert len(bitmap) == len(expected)
    assert bitmap.nbytes * 8 <= 1.04 * count + 2400  # a stretch, and one of each count
    columns = bitmap.words, bitmap.counts, bitmap.bases, bitmap.hints
    numbers = np.random.default_rng(seed).permutation(len(expected)).astype(np.uint64)
    for core in (bitmap, CoreBitmap(count, *columns), CoreBitmap(count, *columns, portable=True)):
        out = np.empty_like(numbers)
        assert core.forward(numbers, out) == len(numbers)
        assert np.array_equal(out, expected[numbers.view(np.int64)])
        assert core.inverse(out, out) == len(numbers)
        assert np.array_equal(out, numbers)
        outside = np.append(numbers, np.uint64(len(expected)))
        assert core.forward(outside, np.empty_like(outside)) == len(numbers)
        for absent in [*np.flatnonzero(~mask)[:3].tolist(), count, 2**64 - 1]:
            samples = np.append(expected[:5], np.uint64(absent))
            assert core.inverse(samples, np.empty_like(samples)) == len(samples) - 1


@given(sizes=st.lists(st.tuples(st.integers(1, 300), densities), min_size=1, max_size=4))
def test_a_joint_bitmap_is_that_of_the_joint_mask(sizes: list[tuple[int, float]]) -> None:
    """Sets of several datasets map as the set of their masks one after the other."""
    masks = [draw_mask(count, density, count) for count, density in sizes]
    parts = [None if mask.all() else from_mask(mask) for mask in masks]
    joint = JointBitmap(tuple(len(mask) for mask in masks), tuple(parts))
    expected = np.flatnonzero(np.concatenate(masks)).astype(np.uint64)
    assert (len(joint), joint.count) == (len(expected), sum(map(len, masks)))
    numbers = np.random.default_rng(1).permutation(len(expected)).astype(np.uint64)
    samples = map_numbers(joint, numbers)
    assert np.array_equal(samples, expected[numbers.view(np.int64)])
    assert joint.inverse(samples, samples) == len(numbers)
    assert np.array_equal(samples, numbers)
    absent = np.array([*expected[:3].tolist(), joint.count], np.uint64)
    assert joint.inverse(absent, absent.copy()) == len(absent) - 1


def test_equal_sets_have_equal_digests() -> None:
    """A digest depends on set and count, whichever way the set was made, and survives pickling."""
    mask = draw_mask(3000, 0.3, 0)
    words = np.zeros(2 * 32, np.uint64)
    packed = np.packbits(mask, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    bitmap = from_mask(mask)
    digests = {Bitmap.from_words(3000, words).digest, pickle.loads(pickle.dumps(bitmap)).digest}
    assert digests == {bitmap.digest}
    mask[7] = ~mask[7]
    assert from_mask(mask).digest != bitmap.digest
    assert Bitmap.from_words(3001, words).digest != bitmap.digest


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 10], r"ids\[1\] is 10: use 0..9"),
        ([-1], r"ids\[0\] is -1: use 0..9"),
        ([3, 4, 3], r"ids\[2\] is 3, as ids\[0\] is: name a sample once"),
    ],
)
def test_samples_that_make_no_set(ids: list[int], message: str) -> None:
    """A sample outside, or named twice, is named with its place."""
    with pytest.raises(UsageError, match=message):
        Bitmap.from_samples(10, np.array(ids))


@given(st.integers(0, 2**32))
def test_contradicting_columns_are_no_way_out_of_memory(seed: int) -> None:
    """Counts of other bits, as a damaged file may hold, give samples of the dataset all the same;
    columns of other sizes are refused."""
    random = np.random.default_rng(seed)
    mask = draw_mask(100_000, 0.5, seed)
    bitmap = from_mask(mask)
    counts = random.integers(0, 2**64, len(bitmap.counts), np.uint64)
    hints = random.integers(0, 2**32, len(bitmap.hints)).astype(np.uint32)
    for portable in (False, True):
        core = CoreBitmap(100_000, bitmap.words, counts, bitmap.bases, hints, portable)
        numbers = np.arange(len(bitmap), dtype=np.uint64)
        assert core.forward(numbers, numbers) == len(numbers)
        assert int(numbers.max()) < 100_000
    with pytest.raises(ValueError, match="differ in size"):
        CoreBitmap(100_000, bitmap.words, counts[1:], bitmap.bases, hints)
    with pytest.raises(ValueError, match="whole stretches"):
        count_bits(np.zeros(7, np.uint64))
