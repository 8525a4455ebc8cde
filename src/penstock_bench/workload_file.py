"""Workloads from files and overrides, in which nothing that somebody wrote is ignored.

DLIO ignores keys that it does not know, and reads `0.5s` as 0 seconds. Here each key, value and
combination is checked, and all problems are told at once, with file and line. In compat mode a
problem that DLIO does not see is a warning instead.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from penstock.arguments import check_path, suggest, suggest_path
from penstock.errors import UsageError

from . import checks, document, schema
from . import overrides as grammar
from .document import Given
from .problems import Level, Problem, settle
from .workload import SECRETS, DlioWorkload

Warn = Callable[[str], object]
"""Receives each warning, one line."""


def read_workload(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    *,
    compat: bool = False,
    warn: Warn = warnings.warn,
) -> DlioWorkload:
    """Read the workload of a name of `preset_names`, a YAML file, or a mapping such as `as_dict`'s.

    source:     None takes the name of `workload=` among the overrides, else "default".
    overrides:  as Hydra's; see `overrides`. hydra.run.dir sets output.folder.
    compat:     as lenient as DLIO, with warnings.

    Raises UsageError with a line for each problem:
    `<file and line, or CLI>: <key>: <what is wrong, and what to do>`.
    """
    given = grammar.read(overrides)
    if given.name is not None and source is not None:
        also = "a mapping" if isinstance(source, Mapping) else repr(str(source))
        raise UsageError(f"{grammar.WHERE}: workload: {given.name!r} and {also}: name one workload")
    if source is None:
        source = given.name or "default"
    root, where, problems = _root(source)
    root, override_problems = grammar.apply(given.edits, root, where)
    reading = _WorkloadReading(root, where, [*problems, *given.problems, *override_problems])
    workload = reading.read(given.folder)
    settle(reading.problems, compat=compat, warn=warn)
    return workload


def preset_names() -> list[str]:
    """Names of the workloads that come with penstock."""
    names = (path.name for path in _presets().iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def as_dict(workload: DlioWorkload) -> dict[str, Any]:
    """A workload as the sections of a file, every key but access keys, in types of JSON.

    `read_workload` makes the same workload of it, DLIO the same run.
    """
    secret = {"storage": {"storage_options": SECRETS}}
    sections: dict[str, Any] = _adapter().dump_python(workload, mode="json", exclude=secret)
    if not sections["storage"]["storage_options"]:
        del sections["storage"]["storage_options"]
    if workload.checkpoint.ksm is None:
        del sections["checkpoint"]["ksm"]
    return sections


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    # Looking for plugins reads the metadata of all installed packages, as long as all else here.
    switch = "PYDANTIC_DISABLE_PLUGINS"
    before = os.environ.get(switch)
    os.environ[switch] = "1"
    try:
        return TypeAdapter(DlioWorkload)
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before


def _presets() -> Any:
    from importlib import resources  # 8 ms that a file does without

    return resources.files(__package__) / "presets"


def _root(source: str | Path | Mapping[str, Any]) -> tuple[Given, str, list[Problem]]:
    """The mapping of a source, its name in messages, and the problems of its YAML."""
    if isinstance(source, Mapping):
        return document.make_given(source, "workload"), "workload", []
    name, file = _file(source)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        near = suggest_path(str(file)) if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"cannot read workload {name} ({reason}){near}: check the path") from None
    root, problems = document.read(text, name)
    # DLIO's record of its configuration holds all of it below `workload`.
    if isinstance(root.value.get("workload", Given(None, "")).value, dict):
        root = root.value["workload"]
        problems = [
            problem._replace(key=problem.key.removeprefix("workload.")) for problem in problems
        ]
    return root, name, problems


def _file(source: str | Path) -> tuple[str, Any]:
    path = Path(check_path("source", source))
    if path.suffix in {".yaml", ".yml"}:
        return str(path), path
    name = str(source)
    known = preset_names()
    if name in known:
        return f"{name}.yaml", _presets() / f"{name}.yaml"
    raise UsageError(
        f"there is no workload {name!r}{suggest(name, known)}: use the path of a .yaml file, or "
        f"one of {', '.join(known)}"
    )


_PAUSE = "checkpoint.time_between_checkpoints"


class _WorkloadReading:
    """Makes a workload of a mapping, and collects the problems."""

    def __init__(self, root: Given, where: str, problems: list[Problem]) -> None:
        self._root, self._where = root, where
        self._bad: set[str] = set()
        self.problems = problems

    def read(self, folder: str | None) -> DlioWorkload:
        """Read the workload; what is bad has its default. folder: of results, by hydra.run.dir."""
        from pydantic import ValidationError

        self._rename()
        self._drop_unused()
        for key in schema.DEVIATIONS:
            self._join_deviation(key)
        self._set_folder(folder)
        while True:  # again without what was bad
            try:
                workload: DlioWorkload = _adapter().validate_python(self._root.plain)
                break
            except ValidationError as error:
                for flaw in error.errors(include_url=False):
                    self._refuse(flaw)
        self._check(workload)
        return workload

    def _section(self, name: str) -> dict[str, Given]:
        value = self._root.value.get(name, Given({}, self._where)).value
        return value if isinstance(value, dict) else {}

    def _rename(self) -> None:
        sections = self._root.value
        for alias, name in schema.ALIASES.items():
            if alias in sections:
                if name in sections:
                    text = f"give one of {name}, {alias}"
                    self._problem("strict", alias, sections[alias], text)
                sections[name] = sections.pop(alias)
        dataset = self._section("dataset")
        # In files of version 3 keys still go by their old names.
        level: Level = "warning" if "parquet" in dataset else "strict"
        for name in dataset.keys() & schema.OLD_NAMES.keys():
            text = f"old name; use {schema.OLD_NAMES[name]}"
            self._problem(level, f"dataset.{name}", dataset[name], text)
        renamed = {schema.OLD_NAMES.get(name, name): value for name, value in dataset.items()}
        dataset.clear()
        dataset.update(renamed)

    def _drop_unused(self) -> None:
        for key, instead in schema.UNUSED.items():
            section, _, name = key.partition(".")
            if (given := self._section(section).pop(name, None)) is not None:
                use = f"; use {instead}" if instead else ""
                self._problem("warning", key, given, f"has no effect in DLIO{use}")

    def _join_deviation(self, key: str) -> None:
        """Join a deviation that was given by a key of its own with its mean."""
        section_name, _, name = key.partition(".")
        section = self._section(section_name)
        deviation = section.pop(name, None)
        if deviation is None:
            return
        mean_name = name.removesuffix("_stdev")
        time = section.get(mean_name)
        parameters = time.value if time is not None else {}
        if not isinstance(parameters, dict):
            parameters = {"mean": time}
        kind = parameters.get("type", Given("normal", "")).value
        if kind != "normal" or "mean" not in parameters:
            text = f"stdev needs a mean{f', and {kind} has none' if kind != 'normal' else ''}"
            self._problem("error", key, deviation, f"{text}: give {section_name}.{mean_name}")
        elif "stdev" in parameters:
            text = f"stdev is given twice: {section_name}.{mean_name} has one"
            self._problem("error", key, deviation, text)
        elif deviation.value != 0 or isinstance(deviation.value, bool):
            joined = {**parameters, "stdev": deviation}
            section[mean_name] = Given(joined, deviation.where)

    def _set_folder(self, folder: str | None) -> None:
        if folder is None:
            return
        output = self._root.value.setdefault("output", Given(None, grammar.WHERE))
        if output.value is None:
            output = self._root.value["output"] = Given({}, output.where)
        if not isinstance(output.value, dict):
            return
        if "folder" in output.value:
            text = f"has no effect: output.folder is {output.value['folder'].plain!r}"
            self.problems.append(Problem("warning", grammar.WHERE, "hydra.run.dir", text))
        output.value.setdefault("folder", Given(folder, grammar.WHERE))

    def _refuse(self, flaw: Any) -> None:
        """Collect the problem that pydantic found, and take the bad key away."""
        path = list(takewhile(lambda part: isinstance(part, str), flaw["loc"]))
        key, name, section, given = ".".join(path), "", {}, self._root
        for part in path:
            section, given = given.value, given.value[part]
        entry = given
        for part in flaw["loc"]:
            name += "[]" if isinstance(part, int) else f".{part}" if name else part
        for part in flaw["loc"][len(path) :]:
            if isinstance(entry.value, list | dict) and flaw["type"] != "missing":
                entry = entry.value[part]
        del section[path[-1]]
        if given.value is None and flaw["type"] in {"dataclass_type", "dict_type"}:
            return  # the keys of a section may all be comments
        self._bad.add(key)
        level: Level = "error"
        if flaw["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
            level, text = schema.explain_unknown(name, is_mapping=isinstance(given.value, dict))
        elif flaw["type"] == "value_error":
            text = str(flaw["ctx"]["error"])
        else:
            text = schema.explain_value(name, entry)
        self._problem(level, key, entry, text)

    def _check(self, workload: DlioWorkload) -> None:
        pause = self._section("checkpoint").get("time_between_checkpoints")
        if pause is not None and pause.value < 0:
            text = f"DLIO would sleep {-pause.value:g} s; 0 here"
            self._problem("compat", _PAUSE, pause, text)
        elif pause is None and workload.workflow.checkpoint and not workload.workflow.train:
            text = "is not given: DLIO would sleep 1 s; 0 here"
            self._problem("compat", _PAUSE, self._root._replace(where=self._where), text)
        for level, key, text in checks.check_values(workload):
            # A bad key has its default now, of which there is nothing to say.
            if not any(bad == key or bad in text for bad in self._bad):
                given = self._root
                for part in key.split("."):
                    inner = given.value.get(part) if isinstance(given.value, dict) else None
                    given = inner or Given(None, self._where)
                self._problem(level, key, given, text)

    def _problem(self, level: Level, key: str, given: Given, text: str) -> None:
        self.problems.append(Problem(level, given.where, key, text))
