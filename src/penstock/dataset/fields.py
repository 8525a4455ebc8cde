"""Fields of a step: its bytes as arrays, texts or parsed lines, decompressed where they are chunks.

In a mixture a field may come from chunks of several codecs, and from samples that are not
compressed: each dataset's samples are decoded as in that dataset.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.native import standardize
from ..engine.protocol import Buffer
from ..errors import FormatError, LimitError, UsageError
from ..extent import Int
from ..index import codecs
from ..index.concat import JointChunks, JointWindows, split_by_part
from ..index.fields import SUMS_FIELD, Field, Scaling, find_damaged
from ..index.formats.jsonl import build_line_error
from ..index.json_fields import JsonFields, LineError
from ..index.layout import Boxes, Chunked, Windowed, Windows
from ..index.nested import NestedError, unpack_rows
from ..index.table import Index
from ..index.vocabulary import find_foreign_token
from ..plan.batch_layout import FieldChunks, FieldRows, Ids
from ..plan.steps import StepPlan
from .kept_chunks import KeptChunks, WindowDecoding


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of different lengths, one after the other in one buffer.

    values:   all bytes, as uint8; or all elements, if the field has another dtype. For rows that
              are lists of texts or of lists, the elements of all rows: `Ragged` again.
    offsets:  int64 (n+1,), row i is values[offsets[i]:offsets[i+1]].

    Both are numpy arrays in batches of `penstock.Loader`, and tensors in batches of the loaders in
    `penstock.torch`. `len()` is the number of rows; indexing and iterating give rows as views, and
    a slice gives `Ragged` with the same `values`.
    `torch.nested.nested_tensor_from_jagged(ragged.values, ragged.offsets)` makes a nested tensor
    without a copy.
    """

    values: Any
    offsets: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return int(self.values.nbytes)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            first, end, step = i.indices(len(self))
            if step != 1:
                raise IndexError(f"rows {i} of {len(self)}: a slice of rows has a step of 1")
            return Ragged(self.values, self.offsets[first : max(first, end) + 1])
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        i %= len(self)
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def to(self, *arguments: Any, **options: Any) -> Ragged:
        """Convert or move both tensors, as `torch.Tensor.to` does with one; for tensors only.

        Trainers move a batch to a device by calling `to` on its leaves.
        """
        values = self.values.to(*arguments, **options)
        return Ragged(
            values, self.offsets.to(values.device, non_blocking=options.get("non_blocking", False))
        )

    @property
    def device(self) -> Any:
        """Device of the tensors; for tensors only."""
        return self.values.device

    def __repr__(self) -> str:
        try:
            rows = [*map(_show_row, self[: min(3, len(self))]), *["..."] * (len(self) > 3)]
        except Exception as error:  # of values that cannot be looked at, as while JAX traces
            rows = [type(error).__name__]
        return f"Ragged({len(self)} rows, {self.nbytes:,} bytes: {', '.join(rows)})"


def _show_row(row: Any) -> str:
    """Show the first values of a row."""
    values = [*map(_show_row, row[:4])] if isinstance(row, Ragged) else map(str, row[:4].tolist())
    return f"[{', '.join([*values, *['...'] * (len(row) > 4)])}]"


def describe_row(index: Index, planned: StepPlan, row: int, number: int = 0) -> str:
    """Describe a row of a step: its sample, and the place of its bytes in a field."""
    sample = int(planned.ids[row]) if len(planned.ids) else 0
    return f"step {planned.step}, sample {sample:,}: {index.where(sample, number)}"


def build_fields(
    index: Index,
    planned: StepPlan,
    buffer: Buffer,
    kept: KeptChunks | None = None,
    take: Callable[[int], Buffer] | None = None,
) -> dict[str, Any]:
    """Build the arrays of a batch: views of the step's buffer, or rows decompressed from it.

    kept:  what earlier steps have decoded for this one, if it was planned so.
    take:  takes memory of a size, for windows.

    Raises FormatError for a row that does not have its checksum, where the index has them.
    """
    fields: dict[str, Any] = {}
    chunked = {
        number: _decompress_field(index, number, planned, places, buffer, kept, take)
        for number, places in enumerate(planned.layout.fields)
        if isinstance(places, FieldChunks)
    }
    for decoding in chunked.values():
        next(decoding)
    if kept is not None:
        kept.wait(planned)
    for number, places in enumerate(planned.layout.fields):
        field = index.fields[number]
        try:
            if isinstance(places, FieldRows):
                fields[field.name] = _view_field(field, places, buffer)
            else:
                rows = next(chunked[number])
                fields[field.name] = _make_ragged(field, *rows) if isinstance(rows, tuple) else rows
        except NestedError as error:
            where = f"{describe_row(index, planned, error.row, number)}: field {field.name!r}"
            raise FormatError(f"{where} is no nested list ({error}): restore the file") from None
    if index.has_derived_fields:
        fields = _derive_fields(index, planned, fields)
    if planned.labels is not None:
        fields["label"] = planned.labels
    fields.update(planned.marks)
    return fields


def _derive_fields(index: Index, planned: StepPlan, fields: dict[str, Any]) -> dict[str, Any]:
    """Compare the rows with their checksums, and make of the stored fields those that users get."""
    if (sums := fields.pop(SUMS_FIELD, None)) is not None:
        damaged = find_damaged(fields[index.fields[0].name], sums.tolist())
        if damaged is not None:
            where = describe_row(index, planned, damaged)
            fault = f"the bytes do not have the checksum {sums[damaged]:#010x}"
            raise FormatError(f"{where}: {fault}: restore the file, or the cache's disk")
    for field, layout in zip(index.fields, index.layouts, strict=True):
        if field.made_shape is not None:
            rows, is_moved = fields[field.name], isinstance(layout, Boxes)
            if isinstance(layout, Boxes | Windows) and layout.grid.fill:
                rows = layout.grid.pad(planned.ids.view(np.int64), rows, is_moved)
            fields[field.name] = rows.reshape(len(rows), *field.made_shape)
        if field.vocabulary and field.name in fields:
            check_vocabulary(index, field, fields[field.name], planned.ids, planned.step)
        if field.as_dtype is not None and field.name in fields:
            rows = fields[field.name]
            fields[field.name] = _convert_rows(rows, field.as_dtype, field.scaling)
    for field in index.fields:
        if field.parser is not None:
            fields |= _parse_lines(index, planned, field.parser, fields.pop(field.name))
        elif field.text:
            fields[field.name] = _read_texts(index, planned, field, fields[field.name])
    for attribute in index.attributes:
        column = attribute.take(planned.ids.view(np.int64))
        fields[attribute.name] = Ragged(*column) if isinstance(column, tuple) else column
    return fields


def check_vocabulary(
    index: Index, field: Field, rows: Any, samples: Ids, step: int, starts: Int | None = None
) -> None:
    """Raise FormatError for the first token that is not of the vocabulary.

    samples, starts:  of each row: its sample, and the place of its first token there.
    """
    values, bounds = rows, []
    while isinstance(values, Ragged):
        bounds.append(values.offsets)
        values = values.values
    place = find_foreign_token(values, field.vocabulary)
    if place is None:
        return
    row = place // max(1, math.prod(values.shape[1:]))
    first = row
    for offsets in reversed(bounds):
        row = int(np.searchsorted(offsets, row, side="right")) - 1
    if bounds:
        first = row
        for offsets in bounds:
            first = int(offsets[first])
    position = place - first * math.prod(values.shape[1:])
    position += 0 if starts is None else int(starts[row])
    sample = int(samples[row])
    where = f"{index.where(sample, index.fields.index(field))}: field {field.name!r}"
    where = f"step {step}, sample {sample:,} ({index.key(sample)}): {where}"
    token, most = int(values.reshape(-1)[place]), f"the vocabulary of {field.vocabulary:,} tokens"
    fault = f"has the token {token} at position {position:,}, beyond {most}"
    raise FormatError(f"{where} {fault}: correct vocabulary=, dtype= or header_bytes=")


def _convert_rows(rows: Any, dtype: np.dtype[Any], scaling: Scaling | None) -> Any:
    if isinstance(rows, Ragged):
        return Ragged(_convert_rows(rows.values, dtype, scaling), rows.offsets)
    if scaling is None:
        return rows.astype(dtype)
    kind = np.dtype("f4") if rows.dtype == "f2" else rows.dtype.newbyteorder("=")
    numbers, made = np.require(rows, kind, ["C", "A"]), np.empty(rows.shape, dtype)
    axis = rows.ndim - 1 if scaling.axis is None else scaling.axis + 1
    inner = max(1, rows.size if scaling.axis is None else math.prod(rows.shape[axis + 1 :]))
    standardize(
        numbers.reshape(-1).view(np.uint8),
        kind.str[1:],
        scaling.mean,
        scaling.sd,
        inner,
        made.reshape(-1).view(np.uint8),
        dtype.itemsize == 2,
        min(len(os.sched_getaffinity(0)), 1 + (made.nbytes >> 20)),
    )
    return made


def _parse_lines(
    index: Index, planned: StepPlan, parser: JsonFields, lines: npt.NDArray[Any] | Ragged
) -> dict[str, Any]:
    """Parse the fields of lines; FormatError for the first that is broken."""
    if isinstance(lines, Ragged):
        text, bounds = lines.values, lines.offsets
    else:
        rows, width = lines.shape
        text, bounds = lines.reshape(-1), np.arange(rows + 1, dtype=np.int64) * width
    try:
        parsed = parser.parse(text, bounds)
    except LineError as error:
        sample = int(planned.ids[error.row])
        raise build_line_error(index, sample, str(error), f"step {planned.step}, ") from None
    return {
        name: Ragged(*column) if isinstance(column, tuple) else column
        for name, column in parsed.items()
    }


def _read_texts(
    index: Index, planned: StepPlan, field: Field, rows: npt.NDArray[Any] | Ragged
) -> list[Any]:
    """Read the texts, or documents of JSON, of a field; FormatError for the first that is none."""
    texts: list[Any] = []
    for row in rows:
        try:
            text = row.tobytes().decode()
            texts.append(json.loads(text) if field.text == "json" else text)
        except (ValueError, RecursionError) as error:
            number = [field.name for field in index.fields].index(field.name)
            where = f"{describe_row(index, planned, len(texts), number)}: field {field.name!r}"
            what = f"no {'JSON' if field.text == 'json' else 'UTF-8'} ({error})"
            raise FormatError(f"{where} is {what}: {row[:40].tobytes()!r}: repair it") from None
    return texts


def _view_field(field: Field, places: FieldRows, buffer: Buffer) -> npt.NDArray[Any] | Ragged:
    rows = places.rows
    if field.levels:
        bounds = places.bounds
        if bounds is None:
            bounds = np.arange(rows + 1, dtype=np.int64) * places.row_bytes
        return _make_ragged(field, buffer[places.base : places.base + int(bounds[-1])], bounds)
    if places.bounds is None:
        flat = buffer[places.base : places.base + rows * places.row_bytes].view(field.dtype)
        if field.shape is not None:
            return flat.reshape(rows, *field.shape)
        return flat.reshape(rows, places.row_bytes // field.element_bytes, *field.element)
    bounds = places.bounds
    flat = buffer[places.base : places.base + int(bounds[-1]) * places.element_bytes]
    values = flat.view(field.dtype)
    if field.shape is not None:  # no rows
        return values.reshape(rows, *field.shape)
    return Ragged(values.reshape(-1, *field.element) if field.element else values, bounds)


def _make_ragged(field: Field, flat: npt.NDArray[np.uint8], bounds: Int) -> Ragged:
    """Make rows of different lengths of their bytes; NestedError for a nested one that is none."""
    if not field.levels:
        values = flat.view(field.dtype)
        if field.element:
            values = values.reshape(-1, *field.element)
        return Ragged(values, bounds // field.element_bytes)
    data, offsets = unpack_rows(flat, bounds, field.levels, field.element_bytes)
    ragged: Any = data.view(field.dtype)
    if field.element:
        ragged = ragged.reshape(-1, *field.element)
    for level in reversed(offsets):
        ragged = Ragged(ragged, level)
    assert isinstance(ragged, Ragged)
    return ragged


_Rows = npt.NDArray[Any] | Sequence[Any]
"""Samples of a field: one array if they have a shape, else the bytes of each."""


def _decompress_field(
    index: Index,
    number: int,
    planned: StepPlan,
    places: FieldChunks,
    buffer: Buffer,
    kept: KeptChunks | None,
    take: Callable[[int], Buffer] | None,
) -> Iterator[Any]:
    """Decompress a field: yield once what needs nothing of earlier steps is decoded; and then an
    array, or the bytes of rows of varying length, and their bounds.

    FormatError if a chunk is damaged; LimitError if there is no memory for what it holds.
    """
    field, layout = index.fields[number], index.layouts[number]

    def locate(row: int) -> str:
        return f"{describe_row(index, planned, row, number)}: field {field.name!r}"

    at = np.arange(len(places.row))
    try:
        if isinstance(layout, Windowed):
            with _name_damage(field, layout, places, locate, at):
                windows = WindowDecoding(field, index.layouts, layout, places, buffer, kept, take)
                windows.decode()
                yield
                rows: Any = _check_rows(field, windows.finish())
        elif isinstance(layout, JointChunks):
            yield
            rows = _decompress_parts(field, layout, places, buffer, locate)
        else:
            yield
            assert isinstance(layout, Chunked)
            rows = _decode_rows(field, layout, places, buffer, locate, at)
        yield rows if isinstance(rows, np.ndarray | tuple) else _join_rows(rows)
        return
    except MemoryError:
        pass  # raised below, where its frames and their memory are gone
    fields = layout.fields if isinstance(layout, JointChunks | JointWindows) else (field,)
    used = ", ".join(sorted({field.codec.name for field in fields if field.codec is not None}))
    chunks = f"{len(places.number):,} chunks ({used})"
    raise LimitError(f"{locate(0)}: no memory to decode {chunks}: lower batch_size")


def _decompress_parts(
    joint: Field,
    layout: JointChunks,
    places: FieldChunks,
    buffer: Buffer,
    locate: Callable[[int], str],
) -> npt.NDArray[Any] | tuple[npt.NDArray[np.uint8], Int]:
    """Decompress a field of a mixture, each dataset's share by itself."""
    shaped = None if joint.shape is None else np.empty((len(places.row), *joint.shape), joint.dtype)
    ragged: list[Any] = [b""] * len(places.row)
    first_unit = layout.chunks.first
    for source, at, _ in split_by_part(first_unit, places.number[places.chunk]):
        low, high = np.searchsorted(places.number, first_unit[source : source + 2]).tolist()
        share = FieldChunks(
            places.base,
            places.bounds[low : high + 1],
            places.number[low:high] - first_unit[source],
            places.chunk[at] - low,
            places.row[at],
        )
        field, part_layout = layout.fields[source], layout.parts[source]
        if isinstance(part_layout, Chunked):
            rows = _decode_rows(field, part_layout, share, buffer, locate, at)
        else:  # not compressed: each sample is a chunk
            bounds = share.bounds + share.base
            flat = buffer[bounds[0] : bounds[-1]]
            if shaped is not None:
                shape = len(share.number), *shaped.shape[1:]
                rows = flat.view(field.dtype).reshape(shape)[share.chunk]
            else:
                ends = zip(bounds[share.chunk], bounds[share.chunk + 1], strict=True)
                rows = [buffer[start:end].data for start, end in ends]
        if shaped is not None:
            shaped[at] = rows
            continue
        for row, value in zip(at.tolist(), _cut_bytes(rows, field, joint.dtype), strict=True):
            ragged[row] = value
    return _join_rows(ragged) if shaped is None else shaped


def _decode_rows(
    field: Field,
    layout: Chunked,
    places: FieldChunks,
    buffer: Buffer,
    locate: Callable[[int], str],
    at: Int,
) -> _Rows:
    """Decode the samples of the chunks of one dataset.

    locate:  describes a row of the step, for messages.
    at:      row in the step of each of these samples.
    """
    codec = field.codec
    assert codec is not None
    read = layout.cut_chunks(places.number, places.base + places.bounds, buffer)
    with _name_damage(field, layout, places, locate, at):
        rows = codecs.decode_samples(
            codec.name, codec.options, read, places.chunk, places.row, (layout, codec)
        )
        return _check_rows(field, rows)


def _check_rows(field: Field, rows: _Rows) -> _Rows:
    """Return decoded samples, as an array if they have a shape; ValueError if they are others."""
    if field.shape is None:
        return rows
    if not len(rows):
        return np.empty((0, *field.shape), field.dtype)
    stack = rows if isinstance(rows, np.ndarray) else np.stack([np.asarray(row) for row in rows])
    if stack.shape[1:] != field.shape or stack.dtype != field.dtype:
        raise ValueError(f"samples are {stack.dtype} of {stack.shape[1:]} after decoding")
    return stack


@contextmanager
def _name_damage(
    field: Field, layout: Chunked, places: FieldChunks, locate: Callable[[int], str], at: Int
) -> Iterator[None]:
    """Make a FormatError of what a decoder says; see `_decode_rows`."""
    codec = field.codec
    assert codec is not None
    try:
        yield
    except codecs.NullRow as error:
        row = int(at[np.argmax(places.number[places.chunk] == error.chunk)])
        what = f"row {error.row}, sample {int(layout.first[error.chunk]) + error.row:,} of the data"
        raise FormatError(f"{locate(row)}: {what}: {error}") from None
    except UsageError:  # a library is not installed
        raise
    except ValueError as error:
        where = f"{locate(int(at[0]))}, or another chunk of this step,"
        if isinstance(error, codecs.BrokenChunk):
            pair = int(np.argmax(places.number[places.chunk] == error.chunk))
            where = locate(int(at[pair if places.pair is None else places.pair[pair]]))
            if isinstance(layout, JointWindows):
                ((_, own, _, _),) = layout.list_parts(np.array([error.chunk]))
                codec = own or codec
        fault = f"cannot be decoded as {codec.name}: {error}"
        raise FormatError(f"{where} {fault}: the file is damaged or has changed") from None


def _cut_bytes(rows: _Rows, field: Field, dtype: np.dtype[Any]) -> Sequence[Any]:
    """Return the bytes of each sample in this dtype."""
    if isinstance(rows, np.ndarray):
        return [row.tobytes() for row in rows.astype(dtype, copy=False)]
    if field.dtype == dtype:
        return rows
    return [np.frombuffer(row, field.dtype).astype(dtype).tobytes() for row in rows]


def _join_rows(rows: Sequence[Any]) -> tuple[npt.NDArray[np.uint8], Int]:
    ends = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return np.frombuffer(bytearray().join(rows), np.uint8), ends
