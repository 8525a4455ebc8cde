"""Table of the formats that penstock reads, one module a container.

A module turns names and bytes into an Index. It is imported when its container is opened: the
table holds what listing the formats and recognising a file need.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...engine.store import Progress, Store
from ..table import Index
from .shards import Kind, Location, Scan


@dataclass(frozen=True, slots=True)
class Format:
    """One container: its description, its kinds of place and its options.

    A function is named in the module of the format's name, or as "module.function".

    canonical_by:  function that brings options into canonical form, of JSON types.
    built_by:   function that makes the index, see `build`.
    magic:      (offset, bytes) of the files; one of them is enough.
    endings:    names of files for which `sniff` is asked as well, or which are of clips.
    sniff:      function of a file's first 4096 bytes at most, and its name, that decides. Without
                magic it is asked last.
    folder:     function of a store: True if its root is a dataset of this format.
    environments:  patterns may match folders: the module's `list_environments` finds them.
    stamped:    the module's `read_stamps` reads content that must be as in the index
                (`Index.stamp`), if the files' size and time do not show every change.
    beside:     endings of files that are of this format if a function of store and name says so.
    passing:    options for making the index that do not change it, and are not saved in it.
    reading:    options of what is made of the bytes when they are read, by the module's
                `attach_fields`. The index is made without them and serves all their values.
    """

    name: str
    summary: str
    kinds: tuple[Kind, ...]
    options: tuple[str, ...]
    canonical_by: str = "normalize_options"
    built_by: str = "build"
    magic: tuple[tuple[int, bytes], ...] = ()
    endings: tuple[str, ...] = ()
    sniff: str = ""
    folder: str = ""
    environments: bool = False
    stamped: bool = False
    beside: tuple[tuple[str, ...], str] | None = None
    passing: tuple[str, ...] = ()
    reading: tuple[str, ...] = ()

    def load(self, function: str) -> Any:
        """Return a function of the format's module, or of "module.function"."""
        module, _, name = function.rpartition(".")
        return getattr(importlib.import_module(f".{module or self.name}", __package__), name)

    @property
    def detected(self) -> bool:
        """True if files or folders of this format are recognised by their content."""
        return bool(self.magic or self.sniff or self.folder)

    def canonical(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options in canonical form, of JSON types; or UsageError."""
        if not self.options:
            return dict(options)
        canonical: dict[str, Any] = self.load(self.canonical_by)(options)
        return canonical

    def build(
        self, store: Store, place: Location, progress: Progress | None, **options: Any
    ) -> Index:
        """Make the index. The options are canonical."""
        index: Index = self.load(self.built_by)(Scan(store, place, progress), **options)
        return index

    def attach(self, index: Index, **options: Any) -> Index:
        """Apply the options `reading` to an index."""
        attached: Index = self.load("attach_fields")(index, **options)
        return attached

    def recognizes(self, head: bytes, name: str) -> bool:
        """True if a file is of this format, by its first bytes and its name."""
        looks = any(head.startswith(magic, at) for at, magic in self.magic)
        if not self.sniff:
            return looks
        if self.magic and not looks and not name.lower().endswith(self.endings or "\0"):
            return False
        return bool(self.load(self.sniff)(head, name))


_WINDOW = ("window", "stride", "target", "halo", "drop", "axis")
_ANYWHERE: tuple[Kind, ...] = ("file", "folder", "pattern")

FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        Format(
            "tree",
            "a folder of files; class sub-folders give labels",
            ("folder",),
            ("extensions",),
            "options.normalize_extensions",
        ),
        Format(
            "listing",
            "a text file with a path and, where known, a label on each line",
            ("file",),
            ("outside",),
            sniff="sniff",
        ),
        Format(
            "lerobot",
            "LeRobot data sets of robots: a frame of an episode, with those around it (needs av)",
            ("folder",),
            ("delta_timestamps", "tolerance_s", "episodes", "fields", "size", "layout"),
            folder="lerobot.is_dataset",
        ),
        Format(
            "coco",
            "COCO: images, and boxes, classes, joints or sentences of a split in one file of JSON",
            ("folder",),
            ("split", "annotations", "images", "missing", "fields"),
            folder="coco.is_dataset",
        ),
        Format(
            "voc",
            "Pascal VOC: JPEGImages, Annotations, and ImageSets/Main, whose lists are splits",
            ("folder",),
            ("split", "missing", "fields"),
            folder="voc.is_dataset",
        ),
        Format(
            "image_json",
            "a folder of images with a document of JSON beside each; its keys are fields",
            ("folder",),
            ("fields", "label", "missing"),
            folder="image_json.is_dataset",
        ),
        Format(
            "table",
            "a table (CSV, TSV, JSON, Parquet) with a file on each row; files= names the column",
            ("file",),
            ("files", "columns", "label", "outside"),
            "table_of_files.normalize_options",
            "table_of_files.build",
        ),
        Format(
            "records",
            "binary records of one size in one file, a folder of files or a pattern",
            _ANYWHERE,
            ("record_bytes", "header_bytes", "dtype", "shape", "extensions"),
            canonical_by="arrays.normalize_records",
            built_by="arrays.build_records",
        ),
        Format(
            "npy",
            "arrays in numpy's own files; a sample is a row, with sample= a file, or a window=",
            _ANYWHERE,
            ("sample", *_WINDOW),
            "options.normalize_windows",
            magic=((0, b"\x93NUMPY"),),
            built_by="arrays.build_npy",
        ),
        Format(
            "lmdb",
            "an LMDB environment, or several: each value is a sample, or an image in Caffe's Datum",
            _ANYWHERE,
            ("database", "datum", "order", "exclude", "verify"),
            # of 64-bit and 32-bit writers, and of either byte order
            magic=tuple(
                (at, bytes.fromhex(magic))
                for at in (12, 16, 24)
                for magic in ("DEC0EFBE", "BEEFC0DE")
            ),
            folder="lmdb.is_dataset",
            beside=(("lock.mdb",), "lmdb.has_data_beside"),
            environments=True,
            stamped=True,
        ),
        Format(
            "npz",
            "archives of arrays (numpy.savez); each array is a field",
            _ANYWHERE,
            ("fields", "label", "sample", *_WINDOW),
            "options.normalize_windows",
            magic=((0, b"PK\3\4"), (0, b"PK\5\6")),
            sniff="arrays.sniff_npz",
            built_by="arrays.build_npz",
        ),
        Format(
            "mds",
            "a folder of MosaicML Streaming shards (index.json); columns are fields",
            ("folder",),
            ("fields", "label"),
            "options.normalize_columns",
            folder="row_shards.is_mds",
            built_by="row_shards.build_mds",
        ),
        Format(
            "litdata",
            "a folder of LitData chunks (index.json); leaves are fields",
            ("folder",),
            ("fields", "label", "block_size"),
            folder="litdata.is_dataset",
        ),
        Format(
            "megatron",
            "Megatron's .bin and .idx: documents of tokens, or windows over them",
            _ANYWHERE,
            ("window",),
            "tokens.normalize_options",
            "tokens.build_megatron",
            magic=((0, b"MMIDIDX\0\0"), (0, b"TNTIDX")),
            beside=((".bin", ".manifest.json"), "tokens.has_idx_beside"),
        ),
        Format(
            "tokens",
            "flat files of tokens (nanoGPT, llm.c): windows, or documents by their end token",
            _ANYWHERE,
            ("window", "eos", "dtype", "header_bytes", "extensions"),
            "tokens.normalize_flat_options",
            # llm.c's magic and version, for tokens of uint16 and of uint32
            magic=tuple((0, struct.pack("<ii", magic, 1)) for magic in (20240520, 20240801)),
        ),
        Format(
            "arrayrecord",
            "ArrayRecord files written as 'group_size:1,uncompressed'; a record is a sample",
            _ANYWHERE,
            (),
            magic=((0, bytes.fromhex("83af70d10d884a3f")),),  # of Riegeli, its base
        ),
        Format(
            "tar",
            "WebDataset: tar archives whose files with one stem form a sample",
            _ANYWHERE,
            ("fields", "label", "missing", "duplicates", "ignore_zeros", "end", "extensions"),
            magic=((257, b"ustar"),),
            endings=(".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4"),
            sniff="sniff",
        ),
        Format(
            "clip",
            "tar archives of images and texts (CLIP, LAION): fields image, text and json, parsed",
            _ANYWHERE,
            ("label", "missing", "duplicates", "ignore_zeros", "end", "extensions"),
            "tar.normalize_options",
            "tar.build_pairs",
        ),
        Format(
            "jsonl",
            "JSON lines; a line is a sample, and fields= names values of its object",
            _ANYWHERE,
            ("extensions", "fields", "types", "defaults", "broken"),
            sniff="sniff",
            reading=("fields", "types", "defaults", "broken"),
        ),
        Format(
            "tfrecord",
            "TFRecord files; example= names features of tf.Example",
            _ANYWHERE,
            ("check", "verify", "example", "label", "extensions"),
            sniff="record_streams.sniff_tfrecord",
            canonical_by="record_streams.normalize_tfrecord",
            built_by="record_streams.build_tfrecord",
        ),
        Format(
            "recordio",
            "MXNet RecordIO files, as im2rec writes them",
            _ANYWHERE,
            ("label", "header", "extensions"),
            magic=((0, b"\x0a\x23\xd7\xce"),),
            endings=(".rec",),
            sniff="record_streams.sniff_recordio",
            canonical_by="record_streams.normalize_recordio",
            built_by="record_streams.build_recordio",
        ),
        Format(
            "arrow",
            "Arrow files and streams, Feather, saved Hugging Face datasets; a column is a field",
            _ANYWHERE,
            ("fields", "label", "nulls"),
            "options.normalize_columns",
            magic=((0, b"ARROW1\0\0"), (0, b"\xff\xff\xff\xff")),
            sniff="sniff",
            folder="saved_datasets.is_saved_dataset",
        ),
        Format(
            "hdf5",
            "HDF5; a dataset is a field, its first axis counts the samples (needs h5py)",
            _ANYWHERE,
            ("dataset", "fields", "label", "fill", "isolate", "sample", *_WINDOW),
            "options.normalize_arrays",
            # a user block of 512, 1024 or 2048 bytes may come first
            magic=tuple((at, b"\x89HDF\r\n\x1a\n") for at in (0, 512, 1024, 2048)),
            passing=("isolate",),
        ),
        Format(
            "zarr",
            "a folder that is a Zarr array or group; an array is a field",
            ("folder",),
            ("dataset", "fields", "label", "fill", "sample", *_WINDOW),
            "options.normalize_arrays",
            folder="zarr.is_array_or_group",
        ),
        Format(
            "mp4",
            "films (MP4, MOV): clips= of a few frames each, or each whole (decoding needs av)",
            _ANYWHERE,
            ("clips", "extensions"),
            magic=tuple((4, kind) for kind in (b"ftyp", b"moov", b"wide", b"pnot")),
            endings=(".mp4", ".m4v", ".mov"),
        ),
        Format(
            "audio",
            "sound (WAV, FLAC, MP3, Ogg, M4A): clips= of some seconds, or whole (needs av)",
            _ANYWHERE,
            ("clips", "extensions", "sound"),
            magic=((8, b"WAVE"), (0, b"fLaC"), (0, b"OggS"), (0, b"ID3"))
            # frames of layer III of MPEG 1, 2 and 2.5, with a checksum or without
            + tuple((0, bytes((0xFF, kind))) for kind in b"\xfa\xfb\xf2\xf3\xe2\xe3"),
            endings=(".wav", ".wave", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".m4b"),
            reading=("sound",),
        ),
        Format(
            "parquet",
            "Parquet; a column is a field, decoded by row groups (needs pyarrow)",
            _ANYWHERE,
            ("fields", "label", "nulls"),
            "options.normalize_columns",
            magic=((0, b"PAR1"),),
        ),
    )
}
