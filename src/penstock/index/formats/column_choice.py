"""Choice of the columns or arrays that become fields, and of the one that is the label.

fields:  names of the columns to read, in this order; by default all.
label:   the column of integers that is the label; by default "label" or "labels", if there is
         such a column; "" for none. The label is `batch["label"]`, int64, and no field.
"""

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


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    normalized = {name: value for name, value in options.items() if value is not None}
    if "fields" in normalized:
        fields = normalized["fields"]
        names = [fields] if isinstance(fields, str) else fields
        if not isinstance(names, Sequence) or not names or not all(map(_is_name, names)):
            raise UsageError(f"fields is {fields!r}: give names, such as ['image', 'mask']")
        if len(set(names)) < len(names):
            raise UsageError(f"fields is {fields!r}: name each once")
        normalized["fields"] = list(names)
    _check_label(normalized)
    return normalized


def normalize_array_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of arrays that have paths, in canonical form.

    `dataset` is the path of one array, `fields` names several. `fill`, False by default, fills
    chunks that do not exist.
    """
    normalized = {name: value for name, value in options.items() if value is not None}
    if "dataset" in normalized and not _is_name(normalized["dataset"]):
        raise UsageError(f"dataset is {normalized['dataset']!r}: give the path of an array")
    if "fields" in normalized:
        fields = normalized["fields"]
        if "dataset" in normalized:
            raise UsageError("dataset= and fields= exclude each other: choose one")
        if not isinstance(fields, Mapping) or not fields:
            raise UsageError(f"fields is {fields!r}: give {{field: path of an array}}")
        if not all(_is_name(key) and _is_name(value) for key, value in fields.items()):
            raise UsageError(f"fields is {fields!r}: give {{field: path of an array}}")
        normalized["fields"] = dict(fields)
    _check_label(normalized)
    check_switch(normalized, "fill", False)
    return normalized


def check_switch(options: dict[str, Any], name: str, default: bool) -> None:
    """Check an option that is True or False, and leave it out if it has its default."""
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}: use True or False")
    if value == default:
        options.pop(name, None)


def normalize_table_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of tables in canonical form: `nulls` is left out if it has its default."""
    normalized = normalize_options(options)
    value = normalized.get("nulls", "error")
    if value not in ("error", "empty"):
        raise UsageError(f"nulls is {value!r}: use 'error' or 'empty'")
    if value == "error":
        normalized.pop("nulls", None)
    return normalized


def _check_label(options: Mapping[str, Any]) -> None:
    label = options.get("label", "")
    if label != "" and not _is_name(label):
        raise UsageError(f"label is {label!r}: give the name of a column, '' for none")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


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
        raise UsageError(f"{path}: the field 'label' would hide the label {label!r}: label=''")
    return names, label or None


def list_wanted(
    path: str, known: Collection[str], fields: Sequence[str] | None, label: str | None
) -> list[str]:
    """List the columns to read, the label among them; UsageError if a named one does not exist."""
    named = [*(fields or ()), *([label] if label else [])]
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(
                f"{path} has no column {name!r}: {hint}its columns are {', '.join(known)}"
            )
    return list(known) if fields is None else list(dict.fromkeys(named))


def holds_integers(column: Any) -> bool:
    """True if a column of Arrow or Parquet holds one integer a row, and can be read."""
    return not column.refused and column.shape == () and np.dtype(column.dtype).kind in "iu"


def check_readable(path: str, column: Any, columns: Sequence[Any]) -> None:
    """Check that a column of Arrow or Parquet is of a type that can be read (FormatError)."""
    if column.refused:
        rest = [other.name for other in columns if not other.refused]
        raise FormatError(f"{path}: column {column.name!r} {column.refused}: fields={rest}")


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
