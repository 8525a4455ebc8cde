"""Rotation: the target with which each of several readers begins, so that none queue. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import UsageError
from ..extent import Int


def rotate_readers(readers: int, targets: int) -> Int:
    """Return the target that each reader begins with, int64 (readers,).

    A reader goes on in order, and from the last target to the first. If readers walk all targets
    so, one in a slot, and targets serve them as they come, the walk takes max(readers, targets)
    slots, which is the least. If all began with the first target, it would take
    readers + targets - 1.
    """
    for name, value in (("readers", readers), ("targets", targets)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise UsageError(f"{name} is {value!r}: use a whole number above 0")
    return np.arange(readers, dtype=np.int64) * targets // readers % targets


def rotation_start(reader: int, readers: int) -> Callable[[int], int]:
    """Return a function from the number of targets to the one that this reader begins with."""
    return lambda targets: int(rotate_readers(readers, targets)[reader])
