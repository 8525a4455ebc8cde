"""Checks of numbers and paths that callers give, with one wording. Pure."""

from __future__ import annotations

import operator
import os
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
