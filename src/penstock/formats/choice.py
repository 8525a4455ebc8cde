"""Containers of several columns: which become fields, and which one is the label.

fields:  names of the columns to read, in this order; by default all.
label:   the column of integers that is the label; by default "label" or "labels", where there
         is such a column; "" for none. The label is `batch["label"]`, int64, and no field.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, UsageError
from ..extent import Int

OPTIONS = ("fields", "label")
DEFAULTS = ("label", "labels")


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in their one spelling."""
    found = dict(options)
    if "fields" in options:
        given = options["fields"]
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, Sequence) or not names:
            raise UsageError(f"fields is {given!r}: give names, such as ['image', 'mask']")
        if not all(isinstance(name, str) and name for name in names):
            raise UsageError(f"fields is {given!r}: give names, such as ['image', 'mask']")
        if len(set(names)) < len(names):
            raise UsageError(f"fields is {given!r}: name each once")
        found["fields"] = list(names)
    if "label" in options and not isinstance(options["label"], str):
        raise UsageError(f"label is {options['label']!r}: give the name of a column, '' for none")
    return found


def chosen(
    path: str,
    columns: Sequence[str],
    integers: Collection[str],
    fields: Sequence[str] | None,
    label: str | None,
) -> tuple[list[str], str | None]:
    """The names of the fields, and of the label; UsageError where a column is not there.

    integers:  the columns that hold one integer a sample.
    """
    for name in (*(fields or ()), *((label,) if label else ())):
        if name not in columns:
            near = difflib.get_close_matches(name, columns, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(f"{path} has no column {name!r}: {hint}it has {', '.join(columns)}")
    if label is None:
        free = (name for name in DEFAULTS if name in integers and name not in (fields or ()))
        label = next((name for name in free if set(columns) != {name}), None)
    elif label and label not in integers:
        raise UsageError(f"{path}: column {label!r} does not hold one integer a sample")
    names = [name for name in columns if name != label] if fields is None else list(fields)
    if not names:
        raise UsageError(f"{path}: nothing is left but the label: give fields=")
    if label and "label" in names:
        raise UsageError(
            f"{path}: the field 'label' would hide the label {label!r}: name the fields "
            f"without it (fields=), or give label=''"
        )
    return names, label or None


def labels(path: str, name: str, values: npt.NDArray[Any]) -> Int:
    """A column of integers as labels; FormatError where one does not fit 63 bits."""
    if values.dtype.kind == "u" and values.itemsize == 8 and len(values):
        most = int(values.max())
        if most >= 1 << 63:
            raise FormatError(f"{path}: label {most} of column {name!r} does not fit 63 bits")
    return values.astype(np.int64)
