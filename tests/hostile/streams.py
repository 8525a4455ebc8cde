"""Hostile tar, TFRecord, JSONL, RecordIO and LMDB files: each is refused at a byte for a reason.

`python -m tests.hostile.streams FOLDER` writes them out, with films, as seeds for the fuzz targets.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from tests.index.formats.lmdb_writer import BRANCH, LEAF, OVERFLOW, Environment

MAGIC = struct.pack("<I", 0xCED7230A)
END = bytes(1024)


class Case(NamedTuple):
    """A file, and where and why it must be refused."""

    container: str
    name: str
    data: bytes
    offset: int
    reason: str


def header(name: bytes, size: int | bytes = 0, kind: bytes = b"0", link: bytes = b"") -> bytes:
    """A ustar header with a right checksum; a size given as bytes is taken as it is."""
    octal = size if isinstance(size, bytes) else b"%011o\0" % size
    block = bytearray(512)
    block[0 : len(name)] = name
    block[100:108] = b"0000644\0"
    block[124 : 124 + len(octal)] = octal
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name: bytes, data: bytes = b"x", kind: bytes = b"0") -> bytes:
    """A header and its padded data."""
    return header(name, len(data), kind) + data + bytes(-len(data) % 512)


def pax(*records: bytes, kind: bytes = b"x") -> bytes:
    """A pax header with records as they are given."""
    return member(b"pax", b"".join(records), kind)


def masked(data: bytes) -> bytes:
    """TFRecord's checksum."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(data: bytes, length: int | None = None) -> bytes:
    """A TFRecord record; or one that announces another length, with the right checksum."""
    size = struct.pack("<Q", len(data) if length is None else length)
    return size + masked(size) + data + masked(data)


def part(kind: int, data: bytes, length: int | None = None) -> bytes:
    """A part of a RecordIO record."""
    word = kind << 29 | (len(data) if length is None else length)
    return MAGIC + struct.pack("<I", word) + data + bytes(-len(data) % 4)


def tar_cases() -> Iterator[Case]:
    """Archives."""

    def case(name: str, data: bytes, offset: int, reason: str) -> Case:
        return Case("tar", name, data, offset, reason)

    good = member(b"a.jpg")
    broken = bytearray(header(b"b.jpg", 1))
    broken[0] ^= 1
    yield case("nothing", b"", 0, "no end mark")
    yield case("no end mark", good, 1024, "no end mark")
    yield case("header cut", good + header(b"b.jpg", 1)[:100], 1024, "ends inside a header")
    yield case("data cut", good + header(b"b.jpg", 700) + bytes(512), 1024, "truncated")
    yield case("first checksum", bytes(broken) + END, 0, "no tar archive")
    yield case("later checksum", good + bytes(broken) + bytes(512) + END, 1024, "checksum")
    yield case("text", b"what is this? " * 100, 0, "no tar archive")
    yield case("concatenated", good + END + good + END, 2048, "ignore_zeros")
    yield case("negative size", header(b"a.jpg", b"\xff" * 12) + END, 0, "negative")
    yield case("huge size", header(b"a.jpg", b"\x80" + b"\x7f" * 11) + END, 0, "larger")
    yield case("size of 2^56", header(b"a", b"\x80\0\0\0\1" + bytes(7)) + END, 0, "truncated")
    yield case("octal of 8s", header(b"a.jpg", b"88888888888\0") + END, 0, "octal")
    yield case("largest octal", header(b"a.jpg", b"777777777777") + END, 0, "truncated")
    yield case("hard link", good + header(b"b.jpg", 0, b"1", b"a.jpg") + END, 1024, "link")
    yield case("symbolic link", good + header(b"b.jpg", 0, b"2", b"/etc/x") + END, 1024, "link")
    yield case("sparse", header(b"a.jpg", 0, b"S") + END, 0, "sparse")
    yield case("volume", header(b"a.jpg", 0, b"M") + END, 0, "volume")
    yield case("unknown type", header(b"a.jpg", 0, b"Q") + END, 0, "unknown type")
    yield case("pax sparse", pax(b"22 GNU.sparse.major=1\n") + good + END, 1024, "sparse")
    yield case("parent", member(b"../a.jpg") + END, 0, "'..'")
    yield case("parent inside", member(b"a/../../b.jpg") + END, 0, "'..'")
    yield case("absolute", member(b"/etc/a.jpg") + END, 0, "absolute")
    yield case("pax parent", pax(b"17 path=../x.jpg\n") + good + END, 1024, "'..'")
    yield case("pax zero byte", pax(b"15 path=a\0.jpg\n") + good + END, 1024, "zero byte")
    yield case("case twice", good + member(b"a.JPG") + END, 1024, "twice")
    yield case("key again", good + member(b"b.jpg") + member(b"a.jpg") + END, 2048, "comes again")
    yield case("pax length", pax(b"99 path=a.jpg\n") + good + END, 0, "longer")
    yield case("pax length 0", pax(b"0 path=a.jpg\n") + good + END, 0, "no end")
    yield case("pax huge length", pax(b"9" * 40 + b" path=a\n") + good + END, 0, "longer")
    yield case("pax no length", pax(b"path=a.jpg\n") + good + END, 0, "no length")
    yield case("pax no value", pax(b"8 pathx\n") + good + END, 0, "no value")
    yield case("pax size", pax(b"11 size=-1\n") + good + END, 0, "no number")
    big = b"30 size=18446744073709551615999\n"
    yield case("pax size 2^64", pax(b"%d" % len(big) + big[2:]) + good + END, 0, "no number")
    yield case("pax size 2^62", pax(b"28 size=4611686018427387904\n") + good + END, 1024, "trunc")
    yield case("pax alone", good + pax(b"14 path=b.jpg\n") + END, 3072, "missing")
    yield case("long name alone", good + member(b"l", b"b.jpg\0", b"L") + END, 3072, "missing")
    yield case("long name cut", header(b"l", 5000, b"L") + END, 0, "truncated")
    yield case("long name huge", header(b"l", 2 << 20, b"L") + bytes(3 << 20), 0, "longer")
    yield case("gzip", b"\x1f\x8b\x08" + bytes(600), 0, "gunzip")


def tfrecord_cases() -> Iterator[Case]:
    """TFRecord files."""

    def case(name: str, data: bytes, offset: int, reason: str) -> Case:
        return Case("tfrecord", name, data, offset, reason)

    good = framed(b"hello")
    wrong = bytearray(good)
    wrong[8] ^= 1
    damaged = bytearray(good)
    damaged[13] ^= 1
    yield case("nothing", b"", 0, "no records")
    yield case("head cut", good + good[:9], 21, "ends inside")
    yield case("data cut", good + framed(b"x" * 50)[:-10], 21, "truncated")
    yield case("tail cut", good + good[:-1], 21, "truncated")
    yield case("length checksum", good + bytes(wrong), 21 + 8, "checksum of a record's length")
    yield case("foreign", b"this is not such a file at all", 8, "no TFRecord file")
    yield case("zeros", bytes(100), 8, "no TFRecord file")
    yield case("2^40 bytes", good + framed(b"x" * 20, 1 << 40), 21, "1099511627776")
    yield case("2^64 - 1 bytes", good + framed(b"x" * 20, (1 << 64) - 1), 21, "truncated")
    yield case("2^64 - 16 bytes", good + framed(b"x" * 20, (1 << 64) - 16), 21, "truncated")
    yield case("data checksum", good + bytes(damaged), 21 + 12, "the data is damaged")
    yield case("gzip", b"\x1f\x8b\x08" + bytes(50), 0, "gunzip")


def jsonl_cases() -> Iterator[Case]:
    """JSONL files."""

    def case(name: str, data: bytes, offset: int, reason: str) -> Case:
        return Case("jsonl", name, data, offset, reason)

    good = b'{"a": 1}\n'
    yield case("nothing", b"", 0, "no lines")
    yield case("document", b'{\n"a": 1}\n', 0, "one JSON document")
    yield case("list", b" \n[\r\n" + good, 0, "one JSON document")
    yield case("string cut", good + b'{"a": "', 9, "the file was cut")
    yield case("object cut", b"\xef\xbb\xbf" + good + b'{"a": 1', 12, "the file was cut")
    yield case("character cut", good + b'{"a": "\xc3', 9, "the file was cut")
    yield case("wide", '{"a": 1}\n'.encode("utf-16"), 0, "UTF-16")
    yield case("gzip", b"\x1f\x8b\x08" + bytes(600), 0, "invalid stored block")


def recordio_cases() -> Iterator[Case]:
    """RecordIO files."""

    def case(name: str, data: bytes, offset: int, reason: str) -> Case:
        return Case("recordio", name, data, offset, reason)

    good = part(0, b"data")
    yield case("nothing", b"", 0, "no records")
    yield case("head cut", good + good[:5], 12, "ends inside")
    yield case("data cut", good + part(0, b"x" * 40)[:-4], 12, "truncated")
    yield case("padding cut", good + part(0, b"x" * 41)[:-1], 12, "truncated")
    yield case("foreign", b"not a record", 0, "no RecordIO file")
    yield case("later magic", good + b"not a record", 12, "damaged")
    yield case("kind 4", good + part(4, b"data"), 12 + 4, "kind 4")
    yield case("kind 7, all ones", good + MAGIC + b"\xff" * 8, 12 + 4, "kind 7")
    yield case("longest", good + part(0, b"data", (1 << 29) - 1), 12, "536870911")
    yield case("last alone", good + part(3, b"data"), 12 + 4, "did not begin")
    yield case("middle alone", good + part(2, b"data"), 12 + 4, "did not begin")
    yield case("no last", good + part(1, b"data") + part(2, b"data"), 24, "no last part")
    yield case("no last, far", part(1, b"data") + good + good, 12 + 4, "before the last")
    yield case("no last, end", part(1, b"data") + MAGIC + b"\0\0", 0, "no last part")
    yield case("first uneven", part(1, b"dat") + part(3, b"data"), 4, "multiple of 4")


def environment(version: int = 1, txnid: int = 1) -> Environment:
    """Small and large values on some leaves below a branch, and a value on two pages."""
    entries = {b"key %03d" % i: b"v" * (i % 50) for i in range(30)}
    return Environment(entries | {b"key 015": b"w" * 600}, version=version, txnid=txnid)


def lmdb_cases() -> Iterator[Case]:
    """LMDB environments; the damages are those that a plain reader falls for."""
    good = environment()
    page, branch, leaf, run = 512, good.at(BRANCH), good.at(LEAF, 1), good.at(OVERFLOW)
    node, main = good.node(leaf, 0), good.main

    def case(name: str, offset: int, reason: str, *put: tuple[int, str, int]) -> Case:
        made = environment()
        for at, form, value in put:
            made.put(at, form, value)
        return Case("lmdb", name, bytes(made.data), offset, reason)

    yield case("magic", 0, "no magic number", (16, "I", 0))
    yield case("second magic", page + 16, "no magic number", (page + 16, "I", 0))
    yield case("page sizes", page + 40, "pages of 1024 bytes", (page + 40, "I", 1024))
    yield case("page size 0", 40, "no power of two", (40, "I", 0))
    yield case("no meta flag", 10, "not marked as a meta page", (10, "H", 2))
    yield case("version 999", 20, "999", (20, "I", 999))
    yield case("version 4", 20, "data version 4", (20, "I", 4))
    yield case("32-bit", 16, "32-bit", (20, "I", 3))
    yield case("swapped", 16, "big-endian", (16, "I", 0xDEC0EFBE))
    yield case("pointer 5000", leaf + 16, "node at 5000", (leaf + 16, "H", 5000))
    yield case("pointer at the end", leaf + 16, "node at 511", (leaf + 16, "H", 511))
    yield case("pointer into the header", leaf + 16, "node at 4", (leaf + 16, "H", 4))
    yield case("pointer of a branch", branch + 18, "node at 5000", (branch + 18, "H", 5000))
    yield case("key of 60000", node + 6, "60000", (node + 6, "H", 60000))
    yield case("key of 0", node + 6, "empty key", (node + 6, "H", 0))
    yield case("length 2^32-1", node, "4294967295", (node, "I", 0xFFFFFFFF))
    yield case("depth 40", main + 6, "depth 40", (main + 6, "H", 40))
    yield case("depth 0", main + 6, "depth 0", (main + 6, "H", 0))
    yield case("depth 1", branch + 10, "has type 1", (main + 6, "H", 1))
    yield case("depth 3", good.at(LEAF) + 10, "has type 2", (main + 6, "H", 3))
    yield case("root 2^40", main + 40, "the root is page", (main + 40, "Q", 1 << 40))
    yield case("root 0", main + 40, "the root is page 0", (main + 40, "Q", 0))
    child = good.node(branch, 1)
    root = branch // page
    yield case("cycle", child, f"the child {root}", (child, "I", root))
    sibling = good.at(LEAF) // page
    yield case("child twice", child, f"the child {sibling}, which", (child, "I", sibling))
    yield case("child 2^31-1", child, "the child 2147483647", (child, "I", 0x7FFFFFFF))
    yield case("child a meta", child, "the child 1,", (child, "I", 1))
    yield case("page number", leaf, "carries the number 9999", (leaf, "Q", 9999))
    yield case("root flags", leaf + 10, "has type 4", (leaf + 10, "H", 4))
    yield case("lower", leaf + 12, "impossible bounds", (leaf + 12, "H", 65535))
    yield case("number of a value's page", run, "carries another number", (run, "Q", 9999))
    yield case("value on no overflow page", run, "is no overflow page", (run + 10, "H", 2))
    yield case("value on 1 page", run, "fewer pages", (run + 12, "I", 1))
    yield case("entries", main + 32, "says 7 entries", (main + 32, "Q", 7))
    yield case("branches", main + 8, "branch pages", (main + 8, "Q", 9))
    yield case("leaves", main + 16, "leaf pages", (main + 16, "Q", 9))
    yield case("overflows", main + 24, "overflow pages", (main + 24, "Q", 9))
    yield case("last page", main + 40, "the pages are 2 to 2", (page + 136, "Q", 2))
    # Each node is part of the key of the one before: more bytes of keys than a page has.
    units = [(leaf + 200 + 8 * i, 100 + i) for i in range(20)]
    overlapping = [(at, "Q", size << 48) for at, size in units]
    pointers = [(leaf + 16 + 2 * i, "H", at - leaf) for i, (at, _) in enumerate(units)]
    bounds = [(leaf + 12, "H", 16 + 2 * len(units)), (leaf + 14, "H", 200)]
    yield case("overlapping nodes", leaf + 16, "overlap", *overlapping, *pointers, *bounds)
    yield case("DUPSORT", main + 4, "MDB_DUPSORT", (main + 4, "H", 4))
    for flag in (0x10, 0x20, 0x40):
        yield case(f"flags {flag}", main + 4, f"flags {flag}", (main + 4, "H", flag))
    yield case("node flags", node, "unknown flags 64", (node + 4, "H", 64))
    for name, size in (("nothing", 0), ("half a meta", 100), ("one page", page)):
        yield Case("lmdb", name, bytes(good.data[:size]), size, "LMDB" if size == 0 else "ends")
    yield case("integer keys", good.node(good.at(LEAF), 0) + 6, "7 bytes", (main + 4, "H", 8))
    for version in (2, 3):
        late = environment(version).put(environment(version).at(LEAF, 1) + 8, "Q", 2)
        at = late.at(LEAF, 1) + 8
        yield Case("lmdb", f"transaction {version}", bytes(late.data), at, "transaction 2")
        secret = environment(version).put(24 + 28, "H", 0x2008)
        yield Case("lmdb", f"encrypted {version}", bytes(secret.data), 52, "encrypted")


def cases() -> list[Case]:
    """All of them."""
    return [*tar_cases(), *tfrecord_cases(), *jsonl_cases(), *recordio_cases(), *lmdb_cases()]


def environments() -> Iterator[Case]:
    """Good ones, of all versions: what fuzzing begins with."""
    for version in (1, 2, 3):
        for page_bytes in (512, 1024):
            few = {b"key %03d" % i: b"v" * (i * 37 % 900) for i in range(8)}
            image = b"\x08\x01\x10\x01\x18\x03\x22\x03abc\x28\x07"
            shapes = {
                "few": few,
                "none": {},
                "many": {b"%03d" % i: b"v" * (i % 9) for i in range(90)},
                "named": {b"named": few, b"other": {}},
                "datum": {b"%03d" % i: image for i in range(9)},
            }
            for name, entries in shapes.items():
                made = Environment(entries, version=version, page_bytes=page_bytes, shuffled=True)
                yield Case("lmdb", f"{name} {version} {page_bytes}", bytes(made.data), 0, "")


def films(folder: Path) -> Iterator[Case]:
    """Short films of the kinds whose headers differ."""
    from tests.index.formats.films import KINDS, write_film  # loads PyAV

    for kind in ("closed", "open", "fragments", "dash", "faststart", "mov", "variable", "mpeg4"):
        film = write_film(folder / "film", 8, **KINDS[kind])
        yield Case("mp4", kind, film.path.read_bytes(), 0, "")


if __name__ == "__main__":
    for one in [*cases(), *environments(), *films(Path(sys.argv[1]))]:
        folder = Path(sys.argv[1]) / one.container
        folder.mkdir(parents=True, exist_ok=True)
        # The first byte chooses the target's options.
        for options in (0, 1, 8, 18, 32):
            name = f"{one.name.replace(' ', '-').replace(',', '')}-{options}"
            (folder / name).write_bytes(bytes([options]) + one.data)
