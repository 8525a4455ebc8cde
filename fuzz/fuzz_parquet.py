"""Parquet files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.memory import examine


def seeds() -> list[bytes]:
    """Small files, plain and with dictionaries."""
    found = []
    texts = pa.table({"a": ["x", "yz", "x"], "label": [1, 2, 3]})
    others = pa.table(
        {
            "s": pa.array([{"b": b"x"}, None, {"b": None}], pa.struct([("b", pa.binary())])),
            "u": pa.array([1, 2, 3], pa.uint8()),
            "f": pa.array([b"ab", b"cd", b"ef"], pa.binary(2)),
            "t": pa.array([1, 2, 3], pa.timestamp("ms")),
            "g": [True, False, True],
        }
    )
    lists = pa.table(
        {
            "l": [[1, 2], [], [3]],
            "t": [["a"], None, ["b", None]],
            "c": [[{"r": b"u", "i": [1]}], [], [{"r": b"", "i": []}]],
        }
    )
    for compression in ("none", "snappy"):
        for dictionary in (True, False):
            for table, version in (
                (texts, "1.0"),
                (texts, "2.0"),
                (others, "1.0"),
                (lists, "1.0"),
                (lists, "2.0"),
            ):
                out = pa.BufferOutputStream()
                pq.write_table(
                    table,
                    out,
                    row_group_size=2,
                    compression=compression,
                    use_dictionary=dictionary,
                    data_page_version=version,
                    write_page_checksum=version == "2.0",
                    store_schema=False,
                )
                found.append(out.getvalue().to_pybytes())
    return found


def one(data: bytes) -> None:
    """Index the data as a single file."""
    examine("parquet", {"x.parquet": data}, {"nulls": "empty"}, name="x.parquet")
