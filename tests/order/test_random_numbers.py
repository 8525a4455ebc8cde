"""Random numbers of a sample: which streams are the same, and which are not."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import UsageError
from penstock.order.order import key_state

words = st.integers(0, 2**64 - 1)


def bits(seed: int, epoch: int, sample: int, count: int = 8) -> list[int]:
    drawn: list[int] = penstock.rng(seed, epoch, sample).bit_generator.random_raw(count).tolist()
    return drawn


def philox(counter: int, key: tuple[int, int]) -> list[int]:
    """A block of Philox-4x64-10, as published (Salmon et al., SC 2011), in plain integers."""
    word = 2**64 - 1
    x = [counter & word, counter >> 64, 0, 0]
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * x[0], 1 << 64)
        high1, low1 = divmod(0xCA5A826395121157 * x[2], 1 << 64)
        x = [high1 ^ x[1] ^ k0, low1, high0 ^ x[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & word, (k1 + 0xBB67AE8584CAA73B) & word
    return x


@given(words, words, words)
def test_the_stream_is_philox(seed: int, epoch: int, sample: int) -> None:
    """The bits are those of the published generator under the documented key."""
    key = (key_state(5, seed, epoch, 0, 1), sample)
    assert bits(seed, epoch, sample) == philox(1, key) + philox(2, key)


def test_known_streams() -> None:
    """Bits never change: a run that is resumed under a later version augments as before."""
    assert bits(0, 0, 0, 2) == [11309578912703519885, 12973989652823991335]
    assert bits(1, 2, 3, 2) == [8450593186023903124, 17370508678268402326]


@given(st.tuples(words, words, words), st.tuples(words, words, words))
def test_streams_differ(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    """Any other seed, epoch or sample has other bits; the same have the same."""
    assert (bits(*one) == bits(*other)) == (one == other)


@pytest.mark.long
def test_neighbours_are_unrelated() -> None:
    """Draws of neighbouring samples, epochs and seeds are uniform and do not go together."""
    axes = itertools.product(range(3), range(3), range(2000))
    drawn = np.array([penstock.rng(*place).random() for place in axes]).reshape(9, 2000)
    edges = np.histogram(drawn, bins=20, range=(0, 1))[0]
    expected = drawn.size / 20
    assert ((edges - expected) ** 2 / expected).sum() < 60  # 19 degrees of freedom: p < 1e-5
    together = np.corrcoef(np.concatenate([drawn[:, :-1], drawn[:, 1:]]))
    assert np.abs(together - np.eye(len(together))).max() < 5.5 / np.sqrt(1999)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((-1, 0, 0), "seed is -1"),
        ((0, 2**64, 0), "epoch is"),
        ((0, 0, -1), "sample.* is -1"),
        ((0, 0, 1.0), "sample.* is 1.0"),
        ((0, 0, True), "sample.* is True"),
        ((0.0, 0, 0), "seed is 0.0"),
    ],
)
def test_bad_places(place: tuple[int, int, int], message: str) -> None:
    """A place that no stream has is refused."""
    with pytest.raises(UsageError, match=message):
        penstock.rng(*place)


def test_numpy_integers_are_integers() -> None:
    """Ids as batches have them are taken."""
    assert bits(1, 2, 3) == bits(np.uint64(1), np.int64(2), np.uint64(3))  # type: ignore[arg-type]


# -- as decode draws them --------------------------------------------------------------------------

SEED = 11


def augmented(sample: dict[str, Any]) -> dict[str, Any]:
    """A decode function's result for a sample: a value, and which sample and epoch it is of."""
    random = penstock.rng(SEED, sample["__epoch__"], sample["__id__"])
    assert sample["data"][0] == sample["__id__"]
    return {"id": sample["__id__"], "epoch": sample["__epoch__"], "value": random.random()}


@pytest.fixture
def dataset(tmp_path: Path) -> penstock.Dataset:
    """101 records that begin with their number."""
    path = tmp_path / "records.bin"
    path.write_bytes(bytes(byte for number in range(101) for byte in (number, 0, 0, 0)))
    return penstock.open(path, record_bytes=4, index="memory")


def values(loaders: list[Any]) -> dict[tuple[int, int], float]:
    """The value of each sample in each of two epochs, whichever rank had it."""
    found = {}
    for loader in loaders:
        for epoch, batch in ((epoch, batch) for epoch in range(2) for batch in loader):
            assert set(batch["epoch"].tolist()) <= {epoch}
            found.update(
                zip(
                    zip(batch["epoch"].tolist(), batch["id"].tolist(), strict=True),
                    batch["value"].tolist(),
                    strict=True,
                )
            )
    return found


def test_decode_draws_the_same_on_any_world(dataset: penstock.Dataset) -> None:
    """Augmentation depends on no rank, thread or worker, nor on who is asked for batches; a rank
    without a sample in the last step manages too."""
    torch_face = pytest.importorskip("penstock.torch.loader")
    expected = {
        (epoch, sample): penstock.rng(SEED, epoch, sample).random()
        for epoch in range(2)
        for sample in range(101)
    }
    for world, threads in ((1, 1), (3, 2), (5, 1)):
        loaders: list[Any] = [
            penstock.Loader(
                dataset, 4, seed=SEED, decode=augmented, decode_threads=threads,
                rank=rank, world_size=world,
            )
            for rank in range(world)
        ]  # fmt: skip
        assert values(loaders) == expected
    for workers in ("threads", "processes"):
        loader = torch_face.DataLoader(
            dataset, 10, True, num_workers=2, workers=workers, decode=augmented, seed=SEED
        )
        assert values([loader]) == expected
        loader.close()
