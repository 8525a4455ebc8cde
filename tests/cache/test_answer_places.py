"""Places of the bytes of an answer, however its pieces are cut, against a loop over its keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.peer import Fetch


@given(seed=st.integers(0, 2**32 - 1), longest=st.sampled_from([1, 8, 60]), alike=st.booleans())
def test_bytes_go_where_a_loop_over_keys_puts_them(seed: int, longest: int, alike: bool) -> None:
    """Lengths equal and not, zero among them; several buffers; refused keys; pieces that end
    within a key."""
    draw = np.random.default_rng(seed)
    count, buffers = int(draw.integers(1, 40)), int(draw.integers(1, 4))
    lengths = draw.integers(0, longest + 1, count)
    lengths = np.full(count, longest) if alike else lengths
    numbers = draw.integers(0, buffers, count)
    targets = np.zeros(count, np.int64)
    for buffer in range(buffers):
        keys = draw.permutation(np.flatnonzero(numbers == buffer))
        targets[keys] = np.cumsum(lengths[keys]) - lengths[keys]
    got = [np.full(int(lengths.sum()), 255, np.uint8) for _ in range(buffers)]
    expected = [each.copy() for each in got]
    refused = draw.random(count) < 0.2
    data = draw.integers(0, 255, int(lengths[~refused].sum()), np.uint8)
    at = 0
    for key in np.flatnonzero(~refused).tolist():
        here = slice(targets[key], targets[key] + lengths[key])
        expected[numbers[key]][here] = data[at : at + lengths[key]]
        at += int(lengths[key])
    columns = np.arange(count, dtype=np.uint64), lengths, targets, numbers
    fetch = Fetch(0, 1, columns, got, 0)
    fetch.start(refused)
    cuts = np.unique(draw.integers(0, len(data) + 1, int(draw.integers(0, 6))))
    for piece in np.split(data, cuts):
        fetch.take(piece)
    assert fetch.is_complete
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
