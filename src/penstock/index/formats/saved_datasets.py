"""Folders of Hugging Face `datasets`: of `save_to_disk`, and of its cache.

A saved dataset is Arrow streams and `state.json`, their list in order; a saved dictionary of
datasets has a folder for each split, and `dataset_dict.json`. A folder of the cache has
`dataset_info.json`, the streams of all splits, and whatever `map` and `filter` left there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ... import limits
from ...engine.store import Store
from ...errors import FormatError, MissingError
from ...extent import Files, joined, unseen
from . import splits

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_JSON_BYTES_MAX = 64 * limits.header_bytes_max


def is_saved_dataset(store: Store) -> bool:
    """True if `datasets` made this folder."""
    if _has(store, _STATE) or _has(store, _SPLITS):
        return True
    return _has(store, _INFO) and bool(store.match("*.arrow"))


def list_streams(store: Store, wanted: tuple[str, ...] | None) -> tuple[Files, Files, int | None]:
    """List the streams of a folder in order, the sources, and the rows that all have, if known."""
    if _has(store, _STATE):
        names, listed_by = _read_state(store), _STATE
        rows = None
    elif _has(store, _SPLITS):
        listed = _read_json(store, _SPLITS).get("splits")
        names = list(map(str, listed)) if isinstance(listed, list) else []
        raise splits.build_error(store.root, names or ["train"])
    else:
        names, rows = _find_split(store, wanted or ())
        listed_by = _INFO
    files = store.stat(names, lambda row: f"{store.root}/{listed_by}, file {row}: ")
    return files, joined(files, store.stat([listed_by])), rows


def read_class_names(store: Store, column: str) -> list[Any] | None:
    """Read the names of the classes of a column from `dataset_info.json`; None if it has none."""
    try:
        names = _read_json(store, _INFO)["features"][column]["names"]
    except (FormatError, MissingError, KeyError, TypeError):
        return None
    return names if isinstance(names, list) else None


def _has(store: Store, name: str) -> bool:
    return not store.probe(unseen(store.root, [name]))[1].any()


def _read_json(store: Store, name: str) -> Mapping[str, Any]:
    """Read one of the folder's documents; FormatError if it is none."""
    path = os.path.join(store.root, name)
    data = store.read(name, 0, _JSON_BYTES_MAX + 1)
    if len(data) > _JSON_BYTES_MAX:
        raise FormatError(f"{path} has more than {_JSON_BYTES_MAX:,} bytes: save the dataset again")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is no JSON ({error}): save the dataset again") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path} holds no object: save the dataset again")
    return value


def _read_state(store: Store) -> list[str]:
    """Read the names of the streams of a saved dataset."""
    state = _read_json(store, _STATE)
    mapped = [key for key, value in state.items() if "indices" in key and value]
    if mapped:
        raise FormatError(f"{store.root} is a selection: call flatten_indices(), and save")
    try:
        names = [entry["filename"] for entry in state["_data_files"]]
        fine = all(n not in ("", ".", "..") and "/" not in n and n.isprintable() for n in names)
    except (AttributeError, KeyError, TypeError):
        names, fine = [], False
    if not names or not fine:
        raise FormatError(f"{store.root}/{_STATE} lists no files that can be: save it again")
    return names


def _find_split(store: Store, wanted: tuple[str, ...]) -> tuple[list[str], int | None]:
    """Find the streams of a split in a folder of the cache, and their rows if known."""
    files: dict[str, list[tuple[int, int, str]]] = {}
    for name in store.match("*.arrow"):
        match = re.fullmatch(r"(.*?)(?:-([0-9]{5,})-of-([0-9]{5,}))?\.arrow", name)
        if match is None or name.startswith(("cache-", "tmp", "indices")):
            continue
        stem, number, count = match.groups()
        files.setdefault(stem, []).append((int(number or 0), int(count or 1), name))
    if wanted:
        stems = sorted(files)
        chosen = splits.divide_by(stems, wanted)[0]
        files = {stems[row]: files[stems[row]] for split in wanted for row in chosen.get(split, ())}
    if len(files) != 1:
        raise splits.build_error(store.root, {stem.split("-")[-1] for stem in files} or ["train"])
    ((stem, streams),) = files.items()
    streams.sort()
    if [(number, count) for number, count, _ in streams] != [
        (number, len(streams)) for number in range(len(streams))
    ]:
        raise FormatError(f"{store.root}: some of {stem}*.arrow are missing: make the cache again")
    described = _read_json(store, _INFO).get("splits")
    known = described if isinstance(described, dict) else {}
    rows = [
        split.get("num_examples")
        for name, split in known.items()
        if isinstance(split, dict) and stem.endswith(f"-{name}")
    ]
    return [name for _, _, name in streams], rows[0] if rows and type(rows[0]) is int else None
