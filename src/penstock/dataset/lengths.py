"""Lengths of samples: from the container where it has them, else from a file that was measured.

A rule says what is measured: a function of a sample, of its text, its sound or its list.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..arguments import Path, check_choice, check_path
from ..engine.store import build_storage_error
from ..errors import DataError, FormatError, MissingError, SidecarError, UsageError, import_library
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
    if any(column.parser is not None for column in index.fields):
        return None
    numbered = [pair for pair in enumerate(index.fields) if pair[1].name != SUMS_FIELD]
    counted = _choose_counted(numbered)
    return None if counted is None or isinstance(index.layouts[counted[0]], Chunked) else counted


def _choose_counted(numbered: list[tuple[int, Field]]) -> tuple[int, Field] | None:
    varying = [pair for pair in numbered if pair[1].shape is None]
    if any(column.levels for _, column in varying):  # whose bytes are offsets, too
        varying = [pair for pair in varying if not pair[1].levels and pair[1].name in _token_fields]
        return varying[0] if len(varying) == 1 else None
    named = [pair for pair in varying if pair[1].name in _token_fields]
    if len(varying) > 1 and len(named) == 1:
        return named[0]
    if not varying and len(numbered) == 1 and len(numbered[0][1].shape or ()) == 1:
        return numbered[0]
    return varying[0] if len(varying) == 1 else None


def count_numbers(index: Index, ids: Int | npt.NDArray[np.uint64]) -> Int:
    """Return the lengths of these samples, which `find_counted` says the index knows."""
    counted = find_counted(index)
    assert counted is not None
    number, column = counted
    return index.lengths(ids, number) // column.element_bytes


def count_bytes(index: Index, ids: Int) -> Int:
    """Return the bytes of these samples, all fields."""
    total = np.zeros(len(ids), np.int64)
    for number, column in enumerate(index.fields):
        if column.name != SUMS_FIELD:
            total += index.lengths(ids, number)
    return total


def build_unmeasured_error(path: str, why: str = "") -> UsageError:
    """Build the error for data whose container does not know lengths, and has no file of them.

    why:  what lengths are needed for.
    """
    command = f"`penstock lengths {path} --by tokens|bytes|duration|module:function`"
    return UsageError(f"{why}{path} does not say how long samples are: measure them with {command}")


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
    number = "several" if tokens else "no"
    raise UsageError(f"{path} has {number} lists of tokens ({fields}): name one, or tokenize texts")


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
    if any(column.parser is not None for column in index.fields) and header.get("made", {}) != made:
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
        name: column.parser.describe(name)
        for column in index.fields
        if column.parser is not None
        for name in names
        if name in column.parser.keys
    }


Measure = Callable[[Mapping[str, Any]], int]
"""Measure a sample, as `decode` gets it."""

Rule = Literal["bytes", "tokens", "duration"] | Measure
"""Rule of a length: bytes of all fields, numbers of a list, milliseconds, or a function."""


def describe_rule(by: Rule) -> str:
    """Return the name under which lengths by a rule are saved."""
    if callable(by):
        name = f"{getattr(by, '__module__', '?')}:{getattr(by, '__qualname__', '?')}"
        if "<" in name or "?" in name:
            raise UsageError(f"by is {by!r}, which cannot be imported: name a function of a module")
        return name
    more = ", or a function of a sample (module:function)"
    check_choice("by", by, ("bytes", "tokens", "duration"), more)
    return by


def choose_measure(
    index: Index, by: Rule, field: str | None, tokenizer: Path | None
) -> tuple[Measure | None, str, str | None]:
    """Return the function that measures samples, or None for lengths that the index knows; what
    else identifies it; and the only field that it uses, if it is one."""
    if tokenizer is not None and by != "tokens":
        raise UsageError("tokenizer is for by='tokens': leave it out")
    if tokenizer is not None:
        name = _choose_field(index, field, "text")
        counter = TokenCounter.load(tokenizer, name)
        return counter, counter.identity, name
    if by == "tokens" and find_counted(index) is None and field is None:
        # Lists that have to be decoded, or parsed, are counted as they are read.
        with contextlib.suppress(UsageError):
            name = find_token_field(index, "the data")
            return partial(_measure_field, len, name), "", name
    if by == "duration":
        name = _choose_field(index, field, "sound")
        return partial(_measure_field, measure_duration, name), name, name
    if field is not None:
        raise UsageError("field is for sound, and for texts with a tokenizer: leave it out")
    return (by if callable(by) else None), "", None


def _measure_field(measure: Callable[[Any], int], name: str, sample: Mapping[str, Any]) -> int:
    return measure(sample[name])


def _choose_field(index: Index, field: str | None, noun: str) -> str:
    """Return the field of bytes that is meant."""
    columns = [made for stored in index.fields if stored.name != SUMS_FIELD for made in stored.made]
    names = [made.name for made in columns if made.shape is None and made.dtype == np.uint8]
    # Texts of JSON lines have no bytes of their own.
    names += [made.name for made in columns if made.dtype.kind in "OUST"]
    if field is None and len(names) != 1:
        shown = ", ".join(names) or "none"
        raise UsageError(f"the fields of bytes are {shown}: name the one with the {noun} by field=")
    if field is not None and field not in names:
        raise UsageError(f"field is {field!r}: use one of {', '.join(names) or 'none'}")
    return field or names[0]


def measure_duration(sound: Any) -> int:
    """Return the milliseconds of WAV or FLAC, rounded. FormatError if it is neither, or broken."""
    data = memoryview(sound).cast("B")
    start = bytes(data[:4])
    try:
        if start in (b"RIFF", b"RF64") and bytes(data[8:12]) == b"WAVE":
            return _measure_wav(data)
        if start == b"fLaC":
            (bits,) = struct.unpack_from(">Q", data, 18)  # of the first block, STREAMINFO
            return round((int(bits) & ((1 << 36) - 1)) * 1000 / (int(bits) >> 44))
    except (struct.error, ZeroDivisionError):
        raise FormatError(f"sound of {len(data):,} bytes has a broken header: repair it") from None
    raise FormatError(f"sound that starts with {start!r} is no WAV or FLAC: measure by a function")


def _measure_wav(data: memoryview) -> int:
    at, byte_rate = 12, 0
    while True:
        kind, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if kind == b"fmt ":
            (byte_rate,) = struct.unpack_from("<8xI", data, at)
        if kind == b"data":
            # A stream that was written without seeking says more than there is.
            return round(int(min(size, len(data) - at)) * 1000 / int(byte_rate))
        at += size + size % 2


@dataclass(frozen=True)
class TokenCounter:
    """Function that counts the tokens of a sample's text. It may be pickled.

    text:        of the tokenizer's file.
    field_name:  field of the sample that holds its text, a str or UTF-8.
    """

    path: str
    text: str = field(repr=False)
    field_name: str
    _made: list[Any] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def load(cls, path: Path, field_name: str) -> TokenCounter:
        """Read a tokenizer.json, or the one in a folder.

        Raises UsageError if it is none, MissingError or StorageError.
        """
        path = os.path.abspath(check_path("tokenizer", path))
        if os.path.isdir(path):
            path = os.path.join(path, "tokenizer.json")
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            raise MissingError(f"there is no {path}: give a tokenizer.json or its folder") from None
        except OSError as error:
            raise build_storage_error(error.errno or 5, path) from None
        except UnicodeDecodeError:
            raise UsageError(f"{path} is no tokenizer.json: it is not UTF-8") from None
        counter = cls(path, text, field_name)
        counter._make()
        return counter

    @property
    def identity(self) -> str:
        """Identity of tokenizer, the library's version, and field."""
        digest = hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()
        return f"{digest}/{_import_library().__version__}/{self.field_name}"

    def __call__(self, sample: Mapping[str, Any]) -> int:
        text = sample[self.field_name]
        if not isinstance(text, str):
            try:
                text = bytes(text).decode()
            except UnicodeDecodeError as error:
                where = f"the text in {self.field_name!r} is no UTF-8 at byte {error.start}"
                raise DataError(f"{where}: repair the sample") from None
        return len(self._make().encode(text, add_special_tokens=False))

    def _make(self) -> Any:
        """Return the tokenizer, made at first use."""
        if not self._made:
            try:
                made = _import_library().Tokenizer.from_str(self.text)
            except Exception as error:  # the library raises Exception itself
                raise UsageError(f"{self.path} is no tokenizer.json: {error}") from None
            made.no_truncation()  # files of models carry such settings for their inputs
            made.no_padding()
            made.encode_special_tokens = True  # in texts they are text, as `tokenize` has them
            self._made.append(made)
        return self._made[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenCounter, (self.path, self.text, self.field_name)


def _import_library() -> Any:
    return import_library("tokenizers", "text", "counting tokens")
