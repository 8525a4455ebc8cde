"""The index: layouts, identity, and the sidecar that holds it."""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import struct
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock.errors import SidecarError, UsageError
from penstock.extent import Files, joined
from penstock.index import sidecar
from penstock.index.fields import Field
from penstock.index.layout import Fixed, RowTable
from penstock.index.saved_index import flag_if_racy
from penstock.index.table import Index, find_outside

RAW = np.dtype(np.uint8)


def files_of(sizes: list[int], root: str = "/data") -> Files:
    """Files f0, f1, ... of the given sizes."""
    size = np.array(sizes, np.int64)
    return Files.of(root, [f"d/f{i}" for i in range(len(sizes))], size, size * 1000 + 7)


def fixed_index(counts: list[int], base: int, record_bytes: int) -> Index:
    """Records in several files, each with its own number of them."""
    files = files_of([base + n * record_bytes for n in counts])
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    layout = Fixed(first, np.full(len(counts), base, np.int64), record_bytes)
    fields = (Field("data", RAW, (record_bytes,)),)
    return Index("records", files, fields, (layout,), files)


def tree_index(sizes: list[int]) -> Index:
    """A file for each sample, with labels."""
    files = files_of(sizes)
    labels = np.arange(len(sizes), dtype=np.int64) % 2
    folders = Files.of("/data", ["", "d"], np.full(2, -1, np.int64), np.array([5, 6], np.int64))
    table = RowTable(None, None, files.size)
    fields = (Field("data", RAW, None),)
    return Index("tree", files, fields, (table,), folders, ("no", "yes"), labels)


def columns_index() -> Index:
    """Two fields with explicit columns, as a container of several parts would have."""
    files = files_of([100, 200])
    image = RowTable(
        np.array([0, 0, 1], np.uint32), np.array([0, 50, 10], np.int64), np.array([50, 50, 190])
    )
    text = RowTable(np.array([1, 1, 0], np.uint32), None, np.array([1, 2, 3]))
    fields = (Field("image", RAW, None), Field("text", RAW, None))
    return Index("pairs", files, fields, (image, text), files)


ALL = [
    fixed_index([7], 0, 4),
    fixed_index([3, 0, 5], 16, 10),
    tree_index([3, 0, 9]),
    columns_index(),
]


def assert_equal(one: Index, two: Index) -> None:
    """Every answer of both is the same."""
    every = np.arange(one.count)
    assert (one.format, one.count, one.fields, one.classes) == (
        two.format,
        two.count,
        two.fields,
        two.classes,
    )
    assert one.fingerprint == two.fingerprint
    assert dict(one.options) == dict(two.options)
    for field in range(len(one.fields)):
        for a, b in zip(one.extents(every, field), two.extents(every, field), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    for mine, other in ((one.files, two.files), (one.sources, two.sources)):
        assert [mine.name(i) for i in range(len(mine))] == [
            other.name(i) for i in range(len(other))
        ]
        np.testing.assert_array_equal(mine.size, other.size)
        np.testing.assert_array_equal(mine.mtime_ns, other.mtime_ns)
    labels = one.labels(every), two.labels(every)
    assert (labels[0] is None) == (labels[1] is None)
    if labels[0] is not None:
        np.testing.assert_array_equal(*labels)


# -- samples ---------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any),
    st.integers(0, 100),
    st.integers(1, 50),
    st.randoms(),
)
def test_extents_of_fixed_records_are_those_of_a_plain_listing(counts, base, record_bytes, random):
    """Every record of every file, in any order of asking, lies where counting puts it."""
    index = fixed_index(counts, base, record_bytes)
    listing = [
        (file, base + number * record_bytes, record_bytes)
        for file, count in enumerate(counts)
        for number in range(count)
    ]
    asked = list(range(len(listing)))
    random.shuffle(asked)
    extents = index.extents(np.array(asked, np.uint64))
    assert list(zip(*(column.tolist() for column in extents), strict=True)) == [
        listing[sample] for sample in asked
    ]
    assert [column.dtype for column in extents] == [np.uint32, np.int64, np.int64]
    assert index.total_bytes == sum(counts) * record_bytes


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30))
def test_extents_of_a_tree_are_whole_files(sizes):
    """A sample of a folder of files is its file from the first byte to the last."""
    index = tree_index(sizes)
    extents = index.extents(np.arange(len(sizes), dtype=np.uint64))
    assert extents.file.tolist() == list(range(len(sizes)))
    assert not extents.offset.any()
    assert extents.length.tolist() == index.lengths(np.arange(len(sizes))).tolist() == sizes
    assert index.mean_bytes == sum(sizes) / len(sizes)


def test_columns_are_flat_beyond_a_window():
    """A request larger than the shared constant block has its own columns, of the same values."""
    index = fixed_index([limits.window_samples_max + 5], 3, 2)
    extents = index.extents(np.arange(index.count))
    assert len(extents.length) == index.count
    assert (extents.length == 2).all()
    assert not extents.file.any()


@pytest.mark.parametrize("index", ALL, ids=lambda index: index.format)
@pytest.mark.parametrize("wrong", [[-1], [10**12], [0, 1 << 62]])
def test_a_sample_that_does_not_exist_is_an_error(index, wrong):
    """Numbers below 0 and from the count on are refused, wherever they stand."""
    with pytest.raises(UsageError, match="does not exist: there are"):
        index.extents(np.array(wrong))


@pytest.mark.parametrize("samples", [np.array([0.0]), np.array([[0]]), np.array(["0"])])
def test_samples_are_one_row_of_integers(samples):
    """Floats, text and matrices are refused rather than converted."""
    with pytest.raises(UsageError, match="use a row of integers"):
        ALL[0].extents(samples)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.int64, np.uint64])
def test_any_integers_name_samples(dtype):
    """The width of the sample numbers makes no difference."""
    for index in ALL:
        extents = index.extents(np.array([2, 0], dtype))
        assert extents.length.tolist() == index.lengths(np.array([2, 0])).tolist()


def test_no_samples_have_no_extents():
    """An empty request has an empty answer of the right types."""
    for index in ALL:
        extents = index.extents(np.zeros(0, np.uint64))
        assert [column.dtype for column in extents] == [np.uint32, np.int64, np.int64]
        assert [len(column) for column in extents] == [0, 0, 0]


def test_keys_and_places_name_samples():
    """Keys are paths, numbered where a file has several samples; places are for messages."""
    records, tree = ALL[1], ALL[2]
    assert [records.key(i) for i in (0, 2, 3)] == ["d/f0#0", "d/f0#2", "d/f2#0"]
    assert tree.key(2) == "d/f2"
    assert ALL[3].key(1) == "d/f0#1"
    assert records.where(3) == "/data/d/f2 at byte 16 (10 bytes)"


def test_a_billion_records_need_no_memory_of_their_own():
    """The index of 10^9 records holds a few numbers."""
    index = fixed_index([10**9], 0, 512)
    assert sum(column.nbytes for column in index.layouts[0].sections("", index.files).values()) < 64
    assert index.extents(np.array([10**9 - 1])).offset[0] == (10**9 - 1) * 512


# -- identity --------------------------------------------------------------------------------------


def test_the_fingerprint_is_of_the_data_not_of_its_place_or_time():
    """Another root and other times leave the fingerprint as it is."""
    index = ALL[2]
    moved = replace(index.files, root="/elsewhere", mtime_ns=index.files.mtime_ns + 1)
    again = replace(index, files=moved, racy=True, fingerprint="")
    assert again.fingerprint == index.fingerprint


def test_the_fingerprint_changes_with_the_data():
    """Names, sizes, labels, classes, geometry and format each change it."""
    tree, fixed = ALL[2], ALL[0]
    renamed = Files.of("/data", ["d/f0", "d/f1", "d/f9"], tree.files.size, tree.files.mtime_ns)
    changes = [
        replace(tree, fingerprint="", files=renamed),
        replace(tree, fingerprint="", files=replace(tree.files, size=tree.files.size + 1)),
        replace(tree, fingerprint="", label_column=1 - tree.label_column),
        replace(tree, fingerprint="", label_column=None),
        replace(tree, fingerprint="", classes=("yes", "no")),
        replace(tree, fingerprint="", format="listing"),
        replace(fixed, fingerprint="", fields=(Field("data", np.dtype(np.int32), ()),)),
        fixed_index([7], 1, 4),
        fixed_index([14], 0, 2),
        fixed_index([3, 4], 0, 4),
    ]
    prints = [index.fingerprint for index in [*ALL, *changes]]
    assert len(set(prints)) == len(prints)


def test_an_index_made_shortly_after_a_change_is_racy():
    """Close in time, either way, counts; whole seconds need a wider margin."""
    index = fixed_index([7], 0, 4)
    fine = replace(index, sources=replace(index.files, mtime_ns=np.array([10**18 + 123])))
    assert flag_if_racy(fine, 10**18).racy
    assert flag_if_racy(fine, 10**18 + 40_000_000).racy
    assert not flag_if_racy(fine, 10**18 + 60_000_000).racy
    coarse = replace(index, sources=replace(index.files, mtime_ns=np.array([10**18])))
    assert flag_if_racy(coarse, 10**18 + 1_500_000_000).racy
    assert not flag_if_racy(coarse, 10**18 + 2_500_000_000).racy


# -- sidecar ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", ALL, ids=lambda index: index.format)
def test_a_saved_index_is_loaded_as_it_was(index, tmp_path):
    """Save and load give the same answers, also through pickle."""
    path = tmp_path / "x.penstock"
    replace(index, options={"record_bytes": 4}).save(path)
    loaded = Index.load(path)
    assert_equal(replace(index, options={"record_bytes": 4}), loaded)
    assert_equal(loaded, pickle.loads(pickle.dumps(loaded)))
    assert Index.load(path, root="/moved").files.path(0) == "/moved/d/f0"
    assert (loaded.sources is loaded.files) == (index.sources is index.files)


def test_names_that_are_no_text_survive(tmp_path):
    """File and class names are bytes to the system, and may be no UTF-8."""
    names = [os.fsdecode(b"d\xff\xfe"), "weiß\n"]
    files = Files.of("/", names, np.zeros(2, np.int64), np.zeros(2, np.int64))
    index = replace(tree_index([0, 0]), files=files, classes=tuple(names), fingerprint="")
    index = replace(index, layouts=(RowTable(None, None, files.size),))
    index.save(tmp_path / "x")
    loaded = Index.load(tmp_path / "x")
    assert loaded.classes == tuple(names)
    assert [loaded.key(0), loaded.key(1)] == names


def test_a_sidecar_cut_at_any_byte_is_an_error(tmp_path):
    """Every truncation is noticed, with the path and the remedy in the message."""
    path = tmp_path / "x.penstock"
    ALL[2].save(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SidecarError, match=r"x\.penstock.*penstock index --force"):
            Index.load(path)


@pytest.mark.parametrize("index", ALL, ids=lambda index: index.format)
@given(data=st.data())
def test_a_damaged_sidecar_is_an_error_or_harmless(index, data, tmp_path_factory):
    """Random bytes overwritten, inserted or removed: SidecarError, or the same index."""
    path = tmp_path_factory.mktemp("damage") / "x.penstock"
    index.save(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        change = data.draw(st.binary(min_size=1, max_size=9))
        kind = data.draw(st.sampled_from(["overwrite", "insert", "remove"]))
        end = at if kind == "insert" else at + len(change)
        content[at:end] = b"" if kind == "remove" else change
    path.write_bytes(content)
    try:
        loaded = Index.load(path)
    except SidecarError:
        return
    assert_equal(index, loaded)


def rewritten(path: Path, change) -> None:
    """The sidecar with a changed header, and a checksum that fits."""
    content = path.read_bytes()
    length = struct.unpack_from("<Q", content, 16)[0]
    header = json.loads(content[32 : 32 + length])
    start = -(-(32 + length) // 64) * 64
    body = content[start:]
    header = change(header)
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = -(-(32 + len(text)) // 64) * 64
    tail = struct.pack("<QQ", len(text), start + len(body)) + text
    prelude = struct.pack("<8sII", sidecar.MAGIC, sidecar.VERSION, zlib.crc32(tail)) + tail
    path.write_bytes(prelude.ljust(start, b"\0") + body)


LIES = {
    "no header": lambda h: b"not json",
    "a list": lambda h: [1],
    "deep": lambda h: b"[" * 100_000,
    "no count": lambda h: {k: v for k, v in h.items() if k != "count"},
    "count": lambda h: {**h, "count": h["count"] + 1},
    "count of another kind": lambda h: {**h, "count": "many"},
    "no sections": lambda h: {**h, "sections": None},
    "section outside": lambda h: {
        **h,
        "sections": [[*s[:2], s[2] + 6400, *s[3:]] for s in h["sections"]],
    },
    "section negative": lambda h: {**h, "sections": [[*s[:2], -64, *s[3:]] for s in h["sections"]]},
    "section huge": lambda h: {**h, "sections": [[*s[:3], 1 << 62, s[4]] for s in h["sections"]]},
    "section type": lambda h: {**h, "sections": [[s[0], "|O", *s[2:]] for s in h["sections"]]},
    "sections exchanged": lambda h: {
        **h,
        "sections": [
            [a[0], *b[1:]] for a, b in zip(h["sections"], h["sections"][::-1], strict=True)
        ],
    },
    "objects": lambda h: {**h, "fields": [{**h["fields"][0], "dtype": "|O"}]},
    "unknown dtype": lambda h: {**h, "fields": [{**h["fields"][0], "dtype": "?!"}]},
    "no fields": lambda h: {**h, "fields": []},
    "record size": lambda h: {**h, "fields": [{**h["fields"][0], "record_bytes": 1 << 40}]},
    "negative record": lambda h: {**h, "fields": [{**h["fields"][0], "record_bytes": -4}]},
    "fewer classes": lambda h: {**h, "classes": ["one"], "fields": "x"},
    "options": lambda h: {**h, "options": 3},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("number", [0, 2])
def test_a_header_that_lies_is_an_error(number, lie, tmp_path):
    """A header with a right checksum and wrong content never becomes an index."""
    path = tmp_path / "x.penstock"
    ALL[number].save(path)
    rewritten(path, LIES[lie])
    with pytest.raises(SidecarError, match="penstock index --force"):
        Index.load(path)


@pytest.mark.parametrize(
    ("index", "flaw"),
    [
        (replace(ALL[2], files=replace(ALL[2].files, ends=np.array([9, 2, 12]))), "monotonic"),
        (replace(ALL[2], files=replace(ALL[2].files, size=np.array([3, 0]))), "length"),
        (replace(ALL[2], label_column=np.array([0, 1, 2])), "label is not"),
        (replace(ALL[2], label_column=np.array([0, 1])), "as many labels"),
        (replace(ALL[0], files=files_of([27])), "beyond the end"),
        (replace(ALL[3], files=files_of([100, 199])), "beyond the end"),
        (replace(ALL[3], files=files_of([300])), "does not exist"),
    ],
)
def test_columns_that_cannot_be_are_an_error(index, flaw, tmp_path):
    """Columns with right checksums that contradict each other never become an index."""
    path = tmp_path / "x.penstock"
    index.save(path)
    with pytest.raises(SidecarError, match=flaw):
        Index.load(path)


def test_another_version_says_which(tmp_path):
    """A sidecar of a later penstock is refused by its version, not by a checksum."""
    path = tmp_path / "x"
    ALL[0].save(path)
    content = bytearray(path.read_bytes())
    content[8] = 9
    path.write_bytes(content)
    with pytest.raises(SidecarError, match="penstock index --force"):
        Index.load(path)


def test_checksums_of_large_sidecars_are_verified_on_request(tmp_path, monkeypatch):
    """Above the limit only the header is verified, unless the caller asks."""
    path = tmp_path / "x"
    ALL[2].save(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(limits, "sidecar_bytes_verified_max", 10)
    assert Index.load(path).count == 3
    with pytest.raises(SidecarError, match="checksum"):
        Index.load(path, verify=True)


def test_loading_copies_nothing(tmp_path):
    """The columns of a loaded index lie in the map of the file and cannot be written."""
    path = tmp_path / "x"
    ALL[2].save(path)
    size = Index.load(path).files.size
    assert not size.flags.owndata
    assert not size.flags.writeable


# -- failing writes --------------------------------------------------------------------------------


def test_a_failed_save_leaves_the_old_sidecar(tmp_path):
    """A file size limit stops the write: the old file stays and no temporary file is left."""
    path = tmp_path / "x.penstock"
    ALL[0].save(path)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            tree_index([1] * 10_000).save(path)
        except OSError:
            os._exit(42)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert os.listdir(tmp_path) == ["x.penstock"]
    assert_equal(Index.load(path), ALL[0])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs privileges")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_leaves_the_old_sidecar(small_disk):
    """ENOSPC is raised, the old file stays and no temporary file is left."""
    path = small_disk / "x.penstock"
    ALL[0].save(path)
    with pytest.raises(OSError, match="No space left"):
        tree_index([1] * 10_000).save(path)
    assert os.listdir(small_disk) == ["x.penstock"]
    assert_equal(Index.load(path), ALL[0])


def test_a_save_that_is_killed_leaves_one_whole_sidecar(tmp_path):
    """kill -9 at any moment: the sidecar is the old one or the new one."""
    path = tmp_path / "x.penstock"
    choice = [ALL[0], tree_index([1] * 2000)]
    choice[0].save(path)
    for saves in range(1, 6):
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            while True:
                for index in choice:
                    index.save(path)
                    os.write(sending, b".")
        for _ in range(saves):
            os.read(receiving, 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(receiving)
        os.close(sending)
        assert Index.load(path).fingerprint in {index.fingerprint for index in choice}


def test_saving_respects_the_umask(tmp_path):
    """A sidecar is as readable as any other file that the user makes."""
    old = os.umask(0o027)
    try:
        ALL[0].save(tmp_path / "x")
    finally:
        os.umask(old)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_two_tables_of_files_are_joined_in_order():
    """Names, sizes and times of both are there, the first ones first."""
    both = joined(files_of([1]), files_of([2, 3]))
    assert [both.name(i) for i in range(3)] == ["d/f0", "d/f0", "d/f1"]
    assert both.size.tolist() == [1, 2, 3]


# -- names that lead out of the place ------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "outside"),
    [
        (["a", "b/c"], None),
        (["a..b", "..c", "d..", "e/..f/g", "..."], None),
        (["a", "/etc/hostname"], "/etc/hostname"),
        (["../a"], "../a"),
        (["a/../../b", "c"], "a/../../b"),
        (["a..b", "c/.."], "c/.."),
        ([".."], ".."),
        (["", "a", "", "/b"], "/b"),
        (["a", "b\0", "c\0d"], "b\0"),
        ([], None),
    ],
)
def test_names_outside_are_found(names: list[str], outside: str | None) -> None:
    zeros = np.zeros(len(names), np.int64)
    assert find_outside(Files.of("/data", names, zeros, zeros)) == outside


@given(st.lists(st.text("./ab", max_size=6), max_size=8))
def test_any_name_outside_is_found(names: list[str]) -> None:
    """The first name outside is the one that looking at each name by itself finds."""
    zeros = np.zeros(len(names), np.int64)
    bad = [name for name in names if name.startswith("/") or ".." in name.split("/")]
    assert find_outside(Files.of("/data", names, zeros, zeros)) == (bad[0] if bad else None)


def test_a_planted_index_names_no_file_outside_its_place(tmp_path: Path) -> None:
    """A sidecar that came with the data makes no file of another place a sample."""
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"secret" * 100)
    place = tmp_path / "data"
    place.mkdir()
    (place / "a.bin").write_bytes(b"sample" * 100)
    whole = penstock.open(place, index="memory").index
    for name in ("../secret.bin", str(secret), "a.bin\0"):
        status = secret.stat()
        size, time = np.array([status.st_size]), np.array([status.st_mtime_ns])
        planted = Files.of(str(place), [name], size, time)
        replace(whole, files=planted, racy=False, fingerprint="").save(f"{place}.penstock")
        with pytest.warns(RuntimeWarning, match=r"is not below .*made again"):
            dataset = penstock.open(place)
        assert dataset[0]["data"] == b"sample" * 100
        os.unlink(f"{place}.penstock")
        replace(whole, files=planted, racy=False, fingerprint="").save(f"{place}.penstock")
        with pytest.raises(SidecarError, match="is not below"):
            penstock.open(place, index=f"{place}.penstock")
        os.unlink(f"{place}.penstock")


def test_a_listing_may_name_files_elsewhere(tmp_path: Path, monkeypatch: Any) -> None:
    """On request. Its index is saved where only this user saves any, and is found again there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.bin").write_bytes(b"elsewhere")
    place = tmp_path / "lists"
    place.mkdir()
    (place / "list.txt").write_text("../a.bin\n")
    old = 1_000_000_000
    os.utime(place / "list.txt", (old, old))
    os.utime(tmp_path / "a.bin", (old, old))
    first = penstock.open(place / "list.txt", outside=True)
    second = penstock.open(place / "list.txt", outside=True)
    assert first[0]["data"] == second[0]["data"] == b"elsewhere"
    assert os.listdir(place) == ["list.txt"]
    assert second.sidecar is not None
    assert second.sidecar.startswith(str(tmp_path / "cache"))


def test_one_file_of_many_samples_is_saved_once(tmp_path: Path) -> None:
    """The file of all samples takes no memory for each of them: its column has one value."""
    lines = [f'{{"text": "{number}"}}' for number in range(1000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    built = penstock.open(tmp_path / "a.jsonl", index="memory")
    built.index.save(tmp_path / "saved")
    _, sections = sidecar.read_sidecar(str(tmp_path / "saved"))
    assert len(sections["field0.file"]) == 1
    loaded = Index.load(tmp_path / "saved")
    samples = np.array([0, 7, 999], np.uint64)
    for found, wanted in zip(loaded.extents(samples), built.index.extents(samples), strict=True):
        assert (found == wanted).all()
    assert (
        loaded.keys(samples)
        == built.index.keys(samples)
        == ["a.jsonl#0", "a.jsonl#7", "a.jsonl#999"]
    )
    assert loaded.fingerprint == built.index.fingerprint
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "saved").read_bytes()
    assert Index.load(tmp_path / "saved", verify=True).count == 1000


def test_a_large_index_is_mapped_once_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns of a new index do not stay in the memory of the process that has made it."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "three"}\n')
    monkeypatch.setattr(limits, "sidecar_bytes_verified_max", 100)
    dataset = penstock.open(tmp_path / "a.jsonl")
    layout = dataset.index.layouts[0]
    assert isinstance(layout, RowTable)
    assert layout.offset is not None
    assert isinstance(layout.offset.base, memoryview)
    assert not layout.offset.flags.writeable
    assert [bytes(dataset[sample]["data"]) for sample in (0, 1)] == [
        b'{"text": "one"}',
        b'{"text": "three"}',
    ]
