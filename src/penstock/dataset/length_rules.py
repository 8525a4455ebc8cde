"""Rules of lengths: functions of a sample that measure its text, its sound or its list."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..arguments import Path, check_choice, check_path
from ..engine.store import build_storage_error
from ..errors import DataError, FormatError, MissingError, UsageError
from ..index.codecs.registry import missing_library
from ..index.fields import SUMS_FIELD
from ..index.table import Index
from .lengths import find_counted, find_token_field

Measure = Callable[[Mapping[str, Any]], int]
"""Measure a sample, as `decode` gets it."""

Rule = Literal["bytes", "tokens", "duration"] | Measure
"""Rule of a length: bytes of all fields, numbers of a list, milliseconds, or a function."""


def describe_rule(by: Rule) -> str:
    """Return the name under which lengths by a rule are saved."""
    if callable(by):
        name = f"{getattr(by, '__module__', '?')}:{getattr(by, '__qualname__', '?')}"
        if "<" in name or "?" in name:
            raise UsageError(
                f"by is {by!r}, which other processes cannot import: name a function of a module"
            )
        return name
    more = ", or a function of a sample (module:function)"
    check_choice("by", by, ("bytes", "tokens", "duration"), more)
    return by


def choose_measure(
    index: Index, by: Rule, field: str | None, tokenizer: Path | None
) -> tuple[Measure | None, str]:
    """Return the function that measures samples, or None for lengths that the index knows, and
    what else identifies it."""
    if tokenizer is not None and by != "tokens":
        raise UsageError("tokenizer is for by='tokens': leave it out")
    if tokenizer is not None:
        counter = TokenCounter.load(tokenizer, _choose_field(index, field, "text"))
        return counter, counter.identity
    if by == "tokens" and find_counted(index) is None and field is None:
        # Lists that have to be decoded, or parsed, are counted as they are read.
        with contextlib.suppress(UsageError):
            return ListLength(find_token_field(index, "the data")), ""
    if callable(by) or by != "duration":
        if field is not None:
            raise UsageError("field is for sound, and for texts with a tokenizer: leave it out")
        return (by, "") if callable(by) else (None, "")
    name = _choose_field(index, field, "sound")
    return Duration(name), name


def _choose_field(index: Index, field: str | None, noun: str) -> str:
    """Return the field of bytes that is meant."""
    parts = [made for part in index.fields if part.name != SUMS_FIELD for made in part.made]
    names = [part.name for part in parts if part.shape is None and part.dtype == np.uint8]
    # Texts of JSON lines have no bytes of their own.
    names += [part.name for part in parts if part.dtype.kind in "OUST"]
    if field is None and len(names) != 1:
        raise UsageError(
            f"the data has {len(names)} fields of bytes ({', '.join(names) or 'none'}): name the "
            f"one with the {noun} by field= (--field)"
        )
    if field is not None and field not in names:
        raise UsageError(f"field is {field!r}: use one of {', '.join(names) or 'none'}")
    return field or names[0]


@dataclass(frozen=True)
class ListLength:
    """Function that counts the numbers in a field of a sample."""

    field_name: str

    def __call__(self, sample: Mapping[str, Any]) -> int:
        return len(sample[self.field_name])


@dataclass(frozen=True)
class Duration:
    """Function that measures the sound in a field of a sample."""

    field_name: str

    def __call__(self, sample: Mapping[str, Any]) -> int:
        return measure_duration(sample[self.field_name])


def measure_duration(sound: Any) -> int:
    """Return the milliseconds of WAV or FLAC, rounded. FormatError if it is neither, or broken."""
    data = memoryview(sound).cast("B")
    try:
        if bytes(data[:4]) in (b"RIFF", b"RF64") and bytes(data[8:12]) == b"WAVE":
            return _measure_wav(data)
        if bytes(data[:4]) == b"fLaC":
            return _measure_flac(data)
    except (struct.error, ZeroDivisionError):
        raise FormatError(f"sound of {len(data):,} bytes has a broken header: repair it") from None
    raise FormatError(
        f"sound that starts with {bytes(data[:4])!r} is neither WAV nor FLAC: measure by a function"
    )


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


def _measure_flac(data: memoryview) -> int:
    (bits,) = struct.unpack_from(">Q", data, 18)  # of the first block, STREAMINFO
    rate, samples = int(bits) >> 44, int(bits) & ((1 << 36) - 1)
    return round(samples * 1000 / rate)


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
            raise MissingError(
                f"tokenizer: there is no {path}: give a tokenizer.json, or the folder that holds it"
            ) from None
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
                raise DataError(
                    f"the text in {self.field_name!r} is no UTF-8 at byte {error.start}: repair "
                    "the sample"
                ) from None
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
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise missing_library("tokenizers", "text", "counting tokens") from None
    return tokenizers
