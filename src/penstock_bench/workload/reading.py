"""Workloads from files and overrides. Everything that a user wrote has an effect, or a message.

OmegaConf reads the YAML and hydra the overrides, as they do for DLIO; pydantic checks keys and
values. DLIO ignores unknown keys, and reads `0.5s` as 0 seconds: both are errors here, with file
and line. In compat mode a problem that DLIO ignores is a warning.
"""

from __future__ import annotations

import re
import reprlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.arguments import check_path, find_nearest, suggest, suggest_path
from penstock.errors import UsageError, missing_library

from . import checks
from . import overrides as grammar
from .overrides import Level, Problem
from .sections import SECRETS, DlioWorkload

Warn = Callable[[str], object]
"""Receives each warning, one line."""

_presets: Any = resources.files("penstock_bench") / "presets"
_DEPTH_MAX = 32  # of lists and mappings; workloads have 4

_OLD_NAMES = {
    "record_length": "record_length_bytes",
    "record_length_stdev": "record_length_bytes_stdev",
    "record_length_resize": "record_length_bytes_resize",
}
"""Keys of `dataset` by their old names."""

_UNUSED = {
    "model.model_size": "model.model_size_bytes",
    "workflow.debug": "",
    "workflow.query": "",
    "dataset.record_element_bytes": "dataset.record_element_type",
    "dataset.enable_chunking": "dataset.hdf5.chunk_dims",
    "dataset.chunk_size": "dataset.hdf5.chunk_dims",
    "reader.file_access": "",
    "checkpoint.type": "",
}
"""Keys without an effect in DLIO, and the key to use instead, or ""."""

_ABSENT = object()

_DEVIATIONS = (
    "reader.preprocess_time_stdev",
    "train.computation_time_stdev",
    "evaluation.eval_time_stdev",
)
"""Deviations of the time that has the same name without `_stdev`."""


def read_workload(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    *,
    compat: bool = False,
    warn: Warn = warnings.warn,
) -> DlioWorkload:
    """Read the workload of a name of `preset_names`, a YAML file, or a mapping such as `as_dict`'s.

    source:     None takes the name of `workload=` among the overrides, else "default".
    overrides:  as hydra's; see `overrides`. hydra.run.dir sets output.folder.
    compat:     as lenient as DLIO, with warnings.

    Raises UsageError with a line for each problem:
    `<file and line, or CLI>: <key>: <what is wrong, and what to do>`.
    """
    given = grammar.parse_overrides(overrides)
    if given.name is not None and source is not None:
        raise UsageError(f"{grammar.WHERE}: workload={given.name} and {source}: name one workload")
    if isinstance(source, Mapping):
        draft = _Draft(source, "workload", {})
    else:
        draft = _Draft(*_read_file(source or given.name or "default"))
    draft.problems += given.problems
    draft.edit(list(given.edits.values()))
    draft.set_folder(given.folder)
    workload = draft.validate()
    _settle(draft.problems, compat=compat, warn=warn)
    _settle(list(draft.check(workload)), compat=compat, warn=warn)
    return workload


def preset_names() -> list[str]:
    """Names of the workloads that come with penstock."""
    names = (path.name for path in _presets.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def describe_preset(name: str) -> str:
    """Return the sentence in which a workload of `preset_names` is described."""
    text: str = (_presets / f"{name}.yaml").read_text(encoding="utf-8")
    return text.partition("\n")[0].removeprefix("# ")


def as_dict(workload: DlioWorkload) -> dict[str, Any]:
    """Write a workload as the sections of a file, every key but access keys, in types of JSON.

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
def list_keys() -> Mapping[str, Mapping[str, Any]]:
    """JSON schemas of all keys, by name. A section's type is "object"; `key[]` is an entry of a
    list."""
    schema = _adapter().json_schema()

    def walk(name: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if "anyOf" in node:  # a value or None
            node = next(kind for kind in node["anyOf"] if kind.get("type") != "null")
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        yield name, node
        for last, inner in node.get("properties", {}).items():
            yield from walk(f"{name}.{last}".lstrip("."), inner)
        if "items" in node:
            yield from walk(f"{name}[]", node["items"])

    return MappingProxyType(dict(walk("", schema)) | {key: {} for key in (*_UNUSED, *_DEVIATIONS)})


def suggest_key(name: str) -> str | None:
    """Find the key that an unknown one is meant to be: in its own section first, then in all."""
    section, _, last = name.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in list_keys() if _section_of(key) == section}
    near = find_nearest(last, siblings)
    return siblings[near] if near else find_nearest(name, list_keys())


def _section_of(key: str) -> str:
    return key.rpartition(".")[0]


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(DlioWorkload)


# -- files -----------------------------------------------------------------------------------------


def _read_file(source: str | Path) -> tuple[dict[str, Any], str, dict[str, str]]:
    """Return the sections of a file, its name in messages, and the line of each key."""
    path = Path(check_path("source", source))
    known = preset_names()
    if path.suffix in {".yaml", ".yml"}:
        name, file = str(path), path
    elif str(source) in known:
        name, file = f"{source}.yaml", _presets / f"{source}.yaml"
    else:
        raise UsageError(
            f"there is no workload {str(source)!r}{suggest(str(source), known)}: use the path of a"
            f" .yaml file, or one of {', '.join(known)}"
        )
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        near = suggest_path(str(file)) if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"cannot read workload {name} ({reason}){near}: check the path") from None
    sections, lines = read_yaml(text, name)
    if isinstance(sections.get("workload"), dict):  # DLIO's record of its configuration
        sections = sections["workload"]
        lines = {key.removeprefix("workload."): line for key, line in lines.items()}
    return sections, name, lines


def read_yaml(text: str, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the mapping of a YAML text, and file and line of each key. UsageError for others."""
    try:
        import yaml
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ModuleNotFoundError:
        raise missing_library("omegaconf", "bench", "a workload") from None
    try:
        lines = dict(_list_lines(yaml, text, name))
        config: Any = OmegaConf.to_container(OmegaConf.create(text))
    except UsageError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f":{mark.line + 1}"
        raise UsageError(f"{name}{line}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise UsageError(f"{name}: not YAML: {str(error).partition(chr(10))[0]}") from None
    return config, lines


_OTHER_NUMBER = re.compile(
    r"[-+]?(0[0-7_]+|0b[01_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*(:[0-5]?[0-9])+.*)"
)


def _list_lines(yaml: Any, text: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield each key, and the file and line at which it is written.

    UsageError for a text that is no mapping, and for YAML that workloads do without: aliases (a
    small file can multiply them without end), tags, deep nesting, and numbers that people read
    differently from YAML 1.1.
    """
    events = yaml.parse(text, yaml.SafeLoader)

    def refuse(event: Any, reason: str) -> UsageError:
        return UsageError(f"{name}:{event.start_mark.line + 1}: {reason}")

    def walk(event: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
        if depth > _DEPTH_MAX:
            raise refuse(event, f"lists and mappings are more than {_DEPTH_MAX} deep")
        if isinstance(event, yaml.AliasEvent):
            raise refuse(event, f"the alias *{event.anchor} is not read: write the value out")
        if event.tag is not None:
            raise refuse(event, f"the tag {event.tag} is not read: leave it out")
        if isinstance(event, yaml.ScalarEvent):
            if not event.style and _OTHER_NUMBER.fullmatch(event.value):
                reason = "is another number in YAML: quote it or write it in decimal"
                raise refuse(event, f"{path}: {event.value!r} {reason}")
        elif isinstance(event, yaml.SequenceStartEvent):
            while not isinstance(event := next(events), yaml.SequenceEndEvent):
                yield from walk(event, path, depth + 1)
        else:
            while not isinstance(event := next(events), yaml.MappingEndEvent):
                if not isinstance(event, yaml.ScalarEvent) or event.value == "<<":
                    raise refuse(event, "a key is text: merges (<<) and mappings are not read")
                key = f"{path}.{event.value}".lstrip(".")
                yield key, f"{name}:{event.start_mark.line + 1}"
                yield from walk(next(events), key, depth + 1)

    next(events)  # the stream starts
    if isinstance(next(events), yaml.DocumentStartEvent):
        root = next(events)
        if not isinstance(root, yaml.MappingStartEvent):
            raise refuse(root, "a workload is a mapping: start with a section, such as dataset:")
        yield from walk(root, "", 0)


# -- values ----------------------------------------------------------------------------------------


class _Draft:
    """Sections of a workload, the place at which each key was written, and their problems."""

    def __init__(self, sections: Mapping[str, Any], name: str, places: dict[str, str]) -> None:
        self.problems: list[Problem] = []
        self._sections = {str(key): value for key, value in sections.items()}
        self._name = name
        self._places = places

    def edit(self, edits: Sequence[Any]) -> None:
        """Apply overrides, and replace old and joined keys by DLIO's present ones."""
        if edits:
            self._override(edits)
        self._rename()
        for key, instead in _UNUSED.items():
            section, _, name = key.partition(".")
            if self._section(section).pop(name, _ABSENT) is not _ABSENT:
                advice = f"; use {instead}" if instead else ""
                self._add("warning", key, f"has no effect in DLIO{advice}")
        for key in _DEVIATIONS:
            self._join_deviation(key)

    def set_folder(self, folder: str | None) -> None:
        """Set the folder of results by hydra.run.dir, unless the file has one."""
        if self._sections.get("output") is None:
            self._sections["output"] = {}
        output = self._section("output")
        if folder is not None and output.setdefault("folder", folder) != folder:
            text = f"has no effect: output.folder is {output['folder']!r}"
            self.problems.append(Problem("warning", grammar.WHERE, "hydra.run.dir", text))

    def validate(self) -> DlioWorkload:
        """Make the workload; a key with a problem has its default."""
        from pydantic import ValidationError

        while True:  # again without the wrong keys
            try:
                workload: DlioWorkload = _adapter().validate_python(self._sections)
                return workload
            except ValidationError as error:
                for flaw in error.errors(include_url=False):
                    self._refuse(flaw)

    def check(self, workload: DlioWorkload) -> Iterator[Problem]:
        """Yield the problems of values that do not fit together."""
        pause = self._section("checkpoint").get("time_between_checkpoints")
        is_alone = workload.workflow.checkpoint and not workload.workflow.train
        findings = list(checks.check_values(workload))
        if (pause is None and is_alone) or (pause is not None and pause < 0):
            text = f"DLIO would sleep {abs(pause or 1):g} s; 0 here"
            findings.append(("compat", "checkpoint.time_between_checkpoints", text))
        for level, key, text in findings:
            yield Problem(level, self._find_place(key), key, text)

    def _override(self, edits: Sequence[Any]) -> None:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        config = OmegaConf.create(self._sections)
        for override in edits:
            key = override.key_or_group.removeprefix("workload.")
            try:
                text = grammar.apply(override, config, self._name)
            except OmegaConfBaseException as error:
                text = str(error).partition("\n")[0]
            if text:
                self.problems.append(Problem("error", grammar.WHERE, key, text))
            for changed in _list_names(key, override.value()):
                self._places[changed] = grammar.WHERE
        sections: Any = OmegaConf.to_container(config)
        self._sections = sections

    def _section(self, name: str) -> dict[str, Any]:
        """Return a section for changes; a new mapping if there is none."""
        section = self._sections.get(name)
        if isinstance(section, Mapping):
            section = self._sections[name] = dict(section)
            return section
        return {}

    def _rename(self) -> None:
        if "data_reader" in self._sections:  # DLIO heeds this name where both are given
            if "reader" in self._sections:
                self._add("strict", "data_reader", "give one of reader, data_reader")
            self._sections["reader"] = self._sections.pop("data_reader")
            for key in [key for key in self._places if key.startswith("data_reader.")]:
                self._places[key.removeprefix("data_")] = self._places[key]
        dataset = self._section("dataset")
        # In files of version 3 keys still go by their old names.
        level: Level = "warning" if "parquet" in dataset else "strict"
        for old in dataset.keys() & _OLD_NAMES.keys():
            new = _OLD_NAMES[old]
            self._add(level, f"dataset.{old}", f"old name; use {new}")
            dataset[new] = dataset.pop(old)
            self._places[f"dataset.{new}"] = self._find_place(f"dataset.{old}")

    def _join_deviation(self, key: str) -> None:
        """Join a deviation that has its own key with its mean."""
        section_name, _, name = key.partition(".")
        section = self._section(section_name)
        if name not in section:
            return
        deviation = section.pop(name)
        mean_name = name.removesuffix("_stdev")
        time = section.get(mean_name, {})
        parameters = time if isinstance(time, Mapping) else {"mean": time}
        kind = parameters.get("type", "normal")
        if kind != "normal" or "mean" not in parameters:
            reason = f", and {kind} has none" if kind != "normal" else ""
            self._add("error", key, f"stdev needs a mean{reason}: give {section_name}.{mean_name}")
        elif "stdev" in parameters:
            self._add("error", key, f"stdev is given twice: {section_name}.{mean_name} has one")
        elif deviation != 0 or isinstance(deviation, bool):
            section[mean_name] = {**parameters, "stdev": deviation}

    def _refuse(self, flaw: Any) -> None:
        """Add the problem that pydantic found, and remove its key."""
        path = list(takewhile(lambda name: isinstance(name, str), flaw["loc"]))
        key, kind, value = ".".join(path), flaw["type"], flaw["input"]
        section: Any = self._sections
        for name in path[:-1]:
            inner = section[name] = dict(section[name])
            section = inner
        section.pop(path[-1], None)
        if value is None and kind in {"dataclass_type", "dict_type"}:
            return  # the keys of a section may all be comments
        level: Level = "error"
        if kind in {"unexpected_keyword_argument", "extra_forbidden"}:
            keys = ("[]" if isinstance(name, int) else f".{name}" for name in flaw["loc"])
            level, text = _explain_unknown("".join(keys).lstrip("."))
        elif kind == "value_error":
            text = str(flaw["ctx"]["error"])
        else:
            text = f"{flaw['msg'][0].lower()}{flaw['msg'][1:]}, got {reprlib.repr(value)}"
            if kind == "literal_error":
                text += suggest(str(value), re.findall(r"'([^']*)'", flaw["ctx"]["expected"]))
        self._add(level, key, text)

    def _find_place(self, key: str) -> str:
        while key not in self._places and key:
            key = _section_of(key)
        return self._places.get(key, self._name)

    def _add(self, level: Level, key: str, text: str) -> None:
        self.problems.append(Problem(level, self._find_place(key), key, text))


def _list_names(key: str, value: Any) -> Iterator[str]:
    yield key
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _list_names(f"{key}.{name}", inner)


def _explain_unknown(key: str) -> tuple[Level, str]:
    """Return level and text of the problem of an unknown key."""
    last = key.rpartition(".")[2]
    homes = [_section_of(name) for name in list_keys() if name.endswith(f".{last}")]
    if homes:
        return "error", f"unknown key {key!r}: {last!r} belongs to {' or '.join(homes)}"
    near = suggest_key(key)
    level: Level = "error" if "[]" in key else "strict"
    return level, f"unknown key {key!r}{f'; did you mean {near!r}?' if near else ''}"


def _settle(problems: Sequence[Problem], *, compat: bool, warn: Warn) -> None:
    """Call `warn` with each warning, and raise one UsageError of all errors, by line."""
    errors = []

    def find_line(problem: Problem) -> float:
        line = re.search(r":(\d+)$", problem.where)
        return int(line[1]) if line else float("inf")

    for problem in sorted(problems, key=find_line):
        if problem.level == "error" or (problem.level == "strict" and not compat):
            errors.append(str(problem))
        elif problem.level != "compat" or compat:
            warn(str(problem))
    if errors:
        raise UsageError("\n".join(errors))
