"""Every field of small files at extreme values: an error of penstock, or an index that holds."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fuzz.memory import examine

from penstock.engine.store import StoreFile
from penstock.errors import PenstockError
from penstock.index.codecs.thrift import ThriftReader
from penstock.index.formats.sandbox import Sandbox
from tests.slices import first, thinned

# Fewer cases where a property has fewer examples.
pytestmark = pytest.mark.wide

_WORDS = [0, 1, 2, 0x7F, 0x80, 0xFF, 1 << 15, (1 << 16) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
_WORDS += [1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


def words_at(data: bytes, step: int = 4, width: int = 8) -> Iterator[bytes]:
    """The data with numbers of one, four and eight bytes at every place that is not empty."""
    whole = np.frombuffer(data, np.uint8)
    used = np.flatnonzero(np.convolve(whole != 0, np.ones(width, int), "same"))
    for at in np.unique(used // step * step).tolist():
        for length in (1, 4, 8):
            for word in _WORDS:
                if word < 1 << 8 * length and word >> 8 * (length // 2):
                    yield data[:at] + word.to_bytes(length, "little") + data[at + length :]
        yield data[:at] + bytes(8) + data[at + 8 :]


class Spans(ThriftReader):
    """Reader that records the places of integers, lengths and counts."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.found: list[tuple[int, int]] = []

    def _varint(self) -> int:
        start = self.at
        value = super()._varint()
        self.found.append((start, self.at))
        return value


def varint(value: int) -> bytes:
    """Encode a varint as Thrift writes it."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def refused(format: str, data: bytes, **options: Any) -> bool:
    """True if a file is refused; an index of one that is not refused holds."""
    return examine(format, {"x": data}, options, name="x") is None


def test_parquet():
    """Each integer, length and count of the footer."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    out = pa.BufferOutputStream()
    table = pa.table(
        {"a": ["x", None, "x"], "u": pa.array([1, 2, 3], pa.uint8()), "label": [1, 2, 3]}
    )
    pq.write_table(table, out, row_group_size=2, store_schema=False)
    whole = out.getvalue().to_pybytes()
    length = int.from_bytes(whole[-8:-4], "little")
    body, footer = whole[: -8 - length], whole[-8 - length : -8]
    spans = Spans(footer)
    spans.struct({})
    assert len(spans.found) > 100
    assert not refused("parquet", whole, nulls="empty")
    cases = []
    for number, (start, end) in enumerate(spans.found):
        for word in (*_WORDS, 3, 4, 1 << 65)[number % 3 :: 3]:
            new = footer[:start] + varint(word) + footer[end:]
            cases.append(body + new + len(new).to_bytes(4, "little") + b"PAR1")
    found = [refused("parquet", case, nulls="empty") for case in thinned(cases)]
    assert 0.2 < np.mean(found) < 1


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow(compression):
    """Each word of the messages and of the footer."""
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": ["x", "yz"], "label": [1, 2]})
    for make in (pa.ipc.new_stream, pa.ipc.new_file):
        out = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with make(out, table.schema, options=options) as writer:
            writer.write_table(table)
        data = out.getvalue().to_pybytes()
        assert not refused("arrow", data)
        found = [refused("arrow", case) for case in thinned(words_at(data, 8))]
        assert 0.1 < np.mean(found) < 1


def test_zarr():
    """Each value of the metadata, and each word of a shard's index behind a right checksum."""
    pytest.importorskip("numcodecs")
    from fuzz.fuzz_zarr import one, seeds, shard

    parts = seeds()[2].split(b"\n--8<--\n")
    meta = json.loads(parts[0][1:])
    texts = [json.dumps(each).encode() for each in variations(meta)]
    assert len(texts) > 200
    for text in thinned(texts):
        for lead in (b"\0", b"\xff"):
            one(lead + b"\n--8<--\n".join([text, *parts[1:]]))
    for place in range(4):
        for word in _WORDS:
            words = [0, 4, 4, 4]
            words[place] = word
            one(b"\n--8<--\n".join([*parts[:2], shard(*words)]))


def variations(value: Any) -> Iterator[Any]:
    """A value of JSON with each part of it, in turn, replaced by extreme ones and left out."""
    yield from (None, True, 0, -1, 1 << 31, 1 << 63, 1 << 70, 1e308, "", "pickle", [], {}, [value])
    if isinstance(value, dict):
        for key in value:
            yield {name: each for name, each in value.items() if name != key}
            yield from ({**value, key: each} for each in variations(value[key]))
    if isinstance(value, list):
        for at in range(len(value)):
            yield value[:at] + value[at + 1 :]
            yield from ([*value[:at], each, *value[at + 1 :]] for each in variations(value[at]))


def examined(source: StoreFile) -> bool:
    """In the other process, which a crash of the library ends."""
    return refused("hdf5", source.read(0, source.size), isolate=False)


@pytest.mark.long
@pytest.mark.parametrize("version", first(1, ["latest", "earliest"]))
def test_hdf5(version):
    """Each word of the headers; crashes of the library are errors like others."""
    h5py = pytest.importorskip("h5py")
    out = io.BytesIO()
    with h5py.File(out, "w", libver=version) as file:
        data = np.arange(1, 7, dtype="u1").reshape(3, 2)
        file.create_dataset("x", data=data, chunks=(2, 2), compression="gzip")
    whole = out.getvalue()
    found, crashes = [], 0
    with Sandbox("the HDF5 library", 30) as apart:

        def one(data: bytes) -> bool:
            return apart.call(
                StoreFile("x", len(data), lambda at, n: data[at : at + n], -1), examined
            )

        assert not one(whole)
        for case in thinned(words_at(whole, 16), often=5):
            try:
                found.append(one(case))
            except PenstockError:
                crashes += 1
    assert 0.1 < np.mean(found) < 1
    assert crashes < 10
