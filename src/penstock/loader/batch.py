"""Batches: a step's bytes as arrays, or the error that says why they did not arrive."""

from __future__ import annotations

import errno
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from .. import limits
from ..budget import Budget
from ..engine import Arena, Buffer, Failure, ReadMethod, build_changed_error, build_storage_error
from ..errors import FormatError, PenstockError
from ..extent import Int
from ..index import (
    SUMS_FIELD,
    Field,
    Index,
    JsonFields,
    LineError,
    NestedError,
    build_line_error,
    codecs,
    find_damaged,
    find_foreign_token,
    unpack_rows,
)
from ..plan import FieldChunks, FieldRows, Group, Ids, StepPlan
from .decode import Samples
from .decompress import decompress_field
from .sample import LoadedSample


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


_marks = ("ids", "step", "epoch", "repeats")


class Batch(dict[str, Any]):
    """One rank's part of one step: a dict of its fields, which also says which samples they are.

    ids:      uint64 (B,), sample numbers.
    epoch, step: position in the run.
    valid:    bool (B,), False in rows that repeat a sample to fill a padded step (`pad=True`).
    repeats:  number of such rows; they are the last ones.

    Without `decode`, `batch["data"]` is a field: an array (B, L) of uint8, or (B, *shape) of the
    field's dtype if the format has one; `Ragged` if the samples differ in length. `batch["label"]`
    is int64 (B,) if labels are known. With `decode` the fields are those of the dict that it, or
    `collate`, returns. The memory belongs to the batch until the last view of it is gone. The
    loaders in `penstock.torch` give tensors, ids as int64.

    `len()` is the number of fields, as of any dict; `len(batch.ids)` is the number of samples. A
    copy, `batch | {...}`, `to`, pickles and pinned batches keep ids, step, epoch and repeats. A
    batch that is made of fields alone, as `type(batch)({...})`, has none: some trainers, and
    `jax.tree.map`, make such ones. Equal batches have equal fields, ids, step, epoch and repeats.
    """

    __slots__ = (*_marks, "_mask")
    __hash__ = None

    ids: Any
    step: int
    epoch: int
    repeats: int
    _mask: Any

    def __init__(
        self,
        fields: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        *,
        ids: Any = None,
        step: int = 0,
        epoch: int = 0,
        repeats: int = 0,
    ) -> None:
        dict.__init__(self, fields)
        self._mask = None
        if ids is not None:
            self.ids, self.step, self.epoch, self.repeats = ids, step, epoch, repeats
        if not _jax_knows and "jax.tree_util" in sys.modules:
            _register_with_jax()

    @property
    def valid(self) -> Any:
        if self._mask is not None:
            return self._mask
        valid = self.ids >= 0  # an array where ids is one, a tensor on its device where it is one
        valid[len(valid) - self.repeats :] = False
        return valid

    def keep_valid(self, mask: Any) -> None:
        """Keep `valid` in memory, where a captured CUDA graph reads it again at each replay."""
        self._mask = mask

    def replace_fields(self, fields: Mapping[str, Any]) -> Batch:
        """Return a batch of these fields, with the ids, step and epoch of this one."""
        batch = Batch(fields)
        for name in _marks:
            if hasattr(self, name):
                setattr(batch, name, getattr(self, name))
        batch._mask = self._mask
        return batch

    def copy(self) -> Batch:
        return self.replace_fields(self)

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """Return the batch with all tensors, ids too, moved to a device of torch."""
        batch = self.replace_fields(
            {name: _move(part, device, non_blocking) for name, part in self.items()}
        )
        if hasattr(batch, "ids"):
            batch.ids = _move(batch.ids, device, non_blocking)
            batch._mask = _move(batch._mask, device, non_blocking)
        return batch

    def __or__(self, other: Any) -> Any:
        return self.replace_fields({**self, **other}) if isinstance(other, dict) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict) or not _is_same(dict(self), dict(other)):
            return False
        if not isinstance(other, Batch):
            return True
        return all(
            _is_same(getattr(self, name, None), getattr(other, name, None)) for name in _marks
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __missing__(self, field: str) -> NoReturn:
        raise KeyError(f"{field!r}: the fields are {', '.join(map(str, self))}")

    def __getattr__(self, name: str) -> NoReturn:
        # Python calls this only for names that are neither a method nor a slot with a value.
        if name in (*_marks, "valid"):
            raise AttributeError(
                f"this batch was made of fields alone, as trainers do to move them, and has no "
                f"{name}: read it from the batch that the loader gave, or let decode return what "
                'you need of it, such as sample["__id__"]'
            )
        names = ", ".join(map(str, self))
        raise AttributeError(
            f"a batch has no attribute {name!r}: it has ids, step, epoch, valid and repeats, and "
            f'batch["name"] gives one of its fields: {names}'
        )

    def __repr__(self) -> str:
        names = list(self)
        if not hasattr(self, "ids"):
            return f"Batch({names})"
        return f"Batch(epoch={self.epoch}, step={self.step}, {len(self.ids)} samples, {names})"


def _move(part: Any, device: Any, non_blocking: bool) -> Any:
    """Return the part with its tensors on the device."""
    if isinstance(part, dict):
        return type(part)({name: _move(one, device, non_blocking) for name, one in part.items()})
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*(_move(one, device, non_blocking) for one in part))
    if isinstance(part, list | tuple):
        return type(part)(_move(one, device, non_blocking) for one in part)
    if isinstance(part, Ragged) and not hasattr(part.values, "to"):
        return part
    return part.to(device, non_blocking=non_blocking) if hasattr(part, "to") else part


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two parts of batches are equal: of one shape and dtype, with equal values."""
    if one is other:
        return True
    if isinstance(one, Ragged) and isinstance(other, Ragged):
        return _is_same(one.offsets, other.offsets) and _is_same(one.values, other.values)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    shape, dtype = getattr(one, "shape", None), getattr(one, "dtype", None)
    if (shape, dtype) != (getattr(other, "shape", None), getattr(other, "dtype", None)):
        return False
    same = one == other
    return bool(same if shape is None else same.all())


_jax_knows = False


def _register_with_jax() -> None:
    """Tell jax, which is imported, that batches are trees of their fields.

    Ids, step and epoch are left out: as leaves they could not be sharded as the fields are, and as
    constants they would make jit compile anew at each step.
    """
    global _jax_knows
    tree_util: Any = sys.modules["jax.tree_util"]
    if not hasattr(tree_util, "register_pytree_with_keys"):
        return  # jax is being imported right now
    _jax_knows = True

    def flatten_with_keys(batch: Batch) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        names = tuple(sorted(batch))
        return [(tree_util.DictKey(name), batch[name]) for name in names], names

    def flatten(batch: Batch) -> tuple[list[Any], tuple[str, ...]]:
        names = tuple(sorted(batch))
        return [batch[name] for name in names], names

    tree_util.register_pytree_with_keys(
        Batch,
        flatten_with_keys,
        lambda names, parts: Batch(zip(names, parts, strict=True)),
        flatten,
    )
    tree_util.register_pytree_node(
        Ragged,
        lambda ragged: ((ragged.values, ragged.offsets), None),
        lambda _, parts: Ragged(*parts),
    )


def mark_batch(value: Any, planned: StepPlan, epoch: int) -> Any:
    """Return what collation gave; a dict becomes a `Batch` that knows its samples.

    Other mappings, tuples, lists and arrays stay as they are, as with torch's default_collate.
    """
    if type(value) is not dict:
        return value
    return Batch(
        value, ids=planned.row_ids, step=planned.step, epoch=epoch, repeats=planned.repeats
    )


def choose_gap(index: Index, choice: ReadMethod) -> int | None:
    """Return the bytes that may lie between two extents that are read together.

    None if nothing is to be merged: extents of a memory map cost the same in any sequence, and a
    file that holds one sample has no neighbours.
    """
    alone = len(index.files) >= index.count * len(index.fields)
    return None if choice.backend == "mmap" or alone else choice.gap_bytes


def choose_readahead(choice: ReadMethod, budget: Budget, step_bytes: float) -> tuple[int, int]:
    """Return the most bytes and steps that may be requested or ready at once.

    step_bytes:  bytes of a rank's step.

    Both are smaller if the data is in the page cache, because reading is then only copying.
    """
    budget_bytes = budget.readahead_bytes
    if not choice.cached:
        return budget_bytes, limits.readahead_steps_max
    enough_bytes = max(limits.readahead_cached_bytes_max, int(4 * step_bytes))
    return min(budget_bytes, enough_bytes), limits.readahead_cached_steps_max


def share_memory(arena: Arena, index: Index, budget: Budget, engine_bytes: int = 0) -> None:
    """Divide the memory of a budget: half of it may keep decoded chunks, where there are such.

    engine_bytes:  of the budget, for buffers of the engine's own.
    """
    coded = any(field.codec is not None for field in index.fields)
    kept = min(limits.decoded_chunks_bytes_max, budget.readahead_bytes // 2) if coded else 0
    arena.limit(budget.readahead_bytes - kept - engine_bytes)
    if coded:
        codecs.RECENT.share(arena, kept)


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


def describe_failure(
    index: Index, planned: StepPlan, group: Group, failure: Failure
) -> tuple[int, PenstockError]:
    """Return the step whose bytes are missing, and the error that names sample and cause."""
    extent, code, got = failure
    requests = planned.requests
    owner = group.steps[int(requests.buffer[extent])]
    target = int(requests.target[extent])
    row, field = owner.layout.find(target)
    sample = int(owner.ids[row])
    where = f"step {owner.step}, sample {sample:,}: {index.where(sample, field)}"
    path = index.files.path(int(requests.file[extent]))
    if code == errno.ESTALE:
        return owner.step, build_changed_error(
            where, f"{path} is of another size or modification time"
        )
    if code == 0:
        wanted = int(requests.length[extent])
        return owner.step, build_changed_error(
            where, f"{path} was cut short: {got:,} of {wanted:,} bytes read"
        )
    return owner.step, build_storage_error(code, path, f" ({where})")
