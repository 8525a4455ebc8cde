"""Peers compare their samples: all of them hear of a difference, and which is the first."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import UsageError
from penstock.loader.equal_batches import compare_samples
from penstock.testing import same_batch
from tests.cache.test_cache import Gathering

samples = st.lists(st.integers(0, 2**64 - 1), max_size=4)


def compare(batches: list[list[int]], steps: list[int]) -> list[str]:
    """The error of each peer, "" for none."""
    gathering = Gathering(len(batches))
    ranks = [10 * (number + 1) for number in range(len(batches))]

    def peer(number: int) -> str:
        ids = np.array(batches[number], np.uint64)
        try:
            compare_samples(gathering.of(number), ranks, f"step {steps[number]}", ids)
        except UsageError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(batches)) as threads:
        return list(threads.map(peer, range(len(batches))))


@given(
    batches=st.lists(samples, min_size=2, max_size=4)
    | samples.flatmap(lambda one: st.integers(2, 4).map(lambda peers: [one] * peers)),
    late=st.booleans(),
)
def test_peers_that_differ(batches: list[list[int]], late: bool) -> None:
    """Equal batches of one step pass; else all get one error, which names the first two ranks and
    the first sample that differ, or their steps."""
    steps = [5] * (len(batches) - 1) + [6 if late else 5]
    said = compare(batches, steps)
    other = next(
        (k for k, batch in enumerate(batches) if (batch, steps[k]) != (batches[0], 5)), None
    )
    if other is None:
        assert said == [""] * len(batches)
        return
    assert len(set(said)) == 1
    assert f"ranks 10 and {10 * (other + 1)} have to get equal batches" in said[0]
    if steps[other] != 5:
        assert "the one is at step 5, the other at step 6" in said[0]
        return
    pairs = list(zip(batches[0], batches[other], strict=False))
    first = next((k for k, (one, its) in enumerate(pairs) if one != its), None)
    if first is None:
        assert f"{len(batches[0])} and {len(batches[other])} samples" in said[0]
    else:
        one, its = pairs[first]
        assert f"at step 5, sample {first} of the batch is {one} and {its}" in said[0]


def test_batches_of_a_training_loop() -> None:
    """A check of batches counts them, and takes ids of penstock and "__id__" of others."""
    gathering = Gathering(2)

    def peer(rank: int) -> str:
        check = same_batch(gathering.of(rank))
        data = penstock.open(__file__, record_bytes=1, index="memory")
        try:
            with penstock.Loader(data, 4, seed=1, place=penstock.Place(0, 1)) as loader:
                check(next(iter(loader)))
            check({"__id__": np.array([1, 2])})
            check({"__id__": np.array([1, 2 + rank])})
        except UsageError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as threads:
        for said in threads.map(peer, range(2)):
            assert re.search("at batch 2, sample 1 of the batch is 2 and 3", said), said


@pytest.mark.parametrize("batch", [[1, 2], {"x": 1}, None])
def test_batches_without_numbers(batch: Any) -> None:
    with pytest.raises(UsageError, match=r"without ids: give batches of penstock"):
        same_batch(lambda text: [text])(batch)
