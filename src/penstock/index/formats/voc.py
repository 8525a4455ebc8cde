"""Pascal VOC: images, a file of XML for each, and lists of the images of a split.

    JPEGImages/NAME.jpg        any image; paired with its annotations by NAME
    Annotations/NAME.xml       size, objects with class, box and flags
    ImageSets/Main/SPLIT.txt   a NAME a line; without such lists all images are samples

Classes are the names of all objects in Annotations, sorted, so that they have the same numbers in
all splits. An image without a file of XML is a sample without boxes. XML is parsed without
document types: it has no entities, and nothing outside the file is looked at.
"""

from __future__ import annotations

import errno
import posixpath
import xml.parsers.expat
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...engine import Progress, Store, StoreFile
from ...errors import FormatError, UsageError
from ...extent import joined, unseen
from ..attributes import Attribute, make_rows
from ..table import Index
from . import image_annotations
from .image_annotations import read_number, show
from .shards import Location

_IMAGES, _SHEETS, _SPLITS = "JPEGImages", "Annotations", "ImageSets/Main"
_SHEET_BYTES_MAX = 16 << 20
_DEPTH_MAX = 32
_FIXED = "correct the file, or write it again"


class VocObject(NamedTuple):
    """An object in an image: its class, [x, y, width, height], and flags."""

    name: str
    box: list[float]
    difficult: int
    truncated: int


class VocSheet(NamedTuple):
    """The annotations of one image."""

    width: int
    height: int
    objects: list[VocObject]


_EMPTY = VocSheet(0, 0, [])


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    normalized = image_annotations.normalize_fields(image_annotations.normalize_missing(options))
    split = normalized.get("split")
    if split is not None and (not isinstance(split, str) or not split or "/" in split):
        raise UsageError(f"split is {split!r}: give the name of a list, such as 'train'")
    return normalized


def is_dataset(store: Store) -> bool:
    """True if the folder has the folders of images and annotations that VOC has."""
    if store.root.startswith("http"):
        return False
    _, errors = store.probe(unseen(store.root, [_IMAGES, _SHEETS]))
    return bool((errors == errno.EISDIR).all()) and bool(store.match(f"{_SHEETS}/*.xml"))


def build(
    store: Store,
    _: Location,
    progress: Progress | None,
    split: str | None = None,
    missing: str = "error",
    fields: Sequence[str] | None = None,
) -> Index:
    """The index of the images of a split, with their annotations."""
    images: dict[str, str] = {}
    for name in filter(_is_image, store.match(f"{_IMAGES}/*")):
        other = images.setdefault(_stem(name), name)
        if other != name:
            raise FormatError(
                f"{store.root}/{name} and {other} have one name: which of them has the "
                f"annotations {_stem(name)}.xml? Rename one"
            )
    names = store.match(f"{_SHEETS}/*.xml")
    if not names:
        raise FormatError(f"{store.root}/{_SHEETS} has no files of XML: open the folder above it")
    files = store.stat(names)
    parsed = store.parse(files, lambda _, source: parse_file(source), progress)
    sheets = dict(zip(map(_stem, names), parsed, strict=True))
    listed, keys = _list_keys(store, split, sorted(images.keys() | sheets.keys()))
    table, kept = image_annotations.find_images(
        store,
        [images.get(key, f"{_IMAGES}/{key}.jpg") for key in keys],
        lambda row: f"{store.root}/{listed or _SHEETS}: {keys[row]!r}",
        missing,
        progress,
    )
    rows = [sheets.get(keys[row]) for row in kept]
    classes = sorted({one.name for sheet in parsed for one in sheet.objects})
    attributes = _make_attributes(rows, {name: number for number, name in enumerate(classes)})
    read = files if listed is None else joined(files, store.stat([listed]))
    folders = [_IMAGES, _SHEETS]
    if split is None:  # another list would change what is chosen, or that nothing has to be
        folders.append(image_annotations.find_folder(store, [_SPLITS, posixpath.dirname(_SPLITS)]))
    return image_annotations.make_index(
        store,
        "voc",
        table,
        image_annotations.choose_fields(attributes, fields, store.root),
        read,
        classes,
        folders,
    )


def _stem(name: str) -> str:
    return posixpath.splitext(posixpath.basename(name))[0]


def _is_image(name: str) -> bool:
    return name.lower().endswith(image_annotations.IMAGE_SUFFIXES)


def _make_attributes(rows: Sequence[VocSheet | None], number: Mapping[str, int]) -> list[Attribute]:
    sheets = [sheet or _EMPTY for sheet in rows]
    objects = [sheet.objects for sheet in sheets]
    columns = {
        "objects": [len(one) for one in objects],
        "width": [sheet.width for sheet in sheets],
        "height": [sheet.height for sheet in sheets],
    }
    return [
        make_rows("boxes", [[one.box for one in row] for row in objects], np.float32, (4,)),
        make_rows("labels", [[number[one.name] for one in row] for row in objects], "i8", (), True),
        make_rows("difficult", [[one.difficult for one in row] for row in objects], bool),
        make_rows("truncated", [[one.truncated for one in row] for row in objects], bool),
        *(Attribute(name, "numbers", np.array(rows, np.int64)) for name, rows in columns.items()),
        Attribute("annotated", "numbers", np.array([sheet is not None for sheet in rows])),
    ]


# -- splits ----------------------------------------------------------------------------------------


def _list_keys(
    store: Store, split: str | None, everything: list[str]
) -> tuple[str | None, list[str]]:
    """List the names of the images of a split. Returns the list's file, if there is one, too."""
    lists = {_stem(name): name for name in store.match(f"{_SPLITS}/*.txt")}
    if split is None:
        whole = [name for name in lists if not _has_flags(store, lists[name])]
        if not whole:
            return None, everything
        if len(whole) > 1:
            raise UsageError(
                f"{store.root} has the splits {', '.join(sorted(whole))}, and training data must "
                f"not mix with others unnoticed: choose one, such as split={min(whole)!r}"
            )
        split = whole[0]
    if split not in lists:
        there = ", ".join(sorted(lists)) or "none"
        raise UsageError(f"{store.root}/{_SPLITS} has no list {split!r}, but {there}")
    name = lists[split]
    if _has_flags(store, name):
        raise UsageError(
            f"{store.root}/{name} says of one class which images have it: open a list of names, "
            f"such as split='train', and select by where=\"'cat' in labels\""
        )
    return name, _parse_keys(f"{store.root}/{name}", _read_list(store, name))


def _read_list(store: Store, name: str) -> bytes:
    return image_annotations.read_whole(store, store.stat([name]), 0)


def _has_flags(store: Store, name: str) -> bool:
    """True if a list has a second column: whether an image has the class of the list's name."""
    first = store.read(name, 0, 4096).split(b"\n")[0].split()
    return len(first) == 2 and first[1] in (b"-1", b"0", b"1")


def _parse_keys(path: str, text: bytes) -> list[str]:
    keys: dict[str, int] = {}
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            key = line.decode().strip()
        except UnicodeDecodeError:
            key = ""
        if not key or "/" in key or "\0" in key or key in (".", ".."):
            raise FormatError(f"{path}, line {number}: {line[:80]!r} is not the name of an image")
        other = keys.setdefault(key, number)
        if other != number:
            raise FormatError(
                f"{path}, line {number}: {key!r} stands in line {other}, too: name each image once"
            )
    if not keys:
        raise FormatError(f"{path} names no images: give a name a line")
    return list(keys)


# -- XML -------------------------------------------------------------------------------------------


class _Element:
    """An element: its name, the pieces of its text, and its elements."""

    __slots__ = ("inner", "name", "pieces")

    def __init__(self, name: str) -> None:
        self.name = name
        self.pieces: list[str] = []
        self.inner: list[_Element] = []

    def find(self, name: str) -> _Element | None:
        return next((one for one in self.inner if one.name == name), None)

    def read(self, name: str) -> str | None:
        """Return the text of the first element of this name."""
        found = self.find(name)
        return None if found is None else "".join(found.pieces).strip()


def parse_file(source: StoreFile) -> VocSheet:
    """Parse a file of annotations."""
    if source.size > _SHEET_BYTES_MAX:
        raise FormatError(
            f"{source.path} has {source.size:,} bytes, and the XML of one image at most "
            f"{_SHEET_BYTES_MAX:,}: this is no annotation of VOC"
        )
    return parse_sheet(source.path, source.read(0, source.size))


def parse_sheet(path: str, data: bytes) -> VocSheet:
    """Parse annotations of XML; FormatError names the file, the entry and its value."""
    root = _parse_elements(path, data)
    if root.name != "annotation":
        raise FormatError(f"{path}: the XML is of <{root.name:.40}>, not of <annotation>: {_FIXED}")
    size = root.find("size")
    sides = [_read_side(path, size, name) for name in ("width", "height")]
    objects = [one for one in root.inner if one.name == "object"]
    return VocSheet(
        sides[0], sides[1], [_parse_object(path, row, one) for row, one in enumerate(objects)]
    )


def _parse_elements(path: str, data: bytes) -> _Element:
    top = _Element("")
    stack = [top]

    def start(name: str, _: Mapping[str, str]) -> None:
        if len(stack) > _DEPTH_MAX:
            raise FormatError(f"{path}: elements are nested over {_DEPTH_MAX} deep: {_FIXED}")
        stack.append(_Element(name))
        stack[-2].inner.append(stack[-1])

    def refuse(*_: Any) -> None:
        raise FormatError(
            f"{path}: line {parser.CurrentLineNumber}: a document type, which can define entities "
            f"and is not read: take the <!DOCTYPE> out"
        )

    def read(text: str) -> None:
        stack[-1].pieces.append(text)

    parser = xml.parsers.expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: stack.pop()
    parser.CharacterDataHandler = read
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except (xml.parsers.expat.ExpatError, ValueError, LookupError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is no XML ({error}): {_FIXED}") from None
    return top.inner[0]


def _read_side(path: str, size: _Element | None, name: str) -> int:
    text = None if size is None else size.read(name)
    if text is None:
        return 0
    if not text.isdecimal() or len(text) > 9:
        raise FormatError(f"{path}: size: {name} is {show(text)}, no number of pixels: {_FIXED}")
    return int(text)


def _parse_object(path: str, row: int, found: _Element) -> VocObject:
    name = found.read("name")
    where = f"{path}: object {row} ({name or 'without a name'})"
    if not name:
        raise FormatError(f"{where}: it has no <name>: {_FIXED}")
    box = found.find("bndbox")
    corners = [_read_corner(where, box, corner) for corner in ("xmin", "ymin", "xmax", "ymax")]
    width, height = corners[2] - corners[0], corners[3] - corners[1]
    if width < 0 or height < 0:
        raise FormatError(
            f"{where}: bndbox is {corners}, and xmax or ymax lies before xmin or ymin: {_FIXED}"
        )
    flags = [_read_flag(where, found, flag) for flag in ("difficult", "truncated")]
    return VocObject(name, [corners[0], corners[1], width, height], flags[0], flags[1])


def _read_corner(where: str, box: _Element | None, name: str) -> float:
    text = None if box is None else box.read(name)
    try:
        number = read_number(float(text or ""))
    except ValueError:
        number = None
    if number is None:
        raise FormatError(f"{where}: bndbox: {name} is {show(text)}, no finite number: {_FIXED}")
    return number


def _read_flag(where: str, found: _Element, name: str) -> int:
    text = found.read(name) or "0"
    if text not in ("0", "1"):
        raise FormatError(f"{where}: {name} is {show(text)}, neither 0 nor 1: {_FIXED}")
    return int(text)
