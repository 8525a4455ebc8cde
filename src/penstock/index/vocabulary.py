"""Vocabularies: tokens that a model has no embedding for are found before it gets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import check_whole
from ..errors import UsageError
from .fields import Field
from .table import Index

_TOKEN_FIELDS = ("input_ids", "tokens")
_VOCABULARY_MAX = 1 << 62


def find_foreign_token(tokens: npt.NDArray[Any], vocabulary: int) -> int | None:
    """Find the first token below 0, or from `vocabulary` on: its place among all, or None.

    One pass over the tokens, without memory of their size.
    """
    flat = np.ascontiguousarray(tokens).reshape(-1)
    if not flat.size:
        return None
    first_foreign = min(vocabulary, int(np.iinfo(flat.dtype).max) + 1)
    if int(flat.view(f"u{flat.itemsize}").max()) < first_foreign:  # negative ones are great there
        return None
    return int(np.argmax((flat < 0) | (flat >= vocabulary)))


def set_vocabulary(index: Index, vocabulary: Any, path: str) -> Index:
    """Return the index with the number of tokens that its fields may have: a number for the field
    of tokens, or several by name."""
    row_fields = {  # whole numbers in rows: no bytes, no single number
        made.name: made
        for field in index.fields
        for made in field.made
        if made.dtype.kind in "iu" and made.shape != ()
        if made.dtype != np.uint8 or made.shape is not None
    }
    if isinstance(vocabulary, Mapping):
        sizes = dict(vocabulary)
    else:
        named = [name for name in _TOKEN_FIELDS if name in row_fields]
        chosen = named if len(row_fields) > 1 else list(row_fields)
        if len(chosen) != 1:
            raise UsageError(f"vocabulary: give {{name: number}}; {path} has {_list(row_fields)}")
        sizes = {chosen[0]: vocabulary}
    for name, size in sizes.items():
        check_whole("vocabulary", size, 1, _VOCABULARY_MAX)
        if name not in row_fields:
            raise UsageError(f"vocabulary has {name!r}, and {path} has {_list(row_fields)}")
    parser = index.fields[0].parser
    if parser is not None:
        parser = replace(parser, vocabulary=sizes)
        parser.check_defaults()
        return replace(index, fields=(replace(index.fields[0], parser=parser), *index.fields[1:]))
    fields = (replace(field, vocabulary=sizes.get(field.name, 0)) for field in index.fields)
    return replace(index, fields=tuple(fields))


def _list(fields: Mapping[str, Field]) -> str:
    return f"rows of whole numbers in {', '.join(fields)}" if fields else "no rows of whole numbers"
