"""Chunks of LitData: the index, then one chunk."""

from __future__ import annotations

import json
import struct

from fuzz.memory import examine, joined_parts, parted


def seeds() -> list[bytes]:
    """Two samples of two leaves; and documents of tokens, with and without a window."""
    leaf = {"children_spec": []}
    spec = {"context": '["a", "label"]', "children_spec": [leaf, leaf]}
    sample = struct.pack("<2I", 3, 8) + b"abc" + bytes(8)
    found = []
    for window, kinds, loader, body in (
        (b"", ["jpeg", "int"], "PyTreeLoader", sample),
        (b"", ["no_header_numpy:5"], "TokensLoader", b"abcdef"),
        (b"2", ["no_header_tensor:16"], "TokensLoader", b"abcdefghabcdefgh"),
    ):
        chunk = struct.pack("<4I", 2, 16, 16 + len(body), 16 + 2 * len(body)) + 2 * body
        value = {
            "chunks": [{"chunk_bytes": len(chunk), "chunk_size": 2, "filename": "a.bin"}],
            "config": {"data_format": kinds, "data_spec": json.dumps([1, spec])},
        }
        value["config"]["item_loader"] = loader  # type: ignore[index]
        found.append(joined_parts(window, json.dumps(value).encode(), chunk))
    return found


def one(data: bytes) -> None:
    """As a folder; the window comes first."""
    parts = parted(data, ["window", "index.json", "a.bin"])
    window = parts.pop("window", b"")
    examine("litdata", parts, {"block_size": 2} if window else None)
