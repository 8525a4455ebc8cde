"""Names of all keys of a workload, and what is said of a key that is misspelt or misplaced. Pure.

The keys are those of `workload`'s sections; beside them DLIO knows old names, keys without an
effect, and deviations that stand beside their mean. Only errors need the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from penstock.arguments import find_nearest, suggest

from .document import Given
from .problems import Level, tell_value
from .workload import DlioWorkload

ALIASES: Mapping[str, str] = MappingProxyType({"data_reader": "reader"})
"""Sections by another name. DLIO heeds the other name where both are given."""

OLD_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "record_length": "record_length_bytes",
        "record_length_stdev": "record_length_bytes_stdev",
        "record_length_resize": "record_length_bytes_resize",
    }
)
"""Keys of `dataset` by their old names."""

UNUSED: Mapping[str, str] = MappingProxyType(
    {
        "model.model_size": "model.model_size_bytes",
        "workflow.debug": "",
        "workflow.query": "",
        "dataset.record_element_bytes": "dataset.record_element_type",
        "dataset.enable_chunking": "dataset.hdf5.chunk_dims",
        "dataset.chunk_size": "dataset.hdf5.chunk_dims",
        "reader.file_access": "",
        "checkpoint.type": "",
    }
)
"""Keys that DLIO reads and does nothing with, and the key to use instead, or ""."""

DEVIATIONS = (
    "reader.preprocess_time_stdev",
    "train.computation_time_stdev",
    "evaluation.eval_time_stdev",
)
"""Deviations of the time that has the same name without `_stdev`."""


@cache
def list_keys() -> Mapping[str, Mapping[str, Any]]:
    """JSON schemas of all keys, by name. A section's type is "object"; `key[]` is an entry of a
    list."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(DlioWorkload).json_schema()

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

    return MappingProxyType(dict(walk("", schema)) | {key: {} for key in (*UNUSED, *DEVIATIONS)})


def is_known(name: str) -> bool:
    """True if this is a key, or begins with a section of any name."""
    section = name.partition(".")[0]
    return name in list_keys() or section in list_keys() or section in ALIASES


def suggest_key(name: str) -> str | None:
    """The key that an unknown one probably is: sought in its own section first, then in all."""
    section, last = _home(name), _last(name)
    keys = [key for key in list_keys() if "[]" not in key]
    near = find_nearest(last, [_last(key) for key in keys if _home(key) == section])
    if near is not None:
        return f"{section}.{near}" if section else near
    return find_nearest(name, keys)


def _home(key: str) -> str:
    return key.rpartition(".")[0]


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def explain_unknown(name: str, *, is_mapping: bool) -> tuple[Level, str]:
    """Level and text of the problem of a key that is not known by this name."""
    section, last = _home(name), _last(name)
    siblings = [_last(key) for key in list_keys() if _home(key) == section and key[-2:] != "[]"]
    if "[]" in section:
        advice = suggest(last, siblings) or f"; use {', '.join(siblings)}"
        return "error", f"a column has no {last!r}{advice}"
    homes = [_home(key) for key in list_keys() if "." in key and _last(key) == last]
    if section == "dataset" and "dataset.hdf5" in homes:
        return "error", "put it under dataset.hdf5"
    if homes:
        return "error", f"{last!r} belongs to {' or '.join(map(repr, homes))}"
    near = suggest_key(name)
    advice = (
        f"did you mean {near!r}?" if near else f"use one of {', '.join(filter(None, siblings))}"
    )
    return "strict", f"unknown {'section' if is_mapping else 'key'} {name!r}; {advice}"


def explain_value(name: str, given: Given) -> str:
    """The rule of a key that a value breaks, and the value."""
    schema = list_keys()[name]
    value = tell_value(given.plain, given.text)
    if name == "dataset.parquet.columns[]" or name.startswith("dataset.parquet.columns[].name"):
        return "a column needs a name, such as {name: x, dtype: float32, size: 1}"
    if "enum" in schema:
        allowed = schema["enum"]
        if value.startswith("YAML reads"):
            return f"{value}; allowed: {', '.join(allowed)}"
        text = given.text or str(given.plain)
        return f"{text!r} is not one of {', '.join(allowed)}{suggest(text, allowed)}"
    match schema.get("type"):
        case "string":
            return f"expected text, got {value}: put it into quotes"
        case "boolean":
            return f"expected true or false, got {value}"
        case "object":
            return f"expected keys below it, got {given.plain!r}"
        case "array":
            kind = list_keys()[f"{name}[]"]["type"]
            noun = {"integer": "integers", "object": "columns"}.get(kind, "texts")
            return f"expected a list of {noun}, got {value}"
    rule = "an integer" if schema["type"] == "integer" else "a number"
    least, most = schema.get("minimum"), schema.get("maximum")
    if most is not None:
        rule += f" from {least:g} to {most:.10g}"
    elif least is not None:
        rule += f" >= {least:g}"
    return f"must be {rule}, got {value}"
