"""Parquet files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.memory import examine


def seeds() -> list[bytes]:
    """Small files, plain and with dictionaries."""
    found = []
    for compression in ("none", "snappy"):
        for dictionary in (True, False):
            out = pa.BufferOutputStream()
            table = pa.table({"a": ["x", "yz", "x"], "label": [1, 2, 3]})
            pq.write_table(
                table,
                out,
                row_group_size=2,
                compression=compression,
                use_dictionary=dictionary,
                store_schema=False,
            )
            found.append(out.getvalue().to_pybytes())
    return found


def one(data: bytes) -> None:
    """As a single file."""
    examine("parquet", {"x.parquet": data}, {"nulls": "empty"}, name="x.parquet")
