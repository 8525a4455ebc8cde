"""The order of rows: documents of a window of an ordering, packed into rows of fixed length.

Window w holds the documents at the positions [w * W, (w+1) * W) of an ordering. They go into rows
of L tokens by best fit, in the order of the window: each to the row with the least space that
holds it, of several to the one that came to that space last, else to a new row. Documents are not
sorted by length: that would fill rows a tenth of a percent better, and gather hundreds of short
ones in some rows and one long one in others. The rows of a window are permuted by an `Order`.

So a row of an epoch is found by packing one window, if the rows before that window are known. They
are counted window by window (`RowCounts`), as the windows are walked through or ahead of that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from .. import limits
from .._core import count_packed_rows, pack_documents
from ..arguments import check_fields, check_whole, choice, whole
from ..errors import DataError, LimitError, StateError, UsageError
from .buckets import BucketRule, PackedWindow
from .keys import Words
from .order import Marks, Order, Ordering, Shuffle

Integers = npt.NDArray[np.int64]
ReadLengths = Callable[[Words], Integers]
"""Function from the numbers of documents, in the whole dataset, to their tokens."""

LongDocuments = Literal["split", "cut", "error"]
"""Treatment of documents that are longer than a row."""


@dataclass(frozen=True, slots=True)
class PackingRule:
    """All that decides how the documents of a window are packed.

    length:    tokens of a row.
    window:    documents of a window.
    long:      "split" divides longer documents among rows, whose pieces share one token; "cut"
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
            raise UsageError(
                f"length is {self.length}, which is no multiple of {self.multiple}: use "
                f"{self.length // self.multiple * self.multiple}, or another multiple"
            )

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
            raise DataError(
                f"document {documents[at]} has {lengths[at]:,} tokens, more than a row of "
                f'{length:,}: use long="split" or "cut", longer rows, or leave it out by '
                f'select(where="length <= {length}")'
            )
        if self.long == "split":
            most = limits.packing_pieces_max + 1  # the sum of false lengths would overflow
            rows = int(((lengths - 1) // (length - 1)).clip(0, most).sum())
            if rows > limits.packing_pieces_max:
                at = int(np.argmax(lengths))
                raise LimitError(
                    f"a window of {len(lengths):,} documents would have {rows:,} or more rows of "
                    f"{length:,} tokens (document {documents[at]} has {lengths[at]:,}): use longer "
                    'rows, a smaller window=, or long="cut"'
                )

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
        part = slice(int(self.offsets[first]), int(self.offsets[last]))
        return RowPieces(
            self.offsets[first : last + 1] - self.offsets[first],
            self.documents[part],
            self.start[part],
            self.length[part],
            self.tokens[part],
            {name: column[part] for name, column in self.marks.items()},
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
        pieces = self.pieces
        return RowPieces(
            offsets,
            pieces.documents.take(at),
            pieces.start.take(at),
            pieces.length.take(at),
            pieces.tokens.take(at),
            {name: column.take(at) for name, column in pieces.marks.items()},
        )


def read_document_lengths(read_lengths: ReadLengths, documents: Words) -> Integers:
    """Return the tokens of documents. DataError if a length is negative."""
    lengths = np.ascontiguousarray(read_lengths(documents), np.int64)
    if len(lengths) and int(lengths.min()) < 0:
        at = int(np.argmin(lengths))
        raise DataError(
            f"document {documents[at]} has a length of {lengths[at]:,} tokens: measure the "
            "lengths anew with `penstock lengths --force`"
        )
    return lengths


class RowOrdering(ABC):
    """An `Ordering` whose positions are rows, and whose samples are pieces of documents in them.

    inner:  the ordering that it is made from.
    """

    inner: Ordering

    @property
    def seed(self) -> int:
        return self.inner.seed

    @property
    def shuffle(self) -> Shuffle:
        return self.inner.shuffle

    def parts(self) -> tuple[Order, ...]:
        """The orders that `inner` is made of."""
        return self.inner.parts()

    def for_steps(self, global_batch: int, steps: int) -> Self:
        """Return the order itself: the division of an epoch into steps does not change it."""
        return self

    @abstractmethod
    def pieces(self, rows: npt.ArrayLike) -> RowPieces:
        """Return the pieces of documents in these rows of the epoch."""

    @property
    def joins_documents(self) -> bool:
        """True if a row is one of a batch; False if it is a batch of samples."""
        return True

    def samples(self, positions: npt.ArrayLike) -> Words:
        """Return the documents in these rows, one row after the other."""
        return self.pieces(positions).documents

    def rows(self, positions: npt.ArrayLike) -> tuple[Words, Marks]:
        """Return the documents in these rows, and their marks."""
        pieces = self.pieces(positions)
        return pieces.documents, pieces.marks

    def row_document_lengths(self, rows: npt.ArrayLike) -> tuple[Integers, Integers]:
        """Return the tokens of all pieces in these rows, one row after the other, and where each
        row begins among them, with the end. Nothing is read from storage."""
        pieces = self.pieces(rows)
        return pieces.length, pieces.offsets


class RowCounter(Protocol):
    """Count of an epoch's rows that grows as it is asked for more."""

    def reach(self, rows: int) -> int:
        """Return the rows that are known: at least so many, unless there are no more."""
        ...


class RowCounts:
    """Rows of each window of an epoch, and so the rows before each, as far as they are counted.

    windows:       windows of the epoch.
    part:          the last window's documents, as a part of those of a whole one.
    count_window:  counts the rows of a window.

    Windows are counted one after the other from the first, or from one that a saved state knows
    the rows before (`resume_at`), when they are needed; and in any sequence by `fill`, ahead of
    that. When all are counted, the state's claim is checked.

    Threads may share it: what two of them count at once is the same.
    """

    def __init__(self, windows: int, part: float, count_window: Callable[[int], int]) -> None:
        self.windows = windows
        self._part = part
        self._count_window = count_window
        self._counts: Integers = np.full(windows, -1, np.int64)
        self._walks = [_Walk(0, 0, windows)]
        self._has_claim = False  # of a state, and not checked

    @property
    def complete(self) -> bool:
        """True if all windows are counted."""
        return self.counted == self.windows

    @property
    def counted(self) -> int:
        """Number of windows that are counted."""
        return int(np.count_nonzero(self._counts >= 0))

    def is_counted(self, window: int) -> bool:
        """Return whether a window is counted."""
        return bool(self._counts[window] >= 0)

    @property
    def has_claim(self) -> bool:
        """True if a state says how many rows come before a window, and that was not checked."""
        return self._has_claim

    def fill(self, window: int, rows: int) -> None:
        """Take over the count of a window."""
        self._counts[window] = rows

    def resume_at(self, window: int, before: int, row: int) -> None:
        """Walk on from the window in which a state's last row lies, with so many rows before it.

        row:  number of rows that were handed over.

        Counts one window. StateError if that is known to be false; nothing has changed then.
        """
        if row == 0 and window == before == 0:
            self._walks, self._has_claim = self._walks[:1], False
            return
        said = f"the state says that row {row:,} ends in window {window}, after {before:,} rows"
        remedy = "it is damaged, or documents have other lengths than when it was saved"
        if not 0 <= window < self.windows:
            raise StateError(f"{said}, and the epoch has {self.windows:,} windows: {remedy}")
        walk = _Walk(window, before, self.windows)
        self._step(walk)
        if not before < row <= walk.rows:
            held = walk.rows - before
            raise StateError(f"{said}, and that window has {held:,}: {remedy}")
        self._check(walk)
        self._walks, self._has_claim = [_Walk(0, 0, self.windows), walk], True

    def reach(self, rows: int) -> int:
        """Count on until so many rows of the epoch are known, and return how many are."""
        walk = self._walks[-1]
        while walk.rows < rows and self._step(walk):
            pass
        self.check_claim()
        return walk.rows

    def sum(self) -> int:
        """Return the rows of the epoch, all of whose windows are counted."""
        assert self.complete
        self.check_claim()
        return int(self._counts.sum())

    def estimate(self) -> int:
        """Estimate the rows of the epoch by the windows that are counted, one at least."""
        if not self.counted:
            self.reach(1)
        known = self._counts >= 0
        sizes = np.ones(self.windows)
        sizes[-1] = self._part
        return round(float(self._counts[known].sum() / sizes[known].sum() * sizes.sum()))

    def locate(self, row: int) -> tuple[int, int]:
        """Return the window that holds a row, and the rows before that; for known rows."""
        walk = self._walks[-1] if row >= self._walks[-1].before else self._walks[0]
        while walk.rows <= row:
            if not self._step(walk):
                raise UsageError(f"row {row} is outside this epoch: use 0..{walk.rows - 1}")
        # Not numpy's search, which gives the lock back, for one number.
        at = bisect_right(walk.ends, row, 0, walk.known)
        return walk.first + at, int(walk.ends[at - 1]) if at else walk.before

    def _step(self, walk: _Walk) -> bool:
        known = walk.known
        window = walk.first + known
        if window >= self.windows:
            return False
        if self._counts[window] < 0:
            self.fill(window, self._count_window(window))
        before = walk.ends[known - 1] if known else walk.before
        walk.ends[known] = before + self._counts[window]
        walk.known = max(walk.known, known + 1)
        return True

    def check_claim(self) -> None:
        """Compare the rows that a state says come before its window, once these are counted."""
        if self._has_claim and self._check(self._walks[-1]):
            self._has_claim = False

    def _check(self, claim: _Walk) -> bool:
        """Return whether the rows before a walk are counted; StateError if they are others."""
        known = self._counts[: claim.first]
        if (known < 0).any():
            return False
        before = int(known.sum())
        if before != claim.before:
            raise StateError(
                f"the state says that {claim.before:,} rows come before window {claim.first}, and "
                f"there are {before:,}: it is damaged, or documents have other lengths than when "
                "it was saved; go on from another state, or begin the epoch again"
            )
        return True


class _Walk:
    """Counts of the windows from `first` on.

    before:  rows before the first.
    ends:    rows before the end of each; those of the first `known` windows are there.
    """

    __slots__ = ("before", "ends", "first", "known")

    def __init__(self, first: int, before: int, windows: int) -> None:
        self.first, self.before, self.known = first, before, 0
        self.ends: Integers = np.zeros(windows - first, np.int64)

    @property
    def rows(self) -> int:
        return int(self.ends[self.known - 1]) if self.known else self.before


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
        """Identifier of rule and algorithm; a saved state continues only under the same one."""
        return f"{self.rule.name}/{self.inner.algorithm}"

    @property
    def joins_documents(self) -> bool:
        """True if a row is one of a batch; False if it is a batch of samples."""
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
                raise LimitError(
                    f"an epoch of {len(self.inner):,} documents would have {self.windows:,} "
                    f"windows of {self.rule.window:,}: it may have "
                    f"{limits.packing_windows_max:,}; use a larger window="
                )
            # Of an order without counts: no cycle keeps the memory of windows.
            alone = replace(self, _counts={})
            part = (len(self.inner) - 1) % self.rule.window + 1
            counts = RowCounts(self.windows, part / self.rule.window, alone.pack_window)
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
        """Return the pieces of documents in these rows of the epoch."""
        wanted = np.asarray(rows).reshape(-1).astype(np.uint64)
        parts: list[RowPieces] = []
        where: list[npt.NDArray[np.intp]] = []
        rest = np.arange(len(wanted))
        while len(rest):
            window, before = self.counts.locate(int(wanted[rest[0]]))
            held = before + self.pack_window(window)
            of_rest = wanted[rest]
            is_inside = (of_rest >= np.uint64(before)) & (of_rest < np.uint64(held))
            where.append(rest[is_inside])
            parts.append(self._get_window(window).take(of_rest[is_inside] - np.uint64(before)))
            rest = rest[~is_inside]
        return _join_pieces(parts, where)

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


def _join_pieces(parts: list[RowPieces], where: list[npt.NDArray[np.intp]]) -> RowPieces:
    """Join pieces of the rows `where`, in the order of the rows."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        empty = np.empty(0, np.int64)
        return RowPieces(np.zeros(1, np.int64), np.empty(0, np.uint64), empty, empty, empty, {})
    rows = np.concatenate(where)
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    begins = np.cumsum(counts) - counts
    back = np.empty(len(rows), np.int64)
    back[rows] = np.arange(len(rows))
    counts, begins = counts[back], begins[back]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    at = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], counts)
    marks = {
        name: np.concatenate([part.marks[name] for part in parts])[at] for name in parts[0].marks
    }
    return RowPieces(
        offsets,
        np.concatenate([part.documents for part in parts])[at],
        np.concatenate([part.start for part in parts])[at],
        np.concatenate([part.length for part in parts])[at],
        np.concatenate([part.tokens for part in parts])[at],
        marks,
    )


def choose_window(length: float, mean_tokens: float) -> int:
    """Choose the documents of a window: the least power of two, 4 Ki to 1 Mi, that gives at least
    512 rows of this length to a window. The last row of a window is half empty."""
    window = limits.packing_window_min
    while window < limits.packing_window_auto_max and (
        window * mean_tokens < limits.packing_window_rows * length
    ):
        window *= 2
    return window
