"""Shards of MosaicML Streaming: the index, then one shard."""

from __future__ import annotations

import json
import struct

from fuzz.memory import examine, joined_parts, parted


def seeds() -> list[bytes]:
    """Two samples of two columns that vary and one that does not; and one of fixed size."""
    found = []
    for sizes, encodings, sample in (
        ([None, None, 8], ["bytes", "str", "int"], [b"abc", b"de", bytes(8)]),
        ([None], ["bytes"], [b"abc"]),
        ([4, 8], ["ndarray:uint16:2", "float64"], [bytes(4), bytes(8)]),
    ):
        heads = [len(v) for v, size in zip(sample, sizes, strict=True) if size is None]
        body = struct.pack(f"<{len(heads)}I", *heads) + b"".join(sample)
        shard = struct.pack("<4I", 2, 16, 16 + len(body), 16 + 2 * len(body)) + 2 * body
        entry = {
            "column_encodings": encodings,
            "column_names": ["a", "b", "label"][-len(sizes) :],
            "column_sizes": sizes,
            "format": "mds",
            "raw_data": {"basename": "a.mds", "bytes": len(shard)},
            "samples": 2,
            "version": 2,
            "zip_data": None,
        }
        found.append(joined_parts(json.dumps({"shards": [entry]}).encode(), shard))
    return found


def one(data: bytes) -> None:
    """Index the data as a folder."""
    examine("mds", parted(data, ["index.json", "a.mds"]))
