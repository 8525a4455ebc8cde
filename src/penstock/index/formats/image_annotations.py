"""Images with annotations in files of their own: what COCO, VOC and JSON beside images share.

A sample is the field "image", the bytes of its file, and attributes (`penstock.index.attributes`).
Files of annotations are parsed once, when the index is made, and are sources of it: one that is
written to makes the index stale.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ... import limits
from ...engine import Progress, Store
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


class Flaws:
    """Makes errors about the entries of one file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def refuse(self, entry: str, what: str, remedy: str) -> NoReturn:
        """Raise FormatError that names the file, the entry, its value and what to do."""
        raise FormatError(f"{self.path}: {entry}: {what}: {remedy}")


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
        raise FormatError(
            f"{files.path(number)} has {size:,} bytes, and such a list is read whole, up to "
            f"limits.annotation_file_bytes_max ({limits.annotation_file_bytes_max:,}): divide it"
        )
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
        raise FormatError(
            f"{path} is no JSON ({error}): it was cut or damaged: fetch or write it again"
        ) from None


def read_number(value: Any) -> float | None:
    """Return a finite number that float32 can hold; None for anything else."""
    if type(value) not in (int, float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) < 3.4e38 else None


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
        more = f", and so for {len(gone) - 1:,} more images" if len(gone) > 1 else ""
        raise MissingError(
            f"{describe(row)}: {files.path(row)} does not exist{more}: fetch the images, or give "
            f"missing='skip' to leave out images without a file, and their annotations"
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


def check_below(path: str, entry: str, name: Any) -> str:
    """Check the name of an image's file that annotations give, and normalise it."""
    if not isinstance(name, str):
        raise FormatError(f"{path}: {entry} is {show(name)}: give the name of the image's file")
    return shards.check_below(f"{path}: {entry}: ", name)
