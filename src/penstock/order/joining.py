"""The order of rows that are cut from documents joined end to end, in their sequence in storage.

The tokens of all documents are one stream, over the ends of files. Row r of L tokens has those from
r (L - 1) to r (L - 1) + L: neighbours share one token, so that every token but a document's first
is the target of the one before it in exactly one row. A document that ends a row is not begun again
by the next one: where the shared token is the last of its document, the next row leaves it out, and
is one token shorter. The last row has what is left.

So rows, their number and their documents are found by arithmetic and one sum of tokens for each
block of documents. They are the same in every epoch; an `Order` shuffles them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from .. import limits
from ..errors import LimitError
from .keys import Words
from .order import Order
from .packing import Integers, ReadLengths, RowOrdering, RowPieces, read_document_lengths

FindDocuments = Callable[[Integers], Words]
"""Function from numbers of documents, in the sequence that is joined, to those in the dataset."""


class JoinedDocuments:
    """Documents joined end to end, of which those at any place of the stream are found.

    count:           documents.
    find_documents:  their numbers in the whole dataset.
    read_lengths:    gives the tokens of documents. All are read once, some 5 ns each.

    `sums` are the tokens before each block of documents, and those of all.
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
                raise LimitError(
                    f"{start + len(lengths):,} documents have more than "
                    f"{limits.joining_tokens_max:,} tokens: measure the lengths anew with "
                    "`penstock lengths --force`, or select fewer documents"
                )
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
        # The row before has a token that this one begins with, and need not if nothing follows it.
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
        """Identifier of rule and algorithm; a saved state continues only under the same one."""
        return f"joined-1:{self.length}/{self.inner.algorithm}"

    def __len__(self) -> int:
        return len(self.inner)

    def at_epoch(self, epoch: int) -> JoinedOrder:
        """The order of another epoch of the same data."""
        return replace(self, inner=self.inner.at_epoch(epoch))

    def count_drawn(self, position: int) -> list[int]:
        """Count the rows drawn over all epochs before a position."""
        return self.inner.count_drawn(position)

    def pieces(self, rows: npt.ArrayLike) -> RowPieces:
        """Return the pieces of documents in these rows of the epoch."""
        positions = np.asarray(rows).reshape(-1).astype(np.uint64)
        starts = self.inner.samples(positions).view(np.int64) * (self.length - 1)
        return self.documents.cut(starts, np.minimum(starts + self.length, self.documents.tokens))


def count_joined_rows(tokens: int, length: int) -> int:
    """Count the rows that are cut from so many tokens."""
    return max(-(-(tokens - 1) // (length - 1)), min(tokens, 1))
