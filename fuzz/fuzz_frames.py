"""Lines in frames of Zstandard and members of gzip, against the same text unpacked otherwise."""

from __future__ import annotations

import gzip
import io
import zlib

import zstandard

from fuzz.memory import examine, is_chosen
from fuzz.structure import PART
from penstock import limits

_NAME = "d.jsonl.zst"
_SKIPPABLE = b"\x50\x2a\x4d\x18"
_MAGIC = (b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"\x2a\x4d\x18")
_plain = zstandard.ZstdCompressor(level=1, write_content_size=False)
_sized = zstandard.ZstdCompressor(level=1, write_checksum=True)
TOKENS = (
    *(b"\n", b"\r\n", b"{}", b"[", b'"', b"\0\0\0\0"),
    *(PART + kind for kind in (b"z", b"c", b"g", b"s", b"r")),
    *_MAGIC,
)


def seeds() -> list[bytes]:
    """Frames and members of whole lines, of parts of lines, and such that are damaged."""
    lines = b'{"t": "a"}\n{"t": "b"}\n'
    return [
        PART.join([b"z" + lines, b"c" + lines]),
        PART.join([b"s12345", b"z" + lines[:5], b"z" + lines[5:]]),
        PART.join([b"g" + lines, b"g", b"g" + lines[:-1]]),
        PART.join([b"r" + _sized.compress(lines), b"r" + gzip.compress(lines, mtime=0)]),
        PART.join([b"z" + lines, b"r" + bytes(9)]),
        b"r" + _plain.compress(lines * 40),
    ]


def one(data: bytes) -> None:
    """Index the file that the parts make, and count its lines."""
    limits.line_chunk_bytes = 16 if is_chosen(data) else 1 << 18
    file = b"".join(map(_write, data.split(PART)))
    index = examine("jsonl", {_NAME: file}, name=_NAME)
    if index is not None and (text := _unpack(file)) is not None:
        lines = [line for line in text.split(b"\n") if line.strip(b" \t\r")]
        assert index.count == len(lines), (index.count, len(lines))


def _write(part: bytes) -> bytes:
    """Write a part as a frame, a member, or as it is."""
    kind, text = part[:1], part[1:]
    if kind == b"z":
        return _plain.compress(text)
    if kind == b"c":
        return _sized.compress(text)
    if kind == b"g":
        return gzip.compress(text, 1, mtime=0)
    if kind == b"s":
        return _SKIPPABLE + len(text).to_bytes(4, "little") + text
    return text


def _unpack(file: bytes) -> bytes | None:
    """Unpack a file of one kind by the libraries' own readers; None if they refuse it, or differ
    from what penstock reads: zeros at the end, and mixtures."""
    try:
        if file.startswith(_MAGIC[1]):
            return gzip.decompress(file)
        source = io.BytesIO(file)
        reader = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)
        return reader.readall()
    except (zstandard.ZstdError, zlib.error, OSError, EOFError):
        return None
