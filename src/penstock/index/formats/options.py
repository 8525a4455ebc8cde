"""Options of formats: their canonical form, of JSON types; and the columns that they choose.

A check gets the name and the value of an option. It returns the canonical value, or None if that is
the default, which is left out; UsageError if the option cannot be that.

fields:  names of the columns to read, in this order; by default all.
label:   the column of integers that is the label; by default "label" or "labels", if there is
         such a column; "" for none. The label is `batch["label"]`, int64, and no field.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from ...arguments import check_number, check_whole
from ...errors import FormatError, UsageError
from ...extent import Files, Int

Check = Callable[[str, Any], Any]


def normalize(options: Mapping[str, Any], **checks: Check) -> dict[str, Any]:
    """Return the options that are given in canonical form; those without a check as they are."""
    given = {name: value for name, value in options.items() if value is not None}
    canonical = {n: checks[n](n, value) if n in checks else value for n, value in given.items()}
    return {name: value for name, value in canonical.items() if value is not None}


def one_of(*choices: Any, is_kept: bool = False) -> Check:
    """Check an option of few values, the default first; it is left out unless `is_kept`."""

    def check(name: str, value: Any) -> Any:
        if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
            raise UsageError(f"{name} is {value!r}: use {' or '.join(map(repr, choices))}")
        return value if is_kept or value != choices[0] else None

    return check


def text(what: str, least: int = 0) -> Check:
    """Check a text of `least` characters; `what` says what to give."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or len(value) < least or "\0" in value:
            raise UsageError(f"{name} is {value!r}: give {what}")
        return value

    return check


def texts(what: str, check_one: Check, least: int = 0) -> Check:
    """Check a list of different texts, at least so many; a text alone is a list of one."""

    def check(name: str, value: Any) -> list[str]:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, Sequence) or len(names) < least:
            raise UsageError(f"{name} is {value!r}: give {what}")
        names = [check_one(name, one) for one in names]
        if len(set(names)) < len(names):
            raise UsageError(f"{name} is {value!r}: name each once")
        return names

    return check


def whole(least: int, most: int) -> Check:
    """Check a whole number."""
    return lambda name, value: check_whole(name, value, least, most)


def number(least: float, most: float) -> Check:
    """Check a real number."""
    return lambda name, value: float(check_number(name, value, least=least, most=most))


def check_keys(name: str, value: Any, of: str, **checks: Check) -> dict[str, Any]:
    """Check an option that is a dict, and return the values that are given, in canonical form.

    of:  what has these keys, for messages.
    """
    wrong = sorted(set(value) - checks.keys())[:1] if isinstance(value, Mapping) else []
    if not isinstance(value, Mapping) or wrong:
        what = f"{name} is {value!r:.100}" + "".join(f": {of} has no {key!r}" for key in wrong)
        raise UsageError(f"{what}: give a dict of {', '.join(checks)}")
    given = {key: one for key, one in value.items() if one is not None}
    canonical = {key: checks[key](f"{name}: {key}", one) for key, one in given.items()}
    return {key: one for key, one in canonical.items() if one is not None}


def below(name: str, value: Any) -> str:
    """Check a name below the data set: no absolute path, and none with '..'."""
    inside = isinstance(value, str) and value and not value.startswith("/")
    if not inside or ".." in value.split("/") or "\0" in value:
        raise UsageError(f"{name} is {value!r}: give a name below the folder that is opened")
    return str(value)


def paths(name: str, value: Any) -> dict[str, str]:
    """Check a mapping of names of fields to paths or names in the data; a list names both."""
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        value = dict(zip(value, value, strict=True))
    named = value.items() if isinstance(value, Mapping) else ()
    if not named or not all(isinstance(one, str) and one for pair in named for one in pair):
        raise UsageError(f"{name} is {value!r}: give names in the data, or {{field: name}}")
    return dict(named)


_NAMES = "names, such as ['image', 'mask']"
FIELDS = texts(_NAMES, text(_NAMES, 1), 1)
SAMPLE = one_of("row", "file", is_kept=True)
SHORT = one_of("skip", "pad", "error", is_kept=True)
STRIDE: Check = lambda _, value: value  # noqa: E731 - checked in the unit of the clip
LABEL = text("the name of a column, '' for none")
EXTENSIONS: Check = lambda _, value: list(value)  # noqa: E731 - checked where data are opened


def normalize_columns(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of columns in canonical form."""
    nulls = one_of("error", "empty")
    return normalize(options, fields=FIELDS, label=LABEL, nulls=nulls, sample=SAMPLE)


def normalize_arrays(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of arrays that have paths, in canonical form.

    `dataset` is the path of one array, `fields` names several. `fill` fills chunks that do not
    exist.
    """
    if options.get("dataset") is not None and options.get("fields") is not None:
        raise UsageError("dataset= and fields= exclude each other: choose one")
    path, switch = text("the path of an array", 1), one_of(False, True)
    isolate = one_of(True, False)
    checks = {"dataset": path, "fields": paths, "label": LABEL, "fill": switch, "isolate": isolate}
    return normalize_windows(options, **checks, sample=SAMPLE)


def normalize_windows(options: Mapping[str, Any], **checks: Check) -> dict[str, Any]:
    """Return the options of arrays, in canonical form; UsageError for what does not go with
    windows."""
    checks = checks or {"sample": SAMPLE, "fields": FIELDS, "label": LABEL}
    of_windows: dict[str, Check] = {
        "window": check_sizes,
        "stride": check_sizes,
        "target": check_target,
        "halo": check_sizes,
        "drop": one_of("partial", "pad"),
    }
    canonical = normalize(options, **checks, **of_windows, axis=_name_axis)
    if axis := canonical.get("axis"):
        if both := [name for name in of_windows if options.get(name) not in (None, {axis: 1})]:
            raise UsageError(f"{both[0]}= and axis= exclude each other: give window={{axis: 1}}")
        canonical["window"] = {axis: 1}
    if "window" not in canonical:
        for name in of_windows:
            if name in canonical:
                raise UsageError(f"{name}= goes with window=: give {{axis: elements}} as well")
    elif canonical.get("sample") == "row" or canonical.get("label"):
        wrong = "label=" if canonical.get("label") else "sample='row'"
        raise UsageError(f"{wrong} does not go with window= or axis=: leave it out")
    return canonical


def check_sizes(name: str, value: Any) -> dict[str, int]:
    """Check the option `window`, `stride` or `halo`, and return it by names of axes."""
    if not isinstance(value, Mapping) or not value:
        raise UsageError(f"{name} is {value!r:.100}: give {{axis: elements}}")
    ends = 0 if name == "halo" else 1, limits.order_count_max
    return {_name_axis(name, axis): check_whole(name, size, *ends) for axis, size in value.items()}


def check_target(name: str, value: Any) -> dict[str, list[int]]:
    """Check the option `target`, and return it by names of axes."""
    if not isinstance(value, Mapping) or not value:
        raise UsageError(f"{name} is {value!r:.100}: give {{axis: (first, end)}}")
    target = {}
    for axis, ends in value.items():
        if not isinstance(ends, Sequence) or isinstance(ends, str) or len(ends) != 2:
            raise UsageError(f"{name} of {axis!r} is {ends!r:.100}: give (first, end)")
        most = limits.order_count_max
        first, end = (check_whole(name, at, -most, most) for at in ends)
        if first >= end:
            raise UsageError(f"{name} of {axis!r} is ({first}, {end}): let it end behind its start")
        target[_name_axis(name, axis)] = [first, end]
    return target


def _name_axis(name: str, axis: Any) -> str:
    if isinstance(axis, bool) or not isinstance(axis, int | str) or axis == "":
        raise UsageError(f"{name} has the axis {axis!r}: give its name, or its number from 0 on")
    return str(axis)


def normalize_extensions(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with the extensions as a list."""
    return normalize(options, extensions=EXTENSIONS)


# -- choice of columns -----------------------------------------------------------------------------

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
    named: list[tuple[int, Any]] = []
    seen: set[str] = set()
    for number, one in enumerate(metadata):
        described = one.get("huggingface", "")
        if described in seen:
            continue
        seen.add(described)
        try:
            named.append((number, json.loads(described)["info"]["features"][name]["names"]))
        except (KeyError, TypeError, ValueError, RecursionError):
            continue
    for number, names in named[1:]:
        if names != named[0][1]:
            what = f"{files.path(number)}: {name!r} has classes {names!r:.60}"
            raise FormatError(f"{what}, elsewhere {named[0][1]!r:.60}: its numbers mean two things")
    if not named or named[0][0]:
        return None
    return check_class_names(named[0][1], labels)


def check_class_names(names: Any, labels: Int) -> tuple[str, ...] | None:
    """Return the names of the classes of these labels; None if they cannot be."""
    if not isinstance(names, list) or not all(isinstance(class_name, str) for class_name in names):
        return None
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < len(names)):
        return None
    return tuple(names)
