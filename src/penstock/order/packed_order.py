"""The order of rows: documents of a window of an ordering, packed into rows of fixed length.

Window w holds the documents at the positions [w * W, (w+1) * W) of an ordering. They go into rows
of L tokens by best fit, in the order of the window: each to the row with the least space that
holds it, of several to the one that came to that space last, else to a new row. Documents are not
sorted by length: that would fill rows a tenth of a percent better, and gather hundreds of short
ones in some rows and one long one in others. The rows of a window are permuted by an `Order`.

So a row of an epoch is found by packing one window, if the rows before that window are known
(`packed_rows`).

A `JoinedOrder` cuts rows from documents joined end to end instead, in their sequence in storage.
The tokens of all documents are one stream, across files. Row r of L tokens has the tokens from
r (L - 1) to r (L - 1) + L: neighbours share one token, so that every token but a document's first
is the target of its predecessor in exactly one row. If a shared token is the last of its document,
the next row leaves it out, and is one token shorter. The last row has the rest. So rows, their
number and their documents are found by arithmetic and one sum of tokens for each block of
documents. They are the same in every epoch; an `Order` shuffles them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import limits
from .._core import count_packed_rows, pack_documents
from ..arguments import check_fields, check_whole, choice, whole
from ..errors import DataError, LimitError, UsageError
from .buckets import BucketRule, PackedWindow
from .keys import Words
from .order import DerivedOrdering, Marks, Order, Ordering
from .packed_rows import Integers, RowCounts

ReadLengths = Callable[[Words], Integers]
"""Function from the numbers of documents, in the whole dataset, to their tokens."""

LongDocuments = Literal["split", "cut", "error"]
"""Treatment of documents that are longer than a row."""

FindDocuments = Callable[[Integers], Words]
"""Function from numbers of documents, in the joined sequence, to numbers in the dataset."""


@dataclass(frozen=True, slots=True)
class PackingRule:
    """All that decides how the documents of a window are packed.

    length:    tokens of a row.
    window:    documents of a window.
    long:      "split" divides longer documents among rows, with one shared token; "cut"
               keeps their first `length` tokens; "error" refuses them.
    multiple:  tokens that the place of a document is a multiple of.
    """

    length: int = field(metadata=whole(2, limits.packing_length_max))
    window: int = field(metadata=whole(1, limits.packing_window_max))
    long: LongDocuments = field(default="split", metadata=choice(LongDocuments))
    multiple: int = 1

    def __post_init__(self) -> None:
        check_fields(self, "")
        check_whole("multiple", self.multiple, 1, self.length)
        if self.length % self.multiple:
            below = self.length // self.multiple * self.multiple
            what = f"length is {self.length}, no multiple of {self.multiple}"
            raise UsageError(f"{what}: use {below}")

    @property
    def name(self) -> str:
        """Identifier in saved states."""
        aligned = f"m{self.multiple}" if self.multiple > 1 else ""
        return f"packing-1:{self.length}x{self.window}:{self.long}{aligned}"

    def check(self, documents: Words, lengths: Integers) -> None:
        """Raise DataError or LimitError if documents are too long."""
        length = self.length
        if int(lengths.max()) <= length:
            return
        if self.long == "error":
            at = int(np.argmax(lengths > length))
            what = f"document {documents[at]} has {lengths[at]:,} tokens, more than a row of"
            remedy = f'long="split" or "cut", longer rows, or select(where="length <= {length}")'
            raise DataError(f"{what} {length:,}: use {remedy}")
        if self.long == "split":
            most = limits.packing_pieces_max + 1  # the sum of false lengths would overflow
            rows = int(((lengths - 1) // (length - 1)).clip(0, most).sum())
            if rows > limits.packing_pieces_max:
                at = int(np.argmax(lengths))
                what = f"a window would have {rows:,} or more rows of {length:,} tokens"
                why = f"document {documents[at]} has {lengths[at]:,}"
                remedy = 'use longer rows, a smaller window=, or long="cut"'
                raise LimitError(f"{what} ({why}): {remedy}")

    def pack(self, lengths: Integers) -> PackedWindow:
        """Pack the documents of a window.

        Returns the offsets of rows, and of each piece the document by its place in the window, its
        first token and its tokens.
        """
        return pack_documents(lengths, self.length, self.long == "split", self.multiple)

    def count_rows(self, lengths: Integers) -> int:
        """Count the rows of a window with documents of these lengths."""
        split = self.long == "split"
        return count_packed_rows(lengths, self.length, split, self.multiple)


class RowPieces(NamedTuple):
    """The pieces of documents in some rows.

    offsets:    int64 (rows + 1,), row i has the pieces offsets[i]:offsets[i+1].
    documents:  uint64 (pieces,), their numbers in the whole dataset.
    start:      first token of each piece in its document.
    length:     tokens of each piece.
    tokens:     tokens of the document.
    marks:      values that the documents' order gives each, int64 (pieces,) by name.
    """

    offsets: Integers
    documents: Words
    start: Integers
    length: Integers
    tokens: Integers
    marks: Marks

    def cut(self, first: int, last: int) -> RowPieces:
        """Return the pieces of the rows [first, last)."""
        span = slice(int(self.offsets[first]), int(self.offsets[last]))
        return RowPieces(
            self.offsets[first : last + 1] - self.offsets[first],
            self.documents[span],
            self.start[span],
            self.length[span],
            self.tokens[span],
            {name: column[span] for name, column in self.marks.items()},
        )

    def take(self, at: Integers, offsets: Integers) -> RowPieces:
        """Return the pieces at these indices, of rows with these offsets."""
        return RowPieces(
            offsets,
            self.documents.take(at),
            self.start.take(at),
            self.length.take(at),
            self.tokens.take(at),
            {name: column.take(at) for name, column in self.marks.items()},
        )


@dataclass(frozen=True, slots=True)
class _Window:
    """A packed window: its pieces by row, and where each row comes among them."""

    pieces: RowPieces
    order: Order | None

    def take(self, places: Words) -> RowPieces:
        """Return the pieces of the rows at these places of the window."""
        rows = places if self.order is None else self.order.samples(places)
        first = self.pieces.offsets.take(rows.view(np.int64))
        counts = self.pieces.offsets.take(rows.view(np.int64) + 1) - first
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        at = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)
        return self.pieces.take(at, offsets)


def read_document_lengths(read_lengths: ReadLengths, documents: Words) -> Integers:
    """Return the tokens of documents. DataError if a length is negative."""
    lengths = np.ascontiguousarray(read_lengths(documents), np.int64)
    if len(lengths) and int(lengths.min()) < 0:
        at = int(np.argmin(lengths))
        what = f"document {documents[at]} has a length of {lengths[at]:,} tokens"
        raise DataError(f"{what}: measure lengths again with `penstock lengths --force`")
    return lengths


class RowOrdering(DerivedOrdering):
    """An `Ordering` whose positions are rows, and whose samples are pieces of documents in them."""

    def pieces(self, rows: npt.ArrayLike) -> RowPieces:
        """Return the pieces of documents in these rows of the epoch."""
        raise NotImplementedError

    @property
    def joins_documents(self) -> bool:
        """True if a row is one of a batch; False if it is a batch of samples."""
        return True

    def rows(self, positions: npt.ArrayLike) -> tuple[Words, Marks]:
        """Return the documents in these rows, one row after the other, and their marks."""
        pieces = self.pieces(positions)
        return pieces.documents, pieces.marks

    def row_document_lengths(self, rows: npt.ArrayLike) -> tuple[Integers, Integers]:
        """Return the tokens of all pieces in these rows, one row after the other, and where each
        row starts among them, with the end. Nothing is read from storage."""
        pieces = self.pieces(rows)
        return pieces.length, pieces.offsets


@dataclass(frozen=True)
class PackedOrder(RowOrdering):
    """An order whose positions are the rows of an epoch, and whose samples are pieces of documents.

    inner:         ordering of the documents.
    rule:          how the documents of a window are packed, or samples divided into batches.
    read_lengths:  gives the tokens of documents.

    A window is packed when one of its rows is asked for, in about 40 ns a document and what `inner`
    and `read_lengths` take; the last few are kept.
    """

    inner: Ordering
    rule: PackingRule | BucketRule
    read_lengths: ReadLengths = field(repr=False, compare=False)
    epoch: int = 0
    _counts: dict[int, RowCounts] = field(default_factory=dict, repr=False, compare=False)
    _packed: dict[tuple[int, int], _Window] = field(default_factory=dict, repr=False, compare=False)

    @property
    def algorithm(self) -> str:
        return f"{self.rule.name}/{self.inner.algorithm}"

    @property
    def joins_documents(self) -> bool:
        return isinstance(self.rule, PackingRule)

    @property
    def windows(self) -> int:
        """Windows of an epoch."""
        return -(-len(self.inner) // self.rule.window)

    @property
    def counts(self) -> RowCounts:
        """Rows of this epoch's windows."""
        counts = self._counts.get(self.epoch)
        if counts is None:
            if self.windows > limits.packing_windows_max:
                what = f"an epoch has {self.windows:,} windows of {self.rule.window:,} documents"
                most = f"of {limits.packing_windows_max:,} at most"
                raise LimitError(f"{what}, {most}: use a larger window=")
            # Of an order without counts: no cycle keeps the memory of windows.
            alone = replace(self, _counts={})
            last_count = (len(self.inner) - 1) % self.rule.window + 1
            counts = RowCounts(self.windows, last_count / self.rule.window, alone.pack_window)
            while len(self._counts) >= limits.packing_epochs_kept:
                self._counts.pop(next(iter(self._counts)), None)
            self._counts[self.epoch] = counts
        return counts

    def __len__(self) -> int:
        """Rows of this epoch; counts all windows that are not counted yet."""
        counts = self.counts
        for window in range(self.windows):
            if not counts.is_counted(window):
                counts.fill(window, self.count_window(window))
        return counts.sum()

    def at_epoch(self, epoch: int) -> PackedOrder:
        """The order of another epoch of the same data."""
        return replace(self, inner=self.inner.at_epoch(epoch), epoch=epoch)

    def count_drawn(self, position: int) -> list[int]:
        """Count the documents drawn over all epochs before the window of a row."""
        window = self.counts.locate(position - 1)[0] if position else 0
        return self.inner.count_drawn(window * self.rule.window)

    def pieces(self, rows: npt.ArrayLike) -> RowPieces:
        wanted = np.asarray(rows).reshape(-1).astype(np.uint64)
        windows: list[RowPieces] = []
        where: list[npt.NDArray[np.intp]] = []
        rest = np.arange(len(wanted))
        while len(rest):
            window, before = self.counts.locate(int(wanted[rest[0]]))
            after = before + self.pack_window(window)
            of_rest = wanted[rest]
            is_inside = (of_rest >= np.uint64(before)) & (of_rest < np.uint64(after))
            where.append(rest[is_inside])
            windows.append(self._get_window(window).take(of_rest[is_inside] - np.uint64(before)))
            rest = rest[~is_inside]
        return _join_pieces(windows, where)

    def count_window(self, window: int) -> int:
        """Count the rows of a window."""
        _, lengths, _ = self._read_window(window)
        return self.rule.count_rows(lengths)

    def pack_window(self, window: int) -> int:
        """Pack a window, keep it for a while, and return its rows."""
        return len(self._get_window(window).pieces.offsets) - 1

    def _read_window(self, window: int) -> tuple[Words, Integers, Marks]:
        """Return the documents of a window, their tokens, and marks."""
        start = window * self.rule.window
        stop = min(start + self.rule.window, len(self.inner))
        documents, marks = self.inner.rows(np.arange(start, stop, dtype=np.uint64))
        lengths = read_document_lengths(self.read_lengths, documents)
        self.rule.check(documents, lengths)
        return documents, lengths, marks

    def _get_window(self, window: int) -> _Window:
        key = self.epoch, window
        packed = self._packed.get(key)
        if packed is None:
            packed = self._pack_window(window)
            while len(self._packed) >= limits.packing_windows_kept:
                self._packed.pop(next(iter(self._packed)), None)
            self._packed[key] = packed
        return packed

    def _pack_window(self, window: int) -> _Window:
        documents, lengths, marks = self._read_window(window)
        offsets, which, start, length = self.rule.pack(lengths)
        rows = len(offsets) - 1
        shuffled = None
        if rows and self.shuffle != "none":
            shuffled = Order(rows, self.seed, self.epoch, stream=window, purpose="packing")
        taken = {name: column.take(which) for name, column in marks.items()}
        columns = documents.take(which), start, length, lengths.take(which), taken
        return _Window(RowPieces(offsets, *columns), shuffled)


def _join_pieces(cuts: list[RowPieces], where: list[npt.NDArray[np.intp]]) -> RowPieces:
    """Join pieces of the rows `where`, in the order of the rows."""
    if len(cuts) == 1:
        return cuts[0]
    if not cuts:
        empty = np.empty(0, np.int64)
        return RowPieces(np.zeros(1, np.int64), np.empty(0, np.uint64), empty, empty, empty, {})
    rows = np.concatenate(where)
    counts = np.concatenate([np.diff(cut.offsets) for cut in cuts])
    begins = np.cumsum(counts) - counts
    back = np.empty(len(rows), np.int64)
    back[rows] = np.arange(len(rows))
    counts, begins = counts[back], begins[back]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    at = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], counts)
    *columns, _ = zip(*cuts, strict=True)
    joined: list[Any] = [np.concatenate(column) for column in columns]
    marks = {name: np.concatenate([cut.marks[name] for cut in cuts]) for name in cuts[0].marks}
    return RowPieces._make([*joined, marks]).take(at, offsets)


def choose_window(length: float, mean_tokens: float) -> int:
    """Choose the documents of a window: the least power of two, 4 Ki to 1 Mi, that gives at least
    512 rows of this length to a window. The last row of a window is half empty."""
    window = limits.packing_window_min
    while window < limits.packing_window_auto_max and (
        window * mean_tokens < limits.packing_window_rows * length
    ):
        window *= 2
    return window


# -- rows cut from joined documents ----------------------------------------------------------------


class JoinedDocuments:
    """Documents joined end to end, of which those at any place of the stream are found.

    count:           documents.
    find_documents:  their numbers in the whole dataset.
    read_lengths:    gives the tokens of documents. All are read once, some 5 ns each.

    `sums` are the tokens before each block of documents, and all tokens.
    """

    def __init__(
        self, count: int, find_documents: FindDocuments, read_lengths: ReadLengths
    ) -> None:
        self.count = count
        self._find_documents, self._read_lengths = find_documents, read_lengths
        block = limits.joining_block_documents
        self.sums: Integers = np.zeros(-(-count // block) + 1, np.int64)
        chunk = block * (limits.joining_chunk_documents // block)
        total = 0
        for start in range(0, count, chunk):
            numbers = np.arange(start, min(start + chunk, count))
            lengths = self._read(numbers)[1]
            if total + lengths.sum(dtype=np.float64) > limits.joining_tokens_max:
                most = f"more than {limits.joining_tokens_max:,} tokens"
                remedy = "measure again (`penstock lengths --force`), or select fewer"
                raise LimitError(f"{start + len(lengths):,} documents have {most}: {remedy}")
            ends = total + np.add.reduceat(lengths, np.arange(0, len(lengths), block)).cumsum()
            self.sums[start // block + 1 :][: len(ends)] = ends
            total = int(ends[-1])

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return int(self.sums[-1])

    def cut(self, starts: Integers, stops: Integers) -> RowPieces:
        """Return the pieces of documents from a place of the stream to another, for each pair."""
        block = limits.joining_block_documents
        low = (np.searchsorted(self.sums, starts, side="right") - 1) * block
        high = np.minimum(np.searchsorted(self.sums, stops, side="left") * block, self.count)
        counts = high - low
        before = np.cumsum(counts) - counts
        row = np.repeat(np.arange(len(starts)), counts)
        documents, lengths = self._read(np.arange(len(row)) + (low - before)[row])
        ends = np.cumsum(lengths)
        ends += (self.sums[low // block] - (ends - lengths)[before])[row]
        begins = ends - lengths
        first, last = np.maximum(begins, starts[row]), np.minimum(ends, stops[row])
        # A row shares its first token with the row before; alone it need not come again.
        is_done = (ends == starts[row] + 1) & (starts[row] > 0)
        kept = np.flatnonzero((last > first) & ~is_done)
        offsets = np.searchsorted(row[kept], np.arange(len(starts) + 1))
        return RowPieces(
            offsets.astype(np.int64),
            documents[kept],
            (first - begins)[kept],
            (last - first)[kept],
            lengths[kept],
            {},
        )

    def _read(self, numbers: Integers) -> tuple[Words, Integers]:
        documents = self._find_documents(numbers)
        return documents, read_document_lengths(self._read_lengths, documents)


@dataclass(frozen=True)
class JoinedOrder(RowOrdering):
    """An order whose positions are rows that are cut from joined documents.

    inner:      order of the rows; see `count_joined_rows`.
    length:     tokens of a row.
    documents:  those that are joined.

    It takes some microseconds a row, and no memory beyond the sums of `documents`.
    """

    inner: Order
    length: int
    documents: JoinedDocuments = field(repr=False, compare=False)

    @property
    def algorithm(self) -> str:
        return f"joined-1:{self.length}/{self.inner.algorithm}"

    def pieces(self, rows: npt.ArrayLike) -> RowPieces:
        positions = np.asarray(rows).reshape(-1).astype(np.uint64)
        starts = self.inner.samples(positions).view(np.int64) * (self.length - 1)
        return self.documents.cut(starts, np.minimum(starts + self.length, self.documents.tokens))


def count_joined_rows(tokens: int, length: int) -> int:
    """Count the rows that are cut from `tokens` tokens."""
    return max(-(-(tokens - 1) // (length - 1)), min(tokens, 1))
