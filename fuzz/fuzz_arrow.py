"""Arrow streams and files."""

from __future__ import annotations

import pyarrow as pa

from fuzz.memory import examine


def seeds() -> list[bytes]:
    """Streams and files of a few columns, with nulls and compression."""
    found = []
    for columns in (
        {"a": ["x", "yz"], "label": [1, 2]},
        {"b": pa.array([[1], []], pa.list_(pa.int32())), "f": [True, False]},
        {"s": pa.array([{"p": b"1"}, None], pa.struct([("p", pa.binary())])), "n": range(2)},
        {
            "t": pa.array([["x", None], ["y"]], pa.list_(pa.string())),
            "c": pa.array([[{"r": "u", "i": [1, 2]}], []]),
        },
        {
            "label": pa.array(["q", "r"]).dictionary_encode(),
            "d": pa.DictionaryArray.from_arrays([1, 0], ["q", "r"]),
            "g": pa.array([[[1], [2, 3]], [[]]], pa.large_list(pa.list_(pa.int16()))),
            "b": pa.array([[True], [False]]),
        },
        {"v": pa.array(["1", "2"], pa.string_view()), "d": pa.array(["q", "q"]).cast("large_utf8")},
    ):
        table = pa.table(columns)
        for make in (pa.ipc.new_stream, pa.ipc.new_file):
            for compression in (None, "zstd"):
                out = pa.BufferOutputStream()
                options = pa.ipc.IpcWriteOptions(compression=compression)
                with make(out, table.schema, options=options) as writer:
                    writer.write_table(table, max_chunksize=1 if make is pa.ipc.new_file else 2)
                found.append(out.getvalue().to_pybytes())
    return found


def one(data: bytes) -> None:
    """Index the data as a single file, with nulls allowed."""
    examine("arrow", {"x.arrow": data}, {"nulls": "empty"}, name="x.arrow")
