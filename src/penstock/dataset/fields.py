"""Fields of a step: its bytes as arrays, parsed lines or texts, and the samples made of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine import Buffer
from ..errors import FormatError
from ..extent import Int
from ..index import (
    SUMS_FIELD,
    Field,
    Index,
    JsonFields,
    LineError,
    NestedError,
    build_line_error,
    find_damaged,
    find_foreign_token,
    unpack_rows,
)
from ..plan import FieldChunks, FieldRows, Ids, StepPlan
from .decompress import decompress_field
from .sample import LoadedSample, Samples


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
        return f"Ragged({len(self)} rows, {self.nbytes:,} bytes)"


def build_fields(index: Index, planned: StepPlan, buffer: Buffer) -> dict[str, Any]:
    """Build the arrays of a batch: views of the step's buffer, or rows decompressed from it.

    Raises FormatError for a row that does not have its checksum, where the index has them.
    """
    fields: dict[str, Any] = {}
    for number, places in enumerate(planned.layout.fields):
        part = index.fields[number]
        try:
            fields[part.name] = (
                _view_field(part, places, buffer)
                if isinstance(places, FieldRows)
                else _decompress_field(index, number, planned, places, buffer)
            )
        except NestedError as error:
            sample = int(planned.ids[error.row])
            raise FormatError(
                f"step {planned.step}, sample {sample:,}: {index.where(sample, number)}: field "
                f"{part.name!r} is no nested list ({error}): the file is damaged, or changed since "
                f"it was indexed"
            ) from None
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
            sample = int(planned.ids[damaged])
            raise FormatError(
                f"step {planned.step}, sample {sample:,}: {index.where(sample)}: the bytes do not "
                f"have the checksum {sums[damaged]:#010x} that the file has of them: restore the "
                f"file (or the disk of the cache) from a good copy"
            )
    for part in index.fields:
        if part.vocabulary and part.name in fields:
            check_vocabulary(index, part, fields[part.name], planned.ids, planned.step)
        if part.as_dtype is not None and part.name in fields:
            fields[part.name] = _convert_rows(fields[part.name], part.as_dtype)
    for part in index.fields:
        if part.parser is not None:
            fields |= _parse_lines(index, planned, part.parser, fields.pop(part.name))
        elif part.text:
            fields[part.name] = _read_texts(index, planned, part, fields[part.name])
    for attribute in index.attributes:
        column = attribute.take(planned.ids.view(np.int64))
        fields[attribute.name] = Ragged(*column) if isinstance(column, tuple) else column
    return fields


def check_vocabulary(
    index: Index, part: Field, rows: Any, samples: Ids, step: int, starts: Int | None = None
) -> None:
    """Raise FormatError for the first token that is not of the vocabulary.

    samples, starts:  of each row: its sample, and the place of its first token there.
    """
    values, bounds = rows, []
    while isinstance(values, Ragged):
        bounds.append(values.offsets)
        values = values.values
    found = find_foreign_token(values, part.vocabulary)
    if found is None:
        return
    row = found // max(1, math.prod(values.shape[1:]))
    first = row
    for offsets in reversed(bounds):
        row = int(np.searchsorted(offsets, row, side="right")) - 1
    if bounds:
        first = row
        for offsets in bounds:
            first = int(offsets[first])
    position = found - first * math.prod(values.shape[1:])
    position += 0 if starts is None else int(starts[row])
    sample = int(samples[row])
    number = index.fields.index(part)
    raise FormatError(
        f"step {step}, sample {sample:,} ({index.key(sample)}): "
        f"{index.where(sample, number)}: field {part.name!r} has the token "
        f"{int(values.reshape(-1)[found])} at position {position:,}, beyond the vocabulary of "
        f"{part.vocabulary:,} tokens: open the data with that of the tokenizer that made them "
        f"(vocabulary=), with the right dtype= and header_bytes=, or tokenize again"
    )


def _convert_rows(rows: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(rows, Ragged):
        return Ragged(_convert_rows(rows.values, dtype), rows.offsets)
    return rows.astype(dtype)


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
    index: Index, planned: StepPlan, part: Field, rows: npt.NDArray[Any] | Ragged
) -> list[Any]:
    """Read the texts, or documents of JSON, of a field; FormatError for the first that is none."""
    texts: list[Any] = []
    for row in rows:
        try:
            text = row.tobytes().decode()
            texts.append(json.loads(text) if part.text == "json" else text)
        except (ValueError, RecursionError) as error:
            sample = int(planned.ids[len(texts)])
            number = [one.name for one in index.fields].index(part.name)
            what = "JSON" if part.text == "json" else "UTF-8"
            raise FormatError(
                f"step {planned.step}, sample {sample:,} ({index.key(sample)}): "
                f"{index.where(sample, number)}: field {part.name!r} is no {what} ({error}), it "
                f"begins with {row[:40].tobytes()!r}: mend it, or open the data without the field"
            ) from None
    return texts


def _view_field(part: Field, places: FieldRows, buffer: Buffer) -> npt.NDArray[Any] | Ragged:
    rows = places.rows
    if part.levels:
        bounds = places.bounds
        if bounds is None:
            bounds = np.arange(rows + 1, dtype=np.int64) * places.row_bytes
        return _make_ragged(part, buffer[places.base : places.base + int(bounds[-1])], bounds)
    if places.bounds is None:
        flat = buffer[places.base : places.base + rows * places.row_bytes].view(part.dtype)
        if part.shape is not None:
            return flat.reshape(rows, *part.shape)
        return flat.reshape(rows, places.row_bytes // part.element_bytes, *part.element)
    bounds = places.bounds
    flat = buffer[places.base : places.base + int(bounds[-1]) * places.element_bytes]
    values = flat.view(part.dtype)
    if part.shape is not None:  # no rows
        return values.reshape(rows, *part.shape)
    return Ragged(values.reshape(-1, *part.element) if part.element else values, bounds)


def _make_ragged(part: Field, flat: npt.NDArray[np.uint8], bounds: Int) -> Ragged:
    """Make rows of different lengths of their bytes; NestedError for a nested one that is none."""
    if not part.levels:
        values = flat.view(part.dtype)
        if part.element:
            values = values.reshape(-1, *part.element)
        return Ragged(values, bounds // part.element_bytes)
    data, offsets = unpack_rows(flat, bounds, part.levels, part.element_bytes)
    ragged: Any = data.view(part.dtype)
    if part.element:
        ragged = ragged.reshape(-1, *part.element)
    for level in reversed(offsets):
        ragged = Ragged(ragged, level)
    assert isinstance(ragged, Ragged)
    return ragged


def _decompress_field(
    index: Index, number: int, planned: StepPlan, places: FieldChunks, buffer: Buffer
) -> npt.NDArray[Any] | Ragged:
    rows = decompress_field(index, number, planned, places, buffer)
    return rows if isinstance(rows, np.ndarray) else _make_ragged(index.fields[number], *rows)


def open_samples(
    index: Index,
    planned: StepPlan,
    fields: dict[str, Any],
    epoch: int,
    seed: int,
    by_row: bool = False,
    as_views: bool = False,
) -> Samples:
    """Return the function that gives each sample of a step, by its row, as `decode` takes it.

    fields:  from `build_fields`.
    seed:    of the random numbers of samples (see `LoadedSample`).
    by_row:  draw them by the row, not by the sample: a sample may come several times an epoch.
    as_views:  raw bytes as memoryviews, valid while `decode` runs, and not as copies.
    """
    for name in (*planned.marks, *(() if planned.labels is None else ("label",))):
        fields.pop(name, None)
    keys = index.keys(planned.ids)
    ids: list[int] = planned.ids.tolist()
    labels = None if planned.labels is None else planned.labels.tolist()
    marks = {name: column.tolist() for name, column in planned.marks.items()}
    columns = [
        (made.name, open_column(part, made, fields[made.name], as_views))
        for part in index.fields
        for made in part.made
        if made.name in fields
    ]
    columns += [(one.name, fields[one.name].__getitem__) for one in index.attributes]
    # A mixture may draw a sample several times an epoch, and once a pass.
    passes = marks.get("pass")

    def sample(row: int) -> LoadedSample:
        number = ids[row]
        turn = epoch if passes is None else passes[row]
        parts = LoadedSample()
        parts.stream = seed, turn, row if by_row else number
        for name, column in columns:
            parts[name] = column(row)
        parts["__key__"] = keys[row]
        parts["__id__"], parts["__epoch__"] = number, epoch
        if labels is not None:
            parts["label"] = labels[row]
        for name, marked in marks.items():
            parts[name] = marked[row]
        return parts

    return sample


def open_column(
    part: Field, made: Field, rows: npt.NDArray[Any] | Ragged, as_views: bool
) -> Callable[[int], Any]:
    """Return the function that gives the field of a row: raw bytes as bytes, else an array; a list
    of these where rows are lists of texts or of lists."""
    if part.levels:
        is_text = part.dtype == np.uint8 and not part.element
        return lambda row: _list_elements(rows[row], is_text)
    is_raw = part.shape is None and part.dtype == np.uint8 and not part.element and not part.text
    if not (is_raw if part.parser is None else part.parser.kinds.get(made.name) == "bytes"):
        return rows.__getitem__
    if isinstance(rows, Ragged):
        bounds: list[int] = rows.offsets.tolist()
        values = memoryview(rows.values)
        if as_views:
            return lambda row: values[bounds[row] : bounds[row + 1]]
        return lambda row: bytes(values[bounds[row] : bounds[row + 1]])
    length, flat = rows.shape[1], rows.reshape(-1).data
    if as_views:
        return lambda row: flat[row * length : (row + 1) * length]
    return lambda row: bytes(flat[row * length : (row + 1) * length])


def _list_elements(row: Any, is_text: bool) -> Any:
    if isinstance(row, Ragged):
        return [_list_elements(element, is_text) for element in row]
    return row.tobytes() if is_text else row
