"""Rotation: readers that begin with different targets do not wait for each other."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from benchmarks.schedules import walk

from penstock.errors import UsageError
from penstock.plan.rotation import rotate_readers, rotation_start


def test_rotated_readers_do_not_wait() -> None:
    """They walk all targets in the fewest slots; readers that begin alike queue."""
    for readers, targets in itertools.product(range(1, 25), repeat=2):
        begins = rotate_readers(readers, targets).tolist()
        assert all(0 <= begin < targets for begin in begins)
        assert walk(begins, targets) == max(readers, targets)
        assert walk([0] * readers, targets) == readers + targets - 1


def test_the_start_of_one_reader_is_that_of_the_rotation() -> None:
    """`rotation_start` gives each reader its entry of `rotate_readers`, for any targets."""
    for readers, targets in itertools.product(range(1, 9), repeat=2):
        starts = [rotation_start(reader, readers)(targets) for reader in range(readers)]
        assert starts == rotate_readers(readers, targets).tolist()


@pytest.mark.parametrize(
    ("readers", "targets", "message"),
    [(0, 3, "readers is 0"), (3, True, "targets is True"), (3, 1.0, r"targets is 1\.0")],
)
def test_bad_input_is_refused(readers: Any, targets: Any, message: str) -> None:
    """The message names the argument."""
    with pytest.raises(UsageError, match=message):
        rotate_readers(readers, targets)
