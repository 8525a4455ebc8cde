"""Small writers of containers, byte by byte as they are described, for tests.

The containers' own libraries, where they can be had, are compared with these.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def table(parts: Sequence[bytes], start: int) -> bytes:
    """A count and the offsets of parts that begin at `start`, as u32."""
    edges = [start]
    for part in parts:
        edges.append(edges[-1] + len(part))
    return struct.pack(f"<{len(edges) + 1}I", len(parts), *edges)


def mds_shard(samples: Sequence[Sequence[bytes]], sizes: Sequence[int | None]) -> bytes:
    """A shard of samples, each a list of encoded columns."""
    config = json.dumps({"version": 2, "format": "mds"}).encode()
    bodies = []
    for sample in samples:
        heads = [len(v) for v, size in zip(sample, sizes, strict=True) if size is None]
        bodies.append(struct.pack(f"<{len(heads)}I", *heads) + b"".join(sample))
    return table(bodies, 4 * (len(samples) + 2) + len(config)) + config + b"".join(bodies)


def write_mds(
    folder: Path,
    columns: Mapping[str, tuple[str, int | None]],
    shards: Sequence[Sequence[Sequence[bytes]]],
) -> None:
    """A folder of shards; columns are name: (encoding, size)."""
    folder.mkdir(exist_ok=True)
    entries: list[dict[str, Any]] = []
    sizes = [size for _, size in columns.values()]
    for number, samples in enumerate(shards):
        name, content = f"shard.{number:05}.mds", mds_shard(samples, sizes)
        (folder / name).write_bytes(content)
        entries.append(
            {
                "column_encodings": [encoding for encoding, _ in columns.values()],
                "column_names": list(columns),
                "column_sizes": sizes,
                "compression": None,
                "format": "mds",
                "hashes": [],
                "raw_data": {"basename": name, "bytes": len(content), "hashes": {}},
                "samples": len(samples),
                "size_limit": 1 << 26,
                "version": 2,
                "zip_data": None,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))


def litdata_chunk(samples: Sequence[Sequence[bytes]]) -> bytes:
    """A chunk of samples, each a list of serialized leaves."""
    bodies = [
        struct.pack(f"<{len(leaves)}I", *map(len, leaves)) + b"".join(leaves) for leaves in samples
    ]
    return table(bodies, 4 * (len(samples) + 2)) + b"".join(bodies)


def write_litdata(
    folder: Path,
    leaves: Mapping[str, str],
    chunks: Sequence[Sequence[Sequence[bytes]]],
    **config: Any,
) -> None:
    """A folder of chunks; leaves are name: data format."""
    folder.mkdir(exist_ok=True)
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = {
        "type": "builtins.dict",
        "context": json.dumps(list(leaves)),
        "children_spec": [leaf] * len(leaves),
    }
    entries = []
    for number, samples in enumerate(chunks):
        name = f"chunk-0-{number}.bin"
        if config.get("item_loader") == "TokensLoader":
            bodies = [sample[0] for sample in samples]
            content = table(bodies, 4 * (len(bodies) + 2)) + b"".join(bodies)
        else:
            content = litdata_chunk(samples)
        (folder / name).write_bytes(content)
        entries.append(
            {"chunk_bytes": len(content), "chunk_size": len(samples), "dim": None, "filename": name}
        )
    settings = {
        "compression": None,
        "data_format": list(leaves.values()),
        "data_spec": json.dumps([1, spec]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
    }
    (folder / "index.json").write_text(json.dumps({"chunks": entries, "config": settings | config}))


def write_megatron(
    prefix: Path,
    documents: Sequence[Sequence[np.ndarray]],
    code: int = 8,
    order: Sequence[int] | None = None,
    modes: bool = False,
) -> None:
    """Documents of sequences of tokens; `order` is that of the sequences in .bin."""
    sequences = [each for document in documents for each in document]
    placed = list(range(len(sequences))) if order is None else order
    pointers, content = [0] * len(sequences), b""
    for number in placed:
        pointers[number] = len(content)
        content += sequences[number].tobytes()
    edges = np.cumsum([0, *map(len, documents)])
    Path(f"{prefix}.bin").write_bytes(content)
    Path(f"{prefix}.idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sequences), len(edges))
        + np.array([len(each) for each in sequences], "<i4").tobytes()
        + np.array(pointers, "<i8").tobytes()
        + edges.astype("<i8").tobytes()
        + (bytes(len(sequences)) if modes else b"")
    )
