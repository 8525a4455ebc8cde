"""YAML with the line of every value, and without the surprises of YAML 1.1.

Plain scalars are what OmegaConf makes of them, which reads DLIO's files: `1e-3` is a number and a
date is text. What people do not expect is refused: octal, hexadecimal, binary and sexagesimal
numbers, keys given twice, and anchors, merges and tags, of which workloads have no need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from penstock.errors import UsageError

from .problems import Problem


class Given(NamedTuple):
    """A value, where it was given, and how it was written.

    value:  None, bool, int, float or str; list[Given]; dict[str, Given].
    where:  a file and its line, or CLI.
    text:   of a plain scalar; "" of others.
    """

    value: Any
    where: str
    text: str = ""

    @property
    def plain(self) -> Any:
        """The value alone, all the way down."""
        if isinstance(self.value, dict):
            return {key: item.plain for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain for item in self.value]
        return self.value


def make_given(value: Any, where: str) -> Given:
    """A value of a program's as if it were given in a file; tuples are lists."""
    if isinstance(value, Mapping):
        return Given({str(key): make_given(item, where) for key, item in value.items()}, where)
    if isinstance(value, list | tuple):
        return Given([make_given(item, where) for item in value], where)
    return Given(value, where, "" if isinstance(value, str) else str(value).lower())


def read(text: str, name: str) -> tuple[Given, list[Problem]]:
    """The mapping that a YAML text is, and what is wrong with it; `name` is the file's in messages.

    What is wrong has its value all the same, of keys given twice the last. Raises UsageError if the
    text is no YAML, or no mapping.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise UsageError(
            "workloads need yaml: install it with pip install 'penstock[bench]'"
        ) from None
    reader = _Reader(yaml, text, name)
    try:
        root = reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = name if mark is None else f"{name}:{mark.line + 1}"
        raise UsageError(f"{where}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(root.value, dict):
        raise UsageError(
            f"{root.where}: a workload is a mapping: begin with a section, such as dataset:"
        )
    return root, reader.problems


class _Reader:
    """Events as values, and what is wrong with them.

    libyaml's own way from events to nodes ends the process where lists lie too deep in each other.
    """

    def __init__(self, yaml: Any, text: str, name: str) -> None:
        self._yaml = yaml
        self._name = name
        self._events = yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        self.problems: list[Problem] = []

    def document(self) -> Given:
        """All of it; an empty text is an empty mapping."""
        next(self._events)  # the stream begins
        if isinstance(next(self._events), self._yaml.StreamEndEvent):
            return Given({}, self._name)
        root = self._given(next(self._events), ())
        next(self._events)  # the document ends
        after = next(self._events)
        if not isinstance(after, self._yaml.StreamEndEvent):
            raise UsageError(f"{self._where(after)}: a second document: leave one")
        empty = root.value is None and not self.problems
        return Given({}, self._name) if empty else root

    def _given(self, event: Any, path: tuple[str, ...], depth: int = 0) -> Given:
        where = self._where(event)
        if depth > _DEPTH_MAX:
            raise UsageError(f"{where}: lists and mappings lie more than {_DEPTH_MAX} deep")
        if isinstance(event, self._yaml.AliasEvent):
            self._error(where, path, f"the alias *{event.anchor} is not read: write the value out")
            return Given(None, where)
        if event.tag is not None:
            self._error(where, path, f"the tag {event.tag} is not read: leave it out")
        if isinstance(event, self._yaml.ScalarEvent):
            if event.style:  # quoted, or a block of text
                return Given(event.value, where)
            value, surprise = read_scalar(event.value)
            if surprise:
                self._error(where, path, surprise)
            return Given(value, where, event.value)
        if isinstance(event, self._yaml.SequenceStartEvent):
            values = []
            while not isinstance(event := next(self._events), self._yaml.SequenceEndEvent):
                values.append(self._given(event, path, depth + 1))
            return Given(values, where)
        return Given(self._mapping(path, depth), where)

    def _mapping(self, path: tuple[str, ...], depth: int) -> dict[str, Given]:
        mapping: dict[str, Given] = {}
        while not isinstance(event := next(self._events), self._yaml.MappingEndEvent):
            where = self._where(event)
            is_text = isinstance(event, self._yaml.ScalarEvent)
            name = event.value if is_text else self._given(event, path, depth + 1).text
            value = self._given(next(self._events), (*path, name), depth + 1)
            if not is_text:
                self._error(where, path, "a key is text, not a list, a mapping or an alias")
                continue
            if name == "<<" and not event.style:
                self._error(where, path, "merges (<<) are not read: write the keys out")
                continue
            if name in mapping:
                lines = [place.rpartition(":")[2] for place in (mapping[name].where, where)]
                text = f"given twice, on lines {' and '.join(lines)}: leave one"
                self.problems.append(Problem("strict", where, ".".join((*path, name)), text))
            # The line of the key: a value may begin on a later one.
            mapping[name] = value._replace(where=where)
        return mapping

    def _where(self, event: Any) -> str:
        return f"{self._name}:{event.start_mark.line + 1}"

    def _error(self, where: str, path: tuple[str, ...], text: str) -> None:
        self.problems.append(Problem("error", where, ".".join(path) or "(top)", text))


_DEPTH_MAX = 32
"""Lists and mappings in each other; workloads have 4."""

_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_EXPONENT = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9_]*)?[eE][-+]?[0-9]+")


@cache
def _loader() -> Any:
    import yaml

    return yaml.SafeLoader("")


def read_scalar(text: str) -> tuple[bool | int | float | str | None, str]:
    """The value that OmegaConf makes of a plain scalar, and what is surprising about it, or ""."""
    import yaml

    if _EXPONENT.fullmatch(text):
        return float(text.replace("_", "")), ""
    tag = _loader().resolve(yaml.ScalarNode, text, (True, False))
    if tag.rpartition(":")[2] not in {"null", "bool", "int", "float"}:
        return text, ""
    try:
        value = _loader().construct_object(yaml.ScalarNode(tag, text))
    except ValueError:  # such as 0_, or more digits than an integer may have
        return text, ""
    is_plain = not isinstance(value, int) or isinstance(value, bool) or _DECIMAL.fullmatch(text)
    if is_plain and ":" not in text:
        return value, ""
    is_octal = set(text) <= set("+-_01234567")
    meant = text.replace("_", "").replace("0", "", 1) if is_octal and value else value
    return value, f"'{text}' would be read as {value} in YAML; quote it or write {meant}"
