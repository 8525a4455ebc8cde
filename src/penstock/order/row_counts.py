"""Counts of an epoch's packed rows, window by window, so that a row's window is found.

A row of an epoch is found by packing one window, if the rows before that window are known. They are
counted as the windows are walked through, or ahead of that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import StateError, UsageError

Integers = npt.NDArray[np.int64]


class RowCounter(Protocol):
    """Count of an epoch's rows that grows as it is asked for more."""

    def reach(self, rows: int) -> int:
        """Return the known rows: at least `rows`, unless there are no more."""
        ...


class RowCounts:
    """Counted rows of each window of an epoch, and so the rows before each.

    windows:       windows of the epoch.
    part:          the last window's documents, as a part of a whole window's.
    count_window:  counts the rows of a window.

    Windows are counted one after the other from the first, or from one that a saved state knows
    the rows before (`resume_at`), when they are needed; and in any sequence by `fill`, ahead of
    that. When all are counted, the state's claim is checked.

    Threads may share it: what two of them count at once is the same.
    """

    def __init__(self, windows: int, part: float, count_window: Callable[[int], int]) -> None:
        self.windows = windows
        self._part = part
        self._count_window = count_window
        self._counts: Integers = np.full(windows, -1, np.int64)
        self._walks = [_Walk(0, 0, windows)]
        self._has_claim = False  # of a state, and not checked

    @property
    def complete(self) -> bool:
        """True if all windows are counted."""
        return self.counted == self.windows

    @property
    def counted(self) -> int:
        """Number of windows that are counted."""
        return int(np.count_nonzero(self._counts >= 0))

    def is_counted(self, window: int) -> bool:
        """Return whether a window is counted."""
        return bool(self._counts[window] >= 0)

    @property
    def has_claim(self) -> bool:
        """True if a state says how many rows come before a window, and that was not checked."""
        return self._has_claim

    def fill(self, window: int, rows: int) -> None:
        """Take over the count of a window."""
        self._counts[window] = rows

    def resume_at(self, window: int, before: int, row: int) -> None:
        """Walk on from the window of a state's last row, with `before` rows before it.

        row:  number of rows that were handed over.

        Counts one window. StateError if that is known to be false; nothing has changed then.
        """
        if row == 0 and window == before == 0:
            self._walks, self._has_claim = self._walks[:1], False
            return
        said = f"the state says that row {row:,} ends in window {window}, after {before:,} rows"
        remedy = "it is damaged, or documents have other lengths than when it was saved"
        if not 0 <= window < self.windows:
            raise StateError(f"{said}, and the epoch has {self.windows:,} windows: {remedy}")
        walk = _Walk(window, before, self.windows)
        self._step(walk)
        if not before < row <= walk.rows:
            held = walk.rows - before
            raise StateError(f"{said}, and that window has {held:,}: {remedy}")
        self._check(walk)
        self._walks, self._has_claim = [_Walk(0, 0, self.windows), walk], True

    def reach(self, rows: int) -> int:
        """Count on until `rows` rows of the epoch are known; return the known rows."""
        walk = self._walks[-1]
        while walk.rows < rows and self._step(walk):
            pass
        self.check_claim()
        return walk.rows

    def sum(self) -> int:
        """Return the rows of the epoch, all of whose windows are counted."""
        assert self.complete
        self.check_claim()
        return int(self._counts.sum())

    def estimate(self) -> int:
        """Estimate the rows of the epoch by the windows that are counted, one at least."""
        if not self.counted:
            self.reach(1)
        known = self._counts >= 0
        sizes = np.ones(self.windows)
        sizes[-1] = self._part
        return round(float(self._counts[known].sum() / sizes[known].sum() * sizes.sum()))

    def locate(self, row: int) -> tuple[int, int]:
        """Return the window that holds a row, and the rows before that; for known rows."""
        walk = self._walks[-1] if row >= self._walks[-1].before else self._walks[0]
        while walk.rows <= row:
            if not self._step(walk):
                raise UsageError(f"row {row} is outside this epoch: use 0..{walk.rows - 1}")
        # Not numpy's search: for one number it gives the lock back.
        at = bisect_right(walk.ends, row, 0, walk.known)
        return walk.first + at, int(walk.ends[at - 1]) if at else walk.before

    def _step(self, walk: _Walk) -> bool:
        known = walk.known
        window = walk.first + known
        if window >= self.windows:
            return False
        if self._counts[window] < 0:
            self.fill(window, self._count_window(window))
        before = walk.ends[known - 1] if known else walk.before
        walk.ends[known] = before + self._counts[window]
        walk.known = max(walk.known, known + 1)
        return True

    def check_claim(self) -> None:
        """Compare the rows that a state says come before its window, once these are counted."""
        if self._has_claim and self._check(self._walks[-1]):
            self._has_claim = False

    def _check(self, claim: _Walk) -> bool:
        """Return whether the rows before a walk are counted; StateError if they are others."""
        known = self._counts[: claim.first]
        if (known < 0).any():
            return False
        before = int(known.sum())
        if before != claim.before:
            raise StateError(
                f"the state says that {claim.before:,} rows come before window {claim.first}, and "
                f"there are {before:,}: it is damaged, or documents have other lengths than when "
                "it was saved; go on from another state, or start the epoch again"
            )
        return True


class _Walk:
    """Counts of the windows from `first` on.

    before:  rows before the first.
    ends:    rows before the end of each; known for the first `known` windows.
    """

    __slots__ = ("before", "ends", "first", "known")

    def __init__(self, first: int, before: int, windows: int) -> None:
        self.first, self.before, self.known = first, before, 0
        self.ends: Integers = np.zeros(windows - first, np.int64)

    @property
    def rows(self) -> int:
        return int(self.ends[self.known - 1]) if self.known else self.before
