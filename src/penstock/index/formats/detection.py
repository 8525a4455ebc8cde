"""Choice of the format for a place: by name, or by content.

The content of a file decides its format, and the options only if the content does not. A file that
no format takes is looked up among the kinds that are not read, for the message of the error.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...engine.store import Store, StoreFile
from ...errors import FormatError, MissingError, UsageError
from ...extent import unseen
from . import shards, splits
from .registry import FORMATS, Format
from .shards import Location

_HEAD_BYTES = 4096
_LOOKED_AT = 8
"""Number of files of a folder that are read to tell shards from samples."""
_ANNOTATED = ("coco", "voc", "image_json")
_OTHER_NAMES = {
    name: format
    for format, names in {
        "arrow": "feather",
        "audio": "wav flac mp3 ogg opus sound speech",
        "hdf5": "h5",
        "jsonl": "json ndjson",
        "mds": "streaming mosaic",
        "mp4": "mov m4v video videos clips films",
        "npy": "numpy",
        "recordio": "mxnet",
        "records": "bin",
        "table": "csv tsv",
        "tar": "webdataset wds",
        "tree": "imagefolder folder files",
        "voc": "voc2012",
    }.items()
    for name in names.split()
}
"""Names by which people know formats."""


def choose_format(
    store: Store, place: Location, name: str | None, options: Mapping[str, Any]
) -> Format:
    """Choose the format by name, or by content; it must take all the options given (UsageError)."""
    known = {option for entry in FORMATS.values() for option in entry.options}
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            hint = f"did you mean {near[0]}=? " if near else ""
            if option == "labels":
                hint = "decode= adds labels from elsewhere, labels[sample['__id__']]; "
            raise UsageError(f"no format takes {option}=: {hint}`penstock formats` lists them")
    chosen = FORMATS[_detect(store, place, options)] if name is None else _find_format(name)
    if place.kind not in chosen.kinds:
        raise UsageError(
            f"{place.path} is a {place.kind}, but format {chosen.name!r} is {chosen.summary}: "
            f"leave format= out"
        )
    unwanted = next((option for option in options if option not in chosen.options), None)
    if unwanted is not None:
        if chosen.name == "listing":  # what begins as JSON is text, too
            what = describe_unsupported(store.read(place.name, 0, _HEAD_BYTES), place.name)
            if what.startswith("JSON"):
                raise FormatError(f"{place.path} is {what}")
        takes = ", ".join(chosen.options) or "no options"
        others = ", ".join(entry.name for entry in FORMATS.values() if unwanted in entry.options)
        raise UsageError(
            f"{place.path} is read as {chosen.name!r}, which takes {takes}; {unwanted}= is of "
            f"{others}: leave it out, or give format="
        )
    return chosen


def _find_format(name: str) -> Format:
    if isinstance(name, str) and name in FORMATS:
        return FORMATS[name]
    meant = _OTHER_NAMES.get(str(name).lower())
    near = [meant] if meant else difflib.get_close_matches(str(name).lower(), FORMATS, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"format is {name!r:.100}: {hint}use one of {', '.join(FORMATS)}")


def _detect(store: Store, place: Location, options: Mapping[str, Any]) -> str:
    sized = {"record_bytes", "shape"} & options.keys()
    # Flat tokens do not describe themselves; a cut file of llm.c must not pass for such.
    windows = bool({"window", "eos"} & options.keys()) and "dtype" in options and not sized
    geometry = bool(sized or "dtype" in options) and not windows
    if "sound" in options:
        return "audio"
    if "clips" in options:
        return _detect_clips(store, place, options)
    if place.kind == "folder":
        if geometry or windows:
            return "tokens" if windows else "records"
        return _detect_folder(store, place, options.get("extensions", ()), "sample" in options)
    if "files" in options and place.kind == "file":
        return "table"
    name = place.name if place.kind == "file" else _find_first_name(store, place)
    head = store.read(name, 0, _HEAD_BYTES)
    detected = (None if geometry else _find_owner(store, name)) or _sniff_format(head, name)
    if windows and detected is None:
        return "tokens"
    if geometry and detected != "npy":
        return "records"
    if detected is not None and (place.kind == "file" or place.kind in FORMATS[detected].kinds):
        return detected
    path = place.path if place.kind == "file" else os.path.join(store.root, name)
    if detected is None and (description := describe_unsupported(head, name)):
        raise FormatError(f"{path} is {description}")
    raise FormatError(
        f"{path} is of no format that penstock knows{' in several files' if detected else ''} (it "
        f"starts with {head[:8]!r}): for binary records give record_bytes=, or dtype= and shape=; "
        f"else give format= ({', '.join(FORMATS)})"
    )


def _detect_clips(store: Store, place: Location, options: Mapping[str, Any]) -> str:
    """Detect whether clips are of films or of sound: a folder has one of both, or is of films."""
    if place.kind != "folder":
        name = place.name if place.kind == "file" else _find_first_name(store, place)
        return "audio" if _sniff_file(store, name) == "audio" else "mp4"
    films, sounds = FORMATS["mp4"].endings, FORMATS["audio"].endings
    names = _find_some_names(store, place, options.get("extensions", ()))
    if not any(name.lower().endswith(films + sounds) for name in names):
        names = _find_some_names(store, place, films + sounds)
    has_films = any(name.lower().endswith(films) for name in names)
    return "audio" if names and not has_films else "mp4"


def _find_first_name(store: Store, place: Location) -> str:
    """Find a file that a pattern matches, inside a folder if folders are members of a dataset."""
    names = [name for pattern in place.names for name in store.match(pattern)]
    are_files = names and errno.EISDIR not in store.probe(unseen(store.root, names))[1]
    for entry in FORMATS.values():
        if entry.environments and not are_files:
            with contextlib.suppress(MissingError):  # then there are neither folders nor files
                environments: list[str] = entry.load("list_environments")(store, place)
                return environments[0]
    return shards.list_names(store, place)[0]


def _find_owner(store: Store, name: str) -> str | None:
    """Find the format to which a file belongs by what is beside it."""
    for entry in FORMATS.values():
        if entry.beside and name.endswith(entry.beside[0]):
            has_beside = entry.load(entry.beside[1])
            return entry.name if has_beside(store, name) else None
    return None


def _sniff_file(store: Store, name: str) -> str | None:
    return _sniff_format(store.read(name, 0, _HEAD_BYTES), name)


def _sniff_format(head: bytes, name: str) -> str | None:
    """Find the format that a file's content shows. Text, the least specific, comes last."""
    entries = sorted(
        (entry for entry in FORMATS.values() if entry.magic or entry.sniff),
        key=lambda entry: (not entry.magic, entry.name == "listing"),
    )
    found = next((entry.name for entry in entries if entry.recognizes(head, name)), None)
    is_sound = found == "mp4" and name.lower().endswith(FORMATS["audio"].endings)
    return "audio" if is_sound else found


def has_own_splits(store: Store, place: Location, name: str | None) -> bool:
    """True if the data, or the format that is named, says itself which splits there are."""
    entries = [entry for entry in FORMATS.values() if "split" in entry.options]
    if name is not None or place.kind != "folder":
        return name in [entry.name for entry in entries]
    return any(entry.load(entry.folder)(store) for entry in entries)


def _detect_folder(
    store: Store, place: Location, extensions: Sequence[str], has_sample: bool
) -> str:
    """Detect a dataset of files with certain names, a folder of shards, or a folder of samples.

    extensions:  which files are samples, if the user said so: then annotations are none.
    has_sample:  the user said what a sample is, so that arrays are read.

    FormatError if shards are beside other files: as a folder of samples it would give whole shards.
    """
    for entry in FORMATS.values():
        if extensions and entry.name in _ANNOTATED:
            continue
        if entry.folder and entry.load(entry.folder)(store):
            return entry.name
    names = sorted(_find_some_names(store, place, extensions))
    formats = {name: _find_owner(store, name) or _sniff_file(store, name) for name in names}
    of_shards = {
        name: format
        for name, format in formats.items()
        if format is not None and "folder" in FORMATS[format].kinds
        # else a tree, of files that are samples
        if has_sample or format not in ("npy", "npz", "mp4", "audio")
    }
    zarr = next((name for name in formats if ".zarr/" in name), None)
    if zarr is not None:
        if has_sample:
            return "zarr"
        what = f"{store.root} holds Zarr arrays or groups ({zarr.partition('.zarr/')[0]}.zarr)"
        raise UsageError(f"{what}: give sample='file' if each is a sample, or open one of them")
    if not of_shards:
        return "tree"
    shard, chosen = next(iter(of_shards.items()))
    stray = next((name for name in formats if formats[name] != chosen), None)
    if stray is None:
        return chosen
    splits.choose(store.scan(extensions).files, place)  # a pattern that mixes is no remedy
    folder, pattern = os.path.dirname(shard), f"*{os.path.splitext(shard)[1]}"
    raise FormatError(
        f"{store.root} holds shards of {chosen} ({shard}), and {stray}: open "
        f"{os.path.join(store.root, folder, pattern)!r}, or give format= or extensions="
    )


def _find_some_names(store: Store, place: Location, extensions: Sequence[str]) -> list[str]:
    """Find a few files of a folder, with these extensions if some are given."""
    names = store.some(_LOOKED_AT) if not place.splits else []
    chosen = [name for name in names if name.lower().endswith(tuple(extensions) or "")]
    if chosen or not (extensions or place.splits):
        return chosen
    listing = store.scan(extensions)
    if place.splits:
        listing = splits.take(listing, splits.choose(listing.files, place))
    files = listing.files
    return [files.name(file) for file in range(min(len(files), _LOOKED_AT))]


# -- kinds that are not read -----------------------------------------------------------------------


class UnsupportedKind(NamedTuple):
    """One kind of file: its name, what to do instead, and how to recognise it.

    shows:       pattern of the first bytes of such a file.
    extensions:  endings of names that tell the kind if the bytes do not.
    """

    what: str
    remedy: str
    shows: bytes
    extensions: tuple[str, ...] = ()


_COMPRESSIONS = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\x04\x22\x4d\x18": ("LZ4", "unlz4"),
}
_SAVE = "and write its arrays by numpy.save"
_UNSUPPORTED = (
    *(
        UnsupportedKind(f"a file compressed by {name}", f"`{program}` it", re.escape(magic))
        for magic, (name, program) in _COMPRESSIONS.items()
    ),
    UnsupportedKind(
        "an FFCV file",
        "open what it was made from, since folders of images, WebDataset tar and others are read "
        "as they are (`penstock formats`)",
        # a version, a number of fields, and pages of a power of two from 2 MiB on
        rb"[\1\2]\0(?!\0\0)..(\0\0[\x20\x40\x80]\0|\0\0\0[\1\2\4\x08\x10\x20\x40\x80]).{16}",
        (".beton",),
    ),
    UnsupportedKind(
        "a file of torch.save",
        f"load it by torch.load, {_SAVE}",
        # an archive with a pickle in it; or, before torch 1.6, a pickle of its number
        rb"PK\x03\x04.*/data\.pkl|\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
    ),
    UnsupportedKind(
        "a safetensors file",
        f"load it by safetensors.numpy.load_file, {_SAVE}",
        rb".{3}[\0-\5]\0{4}\{",  # the length of a header of JSON, and the header
    ),
    UnsupportedKind(
        "a pickle",
        f"it may run any program when it is loaded; where you trust it, load it by pickle.load, "
        f"{_SAVE}",
        rb"\x80[\2-\5]",
        (".pkl", ".pickle"),
    ),
    UnsupportedKind(
        "a zip, 7-Zip or RAR archive",
        "unpack it, and open the folder",
        rb"PK\x03\x04|PK\x05\x06|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07",
    ),
    UnsupportedKind(
        "an SQLite database",
        "write its rows as Parquet, by pandas.read_sql and DataFrame.to_parquet",
        rb"SQLite format 3\0",
    ),
    UnsupportedKind(
        "an ORC file",
        "write it as Parquet, by pyarrow.orc.read_table and pyarrow.parquet.write_table",
        rb"ORC",
    ),
    UnsupportedKind("an Avro file", "write its rows as Parquet", rb"Obj\x01"),
    UnsupportedKind(
        "a MATLAB file from before version 7.3",
        f"save it as -v7.3, which is HDF5; or load it by scipy.io.loadmat, {_SAVE}",
        rb"MATLAB 5\.0 MAT-file",
    ),
    UnsupportedKind(
        "an IDX file (as of MNIST)",
        "give what its header says, such as dtype='uint8', shape=(28, 28), header_bytes=16 for "
        "images and dtype='uint8', shape=(), header_bytes=8 for labels",
        rb"\0\0[\x08-\x0e][\1-\4]",
    ),
    UnsupportedKind(
        "a single image",
        "open the folder that it is in; for some images of a folder, or their labels, write their "
        "paths into a text file in that folder, one (and its label) on each line, and open that",
        rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8|II\*\0|MM\0\*",
    ),
    UnsupportedKind(
        "a table in text (CSV)",
        "write it as Parquet, by pyarrow.csv.read_csv and pyarrow.parquet.write_table; or, if a "
        "column names a file for each row, give that column, as by files='file_name'",
        rb"(?!)",
        (".csv", ".tsv"),
    ),
    UnsupportedKind(
        "JSON",
        "if each line is an object, give format='jsonl'; else write its rows as such lines, those "
        "of a list by `jq -c '.[]'`",
        rb'\s*(\{\s*["}]|\[\s*["\[{\d\]-])',
        (".json",),
    ),
)


def describe_unsupported(head: bytes, name: str) -> str:
    """Describe a file that is not read, and what to do, for a message; "" if it is unknown."""
    stem, extension = os.path.splitext(name.lower())
    inner = os.path.splitext(stem)[1]
    compression = find_compression(head)
    if compression is not None:  # unpacking alone may lead to the next file that is not read
        for kind in (kind for kind in _UNSUPPORTED if inner in kind.extensions):
            return (
                f"{kind.what}, compressed by {compression[0]}, which penstock does not read: "
                f"`{compression[1]}` it, then {kind.remedy}"
            )
    shown = [kind for kind in _UNSUPPORTED if re.match(kind.shows, head, re.DOTALL)]
    named = [kind for kind in _UNSUPPORTED if extension in kind.extensions]
    for kind in (shown + named)[:1]:
        return f"{kind.what}, which penstock does not read: {kind.remedy}"
    return ""


def find_compression(head: bytes) -> tuple[str, str] | None:
    """Find the compression of a whole file, and the program that undoes it; None if there is
    none."""
    matches = (tools for magic, tools in _COMPRESSIONS.items() if head.startswith(magic))
    return next(matches, None)


def refuse_compressed(source: StoreFile, what: str) -> None:
    """Refuse a file that is compressed as a whole (FormatError): it has no extents."""
    compression = find_compression(source.read(0, 6))
    if compression is not None:
        name, program = compression
        raise source.flaw(0, f"a {what} compressed by {name}: `{program}` it")
