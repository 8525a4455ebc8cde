"""Fields of JSON lines: values of each line's object, parsed when a batch of lines was read.

The index knows lines only; a `JsonFields` at the field of the lines says what is made of them. It
is no part of the index's identity and is not saved: one index serves all choices of fields.
Objects are parsed by orjson, a step at a time in one loop. If that fails, the lines are looked at
one by one, to find out which is broken and why.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import operator
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..extent import Int
from .codecs import missing_library

KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "ints": (list,),
    "floats": (list,),
    "any": (str, int, float, bool, list, dict),
}
"""Kinds of fields, and the types of value that each takes."""

BROKEN = "broken"
"""Field that tells broken lines from others, with broken="mask"."""

Column = list[Any] | npt.NDArray[Any] | tuple[npt.NDArray[Any], Int]
"""Values of a field: Python objects, numbers, or lists of numbers laid end to end and their
offsets."""

_ELEMENTS = {"ints": (int,), "floats": (float, int)}
OBJECTS = ("str", "any")
"""Kinds whose columns are lists of Python objects."""
_ABSENT = object()


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
    """

    keys: Mapping[str, str]
    kinds: Mapping[str, str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    masked: bool = False
    integers: str = "int64"

    def get_dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a field's values; that of strings, or of objects, in lists."""
        kind = self.kinds.get(name, "bool")
        if kind in ("int", "ints"):
            return np.dtype(self.integers)
        names = {"str": "U", "any": "O", "bool": "bool"}
        return np.dtype(names.get(kind, "float64"))

    def is_list(self, name: str) -> bool:
        """True if a field's values are lists of numbers."""
        return self.kinds.get(name) in _ELEMENTS

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields in a batch."""
        return (*self.keys, BROKEN) if self.masked else tuple(self.keys)

    def rename(self, names: Mapping[str, str | None]) -> JsonFields:
        """Return the same fields under other names, and without those whose new name is None."""
        kept = [name for name in self.keys if names.get(name, name) is not None]
        new = {name: names.get(name) or name for name in kept}
        if not new or len(set(new.values())) < len(new):
            raise UsageError(
                f"rename: the fields would be {list(new.values())}: give each its own name, and "
                f"keep one"
            )
        return replace(
            self,
            keys={new[name]: self.keys[name] for name in kept},
            kinds={new[name]: self.kinds[name] for name in kept},
            defaults={new[name]: self.defaults[name] for name in kept if name in self.defaults},
        )

    def check_defaults(self) -> None:
        """Raise UsageError if a default is beyond the dtype of integers."""
        for name, value in self.defaults.items():
            try:
                if self.kinds[name] not in OBJECTS:
                    self.convert_column(self.kinds[name], [value])
            except OverflowError:
                raise UsageError(
                    f"defaults has {value!r} for {name!r}, which does not fit {self.integers}: "
                    f"give another, or another as_dtype="
                ) from None

    def parse(self, text: memoryview, bounds: Sequence[int]) -> dict[str, Column]:
        """Parse lines, which are text[bounds[i]:bounds[i+1]]; raises LineError."""
        loads = import_loads()
        choose = operator.itemgetter(*self.keys.values())
        try:
            rows = [choose(loads(text[begin:end])) for begin, end in itertools.pairwise(bounds)]
            columns = [rows] if len(self.keys) == 1 else list(zip(*rows, strict=True))
            columns = columns or [[] for _ in self.keys]
            found = {
                name: self.convert_column(self.kinds[name], column)
                for name, column in zip(self.keys, columns, strict=True)
            }
        except (ValueError, KeyError, TypeError, OverflowError):
            return self._parse_slowly(text, bounds)
        if self.masked:
            found[BROKEN] = np.zeros(len(bounds) - 1, bool)
        return found

    def convert_column(self, kind: str, column: Sequence[Any]) -> Column:
        """Convert values to a column; TypeError or OverflowError if one of them does not fit."""
        _check_types(column, KINDS[kind])
        if kind in OBJECTS:
            return list(column)
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

    def _parse_slowly(self, text: memoryview, bounds: Sequence[int]) -> dict[str, Column]:
        """Parse lines one by one: replace missing values, and mark or report what is broken."""
        rows: list[list[Any]] = []
        broken = np.zeros(len(bounds) - 1, bool)
        for row, (begin, end) in enumerate(itertools.pairwise(bounds)):
            try:
                rows.append(self._choose_values(text[begin:end]))
            except ValueError as error:
                if not self.masked:
                    raise LineError(row, str(error)) from None
                broken[row] = True
                rows.append([_make_empty(self.kinds[name]) for name in self.keys])
        found: dict[str, Column] = {}
        for number, name in enumerate(self.keys):
            column = [values[number] for values in rows]
            kind = self.kinds[name]
            # A default or a broken line may be None there, which no line itself gives.
            found[name] = column if kind in OBJECTS else self.convert_column(kind, column)
        if self.masked:
            found[BROKEN] = broken
        return found

    def _choose_values(self, line: memoryview) -> list[Any]:
        """Choose the values of one line; ValueError says why it is broken."""
        record = load_object(line)
        values = []
        for name, key in self.keys.items():
            value = record.get(key, _ABSENT)
            if value is None or value is _ABSENT:
                if name not in self.defaults:
                    raise ValueError(describe_missing(name, key, record))
                value = copy.deepcopy(self.defaults[name])
            else:
                self._check_value(name, value)
            values.append(value)
        return values

    def _check_value(self, name: str, value: Any) -> None:
        kind = self.kinds[name]
        if kind in ("str", "any", "float", "bool") and type(value) in KINDS[kind]:
            return
        try:
            self.convert_column(kind, [value])
        except (TypeError, OverflowError, ValueError):
            what = f"which does not fit {self.integers}" if fits_type(kind, value) else ""
            raise ValueError(
                f"field {name!r} has {reprlib.repr(value)}, {what or f'a {_name_type(value)}'}, "
                f"and is {kind!r} by the first lines or types=: mend the line, give "
                f"types={{{name!r}: 'any'}} for values as they are, or broken='mask'"
            ) from None


def _check_types(values: Sequence[Any], allowed: tuple[type, ...]) -> None:
    if not set(map(type, values)).issubset(allowed):
        raise TypeError


def fits_type(kind: str, value: Any) -> bool:
    """True if a value is of a type that the kind takes."""
    if type(value) not in KINDS[kind]:
        return False
    return kind not in _ELEMENTS or set(map(type, value)).issubset(_ELEMENTS[kind])


def find_kind(values: Sequence[Any]) -> str:
    """Find the narrowest kind that takes all the values."""
    return next((kind for kind in KINDS if all(fits_type(kind, one) for one in values)), "any")


def _name_type(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "whole number", float: "fraction"}
    return names.get(type(value), "list" if isinstance(value, list) else "object")


def _make_empty(kind: str) -> Any:
    """Make the value that a broken line has in a field."""
    empty = {"int": 0, "float": float("nan"), "bool": False, "ints": [], "floats": []}
    return empty.get(kind)


def describe_missing(name: str, key: str, record: Mapping[str, Any]) -> str:
    """Describe a field that an object does not have, or that is null, and what to do."""
    if key in record:
        reason, more = f"field {key!r} is null", ""
    else:
        more = "correct fields=; or "
        near = difflib.get_close_matches(key, record, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        reason = f"it has no field {key!r}{hint}, but {_list_names(record)}"
    return (
        f"{reason}: {more}give a value for such lines by defaults={{{name!r}: ...}}, or "
        f"broken='mask'"
    )


def _list_names(record: Mapping[str, Any]) -> str:
    shown = [reprlib.repr(name) for name in itertools.islice(record, 20)]
    return ", ".join(shown) + (", ..." if len(record) > 20 else "") if shown else "none"


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
        raise ValueError(
            f"no JSON ({error}), it begins with {shown}: mend the line, or give broken='mask'"
        ) from None
    if not isinstance(record, dict):
        raise ValueError(
            f"no object, but a {_name_type(record)}, {reprlib.repr(record)}: mend the line, or "
            f"give broken='mask'"
        )
    return record
