"""Decompression: what it gives, and what it takes, whatever the bytes are."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import sys
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from penstock.index.codecs import decompression
from penstock.index.codecs.decompression import METHODS, decompress
from tests import warm


def compress_stream(data: bytes) -> bytes:
    """Compress by Zstandard without saying how many bytes there are."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


COMPRESS: dict[str, list[Callable[[bytes], bytes]]] = {
    "bz2": [bz2.compress],
    "gzip": [gzip.compress],
    "lzma": [lzma.compress],
    "zlib": [zlib.compress],
    "zstd": [zstandard.compress, compress_stream],
}
assert COMPRESS.keys() == METHODS


@given(
    method=st.sampled_from(sorted(COMPRESS)),
    way=st.integers(0, 1),
    parts=st.lists(st.binary(max_size=300), min_size=1, max_size=3),
    repeats=st.sampled_from([1, 10, 3000]),
    bound=st.floats(0, 2),
    cut=st.floats(0, 1, exclude_max=True),
)
def test_what_fits_comes_out(
    method: str, way: int, parts: list[bytes], repeats: int, bound: float, cut: float
) -> None:
    """All bytes if they fit the bound, also of several streams; else, or if cut short, an error."""
    compress = COMPRESS[method][way % len(COMPRESS[method])]
    if method in ("zlib", "zstd"):
        parts = parts[:1]
    parts = [part * repeats for part in parts]
    data = b"".join(map(compress, parts))
    whole = b"".join(parts)
    assert decompress(method, memoryview(data), len(whole)) == whole
    size_max = int(len(whole) * bound)
    if size_max < len(whole):
        with pytest.raises(ValueError, match="more than|claims"):
            decompress(method, memoryview(data), size_max)
    first = compress(parts[0])
    with pytest.raises(ValueError, match=r"\w"):
        decompress(method, memoryview(first)[: int(len(first) * cut)], len(whole))


@pytest.mark.parametrize("wbits", [15, 31, -15], ids=["zlib", "gzip", "deflate"])
def test_both_libraries_see_the_same_damage(wbits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without isal, any flipped bit is an error or harmless alike; only isal passes over
    flags of gzip that have no meaning."""
    data = bytes(random.Random(1).choices(b"abcdef", k=400))
    good = zlib.compress(data, wbits=wbits)
    method = {15: "zlib", 31: "gzip", -15: "deflate"}[wbits]
    differ = []
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        results: list[bytes | None] = []
        for library in (isal_zlib, zlib):
            monkeypatch.setattr(decompression, "_zlib", library)
            try:
                results.append(decompress(method, memoryview(bad), 500))
            except ValueError:
                results.append(None)
        if results[0] != results[1]:
            differ.append((bit, results[0] == data))
    assert differ == ([(29, True), (30, True), (31, True)] if wbits == 31 else [])


BOMBS = """
import bz2, gzip, json, lzma, os, resource, tracemalloc, zlib
from pathlib import Path
import numpy as np, zstandard
import penstock
from penstock import limits
from penstock.errors import FormatError, LimitError
from penstock.index.codecs import CompressedChunk, arrow, chunked_arrays as arrays, decompression
from tests.index.codecs.test_decompression import compress_stream

MIB = 1 << 20
zeros = bytes(8 * MIB)
stream = zlib.compressobj(9)
deflated = b"".join(stream.compress(zeros) for _ in range(12)) + stream.flush()
streamed = zstandard.ZstdCompressor().compressobj()
streamed = b"".join(streamed.compress(zeros) for _ in range(300)) + streamed.flush()
bombs = {
    "gzip": gzip.compress(zeros) * 300,
    "bz2": bz2.compress(zeros) * 300,
    "lzma": lzma.compress(zeros, preset=0) * 300,
    "zlib": deflated,
    "zstd": streamed,
}

def chunk(data, samples=16):
    return CompressedChunk(0, memoryview(data), [len(data)], samples)

def check_refused(name, decode):
    tracemalloc.start()
    before = int(Path("/proc/self/statm").read_text().split()[1])
    try:
        decode()
    except ValueError as error:
        assert str(error), name
    else:
        raise AssertionError(name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * MIB, (name, peak)
    return peak

arrays.decode_zarr  # noqa: B018 - imported before memory is limited
import pyarrow
pyarrow.Codec("zstd")
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 160 * MIB, resource.RLIM_INFINITY))

grid = {"dtype": "|u1", "shape": [], "chunk": [16], "order": [0], "fill": "00"}
for name, bomb in bombs.items():
    options = {**grid, "codecs": [{"id": name}]}
    check_refused(name, lambda: arrays.decode_zarr(options, chunk(bomb)))
    twice = {**grid, "codecs": [{"id": name}, {"id": "gzip"}]}
    packed = gzip.compress(bomb)
    check_refused(name, lambda: arrays.decode_zarr(twice, chunk(packed)))
claims = {**grid, "chunk": [1 << 50], "codecs": [{"id": "zlib"}]}
check_refused("claims", lambda: arrays.decode_zarr(claims, chunk(bombs["zlib"])))
raw = {"id": "lzma", "format": 3, "filters": [{"id": 0x21, "dict_size": 3 << 30}]}
check_refused("dictionary", lambda: arrays.decode_zarr({**grid, "codecs": [raw]}, chunk(bytes(99))))

for filters in ([[1, 0, [6], ""]], [[2, 0, [1], ""], [1, 0, [6], ""], [3, 0, [], ""]]):
    variant = {"dtype": "|u1", "shape": [], "chunk": [16], "filters": filters, "fill": "00"}
    options = {"variants": [variant], "since": [0], "masks": []}
    check_refused("hdf5", lambda: arrays.decode_hdf5(options, chunk(bombs["zlib"] + bytes(4))))

# Filters of HDF5's library and of plugins: bytes that claim, or make, a GiB for a chunk of 16.
gib = 1 << 30
frame = bytes(2) + b"b2frame" + bytes(1) + bytes([0xD2]) + (87).to_bytes(4, "big") + bytes(72 + 16)
for code, values, bomb in (
    (4, [], gib.to_bytes(4, "little") + b"szip"),
    (307, [9], bombs["bz2"]),
    (32000, [4, 261, gib], b"lzf" * MIB),
    (32001, [2, 2, 1, 16, 5, 1, 1], bytes(4) + gib.to_bytes(4, "little") + bytes(8)),
    (32004, [0], gib.to_bytes(8, "big") + bytes(4)),
    (32008, [0, 4, 1, 0, 2], gib.to_bytes(8, "big") + bytes(4)),
    (32013, [0x10104011, 0x0570667A, 0xF003FFF6, 0x8803FFFF], b"zfp" * 9),
    (32026, [1, 0, 4, gib], frame[:30] + gib.to_bytes(8, "big") + frame[38:]),
    (32026, [1, 0, 4, gib], frame[:58] + gib.to_bytes(4, "big") + frame[62:]),
    (32026, [1, 0, 4, gib], frame[:-12] + gib.to_bytes(4, "little") + bytes(8)),
    (32026, [1, 0, 4, gib], bytes(4) + gib.to_bytes(4, "little") + bytes(8)),
    (32015, [3], zstandard.ZstdCompressor().compress(bytes(64 * MIB))),
):
    for behind in ([], [[1, 0, [6], ""]]):
        data = zlib.compress(bomb) if behind else bomb
        for inner in ([], [[2, 0, [1], ""]]):
            filters = [*inner, [code, 0, values, ""], *behind]
            check_refused(
                f"filter {code}",
                lambda: arrays._undo_last_filters(memoryview(data), filters, 0, 16, 1),
            )
twice = [[1, 0, [6], ""], [32004, 0, [0], ""]]
inner = (16).to_bytes(8, "big") + bytes(4)
check_refused("two", lambda: arrays._undo_last_filters(memoryview(inner), twice, 0, 16, 1))

options = {"leaves": 1, "leaf": 0, "dtype": None, "whole": False}
for whole in (False, True):
    options["whole"] = whole
    check_refused("litdata", lambda: decompression.decode_leaves(options, chunk(bombs["zstd"])))
options["whole"] = False
lie = bytearray(zstandard.compress(bytes(70_000)))
lie[8] = 0x3F  # of the size that the frame announces
limits.undeclared_chunk_bytes_max = 4096 * MIB
check_refused("litdata", lambda: decompression.decode_leaves(options, chunk(bytes(lie))))

for method in ("zstd", "lz4"):
    lie = (3 << 30).to_bytes(8, "little") + zstandard.compress(b"0" * 50)
    check_refused("arrow", lambda: arrow.decompress_buffer(method, lie, 3 << 30))

# A chunk that is what it says, and more than there is memory.
folder = Path("array.zarr")
folder.mkdir()
told = {"zarr_format": 2, "shape": [240 * MIB], "chunks": [240 * MIB], "dtype": "|u1"}
told |= {"compressor": {"id": "gzip"}, "fill_value": 0, "order": "C", "filters": None}
(folder / ".zarray").write_text(json.dumps(told))
(folder / "0").write_bytes(gzip.compress(zeros) * 30)
with penstock.Loader(penstock.open(folder), 4) as loader:
    try:
        next(iter(loader))
    except LimitError as error:
        assert "no memory to decode" in str(error)
    else:
        raise AssertionError("there was memory")
print("done")
"""


@pytest.mark.long
def test_bombs_take_no_memory(tmp_path):
    """Every codec refuses bytes that make gigabytes, in a process that has no such memory."""
    result = warm.run(
        [sys.executable, "-c", BOMBS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        lean=True,
    )
    assert (result.returncode, result.stdout[-5:]) == (0, "done\n"), result.stderr[-3000:]
