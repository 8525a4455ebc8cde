"""penstock.order.shuffle gives what indexing by the order gives, whatever the array is like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import Order
from penstock.errors import UsageError
from tests.slices import first

DTYPES = ["u1", "?", "i2", "f2", ">u4", "f4", "u8", "f8", "c8", "c16", "M8[ns]", "S3", "U2", "V12"]


def shuffled(array: np.ndarray[Any, Any], seed: int, epoch: int = 0) -> np.ndarray[Any, Any]:
    """The oracle: numpy's indexing by the order."""
    return array[Order(len(array), seed, epoch).run(0, len(array))]


def made(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array of random bytes, viewed as the dtype."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    data = np.random.default_rng(size).integers(0, 2, size, np.uint8)
    return data.view(kind).reshape(shape)


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(1, 5), max_size=2),
    count=st.one_of(st.integers(1, 50), st.sampled_from([4096, 4097, 20_000])),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 3),
    threads=st.sampled_from([None, 1, 2, 5]),
)
def test_equals_indexing_by_the_order(
    dtype: str, shape: list[int], count: int, seed: int, epoch: int, threads: int | None
) -> None:
    array = made(dtype, (count, *shape))
    want = shuffled(array, seed, epoch).tobytes()
    got = penstock.order.shuffle(array, seed, epoch, threads=threads)
    assert (got.shape, got.dtype) == (array.shape, array.dtype)
    assert got.tobytes() == want
    out = np.empty_like(array)
    assert penstock.order.shuffle(array, seed, epoch, out=out, threads=threads) is out
    assert out.tobytes() == want
    penstock.order.shuffle(array, seed, epoch, out=array, threads=threads)
    assert array.tobytes() == want


@pytest.mark.parametrize(
    ("dtype", "shape"), first(1, [("u8", ()), ("u4", ()), ("u1", (3,)), ("f8", (2,))])
)
def test_large_arrays_take_two_passes(dtype: str, shape: tuple[int, ...]) -> None:
    """Beyond 8 MiB small rows are dealt to buckets: the same values, in place too."""
    array = made(dtype, (3_000_001, *shape))
    want = shuffled(array, 5)
    np.testing.assert_array_equal(penstock.order.shuffle(array, 5), want)
    penstock.order.shuffle(array, 5, out=array)
    np.testing.assert_array_equal(array, want)


@pytest.mark.parametrize("step", [2, -1])
def test_arrays_that_are_not_contiguous(step: int) -> None:
    array = np.arange(6000, dtype=np.int32).reshape(1000, 6)
    for view in (array[::step], array[:, ::step], array.T):
        np.testing.assert_array_equal(penstock.order.shuffle(view, 1), shuffled(view, 1))


@pytest.mark.parametrize("size", [10_000, 2_000_000])
@pytest.mark.parametrize("by", [-3, 1, 500])
def test_overlapping_memory_gives_the_right_result(size: int, by: int) -> None:
    memory = np.arange(size + 1000)
    array, out = memory[500 : 500 + size], memory[500 + by : 500 + by + size]
    want = shuffled(array.copy(), 3)
    penstock.order.shuffle(array, 3, out=out)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (5, 0), (1,), (1, 3)])
def test_arrays_of_nothing_and_of_one(shape: tuple[int, ...]) -> None:
    array = np.ones(shape)
    np.testing.assert_array_equal(penstock.order.shuffle(array, 1), array)


def test_objects_are_referenced_not_copied_as_bytes() -> None:
    array = np.array([[i] for i in range(100)] + [None], dtype=object)[:100]
    out = penstock.order.shuffle(array, 2)
    assert [id(one) for one in out] == [id(one) for one in shuffled(array, 2)]


def test_other_seeds_and_epochs_give_other_orders() -> None:
    array = np.arange(10_000)
    kept = [penstock.order.shuffle(array, s, e) for s, e in [(0, 0), (0, 1), (1, 0)]]
    for i, one in enumerate(kept):
        for other in kept[:i]:
            assert np.count_nonzero(one == other) < 20


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"array": np.float64(1)}, "dimension"),
        ({"out": np.empty(9)}, "same shape"),
        ({"out": np.empty(10, np.float32)}, "float32"),
        ({"out": np.empty(20)[::2]}, "C-contiguous"),
        ({"out": [0.0] * 10}, "list"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"threads": 10**6}, "from 1 to 256"),
        ({"seed": -1}, "seed"),
        ({"epoch": 2**64}, "epoch"),
        ({"array": np.empty(0), "seed": 0.5}, "seed"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        penstock.order.shuffle(**({"array": np.zeros(10), "seed": 1} | arguments))


def test_read_only_out_is_refused() -> None:
    out = np.zeros(10)
    out.flags.writeable = False
    with pytest.raises(UsageError, match="read-only"):
        penstock.order.shuffle(np.zeros(10), 1, out=out)
