"""Choice of the columns that become fields, and of the one that is the label (`options`)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import FormatError, UsageError
from ...extent import Files, Int

DEFAULTS = ("label", "labels")


def choose_columns(
    path: str,
    columns: Sequence[str],
    integers: Collection[str],
    fields: Sequence[str] | None,
    label: str | None,
) -> tuple[list[str], str | None]:
    """Choose the fields and the label; UsageError if a named column does not exist.

    integers:  the columns that hold one integer a sample.
    """
    list_wanted(path, columns, fields, label)
    if label is None:
        free = (name for name in DEFAULTS if name in integers and name not in (fields or ()))
        label = next((name for name in free if set(columns) != {name}), None)
    elif label and label not in integers:
        raise UsageError(f"{path}: column {label!r} does not hold one integer a sample")
    names = [name for name in columns if name != label] if fields is None else list(fields)
    if not names:
        raise UsageError(f"{path}: nothing is left but the label: give fields=")
    if label and "label" in names:
        raise UsageError(f"{path}: the field 'label' would hide the label {label!r}: label=''")
    return names, label or None


def list_wanted(
    path: str, known: Collection[str], fields: Sequence[str] | None, label: str | None
) -> list[str]:
    """List the columns to read, the label among them; UsageError if a named one does not exist."""
    named = [*(fields or ()), *([label] if label else [])]
    for name in named:
        check_known(path, name, known)
    return list(known) if fields is None else list(dict.fromkeys(named))


def check_known(path: str, name: str, known: Collection[str]) -> None:
    """Check that there is a column of this name (UsageError)."""
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"{path} has no column {name!r}: {hint}it has {', '.join(known)}")


def check_readable(path: str, column: Any, columns: Sequence[Any]) -> None:
    """Check that a column of Arrow or Parquet is of a type that can be read (FormatError)."""
    if column.refused:
        rest = [other.name for other in columns if not other.refused]
        raise FormatError(f"{path}: column {column.name!r} {column.refused}: fields={rest}")


def holds_integers(column: Any) -> bool:
    """True if a column of Arrow or Parquet holds one integer a row, and can be read."""
    return not column.refused and column.shape == () and np.dtype(column.dtype).kind in "iu"


def find_label(columns: Mapping[str, Any], label: str | None) -> str | None:
    """Find the name of the label: the one given, or the first default that holds integers."""
    if label is not None:
        return label or None
    return next((n for n in DEFAULTS if n in columns and holds_integers(columns[n])), None)


def number_columns(path: str, names: Sequence[str]) -> dict[str, int]:
    """Number the columns by name; FormatError if two share a name."""
    numbers: dict[str, int] = {}
    for number, name in enumerate(names):
        if name in numbers:
            raise FormatError(f"{path} has two columns {name!r}: rename one")
        numbers[name] = number
    return numbers


def convert_labels(path: str, name: str, values: npt.NDArray[Any]) -> Int:
    """Convert a column of integers to labels; FormatError if one does not fit 63 bits."""
    if values.dtype.kind == "u" and values.itemsize == 8 and len(values):
        most = int(values.max())
        if most >= 1 << 63:
            raise FormatError(f"{path}: value {most} of column {name!r} does not fit 63 bits")
    return values.astype(np.int64)


def read_classes(
    files: Files, metadata: Sequence[Mapping[str, str]], name: str, labels: Int
) -> tuple[str, ...] | None:
    """Read the names of classes that `datasets` keeps in the metadata of files, if they fit.

    FormatError if two files have different names: their numbers mean different classes.
    """
    found: list[tuple[int, Any]] = []
    seen: set[str] = set()
    for number, one in enumerate(metadata):
        described = one.get("huggingface", "")
        if described in seen:
            continue
        seen.add(described)
        try:
            found.append((number, json.loads(described)["info"]["features"][name]["names"]))
        except (KeyError, TypeError, ValueError, RecursionError):
            continue
    for number, names in found[1:]:
        if names != found[0][1]:
            raise FormatError(
                f"{files.path(number)}: {name!r} has classes {names!r:.60}, elsewhere "
                f"{found[0][1]!r:.60}: its numbers mean two things"
            )
    if not found or found[0][0]:
        return None
    return check_class_names(found[0][1], labels)


def check_class_names(names: Any, labels: Int) -> tuple[str, ...] | None:
    """Return the names of the classes of these labels; None if they cannot be."""
    if not isinstance(names, list) or not all(isinstance(class_name, str) for class_name in names):
        return None
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < len(names)):
        return None
    return tuple(names)
