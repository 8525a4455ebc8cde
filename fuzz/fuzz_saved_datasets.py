"""Folders of Hugging Face `datasets`."""

from __future__ import annotations

import json

import pyarrow as pa

from fuzz.memory import examine, joined_parts, parted

_FILES = ("state.json", "dataset_info.json", "x-train.arrow", "x-test.arrow")
TOKENS = (b'"_data_files"', b'"filename"', b'"splits"', b'"train"', b'"test"', b"x-train.arrow")


def seeds() -> list[bytes]:
    """A saved dataset of two streams, and a cache of one."""
    table = pa.table({"ids": [[1], [2, 3]], "label": [0, 1]})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    stream = out.getvalue().to_pybytes()
    state = json.dumps({"_data_files": [{"filename": name} for name in _FILES[2:]]})
    info = json.dumps(
        {
            "features": {"label": {"names": ["a", "b"]}},
            "splits": {"train": {"num_examples": 2}},
        }
    )
    both = joined_parts(state.encode(), info.encode(), stream, stream)
    return [both, joined_parts(b"", info.encode(), stream)]


def one(data: bytes) -> None:
    """Index the data as a folder; without a list of files where that is empty."""
    files = parted(data, _FILES)
    if not files["state.json"]:
        del files["state.json"]
    examine("arrow", files, {"nulls": "empty"})
