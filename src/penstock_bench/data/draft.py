"""A file to write: its place, the shape of its samples, and their bytes on demand."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine import AtomicFile

from ..workload.sections import DatasetSpec
from .contents import Bytes, SampleContents
from .files import PARTS

_GROUP_BYTES = 4 << 20
_COLUMN_BITS = 40
"""The bit at which the number of a column begins in the number by which contents know a file."""

_buffers = threading.local()

IMAGES = ("jpeg", "png")
"""Formats with one image a file, whatever num_samples_per_file says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A file to write.

    number:  among the files of its part.
    shape:   of a sample, in elements of dtype.
    column:  0, or, of a column of a table, its number from 1 on.
    columns: of a table, instead of its samples.
    made:    receives the numbers of bytes made; may raise to stop.
    beside:  opens a file that belongs to this one, and is finished with it.
    """

    data: DatasetSpec
    part: str
    number: int
    path: str
    root: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    contents: SampleContents
    made: Callable[[int], None]
    beside: Callable[[str], AtomicFile]
    column: int = 0
    columns: tuple[Draft, ...] = ()

    @property
    def count(self) -> int:
        """Samples of the file."""
        return 1 if self.data.format in IMAGES else self.data.num_samples_per_file

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[Bytes]:
        """The bytes of all samples, one after the other; a piece is valid until the next."""
        part, number = PARTS.index(self.part), self.number + (self.column << _COLUMN_BITS)
        for piece in self.contents.pieces(part, number, self.shape, self.count):
            self.made(len(piece))
            yield piece

    def groups(self, samples: int | None = None) -> Iterator[npt.NDArray[Any]]:
        """The samples as arrays (samples, *shape), so many or some at once; valid until the next of
        any column."""
        at_once = samples or max(1, _GROUP_BYTES // self.sample_bytes)
        room = min(self.count, at_once) * self.sample_bytes
        buffer, held = _reuse_buffer(room, self.column), 0
        for piece in self.pieces():
            while len(piece):
                taken = min(len(piece), room - held)
                buffer[held : held + taken] = piece[:taken]
                piece, held = piece[taken:], held + taken
                if held == room:
                    yield self._samples(buffer)
                    held = 0
        if held:
            yield self._samples(buffer[:held])

    def _samples(self, buffer: Bytes) -> npt.NDArray[Any]:
        return buffer.view(self.dtype).reshape(-1, *self.shape)

    def records(self) -> Iterator[memoryview]:
        """The bytes of each sample; valid until the next."""
        for group in self.groups():
            whole, size = memoryview(group.reshape(-1).view(np.uint8).data), self.sample_bytes
            yield from (whole[at : at + size] for at in range(0, len(whole), size))


def _reuse_buffer(size: int, column: int) -> Bytes:
    """A buffer that this thread keeps, so that the system does not find pages for each file."""
    held: dict[int, Bytes] = _buffers.__dict__.setdefault("held", {})
    if column not in held or len(held[column]) < size:
        held[column] = np.empty(size, np.uint8)
    return held[column][:size]
