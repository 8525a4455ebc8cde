"""Lengths of samples: from the container where it has them, else from a file that was measured."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import SidecarError, UsageError
from ..extent import Int
from ..index.fields import SUMS_FIELD, Field
from ..index.layout import Chunked
from ..index.table import Index
from .saved import Saved

LENGTHS = Saved(
    "lengths-1", "a file of lengths", "measure with `penstock lengths`", {"values": np.int64}
)
_token_fields = ("input_ids", "tokens")


def find_counted(index: Index) -> tuple[int, Field] | None:
    """Return the place of the field whose numbers are a sample's length, and the field, if any is.

    It is the only field of varying length; of several, the one named input_ids or tokens; and if no
    length varies, the only field, if it is a row. Fields that have to be decoded have no lengths.
    """
    if any(part.parser is not None for part in index.fields):
        return None
    parts = [pair for pair in enumerate(index.fields) if pair[1].name != SUMS_FIELD]
    counted = _choose_counted(parts)
    return None if counted is None or isinstance(index.layouts[counted[0]], Chunked) else counted


def _choose_counted(parts: list[tuple[int, Field]]) -> tuple[int, Field] | None:
    varying = [pair for pair in parts if pair[1].shape is None]
    if any(part.levels for _, part in varying):  # whose bytes are offsets, too
        varying = [pair for pair in varying if not pair[1].levels and pair[1].name in _token_fields]
        return varying[0] if len(varying) == 1 else None
    named = [pair for pair in varying if pair[1].name in _token_fields]
    if len(varying) > 1 and len(named) == 1:
        return named[0]
    if not varying and len(parts) == 1 and len(parts[0][1].shape or ()) == 1:
        return parts[0]
    return varying[0] if len(varying) == 1 else None


def count_numbers(index: Index, ids: Int | npt.NDArray[np.uint64]) -> Int:
    """Return the lengths of these samples, which `find_counted` says the index knows."""
    counted = find_counted(index)
    assert counted is not None
    number, part = counted
    return index.lengths(ids, number) // part.element_bytes


def count_bytes(index: Index, ids: Int) -> Int:
    """Return the bytes of these samples, all fields."""
    total = np.zeros(len(ids), np.int64)
    for number, part in enumerate(index.fields):
        if part.name != SUMS_FIELD:
            total += index.lengths(ids, number)
    return total


def build_unmeasured_error(path: str) -> UsageError:
    """Build the error for data whose container does not know lengths, and has no file of them."""
    return UsageError(
        f"{path} does not say how long samples are: measure them with `penstock lengths {path} "
        "--by tokens|bytes|duration|module:function`"
    )


def find_token_field(index: Index, path: str, name: str | None = None) -> str:
    """Return the name of the field that is a list of tokens: `name`, if it is given.

    Else it is the only list of integers, or the one named input_ids or tokens. UsageError if there
    is no such field.
    """
    lists = [
        made
        for made in index.made
        if made.name != SUMS_FIELD
        and made.dtype.kind in "iu"
        and not made.nesting
        and (made.shape is None or len(made.shape) == 1)
    ]
    if name is not None:
        if name not in [made.name for made in lists]:
            known = ", ".join(made.name for made in lists) or "none"
            raise UsageError(f"field is {name!r}, and the lists of integers of {path} are {known}")
        return name
    tokens = [made.name for made in lists if made.dtype != np.uint8 or made.shape is not None]
    named = [made.name for made in lists if made.name in _token_fields]
    for names in (named, tokens):
        if len(names) == 1:
            return names[0]
    fields = ", ".join(f"{made.name} ({made.dtype})" for made in index.made)
    raise UsageError(
        f"{path} has {'no' if not tokens else 'several'} lists of tokens among its fields "
        f"({fields}): name one by field=, or make tokens of texts by `penstock tokenize`"
    )


@dataclass(frozen=True, eq=False)
class SavedLengths:
    """Lengths in a file: an int64 for each sample of the data, mapped, and their rule.

    counter:  identity of the tokenizer and the field that were counted with; "" without one.
    checksum: of the values.
    """

    path: str
    rule: str
    counter: str
    values: Int
    checksum: int = 0

    def take(self, ids: npt.NDArray[Any]) -> Int:
        """Return the lengths of these samples."""
        return np.asarray(self.values)[ids.view(np.int64)]


def load_lengths(paths: list[str], index: Index, source: str) -> SavedLengths | None:
    """Map the lengths that were measured for this data, if they were.

    paths:   where they may be.
    source:  the data's path, for messages.

    SidecarError if they are damaged, or of other data or another version of it.
    """
    path = next((path for path in paths if os.path.exists(path)), None)
    if path is None:
        return None
    again = f"measure with `penstock lengths {source} --by RULE --force`, or remove the file"
    kind = replace(LENGTHS, again=again)
    header, columns = kind.load(path, index.fingerprint)
    rule, values = str(header.get("by")), columns["values"]
    kind = replace(kind, again=again.replace("RULE", rule))
    made = describe_made(index, header.get("made", {}))
    if any(part.parser is not None for part in index.fields) and header.get("made", {}) != made:
        kind.refuse(path, f"for fields made of {header.get('made')}, and these are of {made}")
    if header.get("version") != index.version:
        kind.refuse(path, "for another version of the data")
    if len(values) != index.count:
        raise SidecarError(f"{path} is damaged: it has {len(values):,} lengths: {kind.again}")
    checksum = next(int(row[4]) for row in header["sections"] if row[0] == "values")
    return SavedLengths(path, rule, str(header.get("counter", "")), values, checksum)


def describe_made(index: Index, names: Iterable[str]) -> dict[str, Any]:
    """Describe what the parsed fields among these are made of, in types of JSON.

    It is no part of the data's identity or version: one file opens with other keys, too.
    """
    return {
        name: part.parser.describe(name)
        for part in index.fields
        if part.parser is not None
        for name in names
        if name in part.parser.keys
    }
