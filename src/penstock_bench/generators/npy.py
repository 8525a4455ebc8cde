"""An array of shape (*sample, samples), as numpy saves it: DLIO's samples lie across the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.convert import encode_npy_header
from penstock.engine import AtomicFile

from ..file_draft import Draft


def write(part: AtomicFile, draft: Draft) -> None:
    """Write a file."""
    part.write(header(draft))
    for piece in payload(draft):
        part.write(piece)


def header(draft: Draft) -> bytes:
    """The bytes before the elements."""
    return encode_npy_header(draft.dtype.str, (*draft.shape, draft.count))


def payload(draft: Draft) -> Iterator[memoryview]:
    """The elements; more than one sample takes the memory of the file."""
    if draft.count == 1:
        yield from (piece.data for piece in draft.pieces())
    else:
        yield _interleave(draft).reshape(-1).view(np.uint8).data


def _interleave(draft: Draft) -> npt.NDArray[Any]:
    whole, done = np.empty((*draft.shape, draft.count), draft.dtype), 0
    for group in draft.groups():
        whole[..., done : done + len(group)] = np.moveaxis(group, 0, -1)
        done += len(group)
    return whole
