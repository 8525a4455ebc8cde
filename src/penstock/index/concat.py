"""Index of several datasets: their samples and files, one dataset after the other.

Only names of files and labels are copied. A joint layout asks the layouts of its parts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..extent import Extents, Files, Int
from .attributes import Attribute
from .chunked import Array, Decoded
from .fields import SUMS_FIELD, Codec, Field
from .json_fields import Column
from .layout import Chunked, Fixed, Layout, Windowed
from .table import Index, Samples
from .windows import Columns


@dataclass(frozen=True, slots=True, eq=False)
class JointFiles:
    """Layouts of one field, one after the other.

    first:       int64 (parts + 1,), number of each part's first sample; the last is the count.
    first_file:  int64 (parts,), number of each part's first file.
    """

    parts: tuple[Layout, ...]
    first: Int
    first_file: Int

    @property
    def count(self) -> int:
        return int(self.first[-1])

    @property
    def row_bytes(self) -> int | None:
        sizes = {part.row_bytes for part in self.parts}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def total_bytes(self) -> int:
        return sum(part.total_bytes for part in self.parts)

    def pieces(self, samples: Int) -> tuple[Extents, Int | None]:
        counts = np.ones(len(samples), np.int64)
        shares = []
        plain = True
        for number, rows, part_samples in split_by_part(self.first, samples):
            share, pieces = self.parts[number].pieces(part_samples)
            shares.append((number, rows, share))
            if pieces is not None:
                counts[rows] = pieces
                plain = False
        start = np.cumsum(counts) - counts
        total = int(counts.sum())
        extents = Extents(
            np.empty(total, np.uint32), np.empty(total, np.int64), np.empty(total, np.int64)
        )
        for number, rows, share in shares:
            at, sizes = rows, counts[rows]
            if not plain:  # the ranges from start on, of so many numbers each
                shift = start[rows] - np.cumsum(sizes) + sizes
                at = np.arange(len(share.file)) + np.repeat(shift, sizes)
            extents.file[at] = share.file + np.uint32(self.first_file[number])
            extents.offset[at] = share.offset
            extents.length[at] = share.length
        return extents, None if plain else counts

    def extents(self, samples: Int) -> Extents:
        return self.pieces(samples)[0]

    def lengths(self, samples: Int) -> Int:
        lengths = np.empty(len(samples), np.int64)
        for number, rows, part_samples in split_by_part(self.first, samples):
            lengths[rows] = self.parts[number].lengths(part_samples)
        return lengths

    def sections(self, prefix: str, files: Files) -> Columns:
        raise UsageError("the index of a mixture cannot be saved: save those of its datasets")


@dataclass(frozen=True, slots=True, eq=False)
class JointChunks(Chunked):
    """Layouts of one field, one after the other, where some have to be decoded.

    Units are the compressed chunks of such parts, and the samples of the others.

    first:   int64 (parts + 1,), number of each part's first sample; the last is the count.
    chunks:  of all units.
    fields:  the field in each part, with its own dtype, shape and codec.
    parts:   layout in each part.
    """

    chunks: JointFiles  # type: ignore[assignment]
    fields: tuple[Field, ...]
    parts: tuple[Layout, ...]

    @property
    def chunk_samples(self) -> Int:
        chunked = [part.chunk_samples for part in self.parts if isinstance(part, Chunked)]
        return np.concatenate([np.zeros(0, np.int64), *chunked])

    def find_chunks(self, samples: Int) -> tuple[Int, Int]:
        unit, row = np.empty(len(samples), np.int64), np.zeros(len(samples), np.int64)
        for number, at, units in split_by_part(self.first, samples):
            part, first_unit = self.parts[number], self.chunks.first[number]
            if isinstance(part, Chunked):
                units, row[at] = part.find_chunks(units)
            unit[at] = units + first_unit
        return unit, row


@dataclass(frozen=True, slots=True, eq=False)
class JointWindows(Windowed):
    """Windows of one field and one shape, one dataset after the other; as `JointChunks`."""

    chunks: JointFiles  # type: ignore[assignment]
    fields: tuple[Field, ...]
    parts: tuple[Windowed, ...]

    @property
    def window_shape(self) -> tuple[int, ...]:
        return self.parts[0].window_shape

    @property
    def chunk_elements(self) -> int:
        return max(part.chunk_elements for part in self.parts)

    @property
    def mean_bytes(self) -> float:
        return sum(part.mean_bytes * part.count for part in self.parts) / self.count

    def count_neighbours(self, elements: int) -> int:
        return min(part.count_neighbours(elements) for part in self.parts)

    def _find_part(self, chunk: int) -> tuple[int, int]:
        """Find the part that a chunk is of, and its number there."""
        number = int(np.searchsorted(self.chunks.first, chunk, side="right")) - 1
        return number, chunk - int(self.chunks.first[number])

    def list_parts(self, chunks: Int) -> list[tuple[Windowed, Codec | None, Int, Int]]:
        return [
            (self.parts[number], self.fields[number].codec, at, own)
            for number, at, own in split_by_part(self.chunks.first, chunks)
        ]

    def describe_inside(self, chunk: int) -> Mapping[str, Any]:
        number, own = self._find_part(chunk)
        return self.parts[number].describe_inside(own)

    def find_shape(self, chunk: int) -> tuple[int, ...]:
        number, own = self._find_part(chunk)
        return self.parts[number].find_shape(own)

    def count_rows(self, chunks: Int) -> Int:
        counts = np.empty(len(chunks), np.int64)
        for number, at, own in split_by_part(self.chunks.first, chunks):
            counts[at] = self.parts[number].count_rows(own)
        return counts

    def find_places(self, windows: Int) -> Int:
        """Return the windows: where they are in their part depends on the part."""
        return windows

    def name_origins(self, windows: Int) -> dict[str, Int]:
        """Return the dataset of each window, and where it starts there, by what all parts name."""
        source = np.searchsorted(self.first, windows, side="right") - 1
        shares = split_by_part(self.first, windows) or [(0, windows, windows)]
        back = np.argsort(np.concatenate([at for _, at, _ in shares]))
        named = [self.parts[number].name_origins(own) for number, _, own in shares]
        names = [name for name in named[0] if all(name in own for own in named)]
        joined = {name: np.concatenate([own[name] for own in named])[back] for name in names}
        return {"source": source, **joined}

    def find_pairs(self, samples: Int) -> tuple[Int, Int]:
        pairs = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        for number, at, own in split_by_part(self.first, samples):
            pair, chunk = self.parts[number].find_pairs(own)
            pairs.append((at[pair], chunk + self.chunks.first[number]))
        pair, chunk = map(np.concatenate, zip(*pairs, strict=True))
        order = np.argsort(pair, kind="stable")
        return pair[order], chunk[order]

    def measure_pieces(self, samples: Int, chunks: Int) -> Int:
        elements = np.empty(len(samples), np.int64)
        for number, at, own in split_by_part(self.chunks.first, chunks):
            windows = samples[at] - self.first[number]
            elements[at] = self.parts[number].measure_pieces(windows, own)
        return elements

    def find_frames(self, windows: Int, chunks: Int) -> tuple[Int, Int, Int]:
        shares = [np.zeros((3, 0), np.int64)]
        for number, at, own in split_by_part(self.chunks.first, chunks):
            pair, place, row = self.parts[number].find_frames(windows[at] - self.first[number], own)
            shares.append(np.array([at[pair], place, row]))
        pair, place, row = np.concatenate(shares, axis=1)
        return pair, place, row

    def overlap(self, chunk: int, places: Int) -> Iterator[tuple[Any, Any]]:
        part, own, places = self._locate(chunk, places)
        return part.overlap(own, places)

    def copy_overlaps(self, decoded: Sequence[Decoded], windows: Array, threads: int = 1) -> None:
        for chunk, values, places, rows in decoded:
            part, own, inside = self._locate(chunk, places)
            part.copy_overlaps([(own, values, inside, rows)], windows)

    def _locate(self, chunk: int, windows: Int) -> tuple[Windowed, int, Int]:
        number, own = self._find_part(chunk)
        return self.parts[number], own, self.parts[number].find_places(windows - self.first[number])


def split_by_part(first: Int, samples: Int) -> list[tuple[int, npt.NDArray[np.intp], Int]]:
    """Split samples by part: the part's number, rows in `samples`, and numbers within the part."""
    part = np.searchsorted(first, samples, side="right") - 1
    shares = []
    for number in np.unique(part).tolist():
        rows = np.flatnonzero(part == number)
        shares.append((number, rows, samples[rows] - first[number]))
    return shares


@dataclass(frozen=True, slots=True, eq=False)
class JointAttribute(Attribute):
    """Attribute of several datasets, one after the other.

    parts:  of each dataset.
    first:  int64 (parts + 1,), number of each part's first sample; the last is the count.
    """

    parts: tuple[Attribute, ...] = ()
    first: Int = field(default_factory=lambda: np.zeros(1, np.int64))

    @property
    def count(self) -> int:
        return int(self.first[-1])

    def take(self, samples: Int) -> Column:
        shares = split_by_part(self.first, samples)
        taken: list[Any] = [self.parts[n].take(part_samples) for n, _, part_samples in shares]
        if len(taken) < 2:
            return taken[0] if taken else self.parts[0].take(samples)
        back = np.empty(len(samples), np.int64)
        back[np.concatenate([rows for _, rows, _ in shares])] = np.arange(len(samples))
        if isinstance(taken[0], list):
            values = [value for column in taken for value in column]
            return [values[row] for row in back.tolist()]
        if self.ends is None:
            joined: npt.NDArray[Any] = np.concatenate(taken).take(back, axis=0)
            return joined
        ends = np.cumsum(np.concatenate([np.diff(offsets) for _, offsets in taken]))
        joined = np.concatenate([rows for rows, _ in taken])
        return Attribute(self.name, "numbers", joined, ends).take(back)

    def convert_integers(self, dtype: np.dtype[Any]) -> Attribute:
        return replace(self, parts=tuple(part.convert_integers(dtype) for part in self.parts))


class JointIndex(Index):
    """Index with the samples of `parts`, one part after the other. It is not saved."""

    __slots__ = ("first", "parts")

    parts: tuple[Index, ...]
    first: Int

    def keys(self, samples: Samples) -> list[str]:
        """Return the names of samples, as their own datasets name them."""
        names = [""] * len(samples)
        for number, rows, part_samples in split_by_part(self.first, self._checked(samples)):
            for row, key in zip(rows.tolist(), self.parts[number].keys(part_samples), strict=True):
                names[row] = key
        return names

    @property
    def counts_over_files(self) -> bool:
        """True if the keys of a dataset count samples over several files."""
        return any(part.counts_over_files for part in self.parts)

    def where(self, sample: int, field: int = 0) -> str:
        """Describe the place of a sample, as its own dataset does."""
        ((number, _, part_samples),) = split_by_part(self.first, np.array([sample]))
        return self.parts[number].where(int(part_samples[0]), field)

    def save(self, path: str | os.PathLike[str]) -> None:
        raise UsageError(f"{path}: save the indexes of a mixture's datasets, not the mixture's")


def join_indexes(indexes: Sequence[Index], has_shapes: bool = True) -> JointIndex:
    """Join indexes into one.

    has_shapes:  False if fields of the joint index have no shape, whatever their parts have.

    UsageError if their fields differ. The message names the dataset by its number.
    """
    for number, index in enumerate(indexes):
        _check_alike(indexes[0], index, number)
    first = np.cumsum([0, *(index.count for index in indexes)], dtype=np.int64)
    first_file = np.cumsum([0, *(len(index.files) for index in indexes)], dtype=np.int64)
    known: dict[tuple[int, ...], JointFiles] = {}  # so that a target has the chunks of its windows
    joined = [
        _join_field(
            tuple(index.fields[field] for index in indexes),
            tuple(index.layouts[field] for index in indexes),
            first,
            first_file[:-1],
            known,
        )
        for field in range(len(indexes[0].fields))
    ]
    digest = hashlib.blake2b(digest_size=16)
    for index in indexes:
        digest.update(index.identity.encode())
    labels = [index.label_column for index in indexes if index.label_column is not None]
    classes = {index.classes for index in indexes}
    joint = JointIndex(
        format="mixture",
        files=_join_files([index.files for index in indexes]),
        fields=tuple(field if has_shapes else replace(field, shape=None) for field, _ in joined),
        layouts=tuple(layout for _, layout in joined),  # type: ignore[misc]
        sources=_join_files([index.sources for index in indexes]),
        classes=indexes[0].classes if len(classes) == 1 else None,
        # With different classes, the same number would mean something else.
        label_column=np.concatenate(labels) if labels and len(classes) == 1 else None,
        fingerprint=digest.hexdigest(),
        attributes=tuple(
            JointAttribute(
                attribute.name,
                attribute.kind,
                attribute.values[:0],
                attribute.ends,
                attribute.classes,
                attribute.as_dtype,
                parts=tuple(index.attributes[number] for index in indexes),
                first=first,
            )
            for number, attribute in enumerate(indexes[0].attributes)
        ),
    )
    object.__setattr__(joint, "parts", tuple(indexes))
    object.__setattr__(joint, "first", first)
    return joint


def _join_field(
    fields: tuple[Field, ...],
    layouts: tuple[Layout, ...],
    first: Int,
    first_file: Int,
    known: dict[tuple[int, ...], JointFiles],
) -> tuple[Field, JointFiles | JointChunks | JointWindows]:
    """Join one field of all parts. What is compressed, or has several dtypes, is decoded."""
    coded = any(isinstance(layout, Chunked) for layout in layouts)
    if any(field.scaling is not None for field in fields):
        raise UsageError(f"field {fields[0].name!r} is normalised: mix data opened without it")
    windows = tuple(layout for layout in layouts if isinstance(layout, Windowed))
    alike = len({(field.dtype, field.as_dtype, field.shape) for field in fields}) == 1
    if any(field.made_shape is not None for field in fields) or (
        windows and not (alike and len(windows) == len(layouts))
    ):
        what = f"field {fields[0].name!r} is windows that are padded, or decoded in one part only"
        remedy = "give each its own loader, or windows of one shape and dtype, none of them padded"
        raise UsageError(f"{what}, not mixed yet: {remedy}")
    if not coded and len({field.dtype for field in fields}) == 1:
        return fields[0], JointFiles(layouts, first, first_file)
    units = tuple(layout.chunks if isinstance(layout, Chunked) else layout for layout in layouts)
    first_unit = np.cumsum([0, *(unit.count for unit in units)], dtype=np.int64)
    field = replace(fields[0], codec=Codec("mixture"))
    chunks = known.setdefault(tuple(map(id, units)), JointFiles(units, first_unit, first_file))
    if windows:
        return field, JointWindows(first, chunks, fields, windows)
    if not field.levels:  # whose bytes are more than values
        field = replace(field, dtype=field.as_dtype or field.dtype, as_dtype=None)
    return field, JointChunks(first, chunks, fields, layouts)


def rename_fields(index: Index, names: Mapping[str, str | None]) -> Index:
    """Return the index with fields of other names, and without those whose new name is None.

    UsageError if a field does not exist, or if two would have one name.
    """
    fields: tuple[Field, ...]
    parser = index.fields[0].parser
    known = [field.name for field in index.fields] if parser is None else [*parser.keys]
    extra = [attribute.name for attribute in index.attributes]
    for name in names:
        if name not in known and name not in extra:
            raise UsageError(f"rename: there is no field {name!r}, but {', '.join(known + extra)}")
    attributes = tuple(
        replace(attribute, name=names.get(attribute.name) or attribute.name)
        for attribute in index.attributes
        if names.get(attribute.name, attribute.name) is not None
    )
    kept = [number for number, name in enumerate(known) if names.get(name, name) is not None]
    if parser is not None:
        kept, fields = [0], (replace(index.fields[0], parser=parser.rename(names)),)
    else:
        fields = tuple(
            replace(index.fields[number], name=names.get(known[number]) or known[number])
            for number in kept
        )
    new = [made.name for field in fields for made in field.made]
    new += [attribute.name for attribute in attributes]
    if not fields or len(set(new)) < len(new):
        raise UsageError(f"rename: the fields would be {new}: give each its own name, and keep one")
    layouts = tuple(index.layouts[number] for number in kept)
    return replace(index, fields=fields, layouts=layouts, attributes=attributes)


def join_unlike_indexes(indexes: Sequence[Index]) -> JointIndex:
    """Join indexes of different fields: each sample has its own dataset's fields, and nothing of
    the others. Field `name` of dataset k is named "k/name", and has no shape. Lines are not parsed.

    UsageError if one is of a kind that cannot be joined; it names the dataset by its number.
    """
    spread = []
    for number, own_index in enumerate(indexes):
        if any(field.name == SUMS_FIELD for field in own_index.fields):
            raise UsageError(f"dataset {number} compares checksums: mix it without verify=True")
        if own_index.attributes:
            raise UsageError(f"dataset {number} has annotations: decode= does not mix those yet")
        absent = Fixed(np.array([0, own_index.count], np.int64), np.zeros(1, np.int64), 0)
        fields: list[Field] = []
        layouts: list[Layout] = []
        for owner, index in enumerate(indexes):
            for one_field, layout in zip(index.fields, index.layouts, strict=True):
                fields.append(replace(one_field, name=f"{owner}/{one_field.name}", parser=None))
                layouts.append(layout if owner == number else absent)
        labels = own_index.label_column
        if labels is None and any(index.label_column is not None for index in indexes):
            labels = np.full(own_index.count, -1, np.int64)
        spread.append(
            replace(
                own_index,
                fields=tuple(fields),
                layouts=tuple(layouts),
                classes=None,
                label_column=labels,
            )
        )
    return join_indexes(spread, has_shapes=False)


def _check_alike(one: Index, other: Index, number: int) -> None:
    def described(index: Index) -> list[tuple[Any, ...]]:
        return [
            (
                made.name,
                (made.dtype if made.levels else made.as_dtype or made.dtype).str,
                made.shape,
                *([f"vocabulary {made.vocabulary}"] if made.vocabulary else ()),
                *made.nesting.items(),
            )
            for made in index.made
        ]

    if described(one) != described(other):
        what = f"the fields of dataset {number} are {described(other)}, of dataset 0"
        remedy = "mix datasets of the same fields, use rename=, or a decode= for each"
        raise UsageError(f"{what} {described(one)}: {remedy}")
    if (one.label_column is None) != (other.label_column is None):
        raise UsageError(f"only one of dataset 0 and dataset {number} has labels: leave them out")
    shapes = [[attribute.shape for attribute in index.attributes] for index in (one, other)]
    if shapes[0] != shapes[1]:
        raise UsageError(f"annotations of datasets 0 and {number} differ in shape: {shapes}")
    if one.classes != other.classes and any(attribute.classes for attribute in one.attributes):
        raise UsageError(f"classes of dataset {number}: their numbers would mean two things")
    parsers = [index.fields[0].parser for index in (one, other)]
    if None not in parsers and parsers[0] != parsers[1]:
        raise UsageError(f"dataset {number} makes its fields in another way: open all alike")


def _join_files(tables: Sequence[Files]) -> Files:
    """Join the tables of files: under the root they share, or "/" with absolute names."""
    roots = {files.root for files in tables}
    alone = len(roots) == 1
    if any(files.mirrors for files in tables):
        raise UsageError("datasets of a mixture cannot have mirrors yet: open them without")
    if not alone and any("://" in root for root in roots):
        raise UsageError(f"the datasets are in different stores ({', '.join(sorted(roots))})")
    blobs, lengths = [], []
    for files in tables:  # no Python object is made for a name
        root = "" if alone else os.path.join(os.path.abspath(files.root), "").lstrip("/")
        prefix = os.fsencode(root)
        sizes = np.diff(files.ends, prepend=0) + len(prefix)
        blob = np.empty(int(sizes.sum()), np.uint8)
        starts = np.cumsum(sizes) - sizes
        is_name = np.ones(len(blob), bool)
        for place, byte in enumerate(prefix):
            blob[starts + place] = byte
            is_name[starts + place] = False
        blob[is_name] = files.names
        blobs.append(blob)
        lengths.append(sizes)
    return Files(
        roots.pop() if alone else "/",
        np.concatenate(blobs),
        np.cumsum(np.concatenate(lengths)),
        np.concatenate([files.size for files in tables]),
        np.concatenate([files.mtime_ns for files in tables]),
    )
