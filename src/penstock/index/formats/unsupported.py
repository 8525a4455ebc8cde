"""Kinds of files that penstock does not read: how to recognise them, and what to do instead.

This module refuses no file, except compressed ones. It looks up a file that no format takes, for
the message of the error. The content decides before the name does.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from ...engine.store import StoreFile


class UnsupportedKind(NamedTuple):
    """One kind of file: its name, what to do instead, and how to recognise it.

    shows:       True if a file's first bytes are of this kind.
    extensions:  endings of names that tell the kind if the bytes do not.
    """

    what: str
    remedy: str
    shows: Callable[[bytes], bool]
    extensions: tuple[str, ...] = ()


def _make_prefix_test(*magics: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(magics)


def _is_ffcv(head: bytes) -> bool:
    """True if a head has a version, a number of fields, and pages of a power of two >= 2 MiB."""
    if len(head) < 24:
        return False
    version, fields, page_bytes = struct.unpack_from("<HHI", head)
    return version in (1, 2) and fields > 0 and page_bytes.bit_count() == 1 and page_bytes >> 21 > 0


def _is_torch(head: bytes) -> bool:
    """True for a zip archive with a pickle in it; or, before torch 1.6, a pickle of its number."""
    old = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
    return head.startswith(old) or (head.startswith(b"PK\3\4") and b"/data.pkl" in head)


def _is_safetensors(head: bytes) -> bool:
    """True if a head has the length of a header of JSON, and the header."""
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= 100_000_000


def _is_idx(head: bytes) -> bool:
    """True if a head has two zeros, a type, and up to four dimensions."""
    zeros, kind, dimensions = head[:2], head[2:3], head[3:4]
    return zeros == b"\0\0" and b"\x08" <= kind <= b"\x0e" and b"\1" <= dimensions <= b"\4"


_COMPRESSIONS = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\x04\x22\x4d\x18": ("LZ4", "unlz4"),
}

_UNSUPPORTED = (
    *(
        UnsupportedKind(f"a file compressed by {name}", f"`{program}` it", _make_prefix_test(magic))
        for magic, (name, program) in _COMPRESSIONS.items()
    ),
    UnsupportedKind(
        "an FFCV file",
        "open what it was made from, since folders of images, WebDataset tar and others are read "
        "as they are (`penstock formats`)",
        _is_ffcv,
        (".beton",),
    ),
    UnsupportedKind(
        "a file of torch.save",
        "load it by torch.load, and write its arrays by numpy.save",
        _is_torch,
    ),
    UnsupportedKind(
        "a safetensors file",
        "load it by safetensors.numpy.load_file, and write its arrays by numpy.save",
        _is_safetensors,
    ),
    UnsupportedKind(
        "a pickle",
        "it may run any program when it is loaded; where you trust it, load it by pickle.load, and "
        "write its arrays by numpy.save",
        _make_prefix_test(*(bytes([0x80, version]) for version in range(2, 6))),
        (".pkl", ".pickle"),
    ),
    UnsupportedKind(
        "a zip, 7-Zip or RAR archive",
        "unpack it, and open the folder",
        _make_prefix_test(b"PK\3\4", b"PK\5\6", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07"),
    ),
    UnsupportedKind(
        "an SQLite database",
        "write its rows as Parquet, by pandas.read_sql and DataFrame.to_parquet",
        _make_prefix_test(b"SQLite format 3\0"),
    ),
    UnsupportedKind(
        "an ORC file",
        "write it as Parquet, by pyarrow.orc.read_table and pyarrow.parquet.write_table",
        _make_prefix_test(b"ORC"),
    ),
    UnsupportedKind("an Avro file", "write its rows as Parquet", _make_prefix_test(b"Obj\1")),
    UnsupportedKind(
        "a MATLAB file from before version 7.3",
        "save it as -v7.3, which is HDF5; or load it by scipy.io.loadmat, and write its arrays by "
        "numpy.save",
        _make_prefix_test(b"MATLAB 5.0 MAT-file"),
    ),
    UnsupportedKind(
        "an IDX file (as of MNIST)",
        "give what its header says, such as dtype='uint8', shape=(28, 28), header_bytes=16 for "
        "images and dtype='uint8', shape=(), header_bytes=8 for labels",
        _is_idx,
    ),
    UnsupportedKind(
        "a single image",
        "open the folder that it is in; for some images of a folder, or their labels, write their "
        "paths into a text file in that folder, one (and its label) on each line, and open that",
        _make_prefix_test(b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*"),
    ),
    UnsupportedKind(
        "a table in text (CSV)",
        "write it as Parquet, by pyarrow.csv.read_csv and pyarrow.parquet.write_table; or, if a "
        "column names a file for each row, give that column, as by files='file_name'",
        lambda _: False,
        (".csv", ".tsv"),
    ),
    UnsupportedKind(
        "JSON",
        "if each line is an object, give format='jsonl'; else write its rows as such lines, those "
        "of a list by `jq -c '.[]'`",
        lambda head: re.match(rb'\s*(\{\s*["}]|\[\s*["\[{\d\]-])', head) is not None,
        (".json",),
    ),
)


def describe_unsupported(head: bytes, name: str) -> str:
    """Describe a file that is not read, and what to do, for a message; "" if it is unknown."""
    extension = os.path.splitext(name)[1].lower()
    shown = [kind for kind in _UNSUPPORTED if kind.shows(head)]
    named = [each for each in _UNSUPPORTED if extension in each.extensions]
    compression = find_compression(head)
    if compression is not None:  # unpacking alone may lead to the next file that is not read
        inner = os.path.splitext(os.path.splitext(name)[0])[1].lower()
        for found in (each for each in _UNSUPPORTED if inner in each.extensions):
            return (
                f"{found.what}, compressed by {compression[0]}, which penstock does not read: "
                f"`{compression[1]}` it, then {found.remedy}"
            )
    for found in (shown + named)[:1]:
        return f"{found.what}, which penstock does not read: {found.remedy}"
    return ""


def find_compression(head: bytes) -> tuple[str, str] | None:
    """Find the compression of a whole file, and the program that undoes it.

    None if there is none.
    """
    matches = (tools for magic, tools in _COMPRESSIONS.items() if head.startswith(magic))
    return next(matches, None)


def refuse_compressed(source: StoreFile, what: str) -> None:
    """Refuse a file that is compressed as a whole (FormatError): it has no extents."""
    compression = find_compression(source.read(0, 6))
    if compression is not None:
        name, program = compression
        raise source.flaw(0, f"a {what} compressed by {name}: `{program}` it")
