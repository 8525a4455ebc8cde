"""Boxes of MP4 and QuickTime files: the header of a film, read without its pictures.

A file is boxes of a size and a type, some of which hold boxes. `moov` describes the tracks, at the
start or at the end; in fragmented files each `moof` describes the pictures of the `mdat` behind it.
Only headers and the tables that are asked for are read, a block at a time and never beyond the box
around them, so that no read touches pictures. ISO/IEC 14496-12 describes the boxes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine.store import StoreFile
from ...errors import FormatError

_HEAD = struct.Struct(">I4s")
_LONG = struct.Struct(">Q")
_LONG_HEAD_BYTES = 16
_BLOCK_BYTES = 256 << 10
_HOLDING = {b"edts", b"mdia", b"minf", b"stbl", b"mvex"}
"""Boxes that hold boxes, each once."""
_DEPTH_MAX = 8

KINDS = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"moof", b"sidx")
"""Types of the first box of a file."""


class Box(NamedTuple):
    """Box of a file: its type, and where it, its content and its end are."""

    kind: bytes
    start: int
    body: int
    end: int


class BoxTree(NamedTuple):
    """Boxes below one box.

    leaves:   those without boxes, by type.
    several:  boxes that may repeat (tracks, runs of pictures), with what they hold.
    """

    leaves: dict[bytes, Box]
    several: list[tuple[Box, BoxTree]]

    def list(self, kind: bytes) -> list[tuple[Box, BoxTree]]:
        """List the boxes of one type."""
        return [one for one in self.several if one[0].kind == kind]


class BoxReader:
    """Reader of the boxes of one file."""

    def __init__(self, source: StoreFile) -> None:
        self.source = source
        self._start, self._bytes = 0, b""
        self._boxes = 0

    def read(self, offset: int, length: int, stop: int) -> bytes:
        """Read the bytes of a range, and some more behind it, but none from `stop` on."""
        at = offset - self._start
        if not 0 <= at <= at + length <= len(self._bytes):
            if length > limits.film_table_bytes_max:
                what = f"a table of {length:,} bytes, of {limits.film_table_bytes_max:,} at most"
                raise self.source.flaw(offset, f"{what}: cut the film")
            ahead = min(max(length, _BLOCK_BYTES), stop - offset)
            self._start, self._bytes, at = offset, self.source.read(offset, ahead), 0
            if len(self._bytes) < length:
                raise self.source.flaw(offset, "the file ends within a box: copy it again")
        return self._bytes[at : at + length]

    def scan(self, start: int, stop: int, block_bytes: int = _BLOCK_BYTES) -> Iterator[Box]:
        """Yield the boxes in a part of the file, one behind the other.

        block_bytes:  that may be read at a box, at least 16.
        """
        at = start
        while at + _HEAD.size <= stop:
            self._boxes += 1
            if self._boxes > limits.film_boxes_max:
                what = f"more than {limits.film_boxes_max:,} boxes"
                raise self.source.flaw(at, f"{what}: write the film again, in fewer fragments")
            head = at - self._start
            if not 0 <= head <= len(self._bytes) - _LONG_HEAD_BYTES:
                self.read(at, min(_LONG_HEAD_BYTES, stop - at), min(stop, at + block_bytes))
                head = at - self._start
            size, kind = _HEAD.unpack_from(self._bytes, head)
            body = at + _HEAD.size
            if size == 1 and stop - at >= _LONG_HEAD_BYTES:
                size, body = _LONG.unpack_from(self._bytes, head + 8)[0], at + _LONG_HEAD_BYTES
            elif size == 0:
                size = stop - at
            if not body - at <= size <= stop - at:
                what = f"a box {kind!r} of {size:,} bytes, and {stop - at:,} are left"
                raise self.source.flaw(at, f"{what}: the file is cut or damaged")
            yield Box(kind, at, body, at + size)
            at += size

    def walk(self, box: Box, depth: int = 0) -> BoxTree:
        """List the boxes below one, and below those that hold boxes."""
        if depth > _DEPTH_MAX:
            raise self.flaw(box, "boxes in boxes without end")
        below = BoxTree({}, [])
        self.read(box.body, min(box.end - box.body, _BLOCK_BYTES), box.end)  # at once
        for one in self.scan(box.body, box.end):
            if one.kind in (b"trak", b"traf"):
                below.several.append((one, self.walk(one, depth + 1)))
            elif one.kind in (b"trun", b"trex"):
                below.several.append((one, BoxTree({}, [])))
            elif one.kind in _HOLDING:
                inside = self.walk(one, depth + 1)
                for kind, leaf in inside.leaves.items():  # QuickTime has an inner 'hdlr' as well
                    below.leaves.setdefault(kind, leaf)
                below.several.extend(inside.several)
            else:
                below.leaves.setdefault(one.kind, one)
        return below

    def body(self, box: Box) -> bytes:
        """Read the content of a box."""
        return self.read(box.body, box.end - box.body, box.end)

    def unpack(self, box: Box, layout: str, at: int = 0) -> tuple[Any, ...]:
        """Unpack values of a box, from a byte of its content on."""
        size = struct.calcsize(layout)
        if at + size > box.end - box.body:
            raise self.flaw(box, f"{box.end - box.body:,} bytes, too few")
        return struct.unpack(layout, self.read(box.body + at, size, box.end))

    def table(self, box: Box, dtype: str | list[Any], at: int, count: int) -> npt.NDArray[Any]:
        """Read a table of `count` rows of a box, from a byte of its content on."""
        size = np.dtype(dtype).itemsize * count
        if at + size > box.end - box.body:
            what = f"a table of {count:,} entries in {box.end - box.body:,} bytes"
            raise self.flaw(box, what)
        return np.frombuffer(self.read(box.body + at, size, box.end), dtype)

    def flaw(self, box: Box, what: str) -> FormatError:
        """Build the error for a box that contradicts itself or others."""
        name = box.kind.decode("latin-1")
        return self.source.flaw(box.start, f"box {name!r}: {what}: the file is damaged")
