"""Fields that hold images: which one is meant, and its rows as bytes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dataset.fields import Ragged
from ..errors import UsageError
from ..extent import Int
from ..index.fields import SUMS_FIELD, Field
from ..index.table import Index

_names = ("data", "jpg", "jpeg", "JPEG", "png", "webp", "image", "img")
"""Fields that are images if several could be: the names that folders, WebDataset and tables use."""


def choose_field(index: Index, field: str | None) -> int:
    """Return the number of the field that has the images; UsageError if there is none."""
    names = {
        entry.name: number for number, entry in enumerate(index.fields) if _can_hold_images(entry)
    }
    listed = ", ".join(map(repr, names)) or "none"
    if field is not None:
        if field not in names:
            raise UsageError(f"images: field={field!r} is no field of bytes: use one of {listed}")
        return names[field]
    if len(names) == 1:
        return next(iter(names.values()))
    for name in _names:
        if name in names:
            return names[name]
    remedy = "name the field of images by field=" if names else "open files of images"
    raise UsageError(f"images: no field with the bytes of images ({listed}): {remedy}")


def _can_hold_images(field: Field) -> bool:
    """Return whether the field's rows are bytes."""
    is_row = field.shape is None or len(field.shape) == 1
    is_plain = not (field.levels or field.element or field.text or field.parser)
    return is_row and is_plain and field.dtype == np.uint8 and field.name != SUMS_FIELD


def find_image(sample: Mapping[str, Any], field: str | None) -> str:
    """Return the name of the field of a sample that has the image; UsageError if there is none."""
    if field is not None and field in sample:
        return field
    bytes_like = [
        name
        for name, value in sample.items()
        if isinstance(value, bytes | bytearray | memoryview)
        or (isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1)
    ]
    if field is None and len(bytes_like) == 1:
        return bytes_like[0]
    for name in _names if field is None else ():
        if name in bytes_like:
            return name
    meant = "field of bytes" if field is None else f"field {field!r}"
    listed = ", ".join(map(repr, sample))
    raise UsageError(f"images: the sample has no {meant}, but {listed}: name the image by field=")


def list_other_names(index: Index, field: int) -> list[str]:
    """List the names that batches have beside a field."""
    return [made.name for made in index.made if made.name != index.fields[field].name]


def check_names(others: Iterable[str], made: Container[str]) -> None:
    """Raise UsageError if other fields have the names of what is made of the image."""
    for name in others:
        if name in made:
            what = f"images: the samples have a field {name!r} beside their image"
            raise UsageError(f"{what}, as its result is called: leave it out (columns= of tables)")


def list_rows(column: Any) -> tuple[npt.NDArray[np.uint8], Int]:
    """Return the bytes of all rows of a field, and the bounds of each."""
    if isinstance(column, Ragged):
        return column.values, np.ascontiguousarray(column.offsets, np.int64)
    rows, width = column.shape
    return column.reshape(-1), np.arange(rows + 1, dtype=np.int64) * width
