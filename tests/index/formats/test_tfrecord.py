"""TFRecord and tf.Example, against the tfrecord package and google-crc32c."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tfrecord import TFRecordWriter, example_pb2

import penstock
import penstock.convert
from penstock import _core, limits
from penstock.engine.store import StoreFile
from penstock.errors import FormatError
from penstock.index.formats.record_streams import sniff_tfrecord as sniff
from tests.index.formats.example_parser import parse_example


def framed(data: bytes) -> bytes:
    """One record."""
    length = struct.pack("<Q", len(data))
    return length + TFRecordWriter.masked_crc(length) + data + TFRecordWriter.masked_crc(data)


def opened(path: Path, records: list[bytes], **options: Any) -> penstock.Dataset:
    """The data set of these records."""
    path.write_bytes(b"".join(map(framed, records)))
    return penstock.open(path, index="memory", **options)


@given(data=st.binary(max_size=40), repeats=st.integers(1, 400))
def test_checksum(data: bytes, repeats: int) -> None:
    """CRC-32C is google-crc32c's, at lengths around the stripes of the fast path too."""
    assert _core.crc32c(data * repeats) == google_crc32c.value(data * repeats)


def test_checks(tmp_path: Path) -> None:
    """Damaged data is found with check='all', a damaged length unless check='none'."""
    path, records = tmp_path / "x.tfrecord", [b"one", b"two"]
    whole = b"".join(map(framed, records))
    for at, check, reason in ((12, "all", "the data is damaged"), (8, "length", "record's length")):
        damaged = bytearray(whole)
        damaged[19 + at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(penstock.errors.FormatError, match=f"at byte {19 + at}: .*{reason}"):
            penstock.open(path, index="memory", check=check)
        weaker = {"all": "length", "length": "none"}[check]
        assert len(penstock.open(path, index="memory", check=weaker)) == 2


NESTED = framed(framed(b"record") * 3)
RECORDS = st.lists(st.one_of(st.binary(max_size=60).map(framed), st.just(NESTED)), max_size=30)


def index_or_error(path: Path, piece: int, **options: Any) -> Any:
    """The records that pieces of this size have, or the error."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(limits, "parsed_piece_bytes", piece)
        try:
            index = penstock.open(path, format="tfrecord", index="memory", **options).index
        except FormatError as error:
            return str(error)
    samples = np.arange(len(index))
    columns = [layout.pieces(samples)[0] for layout in index.layouts]
    return index.fingerprint, [(one.offset.tolist(), one.length.tolist()) for one in columns]


@given(
    records=RECORDS,
    piece=st.integers(1, 300),
    check=st.sampled_from(["none", "length", "all"]),
    damaged=st.lists(st.integers(0, 1 << 20), max_size=2),
    cut=st.integers(0, 40),
)
def test_pieces(
    records: list[bytes],
    piece: int,
    check: str,
    damaged: list[int],
    cut: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A file that is walked piece by piece has the records of one walk, or its error, the first of
    several, wherever pieces begin: in records of records, and in one that is longer than they."""
    data = bytearray(b"".join(records))
    for place in damaged if data else ():
        data[place % len(data)] ^= 64
    path = tmp_path_factory.mktemp("tfrecord") / "x.tfrecord"
    path.write_bytes(data[: len(data) - cut] if cut % 3 == 0 else data)
    whole = index_or_error(path, 1 << 30, check=check)
    assert index_or_error(path, piece, check=check) == whole


def test_features_of_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are where one walk finds them, and each record is walked once."""
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"".join(framed(encoded({"a": [b"x" * n]})) for n in range(50)))
    whole = index_or_error(path, 1 << 30, example={"field": "a"})
    walks = []
    walk = StoreFile.walk

    def count(file: StoreFile, container: str, **options: Any) -> dict[str, Any]:
        walks.append(options.get("stop"))
        return walk(file, container, **options)

    monkeypatch.setattr(StoreFile, "walk", count)
    assert index_or_error(path, 500, example={"field": "a"}) == whole
    assert None not in walks
    assert len(walks) == -(-path.stat().st_size // 500) > 5


def read_all(dataset: penstock.Dataset, route: str) -> list[bytes | None]:
    """Every sample as this route gives it, None where it fails as damaged."""
    found: list[bytes | None] = []

    def take(read: Callable[[], bytes]) -> None:
        try:
            found.append(read())
        except penstock.errors.FormatError as error:
            assert f"sample {len(found):,}: " in str(error)  # noqa: PT017
            assert "do not have the checksum" in str(error)  # noqa: PT017
            found.append(None)

    if route == "by number":
        for number in range(len(dataset)):
            take(lambda number=number: dataset[number]["data"])  # type: ignore[misc]
        return found
    where: Any = {}
    if route == "cache":
        where = {"cache": penstock.Cache(ram_bytes=1 << 20), "rank": 0, "world_size": 1}
    if route == "decode":
        where = {"decode": lambda sample: bytes(sample["data"]), "collate": lambda rows: rows[0]}
    with penstock.Loader(dataset, 1, shuffle="none", **where) as loader:
        batches = iter(loader)
        while len(found) < len(dataset):
            if route == "decode":
                take(lambda: next(batches))
            else:
                take(lambda: dict(next(batches))["data"][0].tobytes())
    return found


@given(
    records=st.lists(st.binary(max_size=40), min_size=1, max_size=8),
    route=st.sampled_from(["by number", "batches", "decode", "cache"]),
    data=st.data(),
)
def test_damage_since_the_index_was_made(
    records: list[bytes],
    route: str,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """With verify=True a bit that changed in a record or in its checksum, without a trace in size
    or time, fails that record alone, by every route; without, its bytes are handed over."""
    path = tmp_path_factory.mktemp("tfrecord") / "x.tfrecord"
    dataset = opened(path, records, verify=True)
    assert [part.name for part in dataset.fields] == ["data"]
    assert read_all(dataset, route) == records
    whole, times = bytearray(path.read_bytes()), path.stat()
    number = data.draw(st.integers(0, len(records) - 1))
    start = sum(len(framed(record)) for record in records[:number]) + 12
    at = data.draw(st.integers(start, start + len(records[number]) + 3))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    with path.open("r+b") as file:
        file.write(whole)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    wanted: list[bytes | None] = list(records)
    wanted[number] = None
    assert read_all(dataset, route) == wanted
    wanted[number] = bytes(whole[start : start + len(records[number])])
    assert read_all(penstock.open(path, index="memory"), route) == wanted


def test_verify_is_of_whole_records(tmp_path: Path) -> None:
    """Parts of records have no checksum; other formats do not know the option."""
    for options, message in [
        ({"verify": True, "example": {"image": "x"}}, "leave example= out"),
        ({"verify": 1}, "verify is 1: use False or True"),
    ]:
        with pytest.raises(penstock.errors.UsageError, match=message):
            opened(tmp_path / "x.tfrecord", [b"one"], **options)
    dataset = opened(tmp_path / "x.tfrecord", [b"one"], verify=True)
    penstock.convert.convert(dataset, tmp_path / "to", to="tar")
    assert set(penstock.open(tmp_path / "to")[0]) == {"txt", "__key__"}
    with pytest.raises(penstock.errors.UsageError, match="verify"):
        penstock.open(tmp_path / "to", verify=True)


def test_sniff() -> None:
    """A TFRecord file is known by the checksum of its first length."""
    assert sniff(framed(b"data"), "train-00000-of-00001")
    assert not sniff(framed(b"data")[1:], "train-00000-of-00001")
    assert not sniff(b"", "x")


VALUES = st.one_of(
    st.lists(st.binary(max_size=20), max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(lambda v: np.float32(v)),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4).map(lambda v: np.int64(v)),
)


def encoded(features: dict[str, Any]) -> bytes:
    """A tf.Example by protobuf."""
    example = example_pb2.Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        if isinstance(values, list):
            feature.bytes_list.value.extend(values)
        elif values.dtype == np.float32:
            feature.float_list.value.extend(values.tolist())
        else:
            feature.int64_list.value.extend(values.tolist())
    data: bytes = example.SerializeToString()
    return data


@given(features=st.dictionaries(st.text(max_size=5), VALUES, max_size=5))
def test_parse_example(features: dict[str, Any]) -> None:
    """Features are parsed as protobuf writes them, in value and dtype."""
    features = {name: value for name, value in features.items() if len(value)}
    found = parse_example(encoded(features))
    assert found.keys() == features.keys()
    for name, values in features.items():
        if isinstance(values, list):
            assert found[name] == values
        else:
            assert found[name].dtype == values.dtype
            assert found[name].tolist() == values.tolist()


@given(data=st.binary(max_size=60))
def test_parse_example_of_anything(data: bytes) -> None:
    """Any bytes are an example, or a FormatError, and nothing else."""
    with contextlib.suppress(penstock.errors.FormatError):
        assert isinstance(parse_example(data), dict)


@given(features=st.dictionaries(st.text(max_size=3), VALUES, max_size=4), data=st.data())
def test_both_parsers_agree(
    features: dict[str, Any], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The compiled parser finds the same values at its extents as the one in Python, on examples
    with a byte changed too; and refuses none that the latter takes."""
    record = bytearray(encoded(features))
    if record and data.draw(st.booleans()):
        record[data.draw(st.integers(0, len(record) - 1))] ^= data.draw(st.integers(1, 255))
    names = [name for name in features if name] or ["x"]
    whole = framed(bytes(record))
    columns, flaw = _core.walk_tfrecord(
        -1, lambda at, n: whole[at : at + n], len(whole), features=names
    )
    refused = False
    try:
        expected = parse_example(bytes(record))
    except penstock.errors.FormatError:
        refused = True
    # What lies in features that were not asked for concerns the parser in Python alone.
    assert refused or flaw is None
    if refused:
        return
    for row, name in enumerate(names):
        kind, count = columns["feature_kind"][row], columns["feature_values"][row]
        values = expected.get(name, [])
        assert count == len(values)
        start, length = columns["feature_offset"][row], columns["feature_length"][row]
        if kind == 1 and count == 1:
            assert whole[start : start + length] == values[0]
        if kind == 2 and start >= 0:
            assert whole[start : start + length] == values.tobytes()
        if kind == 3 and count:
            assert columns["feature_value"][row] == values[0]


def test_features_that_do_not_fit(tmp_path: Path) -> None:
    """A feature that is missing, of several values or of another type names the record."""
    path = tmp_path / "x.tfrecord"
    good = {"a": [b"1"], "l": np.array([1])}
    for wrong in ({}, {"a": [b"1", b"2"]}, {"a": np.array([1])}):
        records = [encoded(good), encoded(wrong)]
        with pytest.raises(
            penstock.errors.FormatError, match=r"at byte \d+: record 1 has .* feature 'a'"
        ):
            opened(path, records, example={"x": "a"})
    records = [encoded(good), encoded({"l": np.array([1, 2])})]
    with pytest.raises(penstock.errors.FormatError, match=r"2 integers for the feature 'l'"):
        opened(path, records, label="l")
    with pytest.raises(penstock.errors.FormatError, match="no tf.Example"):
        opened(path, [b"\xff" * 20], example={"x": "a"})


@pytest.mark.parametrize(
    "options", [{"check": "some"}, {"example": {"a": 1}}, {"example": "a"}, {"label": 3}]
)
def test_wrong_options(options: dict[str, Any], tmp_path: Path) -> None:
    """An option that cannot be meant is a UsageError that names it."""
    with pytest.raises(penstock.errors.UsageError, match=next(iter(options))):
        opened(tmp_path / "x.tfrecord", [b"1"], **options)
