"""Images with annotations in files of their own: what COCO, VOC and JSON beside images share.

A sample is the field "image", the bytes of its file, and attributes (`penstock.index.attributes`).
Files of annotations are parsed once, when the index is made, and are sources of it: one that is
written to makes the index stale.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import json
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import limits
from ...engine.store import Progress, Store
from ...errors import FormatError, MissingError, UsageError
from ...extent import Files, joined, unseen
from ..attributes import Attribute
from ..fields import Field
from ..layout import RowTable
from ..table import Index
from . import shards

IMAGE = "image"
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
MISSING = ("error", "skip")
RESERVED = (IMAGE, "__key__", "__id__", "__epoch__", "__rng__", "source", "pass")
"""Names that no attribute has, since samples and batches have them already."""


_KINDS: dict[str, tuple[set[type], Any]] = {
    "whole number": ({int}, np.int64),
    "finite number": ({int, float}, np.float32),
    "flag (0 or 1)": ({int, bool}, np.int64),
    "text": ({str}, None),
}
_NOT_SO = (ValueError, TypeError, OverflowError)


class EntryColumn(NamedTuple):
    """The values of one key in the entries of a list, as a column.

    kind:     of `_KINDS`.
    width:    length of a list of numbers; 0 for a single value.
    least:    the least that each number may be.
    default:  value of entries without the key; None if it must be there.
    """

    key: str
    kind: str
    width: int = 0
    least: Sequence[float] | float = -math.inf
    default: Any = None

    def read(self, where: str, entries: Sequence[Any], first: int = 0) -> Any:
        """Return the column: an array, or a list of texts; FormatError names the entry.

        where:  the file and the list; `first` is the number of the first entry in it.
        """
        try:
            return self._convert([entry.get(self.key, self.default) for entry in entries])
        except (AttributeError, *_NOT_SO):
            for row, entry in enumerate(entries, first):
                self._check(f"{where}[{row}]", entry)
            raise

    def _check(self, where: str, entry: Any) -> None:
        if not isinstance(entry, dict):
            raise FormatError(f"{where} is {show(entry)}, no object: take it out")
        value = entry.get(self.key, self.default)
        try:
            self._convert([value])
        except _NOT_SO:
            wanted = f"{self.width} of kind {self.kind}" if self.width else self.kind
            raise FormatError(
                f"{where} (id {show(entry.get('id'))}): {self.key} is {show(value)}, no {wanted}: "
                f"correct or remove it"
            ) from None

    def _convert(self, values: list[Any]) -> Any:
        """Convert values; an error of `_NOT_SO` if one is not of this kind."""
        types, dtype = _KINDS[self.kind]
        if self.width:
            if set(map(type, values)) - {list} or set(map(len, values)) - {self.width}:
                raise ValueError
            values = list(itertools.chain.from_iterable(values))
        if set(map(type, values)) - types:
            raise ValueError
        if dtype is None:
            "".join(values).encode()  # JSON may hold lone surrogates
            return values
        with np.errstate(over="ignore"):
            column = np.array(values, dtype).reshape(-1, *[self.width] * bool(self.width))
        flawed = ~np.isfinite(column) | (column < self.least)
        if flawed.any() or (self.kind.startswith("flag") and (column > 1).any()):
            raise ValueError
        return column


def check_distinct(where: str, key: str, values: Any) -> None:
    """Check that no two entries have one value (FormatError)."""
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if len(set(values)) < len(values):
        rows: dict[Any, int] = {}
        twice = (row for row, value in enumerate(values) if rows.setdefault(value, row) < row)
        row = next(twice)
        raise FormatError(
            f"{where}[{row}]: {key} {show(values[row])} is that of [{rows[values[row]]}], too"
        )


def normalize_missing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are given; `missing` is checked."""
    normalized = {name: value for name, value in options.items() if value is not None}
    if normalized.get("missing", "error") not in MISSING:
        raise UsageError(f"missing is {normalized['missing']!r}: use 'error' or 'skip'")
    if normalized.get("missing") == "error":
        del normalized["missing"]
    return normalized


def check_names(options: Mapping[str, Any], *names: str) -> None:
    """Check that options are names below the data set: no absolute paths, and none with '..'."""
    for name in names:
        value = options.get(name)
        if value is None:
            continue
        inside = isinstance(value, str) and value and not value.startswith("/")
        if not inside or ".." in value.split("/") or "\0" in value:
            raise UsageError(f"{name} is {value!r}: give a name below the folder that is opened")


def read_whole(store: Store, files: Files, number: int) -> bytes:
    """Read a whole list of names; FormatError if it is too large."""
    size = int(files.size[number])
    if size > limits.annotation_file_bytes_max:
        raise FormatError(f"{files.path(number)} has {size:,} bytes: divide the list")
    return store.read(files.name(number), 0, size)


@contextlib.contextmanager
def pause_collector() -> Iterator[None]:
    """Pause the collector of garbage while millions of parsed entries, without cycles, are made:
    it would look through all of them again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def parse_document(path: str, data: bytes) -> Any:
    """Parse a document of JSON; FormatError that names the file and the place."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is no JSON ({error}): fetch or write it again") from None


def is_whole(value: Any) -> bool:
    """True for a whole number of 64 bits."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def show(value: Any) -> str:
    """Show a value of a file in an error's message, cut to a line."""
    return reprlib.repr(value)


def find_images(
    store: Store,
    names: Sequence[str],
    describe: Callable[[int], str],
    missing: str,
    progress: Progress | None,
) -> tuple[Files, list[int]]:
    """Find the files of images. Returns their table, and the rows of `names` that exist.

    describe:  says which entry names a row, as the start of an error's message.
    missing:   "skip" leaves out what does not exist; else it is a MissingError.
    """
    files, errors = store.probe(unseen(store.root, names), progress)
    gone = np.flatnonzero((errors == errno.ENOENT) | (errors == errno.ENOTDIR))
    if len(gone) and missing != "skip":
        row = int(gone[0])
        raise MissingError(
            f"{describe(row)}: {files.path(row)} does not exist ({len(gone):,} in all): fetch the "
            f"images, or give missing='skip' to leave such out"
        )
    kept = np.flatnonzero((errors != errno.ENOENT) & (errors != errno.ENOTDIR)).tolist()
    if not kept:
        raise MissingError(f"{store.root}: none of the {len(names):,} images exists")
    return store.stat([names[row] for row in kept], lambda row: f"{describe(kept[row])}: "), kept


def find_folder(store: Store, names: Sequence[str]) -> str:
    """Return the first of these folders that is there; "" for the data set's own."""
    _, errors = store.probe(unseen(store.root, list(names)))
    there = np.flatnonzero(errors == errno.EISDIR)
    return names[int(there[0])] if len(there) else ""


def build_split_error(store: Store, splits: Iterable[str]) -> UsageError:
    """Build the error for a split that has to be chosen: data must not mix unnoticed."""
    names = sorted(splits)
    return UsageError(f"{store.root} has the splits {', '.join(names)}: give split={names[0]!r}")


def make_index(
    store: Store,
    format: str,
    images: Files,
    attributes: Sequence[Attribute],
    read: Files,
    classes: Sequence[str] | None = None,
    folders: Sequence[str] = (),
    label_column: Any = None,
) -> Index:
    """Make the index of images and their attributes.

    read:     the files of annotations.
    folders:  folders in which a new file would change the data set.
    """
    sources = joined(store.folders(sorted(set(folders))), read) if folders else read
    return Index(
        format=format,
        files=images,
        fields=(Field(IMAGE, np.dtype(np.uint8), None),),
        layouts=(RowTable(None, None, images.size),),
        sources=sources,
        classes=None if classes is None else tuple(classes),
        label_column=label_column,
        attributes=tuple(attributes),
    )


def choose_fields(
    attributes: Sequence[Attribute], fields: Sequence[str] | None, path: str
) -> list[Attribute]:
    """Choose the attributes that `fields` names; by default all."""
    if fields is None:
        return list(attributes)
    known = {attribute.name: attribute for attribute in attributes}
    for name in fields:
        if name not in known:
            raise UsageError(f"{path} has no {name!r}: fields= may name {', '.join(known)}")
    return [known[name] for name in fields]


def normalize_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with `fields` as a list of names."""
    fields = options.get("fields")
    if fields is None:
        return options
    names = [fields] if isinstance(fields, str) else fields
    if (
        not isinstance(names, Sequence)
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise UsageError(f"fields is {fields!r}: give names in a list, each once")
    return options | {"fields": list(names)}


def check_below(path: str, entry: str, name: str) -> str:
    """Check the name of an image's file that annotations give, and normalise it."""
    return shards.check_below(f"{path}: {entry}: ", name)
