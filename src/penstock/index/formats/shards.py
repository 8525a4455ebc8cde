"""Files of a place: one file, all of a folder, or those that patterns match."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from ... import limits
from ...engine.store import Listing, Progress, Store, StoreFile
from ...errors import FormatError, MissingError, UsageError
from ...extent import FileIds, Files, Int, Names, joined, take_files, unseen
from ..attributes import Attribute
from ..fields import Field
from ..layout import Pieces, RowTable
from ..table import Index
from . import splits
from .splits import Kind as Kind
from .splits import Location as Location

T = TypeVar("T")
Columns = Sequence[str] | None
"""Names that were asked for; None: all."""


class Scan(NamedTuple):
    """One reading of the metadata at a place; `progress` hears how far it is."""

    store: Store
    place: Location
    progress: Progress | None = None

    def parse(self, files: Files, function: Callable[[int, StoreFile], T]) -> list[T]:
        """Apply a function to each file, several at a time: its number, and the file."""
        return self.store.parse(files, function, self.progress)

    def parse_pieces(
        self,
        files: Files,
        function: Callable[[int, StoreFile], T],
        piece: Callable[[StoreFile, int, int], T | None],
        join: Callable[[list[T]], T | None],
    ) -> list[T]:
        """Apply a function to each file, and to a large one piece by piece, as if each was a file.

        piece:  parses what begins within [start, stop) of a file; None leaves it out.
        join:   makes of a file's pieces what the function makes of the file; None if they do not
                tell, and the file has to be parsed whole.
        """
        counts = np.maximum(1, -(-files.size // limits.parsed_piece_bytes))
        if (counts == 1).all():
            return self.parse(files, function)
        rows = np.repeat(np.arange(len(files)), counts)
        numbers = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)

        def parse(unit: int, source: StoreFile) -> T | None:
            file, start = int(rows[unit]), int(numbers[unit]) * limits.parsed_piece_bytes
            if counts[file] == 1:
                return function(file, source)
            return piece(source, start, min(start + limits.parsed_piece_bytes, source.size))

        parsed_pieces = iter(self.parse(take_files(files, rows), parse))
        results: list[T | None] = []
        for count in counts.tolist():
            parts = [part for part in islice(parsed_pieces, count) if part is not None]
            results.append(join(parts) if count > 1 else parts[0])
        whole = [file for file, result in enumerate(results) if result is None]
        again = take_files(files, np.array(whole, np.int64))
        parsed = self.parse(again, lambda n, source: function(whole[n], source)) if whole else []
        for file, result in zip(whole, parsed, strict=True):
            results[file] = result
        return cast(list[T], results)

    def list_files(self, extensions: Sequence[str] = ()) -> tuple[Files, Files]:
        """List the files, and the sources that must stay unchanged: also folders that may get new
        files.

        A folder's files, of these extensions, are in ascending order of path bytes, patterns'
        pattern by pattern.
        """
        if self.place.kind == "folder":
            listing = self.choose_split(self.list_folder(extensions), samples=False)
            return listing.files, joined(listing.folders, listing.files)
        if self.place.kind == "file":
            files = self.store.stat([self.place.name])
            return files, files
        names = list_names(self.store, self.place)
        files = self.store.stat(names)
        folders = self.store.folders(sorted({"", *(os.path.dirname(name) for name in names)}))
        return files, joined(folders, files)

    def choose_split(self, listing: Listing, samples: bool = True) -> Listing:
        """Take the files of the split that is asked for; UsageError if one has to be.

        samples:  each file is a sample.
        """
        return splits.take(listing, splits.choose(listing.files, self.place, samples))

    def list_folder(self, extensions: Sequence[str]) -> Listing:
        """List the files below the root; FormatError if there are none."""
        listing = self.store.scan(extensions, self.progress)
        if not len(listing.files):
            ending = f" with the extension {', '.join(extensions)}" if extensions else ""
            hint = "(hidden ones do not count): check the path"
            raise FormatError(f"{self.store.root} holds no files{ending} {hint}")
        return listing


def list_names(store: Store, place: Location) -> list[str]:
    """List the names of the files of a split that a place's patterns match."""
    names: list[str] = []
    for pattern in place.names:
        matches = store.match(pattern)
        if not matches:
            raise MissingError(f"{os.path.join(store.root, pattern)} matches no files: check it")
        names += matches
    check_named_once(store, names)
    rows = splits.choose(unseen(store.root, names), place)
    return names if rows is None else [names[row] for row in rows]


def check_named_once(store: Store, names: Sequence[str]) -> None:
    """Check that no file is named twice (UsageError)."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{os.path.join(store.root, twice)} is named twice: name it once")


def index_files(
    format: str,
    files: Files,
    sources: Files,
    classes: tuple[str, ...] | None = None,
    labels: Int | None = None,
    attributes: tuple[Attribute, ...] = (),
    name: str = "data",
) -> Index:
    """Make the index of files that are a sample each, a field of this name."""
    field, table = Field(name, np.dtype(np.uint8), None), RowTable(None, None, files.size)
    return Index(format, files, (field,), (table,), sources, classes, labels, attributes=attributes)


def number_first(counts: Sequence[int] | Int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Number each file's first sample and, at the end, the count of all."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))])


def check_below(by: str, name: str) -> str:
    """Check that a path in a container or list is below the data set's root, and normalise it.

    by:  the container or list, as the start of an error's message.
    """
    segments = name.split("/")
    if not name or name.startswith("/") or "\0" in name or ".." in segments or "\\" in name:
        raise FormatError(f"{by}{name!r} is not the path of a file below the data set")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise FormatError(f"{by}{name!r} has a lone surrogate, which no file name has") from None
    return os.path.normpath(name)


def check_inside(store: Store, by: str, names: Sequence[str]) -> None:
    """Check that no link leads one of these files out of the root (FormatError).

    In a snapshot of the hub's local cache, whose files are links to its blobs, they may lead there.
    """
    if "://" in store.root:
        return
    root = os.path.join(os.path.realpath(store.root), "")
    for name in names:
        real = os.path.realpath(os.path.join(store.root, name))
        if real.startswith(root):
            continue
        from ...engine.hub import is_blob  # loads the hub's client

        if not is_blob(store.root, real):
            raise FormatError(f"{by}{os.path.join(store.root, name)} is a link out of the data set")


def lay_out_extents(offsets: Sequence[Int], lengths: Sequence[Int]) -> RowTable:
    """Lay out samples of one extent each, of one file after the other."""
    return RowTable(make_file_column(list(map(len, offsets))), _join(offsets), _join(lengths))


def lay_out_pieces(counts: Int, offsets: Sequence[Int], lengths: Sequence[Int]) -> Pieces:
    """Lay out samples of `counts` extents each, of one file after the other."""
    file = make_file_column(list(map(len, offsets)))
    return Pieces(number_first(counts), file, _join(offsets), _join(lengths))


def _join(columns: Sequence[Int]) -> Int:
    if len(columns) == 1 and columns[0].flags.c_contiguous:
        return columns[0]
    return np.concatenate([np.zeros(0, np.int64), *columns])


def join_names(names: Sequence[Names]) -> Names:
    """Join the names of the samples of all files."""
    if len(names) == 1:
        return names[0]
    starts = number_first([len(one.text) for one in names]).tolist()
    ends = [one.ends + start for one, start in zip(names, starts, strict=False)]
    return Names(np.concatenate([one.text for one in names]), np.concatenate(ends))


def number_classes(texts: Sequence[str], key: Any = None) -> tuple[tuple[str, ...], Int]:
    """Number the names of classes, sorted by `key`: the names, and the label of each text."""
    classes = sorted(set(texts), key=key)
    number = {name: label for label, name in enumerate(classes)}
    return tuple(classes), np.array([number[text] for text in texts], np.int64)


def make_file_column(counts: Sequence[int]) -> FileIds:
    """Make a column of file numbers: `counts[i]` times the number i."""
    return np.repeat(np.arange(len(counts), dtype=np.uint32), np.asarray(counts, np.int64))


def check_any(files: Files, count: int, what: str) -> None:
    """Check that the files hold any sample (FormatError)."""
    if not count:
        more = f" and the {len(files) - 1:,} files beside it hold" if len(files) > 1 else " holds"
        raise FormatError(f"{files.path(0)}{more} no {what}: check the path")
