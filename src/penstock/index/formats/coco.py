"""COCO: folders of images, and annotations of a split in one file of JSON.

    annotations/instances_SPLIT.json          boxes, classes, outlines
    annotations/person_keypoints_SPLIT.json   the same of persons, and their joints
    annotations/captions_SPLIT.json           sentences
    SPLIT/*.jpg, images/SPLIT/*.jpg or images/*.jpg

or SPLIT/_annotations.coco.json beside the images, as some tools export it. The list `images` in
the file says which samples there are. An image without annotations is a sample without boxes.
"""

from __future__ import annotations

import functools
import json
import math
import posixpath
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...engine import Progress, Store
from ...errors import FormatError, UsageError
from ...extent import Int, unseen
from ..attributes import Attribute, AttributeKind
from ..table import Index
from . import image_annotations
from .image_annotations import Flaws, is_whole, read_number, show
from .json_lists import JsonLists
from .shards import Location

_KINDS = ("instances", "person_keypoints", "captions")
_STANDARD = re.compile(rf"annotations/({'|'.join(_KINDS)})_([^/]+)\.json")
_BESIDE = "_annotations.coco.json"
_OUTLINE_MAX = 3.4e38
_FIXED = "correct the entry, or take it out of the file"


class Entry(NamedTuple):
    """One annotation of an image."""

    box: list[float]
    category: int
    crowd: int
    area: float
    outline: Any
    joints: list[float]


class Sheet:
    """One parsed file.

    images:      of each image: (its entry's number, id, file name, width, height).
    categories:  of each category of boxes: (id, name), by ascending id.
    joints:      points of each person; 0 if the file has none.
    has_captions:  True if the annotations are sentences, False if they are boxes.

    Columns have a value for each annotation of a listed image: `image` the number of its image in
    `images`, `number` its id; then `box`, `category`, `crowd`, `area` and `joint` of boxes, and
    `texts`, documents of JSON: outlines, where they are kept, or captions. Memory: about what the
    text of the file takes, most of it in `texts`.
    """

    def __init__(
        self,
        images: list[tuple[int, int, str, int, int]],
        categories: Mapping[int, tuple[str, int]],
    ) -> None:
        self.images = images
        self.categories = [(one, categories[one][0]) for one in sorted(categories)]
        self.joints = max((points for _, points in categories.values()), default=0)
        self.has_captions = False
        self.image, self.number, self.category = array("q"), array("q"), array("q")
        self.box, self.area, self.joint = array("f"), array("f"), array("f")
        self.crowd = array("b")
        self.texts: list[bytes] = []


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    normalized = image_annotations.normalize_fields(image_annotations.normalize_missing(options))
    split = normalized.get("split")
    if split is not None and (not isinstance(split, str) or not split or "/" in split):
        raise UsageError(f"split is {split!r}: give a name, such as 'train2017'")
    image_annotations.check_names(normalized, "images")
    names = normalized.get("annotations")
    if names is not None:
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, Sequence) or not names or len(set(names)) < len(names):
            raise UsageError(
                f"annotations is {normalized['annotations']!r}: give kinds ({', '.join(_KINDS)}), "
                f"or names of files, each once"
            )
        for name in names:
            image_annotations.check_names({"annotations": name}, "annotations")
        normalized["annotations"] = list(names)
    return normalized


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
    for name in names:
        match = _STANDARD.fullmatch(name)
        if match is not None:
            splits.setdefault(match[2], {})[match[1]] = name
    for name in beside:
        splits[posixpath.dirname(name)] = {"instances": name}
    return splits


def build(
    store: Store,
    place: Location,
    progress: Progress | None,
    split: str | None = None,
    annotations: Sequence[str] | None = None,
    images: str | None = None,
    missing: str = "error",
    fields: Sequence[str] | None = None,
) -> Index:
    """The index of the images of one split, with the annotations of one or several files."""
    names, chosen = _choose_files(store, split, annotations)
    folders = set()
    if split is None or annotations is None:  # another file would change what is chosen
        folders.add(image_annotations.find_folder(store, ["annotations"]))
    with image_annotations.pause_collector():
        return _build(store, names, chosen, images, missing, fields, progress, folders)


def _build(
    store: Store,
    names: Sequence[str],
    split: str,
    images: str | None,
    missing: str,
    fields: Sequence[str] | None,
    progress: Progress | None,
    folders: set[str],
) -> Index:
    read = store.stat(names)
    sheets = [
        parse_sheet(
            read.path(number),
            functools.partial(store.read, read.name(number)),
            missing == "skip",
            fields is None or "segmentations" in fields,
        )
        for number in range(len(read))
    ]
    first = sheets[0]
    for number, sheet in enumerate(sheets[1:], 1):
        if [one[1:3] for one in sheet.images] != [one[1:3] for one in first.images]:
            raise FormatError(
                f"{read.path(number)} lists other images, or in another order, than "
                f"{read.path(0)}: open one of them (annotations=)"
            )
    for kind, number in (
        ("captions", sum(sheet.has_captions for sheet in sheets)),
        ("boxes", sum(not sheet.has_captions for sheet in sheets)),
    ):
        if number > 1:
            raise UsageError(f"annotations= names {number} files with {kind}: choose one")
    folder = _find_folder(store, names[0], split, images, first)
    files, kept = image_annotations.find_images(
        store,
        [posixpath.join(folder, image[2]) for image in first.images],
        lambda row: f"{read.path(0)}: images[{first.images[row][0]}] (id {first.images[row][1]})",
        missing,
        progress,
    )
    chosen = [first.images[row] for row in kept]
    attributes: list[Attribute] = []
    categories: list[tuple[int, str]] | None = None
    for sheet in sheets:
        order, ends = _sort_entries(sheet, kept)
        if sheet.has_captions:
            attributes.append(_join_texts("captions", "json", sheet, order, ends))
            continue
        categories = sheet.categories
        attributes += _make_boxes(sheet, order, ends)
        if fields is None or "segmentations" in fields:
            attributes.append(_join_texts("segmentations", "text", sheet, order, ends))
    columns = {"image_id": 1, "width": 3, "height": 4}
    attributes += [
        Attribute(name, "numbers", np.array([image[at] for image in chosen], np.int64))
        for name, at in columns.items()
    ]
    folders |= {posixpath.dirname(files.name(row)) for row in range(len(files))}
    return image_annotations.make_index(
        store,
        "coco",
        files,
        image_annotations.choose_fields(attributes, fields, read.path(0)),
        read,
        None if categories is None else [name for _, name in categories],
        sorted(folders),
    )


def _choose_files(
    store: Store, split: str | None, wanted: Sequence[str] | None
) -> tuple[list[str], str]:
    """Choose the files to parse. Returns them and the split."""
    if wanted is not None and not set(wanted) & set(_KINDS):
        return list(wanted), split or ""
    splits = _list_files(store)
    if not splits:
        raise FormatError(
            f"{store.root} has neither annotations/instances_*.json nor */{_BESIDE}: open the "
            f"folder above annotations/, or name the file by annotations="
        )
    if split is None and len(splits) > 1:
        raise UsageError(
            f"{store.root} has the splits {', '.join(sorted(splits))}, and training data must not "
            f"mix with others unnoticed: choose one, such as split={min(splits)!r}"
        )
    split = split or next(iter(splits))
    if split not in splits:
        raise UsageError(f"{store.root} has no split {split!r}, but {', '.join(sorted(splits))}")
    there = splits[split]
    kinds = wanted or [next(kind for kind in _KINDS if kind in there)]
    for kind in kinds:
        if kind in _KINDS and kind not in there:
            raise UsageError(
                f"{store.root} has no annotations {kind!r} of {split!r}, but {', '.join(there)}"
            )
    return [there.get(kind, kind) for kind in kinds], split


def _find_folder(store: Store, file: str, split: str, images: str | None, sheet: Sheet) -> str:
    """Find the folder of the images: the first of the usual ones that has one of the first few."""
    if images is not None:
        return images
    if posixpath.basename(file) == _BESIDE:
        return posixpath.dirname(file)
    folders = [split, f"images/{split}", "images", ""] if split else ["images", ""]
    few = [image[2] for image in sheet.images[:8]]
    names = [posixpath.join(folder, name) for folder in folders for name in few]
    _, errors = store.probe(unseen(store.root, names))
    there = np.flatnonzero(errors == 0)
    return folders[int(there[0]) // len(few)] if len(there) else folders[0]


def _sort_entries(sheet: Sheet, kept: Sequence[int]) -> tuple[Int, Int]:
    """Sort the annotations by their image, each image's as in the file: (order, ends).

    kept:  the images that are there, as numbers in `sheet.images`; annotations of others go.
    """
    place = np.full(len(sheet.images), len(kept), np.int64)
    place[kept] = np.arange(len(kept))
    image = place[np.frombuffer(sheet.image, np.int64)]
    counts = np.bincount(image, minlength=len(kept) + 1)[: len(kept)]
    return np.argsort(image, kind="stable")[: counts.sum()], np.cumsum(counts)


def _make_boxes(sheet: Sheet, order: Int, ends: Int) -> list[Attribute]:
    """Make the attributes of annotations with boxes, in this order."""

    def take(name: str, values: Any, dtype: Any, shape: tuple[int, ...] = ()) -> Attribute:
        rows = np.asarray(values).reshape(-1, *shape)[order]
        return Attribute(name, "numbers", rows.astype(dtype, copy=False), ends)

    ids = np.array([category for category, _ in sheet.categories], np.int64)
    labels = np.searchsorted(ids, np.frombuffer(sheet.category, np.int64))
    found = [
        take("boxes", sheet.box, np.float32, (4,)),
        replace(take("labels", labels, np.int64), classes=True),
        take("category_ids", sheet.category, np.int64),
        take("iscrowd", sheet.crowd, bool),
        take("areas", sheet.area, np.float32),
        take("annotation_ids", sheet.number, np.int64),
        Attribute("objects", "numbers", np.diff(ends, prepend=0)),
    ]
    if sheet.joints:
        found.append(take("keypoints", sheet.joint, np.float32, (sheet.joints, 3)))
    return found


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
    outlines:  check and keep segmentations.
    """
    flaws = Flaws(path)
    lists = JsonLists(path, fetch)
    for name in ("images", "annotations"):
        if name not in lists:
            keys = ", ".join(map(show, lists.keys[:8]))
            flaws.refuse(
                name,
                f"there is no such list, but {keys or 'nothing'}",
                "name a file with annotations by annotations=; image folders open without",
            )
    if "categories" in lists.others:
        flaws.refuse("categories", f"it is {lists.others['categories']}, no list", _FIXED)
    images = _parse_images(flaws, lists.parse("images"))
    categories = _parse_categories(
        flaws, lists.parse("categories") if "categories" in lists else ()
    )
    sheet = Sheet(images, categories)
    known = {image[1]: row for row, image in enumerate(images)}
    ids = array("q")
    for row, value in enumerate(lists.parse("annotations")):
        where = f"annotations[{row}]"
        if not isinstance(value, dict):
            flaws.refuse(where, f"it is {show(value)}, no object", _FIXED)
        number = _read_id(flaws, where, value)
        ids.append(number)
        where += f" (id {number})"
        if row == 0:
            sheet.has_captions = "caption" in value
        elif sheet.has_captions != ("caption" in value):
            has = "has no caption" if sheet.has_captions else "has a caption"
            flaws.refuse(where, f"it {has}, unlike annotations[0]", "divide the file")
        image = value.get("image_id")
        if not is_whole(image) or image not in known:
            if skip and is_whole(image):
                continue
            flaws.refuse(
                where,
                f"image_id is {show(image)}, and images has no such id",
                "correct it, or give missing='skip' to leave out annotations without an image",
            )
        sheet.image.append(known[image])
        sheet.number.append(number)
        if sheet.has_captions:
            text = value["caption"]
            if not isinstance(text, str) or not _is_text(text):
                flaws.refuse(where, f"caption is {show(text)}, no text", _FIXED)
            sheet.texts.append(json.dumps(text).encode())
            continue
        entry = _parse_entry(flaws, where, value, categories, sheet.joints, outlines)
        sheet.box.extend(entry.box)
        sheet.category.append(entry.category)
        sheet.crowd.append(entry.crowd)
        sheet.area.append(entry.area)
        sheet.joint.extend(entry.joints)
        if outlines:
            sheet.texts.append(json.dumps(entry.outline, separators=(",", ":")).encode())
    _check_distinct(flaws, ids)
    return sheet


def _check_distinct(flaws: Flaws, ids: array[int]) -> None:
    """Refuse an id that two annotations have."""
    numbers = np.frombuffer(ids, np.int64) if ids else np.empty(0, np.int64)
    order = np.argsort(numbers, kind="stable")
    again = order[1:][numbers[order[1:]] == numbers[order[:-1]]]
    if len(again):
        row = int(again.min())
        first = int(np.flatnonzero(numbers == numbers[row])[0])
        flaws.refuse(
            f"annotations[{row}]", f"id {numbers[row]} is that of annotations[{first}], too", _FIXED
        )


def _is_text(text: str) -> bool:
    """True if a text can be written in UTF-8: JSON may hold lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_id(flaws: Flaws, where: str, value: Mapping[str, Any]) -> int:
    number = value.get("id")
    if not is_whole(number):
        flaws.refuse(where, f"id is {show(number)}, no whole number", _FIXED)
    assert isinstance(number, int)
    return number


def _read_own_id(
    flaws: Flaws, where: str, value: Mapping[str, Any], ids: dict[int, int], row: int
) -> int:
    """Read a number that no other entry may have."""
    number = _read_id(flaws, where, value)
    other = ids.setdefault(number, row)
    if other != row:
        kind = where.split("[")[0]
        flaws.refuse(where, f"id {number} is that of {kind}[{other}], too", _FIXED)
    return number


def _parse_images(flaws: Flaws, values: Iterable[Any]) -> list[tuple[int, int, str, int, int]]:
    images = []
    ids: dict[int, int] = {}
    names: dict[str, int] = {}
    for row, value in enumerate(values):
        where = f"images[{row}]"
        if not isinstance(value, dict):
            flaws.refuse(where, f"it is {show(value)}, no object", _FIXED)
        number = _read_own_id(flaws, where, value, ids, row)
        where += f" (id {number})"
        name = image_annotations.check_below(
            flaws.path, f"{where}: file_name", value.get("file_name")
        )
        other = names.setdefault(name, row)
        if other != row:
            flaws.refuse(where, f"file_name {name!r} is that of images[{other}], too", _FIXED)
        size = []
        for side in ("width", "height"):
            length = value.get(side, 0)
            if not is_whole(length) or length < 0:
                flaws.refuse(where, f"{side} is {show(length)}, no number of pixels", _FIXED)
            size.append(length)
        images.append((row, number, name, size[0], size[1]))
    if not images:
        flaws.refuse("images", "the list is empty", "open a file that lists images")
    return images


def _parse_categories(flaws: Flaws, values: Iterable[Any]) -> dict[int, tuple[str, int]]:
    """Parse the categories: by id, the name and the number of points of a skeleton."""
    categories: dict[int, tuple[str, int]] = {}
    ids: dict[int, int] = {}
    names: dict[str, int] = {}
    for row, value in enumerate(values):
        where = f"categories[{row}]"
        if not isinstance(value, dict):
            flaws.refuse(where, f"it is {show(value)}, no object", _FIXED)
        number = _read_own_id(flaws, where, value, ids, row)
        name = value.get("name")
        if not isinstance(name, str) or not _is_text(name):
            flaws.refuse(where, f"name is {show(name)}, no text", _FIXED)
        other = names.setdefault(name, row)
        if other != row:
            flaws.refuse(where, f"name {name!r} is that of categories[{other}], too", _FIXED)
        points = value.get("keypoints", [])
        if not isinstance(points, list):
            flaws.refuse(where, f"keypoints is {show(points)}, no list of names", _FIXED)
        categories[number] = name, len(points)
    if len({points for _, points in categories.values() if points}) > 1:
        flaws.refuse(
            "categories", "they have skeletons of different numbers of keypoints", "divide the file"
        )
    return categories


def _parse_entry(
    flaws: Flaws,
    where: str,
    value: Mapping[str, Any],
    categories: Mapping[int, tuple[str, int]],
    joints: int,
    outlines: bool,
) -> Entry:
    """Parse one annotation with a box."""
    category = value.get("category_id")
    if not is_whole(category) or category not in categories:
        flaws.refuse(
            where, f"category_id is {show(category)}, and categories has no such id", _FIXED
        )
    assert isinstance(category, int)
    given = value.get("bbox")
    box = [read_number(one) for one in given] if isinstance(given, list) else []
    if len(box) != 4 or any(one is None for one in box) or (box[2] or 0) < 0 or (box[3] or 0) < 0:
        flaws.refuse(
            where,
            f"bbox is {show(given)}, no [x, y, width, height] of finite numbers, the last two not "
            f"negative",
            _FIXED,
        )
    crowd = value.get("iscrowd", 0)
    if type(crowd) not in (int, bool) or crowd not in (0, 1):
        flaws.refuse(where, f"iscrowd is {show(crowd)}, neither 0 nor 1", _FIXED)
    area = read_number(value.get("area", 0))
    if area is None:
        flaws.refuse(where, f"area is {show(value['area'])}, no finite number", _FIXED)
    outline = value.get("segmentation") if outlines else None
    problem = None if outline is None else _find_outline_flaw(outline)
    if problem:
        flaws.refuse(where, f"segmentation is {show(outline)}: {problem}", _FIXED)
    points = _parse_joints(flaws, where, value, joints)
    return Entry(box, category, int(crowd), area or 0.0, outline, points)  # type: ignore[arg-type]


def _parse_joints(flaws: Flaws, where: str, value: Mapping[str, Any], joints: int) -> list[float]:
    """Parse the points of a skeleton: x, y and visibility of each; zeros if there are none."""
    if not joints:
        return []
    given = value.get("keypoints", [0] * (3 * joints))
    numbers = [read_number(one) for one in given] if isinstance(given, list) else []
    if len(numbers) != 3 * joints or None in numbers:
        flaws.refuse(
            where,
            f"keypoints is {show(given)}, no {3 * joints} finite numbers (x, y, visibility of "
            f"{joints} points)",
            _FIXED,
        )
    return numbers  # type: ignore[return-value]


def _are_numbers(values: list[Any]) -> bool:
    """True if all are finite numbers that float32 can hold. Most of a file is polygons, so that
    no line of Python runs for each number."""
    if not set(map(type, values)) <= {int, float}:
        return False
    largest = max(map(abs, values), default=0)
    return largest <= _OUTLINE_MAX and not any(map(math.isnan, values))


def _find_outline_flaw(outline: Any) -> str | None:
    """Find what is wrong with polygons or a run-length encoded mask; None if nothing is."""
    if isinstance(outline, list):
        for polygon in outline:
            if not isinstance(polygon, list) or len(polygon) % 2:
                return "a polygon is a list of x and y in turn"
            if not _are_numbers(polygon):
                return "a polygon has what is no finite number"
        return None
    if not isinstance(outline, dict):
        return "it is neither a list of polygons nor an object with counts and size"
    size, counts = outline.get("size"), outline.get("counts")
    if not isinstance(size, list) or len(size) != 2 or not all(map(is_whole, size)):
        return "size is no [height, width]"
    if min(size) < 0:
        return "size is negative"
    if isinstance(counts, str):
        return None if counts.isascii() else "counts has characters that are not ASCII"
    if not isinstance(counts, list) or not all(is_whole(one) and one >= 0 for one in counts):
        return "counts is neither a text nor a list of whole numbers"
    if sum(counts) != size[0] * size[1]:
        return f"the counts add up to {sum(counts)}, and the mask has {size[0] * size[1]} pixels"
    return None
