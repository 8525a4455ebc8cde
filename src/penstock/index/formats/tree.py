"""Folders of files: each file is a sample, and its topmost sub-folder is its class.

If every file is in some sub-folder, the sub-folders' names, sorted, are the classes (also of
empty ones, so that a class has the same label in training and validation data). If any file is at
the top, there are no labels.

Read as a tree of classes, the annotations of COCO or VOC would become samples, and `annotations`
and `images` classes. A folder of several kinds of files is refused, unless `extensions=` says which
files are samples. The kind of a file follows from its extension. A folder is mixed if

* two of its sub-folders have no kind in common (`annotations/*.json` beside `train2017/*.jpg`), or
* two of its sub-folders are called as data and labels are (`images` and `masks`), or
* most files are there in pairs of two kinds and one name (`1.jpg` and `1.xml`), or
* most are images, audio or video, and some are of another kind or notes (a README, `labels.csv`):
  as samples they would fail in `decode`, and at the top they would leave no classes.

Files of other unknown extensions do not count.
"""

from __future__ import annotations

import itertools
import posixpath
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...engine.store import Listing, Store
from ...errors import FormatError
from ...extent import Files, Int, Names, joined, unseen
from ..attributes import Attribute
from ..fields import Field
from ..layout import Layout
from ..table import Index
from . import splits
from .shards import Scan, index_files

KINDS = {
    "images": "jpg jpeg png gif bmp webp tif tiff ppm jp2",
    "audio": "wav flac mp3 ogg opus m4a",
    "video": "mp4 avi mkv mov webm",
    "text": "json jsonl xml txt csv tsv yaml yml",
    "arrays": "npy npz mat",
}
_kind_of = {f".{ending}": kind for kind, endings in KINDS.items() for ending in endings.split()}
_data_names = {"images", "image", "imgs", "img", "jpegimages"}
_label_names = {"labels", "label", "masks", "mask", "annotations", "segmentationclass"}
_layouts = {".json": ", as COCO does", ".xml": ", as Pascal VOC does", ".txt": ", as YOLO does"}
_media = {"images", "audio", "video"}
_OPEN_ONE_KIND = (
    "open the folder of the samples alone, or a text file of paths and labels, or give extensions="
)
_ZARR = ("zarr.json", ".zarray", ".zgroup")
NOTES = {"", ".md", ".rst", ".pdf", ".html", ".log", ".db"}
_FOLDERS_LOOKED_AT = _FILES_LOOKED_AT = 4096


def build(scan: Scan, extensions: Sequence[str] = ()) -> Index:
    """The index of the files below the scan.store's root, in ascending order of path bytes."""
    listing = scan.list_folder(extensions)
    if wanted := scan.place.splits:
        listing = scan.choose_split(listing)
    if not extensions:  # looks at a few thousand of the files
        mixture = _find_unlike_folders(listing) or _find_pairs(listing)
        if array := _find_array(scan.store, listing):
            raise FormatError(f"{array} is an array or group of Zarr: open it")
        if mixture:
            raise FormatError(f"{listing.files.root} holds {mixture}: {_OPEN_ONE_KIND}")
    if not wanted:
        scan.choose_split(listing)
    if not extensions and (stray := _find_stray(listing)):
        raise FormatError(f"{listing.files.root} holds {stray}: give extensions= of samples")
    classes, labels = label_folders(listing, wanted)
    return index_files("tree", listing.files, listing.folders, classes, labels)


class MediaFiles(NamedTuple):
    """Files of a place, and of a folder the classes of its sub-folders, with each file's label."""

    files: Files
    sources: Files
    classes: tuple[str, ...] | None = None
    labels: Int | None = None

    def check_short(self, is_short: Any, lengths: Int, unit: str, clip: str, short: str) -> None:
        """Check which files are shorter than a clip: those are left out; FormatError if all are, or
        if `short` is "error"."""
        rows = np.flatnonzero(is_short).tolist()
        if not rows:
            return
        what = f"{self.files.path(rows[0])} has {int(lengths[rows[0]]):,} {unit}"
        what = f"{what}, fewer than a clip of {clip}"
        if short == "error" or len(rows) == len(self.files):
            raise FormatError(f"{what}: give shorter clips, or short='pad' or 'skip'")
        if len(rows) > 1:
            what = f"{what}, and {len(rows) - 1:,} files more are as short"
        warnings.warn(f"{what}: they are left out", RuntimeWarning, stacklevel=2)

    def make_index(
        self,
        format: str,
        columns: Sequence[tuple[Field, Layout]],
        attributes: Sequence[Attribute],
        first: Int | None = None,
    ) -> Index:
        """Make the index of the files, each a sample; or of their clips, each file's from `first`
        on."""
        names, labels = None, self.labels
        if first is None:
            names = Names(self.files.names, self.files.ends)
        elif labels is not None:
            labels = np.repeat(labels, np.diff(first))
        fields, layouts = zip(*columns, strict=True)
        described = self.files, fields, layouts, self.sources, self.classes, labels, names
        return Index(format, *described, attributes=tuple(attributes))


def list_media(scan: Scan, endings: Sequence[str]) -> MediaFiles:
    """List the files of a place; of a folder, the ones with these endings."""
    if scan.place.kind != "folder":
        return MediaFiles(*scan.list_files())
    listing = scan.choose_split(scan.list_folder(endings))
    sources = joined(listing.folders, listing.files)
    return MediaFiles(listing.files, sources, *label_folders(listing, scan.place.splits))


def label_folders(
    listing: Listing, wanted: tuple[str, ...] | None
) -> tuple[tuple[str, ...] | None, Int | None]:
    """Return the classes and each file's label, if every file is in a folder of a class.

    wanted:  the splits that were asked for, whose names are no classes.
    """
    classes = labels = None
    folders = listing.folders
    tops = [folders.name(folder).split("/", 1)[0] for folder in range(len(folders))]
    if wanted:
        used = np.unique(listing.folder).tolist()
        named = splits.name_classes([folders.name(folder) for folder in used], wanted)
        of_folder = dict(zip(used, named, strict=True))
        tops = [of_folder.get(folder, "") for folder in range(len(folders))]
    if listing.folder.all() and all(tops[folder] for folder in np.unique(listing.folder)):
        names = {*tops} - {""}
        classes = tuple(sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape")))
        number = {name: label for label, name in enumerate(classes)}
        labels = np.array([number.get(top, 0) for top in tops], np.int64).take(listing.folder)
        empty = np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0).tolist()
        if empty:
            said = f"{listing.files.root}: no samples in the class {classes[empty[0]]!r}"
            more = f" and {len(empty) - 1:,} others" * (len(empty) > 1)
            warnings.warn(f"{said}{more}: remove what is no class", RuntimeWarning, stacklevel=2)
    return classes, labels


# -- several kinds of files ------------------------------------------------------------------------


def _find_unlike_folders(listing: Listing) -> str:
    """Describe two neighbouring folders that hold different kinds; "" if there are none."""
    kinds: dict[str, dict[str, str]] = defaultdict(dict)  # of a folder: a file of each kind
    first = np.flatnonzero(np.diff(listing.folder, prepend=-1))[:_FOLDERS_LOOKED_AT]
    last = np.append(first[1:], len(listing.files)) - 1
    for file in np.unique(np.concatenate([first, (first + last) // 2, last])).tolist():
        name = listing.files.name(file)
        kind = _kind_of.get(posixpath.splitext(name)[1].lower())
        folder = posixpath.dirname(name)
        while kind is not None and folder:
            kinds[folder].setdefault(kind, name)
            folder = posixpath.dirname(folder)
    siblings = defaultdict(list)
    for folder in kinds:
        siblings[posixpath.dirname(folder)].append(folder)
    for folders in siblings.values():
        unlike = {frozenset(kinds[folder]): folder for folder in reversed(folders)}
        for (some, one), (others, other) in itertools.combinations(unlike.items(), 2):
            if some.isdisjoint(others):
                pair = sorted(next(iter(kinds[folder].items())) for folder in (one, other))
                layout = _layouts.get(posixpath.splitext(pair[1][1])[1].lower(), "")
                return " beside ".join(f"{kind} ({name})" for kind, name in pair) + layout
        called = {posixpath.basename(folder).lower(): folder for folder in folders}
        data, labels = called.keys() & _data_names, called.keys() & _label_names
        if data and labels:
            return f"the folders {called[min(data)]} and {called[min(labels)]}"
    return ""


def _find_array(store: Store, listing: Listing) -> str:
    """Find a folder of Zarr, whose chunks are no samples, around one of the first files."""
    names = [listing.files.name(file) for file in range(min(len(listing.files), 4))]
    names = [name for name in names if posixpath.splitext(name)[1].lower() not in _kind_of]
    above = [name[:cut] for name in names for cut, sign in enumerate(name) if sign == "/"]
    marked = [f"{folder}/{mark}" for folder in dict.fromkeys(above) for mark in _ZARR]
    there = np.flatnonzero(store.probe(unseen(store.root, marked))[1] == 0)
    return posixpath.dirname(posixpath.join(store.root, marked[there[0]])) if len(there) else ""


def _find_pairs(listing: Listing) -> str:
    """Describe a pair of files of two kinds and one name if most files are such; else ""."""
    names = [listing.files.name(file) for file in range(min(len(listing.files), _FILES_LOOKED_AT))]
    split_names = [posixpath.splitext(name) for name in names]
    pairs = [
        number
        for number, (a, b) in enumerate(itertools.pairwise(split_names))
        if a[0] == b[0]
        and (kind := _kind_of.get(a[1].lower())) is not None
        and _kind_of.get(b[1].lower()) not in (kind, None)
    ]
    if 4 * len(pairs) <= len(names):  # half of the files, or fewer
        return ""
    return f"pairs such as {names[pairs[0]]} and {names[pairs[0] + 1]}"


def _find_stray(listing: Listing) -> str:
    """Describe a file of another kind than most, if these are media; "" if there is none."""
    at_top = np.flatnonzero(listing.folder == 0)[:_FILES_LOOKED_AT].tolist()
    looked_at = {*range(min(len(listing.files), _FILES_LOOKED_AT)), *at_top}
    endings = {file: posixpath.splitext(listing.files.name(file))[1].lower() for file in looked_at}
    counts = Counter(_kind_of.get(ending) for ending in endings.values())
    kind, count = max(counts.items(), key=lambda item: item[1])
    if kind not in _media or 2 * count <= len(looked_at):
        return ""
    for file in sorted(looked_at):
        other = _kind_of.get(endings[file])
        if other not in (kind, None) or (other is None and endings[file] in NOTES):
            return f"{kind}, and {listing.files.name(file)}, which is none"
    return ""
