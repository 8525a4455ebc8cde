"""Target with which each of several readers begins, so that they do not queue at one. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import UsageError
from ..extent import Int


def rotation(readers: int, targets: int) -> Int:
    """The target that each reader begins with, int64 (readers,); it goes on in order, and
    from the last one to the first.

    Readers that walk all targets so, one in a slot, and targets that serve them as they come, take
    max(readers, targets) slots, which is the least; beginning all with the first target takes
    readers + targets - 1.
    """
    for name, value in (("readers", readers), ("targets", targets)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise UsageError(f"{name} is {value!r}: use a whole number above 0")
    return np.arange(readers, dtype=np.int64) * targets // readers % targets


def rotation_start(reader: int, readers: int) -> Callable[[int], int]:
    """Where one of several readers begins among any number of targets, as `rotation` has it."""
    return lambda targets: int(rotation(readers, targets)[reader])
