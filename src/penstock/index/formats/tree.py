"""Folders of files: each file is a sample, and its topmost sub-folder is its class.

If every file lies in some sub-folder, the sub-folders' names, sorted, are the classes (also of
empty ones, so that a class has the same label in training and validation data). If any file lies at
the top, there are no labels. A folder of several kinds of files is refused (`mixed_kinds`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...engine import Listing, Progress, Store
from ...extent import Int
from ..layout import RowTable
from ..table import Field, Index
from .location import Location
from .mixed_kinds import check_one_kind
from .shards import scan_folder


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    return {name: list(value) for name, value in options.items()}


def build(
    store: Store, _: Location, progress: Progress | None, extensions: Sequence[str] = ()
) -> Index:
    """The index of the files below the store's root, in ascending order of path bytes."""
    listing = scan_folder(store, extensions, progress)
    if not extensions:
        check_one_kind(listing)
    classes, labels = _find_classes(listing)
    return Index(
        format="tree",
        files=listing.files,
        fields=(Field("data", np.dtype(np.uint8), None),),
        layouts=(RowTable(None, None, listing.files.size),),
        sources=listing.folders,
        classes=classes,
        label_column=labels,
    )


def _find_classes(listing: Listing) -> tuple[tuple[str, ...] | None, Int | None]:
    """Find the names of the classes and each file's label, or None twice for a flat folder."""
    if not listing.folder.all():  # number 0 is the root: a file lies at the top
        return None, None
    tops = [listing.folders.name(folder).split("/", 1)[0] for folder in range(len(listing.folders))]
    classes = sorted({top for top in tops if top}, key=_encode_name)
    number = {name: label for label, name in enumerate(classes)}
    label_of_folder = np.array([number.get(top, 0) for top in tops], np.int64)
    return tuple(classes), label_of_folder.take(listing.folder)


def _encode_name(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
