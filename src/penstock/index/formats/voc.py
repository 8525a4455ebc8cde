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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from ... import limits
from ...engine.store import Store, StoreFile
from ...errors import FormatError, UsageError
from ...extent import joined, unseen
from ..attributes import Attribute, make_rows
from ..table import Index
from . import image_annotations, options
from .image_annotations import EntryColumn, check_distinct
from .shards import Columns, Scan
from .splits import build_error

_IMAGES, _SHEETS, _SPLITS = "JPEGImages", "Annotations", "ImageSets/Main"
_SHEET_BYTES_MAX = 16 << 20
_OBJECT = (
    EntryColumn("name", "text"),
    EntryColumn("bndbox", "finite number", 4),
    EntryColumn("difficult", "flag (0 or 1)", least=0),
    EntryColumn("truncated", "flag (0 or 1)", least=0),
)
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class VocSheet(NamedTuple):
    """The annotations of one image: its size, the name of each object, [x, y, width, height], and
    flags."""

    width: int
    height: int
    names: Sequence[str] = ()
    boxes: Sequence[Any] = ()
    difficult: Sequence[int] = ()
    truncated: Sequence[int] = ()


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    return options.normalize(
        given,
        split=options.below,
        missing=options.one_of("error", "skip"),
        fields=options.texts("names in a list", options.text("names in a list", 1)),
    )


def is_dataset(store: Store) -> bool:
    """True if the folder has the folders of images and annotations that VOC has."""
    if store.root.startswith("http"):
        return False
    errors = store.probe(unseen(store.root, [_IMAGES, _SHEETS]))[1]
    return bool((errors == errno.EISDIR).all()) and bool(store.match(f"{_SHEETS}/*.xml"))


def build(
    scan: Scan, split: str | None = None, missing: str = "error", fields: Columns = None
) -> Index:
    """The index of the images of a split, with their annotations."""
    store = scan.store
    images: dict[str, str] = {}
    for name in store.match(f"{_IMAGES}/*"):
        if name.lower().endswith(image_annotations.IMAGE_SUFFIXES):
            other = images.setdefault(_stem(name), name)
            if other != name:
                raise FormatError(f"{store.root}/{name} and {other} have one name: rename one")
    names = store.match(f"{_SHEETS}/*.xml")
    if not names:
        raise FormatError(f"{store.root}/{_SHEETS} has no files of XML: open the folder above it")
    files = store.stat(names)
    parsed = scan.parse(files, lambda _, source: parse_file(source))
    sheets = dict(zip(map(_stem, names), parsed, strict=True))
    listed, keys = _list_keys(store, split, sorted(images.keys() | sheets.keys()))
    table, kept = image_annotations.find_images(
        scan,
        [images.get(key, f"{_IMAGES}/{key}.jpg") for key in keys],
        lambda row: f"{store.root}/{listed or _SHEETS}: {keys[row]!r}",
        missing,
    )
    classes = sorted({name for sheet in parsed for name in sheet.names})
    attributes = _make_attributes([sheets.get(keys[row]) for row in kept], classes)
    attributes = image_annotations.choose_fields(attributes, fields, store.root)
    read = files if listed is None else joined(files, store.stat([listed]))
    folders = [_IMAGES, _SHEETS]
    if split is None:  # another list would change what is chosen, or that nothing has to be
        lists = [_SPLITS, posixpath.dirname(_SPLITS)]
        folders.append(image_annotations.find_folder(store, lists))
    return image_annotations.make_index(store, "voc", table, attributes, read, folders, classes)


def _stem(name: str) -> str:
    return posixpath.splitext(posixpath.basename(name))[0]


def _make_attributes(rows: Sequence[VocSheet | None], classes: list[str]) -> list[Attribute]:
    sheets = [sheet or VocSheet(0, 0) for sheet in rows]
    number = {name: label for label, name in enumerate(classes)}
    labels = [[number[name] for name in sheet.names] for sheet in sheets]
    columns = {
        "objects": [len(sheet.names) for sheet in sheets],
        "width": [sheet.width for sheet in sheets],
        "height": [sheet.height for sheet in sheets],
    }
    return [
        make_rows("boxes", [sheet.boxes for sheet in sheets], np.float32, (4,)),
        make_rows("labels", labels, np.int64, (), True),
        make_rows("difficult", [sheet.difficult for sheet in sheets], bool),
        make_rows("truncated", [sheet.truncated for sheet in sheets], bool),
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
            raise build_error(store.root, whole)
        split = whole[0]
    if split not in lists:
        there = ", ".join(sorted(lists)) or "none"
        raise UsageError(f"{store.root}/{_SPLITS} has no list {split!r}, but {there}")
    name = lists[split]
    if _has_flags(store, name):
        raise UsageError(f"{store.root}/{name} is of one class: open a list, and use where=")
    size = int(store.stat([name]).size[0])
    if size > limits.annotation_file_bytes_max:
        raise FormatError(f"{store.root}/{name} has {size:,} bytes: divide the list")
    return name, _parse_keys(f"{store.root}/{name}", store.read(name, 0, size))


def _has_flags(store: Store, name: str) -> bool:
    """True if a list has a second column: whether an image has the class of the list's name."""
    first = store.read(name, 0, 4096).split(b"\n")[0].split()
    return len(first) == 2 and first[1] in (b"-1", b"0", b"1")


def _parse_keys(path: str, text: bytes) -> list[str]:
    keys = [line.strip() for line in text.decode("utf-8", "replace").split("\n") if line.strip()]
    for key in keys:
        if "/" in key or "\0" in key or "\ufffd" in key or key in (".", ".."):
            raise FormatError(f"{path}: {key!r:.80} is not the name of an image: correct the list")
    check_distinct(path, "the name", keys)
    if not keys:
        raise FormatError(f"{path} names no images: give a name a line")
    return keys


# -- XML -------------------------------------------------------------------------------------------


def parse_file(source: StoreFile) -> VocSheet:
    """Parse a file of annotations."""
    if source.size > _SHEET_BYTES_MAX:
        raise FormatError(f"{source.path} has {source.size:,} bytes: this is no annotation of VOC")
    return parse_sheet(source.path, source.read(0, source.size))


def parse_sheet(path: str, data: bytes) -> VocSheet:
    """Parse annotations of XML; FormatError names the file, the entry and its value."""
    if b"<!DOCTYPE" in data or b"\0" in data:  # UTF-16 could hide one
        raise FormatError(f"{path}: a document type can define entities: take the <!DOCTYPE> out")
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise FormatError(f"{path} is no XML ({error}): write it again") from None
    if root.tag != "annotation":
        raise FormatError(f"{path}: the XML is of <{root.tag:.40}>, not of <annotation>")
    sides = [_read_text(root.find("size"), name) or "0" for name in ("width", "height")]
    if not all(side.isdecimal() and len(side) < 10 for side in sides):
        raise FormatError(f"{path}: size: width and height are {sides}, no numbers of pixels")
    entries = []  # texts that are no numbers stay as they are
    for item in root.findall("object"):
        flags = {name: _read_text(item, name) or "0" for name in ("difficult", "truncated")}
        numbers = {name: int(flag) if flag.isdecimal() else flag for name, flag in flags.items()}
        box = [_read_number(_read_text(item.find("bndbox"), corner)) for corner in _CORNERS]
        name = _read_text(item, "name")
        entries.append({"id": name, "name": name or "", "bndbox": box, **numbers})
    names, corners, *columns = (column.read(f"{path}: object", entries) for column in _OBJECT)
    boxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
    if not all(names) or (boxes[:, 2:] < 0).any():
        raise FormatError(f"{path}: an object has no name, or a bndbox of negative size")
    width, height = map(int, sides)
    return VocSheet(width, height, names, boxes.tolist(), *(values.tolist() for values in columns))


def _read_text(item: ElementTree.Element | None, name: str) -> str | None:
    """Read the text of the first element of this name, around the elements in it."""
    inner = None if item is None else item.find(name)
    if inner is None:
        return None
    return "".join([inner.text or "", *(child.tail or "" for child in inner)]).strip()


def _read_number(text: str | None) -> Any:
    try:
        return float(text or "")
    except ValueError:
        return text
