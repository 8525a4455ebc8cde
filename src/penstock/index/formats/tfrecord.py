"""TFRecord: records of any length, each between checksums; on request parts of a tf.Example.

A file has no index: all of it is walked, by small reads if records are large. The checksum of each
length is always compared, the data's on request: once, when the file is walked
(`check="all"`), or whenever a record is read (`verify=True`). `example` makes fields of features:
each value is verbatim in the file, so that only the wanted ones are read later.
Files compressed as a whole have no extents and are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...engine.store import Progress, Store, StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int
from ..fields import SUMS_FIELD, Field, mask_crc
from ..layout import RowTable
from ..table import Index
from . import shards, unsupported
from .shards import Location

_CHECKS = ("none", "length", "all")
_KINDS = ("absent", "bytes", "floats", "integers")
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
_COLUMNS = (
    "feature_kind",
    "feature_values",
    "feature_offset",
    "feature_length",
    "feature_value",
)
_SUFFIXES = (".tfrecord", ".tfrecords")


class RecordFeature(NamedTuple):
    """A feature in the records of one file; `first` is the first integer."""

    kind: npt.NDArray[np.uint8]
    values: Int
    offset: Int
    length: Int
    first: Int


class TfRecords(NamedTuple):
    """The records of one file, and their features in the order asked for."""

    offset: Int
    length: Int
    features: list[RecordFeature]


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    normalized = dict(options)
    if normalized.get("check", "length") not in _CHECKS:
        raise UsageError(f"check is {normalized['check']!r}: use one of {', '.join(_CHECKS)}")
    example = normalized.get("example", {})
    if not isinstance(example, Mapping) or not all(
        isinstance(name, str) and name and isinstance(feature, str) and feature
        for name, feature in example.items()
    ):
        raise UsageError(f"example is {example!r}: give {{field: feature}}")
    if not isinstance(normalized.get("verify", False), bool):
        raise UsageError(f"verify is {normalized['verify']!r}: use True or False")
    if not normalized.get("verify"):
        normalized.pop("verify", None)
    elif example:
        raise UsageError("verify=True is of whole records: leave example= out")
    if "example" in normalized:
        normalized["example"] = dict(example)
    label = normalized.get("label")
    if label is not None and (not isinstance(label, str) or not label):
        raise UsageError(f"label is {label!r}: name a feature, such as 'image/class/label'")
    return shards.normalize_extensions(normalized)


def sniff(head: bytes, name: str) -> bool:
    """True if the first length has its checksum: one in four billion others has it by chance."""
    if len(head) < 12:
        return name.lower().endswith(_SUFFIXES) and not head
    length, stored = struct.unpack_from("<QI", head)
    return bool(length < 1 << 62 and stored == mask_crc(head[:8]))


def build(
    store: Store,
    place: Location,
    progress: Progress | None,
    check: str = "length",
    verify: bool = False,
    example: Mapping[str, str] | None = None,
    label: str | None = None,
    extensions: Sequence[str] = (),
) -> Index:
    """The index of all records of the files, in their order."""
    example = example or {}
    names = list(dict.fromkeys([*example.values(), *([label] if label is not None else [])]))
    files, sources = shards.list_files(store, place, progress, extensions)
    walked = store.parse(files, lambda _, source: _walk_file(source, check, names), progress)
    file = shards.make_file_column([len(records.offset) for records in walked])
    shards.check_any(files, len(file), "records")
    fields, layouts = [], []
    for name, feature in example.items():
        dtype, offset, length = _find_extents(files, walked, names.index(feature), feature)
        fields.append(Field(name, dtype, None))
        layouts.append(RowTable(file, offset, length))
    if not fields:
        fields.append(Field("data", np.dtype(np.uint8), None))
        offset = np.concatenate([each.offset for each in walked])
        length = np.concatenate([each.length for each in walked])
        layouts.append(RowTable(file, offset, length))
        if verify:
            fields.append(Field(SUMS_FIELD, np.dtype("<u4"), ()))
            layouts.append(RowTable(file, offset + length, np.full_like(length, 4)))
    return Index(
        format="tfrecord",
        files=files,
        fields=tuple(fields),
        layouts=tuple(layouts),
        sources=sources,
        label_column=None
        if label is None
        else _take_labels(files, walked, names.index(label), label),
    )


def _walk_file(source: StoreFile, check: str, names: list[str]) -> TfRecords:
    unsupported.refuse_compressed(source, "TFRecord file")
    records = source.walk("tfrecord", check=check, features=names)
    columns = [records[part] for part in _COLUMNS] if names else []
    features = [
        RecordFeature(*(column[i :: len(names)] for column in columns)) for i in range(len(names))
    ]
    return TfRecords(records["offset"], records["length"], features)


def _find_extents(
    files: Files, walked: list[TfRecords], number: int, name: str
) -> tuple[np.dtype[Any], Int, Int]:
    """Find the dtype of a feature, and its place in each record."""
    kinds = {int(kind) for each in walked for kind in np.unique(each.features[number].kind)}
    for file, records in enumerate(walked):
        feature = records.features[number]
        wrong = feature.offset < 0
        wrong |= (feature.kind == _BYTES) & (feature.values != 1)
        wrong |= (feature.kind != _BYTES) & (feature.kind != _FLOATS)
        for row in np.flatnonzero(wrong)[:1]:
            raise _refused_error(files, file, records, int(row), name, feature)
    if len(kinds) > 1:
        raise FormatError(f"{files.path(0)} and others: {name!r} is bytes here, floats there")
    dtype = np.dtype(np.uint8) if kinds == {_BYTES} else np.dtype("<f4")
    offset = np.concatenate([each.features[number].offset for each in walked])
    return dtype, offset, np.concatenate([each.features[number].length for each in walked])


def _take_labels(files: Files, walked: list[TfRecords], number: int, name: str) -> Int:
    for file, records in enumerate(walked):
        feature = records.features[number]
        for row in np.flatnonzero((feature.kind != _INTEGERS) | (feature.values != 1))[:1]:
            raise _refused_error(files, file, records, int(row), name, feature, "one integer")
    return np.concatenate([each.features[number].first for each in walked])


def _refused_error(
    files: Files,
    file: int,
    walked: TfRecords,
    row: int,
    name: str,
    feature: RecordFeature,
    want: str = "",
) -> FormatError:
    kind, count = int(feature.kind[row]), int(feature.values[row])
    has = f"{count:,} {_KINDS[kind]}" if kind else "nothing of that name"
    want = want or "one byte string, or floats in one piece"
    more = "; decode with penstock.index.parse_example" if kind else ""
    return FormatError(
        f"{files.path(file)}: at byte {walked.offset[row]:,}: record {row:,} has {has} for the "
        f"feature {name!r}, which must be {want}: correct the name, or leave it out{more}"
    )
