"""Overrides as DLIO's command line takes them, parsed by hydra and applied by OmegaConf.

    ++workload.a.b=v    adds a key, or replaces its value
    +workload.a.b=v     adds a new key
    workload.a.b=v      replaces a present value
    ~workload.a.b       removes a key; with =v only if the key has this value
    workload=name       chooses the workload
    hydra.run.dir=OUT   chooses the folder of results

Sweeps are refused: a run has one value of each key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from penstock.errors import UsageError, missing_library

from .sections import SECRETS

Level = Literal["error", "strict", "warning", "compat"]
"""error: always an error. strict: an error, in compat mode a warning. warning: always a warning.
compat: in compat mode a warning, else nothing."""

WHERE = "CLI"
"""Origin of overridden values, in messages."""


class Problem(NamedTuple):
    """A mistake in a file or an override."""

    level: Level
    where: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.text}"


class Overrides(NamedTuple):
    """The overrides of a command line.

    name:       the workload, by workload=name.
    folder:     the folder of results, by hydra.run.dir.
    subfolder:  the folder of the resolved configuration, by hydra.output_subdir; "" is none.
    edits:      hydra's `Override`s of keys below `workload`, by key.
    """

    name: str | None
    folder: str | None
    subfolder: str
    edits: dict[str, Any]
    problems: tuple[Problem, ...]


def parse(text: str) -> Any:
    """Parse one override into hydra's `Override`. UsageError if hydra or penstock refuses it."""
    try:
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException
    except ModuleNotFoundError:
        raise missing_library("hydra-core", "bench", "an override") from None
    try:
        override = OverridesParser.create().parse_override(text)
        override.value()
    except (HydraException, RecursionError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"{WHERE}: {text[:40]!r} is no override: {reason:.60}; write ++workload.key=value"
        ) from None
    if override.package is not None:
        raise UsageError(f"{WHERE}: {text!r}: packages (@) are not read: leave it out")
    if override.is_sweep_override():
        raise UsageError(f"{WHERE}: {text!r} is a sweep: run penstock once for each value")
    return override


def parse_overrides(texts: Iterable[str]) -> Overrides:
    """Parse all overrides of a command line. UsageError if a text is no override."""
    chosen: dict[str, Any] = {}
    problems: list[Problem] = []
    edits: dict[str, Any] = {}
    for override in map(parse, texts):
        key = override.key_or_group
        if key in chosen or key in edits:
            problems.append(Problem("strict", WHERE, key, "given twice: leave one"))
        if key.startswith("workload."):
            edits.pop(key, None)  # the last one is applied last
            edits[key] = override
        elif problem := _check_choice(override):
            problems.append(problem)
        else:
            chosen[key] = override.value()
    subfolder = chosen.get("hydra.output_subdir", ".hydra") or ""
    return Overrides(
        chosen.get("workload"), chosen.get("hydra.run.dir"), subfolder, edits, tuple(problems)
    )


def _check_choice(override: Any) -> Problem | None:
    """Check an override of something else than a workload's key."""
    key, value = override.key_or_group, override.value()
    level: Level = "error"
    if key in {"workload", "hydra.run.dir", "hydra.output_subdir"}:
        if key != "workload" and value is None:
            return None
        if isinstance(value, str) and value and (key != "workload" or _is_change(override)):
            return None
        text = f"expected {key}=NAME, got {override.input_line}"
    elif re.match(r"hydra[./](sweep|launcher)", key) or value == "MULTIRUN":
        text = "sweeps are not run here: run penstock once for each value"
    elif re.match(r"hydra[./]|hydra$", key):
        level, text = "warning", "has no effect: hydra does not run the benchmark"
    else:
        level, text = "strict", f"is no key of a workload: write ++workload.{key}=..."
    return Problem(level, WHERE, key, text)


def _is_change(override: Any) -> bool:
    return not (override.is_add() or override.is_force_add() or override.is_delete())


def apply(override: Any, config: Any, where: str) -> str:
    """Apply an override to an OmegaConf mapping of sections; return its problem, or "".

    Mappings are merged, lists replaced. where: the mapping's name, in messages.
    """
    from omegaconf import OmegaConf

    missing = object()
    key = override.key_or_group.removeprefix("workload.")
    present = OmegaConf.select(config, key, default=missing)
    value = override.value()
    is_absent = present is missing or present is None
    if present is missing and _is_change(override):
        return f"is not in {where}: write ++{override.input_line} to add it"
    if override.is_delete():
        if is_absent:
            return f"is not in {where}: there is nothing to remove"
        if value is not None and value != present:
            return f"is {present!r}, not {value!r}: nothing is removed"
        section, _, last = key.rpartition(".")
        del (OmegaConf.select(config, section) if section else config)[last]
    elif override.is_add() and not (is_absent or isinstance(value, dict | list)):
        return f"is {present!r} already: write +{override.input_line} to replace it"
    else:
        OmegaConf.update(config, key, value, merge=True, force_add=True)
    return ""


def hide_secrets(texts: Iterable[str]) -> list[str]:
    """Return overrides for a record, without the values of access keys."""
    return [
        text.partition("=")[0] + "=***" if any(name in text for name in SECRETS) else text
        for text in texts
    ]
