"""What formats of named columns have in common: which become fields, and which one the labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import FormatError, UsageError
from ..extent import Int


def canonical_columns(options: Mapping[str, Any]) -> dict[str, Any]:
    """`fields`, which are columns, and `label` in their one spelling; label "" is none."""
    found: dict[str, Any] = {}
    columns = options.get("fields")
    if columns is not None:
        given = [columns] if isinstance(columns, str) else columns
        if not isinstance(given, Sequence) or not given or not all(map(_is_name, given)):
            raise UsageError(f"fields is {columns!r}: give names of columns")
        if len(set(given)) < len(given):
            raise UsageError(f"fields is {columns!r}, which names one twice")
        found["fields"] = list(given)
    if options.get("label") is not None:
        if options["label"] != "" and not _is_name(options["label"]):
            raise UsageError(f"label is {options['label']!r}: give the name of a column")
        found["label"] = options["label"]
    return found


def as_columns(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with what users call fields under the name of columns."""
    return {"columns" if name == "fields" else name: value for name, value in options.items()}


def canonical_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """`dataset` or `fields`, and `label`, in their one spelling."""
    found: dict[str, Any] = {}
    for name in ("dataset", "label"):
        if options.get(name) is not None:
            if not _is_name(options[name]):
                raise UsageError(f"{name} is {options[name]!r}: give the name of an array")
            found[name] = options[name]
    fields = options.get("fields")
    if fields is not None:
        if "dataset" in found:
            raise UsageError("dataset= and fields= exclude each other: choose one")
        if not isinstance(fields, Mapping) or not fields:
            raise UsageError(f"fields is {fields!r}: give {{field: name of an array}}")
        if not all(_is_name(key) and _is_name(value) for key, value in fields.items()):
            raise UsageError(f"fields is {fields!r}: give {{field: name of an array}}")
        found["fields"] = dict(fields)
    return found


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def by_name(path: str, names: Sequence[str]) -> dict[str, int]:
    """The number of each column; FormatError where two share a name."""
    found: dict[str, int] = {}
    for number, name in enumerate(names):
        if name in found:
            raise FormatError(f"{path} has two columns {name!r}: rename one")
        found[name] = number
    return found


def label_values(
    path: str, name: str, data: bytes | memoryview, dtype: np.dtype[Any], rows: int
) -> Int:
    """Labels as int64 out of a column's bytes."""
    if len(data) < rows * dtype.itemsize:
        raise FormatError(
            f"{path}: {len(data):,} bytes of labels {name!r} for {rows:,} rows: the file is damaged"
        )
    return whole_numbers(path, name, np.frombuffer(data, dtype, rows))


def whole_numbers(path: str, name: str, values: np.ndarray[Any, Any]) -> Int:
    """Labels as int64."""
    if values.dtype.kind == "u" and values.itemsize == 8 and (values >> np.uint64(63)).any():
        raise FormatError(f"{path}: a label in {name!r} is above 2**63 - 1")
    return values.astype(np.int64)
