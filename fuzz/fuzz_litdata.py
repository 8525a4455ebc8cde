"""Chunks of LitData: the index, then one chunk."""

from __future__ import annotations

import contextlib
import json
import struct

from fuzz.memory import examine, joined_parts, parted


def seeds() -> list[bytes]:
    """Two samples of two leaves; and documents of tokens, with and without a window."""
    leaf: dict[str, list[object]] = {"children_spec": []}
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
    with contextlib.suppress(ModuleNotFoundError):
        found += _packed()
    return found


def _packed() -> list[bytes]:
    """A frame of two samples, two samples compressed each, a chunk compressed, an Arrow table."""
    import pyarrow
    import zstandard

    pack = zstandard.ZstdCompressor().compress
    item = struct.pack("<2I", 3, 8) + b"abc" + bytes(8)
    each = pack(item)
    table = struct.pack("<3I", 36, 36 + len(item), 36 + 2 * len(item))
    frame = pack(2 * item)
    head = b"LDFZ01\0\0" + struct.pack("<2H3I", 1, 0, 2, 256, 1) + table
    frames = head + struct.pack("<2IQ2I", 0, 2, 60, len(frame), 2 * len(item)) + frame
    whole = struct.pack("<4I", 2, 16, 16 + len(item), 16 + 2 * len(item)) + 2 * item
    alone = struct.pack("<4I", 2, 16, 16 + len(each), 16 + 2 * len(each)) + 2 * each
    columns = {"a": [b"abc", b"de"], "label": [1, 2]}
    batch = pyarrow.record_batch(columns)
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, batch.schema) as out:
        out.write_batch(batch)
    ipc = sink.getvalue().to_pybytes()
    arrow = struct.pack("<4I", 2, 16, 16, 16) + ipc + struct.pack("<I", len(ipc)) + b"LDARW01\0"
    value = {
        "chunks": [{"chunk_bytes": 0, "chunk_size": 2, "filename": "a.bin"}],
        "config": {"data_format": ["jpeg", "int"], "data_spec": "", "item_loader": ""},
    }
    text = json.dumps(value).encode()
    return [joined_parts(b"", text, chunk) for chunk in (frames, pack(whole), alone, arrow)]


def one(data: bytes) -> None:
    """Index the data as a folder; the window comes first."""
    parts = parted(data, ["window", "index.json", "a.bin"])
    window = parts.pop("window", b"")
    examine("litdata", parts, {"block_size": 2} if window else None)
