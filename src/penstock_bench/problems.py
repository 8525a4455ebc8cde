"""Problems of a workload, collected so that all of them are told at once. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from penstock.errors import UsageError

Level = Literal["error", "strict", "warning", "compat"]
"""error: always an error. strict: an error, in compat mode a warning. warning: always a warning.
compat: in compat mode a warning, else nothing."""


class Problem(NamedTuple):
    """Something wrong: where (a file and its line, or CLI), which key, and what."""

    level: Level
    where: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.text}"


def settle(problems: Iterable[Problem], *, compat: bool, warn: Callable[[str], object]) -> None:
    """Tell the warnings, and raise one UsageError that tells all errors; by lines of the file."""
    errors = []
    for problem in sorted(problems, key=_line_of):
        if problem.level == "error" or (problem.level == "strict" and not compat):
            errors.append(str(problem))
        elif problem.level != "compat" or compat:
            warn(str(problem))
    if errors:
        raise UsageError("\n".join(errors))


def _line_of(problem: Problem) -> float:
    line = re.search(r":(\d+)$", problem.where)
    return int(line[1]) if line else float("inf")


def tell_value(value: Any, text: str = "") -> str:
    """A value as messages name it. text: how the file wrote it."""
    match value:
        case None:
            return "nothing"
        case bool():
            word = str(value).lower()
            return word if text.lower() in ("", word) else f"YAML reads {text!r} as {word}"
        case str():
            return f"string {value!r}"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
    return repr(value)
