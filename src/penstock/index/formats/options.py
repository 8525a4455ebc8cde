"""Options of formats: what they may be, and their canonical form, of JSON types.

A check gets the name and the value of an option. It returns the canonical value, or None if that is
the default, which is left out; UsageError if the option cannot be that.

fields:  names of the columns to read, in this order; by default all.
label:   the column of integers that is the label; by default "label" or "labels", if there is
         such a column; "" for none. The label is `batch["label"]`, int64, and no field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...arguments import check_whole
from ...errors import UsageError

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


def below(name: str, value: Any) -> str:
    """Check a name below the data set: no absolute path, and none with '..'."""
    inside = isinstance(value, str) and value and not value.startswith("/")
    if not inside or ".." in value.split("/") or "\0" in value:
        raise UsageError(f"{name} is {value!r}: give a name below the folder that is opened")
    return str(value)


def paths(name: str, value: Any) -> dict[str, str]:
    """Check a mapping of names of fields to paths or names in the data."""
    named = value.items() if isinstance(value, Mapping) else ()
    if not named or not all(isinstance(one, str) and one for pair in named for one in pair):
        raise UsageError(f"{name} is {value!r}: give {{field: its path or name in the data}}")
    return dict(named)


_NAMES = "names, such as ['image', 'mask']"
FIELDS = texts(_NAMES, text(_NAMES, 1), 1)
LABEL = text("the name of a column, '' for none")
EXTENSIONS: Check = lambda _, value: list(value)  # noqa: E731 - checked where data are opened


def normalize_columns(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of columns in canonical form."""
    return normalize(options, fields=FIELDS, label=LABEL, nulls=one_of("error", "empty"))


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
    return normalize(options, **checks)


def normalize_extensions(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with the extensions as a list."""
    return normalize(options, extensions=EXTENSIONS)
