"""COCO: folders of images, and annotations of a split in one file of JSON.

    annotations/instances_SPLIT.json          boxes, classes, outlines
    annotations/person_keypoints_SPLIT.json   the same of persons, and their joints
    annotations/captions_SPLIT.json           sentences
    SPLIT/*.jpg, images/SPLIT/*.jpg or images/*.jpg

or SPLIT/_annotations.coco.json beside the images, as some tools export it. The list `images` in
the file says which samples there are. An image without annotations is a sample without boxes.
Outlines are handed over as the file has them.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...engine.store import Store
from ...errors import FormatError, UsageError
from ...extent import Int, unseen
from ..attributes import Attribute, AttributeKind
from ..table import Index
from . import image_annotations, options
from .image_annotations import EntryColumn, JsonLists, check_distinct, show
from .shards import Columns, Scan, check_below
from .splits import build_error

_KINDS = ("instances", "person_keypoints", "captions")
_STANDARD = re.compile(rf"annotations/({'|'.join(_KINDS)})_([^/]+)\.json")
_BESIDE = "_annotations.coco.json"
_BATCH = 1024
"""Entries that become columns together: their Python objects take little memory."""

_ID = EntryColumn("id", "whole number")
_IMAGE = (
    _ID,
    EntryColumn("file_name", "text"),
    EntryColumn("width", "whole number", least=0, default=0),
    EntryColumn("height", "whole number", least=0, default=0),
)
_CATEGORY = (_ID, EntryColumn("name", "text"))
_CAPTION = (_ID, EntryColumn("image_id", "whole number"), EntryColumn("caption", "text"))
_BOX = (
    *_CAPTION[:2],
    EntryColumn("bbox", "finite number", 4, least=(-math.inf, -math.inf, 0, 0)),
    EntryColumn("category_id", "whole number"),
    EntryColumn("iscrowd", "flag (0 or 1)", least=0, default=0),
    EntryColumn("area", "finite number", default=0),
)


@dataclass
class Sheet:
    """One parsed file.

    images:      the columns of `_IMAGE`.
    categories:  (id, name) of each category of boxes, by ascending id.
    joints:      points of each person; 0 if the file has none.
    has_captions:  True if the annotations are sentences, False if they are boxes.
    columns:     of the annotations of listed images: `_BOX`, "keypoints", and "image", the
                 number of the image in `images`.
    texts:       documents of JSON: outlines, where they are kept, or captions. They take most of
                 the memory, about what the text of the file takes.
    """

    images: dict[str, Any]
    categories: list[tuple[int, str]]
    joints: int
    has_captions: bool = False
    columns: dict[str, Any] = field(default_factory=dict)
    texts: list[bytes] = field(default_factory=list)


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    return options.normalize(
        given,
        split=options.below,
        annotations=options.texts("kinds or names of files", options.below, 1),
        images=options.below,
        missing=options.one_of("error", "skip"),
        fields=options.texts("names in a list", options.text("names in a list", 1)),
    )


def is_dataset(store: Store) -> bool:
    """True if the folder has annotations in files as COCO names them."""
    return bool(_list_files(store))


def _list_files(store: Store) -> dict[str, dict[str, str]]:
    """List the files of annotations: by split, the name of each kind's."""
    splits: dict[str, dict[str, str]] = {}
    try:
        names = store.match("annotations/*.json")
        beside = [] if names else store.match(f"*/{_BESIDE}")
    except UsageError:  # the store has no listings
        return {}
    for match in filter(None, map(_STANDARD.fullmatch, names)):
        splits.setdefault(match[2], {})[match[1]] = match[0]
    return splits | {posixpath.dirname(name): {"instances": name} for name in beside}


def build(
    scan: Scan,
    split: str | None = None,
    annotations: Columns = None,
    images: str | None = None,
    missing: str = "error",
    fields: Columns = None,
) -> Index:
    """The index of the images of one split, with the annotations of one or several files."""
    store = scan.store
    names, chosen = _choose_files(store, split, annotations)
    folders = set()
    if split is None or annotations is None:  # another file would change what is chosen
        folders.add(image_annotations.find_folder(store, ["annotations"]))
    read = store.stat(names)
    outlined = fields is None or "segmentations" in fields
    with image_annotations.pause_collector():
        sheets = [
            parse_sheet(
                read.path(number), functools.partial(store.read, name), missing == "skip", outlined
            )
            for number, name in enumerate(names)
        ]
        listed = sheets[0].images
        for number, sheet in enumerate(sheets):
            if any(list(sheet.images[key]) != list(listed[key]) for key in ("id", "file_name")):
                raise FormatError(f"{read.path(number)} lists other images than {read.path(0)}")
        kinds = ["captions" if sheet.has_captions else "boxes" for sheet in sheets]
        for kind in set(kinds):
            if kinds.count(kind) > 1:
                count = f"{kinds.count(kind)} files with {kind}"
                raise UsageError(f"annotations= names {count}: choose one")
        folder = images
        if folder is None:
            folder = _find_folder(store, names[0], chosen, listed["file_name"][:8])
        files, kept = image_annotations.find_images(
            scan,
            [posixpath.join(folder, name) for name in listed["file_name"]],
            lambda row: f"{read.path(0)}: images[{row}] (id {listed['id'][row]})",
            missing,
        )
        attributes: list[Attribute] = []
        classes: list[str] | None = None
        for sheet in sheets:
            order, ends = _sort_entries(sheet, kept)
            if sheet.has_captions:
                attributes.append(_join_texts("captions", "json", sheet, order, ends))
                continue
            classes = [name for _, name in sheet.categories]
            attributes += _make_boxes(sheet, order, ends)
            if outlined:
                attributes.append(_join_texts("segmentations", "text", sheet, order, ends))
    columns = {"image_id": "id", "width": "width", "height": "height"}
    attributes += [Attribute(name, "numbers", listed[key][kept]) for name, key in columns.items()]
    attributes = image_annotations.choose_fields(attributes, fields, read.path(0))
    folders |= {posixpath.dirname(files.name(row)) for row in range(len(files))}
    return image_annotations.make_index(
        store, "coco", files, attributes, read, sorted(folders), classes
    )


def _choose_files(store: Store, split: str | None, wanted: Columns) -> tuple[list[str], str]:
    """Choose the files to parse. Returns them and the split."""
    if wanted is not None and not set(wanted) & set(_KINDS):
        return list(wanted), split or ""
    splits = _list_files(store)
    if not splits:
        raise FormatError(f"{store.root} has no annotations/instances_*.json: give annotations=")
    if split is None and len(splits) > 1:
        raise build_error(store.root, [*splits])
    split = split or next(iter(splits))
    if split not in splits:
        raise UsageError(f"{store.root} has no split {split!r}, but {', '.join(sorted(splits))}")
    there = splits[split]
    kinds = wanted or [next(kind for kind in _KINDS if kind in there)]
    for kind in kinds:
        if kind in _KINDS and kind not in there:
            raise UsageError(f"{store.root} has no {kind!r} of {split!r}, but {', '.join(there)}")
    return [there.get(kind, kind) for kind in kinds], split


def _find_folder(store: Store, file: str, split: str, few: Sequence[str]) -> str:
    """Find the folder of the images: the first of the usual ones that has one of the first few."""
    if posixpath.basename(file) == _BESIDE:
        return posixpath.dirname(file)
    folders = [split, f"images/{split}", "images", ""] if split else ["images", ""]
    names = [posixpath.join(folder, name) for folder in folders for name in few]
    there = np.flatnonzero(store.probe(unseen(store.root, names))[1] == 0)
    return folders[int(there[0]) // len(few)] if len(there) else folders[0]


def _sort_entries(sheet: Sheet, kept: Sequence[int]) -> tuple[Int, Int]:
    """Sort the annotations by their image, each image's as in the file: (order, ends).

    kept:  the images that are there, as numbers in `sheet.images`; annotations of others go.
    """
    place = np.full(len(sheet.images["id"]), len(kept), np.int64)
    place[kept] = np.arange(len(kept))
    image = place[sheet.columns["image"]]
    counts = np.bincount(image, minlength=len(kept) + 1)[: len(kept)]
    return np.argsort(image, kind="stable")[: counts.sum()], np.cumsum(counts)


def _make_boxes(sheet: Sheet, order: Int, ends: Int) -> list[Attribute]:
    """Make the attributes of annotations with boxes, in this order."""

    def take(name: str, values: Any) -> Attribute:
        return Attribute(name, "numbers", values[order], ends)

    columns = sheet.columns
    ids = np.array([category for category, _ in sheet.categories], np.int64)
    attributes = [
        take("boxes", columns["bbox"]),
        replace(take("labels", np.searchsorted(ids, columns["category_id"])), classes=True),
        take("category_ids", columns["category_id"]),
        take("iscrowd", columns["iscrowd"].astype(bool)),
        take("areas", columns["area"]),
        take("annotation_ids", columns["id"]),
        Attribute("objects", "numbers", np.diff(ends, prepend=0)),
    ]
    if sheet.joints:
        attributes.append(take("keypoints", columns["keypoints"].reshape(-1, sheet.joints, 3)))
    return attributes


def _join_texts(name: str, kind: AttributeKind, sheet: Sheet, order: Int, ends: Int) -> Attribute:
    """Join the texts of each image's annotations to one list of JSON."""
    joined, bounds = bytearray(), []
    begin, rows = 0, order.tolist()
    for end in ends.tolist():
        joined += b"[" + b",".join([sheet.texts[row] for row in rows[begin:end]]) + b"]"
        bounds.append(len(joined))
        begin = end
    return Attribute(name, kind, np.frombuffer(joined, np.uint8), np.array(bounds, np.int64))


# -- parsing ---------------------------------------------------------------------------------------


def parse_sheet(
    path: str, fetch: Callable[[int, int], bytes], skip: bool = False, outlines: bool = True
) -> Sheet:
    """Parse a document of annotations; FormatError names the file, the entry and its value.

    fetch:     returns the bytes [offset, offset + length) of the file.
    skip:      leave out annotations of images that are not listed; else they are errors.
    outlines:  keep segmentations.
    """
    lists = JsonLists(path, fetch)
    for name in ("images", "annotations"):
        if name not in lists:
            keys = ", ".join(map(show, lists.keys[:8])) or "nothing"
            raise FormatError(f"{path}: no list {name!r}, but {keys}: name a file by annotations=")
    if "categories" in lists.others:
        raise FormatError(f"{path}: categories is {lists.others['categories']}, no list")
    images = _read_columns(f"{path}: images", _IMAGE, _batch(lists.parse("images")))
    images["file_name"] = [
        check_below(f"{path}: images[{row}]: file_name: ", name)
        for row, name in enumerate(images["file_name"])
    ]
    for key in ("id", "file_name"):
        check_distinct(f"{path}: images", key, images[key])
    if not len(images["id"]):
        raise FormatError(f"{path}: the list 'images' is empty: open a file that lists images")
    categories, joints = _parse_categories(path, lists)
    sheet = Sheet(images, categories, joints)
    _parse_annotations(f"{path}: annotations", sheet, lists, skip, outlines)
    return sheet


def _parse_categories(path: str, lists: JsonLists) -> tuple[list[tuple[int, str]], int]:
    """Parse the categories, and the number of points of a skeleton."""
    entries = list(lists.parse("categories")) if "categories" in lists else []
    columns = _read_columns(f"{path}: categories", _CATEGORY, iter([(0, entries)]))
    for key in ("id", "name"):
        check_distinct(f"{path}: categories", key, columns[key])
    skeletons = [entry.get("keypoints") or [] for entry in entries]
    counts = {len(points) if isinstance(points, list) else -1 for points in skeletons} - {0}
    if len(counts) > 1 or -1 in counts:
        raise FormatError(f"{path}: categories: keypoints are no lists of one length")
    names = zip(columns["id"].tolist(), columns["name"], strict=True)
    return sorted(names), counts.pop() if counts else 0


def _batch(entries: Iterator[Any]) -> Iterator[tuple[int, list[Any]]]:
    """Cut entries into batches, each with the number of its first."""
    for first in itertools.count(0, _BATCH):
        batch = list(itertools.islice(entries, _BATCH))
        if not batch:
            return
        yield first, batch


def _read_columns(
    where: str, columns: Sequence[EntryColumn], batches: Iterator[tuple[int, list[Any]]]
) -> dict[str, Any]:
    """Read columns of the entries of all batches."""
    column_pieces = {column.key: [column.read(where, [])] for column in columns}
    for first, entries in batches:
        for column in columns:
            column_pieces[column.key].append(column.read(where, entries, first))
    return {
        key: np.concatenate(values)
        if isinstance(values[0], np.ndarray)
        else list(itertools.chain.from_iterable(values))
        for key, values in column_pieces.items()
    }


def _parse_annotations(
    where: str, sheet: Sheet, lists: JsonLists, skip: bool, outlines: bool
) -> None:
    """Parse the annotations into the columns of a sheet."""
    first = next(lists.parse("annotations"), None)
    sheet.has_captions = isinstance(first, dict) and "caption" in first
    columns: tuple[EntryColumn, ...] = _CAPTION if sheet.has_captions else _BOX
    if sheet.joints and not sheet.has_captions:
        width = 3 * sheet.joints
        columns = (*_BOX, EntryColumn("keypoints", "finite number", width, default=[0] * width))
    entries = lists.parse("annotations")
    if not sheet.has_captions:
        entries = _take_outlines(where, entries, sheet.texts if outlines else None)
    read = _read_columns(where, columns, _batch(entries))
    check_distinct(where, "id", read["id"])
    images, is_listed = _find_numbers(sheet.images["id"], read["image_id"])
    if not sheet.has_captions:
        ids = np.array([number for number, _ in sheet.categories], np.int64)
        _check_known(where, "category_id", read, _find_numbers(ids, read["category_id"])[1])
    if not skip:
        _check_known(where, "image_id", read, is_listed)
    if sheet.has_captions:
        sheet.texts = [json.dumps(text).encode() for text in read.pop("caption")]
    if not is_listed.all():
        sheet.texts = list(itertools.compress(sheet.texts, is_listed.tolist()))
    sheet.columns = {key: values[is_listed] for key, values in read.items()}
    sheet.columns["image"] = images[is_listed]


def _take_outlines(
    where: str, entries: Iterator[Any], texts: list[bytes] | None
) -> Iterator[Mapping[str, Any]]:
    """Take the outline, polygons or a mask and most of an entry, out of each; `texts` gets them as
    JSON."""
    for row, entry in enumerate(entries):
        outline = entry.pop("segmentation", None) if isinstance(entry, dict) else None
        if texts is not None:
            try:
                if outline is not None and not isinstance(outline, list | dict):
                    raise ValueError
                text = json.dumps(outline, separators=(",", ":"), allow_nan=False)
            except (ValueError, RecursionError):  # a number that is not finite
                what = f"segmentation is {show(outline)}, no outline: correct it"
                raise FormatError(f"{where}[{row}]: {what}") from None
            texts.append(text.encode())
        yield entry


def _find_numbers(ids: Int, wanted: Int) -> tuple[Int, Any]:
    """Find each wanted id: its place in `ids`, and if it is there."""
    order = np.argsort(ids)
    at = np.searchsorted(ids, wanted, sorter=order)
    places = np.append(order, 0)[at]  # an id beyond the greatest one has no place
    return places, np.append(ids, 0)[places] == wanted if len(ids) else np.zeros(len(wanted), bool)


def _check_known(where: str, key: str, read: Mapping[str, Any], is_known: Any) -> None:
    """Check that all ids are known (FormatError)."""
    for row in np.flatnonzero(~is_known)[:1].tolist():
        remedy = ", or give missing='skip'" if key == "image_id" else ""
        what = f"{key} is {read[key][row]}, which is not listed: correct it{remedy}"
        raise FormatError(f"{where}[{row}] (id {read['id'][row]}): {what}")
