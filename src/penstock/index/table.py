"""Index: every sample of a dataset as extents, for every container.

Each field of the samples has a layout of its own, see `layout`: arithmetic for records of
one size, so that a thousand million samples need no memory, and explicit columns for others.

An index is a value: nothing changes it. Its fingerprint identifies the data (format, geometry,
names, sizes, labels). It does not depend on the place or the time of writing, so that a copy has
the same fingerprint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..errors import FormatError, UsageError
from ..extent import Extents, Files, Int, Names
from . import sidecar
from .attributes import Attribute, rebuild_attribute
from .clips import ClipCut, Clips
from .fields import SUMS_FIELD, Codec, Field
from .layout import (
    Boxes,
    Chunked,
    Fixed,
    Layout,
    Pieces,
    RowTable,
    Windowed,
    Windows,
    rebuild_layout,
)
from .windows import take_column

_COLUMNS = {"names": np.uint8, "ends": np.int64, "size": np.int64, "mtime_ns": np.int64}
"""Columns of a table of files, and their types in a saved index."""
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)

Samples = npt.NDArray[Any]
"""Sample numbers: any integers; uint64 and int64 are used as they are."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Place of every sample of a dataset.

    files:    the files that hold samples, with the size and time that reads are checked against.
    fields:   the parts of a sample; `layouts` has the place of each.
    classes:  names of the classes, if labels are numbers of names.
    label_column:  int64 (count,), or None.
    names:    the samples' own names (keys), if the container has them.
    sources:  files and folders (of size -1) that must be unchanged for the index to be valid.
    options:  options that the data was opened with, as far as the index depends on them.
    stamp:    state that the format read from the files, of JSON types, compared when a saved index
              is opened: it tells one state of the data from another, beside size and time.
    attributes:  values of the samples that the index itself holds.
    joined:  after `penstock.join`, its identity with what that added, and a note. It is not saved.
    row_bytes:  of each field, the length that all samples have, or None if lengths differ.
    has_derived_fields:  whether batches have fields that are made of those that are stored, or rows
              that are compared with their checksums.
    racy:     True if the data changed so shortly before the index was made that a later change
              might not show in its time. Such an index is used once, and made anew at the next
              open.
    """

    format: str
    files: Files
    fields: tuple[Field, ...]
    layouts: tuple[Layout, ...]
    sources: Files
    classes: tuple[str, ...] | None = None
    label_column: Int | None = None
    names: Names | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stamp: Any = None
    racy: bool = False
    fingerprint: str = ""
    attributes: tuple[Attribute, ...] = ()
    row_bytes: tuple[int | None, ...] = ()
    has_derived_fields: bool = False
    joined: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_bytes", tuple(layout.row_bytes for layout in self.layouts))
        derived = bool(self.attributes) or any(
            any((field.as_dtype, field.vocabulary, field.parser, field.text))
            or field.name == SUMS_FIELD
            or field.made_shape is not None
            for field in self.fields
        )
        object.__setattr__(self, "has_derived_fields", derived)
        for field in self.fields:
            try:
                np.empty((0, *(field.shape or field.element)), field.dtype)
            except (ValueError, OverflowError) as error:
                path = self.files.path(0) if len(self.files) else self.files.root
                what = f"{path}: no array can hold a batch of field {field.name!r} ({error})"
                raise FormatError(f"{what}: give a smaller shape, or leave it out") from None
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", _hash_identity(self))

    @property
    def identity(self) -> str:
        """Identity with what was joined; lengths, selections and caches have the fingerprint."""
        return self.fingerprint if self.joined is None else self.joined[0]

    @property
    def version(self) -> str:
        """Version of the data at this place: a hash of the identity, and of the time of writing
        (objects: the etag) of each file, and of `stamp`. 10 ms for a million files.

        Copies of the same data have one identity and, unless their times were copied too, several
        versions. Whatever keeps bytes beyond an epoch names the version that they are of.
        """
        state = hashlib.blake2b(self.fingerprint.encode(), digest_size=16)
        _absorb(state, "times", self.files.mtime_ns)
        state.update(json.dumps(self.stamp, sort_keys=True).encode())
        return state.hexdigest()

    # -- samples -----------------------------------------------------------------------------

    @property
    def made(self) -> tuple[Field, ...]:
        """The fields of a sample: those that are read, and the attributes."""
        annotations = (
            Field(
                attribute.name, attribute.dtype, attribute.shape if attribute.ends is None else None
            )
            if attribute.kind == "numbers"
            else Field(attribute.name, attribute.dtype, ())
            for attribute in self.attributes
        )
        return (*(made for field in self.fields for made in field.made), *annotations)

    @property
    def count(self) -> int:
        """The number of samples."""
        return self.layouts[0].count

    def __len__(self) -> int:
        return self.count

    @property
    def total_bytes(self) -> int:
        """Bytes of all samples, all fields; of the arrays, where samples are windows of them."""
        own = (n for n in range(len(self.layouts)) if _find_same_chunks(self.layouts, n) is None)
        return sum(self.layouts[number].total_bytes for number in own)

    @property
    def mean_bytes(self) -> float:
        """Bytes of a sample, on average."""
        return sum(
            layout.mean_bytes
            if isinstance(layout, Boxes | Windowed)
            else layout.total_bytes / max(1, layout.count)
            for layout in self.layouts
        )

    def extents(self, samples: Samples, field: int = 0) -> Extents:
        """Return the extents of samples, one row each. The arrays may be read-only.

        UsageError if a number is not a sample's, or if samples are not single extents.
        """
        layout = self.layouts[field]
        if isinstance(layout, Pieces | Boxes | Chunked):
            raise UsageError(f"field {self.fields[field].name!r} is in pieces: use Index.units")
        return layout.extents(self._checked(samples))

    def lengths(self, samples: Samples, field: int = 0) -> Int:
        """Return the bytes of each sample; UsageError if they are only known after decoding."""
        layout = self.layouts[field]
        if isinstance(layout, Chunked):
            raise UsageError(f"field {self.fields[field].name!r} has to be decoded: read it")
        return layout.lengths(self._checked(samples))

    def units(self, units: Samples, field: int = 0) -> tuple[Extents, Int | None]:
        """Return the extents of units: samples or compressed chunks, read as a whole.

        See `layout`. The extents are one unit after the other; the second value is the number of
        extents of each, or None if each has one.
        """
        layout = self.layouts[field]
        if isinstance(layout, Chunked):
            return layout.pieces(units.view(np.int64))
        return layout.pieces(self._checked(units))

    def labels(self, samples: Samples) -> Int | None:
        """Return the label of each sample, or None if the data has none."""
        if self.label_column is None:
            return None
        return self.label_column.take(self._checked(samples))

    def key(self, sample: int) -> str:
        """Return the name of a sample.

        Its file's path, with "#" and a number if a file has several.
        """
        return self.keys(np.array([sample]))[0]

    def keys(self, samples: Samples) -> list[str]:
        """Return the names of samples."""
        at = self._checked(samples)
        if self.names is not None:
            return [self.names[sample] for sample in at.tolist()]
        layout = self.layouts[0]
        if isinstance(layout, RowTable) and layout.file is None:
            return [self.files.name(file) for file in at.tolist()]
        if isinstance(layout, Fixed):
            file = layout.file_of(at)
            number = at - layout.first[file]
        elif isinstance(layout, RowTable):
            assert layout.file is not None
            file = layout.file[at].astype(np.int64)
            is_one = layout.only_file is not None
            number = at - (0 if is_one else np.searchsorted(layout.file, file))
        elif isinstance(layout, Boxes | Windows) and layout.grid.files and self.format != "zarr":
            file = layout.grid.find_files(at)
            number = at - layout.grid.files.first[file]
        elif isinstance(layout, Clips) and isinstance(layout.cut, ClipCut):
            file = layout.cut.find_films(at)
            number = at - layout.cut.first[file]
        else:
            return [f"{self.format}#{sample}" for sample in at.tolist()]
        # Few files, many samples of each: every name is made once.
        names = {one: self.files.name(one) for one in np.unique(file).tolist()}
        return [f"{names[one]}#{n}" for one, n in zip(file.tolist(), number.tolist(), strict=True)]

    @property
    def counts_over_files(self) -> bool:
        """True if keys count samples over several files: a new file would change them.

        The files of a Zarr array are its chunks.
        """
        layout = self.layouts[0]
        has_own = isinstance(layout, Fixed | RowTable) or self.names is not None
        has_own |= isinstance(layout, Clips) and isinstance(layout.cut, ClipCut)
        return not has_own and len(self.files) > 1 and self.format != "zarr"

    def where(self, sample: int, field: int = 0) -> str:
        """Describe the place of a sample, for messages."""
        layout, at = self.layouts[field], np.array([sample])
        within = ""
        if isinstance(layout, Chunked):
            at, row = layout.find_chunks(at)
            within = f", unpacked: row {row[0]}"
            if isinstance(layout, Windowed) and layout.packets is not None:
                within = f", clip {self.key(sample).rpartition('#')[2]}"
        extents, _ = layout.pieces(at)
        if not len(extents.file):
            return f"{self.files.path(0)} (an empty sample)"
        file, offset, length = (int(extent[0]) for extent in extents)
        more = f" and {len(extents.file) - 1} more pieces" if len(extents.file) > 1 else ""
        return f"{self.files.path(file)} at byte {offset:,} ({length:,} bytes{more}{within})"

    def _checked(self, samples: Samples) -> Int:
        """Check samples and return them as int64.

        Seen as unsigned, negative numbers are too large, so that one pass finds both.
        """
        if samples.dtype.kind not in "ui" or samples.ndim != 1:
            raise UsageError(f"samples are {samples.dtype} {samples.shape}: use a row of integers")
        wide = samples if samples.itemsize == 8 else samples.astype(np.int64)
        if len(wide) and int(wide.view(np.uint64).max()) >= self.count:
            unsigned = wide.view(np.uint64)
            wrong = samples[int(np.argmax(unsigned))]
            raise UsageError(f"sample {wrong} does not exist: there are {self.count:,}, from 0 on")
        return wide.view(np.int64)

    # -- saving --------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sidecar, completely or not at all. OSError if that fails."""
        if self.joined is not None:
            raise UsageError(f"{path}: save the index of the data, and join again")
        header, sections = _pack_index(self)
        sidecar.write_sidecar(os.fspath(path), header, sections)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        root: str | None = None,
        verify: bool | None = None,
        *,
        outside: bool = False,
    ) -> Index:
        """Load a saved index by memory map; SidecarError if it is damaged.

        root:    where the data is now; by default where it was.
        verify:  True reads and checks everything; by default this is done for sidecars of at most
                 `limits.sidecar_bytes_verified_max` bytes.
        outside: True if it may name files outside the root, because this user has written it, and
                 not whoever the data came from.
        """
        where = os.fspath(path)
        header, sections = sidecar.read_sidecar(where, verify)
        if verify is None:
            verify = os.path.getsize(where) <= limits.sidecar_bytes_verified_max
        try:
            index = _unpack_index(header, sections, root)
            ways_out = () if outside else (find_outside(index.files), find_outside(index.sources))
            flaw = next(
                (f"it names {name!r}, which is not below it" for name in ways_out if name), None
            )
            if flaw is None and verify:
                flaw = _find_flaw(index, int(header["count"]))
        except _MALFORMED as error:
            raise sidecar.damaged_error(where, f"the header is malformed ({error!r})") from None
        if flaw is not None:
            raise sidecar.damaged_error(where, flaw)
        return index


# -- identity --------------------------------------------------------------------------------------


def _hash_identity(index: Index) -> str:
    """Hash the identity of the data to 128 bits; its place and time of writing do not count."""
    state = hashlib.blake2b(digest_size=16)
    for layout, field in zip(index.layouts, index.fields, strict=True):
        record = layout.record_bytes if isinstance(layout, Fixed) else None
        state.update(repr((field.name, field.dtype.str, field.shape, record)).encode())
        if isinstance(layout, Fixed) and layout.stride_bytes != layout.record_bytes:
            state.update(f"stride:{layout.stride_bytes};".encode())
        if field.nesting:
            state.update(f"nesting:{field.nesting};".encode())
        if field.codec is not None:
            codec = json.dumps([field.codec.name, dict(field.codec.options)], sort_keys=True)
            state.update(codec.encode())
        if field.text:
            state.update(f"text:{field.text};".encode())
        if field.made_shape is not None:
            state.update(f"made:{field.made_shape};".encode())
        if isinstance(layout, Boxes | Windowed):
            state.update(json.dumps(layout.described(), sort_keys=True).encode())
        for name, values in layout.sections("", index.files).items():
            _absorb(state, name, values)
    state.update(repr((index.format, index.count, index.classes)).encode())
    _absorb(state, "names", index.files.names)
    _absorb(state, "ends", index.files.ends)
    _absorb(state, "size", index.files.size)
    if index.label_column is not None:
        _absorb(state, "labels", index.label_column)
    if index.names is not None:
        _absorb(state, "keys", index.names.text)
        _absorb(state, "key ends", index.names.ends)
    for attribute in index.attributes:
        absorb_attribute(state, attribute)
    return state.hexdigest()


def absorb_attribute(state: hashlib.blake2b, attribute: Attribute) -> None:
    """Add an attribute to what is hashed."""
    state.update(json.dumps(attribute.describe()).encode())
    for name, column in attribute.sections("attribute").items():
        _absorb(state, name, column)


def _absorb(state: hashlib.blake2b, name: str, column: npt.NDArray[Any]) -> None:
    state.update(f"{name}:{column.dtype.str}:{column.size};".encode())
    state.update(np.ascontiguousarray(column).data)


# -- sidecar ---------------------------------------------------------------------------------------


def _pack_index(index: Index) -> tuple[sidecar.Header, dict[str, npt.NDArray[Any]]]:
    """Pack the index into a JSON header and sections."""
    shared = index.sources is index.files
    tables = {"files": index.files} if shared else {"files": index.files, "sources": index.sources}
    sections = {
        f"{name}.{key}": getattr(files, key) for name, files in tables.items() for key in _COLUMNS
    }
    shares = [_find_same_chunks(index.layouts, number) for number in range(len(index.layouts))]
    for number, (layout, same) in enumerate(zip(index.layouts, shares, strict=True)):
        sections |= {} if same is not None else layout.sections(f"field{number}", index.files)
    if index.label_column is not None:
        sections["labels"] = index.label_column
    if index.names is not None:
        sections |= {"keys.text": index.names.text, "keys.ends": index.names.ends}
    for number, attribute in enumerate(index.attributes):
        sections |= attribute.sections(f"attribute{number}")
    header = {
        "format": index.format,
        "count": index.count,
        "root": index.files.root,
        "fields": [
            {
                "name": field.name,
                "dtype": field.dtype.str,
                "shape": field.shape,
                **field.nesting,
                **layout.described(),
                **({} if same is None else {"chunks_of": same}),
                **({"codec": [field.codec.name, dict(field.codec.options)]} if field.codec else {}),
                **({"text": field.text} if field.text else {}),
                **({} if field.made_shape is None else {"made": field.made_shape}),
            }
            for field, layout, same in zip(index.fields, index.layouts, shares, strict=True)
        ],
        "classes": index.classes,
        "options": dict(index.options),
        "stamp": index.stamp,
        "sources": "files" if shared else "own",
        "racy": index.racy,
        "fingerprint": index.fingerprint,
    }
    if index.attributes:
        header["attributes"] = [attribute.describe() for attribute in index.attributes]
    return header, sections


def _find_same_chunks(layouts: Sequence[Layout], number: int) -> int | None:
    """Find the first field whose windows are of the same chunks: they are saved once."""
    layout = layouts[number]
    if not isinstance(layout, Windows):
        return None
    return next(
        (
            before
            for before, other in enumerate(layouts[:number])
            if isinstance(other, Windows) and other.chunks is layout.chunks
        ),
        None,
    )


def _unpack_index(
    header: sidecar.Header, sections: Mapping[str, npt.NDArray[Any]], root: str | None
) -> Index:
    """Rebuild the index of a header and sections; builtin errors if they do not fit."""
    where = str(header["root"]) if root is None else root
    files = _take_files(sections, "files", where)
    sources = files if header["sources"] == "files" else _take_files(sections, "sources", where)
    described = list(header["fields"])
    classes = header["classes"]
    names = None
    if "keys.ends" in sections:
        text = take_column(sections, "keys.text", np.uint8)
        names = Names(text, take_column(sections, "keys.ends", np.int64))
    layouts: list[Layout] = []
    for number, field in enumerate(described):
        same = None if field.get("chunks_of") is None else layouts[int(field["chunks_of"])]
        layouts.append(rebuild_layout(field, f"field{number}", sections, files, same))
    return Index(
        format=str(header["format"]),
        files=files,
        fields=tuple(_rebuild_field(field) for field in described),
        layouts=tuple(layouts),
        sources=sources,
        classes=None if classes is None else tuple(str(name) for name in classes),
        label_column=take_column(sections, "labels", np.int64) if "labels" in sections else None,
        names=names,
        options=dict(header["options"]),
        stamp=header.get("stamp"),
        racy=bool(header["racy"]),
        fingerprint=str(header["fingerprint"]),
        attributes=tuple(
            rebuild_attribute(attribute, f"attribute{number}", sections, layouts)
            for number, attribute in enumerate(header.get("attributes", ()))
        ),
    )


def _take_files(sections: Mapping[str, npt.NDArray[Any]], prefix: str, root: str) -> Files:
    names, ends, size, mtime_ns = (
        take_column(sections, f"{prefix}.{key}", dtype) for key, dtype in _COLUMNS.items()
    )
    return Files(root, names, ends, size, mtime_ns)


def find_outside(files: Files) -> str | None:
    """Return the first name that leads out of the root of the files, or None.

    An absolute path does, and one with ".."; no path has a zero byte. Vectorised passes over the
    names.
    """
    begins = np.concatenate([[0], files.ends[:-1]])[np.diff(files.ends, prepend=0) > 0]
    suspects = np.searchsorted(begins, begins[files.names[begins] == ord("/")])
    places = np.flatnonzero((files.names[1:] == ord(".")) & (files.names[:-1] == ord(".")))
    places = np.concatenate([begins[suspects], places, np.flatnonzero(files.names == 0)])
    rows = np.unique(np.searchsorted(files.ends, places, side="right"))
    for row in rows.tolist():
        name = files.name(row)
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            return name
    return None


def _rebuild_field(described: Mapping[str, Any]) -> Field:
    dtype = np.dtype(str(described["dtype"]))
    if dtype.hasobject:
        raise ValueError(f"a field of {dtype}")
    shape = described["shape"]
    codec = described.get("codec")
    return Field(
        str(described["name"]),
        dtype,
        None if shape is None else tuple(int(n) for n in shape),
        None if codec is None else Codec(str(codec[0]), dict(codec[1])),
        text=str(described.get("text", "")),
        element=tuple(int(n) for n in described.get("element", ())),
        levels=tuple(int(width) for width in described.get("levels", ())),
        made_shape=None if (made := described.get("made")) is None else tuple(map(int, made)),
    )


def _find_flaw(index: Index, count: int) -> str | None:
    """Find a contradiction within the index: a message, or None."""
    for files in (index.files, index.sources):
        if not len(files.ends) == len(files.size) == len(files.mtime_ns):
            return "columns of the files differ in length"
        if flaw := _find_ends_flaw(files.ends, len(files.names)):
            return f"the names of files: {flaw}"
    if (index.files.size < 0).any():
        return "a file's size is negative"
    if not index.layouts or any(layout.count != count for layout in index.layouts):
        return f"the columns do not hold {count:,} samples"
    if count > limits.order_count_max:
        return f"{count:,} samples are more than limits.order_count_max"
    names, labels, classes = index.names, index.label_column, index.classes
    if names is not None:
        if len(names) != count:
            return "the keys do not match the samples"
        if flaw := _find_ends_flaw(names.ends, len(names.text)):
            return f"the keys: {flaw}"
    if labels is not None and len(labels) != count:
        return "there are not as many labels as samples"
    flaws = (attribute.find_flaw(count) for attribute in index.attributes)
    if flaw := next(filter(None, flaws), None):
        return flaw
    for column in (labels, *(extra.values for extra in index.attributes if extra.classes)):
        if column is None or classes is None:
            continue
        if ((column < 0) | (column >= len(classes))).any():
            return "a label is not the number of a class"
    for layout, field in zip(index.layouts, index.fields, strict=True):
        if isinstance(layout, Fixed | Boxes) and field.nbytes != layout.row_bytes:
            return f"field {field.name!r} does not fill its record"
        is_nested = {4, 8}.issuperset(field.levels) and min(field.element, default=1) >= 1
        if not is_nested or (field.codec is None) == isinstance(layout, Chunked):
            return f"field {field.name!r} is nested, or decoded, as no field is"
        if flaw := layout.flaw(index.files):
            return flaw
        made, shape = field.made_shape, field.shape
        if isinstance(layout, Boxes | Windows):
            grid = layout.grid
            fits = shape == (grid.room if isinstance(layout, Boxes) else grid.size)
            fits &= len(grid.fill) in ((0, 2 * field.dtype.itemsize) if made is not None else (0,))
            if not fits or (made is not None and math.prod(made) != math.prod(grid.size)):
                return f"field {field.name!r} is not of the shape of its windows"
        elif isinstance(layout, Clips):
            if shape != layout.window_shape or made not in (None, layout.shape[-len(made or ()) :]):
                return f"field {field.name!r} is not of the shape of its clips"
        elif made is not None:
            return f"field {field.name!r} has no windows"
    return None


def _find_ends_flaw(ends: Int, size: int) -> str | None:
    if (np.diff(ends, prepend=0) < 0).any():
        return "their ends are not monotonic"
    return "their ends do not match them" if (int(ends[-1]) if len(ends) else 0) != size else None
