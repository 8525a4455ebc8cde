"""Packs and batches by tokens: orders of rows or of batches that are made of samples by length.

`pack` makes rows of fixed length of documents, and its dataset lays out their tokens; `Buckets` are
batches of samples of near lengths, for models that pad. Which samples a row or a batch has is for
`order.packed_order`; this module knows fields and batches.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import (
    check_choice,
    check_fields,
    check_flag,
    check_kind,
    check_whole,
    function,
    whole,
)
from ..engine.protocol import Buffer
from ..errors import DataError, LimitError, UsageError
from ..extent import Int
from ..index.fields import SUMS_FIELD
from ..index.table import Index
from ..order.buckets import BucketRule, SizeRule
from ..order.keys import Words
from ..order.order import Order, Ordering
from ..order.packed_order import (
    JoinedDocuments,
    JoinedOrder,
    LongDocuments,
    PackedOrder,
    PackingRule,
    choose_window,
    count_joined_rows,
)
from ..order.packed_rows import ignored_label, lay_out_tokens, place_pieces
from ..plan.batch_layout import FieldRows, check_tokens
from ..plan.steps import StepPlan
from .columns import keep_fields
from .dataset import Dataset, Kind, join_takes
from .fields import Ragged, build_fields, check_vocabulary
from .lengths import build_unmeasured_error, find_counted, find_token_field
from .mixing import CurriculumKind, MixtureKind, check_part
from .sample import Decode

Style = Literal["rows", "flat"]
"""Form of a batch: rows of one length, or the documents of all rows end to end."""

_sampled_documents = 1 << 16  # whose mean length decides about the window


def pack(
    documents: Dataset,
    length: int,
    *,
    style: Style = "rows",
    shift_labels: bool = False,
    pad_id: int = 0,
    dtype: Any = "int64",
    long: LongDocuments = "split",
    multiple: int = 1,
    window: int | None = None,
    field: str | None = None,
    join: bool = False,
) -> Dataset:
    """Pack documents of tokens into rows of `length`, for `Loader` and `penstock.torch.DataLoader`.

    documents:  dataset of lists of tokens, or a selection or mixture of such, whose lengths are
                known (see `Dataset.lengths`).
    length:     tokens of a row, from 2 on.
    style:      "rows": batches (B, length), filled up with `pad_id`. "flat": batches (1, T), the
                documents of B rows end to end, for attention of variable length.
    shift_labels:  False: a label is the token at its place, and the first of each document is -100,
                as models want that shift by themselves (transformers). True: a label is the next
                token, and the last of each document is -100 (Megatron-LM, torchtitan).
    pad_id:     token of places without a document. Their labels are -100.
    dtype:      of input_ids, labels and position_ids: "int64" or "int32".
    long:       documents that are longer than a row: "split" divides them among rows, and each
                piece starts with the last token of the one before, so that every token but the
                first of a document is a label once; "cut" keeps the first `length` tokens; "error"
                refuses them.
    multiple:   tokens that the place of a document is a multiple of, for context parallelism: each
                is filled up with `pad_id`. `cu_seqlens` then has the documents' own lengths, and
                `cu_seqlens_padded` their places, the longest of which is `max_seqlen`.
    window:     documents that are packed together; by default the power of two, 4,096 to
                1,048,576, that gives at least 512 rows.
    field:      the field with the tokens; by default the only list of integers, or "input_ids" or
                "tokens" of several.
    join:       True: rows are not packed, but cut from the documents joined end to end, in their
                sequence in storage and over the ends of files. Rows are the same in every
                epoch; documents go on in the next row where one ends. A row starts with the
                last token of the one before, or with a pad if that ended its document. Rows
                are full otherwise, but the last. It does not go with `window`, `multiple`,
                another `long`, weights and mixtures.

    A sample of the loader is a row: `batch_size` counts rows. Whole documents go into rows by best
    fit, window by window of a shuffled epoch, and the rows of a window are shuffled. Every document
    comes once an epoch (as often as weights or a mixture say), and every epoch has other rows. The
    global batches depend on data, seed, shuffle, the global batch, `length`, `long`, `multiple` and
    `window`, and on nothing else. Documents of no tokens are in no row.

    A batch has input_ids, labels, position_ids (from 0 on in each document), cu_seqlens (int32,
    where each document starts in the flattened batch, and the end; pads at the end of a row count
    as a document), max_seqlen (int) and documents (int64, the number of each, -1 for pads).
    `batch.ids` are the numbers of the rows in the epoch.

    `len(loader)` waits until all rows of the epoch are counted, `loader.estimate_steps()` does not.
    UsageError for what does not fit; where lengths are not known it has the command that measures
    them.
    """
    refused = PackedKind, CurriculumKind
    check_part("documents", documents, refused, "opened data or a mixture; pack each stage")
    refuse_steps(documents, "of packed rows has no fixed number of documents")
    if documents.kind is not None and documents.compose_decode(None) is not None:
        raise UsageError("the mixture has decode functions: mix lists of tokens without decode=")
    kind = next((kind for kind in map(np.dtype, ("int32", "int64")) if kind == dtype), None)
    if kind is None:
        raise UsageError(f"dtype is {dtype!r}: use 'int64' or 'int32'")
    info = np.iinfo(kind)
    layout = RowLayout(
        check_whole("length", length, 2, limits.packing_length_max),
        check_choice("style", style, get_args(Style)),
        check_flag("shift_labels", shift_labels),
        check_whole("pad_id", pad_id, int(info.min), int(info.max)),
        kind,
        check_whole("multiple", multiple, 1, limits.packing_length_max),
    )
    if field is not None:
        check_kind("field", field, str, "the name of the field with the tokens")
    if check_flag("join", join):
        given = {"window": window is not None, "multiple": multiple != 1, "long": long != "split"}
        given |= {"weights": documents.weighting is not None}
        given |= {"a mixture": documents.kind is not None}
        if wrong := [name for name, is_given in given.items() if is_given]:
            raise UsageError(f"join=True takes each document once: leave out {', '.join(wrong)}")
    return _make_packed(documents, layout, long, window, field, join)


def refuse_steps(dataset: Dataset, why: str) -> None:
    """Refuse a schedule or a curriculum whose starts count steps."""
    if dataset.kind is not None and dataset.kind.steps is not None:
        what, remedy = dataset.kind.steps
        raise UsageError(f"the {what} in steps, and a step {why}: use {remedy}")


@dataclass(frozen=True)
class RowLayout:
    """Form of the batches of packed rows; see `pack`."""

    length: int
    style: Style
    shift_labels: bool
    pad_id: int
    dtype: np.dtype[Any]
    multiple: int


class PackedKind(Kind):
    """Rows of documents; the samples, by number, are the documents.

    An order numbers the rows of an epoch. They are packed by best fit, or cut from the documents
    joined end to end.
    """

    noun = "packed rows"
    has_rows = True
    arrays = ("input_ids", "labels", "position_ids")
    refusals = MappingProxyType(
        {
            "select": "select documents, and pack these",
            "split": "split the documents, and pack each part",
            "weigh": "weigh the documents, and pack these",
        }
    )

    def __init__(
        self,
        documents: Dataset,
        tokens: Dataset,
        layout: RowLayout,
        long: LongDocuments,
        window: int | None,
        field: str | None,
        joins: bool,
    ) -> None:
        (made,) = (made for made in tokens.index.made if made.name != SUMS_FIELD)
        self._documents, self._layout, self._field = documents, layout, made.name
        self._arguments = long, window, field, joins
        self.parts = documents.parts
        self.samples_per_epoch = documents.samples_per_epoch
        self._read_lengths, measured = _find_document_lengths(tokens)
        # Other lengths, if they were measured, or another field would make other rows.
        if field is None and not measured:
            self.fingerprint = documents.fingerprint
        else:
            text = f"{documents.fingerprint}/{field}/{measured}"
            self.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        self.row_bytes = float(layout.length * made.dtype.itemsize)
        tokens_each = self._estimate_tokens()
        # Adding up all lengths would take longer than the first batch. Neighbours in a row of
        # joined documents are mostly so in storage.
        self.document_bytes = self.row_bytes if joins else tokens_each * made.dtype.itemsize
        if window is None:
            window = choose_window(layout.length, tokens_each)
        self._rule = PackingRule(layout.length, window, long, layout.multiple)
        self._joined: JoinedDocuments | None = None

    def make_order(self, seed: int, **options: Any) -> PackedOrder | JoinedOrder:
        if not self._arguments[3]:
            return PackedOrder(
                self._documents.order(seed, **options), self._rule, self._read_lengths
            )
        documents, length = self._documents, self._layout.length
        if self._joined is None:
            self._joined = JoinedDocuments(len(documents), documents.ids, self._read_lengths)
        count = count_joined_rows(self._joined.tokens, length)
        if not count:
            raise UsageError(f"no document of {documents.path} has a token: add some")
        return JoinedOrder(Order(count, seed, **options), length, self._joined)

    def find_row_table(self) -> tuple[str, str, str]:
        paths = self._documents.list_length_paths()
        stem = paths[-1].removesuffix(".lengths.penstock")
        return stem, self.fingerprint, self._documents.index.version

    def compose_decode(self, decode: Decode | None) -> None:
        """Refuse a function of samples: a batch of rows is laid out as a whole."""
        if decode is not None:
            raise UsageError("packed rows take no decode=: change tokens when they are made")

    def lay_out(
        self, index: Index, planned: StepPlan, buffer: Buffer, take: Callable[[int], Buffer]
    ) -> dict[str, Any]:
        """Return the fields of a step's batch, in memory of `take`.

        DataError if a document has other tokens than its length says, or one that `dtype` does not
        hold.
        """
        rows, layout = planned.pack, self._layout
        assert rows is not None
        pieces = rows.pieces
        tokens, at = self._find_tokens(index, planned, buffer)
        placed = place_pieces(
            pieces.offsets,
            pieces.length,
            layout.length,
            layout.multiple,
            flat=layout.style == "flat",
        )
        target, size = placed.targets, placed.places
        if size > limits.packing_batch_max:
            raise LimitError(f"step {planned.step}: a batch of {size:,} tokens: use fewer rows")
        memory = take(3 * size * layout.dtype.itemsize).view(layout.dtype)
        inputs, labels, positions = (memory[k * size : (k + 1) * size] for k in range(3))
        bad = lay_out_tokens(
            tokens,
            at,
            np.ascontiguousarray(pieces.length),
            target,
            pad=layout.pad_id,
            shifted=layout.shift_labels,
            inputs=inputs,
            labels=labels,
            positions=positions,
        )
        if planned.repeats:  # no target counts twice
            labels[int(target[pieces.offsets[-1 - planned.repeats]]) :] = ignored_label
        if bad < len(at):
            document = int(pieces.documents[bad])
            where = f"step {planned.step}, document {document:,}: {index.where(document)}"
            raise DataError(f"{where}: a token is larger than {layout.dtype} holds: use 'int64'")
        shape = (1, size) if layout.style == "flat" else (-1, layout.length)
        fields: dict[str, Any] = {
            "input_ids": inputs.reshape(shape),
            "labels": labels.reshape(shape),
            "position_ids": positions.reshape(shape),
            "cu_seqlens": placed.starts,
        }
        if layout.multiple > 1:
            # Ranks of context parallelism share places, so that one's part of the longest place
            # may have more than its part of the longest document.
            fields["cu_seqlens_padded"] = placed.rooms
        fields["max_seqlen"] = placed.longest
        fields["documents"] = placed.spread(pieces.documents.view(np.int64))
        return fields | {name: placed.spread(column) for name, column in pieces.marks.items()}

    def _find_tokens(
        self, index: Index, planned: StepPlan, buffer: Buffer
    ) -> tuple[npt.NDArray[Any], Int]:
        """Return tokens end to end, and where each piece starts among them."""
        rows = planned.pack
        assert rows is not None
        pieces = rows.pieces
        if rows.is_sliced:
            (places,) = planned.layout.fields
            assert isinstance(places, FieldRows)
            assert places.bounds is not None
            end = int(places.bounds[-1]) * places.element_bytes
            stored, bounds = index.fields[0], places.bounds
            flat = buffer[places.base : places.base + end].view(stored.dtype)
            if stored.vocabulary:
                cut = Ragged(flat, bounds)
                check_vocabulary(index, stored, cut, pieces.documents, planned.step, pieces.start)
            return _make_native(flat), bounds[:-1]
        column = build_fields(index, planned, buffer)[self._field]
        if isinstance(column, Ragged):
            flat, offsets = column.values, np.asarray(column.offsets)
        else:
            width = column.shape[1] if column.ndim == 2 else 0
            flat, offsets = column.reshape(-1), np.arange(len(column) + 1, dtype=np.int64) * width
        try:
            check_tokens(pieces, np.diff(offsets))
        except DataError as error:
            at = int(np.argmax(pieces.tokens != np.diff(offsets)))
            where = index.where(int(pieces.documents[at]))
            raise DataError(f"step {planned.step}: {where}: {error}") from None
        return _make_native(np.ascontiguousarray(flat)), offsets[:-1] + pieces.start

    def _estimate_tokens(self) -> float:
        """Return the mean tokens of documents spread evenly over all; the same on every rank."""
        count = len(self._documents)
        sampled = min(count, _sampled_documents)
        numbers = np.arange(sampled, dtype=np.uint64) * np.uint64(count // max(1, sampled))
        tokens = self._read_lengths(self._documents.ids(numbers)) if count else np.zeros(0)
        return float(tokens.mean()) if len(tokens) else 0.0

    def rebuild(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        return _make_packed, (self._documents, self._layout, *self._arguments)

    def describe(self) -> str:
        rule, how = self._rule, "cut of joined documents"
        if not self._arguments[3]:
            how = f"{rule.window:,} documents packed at a time"
        return (
            f"<penstock.Dataset, packed rows of {rule.length:,} tokens, {how}, of "
            f"{self._documents!r}>"
        )


def _make_packed(
    documents: Dataset,
    layout: RowLayout,
    long: LongDocuments,
    window: int | None,
    field: str | None,
    joins: bool,
) -> Dataset:
    """Make the dataset of packed rows."""
    name = find_token_field(documents.index, documents.path, field)
    tokens = _keep_field(documents, name)
    return Dataset(
        documents.path,
        tokens.index,
        documents.sidecar,
        subset=documents.subset,
        weighting=documents.weighting,
        kind=PackedKind(documents, tokens, layout, long, window, field, joins),
    )


def _make_native(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _keep_field(documents: Dataset, name: str) -> Dataset:
    """Return the documents with one field, without what their index holds besides."""
    if isinstance(documents.kind, MixtureKind):
        return documents.kind.keep_field(name)
    index = keep_fields(documents.index, [name])
    fields = tuple(replace(stored, as_dtype=None) for stored in index.fields)
    narrowed = copy.copy(documents)
    narrowed.index = replace(index, fields=fields, label_column=None)
    return narrowed


def _find_document_lengths(documents: Dataset) -> tuple[Callable[[Words], Int], dict[int, int]]:
    """Return the function that gives the tokens of documents, and checksums of measured lengths.

    The container's numbers go before lengths that were measured. A checksum is by the number of
    its part.
    """
    takes: list[Callable[[Words], Int]] = []
    checksums: dict[int, int] = {}
    for number, dataset in enumerate(documents.parts):
        if (counted := find_counted(dataset.index)) is not None:
            lengths_of = dataset.index.layouts[counted[0]].lengths
            shift = counted[1].element_bytes.bit_length() - 1  # half the time of a division
            takes.append(partial(_count_elements, lengths_of, shift))
        elif (saved := dataset.load_lengths()) is not None:
            checksums[number] = saved.checksum
            takes.append(saved.take)
        else:
            raise build_unmeasured_error(dataset.path)
    return join_takes(documents.parts, takes), checksums


def _count_elements(lengths_of: Callable[[Int], Int], shift: int, documents: Words) -> Int:
    return lengths_of(documents.view(np.int64)) >> shift


_sampled = 1 << 16  # samples whose mean length decides about the window


@dataclass(frozen=True)
class Buckets:
    """Options of batches by tokens: `Loader(..., batch_tokens=Buckets(...))`.

    tokens:    most tokens of a rank's batch, padding to its longest sample included.
    multiple:  tokens that lengths are padded to a multiple of, as `penstock.pad(multiple=...)`.
    cost:      instead of tokens, a function of an int64 array of lengths (rounded up so) that
               returns the room that each takes; it does not fall as lengths grow, and takes any
               length. A batch then takes at most `tokens` of that.
    window:    samples among which near lengths are looked for; by default the power of two, 4,096
               to 1,048,576, that gives at least 512 batches.
    """

    tokens: float
    multiple: int = 1
    cost: SizeRule | None = field(
        default=None, metadata=function("a function of an array of lengths")
    )
    window: int | None = field(default=None, metadata=whole())

    def __post_init__(self) -> None:
        check_fields(self, "")
        BucketRule(self.tokens, self.window or 1, self.multiple, self.cost)


def check_batch_tokens(has_size: bool, has_cache: bool, is_auto: bool) -> None:
    """Refuse what does not go with batches by tokens."""
    if has_size:
        raise UsageError("batch_tokens excludes batch_size and global_batch_size: choose one")
    if has_cache or is_auto:
        given = "cache" if has_cache else 'shuffle="auto"'
        raise UsageError(f"batch_tokens does not go with {given}: leave it out, and name a shuffle")


def bucket_orders(
    dataset: Dataset, batch_tokens: float | Buckets, make_order: Callable[[Dataset], Ordering]
) -> Callable[[Dataset], Ordering]:
    """Wrap `make_order` so that it makes orders of batches of samples of similar length.

    UsageError if the lengths of samples are not known.
    """
    options = batch_tokens if isinstance(batch_tokens, Buckets) else Buckets(batch_tokens)
    if dataset.rows is not None:
        raise UsageError("batch_tokens does not go with packed rows: batch_size counts rows")
    refuse_steps(dataset, "of batch_tokens has no fixed number of samples")
    lengths_of = dataset.find_id_lengths()
    if lengths_of is None:
        raise build_unmeasured_error(dataset.path)
    count = len(dataset)
    numbers = np.linspace(0, count - 1, min(count, _sampled)).astype(np.uint64)
    rule = BucketRule(options.tokens, 1, options.multiple, options.cost)
    sizes = rule.measure(lengths_of(dataset.ids(numbers)))
    window = options.window or choose_window(rule.tokens, max(float(sizes.mean()), 1e-9))
    measured = _identify_lengths(dataset)
    rule = BucketRule(options.tokens, window, options.multiple, options.cost, measured)
    return lambda view: PackedOrder(make_order(view), rule, lengths_of)


def _identify_lengths(dataset: Dataset) -> str:
    """Return the identity of the lengths that were measured; "" if the data itself has them."""
    saved = [member.load_lengths() for member in dataset.parts]
    checksums = [None if lengths is None else lengths.checksum for lengths in saved]
    if all(lengths is None for lengths in saved):
        return ""
    return ":" + hashlib.blake2b(repr(checksums).encode(), digest_size=8).hexdigest()
