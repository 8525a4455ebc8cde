"""Records of any length, one after the other: TFRecord, and MXNet RecordIO.

TFRecord has each record between checksums. A file has no index: all of it is walked, by small reads
if records are large. The checksum of each length is always compared, the data's on request: once,
when the file is walked (`check="all"`), or whenever a record is read (`verify=True`). `example`
makes fields of features: each value is verbatim in the file, so that only the wanted ones are read
later. Files compressed as a whole have no extents and are refused.

RecordIO cuts records in parts where their data hold the magic. The magic that was cut out follows
each part but the last. A piece four bytes longer than its part contains it, so that records are
read as they were written. `label="header"` reads the image header (IRHeader: flag, label, id, id2;
24 bytes) that im2rec puts before each image. The header is then left out of the field, unless
`header="keep"`. A `.idx` file beside is not needed and not read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...engine.store import StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int
from ..fields import SUMS_FIELD, Field, mask_crc
from ..layout import Layout, RowTable
from ..table import Index
from . import detection, options, shards
from .shards import Scan

_KINDS = ("absent", "bytes", "floats", "integers")
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
_COLUMNS = ("kind", "values", "offset", "length", "value")
_SUFFIXES = (".tfrecord", ".tfrecords")


class RecordFeature(NamedTuple):
    """A feature in the records of one file; `first` is the first integer."""

    kind: npt.NDArray[np.uint8]
    values: Int
    offset: Int
    length: Int
    first: Int


class TfRecords(NamedTuple):
    """The records of one file, and their features by name."""

    offset: Int
    length: Int
    features: dict[str, RecordFeature]


def normalize_tfrecord(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    if given.get("verify") and given.get("example"):
        raise UsageError("verify=True is of whole records: leave example= out")
    return options.normalize(
        given,
        check=options.one_of("none", "length", "all", is_kept=True),
        verify=options.one_of(False, True),
        example=options.paths,
        label=options.text("the name of a feature, such as 'image/class/label'", 1),
        extensions=options.EXTENSIONS,
    )


def sniff_tfrecord(head: bytes, name: str) -> bool:
    """True if the first length has its checksum: one in four billion others has it by chance."""
    if len(head) < 12:
        return name.lower().endswith(_SUFFIXES) and not head
    length, stored = struct.unpack_from("<QI", head)
    return bool(length < 1 << 62 and stored == mask_crc(head[:8]))


def build_tfrecord(
    scan: Scan,
    check: str = "length",
    verify: bool = False,
    example: Mapping[str, str] | None = None,
    label: str | None = None,
    extensions: Sequence[str] = (),
) -> Index:
    """The index of all records of the files, in their order."""
    example = example or {}
    names = list(dict.fromkeys([*example.values(), *([label] if label is not None else [])]))
    files, sources = scan.list_files(extensions)
    settings = {"check": check, "features": names}

    def walk(_: int, source: StoreFile) -> dict[str, Any]:
        detection.refuse_compressed(source, "TFRecord file")
        return source.walk("tfrecord", **settings)

    pieces = scan.parse_pieces(
        files,
        walk,
        lambda source, start, stop: _walk_piece(source, start, stop, settings),
        _join_pieces,
    )
    walked = [_name_features(records, names) for records in pieces]
    shards.check_any(files, sum(len(records.offset) for records in walked), "records")
    whole = shards.lay_out_extents([one.offset for one in walked], [one.length for one in walked])
    fields, layouts = [], []
    for name, feature in example.items():
        dtype = _find_dtype(files, walked, feature)
        features = [records.features[feature] for records in walked]
        offset, length = (np.concatenate([one[side] for one in features]) for side in (2, 3))
        fields.append(Field(name, dtype, None))
        layouts.append(RowTable(whole.file, offset, length))
    if not fields:
        fields.append(Field("data", np.dtype(np.uint8), None))
        layouts.append(whole)
        if verify and whole.offset is not None:
            ends, four = whole.offset + whole.length, np.full_like(whole.length, 4)
            fields.append(Field(SUMS_FIELD, np.dtype("<u4"), ()))
            layouts.append(RowTable(whole.file, ends, four))
    labels = None
    if label is not None:
        features = [records.features[label] for records in walked]
        wrong = [(one.kind != _INTEGERS) | (one.values != 1) for one in features]
        _refuse(files, walked, label, wrong, "one integer")
        labels = np.concatenate([one.first for one in features])
    return Index("tfrecord", files, tuple(fields), tuple(layouts), sources, label_column=labels)


def _walk_piece(
    source: StoreFile, start: int, stop: int, settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Walk the records that begin within [start, stop); None if none does, or at a flaw, as what
    has it may be no record: walked whole, the file has the right error."""
    try:
        records = source.walk("tfrecord", begin=start, stop=stop, **settings)
    except FormatError:
        return None
    return {**records, "size": source.size} if len(records["offset"]) else None


def _join_pieces(pieces: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Join the records of a file's pieces; None if it has to be walked whole: a piece begins where
    a record seems to, and one does if the piece before it ends there."""
    begins, ends, sizes = ([one[name] for one in pieces] for name in ("begin", "end", "size"))
    if [0, *ends] != [*begins, *sizes[:1]]:
        return None
    return {name: np.hstack([piece[name] for piece in pieces]) for name in pieces[0]}


def _name_features(records: Mapping[str, Any], names: list[str]) -> TfRecords:
    features = {
        name: RecordFeature(*(records[f"feature_{column}"][i :: len(names)] for column in _COLUMNS))
        for i, name in enumerate(names)
    }
    return TfRecords(records["offset"], records["length"], features)


def _find_dtype(files: Files, walked: list[TfRecords], name: str) -> np.dtype[Any]:
    """Find the dtype of a feature that each record has in one piece, of one kind in all."""
    features = [records.features[name] for records in walked]
    wrong = [
        (one.offset < 0)
        | ((one.kind != _BYTES) & (one.kind != _FLOATS))
        | ((one.kind == _BYTES) & (one.values != 1))
        for one in features
    ]
    _refuse(files, walked, name, wrong, "one byte string, or floats in one piece")
    kinds = {kind for one in features for kind in np.unique(one.kind).tolist()}
    if len(kinds) > 1:
        raise FormatError(f"{files.path(0)} and others: {name!r} is bytes here, floats there")
    return np.dtype(np.uint8) if kinds == {_BYTES} else np.dtype("<f4")


def _refuse(
    files: Files, walked: list[TfRecords], name: str, wrong: Sequence[npt.NDArray[Any]], want: str
) -> None:
    """Raise FormatError for the first record whose feature is wrong."""
    for file, records in enumerate(walked):
        for row in np.flatnonzero(wrong[file])[:1].tolist():
            feature = records.features[name]
            kind, count = int(feature.kind[row]), int(feature.values[row])
            has = f"{count:,} {_KINDS[kind]}" if kind else "nothing of that name"
            what = f"{files.path(file)}: at byte {records.offset[row]:,}: record {row:,} has {has}"
            remedy = "correct the name, or leave it out"
            raise FormatError(f"{what} for the feature {name!r}, not {want}: {remedy}")


# -- RecordIO --------------------------------------------------------------------------------------

_MAGIC = (0xCED7230A).to_bytes(4, "little")


def normalize_recordio(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    label = options.one_of("header", is_kept=True)
    header = options.one_of("keep", "strip", is_kept=True)
    return options.normalize(given, label=label, header=header, extensions=options.EXTENSIONS)


def sniff_recordio(head: bytes, name: str) -> bool:
    """True if a file begins with the magic of a record, or is an empty .rec file."""
    return head.startswith(_MAGIC) or (not head and name.lower().endswith(".rec"))


def build_recordio(
    scan: Scan,
    label: str | None = None,
    header: str | None = None,
    extensions: Sequence[str] = (".rec",),
) -> Index:
    """The index of all records of the files, in their order."""
    strip = header == "strip" if header is not None else label is not None
    files, sources = scan.list_files(extensions)
    walked = scan.parse(
        files, lambda _, source: source.walk("recordio", header=label is not None, strip=strip)
    )
    offsets, lengths = ([records[side] for records in walked] for side in ("offset", "length"))
    counts = np.concatenate([np.diff(records["first"]) for records in walked])
    shards.check_any(files, len(counts), "records")
    layout: Layout = shards.lay_out_extents(offsets, lengths)
    if (counts != 1).any():
        layout = shards.lay_out_pieces(counts, offsets, lengths)
    field = Field("data", np.dtype(np.uint8), None)
    labels = _convert_labels(files, walked) if label is not None else None
    return Index("recordio", files, (field,), (layout,), sources, label_column=labels)


def _convert_labels(files: Files, walked: list[dict[str, Any]]) -> Int:
    columns = []
    for file, records in enumerate(walked):
        label, flag = records["label"], records["flag"]
        with np.errstate(invalid="ignore"):
            whole = np.where(np.isfinite(label) & (np.abs(label) < 2**62), label, 0.5)
        wrong = (flag > 0) | (whole != np.floor(whole))
        for row in np.flatnonzero(wrong)[:1]:
            has = f"{flag[row]:,} labels" if flag[row] else f"the label {label[row]}"
            raise FormatError(f"{files.path(file)}: record {row:,} has {has}: leave label= out")
        columns.append(label.astype(np.int64))
    return np.concatenate(columns)
