"""Tokens of packed rows in a batch: inputs, labels and positions, in one pass of the core."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core

Integers = npt.NDArray[np.int64]
ignored_label = -100
"""Label of places that are no target, as the core writes it."""

Outputs = npt.NDArray[np.int32] | npt.NDArray[np.int64]


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
    which ascend; its positions count from 0. Between pieces are pads, whose labels are ignored.

    shifted:  False: a label is the token itself, and the first of a piece is -100. True: it is the
              next token, and the last of a piece is -100.

    Returns the piece with the first token that the dtype does not hold, or the number of pieces.
    """
    is_signed = tokens.dtype.kind == "i"
    places = at, lengths, targets, pad, shifted
    written = tokens.view(np.uint8), tokens.dtype.itemsize, is_signed
    bad: int = _core.lay_out_tokens(*written, *places, inputs, labels, positions)  # type: ignore[call-overload]
    return bad
