"""Keys of units: every unit has one, in one item, and places are what listing the keys gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.cache_keys import SampleKeys, UnitKeys


@given(
    units=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    main=st.integers(0, 3),
    of_samples=st.booleans(),
    width=st.integers(1, 9),
)
def test_keys_are_those_of_their_items(
    units: list[int], main: int, of_samples: bool, width: int
) -> None:
    """Ranges of items have all keys between them, each unit of an array in the sequence of units,
    and neighbours of all arrays together."""
    count = units[main % len(units)]
    keys = SampleKeys(count, len(units)) if of_samples else UnitKeys(tuple(units), count)
    first = np.arange(0, count, width)
    end = np.minimum(first + width, count)
    listed, edges = keys.list_keys(first, end)
    assert sorted(listed.tolist()) == list(range(keys.key_count))
    counts = np.diff(edges)
    assert keys.width in (0, *counts // (end - first))
    number = np.repeat(np.arange(len(first)), counts)
    assert np.array_equal(keys.find_items(listed) // np.uint64(width), number)
    rows = keys.find_rows(listed, first[number], width)
    assert np.array_equal(rows, np.arange(len(listed)) - edges[number])
    unit, array = keys.locate(listed)
    for n, size in enumerate([count] * len(units) if of_samples else units):
        of_array = array == n
        own = unit[of_array].view(np.int64)
        assert own.tolist() == list(range(size))
        assert np.array_equal(keys.address(own, n).view(np.uint64), listed[of_array])
        shares = np.bincount(number[of_array], minlength=len(first)) / (end - first)
        assert np.abs(shares - size / count).max() < 1
