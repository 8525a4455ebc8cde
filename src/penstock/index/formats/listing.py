"""Text files with a path on each line, relative to the file's folder, and a label if known.

The label follows a tab, a comma or white space. The first line decides which one: the
separator with which its path exists. Integer labels are taken as they are, names become classes in
sorted order. Blank lines, and lines that start with "#", are skipped.

A list may have come with its data, from anywhere: it names files below its own folder only, unless
whoever opens it allows others (`outside=True`). Links are followed, as in folders.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ...engine.store import Store
from ...errors import FormatError, MissingError
from ...extent import Int, unseen
from ..table import Index
from . import detection, options
from .shards import Scan, index_files, number_classes

_EXTENSIONS = (".txt", ".lst", ".list", ".tsv", ".csv")

Split = Callable[[str], tuple[str, str | None]]
"""Function that splits a line into path and label."""


class ListingLine(NamedTuple):
    number: int
    text: str


def sniff(head: bytes, name: str) -> bool:
    """True if a file may be a listing: text, by its name or by all its first bytes."""
    extension = os.path.splitext(name)[1]
    if not head or b"\0" in head:
        return False
    if extension.lower() in _EXTENSIONS:
        return True
    try:
        text = head[: head.rfind(b"\n") + 1].decode()
    except UnicodeDecodeError:
        return False
    return bool(text) and all(c.isprintable() or c.isspace() for c in text)


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    return options.normalize(given, outside=options.one_of(False, True))


def build(scan: Scan, outside: bool = False) -> Index:
    """Make the index of the files that a listing names, in its order."""
    name = scan.place.name
    source = scan.store.stat([name])
    path = source.path(0)
    lines = _split_lines(path, scan.store.read(name, 0, int(source.size[0])))
    base = os.path.dirname(name)
    split = _choose_split(scan.store, base, path, lines)
    names, labels = [], []
    for line in lines:
        name, label = split(line.text)
        if label == "" or (label is None and split is not _keep_whole):
            raise FormatError(f"{path}, line {line.number}: no label, unlike the first line")
        names.append(os.path.join(base, name))
        labels.append(label or "")
    locate = lambda row: f"{path}, line {lines[row].number}: "  # noqa: E731
    names = keep_inside(scan.store.root, names, locate, outside)
    files = scan.store.stat(names, locate, scan.progress)
    classes = label_column = None
    if split is not _keep_whole:
        classes, label_column = _number_labels(path, labels)
    return index_files("listing", files, source, classes, label_column)


def _split_lines(path: str, text: bytes) -> list[ListingLine]:
    text = text.removeprefix(b"\xef\xbb\xbf")
    lines = [
        ListingLine(number, os.fsdecode(line.strip(b"\r ")))
        for number, line in enumerate(text.split(b"\n"), 1)
        if line.strip() and not line.lstrip().startswith(b"#")
    ]
    for line in lines:
        if "\0" in line.text:
            raise FormatError(f"{path}, line {line.number}: a zero byte: this is not a text file")
    if not lines:
        raise FormatError(f"{path} names no files: give a path on each line")
    return lines


def _choose_split(store: Store, base: str, path: str, lines: list[ListingLine]) -> Split:
    """Choose the separator with which the file of the first line exists."""
    first = lines[0]
    split = _find_split(store, base, first.text)
    if split is not None:
        return split
    head = "\n".join(line.text for line in lines[:4])
    description = detection.describe_unsupported(os.fsencode(head), path)
    if description.startswith("JSON"):
        raise FormatError(f"{path} is {description}")
    if len(lines) > 1 and _find_split(store, base, lines[1].text) is not None:
        what = f"{path}, line {first.number}: {first.text!r} names no file, and line"
        remedy = "put # before it if it is a header, else correct its path"
        raise MissingError(f"{what} {lines[1].number} does: {remedy}")
    shown = textwrap.shorten(first.text, 60, placeholder=" ...")
    raise MissingError(
        f"{path}, line {first.number}: no file {shown!r}: a list of files has a path on each line"
        + (f"; or it is {description}" if description else "")
    )


def _find_split(store: Store, base: str, text: str) -> Split | None:
    """Find the separator with which the file of a line exists, if any."""
    tries = [split for split in _SPLITS if split is _keep_whole or split(text)[1] is not None]
    names = [os.path.join(base, split(text)[0]) for split in tries]
    _, errors = store.probe(unseen(store.root, names))
    return next((split for split, error in zip(tries, errors, strict=True) if error == 0), None)


def _keep_whole(text: str) -> tuple[str, str | None]:
    return text, None


def _split_at(mark: str | None) -> Split:
    """Make the function that splits a line at its last mark, or its last white space."""

    def split(text: str) -> tuple[str, str | None]:
        name, *label = text.rsplit(mark, 1)
        return (name.strip() if mark else name, label[0].strip()) if label else (text, None)

    return split


_SPLITS: list[Split] = [_keep_whole, _split_at("\t"), _split_at(","), _split_at(None)]


def keep_inside(
    root: str, names: list[str], locate: Callable[[int], str], outside: bool = False
) -> list[str]:
    """Return the names relative to the root; FormatError for one that leads out of it, unless it
    may be `outside`, and for a URL.

    locate:  returns the place of a row's name, as the start of an error's message.
    """
    inside = list(names)
    for row, name in enumerate(names):
        if "://" in name and not name.startswith(f"{root}/"):
            what = f"{locate(row)}{name!r} is a URL, no path below {root}"
            raise FormatError(f"{what}: copy the files there, and name them by their paths")
        if outside or (not name.startswith("/") and ".." not in name):
            continue
        inside[row] = os.path.relpath(os.path.join(root, name), root)
        if inside[row].split("/")[0] == "..":
            raise FormatError(f"{locate(row)}{name!r} is not below {root}: give outside=True")
    return inside


def _number_labels(path: str, labels: list[str]) -> tuple[tuple[str, ...] | None, Int]:
    """Take labels as integers; if any is none, as names of classes."""
    try:
        return None, np.array([int(label) for label in labels], np.int64)
    except ValueError:
        pass
    except OverflowError:
        great = next(label for label in labels if not -(1 << 63) <= int(label) < 1 << 63)
        raise FormatError(f"{path}: label {great} does not fit 64 bits") from None
    return number_classes(labels)
