"""LMDB: whatever its own library writes, every damage, several places, writers at work."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import _core
from penstock.engine.store import Posix
from penstock.errors import (
    ChangedError,
    FormatError,
    MissingError,
    PenstockError,
    SidecarError,
    StorageError,
    UsageError,
)
from penstock.index.formats import lmdb as format_lmdb
from penstock.index.formats.shards import Location, Scan
from tests import warm
from tests.slices import first

VERSIONS = [0, 1]
"""LMDB 0.9 writes data version 1, LMDB 1.0 data version 3."""
HEADER = {1: 16, 2: 24, 3: 24}
PAGE = os.sysconf("SC_PAGESIZE")
THRESHOLDS = [0, 1, 2, 2015, 2016, 2017, 2018, 2019, 2020, 2021, 2022, 2023, 2024] + [
    pages * PAGE - header + more
    for pages in (1, 2, 3)
    for header in (16, 24)
    for more in (-1, 0, 1)
]


def environment(path: Path, lib: int = 0, **options: object) -> lmdb.Environment:
    """An environment to write to."""
    return lmdb.open(str(path), map_size=1 << 28, lib_version=lib, sync=False, **options)


def oracle(path: Path, lib: int = 0, name: bytes | None = None) -> list[tuple[bytes, bytes]]:
    """Read the records by LMDB's own cursor."""
    with lmdb.open(
        str(path), readonly=True, lock=False, max_dbs=9, lib_version=lib, subdir=path.is_dir()
    ) as env:
        database = None if name is None else env.open_db(name, create=False)
        with env.begin() as transaction:
            return list(transaction.cursor(db=database))


def opened(path: Path | list[Path], **options: object) -> penstock.Dataset:
    """A data set without a saved index."""
    return penstock.open(path, index="memory", **options)


def assert_same(dataset: penstock.Dataset, expected: Sequence[tuple[bytes, bytes]]) -> None:
    """Keys and values are those of the oracle, in its order."""
    assert len(dataset) == len(expected)
    for sample, (key, value) in zip(dataset, expected, strict=True):
        assert os.fsencode(sample["__key__"]) == key
        assert sample["data"] == value


def data_of(path: Path) -> Path:
    """The file of an environment."""
    return path / "data.mdb" if path.is_dir() else path


def filled(path: Path, count: int = 3000, lib: int = 0, **options: object) -> Path:
    """An environment of small values and large ones, in a tree of three levels."""
    random = np.random.default_rng(count)
    with environment(path, lib, **options) as env, env.begin(write=True) as transaction:
        for i in range(count):
            size = 3000 if i % 100 == 50 else int(random.integers(0, 300))
            transaction.put(b"%08d" % i, random.bytes(size))
    return path


KEYS = st.binary(min_size=1, max_size=40)
SIZES = st.sampled_from(THRESHOLDS) | st.integers(0, 9000)
WRITES = st.lists(
    st.lists(st.tuples(KEYS, st.none() | SIZES), min_size=1, max_size=30), min_size=1, max_size=5
)


@given(commits=WRITES, lib=st.sampled_from(VERSIONS), subdir=st.booleans())
def test_whatever_was_written(commits, lib, subdir, tmp_path_factory):
    """Writes, overwrites and deletes of any sizes in several commits: what LMDB finds is found."""
    path = tmp_path_factory.mktemp("lmdb") / "env"
    with environment(path, lib, subdir=subdir) as env:
        for number, commit in enumerate(commits):
            with env.begin(write=True) as transaction:
                for key, size in commit:
                    if size is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, bytes([number + 1]) * size)
    expected = oracle(path, lib)
    if expected:
        assert_same(opened(path), expected)
        assert_same(opened(path, verify=False), expected)
        file_order = opened(path, order="file")
        assert {(os.fsencode(s["__key__"]), s["data"]) for s in file_order} == set(expected)
        offsets = file_order.index.extents(np.arange(len(expected))).offset
        assert (np.diff(offsets) > 0).all()
    else:
        with pytest.raises(FormatError, match="no samples"):
            opened(path)


@pytest.mark.parametrize("lib", VERSIONS)
@pytest.mark.parametrize(
    "flags",
    [
        {"dupsort": True},
        {"dupsort": True, "dupfixed": True},
        {"dupsort": True, "dupfixed": True, "integerdup": True},
    ],
    ids=lambda flags: "+".join(flags),
)
def test_several_values_for_a_key(lib, flags, tmp_path):
    """Databases with several values for a key are refused, whichever kind."""
    with environment(tmp_path / "env", lib, max_dbs=9) as env:
        database = env.open_db(b"many", **flags)
        with env.begin(write=True) as transaction:
            for i in range(900):
                transaction.put(b"k", struct.pack("<I", i), db=database)
    with pytest.raises(FormatError, match="MDB_DUPSORT"):
        opened(tmp_path / "env", database="many")


@pytest.mark.parametrize("lib", first(1, VERSIONS))
def test_other_orders_of_keys(lib, tmp_path):
    """Reversed keys and integers are in LMDB's order; integers have decimal names."""
    with environment(tmp_path / "env", lib, max_dbs=9) as env:
        reverse = env.open_db(b"reverse", reverse_key=True)
        integer = env.open_db(b"integer", integerkey=True)
        with env.begin(write=True) as transaction:
            for i in range(700):
                transaction.put(b"%d" % i, b"r%d" % i, db=reverse)
                transaction.put(struct.pack("<Q", i * 7), b"i%d" % i, db=integer)
    assert_same(
        opened(tmp_path / "env", database="reverse"), oracle(tmp_path / "env", lib, b"reverse")
    )
    numbers = opened(tmp_path / "env", database="integer")
    assert [sample["__key__"] for sample in numbers] == [str(i * 7) for i in range(700)]
    assert [sample["data"] for sample in numbers] == [b"i%d" % i for i in range(700)]


# -- places ----------------------------------------------------------------------------------------


def test_places(tmp_path):
    """A folder, its file, a file of another name; several of them, named or by patterns."""
    for number in range(3):
        filled(tmp_path / f"part{number}", 100 + number)
        filled(tmp_path / f"single{number}.db", 50 + number, subdir=False)
    part, single = (tmp_path / "part1", tmp_path / "single1.db")
    assert len(opened(part)) == len(opened(part / "data.mdb")) == 101
    assert len(opened(single)) == 51
    assert len(opened([part, single])) == 152
    for pattern in ("part*", "part{0..2}", "part*/data.mdb", "part[012]"):
        dataset = opened(tmp_path / pattern)
        assert len(dataset) == 303, pattern
        expected = [pair for number in range(3) for pair in oracle(tmp_path / f"part{number}")]
        assert_same(dataset, expected)
    assert len(opened(tmp_path / "single*.db")) == 153
    with pytest.raises(MissingError, match="part7"):
        opened([part, tmp_path / "part7"])
    with pytest.raises(MissingError):
        opened(tmp_path / "nothing*", format="lmdb")
    with pytest.raises(UsageError, match="twice"):
        opened([part, part])


def test_readers_of_the_folder_do_not_make_the_index_stale(tmp_path):
    """LMDB makes a lock file beside the data: that changes the folder, and no sample."""
    path = filled(tmp_path / "env")
    (path / "lock.mdb").unlink()
    os.utime(path / "data.mdb", ns=(10**18, 10**18))
    first = penstock.open(path)
    made_ns = os.stat(first.sidecar).st_mtime_ns
    with lmdb.open(str(path), readonly=True):
        assert (path / "lock.mdb").exists()
    assert penstock.open(path).sidecar == first.sidecar
    assert os.stat(first.sidecar).st_mtime_ns == made_ns


def test_options(tmp_path):
    """A wrong option is a UsageError that names it."""
    path = filled(tmp_path / "env", 20)
    for name, value in (
        ("order", "size"),
        ("datum", "yes"),
        ("verify", 3),
        ("database", 5),
        ("exclude", 7),
        ("exclude", [1]),
    ):
        with pytest.raises(UsageError, match=name):
            opened(path, **{name: value})


# -- Caffe -----------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """A number as protobuf has it."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def datum(data: bytes, label: int | None, shape: Sequence[int], encoded: bool = False) -> bytes:
    """Caffe's message around an image."""
    numbers = b"".join(bytes([8 * i]) + varint(n) for i, n in enumerate(shape, 1))
    tail = b"" if label is None else b"\x28" + varint(label)
    return numbers + b"\x22" + varint(len(data)) + data + tail + b"\x38\x01" * encoded


@pytest.mark.parametrize("lib", VERSIONS)
@pytest.mark.parametrize("size", first(1, [30, 4, 80]))
def test_raw_images(lib, size, tmp_path):
    """Images of one size are arrays with their labels, whether they lie in leaves or not."""
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (300, 3, size, size), np.uint8)
    labels = random.integers(-5, 1000, 300).tolist()
    with environment(tmp_path / "env", lib) as env, env.begin(write=True) as transaction:
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            value = datum(image.tobytes(), label, image.shape)
            transaction.put(b"%08d_x.jpg" % i, value)
    dataset = opened(tmp_path / "env", datum=True)
    assert dataset.fields[0].shape == (3, size, size)
    for number, sample in enumerate(dataset):
        assert (sample["data"] == images[number]).all()
        assert sample["label"] == labels[number]
    by_place = opened(tmp_path / "env", datum=True, order="file")
    for sample in by_place:
        number = int(sample["__key__"][:8])
        assert (sample["data"] == images[number]).all()
        assert sample["label"] == labels[number]


def test_values_that_are_no_datum(tmp_path):
    """They are refused, with the place and what is wrong."""
    for value, reason in (
        (b"", "no field data"),
        (b"\x22\x7fshort", "longer than the value"),
        (b"\x35" + bytes(4), "float_data"),
        (b"\x80" * 20, "cut off"),
        (b"\x0f", "no known kind"),
    ):
        path = tmp_path / reason
        with environment(path) as env, env.begin(write=True) as transaction:
            transaction.put(b"k", value)
        with pytest.raises(FormatError, match=f"at byte .*no Caffe Datum.*{reason}"):
            opened(path, datum=True)


# -- damage ----------------------------------------------------------------------------------------


class Image:
    """The bytes of an environment, and where things are in it."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, bytearray(path.read_bytes())
        self.version = 1 if self.data[16:20] == b"\xde\xc0\xef\xbe" else self.data[28]
        self.header = HEADER[self.version]
        txnids = [self.u64(page * PAGE + self.header + 128) for page in (0, 1)]
        self.main = (txnids[1] > txnids[0]) * PAGE + self.header + 72
        self.root = self.u64(self.main + 40) * PAGE

    def u16(self, at: int) -> int:
        return int.from_bytes(self.data[at : at + 2], "little")

    def u64(self, at: int) -> int:
        return int.from_bytes(self.data[at : at + 8], "little")

    def node(self, page: int, i: int) -> int:
        """The place of node i of a page."""
        base = 0 if self.version == 1 else self.header
        return page + self.u16(page + self.header + 2 * i) + base

    def leaf(self) -> int:
        """The first leaf."""
        page = self.root
        while self.u16(page + self.header - 6) & 1:
            page = (self.u64(self.node(page, 0)) & 0xFFFFFFFF) * PAGE
        return page

    def big(self) -> int:
        """The first node whose value has pages of its own."""
        leaf, i = self.leaf(), 0
        while not self.u16(self.node(leaf, i) + 4) & 1:
            i += 1
            if i == (self.u16(leaf + self.header - 4)) // 2 - 8:
                leaf, i = leaf + PAGE, 0
        return self.node(leaf, i)

    def write(self, at: int, value: int, width: int = 2) -> None:
        self.data[at : at + width] = value.to_bytes(width, "little")
        self.path.write_bytes(self.data)


def damages(image: Image) -> Iterator[tuple[int, int, int, str]]:
    """Each damage as place, value, width and the reason that must be told."""
    h, main, root, leaf = image.header, image.main, image.root, image.leaf()
    yield h, 0, 4, "no magic|no format"
    yield PAGE + h, 0, 4, "meta page 1 has no magic"
    yield PAGE + h + 24, 8192, 4, "pages of 8192"
    yield PAGE + h + 4, 9, 4, "data version 9"
    yield h - 6, 0, 2, "not marked as a meta page"
    yield h + 4, 999, 4, "developer build"
    yield h, 0xDEC0EFBE, 4, "big-endian"
    yield main + 4, 0x10, 2, "flags 16"
    yield main + 6, 40, 2, "depth 40"
    yield main + 6, 1, 2, "type 1 where 2 is due"
    yield main + 32, 7, 8, "7 entries"
    yield main + 8, 77, 8, "77 branch pages"
    yield main + 16, 77, 8, "77 leaf pages"
    yield main + 24, 77, 8, "77 overflow pages"
    yield root + h - 6, 0, 2, "type 0"
    yield root + h - 4, 65535, 2, "bounds of free space"
    yield leaf, 3, 8, "carries the number 3"
    yield leaf + h, 5000, 2, "points to a node"
    yield leaf + h, 4095, 2, "points to a node"
    yield leaf + h, 4, 2, "points to a node"
    yield leaf + h - 6, 0x22, 2, "type 34"
    yield image.node(leaf, 1) + 6, 60000, 2, "key of 60000"
    yield image.node(leaf, 1) + 4, 16, 2, "unknown flags"
    yield image.node(root, 0), 0x7FFFFFFF, 4, "the child 2147483647"
    yield image.node(root, 0), root // PAGE, 4, "another page has as well"
    sibling = image.u64(image.node(root, 1)) & 0xFFFFFFFF
    yield image.node(root, 0), sibling, 4, "another page has as well"
    big = image.big()
    payload = big + 8 + (image.u16(big + 6) + image.version // 3) // 2 * 2
    run = image.u64(payload) * PAGE
    yield big, 0xFFFFFFFF, 4, "4294967295 bytes"
    yield payload, 1 << 40, 8, "beyond the last page"
    yield payload, image.leaf() // PAGE, 8, "something else has as well|another page has as well"
    yield run, 99, 8, "carries another number"
    yield run + h - 6, 2, 2, "no overflow page"
    yield run + h - 4, 0, 4, "fewer pages"


@pytest.mark.parametrize("lib", VERSIONS)
def test_every_damage_is_refused(lib, tmp_path):
    """Each change that was constructed is told, with the file, the byte and the reason."""
    path = data_of(filled(tmp_path / "env", lib=lib))
    whole = path.read_bytes()
    count = 0
    for at, value, width, reason in damages(Image(path)):
        path.write_bytes(whole)
        Image(path).write(at, value, width)
        with pytest.raises(FormatError, match=reason) as caught:
            opened(path, format="lmdb")
        assert str(path) in str(caught.value)
        assert "at byte" in str(caught.value)
        count += 1
    assert count == 32
    path.write_bytes(whole)
    assert len(opened(path)) == 3000


@pytest.mark.long
@pytest.mark.parametrize("lib", first(1, VERSIONS))
def test_cut_and_extended(lib, tmp_path):
    """A file cut within its records is refused; zeros after its end mean nothing."""
    path = data_of(filled(tmp_path / "env", lib=lib))
    expected, whole = oracle(path.parent, lib), path.read_bytes()
    for size in (0, 1, 20, 100, PAGE, PAGE + 100, 2 * PAGE, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=str(path)):
            opened(path.parent)
    path.write_bytes(whole + bytes(1 << 20))
    assert_same(opened(path.parent), expected)


def test_one_transaction_after_the_other_meta_is_damaged(tmp_path):
    """One meta page that cannot be read is an error, even where the other one is live."""
    path = data_of(filled(tmp_path / "env"))
    image = Image(path)
    dead = PAGE - (image.main - image.header - 72)
    image.write(dead + image.header, 0, 4)
    with pytest.raises(FormatError, match="meta page|no magic"):
        opened(path, format="lmdb")


def test_encrypted(tmp_path):
    """An encrypted environment of LMDB 1.0 is refused by name."""
    path = data_of(filled(tmp_path / "env", lib=1))
    Image(path).write(24 + 28, 0x2008)
    with pytest.raises(FormatError, match="encrypted"):
        opened(path)


def test_failing_reads(tmp_path):
    """An error of the system while walking is a StorageError, or the reader's own error."""
    path = data_of(filled(tmp_path / "env"))
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            _core.walk_lmdb(folder, None, 1 << 20)
    finally:
        os.close(folder)

    def fails(offset: int, length: int) -> bytes:
        if offset:
            raise StorageError("the service is away")
        return path.read_bytes()[:length]

    with pytest.raises(StorageError, match="away"):
        _core.walk_lmdb(-1, fails, path.stat().st_size)


def test_read_by_a_function(tmp_path):
    """A store without descriptors gives the same, in reads of many pages each."""
    path = data_of(filled(tmp_path / "env"))
    data, calls = path.read_bytes(), []

    def fetch(offset: int, length: int) -> bytes:
        calls.append((offset, length))
        return data[offset : offset + length]

    by_function, flaw = _core.walk_lmdb(-1, fetch, len(data), verify=True)
    assert flaw is None
    file = os.open(path, os.O_RDONLY)
    try:
        by_file, _ = _core.walk_lmdb(file, None, len(data))
    finally:
        os.close(file)
    for name in ("keys", "ends", "offset", "length"):
        assert (by_function[name] == by_file[name]).all()
    assert len(calls) < 60
    assert max(length for _, length in calls) <= 4 << 20


# -- writers ---------------------------------------------------------------------------------------

WRITER = """
import lmdb, sys
with lmdb.open(sys.argv[1], map_size=1 << 28) as env:
    for line in sys.stdin:
        with env.begin(write=True) as transaction:
            for i in range(500):
                transaction.put(b"%08d" % i, line.encode() * 400)
        print(env.info()["last_txnid"], flush=True)
"""


def test_a_writer_in_another_process(tmp_path):
    """After each commit of a real writer: the index is stale, a reader told; never wrong bytes."""
    path = tmp_path / "env"
    environment(path).close()
    writer = warm.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        before: penstock.Dataset | None = None
        saved = tmp_path / "saved.penstock"
        for txnid in range(1, 6):
            writer.stdin.write(f"{txnid}\n")
            writer.stdin.flush()
            assert int(writer.stdout.readline()) == txnid
            if before is not None:
                with pytest.raises(ChangedError):
                    before[100]
                with pytest.raises(ChangedError):
                    list(penstock.Loader(before, 50, rank=0, world_size=1))
                with pytest.raises(SidecarError):
                    penstock.open(path, index=saved)
            before = opened(path)
            before.index.save(saved)
            assert before.index.stamp == [[txnid, PAGE, 1]]
            for number in (0, 100, 499):
                assert before[number]["data"] == b"%d\n" % txnid * 400
            assert penstock.open(path, index=saved).index.stamp == [[txnid, PAGE, 1]]
    finally:
        writer.stdin.close()
        assert writer.wait(60) == 0


def test_a_commit_that_neither_size_nor_time_shows(tmp_path):
    """The transaction's number does: the saved index is refused, and made anew by itself."""
    path = filled(tmp_path / "env", 300)
    first = opened(path).index
    with environment(path) as env, env.begin(write=True) as transaction:
        transaction.put(b"%08d" % 7, b"new")
    os.utime(data_of(path), ns=(10**18, 10**18))
    now = Posix(str(path)).stat(["data.mdb"])
    saved = Path(f"{path}.penstock")
    replace(first, files=now, sources=now, fingerprint="").save(saved)
    with pytest.raises(SidecarError, match="its files say"):
        penstock.open(path, index=saved)
    again = penstock.open(path)
    assert again[7]["data"] == b"new"
    assert again.index.stamp[0][0] == first.stamp[0][0] + 1
    assert penstock.open(path, index=saved).index.stamp == again.index.stamp


def test_a_commit_while_indexing(tmp_path):
    """A commit between the walk and its end is ChangedError, not a mixture of two states."""
    path = data_of(filled(tmp_path / "env", 300))

    class Committed:
        """The file as it is, and as it is after a commit once it was walked."""

        def __init__(self, source: object) -> None:
            self.source, self.path, self.size = source, source.path, source.size
            self.local = source.local

        def read(self, offset: int, length: int) -> bytes:
            return self.source.read(offset, length)

        def walk(self, container: str, **options: object) -> Mapping[str, object]:
            found = self.source.walk(container, **options)
            with environment(path.parent) as env, env.begin(write=True) as transaction:
                transaction.put(b"%08d" % 7, b"new")
            return found

    class Store(Posix):
        """A store whose files are committed to."""

        def parse(self, files, parse, progress=None):
            return super().parse(files, lambda i, source: parse(i, Committed(source)), progress)

    store = Store(str(path.parent))
    place = Location("folder", "", str(path.parent))
    with pytest.raises(ChangedError):
        format_lmdb.build(Scan(store, place))


def test_nothing_is_unpickled(tmp_path):
    """Values are bytes, whatever they hold."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    with environment(tmp_path / "env") as env, env.begin(write=True) as transaction:
        transaction.put(b"0", pickle.dumps(Trap()))
        transaction.put(b"__keys__", pickle.dumps(Trap()))
    dataset = opened(tmp_path / "env")
    assert dataset[0]["data"] == pickle.dumps(Trap())
    assert not (tmp_path / "sprung").exists()


@given(
    patches=st.lists(
        st.tuples(st.integers(0, 60 * PAGE), st.integers(0, (1 << 64) - 1), st.integers(1, 8)),
        min_size=1,
        max_size=4,
    ),
    lib=st.sampled_from(VERSIONS),
)
def test_random_damage(patches, lib, tmp_path_factory):
    """Any words changed anywhere: an error of penstock's, or as many samples as before."""
    path = data_of(filled(tmp_path_factory.mktemp("lmdb") / "env", 400, lib))
    data = bytearray(path.read_bytes())
    for at, value, width in patches:
        at %= len(data) - 8
        data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    path.write_bytes(data)
    try:
        dataset = opened(path, format="lmdb")
    except PenstockError:
        return
    assert len(dataset) <= 400
    for number in range(0, len(dataset), 37):
        dataset[number]
