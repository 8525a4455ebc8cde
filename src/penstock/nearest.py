"""Names and paths that were probably meant, for messages about those that do not exist.

Nothing here is imported or looked for before there is such a message.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

from .errors import UsageError

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
