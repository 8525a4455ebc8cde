"""Pairs of image and text in tar archives, as CLIP and its successors are trained on.

The files of one key are a sample: an image, a text (`.txt`) and, where there is one, a document of
JSON. They are the fields "image" (bytes), "text" (str) and "json" (parsed). Other files that every
sample has keep the names that `tar` gives them. Texts are read with the batch, not indexed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...engine import Progress, Store
from ...errors import FormatError
from ..table import Index
from . import image_annotations, tar
from .location import Location

OPTIONS = tuple(name for name in tar.OPTIONS if name != "fields")
_IMAGES = tuple(suffix[1:] for suffix in image_annotations.IMAGE_SUFFIXES)
_TEXTS = {"txt": ("text", "text"), "json": ("json", "json")}
"""Name and kind of the field that an extension becomes."""


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    return tar.normalize_options(options)


def build(store: Store, place: Location, progress: Progress | None, **options: Any) -> Index:
    """The index of all samples of the files, in their order."""
    index = tar.build(store, place, progress, **options)
    names = [part.name for part in index.fields]
    images = [name for name in names if name in _IMAGES]
    if "txt" not in names:
        raise FormatError(
            f"{index.files.path(0)}: not every sample has a text (.txt), but these all have "
            f"{', '.join(names)}: leave out format='clip', or see missing= and fields= of 'tar'"
        )
    if len(images) > 1:
        raise FormatError(
            f"{index.files.path(0)}: every sample has {' and '.join(images)}: which is the image? "
            f"Leave out format='clip', and name them by fields= of 'tar'"
        )
    if not images:  # some samples have one kind, and some another
        fields = {image_annotations.IMAGE: list(_IMAGES)}
        fields |= {name: [name] for name in names if name not in images}
        index = tar.build(store, place, progress, fields=fields, **options)
    parts = []
    for part in index.fields:
        name, text = _TEXTS.get(part.name, (part.name, ""))
        name = image_annotations.IMAGE if name in _IMAGES else name
        parts.append(replace(part, name=name, text=text))
    return replace(index, format="clip", fields=tuple(parts), fingerprint="")
