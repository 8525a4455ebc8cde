"""Images with a document of JSON beside each: `a/1.jpg` and `a/1.json`.

A document is an object; each key that is in any of them is an attribute. Its kind follows from all
values, so that none is lost:

    whole numbers; numbers; truth values     an array
    lists of numbers, of lists of numbers    rows; in a list of lists, of one length
    texts                                    a list of texts
    anything else, and what is missing or null somewhere     values of JSON, None for the missing

The key `label` is the label, if all documents have it and it is a whole number or a text.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...engine.store import Store, StoreFile
from ...errors import FormatError, MissingError, UsageError
from ...extent import Int, joined, unseen
from ..attributes import Attribute, make_rows, make_texts
from ..table import Index
from . import image_annotations, options
from .image_annotations import is_whole, show
from .shards import Columns, Scan, number_classes

_DOCUMENT_BYTES_MAX = 64 << 20
_KEYS_MAX = 256
_SUFFIX = ".json"


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    return options.normalize(
        given,
        fields=options.texts("names in a list", options.text("names in a list", 1)),
        label=options.text("a key, or '' for none"),
        missing=options.one_of("error", "skip"),
    )


def is_dataset(store: Store) -> bool:
    """True if the first files that are found are images and JSON, and one of these has both."""
    try:
        names = store.some(8)
    except UsageError:  # the store has no listings
        return False
    endings = {name: posixpath.splitext(name)[1].lower() for name in names}
    if not set(endings.values()) <= {_SUFFIX, *image_annotations.IMAGE_SUFFIXES}:
        return False
    tried = [
        posixpath.splitext(name)[0] + other
        for name, ending in endings.items()
        for other in (image_annotations.IMAGE_SUFFIXES if ending == _SUFFIX else (_SUFFIX,))
    ]
    return bool(tried) and bool((store.probe(unseen(store.root, tried))[1] == 0).any())


def build(
    scan: Scan, fields: Columns = None, label: str | None = None, missing: str = "error"
) -> Index:
    """The index of all images below the folder, with what their documents say."""
    store = scan.store
    listing = scan.list_folder((_SUFFIX, *image_annotations.IMAGE_SUFFIXES))
    listing = scan.choose_split(listing)
    images: dict[str, str] = {}
    documents: dict[str, str] = {}
    for name in map(listing.files.name, range(len(listing.files))):
        stem, ending = posixpath.splitext(name)
        other = (documents if ending.lower() == _SUFFIX else images).setdefault(stem, name)
        if other != name:
            raise FormatError(f"{store.root}/{name} and {other} have one name: rename one")
    both = [stem for stem in images if stem in documents]
    alone = sorted(images.keys() ^ documents.keys())
    if alone and (missing != "skip" or not both):
        what = "image has no document" if alone[0] in images else "document has no image"
        counts = f"({len(alone):,} alone, {len(both):,} pairs)"
        raise MissingError(
            f"{store.root}/{alone[0]}: the {what} beside it {counts}: give missing='skip'"
        )
    files = store.stat([images[stem] for stem in both])
    read = store.stat([documents[stem] for stem in both])
    values = scan.parse(read, _read_object)
    classes, label_column, attributes = make_columns(read.path, values, label, fields)
    folders = [listing.folders.name(row) for row in range(len(listing.folders))]
    sources = joined(read, files)
    return image_annotations.make_index(
        store, "image_json", files, attributes, sources, folders, classes, label_column
    )


def _read_object(_: int, source: StoreFile) -> dict[str, Any]:
    if source.size > _DOCUMENT_BYTES_MAX:
        raise FormatError(f"{source.path} has {source.size:,} bytes: no description of an image")
    return parse_object(source.path, source.read(0, source.size))


def parse_object(path: str, data: bytes) -> dict[str, Any]:
    """Parse the document of one image; FormatError unless it is an object of valid text."""
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is no JSON ({error}): fetch or write it again") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: the document is {show(value)}, no object")
    return value


def make_columns(
    path: Callable[[int], str],
    values: Sequence[Mapping[str, Any]],
    label: str | None = None,
    fields: Columns = None,
) -> tuple[Sequence[str] | None, Int | None, list[Attribute]]:
    """Make columns of documents: classes and labels, None if there are none, and attributes.

    path:  function that names the file of a document in errors, by its number.
    """
    keys = list(dict.fromkeys(key for value in values for key in value))
    if fields is not None:
        for name in fields:
            if name not in keys:
                there = ", ".join(keys[:20])
                raise UsageError(f"{path(0)} and others have no {name!r}, but {there}")
        keys = list(fields)
    if len(keys) > _KEYS_MAX:
        raise FormatError(f"{path(0)} and others have {len(keys):,} keys: name some by fields=")
    for name in keys:
        if name in image_annotations.RESERVED or not name:
            what = f"has the key {name!r}, as all samples: rename it"
            raise FormatError(f"{path(0)} or another {what}")
    classes, label_column, label = _find_labels(path, values, label, fields)
    attributes = [
        _make_attribute(name, [value.get(name) for value in values])
        for name in keys
        if name != label
    ]
    return classes, label_column, attributes


def _find_labels(
    path: Callable[[int], str],
    values: Sequence[Mapping[str, Any]],
    label: str | None,
    fields: Columns,
) -> tuple[Sequence[str] | None, Int | None, str]:
    """Find the labels: classes, numbers, and the key that gives them ("" if none does)."""
    if label == "" or (label is None and fields is not None and "label" in fields):
        return None, None, ""
    key = label or "label"
    column: list[Any] = [value.get(key) for value in values]
    if all(map(is_whole, column)):
        return None, np.array(column, np.int64), key
    if all(isinstance(one, str) for one in column):
        return *number_classes(column), key
    if label is None:
        return None, None, ""
    row = next(row for row, one in enumerate(column) if not isinstance(one, str))
    shown = f"{show(column[row])}, not a whole number or text as in others"
    raise FormatError(f"{path(row)}: the label {key!r} is {shown}: give label=''")


def _make_attribute(name: str, values: Sequence[Any]) -> Attribute:
    """Make the attribute of one key, of the narrowest kind that holds all values."""
    types = set(map(type, values))
    if types == {str}:
        return make_texts(name, "text", values)
    dtype = _find_dtype(values)
    if dtype is not None:
        return Attribute(name, "numbers", np.array(values, dtype))
    if types == {list}:
        rows = [row for value in values for row in value]
        if not rows or (dtype := _find_dtype(rows)) is not None:
            return make_rows(name, values, dtype or np.float64)
        width = len(rows[0]) if isinstance(rows[0], list) else 0
        if width and all(isinstance(row, list) and len(row) == width for row in rows):
            dtype = _find_dtype([number for row in rows for number in row])
            if dtype is not None:
                return make_rows(name, values, dtype, (width,))
    return make_texts(name, "json", [json.dumps(value, ensure_ascii=False) for value in values])


def _find_dtype(values: Sequence[Any]) -> Any:
    """Find the dtype that holds all values exactly; None if they are no numbers."""
    types = set(map(type, values))
    if types == {bool}:
        return np.bool_
    if types == {int}:
        return np.int64 if all(map(is_whole, values)) else None
    if types and types <= {int, float}:
        whole = (one for one in values if type(one) is int)
        return np.float64 if all(abs(one) <= 1 << 53 for one in whole) else None
    return None
