"""Tokens of packed rows in a batch: inputs, labels and positions, in one pass of the core."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core

Integers = npt.NDArray[np.int64]
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
