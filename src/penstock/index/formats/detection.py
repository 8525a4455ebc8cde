"""Choice of the format for a place: by name, or by content.

The content of a file decides its format, and the options only if the content does not.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...engine.store import Store
from ...errors import FormatError, MissingError, UsageError
from ...extent import unseen
from . import shards
from .registry import FORMATS, Format
from .shards import Location

_HEAD_BYTES = 4096
_LOOKED_AT = 8
"""Number of files of a folder that are read to tell shards from samples."""
_ANNOTATED = ("coco", "voc", "image_json")
_OTHER_NAMES = {
    "webdataset": "tar",
    "wds": "tar",
    "imagefolder": "tree",
    "folder": "tree",
    "files": "tree",
    "csv": "table",
    "tsv": "table",
    "json": "jsonl",
    "ndjson": "jsonl",
    "h5": "hdf5",
    "numpy": "npy",
    "streaming": "mds",
    "mosaic": "mds",
    "bin": "records",
    "mxnet": "recordio",
    "feather": "arrow",
    "voc2012": "voc",
}
"""Names by which people know formats."""


def choose_format(
    store: Store, place: Location, name: str | None, options: Mapping[str, Any]
) -> Format:
    """Choose the format by name, or by content; it must take all the options given (UsageError)."""
    known = {option for entry in FORMATS.values() for option in entry.options}
    for option in options:
        if option not in known:
            hint = _suggest(difflib.get_close_matches(option, known, 1), "{}=")
            raise UsageError(f"no format takes {option}=: {hint}`penstock formats` lists them")
    chosen = FORMATS[_detect(store, place, options)] if name is None else _find_format(name)
    if place.kind not in chosen.kinds:
        raise UsageError(
            f"{place.path} is a {place.kind}, but format {chosen.name!r} is {chosen.summary}: "
            f"leave format= out"
        )
    unwanted = ", ".join(option for option in options if option not in chosen.options)
    if unwanted:
        takes = ", ".join(chosen.options) or "none"
        raise UsageError(
            f"{place.path} is read as {chosen.name!r}, which does not take {unwanted} (it takes: "
            f"{takes}): leave that out, or give format="
        )
    return chosen


def _find_format(name: str) -> Format:
    if isinstance(name, str) and name in FORMATS:
        return FORMATS[name]
    meant = _OTHER_NAMES.get(str(name).lower())
    near = [meant] if meant else difflib.get_close_matches(str(name).lower(), FORMATS, 1)
    hint = _suggest([f"{each!r}" for each in near], "{}")
    raise UsageError(f"format is {name!r:.100}: {hint}use one of {', '.join(FORMATS)}")


def _suggest(near: Sequence[str], shown: str) -> str:
    return f"did you mean {shown.format(near[0])}? " if near else ""


def _detect(store: Store, place: Location, options: Mapping[str, Any]) -> str:
    sized = {"record_bytes", "shape"} & options.keys()
    # Flat tokens do not describe themselves; a cut file of llm.c must not pass for such.
    windows = bool({"window", "eos"} & options.keys()) and "dtype" in options and not sized
    geometry = bool(sized or "dtype" in options) and not windows
    if place.kind == "folder":
        if geometry or windows:
            return "tokens" if windows else "records"
        return _detect_folder(store, options.get("extensions", ()))
    if "files" in options and place.kind == "file":
        return "table"
    name = place.name if place.kind == "file" else _find_first_name(store, place)
    head = store.read(name, 0, _HEAD_BYTES)
    detected = None if geometry else _detect_beside(store, name)
    detected = detected or _sniff_format(head, name)
    if windows and detected is None:
        return "tokens"
    if geometry and detected != "npy":
        return "records"
    if detected is not None and (place.kind == "file" or place.kind in FORMATS[detected].kinds):
        return detected
    path = place.path if place.kind == "file" else os.path.join(store.root, name)
    if detected is None:
        from .unsupported import describe_unsupported

        if description := describe_unsupported(head, name):
            raise FormatError(f"{path} is {description}")
    raise FormatError(
        f"{path} is of no format that penstock knows{' in several files' if detected else ''} (it "
        f"starts with {head[:8]!r}): for binary records give record_bytes=, or dtype= and shape=; "
        f"else give format= ({', '.join(FORMATS)})"
    )


def _find_first_name(store: Store, place: Location) -> str:
    """Find a file that a pattern matches, inside a folder if folders are members of a dataset."""
    names = [name for pattern in place.names for name in store.match(pattern)]
    are_files = names and errno.EISDIR not in store.probe(unseen(store.root, names))[1]
    for entry in FORMATS.values():
        if entry.environments and not are_files:
            with contextlib.suppress(MissingError):  # then there are neither folders nor files
                environments: list[str] = entry.load("list_environments")(store, place)
                return environments[0]
    return shards.list_names(store, place)[0]


def _detect_beside(store: Store, name: str) -> str | None:
    """Find the format that a file has because of a file beside it."""
    for entry in FORMATS.values():
        if entry.beside and name.endswith(entry.beside[0]):
            has_beside = entry.load(entry.beside[1])
            if has_beside(store, name):
                return entry.name
    return None


def _sniff_format(head: bytes, name: str) -> str | None:
    """Find the format that a file's content shows. Text, the least specific, comes last."""
    entries = sorted(
        (entry for entry in FORMATS.values() if entry.magic or entry.sniffed),
        key=lambda entry: (not entry.magic, entry.name == "listing"),
    )
    return next((entry.name for entry in entries if entry.recognizes(head, name)), None)


def _detect_folder(store: Store, extensions: Sequence[str]) -> str:
    """Detect a dataset of files with certain names, a folder of shards, or a folder of samples.

    extensions:  which files are samples, if the user said so: then annotations are none.

    FormatError if shards are beside other files: as a folder of samples it would give whole shards.
    """
    for entry in FORMATS.values():
        if extensions and entry.name in _ANNOTATED:
            continue
        if entry.folder and entry.load(entry.folder)(store):
            return entry.name
    formats = {
        name: _sniff_format(store.read(name, 0, _HEAD_BYTES), name)
        for name in sorted(_find_some_names(store, extensions))
    }
    of_shards = {
        name: format
        for name, format in formats.items()
        if format is not None and "folder" in FORMATS[format].kinds
    }
    if not of_shards:
        return "tree"
    shard, chosen = next(iter(of_shards.items()))
    stray = next((name for name in formats if formats[name] != chosen), None)
    if stray is None:
        return chosen
    folder, pattern = os.path.dirname(shard), f"*{os.path.splitext(shard)[1]}"
    raise FormatError(
        f"{store.root} holds shards of {chosen} ({shard}), and {stray}: open "
        f"{os.path.join(store.root, folder, pattern)!r}, or give format= or extensions="
    )


def _find_some_names(store: Store, extensions: Sequence[str]) -> list[str]:
    """Find a few files of a folder, with these extensions if some are given."""
    names = store.some(_LOOKED_AT)
    if not extensions:
        return names
    chosen = [name for name in names if name.lower().endswith(tuple(extensions))]
    if chosen:
        return chosen
    files = store.scan(extensions).files
    return [files.name(file) for file in range(min(len(files), _LOOKED_AT))]
