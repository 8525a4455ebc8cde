"""Fields of a batch that are decoded from the compressed chunks in a step's buffer.

In a mixture a field may come from chunks of several codecs, and from samples that are not
compressed: each part is decoded as in its own dataset, and its rows take their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..engine import Buffer
from ..errors import FormatError, LimitError
from ..extent import Int
from ..index import Chunked, Field, Index, JointChunks, codecs, split_by_part
from ..plan import FieldChunks, StepPlan

_Rows = npt.NDArray[Any] | Sequence[Any]
"""Samples of a field: one array if they have a shape, else the bytes of each."""


class _Origin(NamedTuple):
    """Origin of a step's bytes, for messages."""

    data: Index
    number: int
    planned: StepPlan

    def describe(self) -> str:
        """Return the step and the name of the field."""
        return f"step {self.planned.step}, field {self.data.fields[self.number].name!r}"

    def locate(self, row: int) -> str:
        """Return the place of the sample of this row of the step."""
        ids = self.planned.ids
        return self.data.where(int(ids[row]) if len(ids) else 0, self.number)


def decompress_field(
    index: Index, number: int, planned: StepPlan, places: FieldChunks, buffer: Buffer
) -> npt.NDArray[Any] | tuple[npt.NDArray[np.uint8], Int]:
    """Decompress a field: an array, or the bytes of rows of varying length, and their bounds.

    FormatError if a chunk is damaged; LimitError if there is no memory for what it holds.
    """
    origin = _Origin(index, number, planned)
    part, layout = index.fields[number], index.layouts[number]
    fields = layout.fields if isinstance(layout, JointChunks) else (part,)
    try:
        if isinstance(layout, JointChunks):
            return _decompress_parts(origin, layout, places, buffer)
        assert isinstance(layout, Chunked)
        rows = _decode_rows(part, layout, places, buffer, origin, np.arange(len(places.row)))
        return rows if isinstance(rows, np.ndarray) else _join_rows(rows)
    except MemoryError:
        pass  # raised below, where its frames and their memory are gone
    used = ", ".join(sorted({field.codec.name for field in fields if field.codec is not None}))
    raise LimitError(
        f"{origin.describe()}: no memory to decode {len(places.number):,} chunks ({used}): lower "
        f"batch_size, or write smaller chunks"
    )


def _decompress_parts(
    origin: _Origin, layout: JointChunks, places: FieldChunks, buffer: Buffer
) -> npt.NDArray[Any] | tuple[npt.NDArray[np.uint8], Int]:
    """Decompress a field of a mixture, each dataset's share by itself."""
    part = origin.data.fields[origin.number]
    shaped = None if part.shape is None else np.empty((len(places.row), *part.shape), part.dtype)
    ragged: list[Any] = [b""] * len(places.row)
    first_unit = layout.chunks.first
    for source, at, _ in split_by_part(first_unit, places.number[places.chunk]):
        low, high = np.searchsorted(places.number, first_unit[source : source + 2]).tolist()
        own = FieldChunks(
            places.base,
            places.bounds[low : high + 1],
            places.number[low:high] - first_unit[source],
            places.chunk[at] - low,
            places.row[at],
        )
        field, own_layout = layout.fields[source], layout.parts[source]
        if isinstance(own_layout, Chunked):
            rows = _decode_rows(field, own_layout, own, buffer, origin, at)
        else:
            rows = _view_rows(field, own, buffer, has_shape=shaped is not None)
        if shaped is not None:
            shaped[at] = rows
            continue
        for row, value in zip(at.tolist(), _cut_bytes(rows, field, part.dtype), strict=True):
            ragged[row] = value
    return _join_rows(ragged) if shaped is None else shaped


def _decode_rows(
    part: Field,
    layout: Chunked,
    places: FieldChunks,
    buffer: Buffer,
    origin: _Origin,
    at: Int,
) -> _Rows:
    """Decode the samples of the chunks of one dataset.

    at:  row in the step of each of these samples, for messages.
    """
    assert part.codec is not None
    extents, pieces = layout.pieces(places.number)
    counts = np.ones(len(places.number), np.int64) if pieces is None else pieces
    lengths = np.split(extents.length, np.cumsum(counts)[:-1])
    held = layout.first[places.number + 1] - layout.first[places.number]
    read = [
        codecs.CompressedChunk(
            int(chunk),
            buffer[places.base + places.bounds[k] : places.base + places.bounds[k + 1]].data,
            lengths[k].tolist(),
            int(held[k]),
        )
        for k, chunk in enumerate(places.number)
    ]
    try:
        rows = codecs.decode_samples(
            part.codec.name,
            part.codec.options,
            read,
            places.chunk,
            places.row,
            (layout, part.codec),
        )
        if part.shape is None:
            return rows
        if not len(rows):
            return np.empty((0, *part.shape), part.dtype)
        if isinstance(rows, np.ndarray):
            stack: npt.NDArray[Any] = rows
        else:
            stack = np.stack([np.asarray(row) for row in rows])
        if stack.shape[1:] != part.shape or stack.dtype != part.dtype:
            raise ValueError(f"samples are {stack.dtype} of {stack.shape[1:]} after decoding")
        return stack
    except codecs.NullRow as error:
        row = int(at[np.argmax(places.number[places.chunk] == error.chunk)])
        sample = int(layout.first[error.chunk]) + error.row
        raise FormatError(
            f"{origin.describe()}: {origin.locate(row)}: row {error.row} there, which is sample "
            f"{sample:,} of the data: {error}"
        ) from None
    except ValueError as error:
        raise FormatError(
            f"{origin.describe()}: {origin.locate(int(at[0]))} or another chunk of this step "
            f"cannot be decoded as {part.codec.name}: {error}: the file is damaged, or changed "
            f"since it was indexed"
        ) from None


def _view_rows(part: Field, places: FieldChunks, buffer: Buffer, has_shape: bool) -> _Rows:
    """View the samples of a dataset of a mixture that are not compressed, each a chunk for itself.

    has_shape:  False for the bytes of each.
    """
    bounds = places.bounds + places.base
    if not has_shape:
        at = places.chunk
        ends = zip(bounds[at].tolist(), bounds[at + 1].tolist(), strict=True)
        return [buffer[start:end].data for start, end in ends]
    assert part.shape is not None
    flat = buffer[bounds[0] : bounds[-1]].view(part.dtype)
    return flat.reshape(len(places.number), *part.shape)[places.chunk]


def _cut_bytes(rows: _Rows, part: Field, dtype: np.dtype[Any]) -> Sequence[Any]:
    """Return the bytes of each sample in this dtype."""
    if isinstance(rows, np.ndarray):
        return [row.tobytes() for row in rows.astype(dtype, copy=False)]
    if part.dtype == dtype:
        return rows
    return [np.frombuffer(row, part.dtype).astype(dtype).tobytes() for row in rows]


def _join_rows(rows: Sequence[Any]) -> tuple[npt.NDArray[np.uint8], Int]:
    ends = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return np.frombuffer(bytearray().join(rows), np.uint8), ends
