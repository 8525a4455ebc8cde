"""Images with annotations in files of their own: what COCO, VOC and JSON beside images share.

A sample is the field "image", the bytes of its file, and attributes (`penstock.index.attributes`).
Files of annotations are parsed once, when the index is made, and are sources of it: one that is
written to makes the index stale.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import gc
import itertools
import json
import math
import re
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ... import limits
from ...engine.store import Store
from ...errors import FormatError, MissingError, UsageError
from ...extent import Files, joined, unseen
from ..attributes import Attribute
from ..table import Index
from .shards import Columns, Scan, index_files

IMAGE = "image"
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
RESERVED = (IMAGE, "source", "pass")
"""Names that no attribute has, since samples and batches have them already."""


_KINDS: dict[str, tuple[set[type], Any]] = {
    "whole number": ({int}, np.int64),
    "finite number": ({int, float}, np.float32),
    "flag (0 or 1)": ({int, bool}, np.int64),
    "text": ({str}, None),
}


class EntryColumn(NamedTuple):
    """The values of one key in the entries of a list, as a column.

    kind:     of `_KINDS`.
    width:    length of a list of numbers; 0 for a single value.
    least:    the least that each number may be.
    default:  value of entries without the key; None if it must be there.
    """

    key: str
    kind: str
    width: int = 0
    least: Sequence[float] | float = -math.inf
    default: Any = None

    def read(self, where: str, entries: Sequence[Any], first: int = 0) -> Any:
        """Return the column: an array, or a list of texts; FormatError names the entry.

        where:  the file and the list; `first` is the number of the first entry in it.
        """
        try:
            return self._convert([entry.get(self.key, self.default) for entry in entries])
        except (AttributeError, ValueError, TypeError, OverflowError):
            if len(entries) > 1:
                for row, entry in enumerate(entries, first):
                    self.read(where, [entry], row)
                raise
        (entry,) = entries
        if not isinstance(entry, dict):
            raise FormatError(f"{where}[{first}] is {show(entry)}, no object: take it out")
        wanted = f"{self.width} of kind {self.kind}" if self.width else self.kind
        value = show(entry.get(self.key, self.default))
        raise FormatError(
            f"{where}[{first}] (id {show(entry.get('id'))}): {self.key} is {value}, no {wanted}: "
            f"correct or remove it"
        )

    def _convert(self, values: list[Any]) -> Any:
        """Convert values; TypeError, ValueError or OverflowError if one is not of this kind."""
        types, dtype = _KINDS[self.kind]
        if self.width:
            if set(map(type, values)) - {list} or set(map(len, values)) - {self.width}:
                raise ValueError
            values = list(itertools.chain.from_iterable(values))
        if set(map(type, values)) - types:
            raise ValueError
        if dtype is None:
            "".join(values).encode()  # JSON may hold lone surrogates
            return values
        with np.errstate(over="ignore"):
            column = np.array(values, dtype).reshape(-1, *[self.width] * bool(self.width))
        flawed = ~np.isfinite(column) | (column < self.least)
        if flawed.any() or (self.kind.startswith("flag") and (column > 1).any()):
            raise ValueError
        return column


def check_distinct(where: str, key: str, values: Any) -> None:
    """Check that no two entries have one value (FormatError)."""
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if len(set(values)) < len(values):
        rows: dict[Any, int] = {}
        twice = (row for row, value in enumerate(values) if rows.setdefault(value, row) < row)
        row = next(twice)
        raise FormatError(
            f"{where}[{row}]: {key} {show(values[row])} is that of [{rows[values[row]]}], too"
        )


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


def is_whole(value: Any) -> bool:
    """True for a whole number of 64 bits."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def show(value: Any) -> str:
    """Show a value of a file in an error's message, cut to a line."""
    return reprlib.repr(value)


# -- images ----------------------------------------------------------------------------------------


def find_images(
    scan: Scan, names: Sequence[str], describe: Callable[[int], str], missing: str
) -> tuple[Files, list[int]]:
    """Find the files of images. Returns their table, and the rows of `names` that exist.

    describe:  says which entry names a row, as the start of an error's message.
    missing:   "skip" leaves out what does not exist; else it is a MissingError.
    """
    store = scan.store
    files, errors = store.probe(unseen(store.root, names), scan.progress)
    is_gone = (errors == errno.ENOENT) | (errors == errno.ENOTDIR)
    for row in np.flatnonzero(is_gone)[:1].tolist() if missing != "skip" else ():
        count = f"({np.count_nonzero(is_gone):,} in all)"
        raise MissingError(
            f"{describe(row)}: {files.path(row)} does not exist {count}: fetch the images, or give "
            f"missing='skip' to leave such out"
        )
    kept = np.flatnonzero(~is_gone).tolist()
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
    folders: Sequence[str],
    classes: Sequence[str] | None = None,
    label_column: Any = None,
) -> Index:
    """Make the index of images and their attributes.

    read:     the files of annotations.
    folders:  folders in which a new file would change the data set.
    """
    sources = joined(store.folders(sorted(set(folders))), read)
    names = None if classes is None else tuple(classes)
    return index_files(format, images, sources, names, label_column, tuple(attributes), IMAGE)


def choose_fields(attributes: list[Attribute], fields: Columns, path: str) -> list[Attribute]:
    """Choose the attributes that `fields` names; by default all."""
    if fields is None:
        return attributes
    known = {attribute.name: attribute for attribute in attributes}
    for name in fields:
        if name not in known:
            raise UsageError(f"{path} has no {name!r}: fields= may name {', '.join(known)}")
    return [known[name] for name in fields]


# -- large documents -------------------------------------------------------------------------------

_NO_BLANK = re.compile(r"[^ \t\n\r]")
_decode = json.JSONDecoder().raw_decode


class JsonLists:
    """The lists of the object that a document of JSON is, parsed element by element.

    A parsed document takes several times the memory of its text. The text is read in pieces, and
    the places are noted where the lists of the outermost object begin.

    keys:    of the object, in the sequence of the file.
    others:  the values that are no lists, as an error's message shows them.

    fetch(offset, length) returns bytes of the file, fewer at its end. FormatError, with the place,
    if the text is no JSON in UTF-8, no object, or has a key twice, of which one would be lost.
    """

    def __init__(self, path: str, fetch: Callable[[int, int], bytes]) -> None:
        self._path, self._fetch = path, fetch
        self.keys: list[str] = []
        self.others: dict[str, str] = {}
        self._begins: dict[str, int] = {}
        text = _Text(path, fetch, 0)
        if text.peek() == "\ufeff":
            text.at += 1
        if text.peek() != "{":
            text.refuse("it is no object")
        for _ in text.walk("}"):
            key = text.parse()
            if not isinstance(key, str):
                text.refuse(f"{key!r:.80} stands where a key belongs")
            if key in self.keys:
                text.refuse(f"the key {key!r:.80} comes a second time: leave one of them")
            self.keys.append(key)
            text.want(":")
            if text.peek() == "[":
                self._begins[key] = text.offset()
                for _ in text.walk("]"):
                    text.parse()
            else:
                self.others[key] = show(text.parse())
        if text.peek():
            text.refuse("more comes after the object")

    def __contains__(self, key: str) -> bool:
        """True if the value of a key is a list."""
        return key in self._begins

    def parse(self, key: str) -> Iterator[Any]:
        """Parse the elements of a list."""
        text = _Text(self._path, self._fetch, self._begins[key])
        for _ in text.walk("]"):
            yield text.parse()


class _Text:
    """A part of the text, from `at` on what is still to be parsed."""

    def __init__(self, path: str, fetch: Callable[[int, int], bytes], offset: int) -> None:
        self._path, self._fetch, self._read = path, fetch, offset
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_whole = False
        self.text, self.at = "", 0

    def offset(self) -> int:
        """Return the byte of the file at which `at` is."""
        pending = len(self._decoder.getstate()[0])
        return self._read - pending - len(self.text[self.at :].encode())

    def refuse(self, reason: str) -> NoReturn:
        raise FormatError(f"{self._path}: at byte {self.offset():,} of the JSON: {reason}")

    def peek(self) -> str:
        """Return the next character that is no blank; "" at the end."""
        while True:
            match = _NO_BLANK.search(self.text, self.at)
            self.at = len(self.text) if match is None else match.start()
            if self.at < len(self.text) or not self._extend():
                return self.text[self.at : self.at + 1]

    def want(self, character: str) -> None:
        if self.peek() != character:
            self.refuse(f"{self.peek()!r} stands where {character!r} belongs")
        self.at += 1

    def walk(self, end: str) -> Iterator[None]:
        """Step over the brackets and commas of an object or list; its parts are the caller's."""
        self.peek()
        self.at += 1
        if self.peek() == end:
            self.at += 1
            return
        while True:
            yield
            if self.peek() == end:
                self.at += 1
                return
            self.want(",")

    def parse(self) -> Any:
        """Parse the value at `at`. One that ends near the text's end may go on: more is read."""
        self.peek()
        while True:
            try:
                value, end = _decode(self.text, self.at)
                if end + 2 < len(self.text) or not self._extend():  # "1." and "1e+" may go on, too
                    self.at = end
                    return value
            except RecursionError:
                self.refuse("a value is nested too deeply")
            except ValueError as error:
                if not self._extend():
                    self.at = getattr(error, "pos", self.at)
                    self.refuse(getattr(error, "msg", str(error)))

    def _extend(self) -> bool:
        """Read more: as much again as is there, since what is there is parsed again."""
        if self._is_whole:
            return False
        self.text, self.at = self.text[self.at :], 0
        length = max(limits.annotation_piece_bytes, len(self.text))
        data = self._fetch(self._read, length)
        self._is_whole = len(data) < length
        try:
            self.text += self._decoder.decode(data, self._is_whole)
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._path}: no JSON in UTF-8 ({error.reason})") from None
        self._read += len(data)
        return True
