"""Table of the formats that penstock reads, and the choice of one for a place.

Each module turns names and bytes into an Index. A format asks the store for the data that it parses
(see `penstock.engine.Store`) and opens nothing itself. The content of a file decides its format,
and the options only if the content does not.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine import Store
from ...errors import FormatError, MissingError, UsageError
from ...extent import Files
from ..table import Index
from . import (
    arrayrecord,
    arrow,
    clip,
    coco,
    column_choice,
    hdf5,
    image_json,
    jsonl,
    listing,
    litdata,
    lmdb,
    mds,
    megatron,
    npy,
    npz,
    parquet,
    recordio,
    records,
    saved_datasets,
    shards,
    table_of_files,
    tar,
    tfrecord,
    tokens,
    tree,
    unsupported,
    voc,
    zarr,
)
from .location import Kind, Location


@dataclass(frozen=True, slots=True)
class Format:
    """One container: its description, its kinds of place, its options, and its functions.

    canonical:  brings the options into canonical form, of JSON types; or UsageError.
    build:      makes the index, of (store, place, progress, **options); options are canonical.
    sniff:      True if a file is of this format, by its first bytes (4096 at most) and its name.
    folder:     True if the store's root is a dataset of this format, by files of certain names.
    names_of:   lists the files that a place's patterns match, if folders may be members.
    stamp:      reads the content that must be as in the index (`Index.stamp`), if the files' size
                and time do not show every change.
    beside:     True if a file is of this format because of another one that lies beside it.
    passing:    options for making the index that do not change it, and are not saved in it.
    reading:    options of what is made of the bytes when they are read. The index, which is made
                without them, serves all their values.
    attach:     applies these to an index, of (index, **options).
    """

    name: str
    summary: str
    kinds: tuple[Kind, ...]
    options: tuple[str, ...]
    canonical: Callable[[Mapping[str, Any]], dict[str, Any]]
    build: Callable[..., Index]
    sniff: Callable[[bytes, str], bool] | None = None
    folder: Callable[[Store], bool] | None = None
    names_of: Callable[[Store, Location], list[str]] | None = None
    stamp: Callable[[Store, Files], Any] | None = None
    beside: Callable[[Store, str], bool] | None = None
    passing: tuple[str, ...] = ()
    reading: tuple[str, ...] = ()
    attach: Callable[..., Index] | None = None


FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        Format(
            "tree",
            "a folder of files; class sub-folders give labels",
            ("folder",),
            ("extensions",),
            tree.normalize_options,
            tree.build,
        ),
        Format(
            "listing",
            "a text file with a path and, where known, a label on each line",
            ("file",),
            ("outside",),
            listing.normalize_options,
            listing.build,
            listing.sniff,
        ),
        Format(
            "coco",
            "COCO: images, and boxes, classes, joints or sentences of a split in one file of JSON",
            ("folder",),
            coco.OPTIONS,
            coco.normalize_options,
            coco.build,
            folder=coco.is_dataset,
        ),
        Format(
            "voc",
            "Pascal VOC: JPEGImages, Annotations, and ImageSets/Main, whose lists are splits",
            ("folder",),
            voc.OPTIONS,
            voc.normalize_options,
            voc.build,
            folder=voc.is_dataset,
        ),
        Format(
            "image_json",
            "a folder of images with a document of JSON beside each; its keys are fields",
            ("folder",),
            image_json.OPTIONS,
            image_json.normalize_options,
            image_json.build,
            folder=image_json.is_dataset,
        ),
        Format(
            "table",
            "a table (CSV, TSV, JSON, Parquet) with a file on each row; files= names the column",
            ("file",),
            table_of_files.OPTIONS,
            table_of_files.normalize_options,
            table_of_files.build,
        ),
        Format(
            "records",
            "binary records of one size in one file, a folder of files or a pattern",
            ("file", "folder", "pattern"),
            ("record_bytes", "header_bytes", "dtype", "shape", "extensions"),
            records.normalize_options,
            records.build,
        ),
        Format(
            "npy",
            "arrays in numpy's own files; the first axis counts the samples",
            ("file", "pattern"),
            (),
            dict,
            npy.build,
            npy.sniff,
        ),
        Format(
            "lmdb",
            "an LMDB environment, or several: each value is a sample, or an image in Caffe's Datum",
            ("file", "folder", "pattern"),
            lmdb.OPTIONS,
            lmdb.normalize_options,
            lmdb.build,
            lmdb.sniff,
            lmdb.is_dataset,
            lmdb.list_environments,
            lmdb.read_stamps,
        ),
        Format(
            "npz",
            "archives of arrays (numpy.savez); each array is a field",
            ("file", "pattern"),
            column_choice.OPTIONS,
            column_choice.normalize_options,
            npz.build,
            npz.sniff,
        ),
        Format(
            "mds",
            "a folder of MosaicML Streaming shards (index.json); columns are fields",
            ("folder",),
            column_choice.OPTIONS,
            column_choice.normalize_options,
            mds.build,
            folder=mds.is_dataset,
        ),
        Format(
            "litdata",
            "a folder of LitData chunks (index.json); leaves are fields",
            ("folder",),
            (*column_choice.OPTIONS, "block_size"),
            litdata.normalize_options,
            litdata.build,
            folder=litdata.is_dataset,
        ),
        Format(
            "megatron",
            "Megatron's .bin and .idx: documents of tokens, or windows over them",
            ("file", "pattern"),
            ("window",),
            tokens.normalize_options,
            megatron.build,
            megatron.sniff,
            beside=megatron.has_idx_beside,
        ),
        Format(
            "tokens",
            "flat files of tokens (nanoGPT, llm.c): windows, or documents by their end token",
            ("file", "folder", "pattern"),
            ("window", "eos", "dtype", "header_bytes", "extensions"),
            tokens.normalize_flat_options,
            tokens.build,
            tokens.sniff,
        ),
        Format(
            "arrayrecord",
            "ArrayRecord files written as 'group_size:1,uncompressed'; a record is a sample",
            ("file", "folder", "pattern"),
            (),
            dict,
            arrayrecord.build,
            arrayrecord.sniff,
        ),
        Format(
            "tar",
            "WebDataset: tar archives whose files with one stem form a sample",
            ("file", "folder", "pattern"),
            tar.OPTIONS,
            tar.normalize_options,
            tar.build,
            tar.sniff,
        ),
        Format(
            "clip",
            "tar archives of images and texts (CLIP, LAION): fields image, text and json, parsed",
            ("file", "folder", "pattern"),
            clip.OPTIONS,
            clip.normalize_options,
            clip.build,
        ),
        Format(
            "jsonl",
            "JSON lines; a line is a sample, and fields= names values of its object",
            ("file", "folder", "pattern"),
            ("extensions", *jsonl.FIELD_OPTIONS),
            jsonl.normalize_options,
            jsonl.build,
            jsonl.sniff,
            reading=jsonl.FIELD_OPTIONS,
            attach=jsonl.attach_fields,
        ),
        Format(
            "tfrecord",
            "TFRecord files; example= names features of tf.Example",
            ("file", "folder", "pattern"),
            tfrecord.OPTIONS,
            tfrecord.normalize_options,
            tfrecord.build,
            tfrecord.sniff,
        ),
        Format(
            "recordio",
            "MXNet RecordIO files, as im2rec writes them",
            ("file", "folder", "pattern"),
            recordio.OPTIONS,
            recordio.normalize_options,
            recordio.build,
            recordio.sniff,
        ),
        Format(
            "arrow",
            "Arrow files and streams, Feather, saved Hugging Face datasets; a column is a field",
            ("file", "folder", "pattern"),
            ("fields", "label", "nulls"),
            column_choice.normalize_table_options,
            arrow.build,
            arrow.sniff,
            saved_datasets.is_saved_dataset,
        ),
        Format(
            "hdf5",
            "HDF5; a dataset is a field, its first axis counts the samples (needs h5py)",
            ("file", "folder", "pattern"),
            ("dataset", "fields", "label", "fill", "isolate"),
            hdf5.normalize_options,
            hdf5.build,
            hdf5.sniff,
            passing=("isolate",),
        ),
        Format(
            "zarr",
            "a folder that is a Zarr array or group; an array is a field",
            ("folder",),
            ("dataset", "fields", "label", "fill"),
            column_choice.normalize_array_options,
            zarr.build,
            folder=zarr.is_array_or_group,
        ),
        Format(
            "parquet",
            "Parquet; a column is a field, decoded by row groups (needs pyarrow)",
            ("file", "folder", "pattern"),
            ("fields", "label", "nulls"),
            column_choice.normalize_table_options,
            parquet.build,
            parquet.sniff,
        ),
    )
}


def choose_format(
    store: Store, place: Location, name: str | None, options: Mapping[str, Any]
) -> Format:
    """Choose the format by name, or by content; it must take all the options given (UsageError)."""
    known = {option for entry in FORMATS.values() for option in entry.options}
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            hint = f"did you mean {near[0]}=? " if near else ""
            raise UsageError(f"no format takes {option}=: {hint}`penstock formats` lists them")
    chosen = FORMATS[_detect(store, place, options)] if name is None else _find_format(name)
    if place.kind not in chosen.kinds:
        raise UsageError(
            f"{place.path} is a {place.kind}, but format {chosen.name!r} is "
            f"{chosen.summary}: leave format= out to have it detected"
        )
    unwanted = [option for option in options if option not in chosen.options]
    if unwanted:
        takes = ", ".join(chosen.options) or "none"
        raise UsageError(
            f"{place.path} is read as {chosen.name!r}, which does not take {', '.join(unwanted)} "
            f"(it takes: {takes}): leave that out, or give format="
        )
    return chosen


_OTHER_NAMES = {
    "webdataset": "tar",
    "wds": "tar",
    "imagefolder": "tree",
    "folder": "tree",
    "files": "tree",
    "csv": "table",
    "tsv": "table",
    "json": "jsonl",
    "ndjson": "jsonl",
    "h5": "hdf5",
    "numpy": "npy",
    "streaming": "mds",
    "mosaic": "mds",
    "bin": "records",
    "mxnet": "recordio",
    "feather": "arrow",
    "voc2012": "voc",
}
"""Names by which people know formats."""


def _find_format(name: str) -> Format:
    if isinstance(name, str) and name in FORMATS:
        return FORMATS[name]
    meant = _OTHER_NAMES.get(str(name).lower())
    near = [meant] if meant else difflib.get_close_matches(str(name).lower(), FORMATS, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"format is {name!r:.100}: {hint}use one of {', '.join(FORMATS)}")


_HEAD_BYTES = 4096
_LOOKED_AT = 8
"""Number of files of a folder that are read to tell shards from samples."""


def _detect(store: Store, place: Location, options: Mapping[str, Any]) -> str:
    geometry = any(name in options for name in ("record_bytes", "dtype", "shape"))
    # Flat tokens do not describe themselves; a cut file of llm.c must not pass for such.
    cuts = {"window", "eos"} & options.keys()
    windows = (
        bool(cuts)
        and "dtype" in options
        and not {
            "record_bytes",
            "shape",
        }
        & options.keys()
    )
    if place.kind == "folder":
        if geometry:
            return "tokens" if windows else "records"
        return _detect_folder(store, options.get("extensions", ()))
    if "files" in options and place.kind == "file":
        return "table"
    name = place.name if place.kind == "file" else _find_first_name(store, place)
    head = store.read(name, 0, _HEAD_BYTES)
    format_name = (
        _sniff_format(head, name)
        if geometry and not windows
        else _detect_beside(store, name) or _sniff_format(head, name)
    )
    if windows and format_name is None:
        return "tokens"
    if geometry and not windows and format_name not in ("npy",):
        return "records"
    if format_name is not None and (
        place.kind == "file" or place.kind in FORMATS[format_name].kinds
    ):
        return format_name
    path = place.path if place.kind == "file" else os.path.join(store.root, name)
    description = "" if format_name else unsupported.describe_unsupported(head, name)
    if description:
        raise FormatError(f"{path} is {description}")
    raise FormatError(
        f"{path} is of no format that penstock knows"
        + (" in several files" if format_name else "")
        + f" (it starts with {head[:8]!r}): for "
        f"binary records give record_bytes=, or dtype= and shape=; else give format= "
        f"({', '.join(FORMATS)})"
    )


def _find_first_name(store: Store, place: Location) -> str:
    """Find a file that a pattern matches, inside a folder if folders are members of a dataset."""
    for entry in FORMATS.values():
        if entry.names_of is not None:
            with contextlib.suppress(MissingError):  # then there are neither folders nor files
                name = entry.names_of(store, place)[0]
                if name not in store.match(place.names[0]):
                    return name
    return shards.list_names(store, place)[0]


def _detect_beside(store: Store, name: str) -> str | None:
    """Find the format that a file has because of a file beside it."""
    entries = (entry for entry in FORMATS.values() if entry.beside is not None)
    return next((e.name for e in entries if e.beside and e.beside(store, name)), None)


def _sniff_format(head: bytes, name: str) -> str | None:
    """Find the format that a file's content shows.

    Text, which is the least specific, comes last.
    """
    names = (entry.name for entry in FORMATS.values() if entry.sniff and entry.sniff(head, name))
    return next((each for each in sorted(names, key=lambda each: each == "listing")), None)


_ANNOTATED = ("coco", "voc", "image_json")


def _detect_folder(store: Store, extensions: Sequence[str]) -> str:
    """Detect a dataset of files with certain names, a folder of shards, or a folder of samples.

    extensions:  those that the user said are samples: then annotations are none.

    FormatError if shards lie beside other files: as a folder of samples it would give whole shards.
    """
    for entry in FORMATS.values():
        if extensions and entry.name in _ANNOTATED:
            continue
        if entry.folder is not None and entry.folder(store):
            return entry.name
    formats = {
        name: _sniff_format(store.read(name, 0, _HEAD_BYTES), name)
        for name in sorted(_find_some_names(store, extensions))
    }
    shards = [name for name in formats if _is_of_shards(formats[name])]
    if not shards:
        return "tree"
    chosen = formats[shards[0]]
    assert chosen is not None
    stray = next((name for name in formats if formats[name] != chosen), None)
    if stray is None:
        return chosen
    pattern = f"*{os.path.splitext(shards[0])[1]}"
    folder = os.path.dirname(shards[0])
    raise FormatError(
        f"{store.root} holds shards of {chosen} ({shards[0]}), and others, such as {stray}: name "
        f"the shards by a pattern such as {os.path.join(store.root, folder, pattern)!r}, or move "
        "what is no sample elsewhere; if each file is a sample, give format='tree', or extensions= "
        "with those of all samples"
    )


def _is_of_shards(name: str | None) -> bool:
    return name is not None and "folder" in FORMATS[name].kinds


def _find_some_names(store: Store, extensions: Sequence[str]) -> list[str]:
    """Find a few files of a folder, with these extensions if some are given."""
    names = store.some(_LOOKED_AT)
    if not extensions:
        return names
    chosen = [name for name in names if name.lower().endswith(tuple(extensions))]
    if chosen:
        return chosen
    files = store.scan(extensions).files
    return [files.name(file) for file in range(min(len(files), _LOOKED_AT))]
