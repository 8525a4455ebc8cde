"""Saved indexes of windows: their header and sections, as one document of JSON.

An index that is not refused leads to windows of its files. How chunks are decoded stays as it is.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from fuzz import fuzz_windows
from fuzz.memory import ROOT, MemoryStore, parted, read_samples
from penstock.errors import PenstockError
from penstock.index.formats import FORMATS, Location
from penstock.index.table import _MALFORMED, _find_flaw, _pack_index, _unpack_index, find_outside

_DTYPES = {"|u1", "<i4", "<u4", "<i8"}
_codecs = ["null"]
TOKENS = (
    b'"fill"',
    b'"00"',
    b'"boxes"',
    b'"windows"',
    b'"chunks_of"',
    b'"made"',
    b'"window"',
    b'"field0.grids"',
    b'"field0.in_files"',
)


def list_contents() -> Iterator[tuple[dict[str, Any], dict[str, bytes]]]:
    """Yield options and files: those of `fuzz_windows`, as one array and as one for each file."""
    for seed in fuzz_windows.seeds():
        contents = {name: part for name, part in parted(seed, fuzz_windows.NAMES).items() if part}
        options = json.loads(contents.pop("options"))
        yield options, contents
        if "a.npy" in contents:
            options |= {"sample": "file", "halo": dict.fromkeys(options["window"], 1)}
            yield options, contents
            packed = {}
            for name, data in contents.items():
                out = io.BytesIO()
                np.savez_compressed(out, data=np.load(io.BytesIO(data)))
                packed[name.replace(".npy", ".npz")] = out.getvalue()
            yield options, packed


def seeds() -> list[bytes]:
    """The indexes of the windows of `fuzz_windows`."""
    documents = []
    for options, contents in list_contents():
        name = next(iter(contents)).rpartition(".")[2]
        entry = FORMATS[name if name in ("npy", "npz") else "zarr"]
        place = Location("folder", "", ROOT)
        store = MemoryStore(contents)
        index = entry.build(store, place, None, **entry.canonical(options))
        packed = _pack_index(index)
        header, sections = json.loads(json.dumps(packed[0])), packed[1]
        _codecs.extend(json.dumps(field.get("codec")) for field in header["fields"])
        columns = {name: [one.dtype.str, one.tolist()] for name, one in sections.items()}
        documents.append(json.dumps([header, columns]).encode())
    return documents


def one(data: bytes) -> None:
    """Rebuild the index as a saved one is, and read the windows that it leads to."""
    if len(_codecs) == 1:
        seeds()
    try:
        header, columns = json.loads(data)
        if any(json.dumps(field.get("codec")) not in _codecs for field in header["fields"]):
            return
        sections: dict[str, Any] = {
            name: np.array(values, dtype)
            for name, (dtype, values) in columns.items()
            if dtype in _DTYPES
        }
        if any(column.ndim != 1 for column in sections.values()) or "sections" in header:
            return
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return  # not what a sidecar can hold
    try:
        index = _unpack_index(header, sections, None)
        if find_outside(index.files) or find_outside(index.sources):
            return
        if _find_flaw(index, int(header["count"])) is not None:
            return
    except _MALFORMED:
        return
    store = MemoryStore({index.files.name(n): bytes(4096) for n in range(len(index.files))})
    if int(index.files.size.max(initial=0)) > 4096:
        return
    count = index.count
    for sample in sorted({0, count // 2, count - 1} - {-1}):
        try:
            read_samples(store, index, [sample])
        except PenstockError:
            continue
