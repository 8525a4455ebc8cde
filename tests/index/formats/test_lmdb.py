"""LMDB: every value is held against the cursor of the lmdb package; damages are refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

import penstock
from penstock.errors import FormatError
from tests import warm
from tests.index.formats.lmdb_writer import LEAF, OVERFLOW, Environment
from tests.slices import first

VERSIONS = {1: 0, 3: 1}
"""The lmdb package's number of a library, by the data version that it writes."""


@contextmanager
def written(path: Path, version: int = 1, **options: Any) -> Iterator[Any]:
    """An environment to fill, with the names of databases that it may have."""
    options = {"map_size": 1 << 26, "max_dbs": 4, "lib_version": VERSIONS[version]} | options
    with lmdb.open(str(path), **options) as environment:
        yield environment


def cursor(path: Path, version: int = 1, database: bytes | None = None, **options: Any) -> Any:
    """All keys and values in order of key, as the lmdb package reads them."""
    options = {"readonly": True, "lock": False, "max_dbs": 4} | options
    with lmdb.open(str(path), lib_version=VERSIONS[version], **options) as environment:
        opened = environment.open_db(database, create=False) if database else None
        with environment.begin(db=opened) as transaction:
            return list(transaction.cursor())


def read(path: Path, **options: Any) -> list[tuple[bytes, bytes]]:
    """All keys and values as penstock reads them, from the index and by a loader."""
    dataset = penstock.open(path, index="memory", **options)
    count = len(dataset)
    found = [dataset[i] for i in range(count)]
    loader = penstock.Loader(dataset, 7, shuffle="none")
    loaded = [bytes(value) for batch in loader for value in batch["data"]]
    assert loaded == [each["data"] for each in found]
    return [(each["__key__"].encode("utf-8", "surrogateescape"), each["data"]) for each in found]


def fill(environment: Any, entries: dict[bytes, bytes], database: Any = None) -> None:
    """One commit."""
    with environment.begin(write=True, db=database) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("key_bytes", first(1, [7, 8, 9]))
def test_sizes_around_thresholds(version: int, key_bytes: int, tmp_path: Path) -> None:
    """Values that just fit into a leaf or a number of pages, and those that just do not."""
    edges = (2013, 2023, 4072, 4080, 4096, 8168, 8176, 12264, 12272, 1 << 20)
    sizes = [0, 1, 2, *(edge + more for edge in edges for more in range(-5, 7))]
    random = np.random.default_rng(key_bytes)
    entries = {b"%0*d" % (key_bytes, i): random.bytes(size) for i, size in enumerate(sizes)}
    with written(tmp_path / "x", version) as environment:
        fill(environment, entries)
    assert read(tmp_path / "x") == cursor(tmp_path / "x", version) == list(entries.items())


@pytest.mark.parametrize("version", first(1, VERSIONS))
def test_history(version: int, tmp_path: Path) -> None:
    """Values that were overwritten and deleted over several commits, in random order."""
    random = np.random.default_rng(version)
    with written(tmp_path / "x", version) as environment:
        for _ in range(6):
            with environment.begin(write=True) as transaction:
                for i in random.permutation(1500)[:700].tolist():
                    size = int(random.choice([0, 30, 30, 30, 1900, 5000, 20_000]))
                    transaction.put(b"key %05d" % i, random.bytes(size))
                for i in random.permutation(1500)[:200].tolist():
                    transaction.delete(b"key %05d" % i)
    expected = cursor(tmp_path / "x", version)
    assert read(tmp_path / "x") == expected
    by_offset = read(tmp_path / "x", order="file")
    assert sorted(by_offset) == expected != by_offset


@pytest.mark.parametrize("version", VERSIONS)
def test_large_value_overwritten_in_its_transaction(version: int, tmp_path: Path) -> None:
    """A value that became smaller at once keeps its pages, be it of 0 bytes."""
    sizes = [0, 1, 100, 3000]
    with (
        written(tmp_path / "x", version) as environment,
        environment.begin(write=True) as transaction,
    ):
        for i, size in enumerate(sizes):
            transaction.put(b"%d" % i, bytes(20_000))
            transaction.put(b"%d" % i, b"v" * size)
    expected = cursor(tmp_path / "x", version)
    assert [len(value) for _, value in expected] == sizes
    assert read(tmp_path / "x") == read(tmp_path / "x", verify=True) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_named_databases(version: int, tmp_path: Path) -> None:
    """A database is chosen by name; without a name, or by a wrong one, those there are are told."""
    with written(tmp_path / "x", version) as environment:
        for name in (b"train", b"test"):
            entries = {b"%05d" % i: name * (i % 3000) for i in range(0, 4000, 37)}
            fill(environment, entries, environment.open_db(name))
    for name in ("train", "test"):
        expected = cursor(tmp_path / "x", version, name.encode())
        assert read(tmp_path / "x", database=name) == expected
    for options in ({}, {"database": "valid"}):
        with pytest.raises(penstock.errors.FormatError, match=r"'test.?', 'train.?'"):
            penstock.open(tmp_path / "x", index="memory", **options)


def test_the_main_database_beside_named_ones(tmp_path: Path) -> None:
    """The error says how many values it has and how to read them."""
    with written(tmp_path / "x", 1) as environment:
        fill(environment, {b"1": b"one"}, environment.open_db(b"train"))
        fill(environment, {b"a": b"main", b"b": b"values"})
    with pytest.raises(penstock.errors.FormatError, match='database="" reads the 2 values beside'):
        penstock.open(tmp_path / "x", index="memory")
    assert read(tmp_path / "x", database="") == [(b"a", b"main"), (b"b", b"values")]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("page_bytes", [512, 4096, 32768])
def test_pages_of_other_sizes(version: int, page_bytes: int, tmp_path: Path) -> None:
    """Pages of all sizes in all versions, also the one that no package writes any more."""
    sizes = (3, 40, 700, 0, 5000)
    entries = {b"key %03d" % i: bytes([i]) * sizes[i % 5] for i in range(60)}
    made = Environment(entries, version=version, page_bytes=page_bytes, shuffled=True)
    path = tmp_path / "x.mdb"
    path.write_bytes(made.data)
    assert read(path) == list(entries.items())
    if page_bytes == 4096 and version in VERSIONS:  # and this is how the writer itself is tested
        assert cursor(path, version, subdir=False) == list(entries.items())


def test_single_file_keys_and_exclusion(tmp_path: Path) -> None:
    """A file without a folder; keys that are no UTF-8; what counts the samples is none."""
    path = tmp_path / "x.lmdb"
    samples = {b"\xff\x00\xfe": b"a", b"plain": b"b", "käse".encode(): b"c"}
    with written(path, subdir=False) as environment:
        fill(environment, samples | {b"__len__": b"3", b"__keys__": b"k" * 9000})
    assert read(path) == sorted(samples.items())
    everything = read(path, exclude=[])
    assert everything == cursor(path, subdir=False)
    assert read(path, exclude=["plain", "__len__"]) == [
        each for each in everything if each[0] not in (b"plain", b"__len__")
    ]


def test_integer_keys(tmp_path: Path) -> None:
    """Integer keys are decimal names, in numerical order."""
    with written(tmp_path / "x") as environment:
        database = environment.open_db(b"n", integerkey=True)
        numbers = [1, 255, 256, 65536, 1 << 40]
        fill(environment, {n.to_bytes(8, "little"): b"%d" % n for n in numbers}, database)
    expected = [(b"%d" % n, b"%d" % n) for n in numbers]
    assert read(tmp_path / "x", database="n") == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_empty(version: int, tmp_path: Path) -> None:
    """Without samples, be it that all were deleted, there is no data set."""
    with written(tmp_path / "x", version) as environment:
        fill(environment, {b"a": b"b"})
        with environment.begin(write=True) as transaction:
            transaction.delete(b"a")
    with written(tmp_path / "y", version):
        pass
    for name in ("x", "y"):
        with pytest.raises(penstock.errors.FormatError, match="holds no samples"):
            penstock.open(tmp_path / name, index="memory")


def test_datum(tmp_path: Path) -> None:
    """Labels of Caffe's Datum: negative ones, and none where no value has one."""
    image = b"\x08\x01\x10\x01\x18\x03\x22\x03abc"
    minus_two = b"\x28" + b"\xfe" + b"\xff" * 8 + b"\x01"
    with written(tmp_path / "x") as environment:
        fill(environment, {b"1": image + minus_two, b"2": image, b"3": b"\x28\x07" + image})
    dataset = penstock.open(tmp_path / "x", index="memory", datum=True)
    assert [dataset[i]["label"] for i in range(3)] == [-2, 0, 7]
    assert np.asarray(dataset[0]["data"]).tobytes() == b"abc"
    with written(tmp_path / "y") as environment:
        fill(environment, {b"1": image})
    assert "label" not in penstock.open(tmp_path / "y", index="memory", datum=True)[0]
    with written(tmp_path / "y") as environment:
        fill(environment, {b"2": b"\xff\xff"})
    with pytest.raises(penstock.errors.FormatError, match="at byte .*no Caffe Datum"):
        penstock.open(tmp_path / "y", index="memory", datum=True)


def test_several_values_for_a_key(tmp_path: Path) -> None:
    """MDB_DUPSORT is refused, be it of the main database or of another."""
    with written(tmp_path / "x") as environment:
        database = environment.open_db(b"d", dupsort=True)
        fill(environment, {b"a": b"1"}, database)
    with pytest.raises(penstock.errors.FormatError, match="MDB_DUPSORT"):
        penstock.open(tmp_path / "x", index="memory", database="d")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut(version: int, tmp_path: Path) -> None:
    """Cut anywhere, a file is refused with its name and a byte, unless it still holds all."""
    with written(tmp_path / "x", version) as environment:
        fill(environment, {b"%03d" % i: b"v" * (i * 97 % 7000) for i in range(60)})
    data = (tmp_path / "x" / "data.mdb").read_bytes()
    expected = read(tmp_path / "x")
    path, refused, whole = tmp_path / "cut.mdb", 0, 0
    cuts = [*range(0, len(data), 4096), 1, 23, 24, 151, 4097, 4096 + 150, len(data) - 1]
    for size in cuts:
        path.write_bytes(data[:size])
        try:
            dataset = penstock.open(path, index="memory", format="lmdb")
        except penstock.errors.FormatError as error:
            refused += f"{path}: at byte " in str(error)
        else:
            whole += 1
            assert len(dataset) == len(expected)
            assert [dataset[i]["data"] for i in range(len(dataset))] == [v for _, v in expected]
    assert refused + whole == len(cuts)
    assert refused > len(cuts) // 2


def test_what_is_checked_without_verify(tmp_path: Path) -> None:
    """Without verify, the header of a value's page is not looked at; all else is."""
    made = Environment({b"a": b"v" * 900, b"b": b"w"})
    path = tmp_path / "x.mdb"
    path.write_bytes(made.put(made.at(OVERFLOW), "Q", 77).data)
    assert len(read(path, verify=False)) == 2
    with pytest.raises(penstock.errors.FormatError, match="carries another number"):
        penstock.open(path, index="memory", verify=True)
    path.write_bytes(made.put(made.at(LEAF), "Q", 77).data)
    with pytest.raises(penstock.errors.FormatError, match="carries the number 77"):
        penstock.open(path, index="memory", verify=False)


WRITER = """
import lmdb, sys
with lmdb.open(sys.argv[1], map_size=1 << 26) as environment:
    for _ in range(3):
        with environment.begin(write=True) as transaction:
            transaction.put(b"00001", b"other")
"""


def commit(path: Path) -> None:
    """Another process commits."""
    warm.run([sys.executable, "-c", WRITER, str(path)], check=True, timeout=240)


def filled(path: Path) -> Path:
    """An environment of 2,000 samples."""
    with written(path) as environment:
        fill(environment, {b"%05d" % i: b"v" * 300 for i in range(2000)})
    return path


def test_a_commit_makes_an_index_stale(tmp_path: Path) -> None:
    """After a commit of another process a saved index is refused, or made again by `auto`."""
    path, saved = filled(tmp_path / "x"), tmp_path / "saved"
    dataset = penstock.open(path)
    dataset.index.save(saved)
    assert penstock.open(path, index=saved).fingerprint == dataset.fingerprint
    commit(path)
    with pytest.raises(penstock.errors.SidecarError, match=r"penstock index --force"):
        penstock.open(path, index=saved)
    again = penstock.open(path, index="auto")
    assert again[1]["data"] == b"other"
    with pytest.raises(penstock.errors.ChangedError):
        _ = dataset[1]


def test_a_commit_while_a_loader_runs(tmp_path: Path) -> None:
    """A loader raises ChangedError for what it reads after a commit, in the next epoch at last."""
    path = filled(tmp_path / "x")
    loader = penstock.Loader(penstock.open(path, index="memory"), 8, seed=1)
    next(batches := iter(loader))
    commit(path)
    with pytest.raises(penstock.errors.ChangedError, match="x/data.mdb"):
        for _ in (*batches, *loader):
            pass


# -- text in images --------------------------------------------------------------------------------


def write_pairs(folder: Path, items: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=1 << 24) as store, store.begin(write=True) as transaction:
        for key, value in items.items():
            transaction.put(key.encode(), value)
    return folder


PAIRS = {f"{k}-{n:09}": f"{k} {n} é".encode() for n in (1, 2, 3) for k in ("image", "label")}


def test_images_and_their_texts_are_pairs(tmp_path: Path) -> None:
    """With a counter, image-%09d and label-%09d are two fields of a sample; the counter is none."""
    for name in ("a", "b"):
        write_pairs(tmp_path / "data" / name, PAIRS | {"num-samples": b"3"})
    dataset = penstock.open(f"{tmp_path}/data/*", index="memory")
    read = [(s["__key__"], s["image"].decode(), s["label"]) for s in dataset]
    expected = [(f"image-{n:09}", f"image {n} é", f"label {n} é") for n in (1, 2, 3)]
    assert read == expected * 2
    with penstock.Loader(dataset, batch_size=6, seed=1) as loader:
        batch = next(iter(loader))
    assert sorted(batch["label"]) == sorted(label for _, _, label in read)
    plain = penstock.open(tmp_path / "data/a", index="memory", exclude=["num-samples"])
    assert len(plain) == 6


@pytest.mark.parametrize(
    "odd",
    [
        {"image-000000009": b"x"},
        {"label-000000009": b"x"},
        {"image-000000009": b"x", "label-000000008": b"x"},
        {"wh-000000001": b"x"},
        {"image-10": b"x", "label-10": b"x"},
    ],
)
def test_a_counter_beside_other_keys_asks(tmp_path: Path, odd: dict[str, bytes]) -> None:
    """An image without a text, and keys of other kinds, are no pairs: nothing is guessed."""
    folder = write_pairs(tmp_path / "data", PAIRS | odd | {"num-samples": b"3"})
    with pytest.raises(FormatError, match=r"exclude=\['num-samples'\]"):
        penstock.open(folder, index="memory")
    assert len(penstock.open(folder, index="memory", exclude=["num-samples"])) == 6 + len(odd)
    names = write_pairs(tmp_path / "names", {"my-num-samples": b"1", "num-samples-2": b"2"})
    assert len(penstock.open(names, index="memory")) == 2
