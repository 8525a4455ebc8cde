"""Pieces of documents as a plan reads them: parts of extents, where each document is one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import DataError
from ..extent import Extents, Int
from ..index.fields import Field
from ..index.layout import Chunked, Layout
from ..order.packed_order import RowPieces
from .batch_layout import Ids, StepSource


@dataclass(frozen=True, slots=True)
class PieceSource:
    """A `StepSource` whose samples are pieces of the documents of an index with one field."""

    fields: tuple[Field, ...]
    layouts: tuple[Layout, ...]
    _extents: Extents

    @classmethod
    def slice(cls, index: StepSource, pieces: RowPieces) -> PieceSource | None:
        """Return the source of these pieces, or None unless each is part of one extent and every
        document has the length that it was packed with; a read of it raises then."""
        part, layout = index.fields[0], index.layouts[0]
        is_made = isinstance(layout, Chunked) or part.parser is not None or part.levels
        if is_made or len(index.fields) > 1:
            return None
        (file, offset, length), several = index.units(pieces.documents, 0)
        if several is not None:
            return None
        size = part.element_bytes
        if not np.array_equal(pieces.tokens, length // size):
            return None
        cut = Extents(file, offset + pieces.start * size, pieces.length * size)
        return cls(index.fields, index.layouts, cut)

    @property
    def row_bytes(self) -> tuple[int | None, ...]:
        return (None,)

    def labels(self, _: Ids, /) -> Int | None:
        return None

    def units(self, units: Ids, field: int, /) -> tuple[Extents, Int | None]:
        at = units.view(np.int64)
        file, offset, length = self._extents
        return Extents(file.take(at), offset.take(at), length.take(at)), None


def check_tokens(pieces: RowPieces, found: Int) -> None:
    """Compare the tokens that each piece's document was packed with and those that it has."""
    if np.array_equal(pieces.tokens, found):
        return
    at = int(np.argmax(pieces.tokens != found))
    what = f"document {pieces.documents[at]} has {found[at]:,} tokens, not {pieces.tokens[at]:,}"
    raise DataError(f"{what} as given: measure lengths again with `penstock lengths --force`")
