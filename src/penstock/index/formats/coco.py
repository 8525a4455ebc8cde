"""COCO: folders of images, and annotations of a split in one file of JSON.

    annotations/instances_SPLIT.json          boxes, classes, outlines
    annotations/person_keypoints_SPLIT.json   the same of persons, and their joints
    annotations/captions_SPLIT.json           sentences
    SPLIT/*.jpg, images/SPLIT/*.jpg or images/*.jpg

or SPLIT/_annotations.coco.json beside the images, as some tools export it. The list `images` in
the file says which samples there are. An image without annotations is a sample without boxes.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...engine import Progress, Store
from ...errors import FormatError, UsageError
from ...extent import unseen
from ..attributes import Attribute, make_rows, make_texts
from ..table import Index
from . import image_annotations
from .image_annotations import Flaws, is_whole, read_number, show
from .location import Location

OPTIONS = ("split", "annotations", "images", "missing", "fields")
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
    number: int
    outline: Any
    joints: list[list[float]]


class Sheet(NamedTuple):
    """One parsed file.

    images:      of each image: (its entry's number, id, file name, width, height).
    categories:  of each category of boxes: (id, name), by ascending id.
    entries:     annotations with boxes, by the id of their image; None if the file has captions.
    captions:    by the id of their image; None if the file has boxes.
    joints:      points of each person; 0 if the file has none.
    """

    images: list[tuple[int, int, str, int, int]]
    categories: list[tuple[int, str]]
    entries: dict[int, list[Entry]] | None
    captions: dict[int, list[str]] | None
    joints: int


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
    names, split = _choose_files(store, split, annotations)
    with image_annotations.pause_collector():
        return _build(store, names, split, images, missing, fields, progress)


def _build(
    store: Store,
    names: Sequence[str],
    split: str,
    images: str | None,
    missing: str,
    fields: Sequence[str] | None,
    progress: Progress | None,
) -> Index:
    read = store.stat(names)
    skip = missing == "skip"
    sheets = [
        parse_sheet(
            read.path(number),
            image_annotations.parse_document(
                read.path(number), image_annotations.read_whole(store, read, number)
            ),
            skip,
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
    for kind in ("entries", "captions"):
        if sum(getattr(sheet, kind) is not None for sheet in sheets) > 1:
            raise UsageError(
                f"annotations= names two files with {'boxes' if kind == 'entries' else kind}: "
                f"choose one"
            )
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
        if sheet.entries is not None:
            categories = sheet.categories
            attributes += _make_boxes(sheet, [image[1] for image in chosen], fields)
        if sheet.captions is not None:
            texts = [json.dumps(sheet.captions.get(image[1], [])) for image in chosen]
            attributes.append(make_texts("captions", "json", texts))
    columns = {"image_id": 1, "width": 3, "height": 4}
    attributes += [
        Attribute(name, "numbers", np.array([image[at] for image in chosen], np.int64))
        for name, at in columns.items()
    ]
    folders = {posixpath.dirname(files.name(row)) for row in range(len(files))}
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


def _make_boxes(sheet: Sheet, ids: Sequence[int], fields: Sequence[str] | None) -> list[Attribute]:
    """Make the attributes of the annotations with boxes, of the images with these ids."""
    assert sheet.entries is not None
    number = {category: row for row, (category, _) in enumerate(sheet.categories)}
    rows = [sheet.entries.get(one, []) for one in ids]
    found = [
        make_rows("boxes", [[e.box for e in one] for one in rows], np.float32, (4,)),
        make_rows("labels", [[number[e.category] for e in one] for one in rows], "i8", (), True),
        make_rows("category_ids", [[e.category for e in one] for one in rows], np.int64),
        make_rows("iscrowd", [[e.crowd for e in one] for one in rows], bool),
        make_rows("areas", [[e.area for e in one] for one in rows], np.float32),
        make_rows("annotation_ids", [[e.number for e in one] for one in rows], np.int64),
        Attribute("objects", "numbers", np.array([len(one) for one in rows], np.int64)),
    ]
    if sheet.joints:
        shape = (sheet.joints, 3)
        joints = [[e.joints for e in one] for one in rows]
        found.append(make_rows("keypoints", joints, np.float32, shape))
    if fields is None or "segmentations" in fields:
        texts = [json.dumps([e.outline for e in one], separators=(",", ":")) for one in rows]
        found.append(make_texts("segmentations", "text", texts))
    return found


# -- parsing ---------------------------------------------------------------------------------------


def parse_sheet(path: str, document: Any, skip: bool = False, outlines: bool = True) -> Sheet:
    """Parse a document of annotations; FormatError names the file, the entry and its value.

    skip:      leave out annotations of images that are not listed; else they are errors.
    outlines:  check and keep segmentations.
    """
    flaws = Flaws(path)
    if not isinstance(document, dict):
        flaws.refuse("the document", f"it is {show(document)}, no object", "open COCO's JSON")
    lists: dict[str, Any] = {name: document.get(name) for name in ("images", "annotations")}
    for name, found in lists.items():
        if not isinstance(found, list):
            keys = ", ".join(map(show, list(document)[:8]))
            flaws.refuse(
                name,
                f"there is no such list, but {keys or 'nothing'}",
                "name a file with annotations by annotations=; image folders open without",
            )
    images = _parse_images(flaws, lists["images"])
    categories = _parse_categories(flaws, document.get("categories", []))
    known = {image[1] for image in images}
    entries: dict[int, list[Entry]] = {}
    captions: dict[int, list[str]] = {}
    ids: dict[int, int] = {}
    has_captions = any(isinstance(one, dict) and "caption" in one for one in lists["annotations"])
    joints = max((points for _, points in categories.values()), default=0)
    for row, value in enumerate(lists["annotations"]):
        where = f"annotations[{row}]"
        if not isinstance(value, dict):
            flaws.refuse(where, f"it is {show(value)}, no object", _FIXED)
        number = _read_id(flaws, where, value, "id", ids, row)
        where += f" (id {number})"
        image = value.get("image_id")
        if not is_whole(image) or image not in known:
            if skip and is_whole(image):
                continue
            flaws.refuse(
                where,
                f"image_id is {show(image)}, and images has no such id",
                "correct it, or give missing='skip' to leave out annotations without an image",
            )
        if has_captions:
            text = value.get("caption")
            if not isinstance(text, str) or not _is_text(text):
                flaws.refuse(where, f"caption is {show(text)}, no text", _FIXED)
            captions.setdefault(image, []).append(text)
        else:
            entry = _parse_entry(flaws, where, value, number, categories, joints, outlines)
            entries.setdefault(image, []).append(entry)
    return Sheet(
        images,
        [(one, categories[one][0]) for one in sorted(categories)],
        None if has_captions else entries,
        captions if has_captions else None,
        joints,
    )


def _is_text(text: str) -> bool:
    """True if a text can be written in UTF-8: JSON may hold lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_id(
    flaws: Flaws, where: str, value: Mapping[str, Any], name: str, ids: dict[int, int], row: int
) -> int:
    """Read a number that no other entry may have."""
    number = value.get(name)
    if not is_whole(number):
        flaws.refuse(where, f"{name} is {show(number)}, no whole number", _FIXED)
    assert isinstance(number, int)
    other = ids.setdefault(number, row)
    if other != row:
        kind = where.split("[")[0]
        flaws.refuse(where, f"{name} {number} is that of {kind}[{other}], too", _FIXED)
    return number


def _parse_images(flaws: Flaws, values: list[Any]) -> list[tuple[int, int, str, int, int]]:
    images = []
    ids: dict[int, int] = {}
    names: dict[str, int] = {}
    for row, value in enumerate(values):
        where = f"images[{row}]"
        if not isinstance(value, dict):
            flaws.refuse(where, f"it is {show(value)}, no object", _FIXED)
        number = _read_id(flaws, where, value, "id", ids, row)
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


def _parse_categories(flaws: Flaws, values: Any) -> dict[int, tuple[str, int]]:
    """Parse the categories: by id, the name and the number of points of a skeleton."""
    if not isinstance(values, list):
        flaws.refuse("categories", f"it is {show(values)}, no list", _FIXED)
    categories: dict[int, tuple[str, int]] = {}
    ids: dict[int, int] = {}
    names: dict[str, int] = {}
    for row, value in enumerate(values):
        where = f"categories[{row}]"
        if not isinstance(value, dict):
            flaws.refuse(where, f"it is {show(value)}, no object", _FIXED)
        number = _read_id(flaws, where, value, "id", ids, row)
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
    number: int,
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
    return Entry(box, category, int(crowd), area or 0.0, number, outline, points)  # type: ignore[arg-type]


def _parse_joints(
    flaws: Flaws, where: str, value: Mapping[str, Any], joints: int
) -> list[list[float]]:
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
    return [numbers[at : at + 3] for at in range(0, len(numbers), 3)]  # type: ignore[misc]


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
