"""Globbing: shell patterns and braces in paths, of files and of objects. Pure."""

from __future__ import annotations

import re

from .. import limits
from ..errors import UsageError

_FILES_MAX = 256 * limits.open_files_max
"""Paths that one pattern with braces may expand to."""
_MAGIC = re.compile(r"[*?[]")
_BRACE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def expand_braces(pattern: str) -> list[str]:
    """Expand a pattern with braces as a shell does: `{008..010}`, `{train,test}`."""
    patterns = [pattern]
    while any(_BRACE.search(candidate) for candidate in patterns):
        patterns = [path for candidate in patterns for path in _expand_first(candidate)]
        if len(patterns) > _FILES_MAX:
            raise UsageError(f"the pattern {pattern!r} stands for over {len(patterns):,} files")
    return patterns


def _expand_first(pattern: str) -> list[str]:
    """Expand the first innermost pair of braces."""
    brace = _BRACE.search(pattern)
    if brace is None:
        return [pattern]
    inside = brace.group(1)
    numbers = _RANGE.fullmatch(inside)
    if numbers is None and "," not in inside:
        raise UsageError(f"{{{inside}}} of {pattern!r}: use {{000..012}} or {{a,b}}")
    if numbers is None:
        texts = inside.split(",")
    else:
        first, last = numbers.groups()
        width = max(len(first), len(last)) if first[0] == "0" or last[0] == "0" else 0
        a, b = int(first), int(last)
        if abs(b - a) >= _FILES_MAX:
            raise UsageError(f"{{{inside}}} of {pattern!r} is of {abs(b - a) + 1:,} files")
        texts = [f"{n:0{width}}" for n in range(a, b + (1 if b >= a else -1), 1 if b >= a else -1)]
    return [pattern[: brace.start()] + text + pattern[brace.end() :] for text in texts]


def has_magic(path: str) -> bool:
    """True if a path is a shell pattern; braces do not count."""
    return _MAGIC.search(path) is not None


def cut_at_special(key: str) -> str:
    """Cut a key before its first special character."""
    special = re.search(r"[*?\[{]", key)
    return key[: special.start()] if special else key


def find_fixed_folder(pattern: str) -> str:
    """Return the folder that holds everything a pattern can match."""
    folders = pattern.split("/")[:-1]
    fixed = next((n for n, folder in enumerate(folders) if has_magic(folder)), len(folders))
    return "/".join(folders[:fixed])


def translate_pattern(pattern: str) -> str:
    """Translate a shell pattern into a regular expression: `**` is any folders, nothing else
    crosses one."""
    form = ""
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            form += "(?:[^/]+/)*"
            at += 3
        elif pattern[at] == "*":
            form += ".*" if pattern[at:] == "**" else "[^/]*"
            at = len(pattern) if pattern[at:] == "**" else at + 1
        elif pattern[at] == "?":
            form += "[^/]"
            at += 1
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            inside = pattern[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            form += f"[^{inside[1:]}]" if inside[0] == "!" else f"[{inside}]"
            at = end + 1
        else:
            form += re.escape(pattern[at])
            at += 1
    return form
