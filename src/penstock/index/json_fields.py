"""Fields of JSON lines: values of each line's object, parsed when a batch of lines was read.

The index knows lines only; a `JsonFields` at the field of the lines says what is made of them. It
is no part of the index's identity and is not saved: one index serves all choices of fields.
The core parses the lines of a step at once, outside the interpreter's lock. It takes a line only if
all of it is JSON. The lines that it leaves over are looked at one by one by orjson: it says
which is broken and why; and it parses the values that are objects, or lists of other than numbers.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import extract_json_strings, parse_json_lines
from ..errors import UsageError, missing_library
from ..extent import Int

KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "ints": (list,),
    "floats": (list,),
    "any": (str, int, float, bool, list, dict),
    "bytes": (str,),
}
"""Kinds of fields, and the types of value that each takes."""

BROKEN = "broken"
"""Field that tells broken lines from others, with broken="mask"."""

Column = list[Any] | npt.NDArray[Any] | tuple[npt.NDArray[Any], Int]
"""Values of a field: Python objects, numbers, or lists of numbers (strings as bytes) laid end to
end and their offsets."""

_ELEMENTS = {"ints": (int,), "floats": (float, int)}
_NUMBERS = ("int", "float", *_ELEMENTS)
_RAGGED = (*_ELEMENTS, "bytes")
OBJECTS = ("str", "any")
"""Kinds whose columns are lists of Python objects."""
_EMPTY: dict[str, Any] = {
    "int": 0,
    "float": float("nan"),
    "bool": False,
    "ints": [],
    "floats": [],
    "bytes": "",
}
"""Value that a broken line has in a field of each kind."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineError(ValueError):
    """Error for a line: its row, what is wrong with it, and what to do."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


@dataclass(frozen=True, slots=True)
class JsonFields:
    """Fields that are made of the objects of lines.

    keys:      key in the object of each field, by the field's name.
    kinds:     kind of each field, see `KINDS`.
    defaults:  value where the object has no such key, or null.
    masked:    True if broken lines get empty values and a mark; else they are errors.
    integers:  dtype of integers.
    origin:    what said the kinds, for messages.
    vocabulary:  of fields of token lists, the number of tokens that there are: a line with another
               one is broken.
    """

    keys: Mapping[str, str]
    kinds: Mapping[str, str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    masked: bool = False
    integers: str = "int64"
    origin: str = field(default="types=", compare=False)
    vocabulary: Mapping[str, int] = field(default_factory=dict)

    def get_dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a field's values; of strings or objects, if they are in lists."""
        kind = self.kinds.get(name, "bool")
        if kind in ("int", "ints"):
            return np.dtype(self.integers)
        names = {"str": "U", "any": "O", "bool": "bool", "bytes": "uint8"}
        return np.dtype(names.get(kind, "float64"))

    def is_list(self, name: str) -> bool:
        """True if a field's values are lists of numbers, or bytes."""
        return self.kinds.get(name) in _RAGGED

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields in a batch."""
        return (*self.keys, BROKEN) if self.masked else tuple(self.keys)

    def describe(self, name: str) -> list[Any]:
        """Describe what a field is made of, as JSON has it: key, kind, default, broken lines."""
        default = repr(self.defaults[name]) if name in self.defaults else None
        return [self.keys[name], self.kinds[name], default, self.masked]

    def rename(self, names: Mapping[str, str | None]) -> JsonFields:
        """Return the same fields under other names, and without those whose new name is None."""
        kept = [name for name in self.keys if names.get(name, name) is not None]
        new = {name: names.get(name) or name for name in kept}
        if not new or len(set(new.values())) < len(new):
            raise UsageError(f"rename: the fields would be {list(new.values())}: name each once")
        return replace(
            self,
            keys={new[name]: self.keys[name] for name in kept},
            kinds={new[name]: self.kinds[name] for name in kept},
            defaults={new[name]: self.defaults[name] for name in kept if name in self.defaults},
            vocabulary={
                new[name]: self.vocabulary[name] for name in kept if name in self.vocabulary
            },
        )

    def check_defaults(self) -> None:
        """Raise UsageError if a default is beyond the dtype of integers, or the vocabulary."""
        for name, value in self.defaults.items():
            try:
                if self.kinds[name] not in OBJECTS:
                    self.convert_column(self.kinds[name], [value])
            except OverflowError:
                what = f"defaults has {value!r} for {name!r}, which does not fit {self.integers}"
                raise UsageError(f"{what}: give another, or another as_dtype=") from None
            try:
                self._check_tokens(name, value)
            except ValueError as error:
                raise UsageError(f"defaults: {error}") from None

    def parse(self, text: npt.NDArray[np.uint8], bounds: Int) -> dict[str, Column]:
        """Parse the lines text[bounds[i]:bounds[i+1]]; raises LineError.

        The text is the parser's: a single field of bytes is written over it.
        """
        if not text.flags.writeable or [*self.kinds.values()] != ["bytes"]:
            return self._parse_all(text, bounds)
        ((name, key),) = self.keys.items()
        offsets = extract_json_strings(text, bounds, key)
        count, taken = len(offsets) - 1, text[: offsets[-1]]
        if count == len(bounds) - 1:
            return {name: (taken, offsets), **self._mark_none(count)}
        try:
            rest = self._parse_all(text, bounds[count:])
        except LineError as error:
            raise LineError(count + error.row, str(error)) from None
        values, ends = rest[name]
        strings = np.concatenate([taken, np.asarray(values)])
        columns: dict[str, Column] = {
            name: (strings, np.concatenate([offsets, offsets[-1] + np.asarray(ends[1:])]))
        }
        if self.masked:
            columns[BROKEN] = np.concatenate([np.zeros(count, bool), np.asarray(rest[BROKEN])])
        return columns

    def _parse_all(self, text: npt.NDArray[np.uint8], bounds: Int) -> dict[str, Column]:
        """Parse lines, and leave the text as it is."""
        keys, kinds = list(self.keys.values()), [self.kinds[name] for name in self.keys]
        left_over, parsed, absent = parse_json_lines(text, bounds, keys, kinds)
        columns: dict[str, Column] = {}
        rows: set[int] = set(left_over.tolist())
        for name, column, missing in zip(self.keys, parsed, absent, strict=True):
            if missing.any():
                rows.update(np.flatnonzero(missing).tolist())
            columns[name], unfit = self._fit_column(name, column, missing, text)
            rows.update(unfit)
        columns |= self._mark_none(len(bounds) - 1)
        if rows:
            self._parse_slowly(text, bounds, sorted(rows), columns)
        return columns

    def parse_line(self, line: Any) -> dict[str, Any]:
        """Parse one line: the values of its fields; raises LineError."""
        text = np.frombuffer(line, np.uint8)
        values: dict[str, Any] = {}
        for name, column in self.parse(text, np.array([0, len(text)], np.int64)).items():
            values[name] = column[0]
            if self.kinds.get(name) == "bytes":
                values[name] = np.asarray(column[0]).tobytes()
        return values

    def _mark_none(self, count: int) -> dict[str, Column]:
        """Return the field that marks broken lines, if it is wanted, without a mark."""
        return {BROKEN: np.zeros(count, bool)} if self.masked else {}

    def _fit_column(
        self, name: str, column: Any, missing: npt.NDArray[np.bool_], text: npt.NDArray[np.uint8]
    ) -> tuple[Column, list[int]]:
        """Return a column in its dtype, and the rows whose values do not fit that."""
        kind = self.kinds[name]
        if kind == "any":
            loads, data = import_loads(), text.data
            places = zip(*(side.tolist() for side in column), missing.tolist(), strict=True)
            return [None if no else loads(data[begin:end]) for begin, end, no in places], []
        tokens = self.vocabulary.get(name)
        if kind not in ("int", "ints") or (self.integers == "int64" and tokens is None):
            return column, []
        values, offsets = column if kind == "ints" else (column, None)
        fit = np.iinfo(self.integers)
        low, high = (fit.min, fit.max) if tokens is None else (0, min(fit.max, tokens - 1))
        unfit = np.flatnonzero((values < low) | (values > high))
        narrow = values.astype(self.integers)
        if offsets is None:
            return narrow, unfit.tolist()
        rows = np.searchsorted(offsets, unfit, side="right") - 1
        return (narrow, offsets), rows.tolist()

    def convert_column(self, kind: str, column: Sequence[Any]) -> Column:
        """Convert values to a column; TypeError or OverflowError if one of them does not fit."""
        _check_types(column, KINDS[kind])
        if kind in OBJECTS:
            return list(column)
        if kind == "bytes":
            texts = [value.encode() for value in column]
            ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
            return np.frombuffer(b"".join(texts), np.uint8), ends
        if kind in ("ints", "floats"):
            offsets = np.zeros(len(column) + 1, np.int64)
            np.cumsum([len(row) for row in column], out=offsets[1:])
            elements = list(itertools.chain.from_iterable(column))
            _check_types(elements, _ELEMENTS[kind])
            return self._convert_numbers(kind, elements), offsets
        return self._convert_numbers(kind, column)

    def _convert_numbers(self, kind: str, values: Sequence[Any]) -> npt.NDArray[Any]:
        if kind not in ("int", "ints"):
            return np.array(values, bool if kind == "bool" else np.float64)
        wide = np.array(values, np.int64)
        fit = np.iinfo(self.integers)
        if len(wide) and not fit.min <= int(wide.min()) <= int(wide.max()) <= fit.max:
            raise OverflowError
        return wide.astype(self.integers, copy=False)

    def _parse_slowly(
        self,
        text: npt.NDArray[np.uint8],
        bounds: Int,
        rows: Sequence[int],
        columns: dict[str, Column],
    ) -> None:
        """Parse some lines one by one; replace missing values, mark or report what is broken."""
        data = text.data
        replaced: dict[int, list[Any]] = {}
        for row in rows:
            try:
                replaced[row] = self._choose_values(data[bounds[row] : bounds[row + 1]])
            except ValueError as error:
                if not self.masked:
                    raise LineError(row, str(error)) from None
                np.asarray(columns[BROKEN])[row] = True
                replaced[row] = [_EMPTY.get(self.kinds[name]) for name in self.keys]
        for number, name in enumerate(self.keys):
            kind, column = self.kinds[name], columns[name]
            if isinstance(column, tuple):
                values, offsets = column
                lists = [values[begin:end] for begin, end in itertools.pairwise(offsets)]
                for row, chosen in replaced.items():
                    lists[row] = np.asarray(self.convert_column(kind, [chosen[number]])[0])
                ends = np.cumsum([0, *map(len, lists)], dtype=np.int64)
                columns[name] = np.concatenate(lists), ends
                continue
            for row, chosen in replaced.items():
                # A default or a broken line may be None there, which no line itself gives.
                column[row] = chosen[number]

    def _choose_values(self, line: memoryview) -> list[Any]:
        """Choose the values of one line; ValueError says why it is broken."""
        record = load_object(line)
        values = []
        for name, key in self.keys.items():
            value = record.get(key)
            if value is None:
                if name not in self.defaults:
                    raise ValueError(describe_missing(name, key, record))
                value = copy.deepcopy(self.defaults[name])
            else:
                numbers = value if isinstance(value, list) else [value]
                is_great = any(type(one) is float and abs(one) >= 1 << 63 for one in numbers)
                if self.kinds[name] in _NUMBERS and is_great:
                    value = json.loads(bytes(line))[key]  # orjson rounds what has over 64 bits
                self._check_value(name, value)
            values.append(value)
        return values

    def _check_value(self, name: str, value: Any) -> None:
        kind = self.kinds[name]
        if kind in ("float", "floats") and fits_type(kind, value):
            if rounded := [one for one in np.ravel(np.array(value, object)) if is_rounded(one)]:
                what = f"field {name!r} has {rounded[0]!r}, which float64 does not hold"
                kind_by = f"is {kind!r} by {self.origin}"
                raise ValueError(f"{what}, and {kind_by}: write it as text, or with a point")
            return
        if kind in ("str", "any", "bool", "bytes") and type(value) in KINDS[kind]:
            return
        try:
            self.convert_column(kind, [value])
        except (TypeError, OverflowError, ValueError):
            what = f"which does not fit {self.integers}" if fits_type(kind, value) else ""
            what = f"{reprlib.repr(value)}, {what or f'a {_name_type(value)}'}"
            remedy = f"mend the line, give types={{{name!r}: 'any'}}, or broken='mask'"
            kind_by = f"and is {kind!r} by {self.origin}"
            raise ValueError(f"field {name!r} has {what}, {kind_by}: {remedy}") from None
        self._check_tokens(name, value)

    def _check_tokens(self, name: str, value: Any) -> None:
        """Raise ValueError for the first token that is not of the field's vocabulary."""
        tokens = self.vocabulary.get(name)
        if tokens is None or value is None:
            return
        for position, token in enumerate(value):
            if not 0 <= token < tokens:
                what = f"field {name!r} has the token {token} at position {position:,}"
                remedy = "tokenize again, or give broken='mask'"
                raise ValueError(f"{what}, beyond the vocabulary of {tokens:,} tokens: {remedy}")


def _check_types(values: Sequence[Any], allowed: tuple[type, ...]) -> None:
    if not set(map(type, values)).issubset(allowed):
        raise TypeError


def fits_type(kind: str, value: Any) -> bool:
    """True if a value is of a type that the kind takes."""
    if type(value) not in KINDS[kind]:
        return False
    return kind not in _ELEMENTS or set(map(type, value)).issubset(_ELEMENTS[kind])


def is_rounded(number: Any) -> bool:
    """True for a whole number that float64 would change: it holds those to 2**53, few beyond."""
    try:
        return isinstance(number, int) and int(float(number)) != number
    except OverflowError:
        return True


def find_kind(values: Sequence[Any]) -> str:
    """Find the narrowest kind that takes all the values."""
    return next((kind for kind in KINDS if all(fits_type(kind, one) for one in values)), "any")


def _name_type(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "whole number", float: "fraction"}
    return names.get(type(value), "list" if isinstance(value, list) else "object")


def describe_missing(name: str, key: str, record: Mapping[str, Any]) -> str:
    """Describe a field that an object does not have, or that is null, and what to do."""
    if key in record:
        reason, more = f"field {key!r} is null", ""
    else:
        more = "correct fields=; or "
        near = difflib.get_close_matches(key, record, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        shown = [reprlib.repr(name) for name in itertools.islice(record, 20)]
        names = ", ".join(shown) + ", ..." * (len(record) > 20) if shown else "none"
        reason = f"it has no field {key!r}{hint}, but {names}"
    return (
        f"{reason}: {more}give a value for such lines by defaults={{{name!r}: ...}}, or "
        f"broken='mask'"
    )


def import_loads() -> Callable[[Any], Any]:
    """Import the parser of orjson; UsageError if it is not installed."""
    try:
        import orjson
    except ImportError:
        raise missing_library("orjson", "text", "fields= of JSON lines") from None
    return orjson.loads


def load_object(line: memoryview) -> dict[str, Any]:
    """Load the object of a line; ValueError says why there is none."""
    try:
        record = import_loads()(line)
    except ValueError as error:
        shown = reprlib.repr(bytes(line[:40]))
        joined = ", as where files were joined" if line[:3] == _BYTE_ORDER_MARK else ""
        what = f"no JSON ({error}{joined}), it begins with {shown}"
        raise ValueError(f"{what}: mend the line, or give broken='mask'") from None
    if not isinstance(record, dict):
        raise ValueError(f"no object, but a {_name_type(record)}: mend it, or give broken='mask'")
    return record
