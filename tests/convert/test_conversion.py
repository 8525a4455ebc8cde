"""Conversions, held against tarfile, the lmdb package, numpy and parsers of the test's own."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.convert import containers
from penstock.convert.conversion import ShardsConversion, convert
from penstock.convert.encoding import StoredSample
from penstock.convert.manifest import MANIFEST, lock_folder
from penstock.engine import native
from penstock.engine.atomic_file import Bytes
from penstock.errors import ChangedError, StorageError, UsageError
from tests import warm
from tests.command import run
from tests.slices import first

LONG_AGO_NS = 10**18 + 1


def random_bytes(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def settle(folder: Path) -> None:
    """Let everything look as if it had been written long ago."""
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS), follow_symlinks=False)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of 40 files in three classes: one empty, one large, several with odd names."""
    root = tmp_path / "photos"
    names = [f"{kind}/{number:02d}.jpg" for kind in ("ant", "bee", "cat") for number in range(12)]
    names += ["ant/two.dots.jpg", "bee/white space.jpg", "cat/ünïcode.jpg", f"cat/{'x' * 150}.jpg"]
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random_bytes(number, 0 if number == 3 else 17 * number % 700 + number))
    (root / "bee" / "07.jpg").write_bytes(random_bytes(99, 70_001))
    settle(root)
    return root


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """An array of 200 samples of 2 x 3 big-endian floats."""
    path = tmp_path / "numbers.npy"
    np.save(path, np.arange(1200, dtype=">f4").reshape(200, 2, 3))
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


def opened(path: Path, **options: Any) -> penstock.Dataset:
    return penstock.open(path, index="memory", **options)


def tar_members(folder: Path) -> list[tuple[str, bytes]]:
    """The members of all shards, as tarfile reads them."""
    members = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                file = shard.extractfile(member)
                assert file is not None
                assert (member.mtime, member.uid, member.gid) == (0, 0, 0)
                members.append((member.name, file.read()))
    return members


def tfrecords(folder: Path) -> list[bytes]:
    """The records of all shards, their checksums checked."""
    records = []
    for path in sorted(folder.glob("*.tfrecord")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            body = data[at + 12 : at + 12 + length]
            assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
            assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body)
            records.append(body)
            at += 16 + length
        assert at == len(data)
    return records


def masked(data: bytes) -> int:
    """The masked CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def lmdb_entries(folder: Path) -> list[tuple[str, bytes]]:
    """The entries of an environment in order of key, as the lmdb package reads them."""
    with (
        lmdb.open(str(folder), readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        return [(os.fsdecode(key), bytes(value)) for key, value in transaction.cursor()]


# -- each container against its own reader ---------------------------------------------------------


def test_tar_is_what_tarfile_reads(photos: Path, tmp_path: Path) -> None:
    """Names, bytes and labels of all members, in the order of the source."""
    source = opened(photos)
    done = convert(source, tmp_path / "out", to="tar", shard_bytes=20_480)
    assert len(done.files) > 3
    members = iter(tar_members(tmp_path / "out"))
    for sample in source:
        stem, ending = os.path.splitext(sample["__key__"])
        folder, base = os.path.split(stem)
        key = f"{folder}/{base.replace('.', '_')}"
        assert next(members) == (f"{key}{ending}", sample["data"])
        assert next(members) == (f"{key}.cls", str(sample["label"]).encode())
    assert next(members, None) is None
    large = [path for path in done.files if os.path.getsize(path) > 20_480]
    assert len(large) == 1  # of the sample that is larger than a shard


def test_tar_in_shuffled_order(photos: Path, tmp_path: Path) -> None:
    """With a seed the samples come as Order puts them, and numbers can be their names."""
    source = opened(photos)
    convert(source, tmp_path / "out", to="tar", shards=3, shuffle=5, keys="numbers")
    order = penstock.Order(len(source), 5).samples(np.arange(len(source))).tolist()
    data = [(name, data) for name, data in tar_members(tmp_path / "out") if name.endswith(".jpg")]
    assert data == [(f"{i:08d}.jpg", source[n]["data"]) for i, n in enumerate(order)]
    assert len(list((tmp_path / "out").glob("*.tar"))) == 3


def test_tfrecord_examples(photos: Path, tmp_path: Path) -> None:
    """Each record is a tf.train.Example with the bytes, the label and the key."""
    source = opened(photos)
    convert(source, tmp_path / "out", to="tfrecord", shards=2)
    for record, sample in zip(tfrecords(tmp_path / "out"), source, strict=True):
        assert features_of(record) == {
            "data": [sample["data"]],
            "label": [sample["label"]],
            "__key__": [sample["__key__"].encode()],
        }


def test_plain_tfrecords(photos: Path, tmp_path: Path) -> None:
    """With raw, a record is a sample's bytes, and labels lie beside."""
    source = opened(photos)
    done = convert(source, tmp_path / "out", to="tfrecord", raw=True, shuffle=1)
    order = penstock.Order(len(source), 1).samples(np.arange(len(source))).tolist()
    assert tfrecords(tmp_path / "out") == [source[n]["data"] for n in order]
    assert done.labels is not None
    assert np.load(done.labels).tolist() == [source[n]["label"] for n in order]


def test_records_are_what_numpy_reads(numbers: Path, tmp_path: Path) -> None:
    """Arrays of one shape are records, byte order included; the call that is given reads them."""
    done = convert(opened(numbers), tmp_path / "out", to="records", shards=7)
    data = b"".join(Path(path).read_bytes() for path in done.files)
    expected = np.load(numbers)
    assert np.array_equal(np.frombuffer(data, ">f4").reshape(200, 2, 3), expected)
    again = eval(done.call.replace(")", ", index='memory')"), {"penstock": penstock})
    (batch,) = penstock.Loader(again, 200, shuffle="none", rank=0, world_size=1)
    assert batch["data"].dtype == expected.dtype
    assert np.array_equal(batch["data"], expected)


@pytest.mark.parametrize("keys", ["both", "names", "numbers"])
def test_lmdb_is_what_its_package_reads(keys: Any, photos: Path, tmp_path: Path) -> None:
    """Keys and values of all entries; labels lie beside, in the order of the entries."""
    source = opened(photos)
    done = convert(source, tmp_path / "out", to="lmdb", keys=keys, shuffle=2)
    order = penstock.Order(len(source), 2).samples(np.arange(len(source))).tolist()
    expected = []
    for position, number in enumerate(order):
        sample = source[number]
        name = sample["__key__"]
        key = {"both": f"{position:08d}_{name}", "names": name, "numbers": f"{position:08d}"}[keys]
        expected.append((os.fsencode(key), sample["data"], sample["label"]))
    expected.sort()
    entries = lmdb_entries(tmp_path / "out")
    assert entries == [(os.fsdecode(key), data) for key, data, _ in expected]
    assert done.labels is not None
    assert np.load(done.labels).tolist() == [label for _, _, label in expected]
    assert not (tmp_path / "out.tmp").exists()


def test_lmdb_of_datums(photos: Path, tmp_path: Path) -> None:
    """Caffe's Datum holds the encoded bytes and the label; penstock reads it as such."""
    source = opened(photos)
    done = convert(source, tmp_path / "out", to="lmdb", datum=True)
    for (_, value), sample in zip(lmdb_entries(tmp_path / "out"), source, strict=True):
        assert fields_of(value) == [(4, sample["data"]), (5, sample["label"]), (7, 1)]
    assert done.options == {"datum": True}
    again = opened(tmp_path / "out", **done.options)
    assert [sample["label"] for sample in again] == [sample["label"] for sample in source]
    assert [bytes(sample["data"]) for sample in again] == [sample["data"] for sample in source]


@pytest.mark.parametrize(
    "options",
    [
        {"to": "tar"},
        {"to": "tfrecord"},
        {"to": "tfrecord", "raw": True},
        {"to": "lmdb"},
        {"to": "lmdb", "datum": True},
    ],
)
def test_the_call_that_is_given_reads_it(
    options: dict[str, Any], photos: Path, tmp_path: Path
) -> None:
    """Samples and labels, in order, by the call alone; or labels from the file beside."""
    source = opened(photos)
    done = convert(source, tmp_path / "out", shuffle=7, **options)
    again = eval(done.call.removesuffix(")") + ", index='memory')", {"penstock": penstock})
    order = penstock.Order(len(source), 7).samples(np.arange(len(source))).tolist()
    (field,) = again.fields
    assert [bytes(sample[field.name]) for sample in again] == [source[n]["data"] for n in order]
    if done.labels is None:
        labels = [sample["label"] for sample in again]
    else:
        labels = np.load(done.labels).tolist()
    assert labels == [source[n]["label"] for n in order]


# -- protocol buffers, parsed by the test ----------------------------------------------------------


def fields_of(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a message: numbers, and bytes or integers."""
    records, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        value: Any = varint()
        if tag & 7 == 2:
            at += value
            value = data[at - value : at]
            assert at <= len(data)
        else:
            assert tag & 7 == 0
        records.append((tag >> 3, value))
    return records


def features_of(record: bytes) -> dict[str, list[Any]]:
    """The features of a tf.train.Example."""
    features: dict[str, list[Any]] = {}
    for _, entry in fields_of(dict(fields_of(record))[1]):
        parts = dict(fields_of(entry))
        ((kind, values),) = fields_of(parts[2])
        items = [value for _, value in fields_of(values)]
        if kind == 2:
            items = np.frombuffer(items[0], "<f4").tolist()
        elif kind == 3:
            items = list(varints(items[0]))
        features[parts[1].decode()] = items
    return features


def varints(data: bytes) -> Iterator[int]:
    """Packed signed integers."""
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value - (1 << 64) if value >> 63 else value
            value = shift = 0


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=40), st.binary(max_size=300))
def test_example_holds_any_integers(values: list[int], data: bytes) -> None:
    """Integers of all sizes, floats and bytes come out of an Example as they went in."""
    floats = np.arange(5, dtype=np.float32)
    features = {"i": np.array(values, np.int64), "f": floats, "b": data}
    assert features_of(containers.join_example(features)) == {
        "b": [data],
        "f": floats.tolist(),
        "i": values,
    }


def test_checksum_vectors() -> None:
    """CRC-32C of the published vectors."""
    for data, expected in ((b"123456789", 0xE3069283), (b"", 0), (bytes(32), 0x8A9136AA)):
        assert native.crc32c(data) == native.crc32c(data[1:], native.crc32c(data[:1])) == expected


@given(st.text(max_size=40))
def test_safe_keys(name: str) -> None:
    """A key is relative, has no hidden parts, ends before an extension, and stays what it is."""
    key = containers.make_safe_key(name)
    assert not key.startswith(("/", "__"))
    assert all(part and not part.startswith(".") for part in key.split("/") if key)
    assert "." not in key.rsplit("/", 1)[-1]
    assert not any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in key)
    if "%" not in key:
        assert containers.make_safe_key(key) == key


@pytest.mark.parametrize(
    ("data", "extension"),
    [
        (b"\xff\xd8\xff\xe0", "jpg"),
        (b"\x89PNG\r\n\x1a\n....", "png"),
        (b"\x93NUMPY\x01\x00", "npy"),
        (b'{"a": 1}', "json"),
        ("Füße".encode(), "txt"),
        (("aü" * 3000).encode(), "txt"),
        (b"\x00\x01", "bin"),
        (b"", "bin"),
    ],
)
def test_extensions_by_content(data: bytes, extension: str) -> None:
    """The first bytes reveal the type of a file."""
    assert containers.guess_extension(data) == extension


# -- resuming --------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys, json
import penstock
from penstock.convert.conversion import convert
source, destination, options, number, what = json.loads(sys.argv[1])
penstock.limits.commit_samples_max = 7
seen = 0
def event(name, arguments):
    global seen
    if name in ("open", "os.rename", "os.remove", "os.mkdir") and destination in str(arguments[0]):
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGINT)
dataset = penstock.open(source, index="memory")
sys.addaudithook(event)
convert(dataset, destination, **options)
print(seen)
"""


def child(
    source: Path, destination: Path, options: dict[str, Any], number: int, what: str
) -> subprocess.CompletedProcess[str]:
    """A conversion in a process of its own that ends itself at an event of the file system."""
    argument = json.dumps([str(source), str(destination), options, number, what])
    path = str(Path(penstock.__file__).parents[1])
    return warm.run(
        [sys.executable, "-c", CHILD, argument],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "tar": {"to": "tar", "shard_bytes": 30_000, "shuffle": 4},
    "tfrecord": {"to": "tfrecord", "shards": 4},
    "plain": {"to": "tfrecord", "raw": True, "shard_bytes": 20_000},
    "records": {"to": "records", "shards": 5, "shuffle": 4},
    "lmdb": {"to": "lmdb"},
}


@pytest.mark.long
@pytest.mark.parametrize("kind", OPTIONS)
def test_killed_and_resumed(kind: str, photos: Path, numbers: Path, tmp_path: Path) -> None:
    """Killed at any operation on files, a conversion that is run again ends up as one that was not
    killed, byte by byte; and until then nothing half-written has a final name."""
    source = numbers if kind == "records" else photos
    options = {**OPTIONS[kind], "name": "x"}
    whole = tmp_path / "whole"
    whole_events = child(source, whole, options, 0, "kill")
    assert whole_events.returncode == 0, whole_events.stderr
    expected = files_of(whole)
    total = int(whole_events.stdout)
    assert total > 4
    random = np.random.default_rng(total)
    points = sorted({1, 2, 3, total, *random.integers(1, total + 1, 5).tolist()})
    for point in points:
        out = tmp_path / f"out{point}"
        killed = child(source, out, options, point, "kill")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        if out.exists():
            for name, data in files_of(out).items():
                if not name.startswith("."):
                    assert name == "data.mdb" or expected[name] == data, (point, name)
        resumed = child(source, out, options, 0, "kill")
        assert resumed.returncode == 0, resumed.stderr
        assert_same(out, whole)
        assert not (tmp_path / f"out{point}.tmp").exists()


def assert_same(folder: Path, expected: Path) -> None:
    """Equal files; of LMDB, which leaves what a page held before in its unused part, entries."""
    ours, theirs = files_of(folder), files_of(expected)
    assert ours.keys() == theirs.keys()
    for name in ours:
        if name == "data.mdb":
            assert lmdb_entries(folder) == lmdb_entries(expected)
            assert len(ours[name]) == len(theirs[name])
        else:
            assert ours[name] == theirs[name], name


def test_samples_that_are_read_in_several_batches(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions go on from batch to batch."""
    options = {"to": "tar", "shuffle": 3, "shards": 5, "keys": "numbers", "name": "x"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    convert(opened(photos), whole, **options)
    monkeypatch.setattr("penstock.convert.manifest._BATCH_SAMPLES_MAX", 7)
    convert(opened(photos), parts, **options)
    assert_same(parts, whole)


def test_killed_again_and_again(photos: Path, tmp_path: Path) -> None:
    """Killed amidst samples each time it goes on, it still comes to the same end."""
    options = {"to": "tfrecord", "raw": True, "name": "x", "shard_bytes": 2000}
    out = tmp_path / "out"
    finished = 0
    for point in (1, 9, 17, 30):
        child(photos, out, options, point, "kill")
        held = json.loads((out / MANIFEST).read_text()) if out.exists() else {"shards": []}
        assert len(held["shards"]) >= finished
        finished = len(held["shards"])
    assert finished
    convert(opened(photos), out, **options)
    convert(opened(photos), tmp_path / "whole", **options)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_interrupted(photos: Path, tmp_path: Path) -> None:
    """Ctrl-C leaves no hidden file but the manifest, and the conversion goes on later."""
    options = {"to": "tfrecord", "raw": True, "name": "x", "shards": 6}
    stopped = child(photos, tmp_path / "out", options, 25, "interrupt")
    assert "KeyboardInterrupt" in stopped.stderr
    names = {name for name in files_of(tmp_path / "out") if name.startswith(".")}
    assert names == {MANIFEST}
    done = convert(opened(photos), tmp_path / "out", **options)
    assert 0 < done.written < done.samples
    assert tfrecords(tmp_path / "out") == [sample["data"] for sample in opened(photos)]


def test_nothing_is_done_twice(numbers: Path, tmp_path: Path) -> None:
    """A finished conversion that is run again writes nothing."""
    for to in ("records", "lmdb"):
        out = tmp_path / to
        first = convert(opened(numbers), out, to=to)
        before = {path: os.stat(path).st_mtime_ns for path in out.iterdir()}
        again = convert(opened(numbers), out, to=to)
        assert (first.written, again.written) == (200, 0)
        assert replace(again, written=200) == first
        assert {path: os.stat(path).st_mtime_ns for path in out.iterdir()} == before


def test_ended_after_the_last_shard(tmp_path: Path) -> None:
    """If only the last word in the manifest is missing, it is added; batches end evenly here."""
    path = tmp_path / "even.npy"
    np.save(path, np.arange(8192, dtype=np.uint16))
    out = tmp_path / "out"
    convert(opened(path), out, to="records", shards=2)
    before = files_of(out)
    manifest = out / MANIFEST
    manifest.write_bytes(before[MANIFEST].replace(b'"complete": true', b'"complete": false'))
    assert convert(opened(path), out, to="records", shards=2).written == 0
    assert files_of(out) == before


# -- refusals --------------------------------------------------------------------------------------


def begun(source: Path, out: Path) -> None:
    """A conversion that was killed after two shards."""
    options = {"to": "tfrecord", "raw": True, "shards": 4}
    for point in range(8, 40):
        shutil.rmtree(out, ignore_errors=True)
        child(source, out, options, point, "kill")
        if len(json.loads((out / MANIFEST).read_text())["shards"]) == 2:
            return
    raise AssertionError("never two shards")


@pytest.mark.long
def test_other_options_or_data(photos: Path, tmp_path: Path) -> None:
    """Going on with other options, or after the source changed, is refused with what differs."""
    out = tmp_path / "out"
    begun(photos, out)
    held = files_of(out)
    with pytest.raises(UsageError, match="shards=4, and now shards=5"):
        convert(opened(photos), out, to="tfrecord", raw=True, shards=5)
    with pytest.raises(UsageError, match="to='tfrecord', and now to='lmdb'"):
        convert(opened(photos), out, to="lmdb")
    changed = photos / "ant" / "00.jpg"
    os.utime(changed, ns=(LONG_AGO_NS + 5, LONG_AGO_NS + 5))
    with pytest.raises(UsageError, match="written to since"):
        convert(opened(photos), out, to="tfrecord", raw=True, shards=4)
    changed.write_bytes(b"longer than it was")
    with pytest.raises(UsageError, match="of other data"):
        convert(opened(photos), out, to="tfrecord", raw=True, shards=4)
    assert files_of(out) == held
    (out / "mine.txt").write_text("kept")
    done = convert(opened(photos), out, to="tfrecord", raw=True, shards=3, force=True)
    assert done.written == len(opened(photos))
    assert (out / "mine.txt").read_text() == "kept"
    assert len(list(out.glob("*.tfrecord"))) == 3


def test_source_changed_after_it_was_opened(photos: Path, tmp_path: Path) -> None:
    """A file that is not as it was indexed is refused before anything is written."""
    source = opened(photos)
    (photos / "cat" / "05.jpg").write_bytes(b"new")
    with pytest.raises(ChangedError, match=r"cat/05\.jpg"):
        convert(source, tmp_path / "out", to="tar")
    assert not (tmp_path / "out").exists()


def test_destinations_that_are_not_ours(photos: Path, tmp_path: Path) -> None:
    """Inside the source, on a file, over other data, even by force: refused, nothing touched."""
    source = opened(photos)
    with pytest.raises(UsageError, match="inside the source"):
        convert(source, photos / "out", to="tar")
    (tmp_path / "link").symlink_to(photos)
    with pytest.raises(UsageError, match="inside the source"):
        convert(source, tmp_path / "link" / "out", to="lmdb")
    file = tmp_path / "file"
    file.write_text("mine")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    for force in (False, True):
        for to in ("tar", "lmdb"):
            with pytest.raises(UsageError, match="not a folder"):
                convert(source, file, to=to, force=force)
            with pytest.raises(UsageError, match=r"thesis\.tex"):
                convert(source, other, to=to, force=force)
    with pytest.raises(UsageError, match="write to a folder"):
        convert(source, "s3://bucket/out", to="tar")
    assert files_of(other) == {"thesis.tex": b"mine"}
    assert file.read_text() == "mine"


def test_two_at_once(photos: Path, tmp_path: Path) -> None:
    """A destination that another process writes is refused."""
    with lock_folder(str(tmp_path / "out")), pytest.raises(UsageError, match="another process"):
        convert(opened(photos), tmp_path / "out", to="tfrecord", raw=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "zip"}, "to is 'zip'"),
        ({"to": "records"}, "different lengths"),
        ({"to": "tar", "shards": 0}, "whole number from 1"),
        ({"to": "tar", "shards": 41}, "from 1 to 40"),
        ({"to": "tar", "shards": 2, "shard_bytes": 9}, "choose one"),
        ({"to": "tar", "raw": True}, "TFRecord"),
        ({"to": "tar", "datum": True}, "LMDB"),
        ({"to": "tar", "shuffle": -1}, "shuffle is -1"),
        ({"to": "tar", "name": "../x"}, "name is"),
        ({"to": "tar", "fields": ["image"]}, "fields is 'image'"),
        ({"to": "tar", "keys": "uuid"}, "keys is 'uuid'"),
        ({"to": "lmdb", "shards": 2}, "one file"),
    ],
)
def test_calls_that_cannot_be(
    arguments: dict[str, Any], message: str, photos: Path, tmp_path: Path
) -> None:
    """Wrong arguments are refused by name, and nothing is written."""
    with pytest.raises(UsageError, match=message):
        convert(opened(photos), tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


# -- failures --------------------------------------------------------------------------------------

LIMITED = """
import json, resource, signal, sys
import penstock
from penstock.convert.conversion import convert
source, destination, options, limit = json.loads(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
dataset = penstock.open(source, index="memory")
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    convert(dataset, destination, **options)
except penstock.errors.StorageError as error:
    print(error.errno, error)
"""


@pytest.mark.parametrize("to", first(1, ["lmdb", "tfrecord"]))
def test_storage_that_takes_no_more(to: str, photos: Path, tmp_path: Path) -> None:
    """If writing fails, the error says where; nothing half-written stays, and it goes on."""
    out = tmp_path / "out"
    options = {"to": to, "name": "x"} | ({"raw": True, "shards": 8} if to == "tfrecord" else {})
    argument = json.dumps([str(photos), str(out), options, 50_000])
    path = str(Path(penstock.__file__).parents[1])
    failed = subprocess.run(
        [sys.executable, "-c", LIMITED, argument],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "cannot be written: " in failed.stdout, failed.stderr
    assert str(out) in failed.stdout
    if to == "tfrecord":
        assert not list(out.glob(".*.part"))
    else:
        assert not out.exists()
    convert(opened(photos), out, **options)
    convert(opened(photos), tmp_path / "whole", **options)
    assert_same(out, tmp_path / "whole")


@pytest.mark.parametrize("to", ["tfrecord", "lmdb"])
def test_full_disk(to: str, photos: Path, small_disk: Path, tmp_path: Path) -> None:
    """A full disk is named as such; what is finished stays, and once there is room, it goes on."""
    filler = small_disk / "filler"
    filler.write_bytes(bytes(40_000))
    out = small_disk / "out"
    options = {"to": to, "name": "x"} | ({"raw": True, "shards": 8} if to == "tfrecord" else {})
    (photos / "bee" / "07.jpg").write_bytes(random_bytes(99, 40_001))
    settle(photos)
    with pytest.raises(StorageError, match="make room there") as caught:
        convert(opened(photos), out, **options)
    assert caught.value.errno == errno.ENOSPC
    assert str(out) in str(caught.value)
    assert not list(small_disk.rglob("*.part"))
    held = list(out.glob("*.tfrecord"))
    filler.unlink()
    done = convert(opened(photos), out, **options)
    assert (done.written < done.samples) == bool(held)
    convert(opened(photos), tmp_path / "whole", **options)
    assert_same(out, tmp_path / "whole")


def test_damage_is_found(photos: Path, tmp_path: Path) -> None:
    """A shard that does not hold what it was given gets no name."""
    whole = convert(opened(photos), tmp_path / "whole", to="tfrecord", raw=True)
    assert whole.samples == 40
    from penstock.convert.encoding import choose_recipe

    source = opened(photos)
    right = choose_recipe(source, "tfrecord", fields=None, keys=None, raw=True, as_datum=False)

    def damaging(held: StoredSample) -> list[Bytes]:
        data = bytes(held.parts[0][1])
        if len(data) == 70_001:
            data = data[:-1] + bytes([data[-1] ^ 1])
        return containers.encode_record(data)

    options = json.loads((tmp_path / "whole" / MANIFEST).read_text())["options"]
    options |= {"shards": 4, "shard_bytes": None, "name": "x"}
    wrong = replace(right, encode_sample=damaging)
    with pytest.raises(StorageError, match="differs"):
        ShardsConversion(source, str(tmp_path / "out"), wrong, options, False, None).run()
    held = files_of(tmp_path / "out")
    shards = [name for name in held if name != MANIFEST]
    assert 0 < len(shards) < 4
    assert not any(name.endswith(".part") for name in shards)
    done = ShardsConversion(source, str(tmp_path / "out"), right, options, False, None).run()
    assert done.samples == 40
    assert tfrecords(tmp_path / "out") == [sample["data"] for sample in source]


def test_finished_shards_that_are_gone(photos: Path, tmp_path: Path) -> None:
    """A finished shard that was removed or cut is noticed when going on."""
    out = tmp_path / "out"
    done = convert(opened(photos), out, to="tfrecord", raw=True, shards=4)
    os.truncate(done.files[1], 5)
    with pytest.raises(UsageError, match="has 5 bytes"):
        convert(opened(photos), out, to="tfrecord", raw=True, shards=4)
    os.unlink(done.files[1])
    with pytest.raises(UsageError, match="is gone"):
        convert(opened(photos), out, to="tfrecord", raw=True, shards=4)
    convert(opened(photos), out, to="tfrecord", raw=True, shards=4, force=True)


# -- from one to the next --------------------------------------------------------------------------


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cs", "Cc"]),
    min_size=1,
    max_size=12,
).filter(lambda name: not name.startswith((".", "__")) and len(name.encode()) < 100)


@pytest.mark.long
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.dictionaries(
        st.tuples(st.sampled_from("ab"), NAMES), st.binary(max_size=600), min_size=1
    )
)
def test_from_tree_to_tar_to_tfrecord_to_lmdb(
    files: dict[tuple[str, str], bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Samples, labels and keys come through tar, TFRecord and LMDB as they were."""
    root = tmp_path_factory.mktemp("chain")
    for (folder, name), data in files.items():
        path = root / "tree" / folder / f"{name}.dat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    tree = opened(root / "tree")
    convert(tree, root / "tar", to="tar", shards=min(2, len(tree)))
    tar = opened(root / "tar")
    assert [sample["dat"] for sample in tar] == [sample["data"] for sample in tree]
    assert [sample["label"] for sample in tar] == [sample["label"] for sample in tree]
    keys = [sample["__key__"] for sample in tar]
    assert len(set(keys)) == len(keys)
    for key, sample in zip(keys, tree, strict=True):
        plain = sample["__key__"].removesuffix(".dat")
        assert key == plain or containers.make_safe_key(plain) in key
    convert(tar, root / "tfrecord", to="tfrecord")
    records = opened(root / "tfrecord", example={"dat": "dat", "key": "__key__"}, label="label")
    assert [bytes(sample["dat"]) for sample in records] == [sample["data"] for sample in tree]
    assert [bytes(sample["key"]).decode() for sample in records] == keys
    assert [sample["label"] for sample in records] == [sample["label"] for sample in tree]
    convert(records, root / "lmdb", to="lmdb", fields=["dat"], datum=True, keys="numbers")
    environment = opened(root / "lmdb", datum=True)
    assert [bytes(sample["data"]) for sample in environment] == [sample["data"] for sample in tree]
    assert [sample["label"] for sample in environment] == [sample["label"] for sample in tree]
    convert(tar, root / "named", to="lmdb", keys="names")
    named = {sample["__key__"]: sample["data"] for sample in opened(root / "named")}
    assert named == {key: sample["data"] for key, sample in zip(keys, tree, strict=True)}


def test_several_fields(tmp_path: Path) -> None:
    """Samples of several fields keep them all in tar and Example; LMDB takes the one chosen."""
    shard = tmp_path / "source.tar"
    with tarfile.open(shard, "w") as out:
        for number in range(9):
            for name, data in (
                ("jpg", b"\xff\xd8\xff" + random_bytes(number, 50 * number)),
                ("json", json.dumps({"number": number}).encode()),
                ("cls", str(number % 3).encode()),
            ):
                member = tarfile.TarInfo(f"part/{number:04d}.{name}")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))
    source = opened(shard)
    convert(source, tmp_path / "tar", to="tar")
    with tarfile.open(shard) as file:
        expected = [(member.name, file.extractfile(member).read()) for member in file]  # type: ignore[union-attr]
    assert tar_members(tmp_path / "tar") == expected
    convert(source, tmp_path / "tfrecord", to="tfrecord")
    for record, sample in zip(tfrecords(tmp_path / "tfrecord"), source, strict=True):
        assert features_of(record) == {
            "jpg": [sample["jpg"]],
            "json": [sample["json"]],
            "label": [sample["label"]],
            "__key__": [sample["__key__"].encode()],
        }
    with pytest.raises(UsageError, match="jpg, json"):
        convert(source, tmp_path / "lmdb", to="lmdb")
    convert(source, tmp_path / "lmdb", to="lmdb", fields=["jpg"], keys="names")
    assert lmdb_entries(tmp_path / "lmdb") == [
        (sample["__key__"], sample["jpg"]) for sample in source
    ]


def test_arrays_in_tar(numbers: Path, tmp_path: Path) -> None:
    """Arrays become .npy members."""
    convert(opened(numbers), tmp_path / "out", to="tar")
    expected = np.load(numbers)
    for number, (name, data) in enumerate(tar_members(tmp_path / "out")):
        assert name.endswith(".npy")
        array = np.load(io.BytesIO(data))
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected[number])


def test_names_that_collide_in_tar(tmp_path: Path) -> None:
    """Files whose names differ in what tar keys cannot hold stay samples of their own."""
    root = tmp_path / "tree"
    names = ["a.jpg", "a.png", "b.c.jpg", "b_c.jpg", "%41.jpg", "A.jpg"]
    root.mkdir()
    for name in names:
        (root / name).write_bytes(name.encode())
    (root / os.fsdecode(b"\xff.jpg")).write_bytes(b"undecodable")
    source = opened(root)
    convert(source, tmp_path / "out", to="tar")
    assert [data for _, data in tar_members(tmp_path / "out")] == [
        sample["data"] for sample in source
    ]
    assert len({name for name, _ in tar_members(tmp_path / "out")}) == 7


# -- the command line ------------------------------------------------------------------------------


def test_command_line(numbers: Path, tmp_path: Path) -> None:
    """The command writes, finds that there is nothing to do, refuses by name, and begins anew."""
    out = tmp_path / "out"
    asked = ("convert", numbers, out, "--to", "records")
    first = run(*asked, "--shard-bytes", "1KiB").stdout
    assert "200 samples, 4.7 KiB in 5 files; verified" in first
    assert f"read it: penstock.open('{out}', format='records'" in first
    assert "it was complete already" in run(*asked, "--shard-bytes", "1024").stdout
    refused = run(*asked, "--shards", "2", code=1).stderr
    assert "shard_bytes=1024, and now shard_bytes=None is asked" in refused
    assert "in 2 files" in run(*asked, "--shards", "2", "--force").stdout
    assert "use a unit, as in 1GiB" in run(*asked, "--shard-bytes", "many", code=1).stderr


INTERRUPTED = """
import os, signal, sys
from penstock.cli.app import main
def event(name, arguments):
    if name == "os.rename" and "000002" in str(arguments[1]):
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(event)
main()
"""


@pytest.mark.long
def test_command_line_interrupted(numbers: Path, tmp_path: Path) -> None:
    """Ctrl-C is exit code 130 and a word on how to go on; the next run does."""
    arguments = ["convert", str(numbers), str(tmp_path / "out"), "--to", "records", "--shards", "9"]
    path = str(Path(penstock.__file__).parents[1])
    stopped = warm.run(
        [sys.executable, "-c", INTERRUPTED, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
    )
    assert stopped.returncode == 130, stopped.stderr
    assert "the same command goes on after it" in stopped.stderr
    assert "went on after" in run(*arguments).stdout
