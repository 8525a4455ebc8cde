"""Overrides as DLIO's command line takes them: Hydra's grammar, without Hydra. Pure.

    ++workload.a.b=v    adds a key, or replaces its value
    +workload.a.b=v     adds a key that is not there
    workload.a.b=v      replaces a value that is there
    ~workload.a.b       takes a key away, with =v only if it has this value
    workload=name       chooses the workload
    hydra.run.dir=OUT   chooses the folder of results

Values are those of Hydra 1.3: `true`, `1_000`, `1e-3`, `null`, `[a,b]`, `{a:1}`, quoted and bare
text, with backslashes before what has a meaning. `on`, `off` and `010` are text here, which they
are not in YAML. Sweeps, functions and interpolations are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from penstock.errors import UsageError

from . import schema
from .document import Given, make_given
from .problems import Level, Problem
from .workload import SECRETS

WHERE = "CLI"
"""The origin of values of overrides, in messages."""

_ACTIONS = {"": "change", "+": "add", "++": "put", "~": "delete"}


class Override(NamedTuple):
    """One override. key: the whole name. value: None and `bare` if there is no `=`."""

    action: Literal["change", "add", "put", "delete"]
    key: str
    value: Any
    text: str
    bare: bool = False


class Overrides(NamedTuple):
    """The overrides of a command line: choices, and changes below `workload`.

    name:       of the workload, by workload=name.
    folder:     of results, by hydra.run.dir.
    subfolder:  of the resolved configuration in it, by hydra.output_subdir; "" is none.
    """

    name: str | None
    folder: str | None
    subfolder: str
    edits: tuple[Override, ...]
    problems: tuple[Problem, ...]


def parse(text: str) -> Override:
    """Parse one override. Raises UsageError, which names the column of the mistake."""
    match = _KEY.match(text)
    if match is None:
        raise UsageError(
            f"{WHERE}: {text!r} is no override: write such as ++workload.reader.batch_size=4"
        )
    prefix, key, equals = match["prefix"], match["key"], match["equals"]
    if match["package"] is not None:
        raise UsageError(f"{WHERE}: {key}: packages (@) are not read: leave it out")
    if not equals:
        if match.end() != len(text):
            raise UsageError(
                f"{WHERE}: {text!r}: expected '=' at column {match.end() + 1}, behind {key}"
            )
        if prefix != "~":
            raise UsageError(f"{WHERE}: {text!r} has no value: write {text}=value")
        return Override("delete", key, None, text, bare=True)
    try:
        value = _ValueParser(text, match.end()).parse()
    except _Flaw as flaw:
        raise UsageError(f"{WHERE}: {key}: {flaw}") from None
    return Override(_ACTIONS[prefix], key, value, text)  # type: ignore[arg-type]


def read(texts: Iterable[str]) -> Overrides:
    """Parse all overrides of a command line. Raises UsageError for a text that is no override."""
    chosen: dict[str, Override] = {}
    problems: list[Problem] = []
    edits: dict[str, Override] = {}
    for override in map(parse, texts):
        key = override.key
        if key in chosen or key in edits:
            problems.append(Problem("strict", WHERE, key, "given twice: leave one"))
        if key.startswith("workload."):
            edits.pop(key, None)
            edits[key] = override
        elif key == "workload" or key == "hydra" or key.startswith(("hydra.", "hydra/")):
            chosen[key] = override
            problems += _chosen_problems(override)
        else:
            problems.append(_refuse_foreign(override))
    texts_of = {
        key: str(choice.value) for key, choice in chosen.items() if choice.value is not None
    }
    return Overrides(
        texts_of.get("workload"),
        texts_of.get("hydra.run.dir"),
        texts_of.get(
            "hydra.output_subdir", ".hydra" if "hydra.output_subdir" not in chosen else ""
        ),
        tuple(edits.values()),
        tuple(problems),
    )


def apply(overrides: Sequence[Override], root: Given, where: str) -> tuple[Given, list[Problem]]:
    """Apply overrides to a workload's mapping, in their order; `where` names it in messages.

    Mappings are merged, lists replaced.
    """
    problems: list[Problem] = []
    for override in overrides:
        key = override.key.removeprefix("workload.")
        text = _apply(override, root.value, key.split("."), where)
        if text:
            problems.append(Problem("error", WHERE, key, text))
    return root, problems


def hide_secrets(texts: Iterable[str]) -> list[str]:
    """Overrides as records may hold them: without the values of access keys."""
    return [
        text.partition("=")[0] + "=***" if any(name in text for name in SECRETS) else text
        for text in texts
    ]


def _chosen_problems(override: Override) -> list[Problem]:
    """Problems of an override of `workload` or `hydra`."""
    key, value = override.key, override.value
    level: Level = "error"
    if override.action == "delete":
        text = "is not there to be taken away"
    elif re.search(r"sweep|launcher", key) or (key, value) == ("hydra.mode", "MULTIRUN"):
        text = "sweeps are not run here: run penstock once for each value"
    elif key in {"workload", "hydra.run.dir"} and (not isinstance(value, str) or not value):
        text = f"expected a name, got {value!r}"
    elif key == "workload" and override.action != "change":
        text = f"to choose the workload, write workload={value}"
    elif key in {"workload", "hydra.run.dir", "hydra.output_subdir"}:
        return []
    else:
        level, text = "warning", "has no effect: penstock does not use Hydra"
    return [Problem(level, WHERE, key, text)]


def _refuse_foreign(override: Override) -> Problem:
    text = f"{override.key!r} is no key of a workload: they begin with workload."
    if schema.is_known(override.key):
        text += f"; did you mean '++workload.{override.key}'?"
    return Problem("strict", WHERE, override.key, text)


def _apply(override: Override, root: dict[str, Given], path: list[str], where: str) -> str:
    """Apply an override to the mapping; return its problem, or ""."""
    *sections, last = path
    inner: dict[str, Given] = root
    for number, name in enumerate(sections, 1):
        if name not in inner or inner[name].value is None:
            if override.action in {"change", "delete"}:
                return _explain_absent(override, where)
            inner[name] = Given({}, WHERE)
        section = inner[name].value
        if not isinstance(section, dict):
            return f"{'.'.join(path[:number])} is no section: it has the value {section!r}"
        inner = section
    there = last in inner and inner[last].value is not None
    if override.action == "delete":
        if not there:
            return _explain_absent(override, where)
        if not override.bare and override.value != inner[last].plain:
            return f"is {inner[last].plain!r}, not {override.value!r}: nothing is taken away"
        del inner[last]
        return ""
    if override.action == "change" and last not in inner:
        return _explain_absent(override, where)
    is_container = isinstance(override.value, dict | list)
    if override.action == "add" and there and not is_container:
        return f"is {inner[last].plain!r} already: write +{override.text} to replace it"
    _merge(inner, last, make_given(override.value, WHERE))
    return ""


def _merge(inner: dict[str, Given], last: str, new: Given) -> None:
    old = inner[last].value if last in inner else None
    if isinstance(old, dict) and isinstance(new.value, dict):
        for name, item in new.value.items():
            _merge(old, name, item)
    else:
        inner[last] = new


def _explain_absent(override: Override, where: str) -> str:
    name = override.key.removeprefix("workload.")
    if name not in schema.list_keys() and (near := schema.suggest_key(name)):
        return f"is not in {where}; did you mean '{near}'?"
    if override.action == "delete":
        return f"is not in {where}: there is nothing to take away"
    return f"is not in {where}: write ++{override.text} to add it"


_NAME = r"[A-Za-z_$][A-Za-z0-9_$-]*"
_PART = rf"(?:{_NAME}|0|[1-9][0-9_]*)"
_KEY = re.compile(
    rf"(?P<prefix>~|\+\+|\+|)"
    rf"(?P<key>{_NAME}(?:/{_NAME})+|{_PART}(?:\.{_PART})*)"
    rf"(?P<package>@[^=]*)?"
    rf"(?P<equals>=[ \t]*)?"
)

_UNSIGNED = r"(?:0|[1-9](?:_?[0-9])*)"
_POINT = rf"(?:{_UNSIGNED}?\.[0-9](?:_?[0-9])*|{_UNSIGNED}\.)"
_EXPONENT = rf"(?:{_POINT}|{_UNSIGNED})[eE][+-]?[0-9](?:_?[0-9])*"
_SWEEPS = {"choice", "range", "interval", "glob", "shuffle", "sort", "tag"}
_DEPTH_MAX = 32


@cache
def _pattern(name: str) -> re.Pattern[str]:
    # Compiled if there is an override: that takes 5 ms.
    bare = r"[A-Za-z0-9_/\-+.%*@?| \t]|\$(?!\{)|\\[\\()\[\]{}:=, \t]|\\"
    patterns = {
        "integer": rf"[+-]?{_UNSIGNED}",
        "float": rf"[+-]?(?:{_EXPONENT}|{_POINT}|(?i:inf|nan))",
        "quoted": r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'",
        "bare": rf"(?:{bare}|:)+",
        "key": rf"(?:{bare})+",
        "function": r"[ \t]*([A-Za-z_][A-Za-z0-9_-]*)[ \t]*$",
    }
    return re.compile(patterns[name], re.DOTALL)


class _Flaw(Exception):
    """A fault of a value."""


class _ValueParser:
    """Parses the value behind the `=` of an override, by recursive descent."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._at = at

    def parse(self) -> Any:
        """Parse all that is left as one value; nothing is ""."""
        if self._at == len(self._text):
            return ""
        value = self._element(0)
        self._skip_blanks()
        if self._peek() == ",":
            raise _Flaw(
                "several values are a sweep, which is not run here: write a list as [a,b], a comma "
                "as \\, and run penstock once for each value"
            )
        if self._peek():
            raise self._unexpected()
        return value

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_blanks(self) -> None:
        while self._peek() in (" ", "\t"):
            self._at += 1

    def _unexpected(self) -> _Flaw:
        rest, column = self._text[self._at :], self._at + 1
        if not rest:
            return _Flaw("the value ends too early")
        if rest[0] == "=":
            return _Flaw(f"a second '=' at column {column}: put the value into quotes")
        if match := re.match(r"\$\{[^}]+\}", rest):
            return _Flaw(f"interpolations ({match[0]}) are not read: write the value out")
        return _Flaw(
            f"{rest[0]!r} at column {column} is not expected: put the value into quotes, or a "
            "backslash before it"
        )

    def _take(self, letter: str) -> None:
        self._skip_blanks()
        if self._peek() != letter:
            raise self._unexpected()
        self._at += 1

    def _element(self, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise _Flaw(f"lists and mappings lie more than {_DEPTH_MAX} deep")
        start = self._at
        self._skip_blanks()
        if self._peek() == "[":
            return self._several("]", lambda: self._element(depth + 1))
        if self._peek() == "{":
            return dict(self._several("}", lambda: self._pair(depth + 1)))
        if quoted := _pattern("quoted").match(self._text, self._at):
            self._at = quoted.end()
            return _unquote(quoted[0])
        self._at = start
        return self._bare("bare")

    def _several(self, closing: str, read_one: Callable[[], Any]) -> list[Any]:
        self._at += 1
        values: list[Any] = []
        self._skip_blanks()
        while self._peek() != closing:
            if values:
                self._take(",")
            values.append(read_one())
            self._skip_blanks()
        self._at += 1
        return values

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = self._bare("key")
        self._take(":")
        return str(key), self._element(depth)

    def _bare(self, kind: str) -> Any:
        match = _pattern(kind).match(self._text, self._at)
        text = match[0] if match else ""
        self._at += len(text)
        if self._peek() == "(" and (function := _pattern("function").match(text)):
            name = function[1]
            if name in _SWEEPS:
                raise _Flaw(f"{name}() is a sweep, which is not run here: write one value")
            raise _Flaw(f"the function {name}() is not read: write the value out")
        if not text.strip(" \t") or self._text.startswith("${", self._at):
            raise self._unexpected()
        return _read_bare(text)


def _read_bare(text: str) -> Any:
    """Read a number, a boolean or null, else text without the backslashes before what has a
    meaning and the blanks around it."""
    plain = text.strip(" \t")
    if _pattern("integer").fullmatch(plain):
        return int(plain.replace("_", ""))
    if _pattern("float").fullmatch(plain):
        return float(plain.replace("_", ""))
    words = {"true": True, "false": False, "null": None}
    if plain.lower() in words:
        return words[plain.lower()]
    body = re.match(r"[ \t]*((?:\\.|.)*?(?::[ \t]+)?)[ \t]*$", text, re.DOTALL)
    return re.sub(r"\\([\\()\[\]{}:=, \t])", r"\1", body[1] if body else plain)


def _unquote(text: str) -> str:
    """The text between quotes; of backslashes before a quote, and of the last, half are left."""
    return re.sub(rf"\\+(?:{text[0]}|\Z)", lambda match: match[0][1::2], text[1:-1])
