"""Packed rows: their counts, window by window, and the tokens of a batch of them.

A row of an epoch is found by packing one window, if the rows before that window are known. They are
counted as the windows are walked through, or ahead of that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .. import _core
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

    def __init__(self, windows: int, last_share: float, count_window: Callable[[int], int]) -> None:
        self.windows = windows
        self._last_share = last_share
        self._count_window = count_window
        self._counts: Integers = np.full(windows, -1, np.int64)
        self._walks = [_Walk(0, 0, windows)]
        self.has_claim = False
        """True if a state says how many rows come before a window, and that was not checked."""

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

    def fill(self, window: int, rows: int) -> None:
        """Take over the count of a window."""
        self._counts[window] = rows

    def resume_at(self, window: int, before: int, row: int) -> None:
        """Walk on from the window of a state's last row, with `before` rows before it.

        row:  number of rows that were handed over.

        Counts one window. StateError if that is known to be false; nothing has changed then.
        """
        if row == 0 and window == before == 0:
            self._walks, self.has_claim = self._walks[:1], False
            return
        said = f"the state says that row {row:,} ends in window {window}, after {before:,} rows"
        remedy = "it is damaged, or documents have other lengths than when it was saved"
        if not 0 <= window < self.windows:
            raise StateError(f"{said}, and the epoch has {self.windows:,} windows: {remedy}")
        walk = _Walk(window, before, self.windows)
        self._step(walk)
        if not before < row <= walk.rows:
            rows = walk.rows - before
            raise StateError(f"{said}, and that window has {rows:,}: {remedy}")
        self._check(walk)
        self._walks, self.has_claim = [_Walk(0, 0, self.windows), walk], True

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
        sizes[-1] = self._last_share
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
        if self.has_claim and self._check(self._walks[-1]):
            self.has_claim = False

    def _check(self, claim: _Walk) -> bool:
        """Return whether the rows before a walk are counted; StateError if they are others."""
        known = self._counts[: claim.first]
        if (known < 0).any():
            return False
        before = int(known.sum())
        if before != claim.before:
            rows = f"{claim.before:,} rows come before window {claim.first}, and {before:,} do"
            why = "it is damaged, or documents have other lengths now"
            raise StateError(f"the state says {rows}: {why}: start the epoch again")
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


# -- tokens of a batch: inputs, labels and positions, in one pass of the core ----------------------

ignored_label = -100
"""Label of places that are no target, as the core writes it."""

Outputs = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class PlacedPieces(NamedTuple):
    """Places of the pieces in a batch, and its sequences: pieces, and the gaps after them.

    With a multiple of 2 or more there are no gaps: what is free belongs to the piece before.

    targets:   int64, the first place of each piece in the flattened batch.
    places:    in all.
    starts:    int32, the tokens before each sequence, and the end.
    rooms:     int32, the first place of each sequence, and the end; empty without a multiple.
    longest:   places of the longest sequence.
    source:    int64, the piece of each sequence, and -1 of a gap.

    `starts` and `rooms` are right if `places` is less than 2**31.
    """

    targets: Integers
    places: int
    starts: npt.NDArray[np.int32]
    rooms: npt.NDArray[np.int32]
    longest: int
    source: Integers

    def spread(self, column: Integers) -> Integers:
        """Return the values of pieces for the sequences, and -1 for gaps."""
        values = np.empty(len(column) + 1, np.int64)
        values[:-1], values[-1] = column, -1
        spread: Integers = values.take(self.source)
        return spread


def place_pieces(
    offsets: Integers, lengths: Integers, length: int, multiple: int, *, flat: bool
) -> PlacedPieces:
    """Return the places of pieces in rows of `length`, or end to end (`flat`).

    Row r has the pieces offsets[r]:offsets[r + 1], of `lengths` tokens. A piece starts at a
    multiple of `multiple`. IndexError if pieces do not fit.
    """
    lengths = np.ascontiguousarray(lengths)
    return PlacedPieces(*_core.place_pieces(offsets, lengths, length, multiple, flat))


def lay_out_tokens(
    tokens: npt.NDArray[Any],
    at: Integers,
    lengths: Integers,
    targets: Integers,
    *,
    pad: int,
    shifted: bool,
    inputs: Outputs,
    labels: Outputs,
    positions: Outputs,
) -> int:
    """Write all of three arrays of one size and dtype, int32 or int64.

    Piece i is lengths[i] of the tokens from at[i] on, and goes to the places from targets[i] on,
    in ascending order; its positions count from 0. Between pieces are pads with ignored labels.

    shifted:  False: a label is the token itself, and the first of a piece is -100. True: it is the
              next token, and the last of a piece is -100.

    Returns the piece with the first token that the dtype does not hold, or the number of pieces.
    """
    is_signed = tokens.dtype.kind == "i"
    places = at, lengths, targets, pad, shifted
    written = tokens.view(np.uint8), tokens.dtype.itemsize, is_signed
    bad: int = _core.lay_out_tokens(*written, *places, inputs, labels, positions)  # type: ignore[call-overload]
    return bad
