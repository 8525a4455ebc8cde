"""What is wrong with a workload, collected, so that all of it is told at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from ..errors import UsageError

Level = Literal["error", "strict", "warning", "compat"]
"""error: always one. strict: a warning in compat mode. warning: always one. compat: a warning in
compat mode, else nothing."""


Finding = tuple[Level, str, str]
"""Level, key and text of what is wrong with values, wherever they were given."""


class Problem(NamedTuple):
    """Something wrong: where (a file and its line, or CLI), which key, and what."""

    level: Level
    where: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.text}"


def settle(problems: Iterable[Problem], *, compat: bool, warn: Callable[[str], object]) -> None:
    """Warns of what is to be warned of; raises one UsageError that tells all the rest."""
    fatal = []
    for problem in problems:
        if problem.level == "error" or (problem.level == "strict" and not compat):
            fatal.append(str(problem))
        elif problem.level != "compat" or compat:
            warn(str(problem))
    if fatal:
        raise UsageError("\n".join(fatal))


def tell(
    findings: Iterable[Finding], where: str, *, compat: bool, warn: Callable[[str], object]
) -> None:
    """Settles findings; `where` is what messages call the workload."""
    problems = (Problem(level, where, key, text) for level, key, text in findings)
    settle(problems, compat=compat, warn=warn)
