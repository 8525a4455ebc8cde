"""Small writers of containers, byte by byte as they are described, for tests.

The containers' own libraries, where they can be had, are compared with these.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


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
