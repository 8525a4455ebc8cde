"""Encoders of the containers that penstock writes: tar, npy, TFRecord, tf.train.Example, Datum.

The functions turn values into bytes, the same bytes for the same values each time. They know
nothing of datasets and write no files: `penstock convert` and `penstock bench generate` do that.
"""

from __future__ import annotations

import codecs
import functools
import io
import re
import struct
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.atomic_file import Bytes
from ..engine.native import crc32c
from ..index.codecs.thrift import pack_varint

Parts = Sequence[tuple[str, Bytes]]
"""The named parts of a sample, as the container holds them."""

# -- tar -------------------------------------------------------------------------------------------

_BLOCK = 512
_TAR_RECORD = 20 * _BLOCK  # archives are padded to whole records
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff%]")


def encode_tar_member(key: str, parts: Parts) -> list[Bytes]:
    """Encode a sample as one tar member for each part, called "key.name"."""
    pieces: list[Bytes] = []
    for name, data in parts:
        member = tarfile.TarInfo(f"{key}.{name}")
        member.size = len(data)  # mtime, owner and group are 0
        header = member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        pieces += (header, data, bytes(-len(data) % _BLOCK))
    return pieces


def encode_tar_end(size: int) -> bytes:
    """Return the end of a tar file of `size` bytes: two blocks of zeros, and padding to a whole tar
    record."""
    return bytes(2 * _BLOCK + -(size + 2 * _BLOCK) % _TAR_RECORD)


def make_safe_key(name: str) -> str:
    """Turn a name into the first part of a tar member's name. The result is relative, without "..",
    without hidden parts, and without dots in its last part, because an extension follows. A safe
    name is returned unchanged.

    Characters that cannot be printed, and "%", become "%" and their number.
    """
    plain = _UNPRINTABLE.sub(lambda match: f"%{ord(match[0]) & 0xFF:02X}", name)
    pieces = [piece for piece in plain.split("/") if piece not in ("", ".")]
    pieces = [f"_{piece[1:]}" if piece.startswith(".") else piece for piece in pieces]
    if pieces:
        pieces[-1] = pieces[-1].replace(".", "_")
        if pieces[0].startswith("__"):  # WebDataset leaves "__x__" out
            pieces[0] = f"_-{pieces[0][2:]}"
    return "/".join(pieces)


# -- what bytes are --------------------------------------------------------------------------------

EXTENSIONS = frozenset(
    re.findall(
        r"\w+",
        "bin bmp cbor cls csv dat flac gif html id jp2 jpeg jpg json jsonl mp3 mp4 mpg msgpack "
        "npy npz ogg pgm pickle png ppm pt pth pyd ten text tif tiff txt wav webm webp xml yaml",
    )
)
"""Extensions by which tools recognise the content of a part."""

_MAGIC = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\x93NUMPY", "npy"),
    (b"GIF8", "gif"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
)


def guess_extension(data: Bytes) -> str:
    """Guess the extension from the bytes; "bin" if they match nothing known."""
    head = bytes(data[:4096])
    for magic, extension in _MAGIC:
        if head.startswith(magic):
            return extension
    if head.startswith(b"RIFF"):
        return {b"WEBP": "webp", b"WAVE": "wav"}.get(head[8:12], "bin")
    try:  # of a long text, the end of the head may cut a character
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < 4096)
    except UnicodeDecodeError:
        return "bin"
    if not text or not all(c.isprintable() or c.isspace() for c in text):
        return "bin"
    return "json" if text.lstrip()[:1] in ("{", "[") else "txt"


def encode_npy(array: npt.NDArray[Any]) -> bytes:
    """Encode an array as an .npy file."""
    return encode_npy_header(array.dtype.str, array.shape) + array.tobytes()


@functools.lru_cache(maxsize=64)
def encode_npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Encode the header of an .npy file: everything before the elements."""
    out = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue()


# -- TFRecord --------------------------------------------------------------------------------------


def encode_record(data: Bytes) -> list[Bytes]:
    """Encode a TFRecord record: its length and its bytes, each with a checksum."""
    return [encode_record_head(len(data)), data, mask_crc(crc32c(data))]


def encode_record_head(size: int) -> bytes:
    """Encode the bytes before a TFRecord record of `size` bytes."""
    length = struct.pack("<Q", size)
    return length + mask_crc(crc32c(length))


def mask_crc(crc: int) -> bytes:
    """Encode a CRC-32C in TFRecord's masked form."""
    turned = (crc >> 15 | crc << 17) + 0xA282EAD8  # TFRecord's: a CRC over CRCs is weak
    return struct.pack("<I", turned & 0xFFFFFFFF)


# -- protocol buffers ------------------------------------------------------------------------------


def join_example(features: Mapping[str, Bytes | npt.NDArray[Any]]) -> bytes:
    """Encode a tf.train.Example as one byte string. Bytes become a bytes_list, arrays of integers
    (up to 64 bits) an int64_list, arrays of floats (up to 32 bits) a float_list, other arrays a
    bytes_list."""
    return b"".join(encode_example(features))


def encode_example(features: Mapping[str, Bytes | npt.NDArray[Any]]) -> list[Bytes]:
    """Encode a tf.train.Example as consecutive pieces; the given bytes are among them, uncopied."""
    entries: list[Bytes] = []
    for name in sorted(features):
        key = _encode_field(1, name.encode("utf-8", "replace"))
        entries += _encode_field(1, *key, *_encode_field(2, *_encode_feature(features[name])))
    return _encode_field(1, *entries)


def _encode_feature(value: Bytes | npt.NDArray[Any]) -> list[Bytes]:
    if not isinstance(value, np.ndarray):
        return _encode_field(1, *_encode_field(1, value))
    kind, size = value.dtype.kind, value.dtype.itemsize
    if kind in "iub" and value.dtype != np.uint8:
        values = value.reshape(-1).astype(np.uint64 if kind == "u" else np.int64)
        return _encode_field(3, *_encode_field(1, _encode_varints(values)))
    if kind == "f" and size <= 4:
        return _encode_field(2, *_encode_field(1, value.reshape(-1).astype("<f4").tobytes()))
    return _encode_field(1, *_encode_field(1, value.tobytes()))


def encode_datum(data: Bytes, label: int, shape: tuple[int, int, int] | None) -> bytes:
    """Encode Caffe's Datum: an array of (channels, height, width) bytes, or an encoded image."""
    encoded = b"".join(_encode_field(4, data))
    if shape is None:
        return encoded + _encode_number(5, label) + _encode_number(7, 1)
    sizes = b"".join(_encode_number(n, size) for n, size in enumerate(shape, 1))
    return sizes + encoded + _encode_number(5, label)


def _encode_field(number: int, *pieces: Bytes) -> list[Bytes]:
    return [bytes([number << 3 | 2]) + pack_varint(sum(map(len, pieces))), *pieces]


def _encode_number(number: int, value: int) -> bytes:
    return bytes([number << 3]) + pack_varint(value)


def _encode_varints(values: npt.NDArray[Any]) -> bytes:
    """Encode numbers one after the other, seven bits a byte, lowest first. No loop over the
    values."""
    words = values.view(np.uint64)
    groups = words[:, None] >> np.arange(0, 70, 7, dtype=np.uint64)  # ten bytes: shifts to 63
    used = np.maximum((groups != 0).sum(axis=1), 1)
    place = np.arange(10)
    out = (groups & 0x7F).astype(np.uint8)
    out |= np.where(place < used[:, None] - 1, 0x80, 0).astype(np.uint8)
    packed: bytes = out[place < used[:, None]].tobytes()
    return packed
