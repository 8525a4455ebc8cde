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
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from ..errors import UsageError
from . import schema
from .document import Given, given
from .problems import Problem

WHERE = "CLI"
"""Where values of overrides come from, in messages."""

_ACTIONS = {"": "change", "+": "add", "++": "put", "~": "delete"}


class Override(NamedTuple):
    """One override. key: all of it. value: None and `bare` if there is no `=`."""

    action: Literal["change", "add", "put", "delete"]
    key: str
    value: Any
    text: str
    bare: bool = False


class Overrides(NamedTuple):
    """Those of a command line: what they choose, and what they change below `workload`.

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
    """One override. Raises UsageError, which says where it stops being one."""
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
        value = _Value(text, match.end()).all()
    except _Flaw as flaw:
        raise UsageError(f"{WHERE}: {key}: {flaw}") from None
    return Override(_ACTIONS[prefix], key, value, text)  # type: ignore[arg-type]


def read(texts: Iterable[str]) -> Overrides:
    """All overrides of a command line, sorted out. Raises UsageError for what is no override."""
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
            problems.append(_foreign(override))
    texts_of = {key: str(each.value) for key, each in chosen.items() if each.value is not None}
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
    """A workload's mapping with overrides, in their order; `where` is what messages call it.

    Mappings are merged, lists replaced.
    """
    problems: list[Problem] = []
    for override in overrides:
        key = override.key.removeprefix("workload.")
        text = _apply(override, root.value, key.split("."), where)
        if text:
            problems.append(Problem("error", WHERE, key, text))
    return root, problems


def shown(texts: Iterable[str]) -> list[str]:
    """Overrides as they may be written into records: without the values of access keys."""
    return [
        text.partition("=")[0] + "=***" if any(name in text for name in schema.SECRETS) else text
        for text in texts
    ]


def _chosen_problems(override: Override) -> list[Problem]:
    key = override.key

    def problem(level: Literal["error", "warning"], text: str) -> list[Problem]:
        return [Problem(level, WHERE, key, text)]

    if override.action == "delete":
        return problem("error", "is not there to be taken away")
    if re.search(r"sweep|launcher", key) or (key, override.value) == ("hydra.mode", "MULTIRUN"):
        return problem("error", "sweeps are not run here: run penstock once for each value")
    if key in {"workload", "hydra.run.dir"}:
        if not isinstance(override.value, str) or not override.value:
            return problem("error", f"expected a name, got {override.value!r}")
        if key == "workload" and override.action != "change":
            return problem("error", f"to choose the workload, write workload={override.value}")
        return []
    if key == "hydra.output_subdir":
        return []
    return problem("warning", "has no effect: penstock does not use Hydra")


def _foreign(override: Override) -> Problem:
    section = override.key.partition(".")[0]
    known = override.key in schema.KEYS or section in schema.SECTIONS or section in schema.ALIASES
    text = f"{override.key!r} is no key of a workload: they begin with workload."
    if known:
        text += f"; did you mean '++workload.{override.key}'?"
    return Problem("strict", WHERE, override.key, text)


def _apply(override: Override, root: dict[str, Given], path: list[str], where: str) -> str:
    """Changes the mapping; what is wrong with the override, or ""."""
    *sections, last = path
    inner: dict[str, Given] = root
    for number, name in enumerate(sections, 1):
        if name not in inner or inner[name].value is None:
            if override.action in {"change", "delete"}:
                return _absent(override, where)
            inner[name] = Given({}, WHERE)
        found = inner[name].value
        if not isinstance(found, dict):
            return f"{'.'.join(path[:number])} is no section: it has the value {found!r}"
        inner = found
    there = last in inner and inner[last].value is not None
    if override.action == "delete":
        if not there:
            return _absent(override, where)
        if not override.bare and override.value != inner[last].plain:
            return f"is {inner[last].plain!r}, not {override.value!r}: nothing is taken away"
        del inner[last]
        return ""
    if override.action == "change" and last not in inner:
        return _absent(override, where)
    is_container = isinstance(override.value, dict | list)
    if override.action == "add" and there and not is_container:
        return f"is {inner[last].plain!r} already: write +{override.text} to replace it"
    _merge(inner, last, given(override.value, WHERE))
    return ""


def _merge(inner: dict[str, Given], last: str, new: Given) -> None:
    old = inner[last].value if last in inner else None
    if isinstance(old, dict) and isinstance(new.value, dict):
        for name, each in new.value.items():
            _merge(old, name, each)
    else:
        inner[last] = new


def _absent(override: Override, where: str) -> str:
    name = override.key.removeprefix("workload.")
    if name not in schema.KEYS and (found := schema.meant(name)):
        return f"is not in {where}; did you mean '{found}'?"
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
_TOKENS = {
    "(": r"[ \t]*\([ \t]*",
    ",": r"[ \t]*,[ \t]*",
    ")": r"[ \t]*\)",
    "[": r"\[[ \t]*",
    "]": r"[ \t]*\]",
    "{": r"\{[ \t]*",
    "}": r"[ \t]*\}",
    ":": r"[ \t]*:[ \t]*",
    "=": r"[ \t]*=[ \t]*",
    "float": rf"[+-]?(?:{_EXPONENT}|{_POINT}|(?i:inf|nan))",
    "integer": rf"[+-]?{_UNSIGNED}",
    "boolean": r"(?i:true|false)",
    "null": r"(?i:null)",
    "character": r"[/\-\\+.$%*@?|]",
    "word": r"[A-Za-z_][A-Za-z0-9_-]*",
    "escaped": r"(?:\\[\\()\[\]{}:=, \t])+",
    "blank": r"[ \t]+",
    "quoted": r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'",
    "interpolation": r"\$\{[^}]+\}",
}
"""As in Hydra's lexer: the longest wins, of equals the first."""


@cache
def _tokens() -> dict[str, re.Pattern[str]]:
    # Compiled when there is an override: that takes 5 ms.
    return {kind: re.compile(pattern, re.DOTALL) for kind, pattern in _TOKENS.items()}


_OF_TEXT = {"word", "null", "integer", "float", "boolean", "character", ":", "escaped", "blank"}
_SWEEPS = {"choice", "range", "interval", "glob", "shuffle", "sort", "tag"}
_DEPTH = 32


class _Flaw(Exception):
    """What is wrong with a value."""


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Value:
    """The value behind the `=` of an override, by recursive descent."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._tokens = list(self._split(at))
        self._next = 0

    def all(self) -> Any:
        """All that there is as one value; nothing is ""."""
        if not self._tokens:
            return ""
        value = self._element(0)
        if self._next < len(self._tokens):
            rest = self._tokens[self._next]
            if rest.kind == ",":
                raise _Flaw(
                    "several values are a sweep, which is not run here: write a list as "
                    "[a,b], a comma as \\, and run penstock once for each value"
                )
            raise self._unexpected()
        return value

    def _split(self, at: int) -> Iterable[_Token]:
        while at < len(self._text):
            found = [
                _Token(kind, match[0], at)
                for kind, pattern in _tokens().items()
                if (match := pattern.match(self._text, at))
            ]
            if not found:
                raise _Flaw(f"{self._text[at:]!r} at column {at + 1}: put the value into quotes")
            token = max(found, key=lambda each: len(each.text))
            yield token
            at += len(token.text)

    def _peek(self) -> str:
        return self._tokens[self._next].kind if self._next < len(self._tokens) else ""

    def _unexpected(self) -> _Flaw:
        if self._next >= len(self._tokens):
            return _Flaw("the value ends too early")
        token = self._tokens[self._next]
        if token.kind == "=":
            return _Flaw(f"a second '=' at column {token.at + 1}: put the value into quotes")
        if token.kind == "interpolation":
            return _Flaw(f"interpolations ({token.text}) are not read: write the value out")
        return _Flaw(
            f"{token.text.strip()!r} at column {token.at + 1} is not expected: put the "
            "value into quotes, or a backslash before it"
        )

    def _take(self, kind: str) -> None:
        if self._peek() != kind:
            raise self._unexpected()
        self._next += 1

    def _element(self, depth: int) -> Any:
        if depth > _DEPTH:
            raise _Flaw(f"lists and mappings lie more than {_DEPTH} deep")
        if self._peek() == "[":
            return self._several("[", "]", lambda: self._element(depth + 1))
        if self._peek() == "{":
            return dict(self._several("{", "}", lambda: self._pair(depth + 1)))
        if self._peek() == "quoted":
            token = self._tokens[self._next]
            self._next += 1
            return _unquoted(token.text)
        return self._primitive(_OF_TEXT)

    def _several(self, opening: str, closing: str, one: Any) -> list[Any]:
        self._take(opening)
        found: list[Any] = []
        if self._peek() != closing:
            found.append(one())
            while self._peek() == ",":
                self._next += 1
                found.append(one())
        self._take(closing)
        return found

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = self._primitive(_OF_TEXT - {":"})
        self._take(":")
        return str(key), self._element(depth)

    def _primitive(self, kinds: set[str]) -> Any:
        start = self._next
        while self._peek() in kinds:
            self._next += 1
        tokens = self._tokens[start : self._next]
        if len(tokens) == 1 and tokens[0].kind == "word" and self._peek() == "(":
            name = tokens[0].text
            if name in _SWEEPS:
                raise _Flaw(f"{name}() is a sweep, which is not run here: write one value")
            raise _Flaw(f"the function {name}() is not read: write the value out")
        if not tokens or self._peek() == "interpolation":
            raise self._unexpected()
        while tokens and tokens[0].kind == "blank":
            tokens = tokens[1:]
        while tokens and tokens[-1].kind == "blank":
            tokens = tokens[:-1]
        if len(tokens) == 1:
            return _typed(tokens[0])
        return "".join(_unescaped(each) for each in tokens)


def _typed(token: _Token) -> Any:
    match token.kind:
        case "integer":
            return int(token.text.replace("_", ""))
        case "float":
            return float(token.text.replace("_", ""))
        case "boolean":
            return token.text.lower() == "true"
        case "null":
            return None
    return _unescaped(token)


def _unescaped(token: _Token) -> str:
    return token.text[1::2] if token.kind == "escaped" else token.text


def _unquoted(text: str) -> str:
    """What is between quotes; of backslashes before a quote, the last too, half are left."""
    return re.sub(rf"\\+(?:{text[0]}|\Z)", lambda match: match[0][1::2], text[1:-1])
