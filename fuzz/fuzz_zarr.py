"""Zarr folders: metadata and chunks of an array, or of a group of two; parts may be empty."""

from __future__ import annotations

import json
import struct
from typing import Any

import numcodecs

from fuzz.memory import examine, joined_parts, parted
from penstock.engine import crc32c

_NAMES = ["zarr.json", ".zarray", "c/0", "0", "label/zarr.json", "label/c/0", "x/zarr.json"]
_NAMES += ["x/c/0", "x/c/1"]
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def meta(shape: list[int], chunk: list[int], kind: str, codecs: list[Any]) -> bytes:
    """Metadata of an array of version 3."""
    grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
    value = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": kind,
        "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": codecs,
    }
    return json.dumps(value).encode()


def sharded(inner: list[int], codecs: list[Any]) -> list[Any]:
    """The codec of shards."""
    index = [_BYTES, {"name": "crc32c"}]
    settings = {"chunk_shape": inner, "codecs": codecs, "index_codecs": index}
    return [{"name": "sharding_indexed", "configuration": settings}]


def shard(*words: int) -> bytes:
    """A shard of eight bytes with an index of these words."""
    index = struct.pack(f"<{len(words)}Q", *words)
    return bytes(8) + index + crc32c(index).to_bytes(4, "little")


def seeds() -> list[bytes]:
    """Plain, packed and sharded; versions 2 and 3; with labels."""
    group = json.dumps({"zarr_format": 3, "node_type": "group"}).encode()
    second: dict[str, Any] = {"zarr_format": 2, "shape": [3], "chunks": [4], "dtype": "<i2"}
    second |= {"order": "C", "compressor": None, "filters": None, "fill_value": 1}
    checked = [_BYTES, {"name": "crc32c"}]
    four = [bytes(4) + crc32c(bytes(4)).to_bytes(4, "little")]
    label = [meta([3], [4], "uint8", [_BYTES]), bytes(4)]
    none = b""
    found = [
        [meta([3], [4], "uint8", [_BYTES]), none, bytes(4)],
        [meta([3], [4], "uint8", checked), none, *four],
        [meta([3], [4], "int16", sharded([2], [_BYTES])), none, shard(0, 4, 4, 4)],
        [meta([3], [4], "int16", sharded([2], [_BYTES])), none, shard(0, 4, 2**64 - 1, 2**64 - 1)],
        [none, json.dumps(second).encode(), none, bytes(8)],
        [none, json.dumps({**second, "compressor": {"id": "zlib"}}).encode(), none, bytes(8)],
        [group, none, none, none, *label, meta([3, 2], [2, 2], "uint8", [_BYTES]), bytes(4)],
    ]
    found[-1].append(bytes(4))
    for codec in ({"id": "blosc"}, {"id": "shuffle", "elementsize": 2}, {"id": "lz4"}):
        packed = bytes(numcodecs.get_codec(codec).encode(bytearray(8)))
        text = json.dumps({**second, "compressor": codec, "filters": None}).encode()
        found.append([none, text, none, packed])
    return [b"\0" + joined_parts(*each) for each in found]


def one(data: bytes) -> None:
    """Index the data as a folder; the first byte decides if chunks may be absent."""
    parts = {name: part for name, part in parted(data[1:], _NAMES).items() if part}
    examine("zarr", parts, {"fill": bool(data[:1] > b"\x7f")})
