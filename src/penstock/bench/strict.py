"""Workloads from files and overrides, where nothing is ignored that somebody wrote.

DLIO ignores keys that it does not know, and makes 0 seconds of `0.5s`. Here each key, value and
combination is checked, and all that is wrong is told at once, with file and line. In compat mode
what DLIO lets pass is a warning instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError
from . import checks, document, overrides, schema, values
from .distribution import Distribution
from .document import Given
from .problems import Level, Problem, settle
from .workload import Workload

Warn = Callable[[str], object]
"""What is told of each warning, one line."""


def read_workload(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    *,
    folder: Path | None = None,
    compat: bool = False,
    warn: Warn = warnings.warn,
) -> Workload:
    """The workload of a name (see `presets`), of a YAML file, or of a mapping as `as_dict` makes.

    source:     None is what `workload=` among the overrides says, else "default".
    overrides:  as Hydra's; see `overrides`. hydra.run.dir sets output.folder.
    folder:     where names are looked for first, as FOLDER/workload/NAME.yaml.
    compat:     as lenient as DLIO, with warnings.

    Raises UsageError with a line for everything that is wrong:
    `<file and line, or CLI>: <key>: <what, and what to do>`.
    """
    return _read(source, overrides, folder, compat, warn)


def preset_names() -> list[str]:
    """The workloads that come with penstock, by name."""
    names = (path.name for path in _presets().iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def presets() -> dict[str, str]:
    """The workloads that come with penstock: a line about each, by name."""
    found = {}
    for name in preset_names():
        with (_presets() / f"{name}.yaml").open(encoding="utf-8") as file:
            found[name] = file.readline().lstrip("# ").rstrip()
    return found


def as_dict(workload: Workload) -> dict[str, Any]:
    """A workload as the sections of a file, every key but access keys, in types of JSON.

    `read_workload` makes the same workload of it, DLIO the same run.
    """
    found: dict[str, Any] = {}
    for key in schema.FIELDS:
        *sections, last = key.name.split(".")
        inner = found
        for name in sections:
            inner = inner.setdefault(name, {})
        inner[last] = values.written(key, schema.value_of(workload, key))
    options = {
        name: value
        for name, value in workload.storage.storage_options.items()
        if name not in schema.SECRETS
    }
    if options:
        found["storage"]["storage_options"] = options
    if workload.checkpoint.ksm is not None:
        found["checkpoint"]["ksm"] = dict(workload.checkpoint.ksm)
    return found


def _presets() -> Any:
    from importlib import resources  # 8 ms that a file does without

    return resources.files(__package__) / "presets"


def _read(
    source: str | Path | Mapping[str, Any] | None,
    texts: Sequence[str],
    folder: Path | None,
    compat: bool,
    warn: Warn,
) -> Workload:
    given = overrides.read(texts)
    if given.name is not None and source is not None:
        also = "a mapping" if isinstance(source, Mapping) else repr(str(source))
        raise UsageError(
            f"{overrides.WHERE}: workload: {given.name!r} and {also}: name one workload"
        )
    if source is None:
        source = given.name or "default"
    root, where, problems = _root(source, folder)
    problems += given.problems
    root, more = overrides.apply(given.edits, root, where)
    problems += more
    reading = _Reading(root, where)
    workload = reading.workload(given.folder)
    settle([*problems, *reading.problems], compat=compat, warn=warn)
    return workload


def _root(
    source: str | Path | Mapping[str, Any], folder: Path | None
) -> tuple[Given, str, list[Problem]]:
    """The mapping of a source, what messages call it, and what is wrong with its YAML."""
    if isinstance(source, Mapping):
        return document.given(source, "workload"), "workload", []
    name, text = _text(source, folder)
    root, problems = document.read(text, name)
    # DLIO's record of its configuration holds all of it below `workload`.
    if isinstance(root.value.get("workload", Given(None, "")).value, dict):
        root = root.value["workload"]
        problems = [each._replace(key=each.key.removeprefix("workload.")) for each in problems]
    return root, name, problems


def _text(source: str | Path, folder: Path | None) -> tuple[str, str]:
    """What messages call a file, and its text."""
    name, file = _file(source, folder)
    try:
        return name, file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read workload {name}: {error}") from None


def _file(source: str | Path, folder: Path | None) -> tuple[str, Any]:
    path = Path(source)
    if path.suffix in {".yaml", ".yml"}:
        return str(path), path
    name = str(source)
    if folder is not None and (path := folder / "workload" / f"{name}.yaml").exists():
        return str(path), path
    known = preset_names()
    if name in known:
        return f"{name}.yaml", _presets() / f"{name}.yaml"
    near = schema.nearest(name, known)
    raise UsageError(
        f"there is no workload {name!r}"
        + (f"; did you mean {near!r}?" if near else "")
        + f": use the path of a .yaml file, or one of {', '.join(known)}"
    )


_DEVIATIONS = [name for name, key in schema.KEYS.items() if key.kind == "deviation"]
_PAUSE = "checkpoint.time_between_checkpoints"


class _Reading:
    """A mapping becomes a workload; what is wrong is collected."""

    def __init__(self, root: Given, where: str) -> None:
        self._where = where
        self._lines: dict[str, str] = {}
        self._found: dict[str, Any] = {}
        self._bad: set[str] = set()
        self.problems: list[Problem] = []
        self._section(self._renamed(root.value), "")
        for key in _DEVIATIONS:
            self._deviate(key)

    def workload(self, folder: str | None) -> Workload:
        """What was read, where no value was bad; folder: of results, by hydra.run.dir."""
        if folder is not None:
            if "output.folder" in self._found:
                text = f"has no effect: output.folder is {self._found['output.folder']!r}"
                self.problems.append(Problem("warning", overrides.WHERE, "hydra.run.dir", text))
            self._found.setdefault("output.folder", folder)
        tree: dict[str, Any] = {}
        for name, value in self._found.items():
            *sections, last = name.split(".")
            inner = tree
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[last] = value
        workload: Workload = _filled(Workload(), tree)
        self._check(workload)
        return workload

    def _renamed(self, sections: dict[str, Given]) -> dict[str, Given]:
        """Sections by their first names."""
        found = dict(sections)
        for alias, name in schema.ALIASES.items():
            if alias in found:
                if name in found:
                    self._problem("strict", alias, found[alias], f"give one of {name}, {alias}")
                found[name] = found.pop(alias)
        return found

    def _section(self, given: dict[str, Given], prefix: str) -> None:
        for last, each in given.items():
            name = prefix + last
            if name in schema.KEYS:
                self._key(schema.KEYS[name], each)
            elif name in schema.SECTIONS:
                self._subsection(name, each)
            elif name in schema.RENAMED:
                # In files of version 3 it still goes by this name.
                level: Level = "warning" if "parquet" in given else "strict"
                now = schema.RENAMED[name]
                self._problem(level, name, each, f"old name; use {now.rpartition('.')[2]}")
                self._key(schema.KEYS[now], each)
            else:
                self._unknown(name, each)

    def _subsection(self, name: str, each: Given) -> None:
        if each.value is None:  # its keys may all be comments
            return
        if not isinstance(each.value, dict):
            text = f"expected keys below it, got {each.plain!r}"
            self._problem("error", name, each, text)
            return
        if name in schema.MAPPINGS:
            self._found[name] = {}
        self._section(each.value, f"{name}.")

    def _unknown(self, name: str, each: Given) -> None:
        section, _, last = name.rpartition(".")
        owners = schema.sections_of(last)
        if section == "dataset" and "dataset.hdf5" in owners:
            self._problem("error", name, each, "put it under dataset.hdf5")
        elif owners:
            text = " or ".join(repr(owner) for owner in owners)
            self._problem("error", name, each, f"{last!r} belongs to {text}")
        else:
            near = schema.meant(name)
            noun = "section" if isinstance(each.value, dict) else "key"
            text = f"unknown {noun} {name!r}" + (f"; did you mean {near!r}?" if near else "")
            self._problem("strict", name, each, text)

    def _key(self, key: schema.Key, each: Given) -> None:
        if key.dead is not None:
            use = f"; use {key.dead}" if key.dead else ""
            self._problem("warning", key.name, each, f"has no effect in DLIO{use}")
            return
        self._lines[key.name] = each.where
        try:
            self._found[key.field or key.name] = values.read(key, each)
            if key.name == _PAUSE and each.value < 0:
                text = f"DLIO would sleep {-each.value:g} s; 0 here"
                self._problem("compat", key.name, each, text)
        except values.Unfit as error:
            self._bad.add(key.name)
            self._problem("error", key.name, each, str(error))

    def _deviate(self, key: str) -> None:
        """Joins a deviation that was given by a key of its own with its mean."""
        name = key.removesuffix("_stdev")
        deviation = self._found.pop(key, None)
        if deviation is None or name in self._bad:
            return
        time = self._found.get(name)
        if time is None or time.kind not in {"constant", "normal"}:
            text = "stdev needs a mean" + ("" if time is None else f", and {time.kind} has none")
            self.problems.append(Problem("error", self._lines[key], key, f"{text}: give {name}"))
        elif time.kind == "normal":
            text = f"stdev is given twice: {name} has one"
            self.problems.append(Problem("error", self._lines[key], key, text))
        elif deviation:
            self._found[name] = Distribution("normal", (time.mean, deviation))

    def _check(self, workload: Workload) -> None:
        is_checkpoint_only = workload.workflow.checkpoint and not workload.workflow.train
        if is_checkpoint_only and _PAUSE not in self._lines:
            text = "is not given: DLIO would sleep 1 s; 0 here"
            self.problems.append(Problem("compat", self._where, _PAUSE, text))
        for level, key, text in checks.within(workload):
            # What was bad has its default now, of which there is nothing to say.
            if not any(bad == key or bad in text for bad in self._bad):
                where = self._lines.get(key, self._where)
                self.problems.append(Problem(level, where, key, text))

    def _problem(self, level: Level, name: str, each: Given, text: str) -> None:
        self.problems.append(Problem(level, each.where, name, text))


def _filled(part: Any, tree: Mapping[str, Any]) -> Any:
    """A part of a workload with those values that were given."""
    changes = {}
    for name, value in tree.items():
        old = getattr(part, name)
        is_part = is_dataclass(old) and isinstance(value, Mapping)
        changes[name] = _filled(old, value) if is_part else value
    return replace(part, **changes)
