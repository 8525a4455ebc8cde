"""Layouts: arithmetic, tables, pieces, compressed chunks; read through the loader as usual."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.dataset.dataset import Dataset
from penstock.engine.globbing import expand_braces
from penstock.engine.store import Posix
from penstock.errors import FormatError, SidecarError, UsageError
from penstock.extent import Files, Names
from penstock.index.codecs import registry
from penstock.index.fields import Codec, Field
from penstock.index.layout import Chunked, Fixed, Pieces, RowTable
from penstock.index.table import Index

BYTES = np.dtype(np.uint8)


@pytest.fixture(autouse=True, scope="module")
def zlib_codec() -> Iterator[None]:
    """Codec whose compressed chunks are zlib streams, one a piece, of rows of `row` bytes."""

    def decode(options, compressed):
        ends = np.cumsum([0, *compressed.lengths])
        try:
            parts = [zlib.decompress(compressed.data[a:b]) for a, b in itertools.pairwise(ends)]
        except zlib.error as error:
            raise ValueError(str(error)) from None
        data = b"".join(parts)
        row = options["row"]
        return [data[k : k + row] for k in range(0, len(data), row)]

    registry.CODECS["zlib"] = decode
    yield
    del registry.CODECS["zlib"]


def files_at(folder: Path, contents: list[bytes]) -> Files:
    """The table of files of these contents."""
    names = [f"{number}.bin" for number in range(len(contents))]
    for name, content in zip(names, contents, strict=True):
        (folder / name).write_bytes(content)
    return Posix(str(folder)).stat(names)


def dataset_of(files: Files, fields: list[Field], layouts: list, names: list[str]) -> Dataset:
    """A dataset, as a format would make it."""
    index = Index("test", files, tuple(fields), tuple(layouts), files, names=Names.of(names))
    return Dataset(files.root, index)


def rows_of(field: penstock.Ragged | np.ndarray) -> list[bytes]:
    return [np.asarray(row).tobytes() for row in field]


def assert_read(dataset: Dataset, expected: dict[str, list[bytes]], budgets: list) -> None:
    """Every field of every sample is as expected: one by one, and in shuffled batches."""
    count = len(dataset)
    for sample in range(count):
        found = dataset[sample]
        for name, rows in expected.items():
            data = found[name]
            assert (data if isinstance(data, bytes) else data.tobytes()) == rows[sample]
    for budget in budgets:
        seen = []
        for batch in penstock.Loader(dataset, 3, seed=5, budget=budget):
            for name, rows in expected.items():
                assert rows_of(batch[name]) == [rows[i] for i in batch.ids.tolist()]
            seen += batch.ids.tolist()
        assert sorted(seen) == list(range(count))


BUDGETS = [penstock.Budget(pread="required"), penstock.Budget()]


@given(data=st.data())
def test_pieces_lie_end_to_end(data, tmp_path_factory):
    """Samples of no, one and many pieces, over several files, beside a field of single extents."""
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    folder = tmp_path_factory.mktemp("pieces")
    contents = [random.bytes(data.draw(st.integers(1, 300))) for _ in range(3)]
    files = files_at(folder, contents)
    count = data.draw(st.integers(1, 12))
    counts = [data.draw(st.integers(0, 4)) for _ in range(count)]
    file = random.integers(0, 3, sum(counts))
    size = np.array([len(content) for content in contents])[file]
    offset = (random.random(len(file)) * size).astype(np.int64)
    length = (random.random(len(file)) * (size - offset + 1)).astype(np.int64)
    pieces = Pieces(np.cumsum([0, *counts]), file.astype(np.uint32), offset, length)
    parts = [contents[f][o : o + n] for f, o, n in zip(file, offset, length, strict=True)]
    first = pieces.first.tolist()
    whole = [b"".join(parts[a:b]) for a, b in itertools.pairwise(first)]
    single = RowTable(
        np.zeros(count, np.uint32), np.zeros(count, np.int64), np.ones(count, np.int64)
    )
    dataset = dataset_of(
        files,
        [Field("whole", BYTES, None), Field("first", BYTES, None)],
        [pieces, single],
        [f"n{number}" for number in range(count)],
    )
    assert_read(dataset, {"whole": whole, "first": [contents[0][:1]] * count}, BUDGETS)
    assert [dataset.index.key(k) for k in range(count)] == [f"n{k}" for k in range(count)]


@given(data=st.data())
def test_compressed_chunks_are_decoded(data, tmp_path_factory):
    """Samples are decoded from chunks of one or several pieces, in any order of batches."""
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    folder = tmp_path_factory.mktemp("chunks")
    held = [data.draw(st.integers(1, 5)) for _ in range(data.draw(st.integers(1, 5)))]
    rows = [random.bytes(4) for _ in range(sum(held))]
    blob, pieces, offsets, lengths = b"junk", [], [], []
    for first, last in zip(np.cumsum([0, *held[:-1]]), np.cumsum(held), strict=True):
        cut = data.draw(st.integers(first, last))
        chunks = [b"".join(rows[first:cut]), b"".join(rows[cut:last])]
        pieces.append(len(chunks))
        for chunk in chunks:
            packed = zlib.compress(chunk)
            offsets.append(len(blob))
            lengths.append(len(packed))
            blob += packed
    files = files_at(folder, [blob])
    chunks = Pieces(
        np.cumsum([0, *pieces]),
        np.zeros(len(offsets), np.uint32),
        np.array(offsets),
        np.array(lengths),
    )
    layout = Chunked(np.cumsum([0, *held]), chunks)
    field = Field("data", BYTES, None, Codec("zlib", {"row": 4}))
    dataset = dataset_of(files, [field], [layout], [str(k) for k in range(len(rows))])
    assert_read(dataset, {"data": rows}, BUDGETS)
    sidecar = folder / "index.penstock"
    dataset.index.save(sidecar)
    loaded = Index.load(sidecar)
    assert loaded.fingerprint == dataset.index.fingerprint
    assert_read(Dataset(dataset.path, loaded), {"data": rows}, BUDGETS[:1])


def test_a_damaged_chunk_names_file_and_sample(tmp_path):
    """Bytes that do not decode are an error, not wrong samples."""
    packed = bytearray(zlib.compress(b"aaaabbbb"))
    packed[4] ^= 0xFF
    files = files_at(tmp_path, [bytes(packed)])
    size = np.array([len(packed)])
    chunks = RowTable(np.zeros(1, np.uint32), np.zeros(1, np.int64), size)
    field = Field("data", BYTES, None, Codec("zlib", {"row": 4}))
    dataset = dataset_of(files, [field], [Chunked(np.array([0, 2]), chunks)], ["a", "b"])
    with pytest.raises(FormatError, match=r"0\.bin at byte 0.*cannot be decoded as zlib"):
        dataset[1]
    with pytest.raises(FormatError, match=r"step 0.*cannot be decoded as zlib"):
        next(iter(penstock.Loader(dataset, 2)))


def test_fewer_samples_than_indexed_is_an_error(tmp_path):
    """A compressed chunk that decodes to fewer samples than its index says raises."""
    packed = zlib.compress(b"aaaa")
    files = files_at(tmp_path, [packed])
    chunks = RowTable(np.zeros(1, np.uint32), np.zeros(1, np.int64), np.array([len(packed)]))
    field = Field("data", BYTES, None, Codec("zlib", {"row": 4}))
    dataset = dataset_of(files, [field], [Chunked(np.array([0, 2]), chunks)], ["a", "b"])
    with pytest.raises(FormatError, match="field .* cannot be decoded as zlib"):
        dataset[1]


@pytest.mark.parametrize("stride", [1, 3, 4, 9])
def test_records_at_a_distance(tmp_path, stride):
    """Records may overlap or lie apart; the index keeps the distance, and its fingerprint."""
    content = bytes(range(40))
    files = files_at(tmp_path, [content])
    count = (40 - 2 - 4) // stride + 1
    layout = Fixed(np.array([0, count]), np.array([2]), 4, stride)
    dataset = dataset_of(files, [Field("data", BYTES, (4,))], [layout], [""] * count)
    rows = [content[2 + k * stride :][:4] for k in range(count)]
    assert_read(dataset, {"data": rows}, BUDGETS)
    dataset.index.save(tmp_path / "x.penstock")
    loaded = Index.load(tmp_path / "x.penstock")
    assert loaded.layouts[0].stride_bytes == stride
    other = replace(dataset.index, layouts=(Fixed(layout.first, layout.base, 4, 4),))
    assert (replace(other, fingerprint="").fingerprint == loaded.fingerprint) == (stride == 4)


def test_elements_of_another_type(tmp_path):
    """A field of varying length has its elements in its own type."""
    values = np.arange(10, dtype="<i4")
    files = files_at(tmp_path, [values.tobytes()])
    table = RowTable(np.zeros(3, np.uint32), np.array([0, 4, 16]), np.array([4, 12, 24]))
    dataset = dataset_of(files, [Field("t", values.dtype, None)], [table], ["a", "b", "c"])
    (batch,) = penstock.Loader(dataset, 3, shuffle="none")
    assert [row.tolist() for row in batch["t"]] == [[0], [1, 2, 3], [4, 5, 6, 7, 8, 9]]
    assert dataset[1]["t"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "layout",
    [
        Fixed(np.array([0, 4]), np.array([0]), 4, 3),
        Fixed(np.array([0, 4]), np.array([3]), 4, 2),
        Pieces(np.array([0, 2]), np.zeros(1, np.uint32), np.array([0]), np.array([1])),
        Pieces(np.array([0, 2, 1]), np.zeros(1, np.uint32), np.array([0]), np.array([1])),
        Pieces(np.array([0, 1]), np.ones(1, np.uint32), np.array([0]), np.array([1])),
        Pieces(np.array([0, 1]), np.zeros(1, np.uint32), np.array([10]), np.array([3])),
        Pieces(np.array([0, 1]), np.zeros(1, np.uint32), np.array([-1]), np.array([3])),
        Chunked(
            np.array([0, 0]), RowTable(np.zeros(1, np.uint32), np.zeros(1, "i8"), np.ones(1, "i8"))
        ),
        Chunked(
            np.array([0, 9]), RowTable(np.zeros(1, np.uint32), np.zeros(1, "i8"), np.array([13]))
        ),
    ],
    ids=lambda layout: type(layout).__name__,
)
def test_a_saved_layout_that_cannot_be_is_refused(tmp_path, layout):
    """An index whose extents lie outside their files, or whose columns disagree, is refused."""
    files = files_at(tmp_path, [bytes(12)])
    codec = Codec("zlib", {"row": 4}) if isinstance(layout, Chunked) else None
    shape = (4,) if isinstance(layout, Fixed) else None
    index = Index("test", files, (Field("data", BYTES, shape, codec),), (layout,), files)
    index.save(tmp_path / "x.penstock")
    with pytest.raises(SidecarError):
        Index.load(tmp_path / "x.penstock")


def test_single_extents_are_asked_of_layouts_that_have_them(tmp_path):
    """`Index.extents` and `lengths` say what to call where a sample is no single extent."""
    files = files_at(tmp_path, [bytes(12)])
    pieces = Pieces(np.array([0, 1]), np.zeros(1, np.uint32), np.array([0]), np.array([1]))
    index = Index("test", files, (Field("data", BYTES, None),), (pieces,), files)
    with pytest.raises(UsageError, match=r"Index\.units"):
        index.extents(np.array([0]))
    assert index.lengths(np.array([0])).tolist() == [1]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("x{08..11}", ["x08", "x09", "x10", "x11"]),
        ("x{8..11}", ["x8", "x9", "x10", "x11"]),
        ("x{3..1}", ["x3", "x2", "x1"]),
        ("{a,b}-{0..1}", ["a-0", "a-1", "b-0", "b-1"]),
        ("{a,b{1,2}}", ["a", "b1", "a", "b2"]),
    ],
)
def test_braces_are_those_of_a_shell(pattern, names):
    """Ranges keep their leading zeros; lists and nesting multiply."""
    assert sorted(expand_braces(pattern)) == sorted(names)


@pytest.mark.parametrize("pattern", ["x{}", "x{a}", "x{1..}", "x{0..99999999999}"])
def test_braces_that_stand_for_nothing_are_refused(pattern):
    """Neither a range nor a list, or one of absurd length."""
    with pytest.raises(UsageError):
        expand_braces(pattern)


def test_files_of_a_list_and_of_braces_are_one_sequence(tmp_path):
    """In the order given; a file named twice or missing is refused, and named."""
    for number in range(3):
        (tmp_path / f"s{number}.bin").write_bytes(bytes([number] * 4))
    opened = {"record_bytes": 2, "index": "memory"}
    listed = penstock.open([tmp_path / "s2.bin", tmp_path / "s0.bin"], **opened)
    assert [listed[k]["data"][0] for k in range(4)] == [2, 2, 0, 0]
    ranged = penstock.open(f"{tmp_path}/s{{0..2}}.bin", **opened)
    assert [ranged[k]["data"][0] for k in range(6)] == [0, 0, 1, 1, 2, 2]
    with pytest.raises(UsageError, match=r"s0\.bin is named twice"):
        penstock.open([tmp_path / "s0.bin", tmp_path / "s*.bin"], **opened)
    with pytest.raises(penstock.errors.MissingError, match=r"s3\.bin"):
        penstock.open(f"{tmp_path}/s{{0..3}}.bin", **opened)
