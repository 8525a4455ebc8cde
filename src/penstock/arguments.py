"""Checks of numbers, choices and paths that callers give, with one wording.

Nothing but the message about a path that does not exist looks at files.
"""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterable
from typing import SupportsIndex, TypeVar

import numpy as np

from .errors import UsageError

Path = str | bytes | os.PathLike[str]
Kind = TypeVar("Kind")

_shown_max = 1 << 20
"""Largest bound that every message shows. Larger ones only matter to a value beyond them."""


def check_whole(name: str, value: object, least: int = 1, most: int = 1 << 62) -> int:
    """Return a whole number as int. Raises UsageError for one outside least..most, a bool, a float,
    or anything else that is no integer."""
    bounds = f"from {least} to {most:,}" if most <= _shown_max else f"from {least} on"
    text = ""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool | np.bool_ | np.ndarray):
        number = operator.index(value)
        if least <= number <= most:
            return number
        if number > most:
            bounds = f"from {least} to {most:,}"
        if number.bit_length() > 200:  # Python does not print numbers of any length
            text = f"a number of {number.bit_length():,} bits"
    raise UsageError(f"{name} is {text or repr(value)[:100]}: use a whole number {bounds}")


def check_flag(name: str, value: object) -> bool:
    """Return a switch as bool. Raises UsageError if the value is none."""
    if not isinstance(value, (bool, np.bool_)):
        raise UsageError(f"{name} is {value!r:.100}: use True or False")
    return bool(value)


def check_kind(name: str, value: object, kind: type[Kind], remedy: str) -> Kind:
    """Return a value of a kind. Raises UsageError for others, with what to give."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} is {value!r:.100}: give {remedy}")
    return value


def check_function(name: str, value: object, remedy: str) -> None:
    """Raise UsageError unless a value is a function, or None."""
    if value is not None and not callable(value):
        raise UsageError(f"{name} is {value!r:.100}: give {remedy}")


def check_path(name: str, value: object) -> str:
    """Return a path as str. Raises UsageError for another type, and for a text that no file name
    can be: one with a lone surrogate that stands for no byte."""
    if not isinstance(value, str | bytes | os.PathLike):
        raise UsageError(f"{name} is {value!r:.100}: give a path")
    if not value:
        raise UsageError(f"{name} is empty: name a file or a folder")
    try:
        return os.fsdecode(os.fsencode(value))
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} is {value!r}: character {error.start} is a lone surrogate, which no file name "
            f"has: give the name as os.fsdecode returns it, or as bytes"
        ) from None


_listed_max = 1_000
"""Entries of a folder that are compared with a path."""


def find_nearest(word: str, words: Iterable[str]) -> str | None:
    """The word that was probably meant: nearly the same letters, whatever their case and `_`."""
    import difflib  # only errors need it

    bare = {known.replace("_", "").lower(): known for known in words}
    near = difflib.get_close_matches(word.replace("_", "").lower(), bare, n=1, cutoff=0.7)
    return bare[near[0]] if near else None


def suggest(word: str, words: Iterable[str]) -> str:
    """The part of a message that names the word that was probably meant, or ""."""
    near = find_nearest(word, words)
    return f" (did you mean {near!r}?)" if near else ""


def suggest_path(path: str) -> str:
    """The part of a message that names the existing path spelled most like a missing one, or ""."""
    import difflib

    folder, name = os.path.split(path)
    while folder and not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder, name = os.path.split(folder)
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in itertools.islice(entries, _listed_max)]
    except OSError:
        return ""
    near = difflib.get_close_matches(name, names, 1, 0.8)
    return f" (did you mean {os.path.join(folder, near[0])!r}?)" if near else ""


def check_choice(name: str, value: object, choices: Iterable[str], more: str = "") -> None:
    """Raise UsageError, which names the nearest choice and all, unless a value is one of them.

    more:  the end of the message, such as what else may be given.
    """
    known = list(choices)
    if value not in known:
        near = suggest(str(value), known)
        raise UsageError(f"{name} is {value!r:.100}{near}: use one of {', '.join(known)}{more}")
