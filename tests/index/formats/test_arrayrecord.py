"""ArrayRecord files; the container's library writes them and is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError
from tests.slices import first, thinned

library = pytest.importorskip("array_record.python.array_record_module")

AS_THEY_ARE = "group_size:1,uncompressed"


def written(path: Path, records: list[bytes], options: str = AS_THEY_ARE) -> Path:
    """A file of these records."""
    out = library.ArrayRecordWriter(str(path), options)
    for record in records:
        out.write(record)
    out.close()
    return path


def opened(path: Path, **options: Any) -> penstock.Dataset:
    """A data set without a saved index."""
    return penstock.open(path, index="memory", **options)


@pytest.mark.parametrize("seed", first(4, range(12)))
def test_records_of_all_sizes(seed, tmp_path):
    """Blocks cut records, chunk headers and sizes anywhere; the bytes are the library's."""
    random = np.random.default_rng(seed)
    near = [0, 1, 127, 128, 16_383, 16_384, 65_469, 65_470, 65_471, 65_512, 65_536, 131_024]
    scale = int(random.choice([2, 50, 5_000, 200_000]))
    records = []
    while sum(map(len, records)) < 1_500_000 and len(records) < 3_000:
        size = int(random.choice(near)) if random.random() < 0.1 else int(random.integers(scale))
        records.append(random.bytes(size))
    path = written(tmp_path / "x.array_record", records)
    assert library.ArrayRecordReader(str(path)).read_all() == records
    found = opened(path)
    assert [sample["data"] for sample in found] == records


@pytest.mark.wide
def test_a_chunk_that_begins_anywhere_near_the_end_of_a_block(tmp_path):
    """Its header, its sizes or its record are cut, or it moves behind the next block's header."""
    for left in thinned(range(160)):
        records = [bytes(65_536 - 64 - 44 - left), b"second", b"", bytes(range(200))]
        found = opened(written(tmp_path / f"{left}", records))
        assert [sample["data"] for sample in found] == records, left


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("group_size:1", "compressed"),
        ("group_size:1,brotli", "compressed"),
        ("group_size:4,uncompressed", "chunk of 4 records"),
        ("group_size:1,uncompressed,transpose:true", "transposed"),
    ],
)
def test_other_options_are_refused(options, message, tmp_path):
    """With the options that can be read, and with convert."""
    path = written(tmp_path / "x", [b"abc" * i for i in range(9)], options)
    with pytest.raises(FormatError, match=f"{message}.*group_size:1,uncompressed.*convert") as got:
        opened(path)
    assert str(path) in str(got.value)


def test_files_without_records_or_footer_are_refused(tmp_path):
    """Nothing in it, cut off, not closed, or of Riegeli alone."""
    with pytest.raises(FormatError, match="holds no records"):
        opened(written(tmp_path / "x", []))
    content = written(tmp_path / "x", [b"abc"] * 9).read_bytes()
    for length in (64, 65_536, len(content) - 1, len(content) - 65_536):
        (tmp_path / "x").write_bytes(content[:length])
        with pytest.raises(FormatError, match="ends elsewhere|no ArrayRecord file|not closed"):
            opened(tmp_path / "x")


def test_chunks_that_do_not_follow_each_other_are_refused(tmp_path):
    """A place or a size that the footer says wrongly, for any record."""
    records = [bytes([i]) * 40 for i in range(50)]
    path = written(tmp_path / "x", records)
    content = bytearray(path.read_bytes())
    footer = content.rindex(bytes([16, 40, 24, 1]), 0, len(content) - 65_536)
    content[footer + 1] = 41
    path.write_bytes(content)
    with pytest.raises(FormatError, match="ends elsewhere|no ArrayRecord file|not closed"):
        opened(path)
