"""WebDataset archives: as tarfile writes them, grouped as webdataset groups them."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock.engine.leftovers import LEFTOVERS, is_left_over
from penstock.engine.store import Posix, StoreFile
from penstock.errors import FormatError
from penstock.index.formats.tar_walk import join_pieces, walk_archive, walk_piece
from penstock.index.layout import RowTable

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def archive(
    members: Mapping[str, bytes], format: int = tarfile.PAX_FORMAT, **options: Any
) -> bytes:
    """An archive of these files by tarfile."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format, **options) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def opened(path: Path, data: bytes, **options: Any) -> penstock.Dataset:
    """The data set of an archive."""
    path.write_bytes(data)
    return penstock.open(path, format="tar", index="memory", **options)


def samples(dataset: penstock.Dataset) -> list[dict[str, Any]]:
    """All samples."""
    return [dataset[i] for i in range(len(dataset))]


@pytest.mark.parametrize("format", FORMATS)
def test_long_names(format: int, tmp_path: Path) -> None:
    """Long names are found, by prefix, GNU's blocks and pax records alike."""
    names = ["a" * 90, "b" * 60 + "/" + "c" * 90, "d/" * 20 + "é"]
    if format != tarfile.USTAR_FORMAT:
        names += ["e" * 101, "f" * 300 + "/g", "h" * 5000]
    members = {f"{name}.txt": name.encode() for name in names}
    dataset = opened(tmp_path / "x.tar", archive(members, format))
    assert dataset.index.keys(np.arange(len(names))) == names
    assert [sample["txt"] for sample in samples(dataset)] == [name.encode() for name in names]


def test_pax_size(tmp_path: Path) -> None:
    """The size that pax gives counts, not the header's."""
    data = bytearray(archive({"é.txt": b"x" * 700, "b.txt": b"y"}, pax_headers={}))
    at = data.index(b"path=") - 3
    old = data[at : at + data[at:].index(b"\n") + 1]
    room = data[at : at + 512].rstrip(b"\0")
    assert room == old
    data[at : at + len(old) + 12] = old + b"12 size=700\n"
    for block, wrong in ((at // 512 - 1, len(old) + 12), (at // 512 + 1, 3)):
        header = data[block * 512 : block * 512 + 512]
        header[124:136] = b"%011o\0" % wrong
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        data[block * 512 : block * 512 + 512] = header
    assert [len(sample["txt"]) for sample in samples(opened(tmp_path / "x.tar", bytes(data)))] == [
        700,
        1,
    ]


def test_global_pax(tmp_path: Path) -> None:
    """Global pax attributes other than name and size change nothing."""
    data = archive({"a.txt": b"1"}, pax_headers={"comment": "of all"})
    assert samples(opened(tmp_path / "x.tar", data))[0]["txt"] == b"1"


def grouped(path: Path) -> list[dict[str, bytes]] | None:
    """The samples of an archive as webdataset has them; None where it refuses the archive."""
    with path.open("rb") as file:
        members = webdataset.tariterators.tar_file_iterator(file)
        found = webdataset.tariterators.group_by_keys(
            {"__url__": "x", **member} for member in members
        )
        try:
            return [
                {k: v for k, v in sample.items() if k not in ("__url__", "__local_path__")}
                for sample in found
            ]
        except ValueError:  # two files of one sample with one extension
            return None


PART = st.text("aB._-é1", min_size=1, max_size=5).filter(
    lambda part: part[-1] != "." and ".." not in part  # extensions that fields= can name
)
NAMES = st.lists(st.lists(PART, min_size=1, max_size=3).map("/".join), max_size=12, unique=True)


@given(names=NAMES, format=st.sampled_from(FORMATS))
def test_grouping(names: list[str], format: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keys, extensions and order are webdataset's, but hidden files are left out."""
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    shown = {name: name.encode() for name in names if not is_left_over(name)}
    path.write_bytes(archive(shown, format))
    expected = grouped(path)
    path.write_bytes(archive({name: name.encode() for name in names}, format))
    if expected is None:
        with pytest.raises(FormatError, match="twice"):
            penstock.open(path, format="tar", index="memory", duplicates="all")
        return
    extensions = sorted({name for sample in expected for name in sample} - {"__key__"})
    if not extensions:
        with pytest.raises(FormatError, match="no samples"):
            penstock.open(path, format="tar", index="memory")
        return
    dataset = penstock.open(
        path,
        format="tar",
        index="memory",
        duplicates="all",
        fields={name: [name] for name in extensions},
        missing="empty",
        label="",
    )
    plain = [
        {"__key__": each["__key__"]} | dict.fromkeys(extensions, b"") | each for each in expected
    ]
    assert samples(dataset) == plain


def test_fields(tmp_path: Path) -> None:
    """Suffixes of images are one field; fields= picks others, with alternatives."""
    members = {"a.jpg": b"1", "a.txt": b"2", "b.png": b"3", "b.txt": b"4", "b.json": b"5"}
    data, path = archive(members), tmp_path / "x.tar"
    with pytest.raises(
        FormatError, match=r"'a' has no json \(it has jpg, txt\), as 1 of 2"
    ) as error:
        opened(path, data)
    assert "fields=['jpg;png', 'txt'], or missing='empty'" in str(error.value)
    dataset = opened(path, data, missing="empty")
    assert [(s["image"], s["txt"], s["json"]) for s in samples(dataset)] == [
        (b"1", b"2", b""),
        (b"3", b"4", b"5"),
    ]
    dataset = opened(path, data, fields=["jpg;png", "txt"])
    assert [(s["jpg"], s["txt"]) for s in samples(dataset)] == [(b"1", b"2"), (b"3", b"4")]
    dataset = opened(path, data, fields={"image": "PNG;jpg"})
    assert [sample["image"] for sample in samples(dataset)] == [b"1", b"3"]
    dataset = opened(path, data, fields="json", missing="empty")
    assert [sample["json"] for sample in samples(dataset)] == [b"", b"5"]
    with pytest.raises(FormatError, match=r"at byte 0: the sample 'a' has no json"):
        opened(path, data, fields=["json"])
    with pytest.raises(FormatError, match=r"fields=\['txt;json'\], or missing='empty'"):
        opened(path, archive({"a.txt": b"1", "b.json": b"3"}))


@pytest.mark.parametrize("lacking", range(3))
@pytest.mark.parametrize("member", ["cls", "png", "json", "1.jpg"])
def test_no_member_is_left_out_silently(tmp_path: Path, member: str, lacking: int) -> None:
    """A member that one sample lacks, in one shard of several, is an error that counts them."""
    for shard in range(3):
        members = {}
        for sample in range(shard * 3, shard * 3 + 3):
            members[f"{sample}.jpg"] = members[f"{sample}.txt"] = b"%d" % sample
            members |= {f"{sample}.{member}": b"1"} if sample != 4 + lacking else {}
        (tmp_path / f"{shard}.tar").write_bytes(archive(members))
    place = f"{tmp_path}/*.tar"
    with pytest.raises(
        FormatError, match=rf"'{4 + lacking}' has no {member} .*, as 1 of 9"
    ) as error:
        penstock.open(place, index="memory")
    for option in ("fields=", "missing='empty'"):
        assert option in str(error.value)
    rest = penstock.open(place, index="memory", fields=["jpg", "txt"], label="")
    assert [sample["txt"] for sample in rest] == [b"%d" % sample for sample in range(9)]
    every = penstock.open(place, index="memory", missing="empty", label="")
    assert [sample[member] for sample in every].count(b"") == 1


def test_images_of_several_kinds(tmp_path: Path) -> None:
    """A sample with two images, or none, keeps suffixes apart: nothing is chosen for the user."""
    path = tmp_path / "x.tar"
    assert [s["image"] for s in opened(path, archive({"a.jpg": b"1", "b.webp": b"2"}))] == [
        b"1",
        b"2",
    ]
    both = archive({"a.jpg": b"1", "a.png": b"2", "b.jpg": b"3", "b.png": b"4"})
    assert [field.name for field in opened(path, both).fields] == ["jpg", "png"]
    for members in ({"a.jpg": b"1", "a.png": b"2", "b.png": b"3"}, {"a.jpg": b"1", "b.txt": b"2"}):
        with pytest.raises(FormatError, match=r"has no .*, as 1 of 2"):
            opened(path, archive(members))


LEFT = [".DS_Store", "d/.DS_Store", "._d/x", "d/._a.jpg", "__MACOSX/d/._a.jpg", "Thumbs.db"]
LEFT += ["d/@eaDir/a.jpg/b.jpg", "d/.ipynb_checkpoints/a-checkpoint.jpg", "$RECYCLE.BIN/a.jpg"]
LEFT += ["__pycache__/a.pyc", "lost+found/a.jpg", "System Volume Information/a.b", "d/desktop.ini"]
LEFT += [f"{name}/a.jpg" for name in LEFTOVERS]


def test_what_systems_leave_is_no_sample(tmp_path: Path) -> None:
    """Folders, patterns and archives leave out the same, wherever it is."""
    members = {"./d/a.jpg": b"1", "./d/a.cls": b"7", "./e/b.jpg": b"2", "./e/b.cls": b"8"}
    order = [*members]
    for number, name in enumerate(LEFT):
        order.insert(number % len(order), name)
    data = archive({name: members.get(name, b"left") for name in order})
    dataset = opened(tmp_path / "x.tar", data)
    assert [(s["jpg"], s["label"]) for s in dataset] == [(b"1", 7), (b"2", 8)]
    for name in (*LEFT, *members):
        if not name.endswith(".cls"):
            (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "folder" / name).write_bytes(members.get(name, b"left"))
    tree = penstock.open(tmp_path / "folder", index="memory")
    assert ([s["data"] for s in tree], tree.classes) == ([b"1", b"2"], ("d", "e"))
    matched = Posix(str(tmp_path / "folder")).match("**/*")
    assert matched == ["d/a.jpg", "e/b.jpg"]
    assert Posix(str(tmp_path / "folder")).match("lost+found/*") == ["lost+found/a.jpg"]
    assert sorted(Posix(str(tmp_path / "folder")).some(99)) == ["d/a.jpg", "e/b.jpg"]
    assert not any(is_left_over(name) for name in members)
    assert all(is_left_over(name) for name in LEFT)


def test_labels(tmp_path: Path) -> None:
    """cls is the label: integers as they are, names as classes; label= names another."""
    path = tmp_path / "x.tar"
    numbers = archive({"a.cls": b" 7\n", "a.x": b"", "b.cls": b"-2", "b.x": b""})
    dataset = opened(path, numbers)
    assert [field.name for field in dataset.fields] == ["x"]
    assert [sample["label"] for sample in samples(dataset)] == [7, -2]
    assert "label" not in opened(path, numbers, label="")[0]
    names = archive({"a.cls": b"dog", "b.cls": b"cat", "c.cls": b"dog"})
    dataset = opened(path, names)
    assert dataset.classes == ("cat", "dog")
    assert [sample["label"] for sample in samples(dataset)] == [1, 0, 1]
    dataset = opened(path, archive({"a.y": b"9223372036854775807"}), label="y")
    assert dataset[0]["label"] == 2**63 - 1
    with pytest.raises(penstock.errors.UsageError, match="would hide the label"):
        opened(path, archive({"a.label": b"1", "a.cls": b"1"}))
    with pytest.raises(FormatError, match="has no y"):
        opened(path, archive({"a.y": b"1", "b.x": b"2"}), label="y", fields="x", missing="empty")
    with pytest.raises(FormatError, match="which is no label"):
        opened(path, archive({"a.cls": bytes(5000)}))


def test_joined_archives(tmp_path: Path) -> None:
    """Members after an end mark are read on request, and else an error."""
    data = archive({"a.x": b"1"}) + archive({"b.x": b"2"})
    with pytest.raises(FormatError, match="ignore_zeros"):
        opened(tmp_path / "x.tar", data)
    found = samples(opened(tmp_path / "x.tar", data, ignore_zeros=True))
    assert [sample["x"] for sample in found] == [b"1", b"2"]


MEMBER = st.tuples(
    st.sampled_from(["a", "b", "c", "d/a", "d/b", "d" * 60 + "/" + "é" * 30, "_"]),
    st.sampled_from([".x", ".y", ".cls", ".X", ""]),
    st.one_of(st.binary(max_size=2000), st.sampled_from([b"7", b"cat", bytes(3000)])),
)
MEMBERS = st.tuples(st.lists(MEMBER, max_size=6), st.sampled_from(FORMATS), st.integers(0, 99))
ORDINARY = st.tuples(MEMBERS, st.sampled_from(["plain", "nested", "folder"]))
ODD = st.tuples(MEMBERS, st.sampled_from(["marked", "named", "none"]))
PART_OF_A_TAR = st.one_of(*[ORDINARY] * 9, ODD).map(lambda part: make_part(*part[0], part[1]))


def make_part(members: list[tuple[str, str, bytes]], format: int, part: int, kind: str) -> bytes:
    """Part of an archive: members, with an end mark where they are "marked", as the data of one
    where "nested"; their names given by pax to all where "named"; "none" is no header."""
    named = {"path": "z.x"} if kind == "named" else {}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format, pax_headers=named) as tar:
        if kind == "folder":
            folder = tarfile.TarInfo("folder")
            folder.type, folder.size = tarfile.DIRTYPE, 0
            tar.addfile(folder)
        for number, (stem, ending, data) in enumerate(members):
            info = tarfile.TarInfo(f"{stem}{part}-{number // 2}{ending}")
            info.size, info.mtime = len(data), 1.5
            tar.addfile(info, io.BytesIO(data))
        end = tar.offset
    data = file.getvalue()
    if kind == "nested":
        return make_part([("nest", ".x", data[:end])], format, part, "plain")
    if kind == "none":
        return b"no header" * 100
    return data if kind == "marked" else data[:end]


@given(
    parts=st.lists(PART_OF_A_TAR, min_size=1, max_size=5),
    piece=st.one_of(st.integers(1, 12).map(lambda blocks: 512 * blocks), st.integers(500, 6000)),
    options=st.fixed_dictionaries(
        {},
        optional={
            "ignore_zeros": st.just(True),
            "end": st.just("optional"),
            "duplicates": st.just("all"),
        },
    ),
    cut=st.integers(0, 3000),
)
def test_pieces(
    parts: list[bytes],
    piece: int,
    options: dict[str, Any],
    cut: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """An archive that is walked piece by piece has the index of one walk, or its error, wherever
    pieces begin: in data that looks like headers, between a member and its long name, in a sample,
    in an end mark."""
    data = b"".join(parts) + bytes(1024)
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    path.write_bytes(data[: len(data) - cut] if cut % 3 == 0 else data)
    found: list[Any] = []
    for size in (1 << 30, piece):
        with pytest.MonkeyPatch.context() as changed:
            changed.setattr(limits, "parsed_piece_bytes", size)
            try:
                index = penstock.open(
                    path, format="tar", index="memory", missing="empty", **options
                ).index
            except FormatError as error:
                found.append(str(error))
                continue
        rows = np.arange(len(index))
        found.append([index.fingerprint, index.keys(rows), index.classes])
        labels = index.labels(rows)
        found[-1].append(None if labels is None else labels.tolist())
        for layout in index.layouts:
            assert isinstance(layout, RowTable)
            found[-1] += [np.asarray(layout.offset).tolist(), layout.length.tolist()]
    assert found[0] == found[1]


@pytest.mark.parametrize("format", FORMATS)
def test_pieces_are_not_walked_again(
    format: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary archive is walked once, however many pieces it has."""
    members = {
        f"{number:03}.{ending}": bytes(number * 7) for number in range(90) for ending in "xy"
    }
    path = tmp_path / "x.tar"
    path.write_bytes(archive(members, format))
    expected = penstock.open(path, index="memory").fingerprint
    monkeypatch.setattr(limits, "parsed_piece_bytes", 10_000)
    walked: list[int] = []
    walk = StoreFile.walk

    def count(file: StoreFile, container: str, **options: Any) -> dict[str, Any]:
        walked.append(file.size)
        return walk(file, container, **options)

    monkeypatch.setattr(StoreFile, "walk", count)
    assert penstock.open(path, index="memory").fingerprint == expected
    assert sum(walked) == path.stat().st_size
    assert len(walked) >= path.stat().st_size // 10_000 - 1  # the end mark is no piece


def test_pieces_of_other_limits_do_not_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that began elsewhere, as another host's limits have it, are no archive: it is walked
    whole."""
    path = tmp_path / "x.tar"
    path.write_bytes(archive({f"{number:03}.x": bytes(900) for number in range(60)}))
    data = path.read_bytes()
    source = StoreFile(str(path), len(data), lambda at, size: data[at : at + size], -1)
    settings = {"ignore_zeros": False, "end_required": True, "duplicates": False, "label": None}
    monkeypatch.setattr(limits, "parsed_piece_bytes", 20_480)
    pieces = [
        walk_piece(source, start, min(start + 20_480, len(data)), settings, {})
        for start in range(0, len(data), 20_480)
    ]
    found = [piece for piece in pieces if piece is not None]
    joined = join_pieces(found, False)
    assert joined is not None
    assert joined.offset.tolist() == walk_archive(source, settings).offset.tolist()
    for lost in range(len(found)):
        assert join_pieces(found[:lost] + found[lost + 1 :], False) is None


def test_end_mark(tmp_path: Path) -> None:
    """An archive without an end mark may have been cut: it is taken only when that is said."""
    data = archive({"a.x": b"1"})[:1024]
    with pytest.raises(FormatError, match="no end mark"):
        opened(tmp_path / "x.tar", data)
    assert samples(opened(tmp_path / "x.tar", data, end="optional"))[0]["x"] == b"1"
    assert samples(opened(tmp_path / "x.tar", data + bytes(512)))[0]["x"] == b"1"


def test_duplicate_keys(tmp_path: Path) -> None:
    """A key that comes again is an error, or on request another sample."""
    data = archive({"a.x": b"1", "b.x": b"2", "a.y": b"3"})
    with pytest.raises(FormatError, match="at byte 2,048: the key 'a' comes again"):
        opened(tmp_path / "x.tar", data)
    dataset = opened(tmp_path / "x.tar", data, duplicates="all", fields="x;y")
    assert [sample["x"] for sample in samples(dataset)] == [b"1", b"2", b"3"]


def test_folder_of_shards(tmp_path: Path) -> None:
    """A folder of archives is one data set, in the order of names; other files are left out."""
    for number in (2, 0, 1):
        (tmp_path / f"{number}.tar").write_bytes(archive({f"k{number}.x": b"%d" % number}))
    (tmp_path / "notes.txt").write_text("other")
    dataset = penstock.open(tmp_path, format="tar", index="memory")
    assert [sample["__key__"] for sample in samples(dataset)] == ["k0", "k1", "k2"]
    found = penstock.open(str(tmp_path / "{0..2}.tar"), index="memory")
    assert found.index.format == "tar"
    assert len(found) == 3


def test_compressed(tmp_path: Path) -> None:
    """A compressed archive is recognised and refused with what to do."""
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.raises(FormatError, match="compressed by gzip.*gunzip"):
        penstock.open(path, index="memory")


@pytest.mark.parametrize(
    "options",
    [
        {"fields": []},
        {"fields": [""]},
        {"fields": ["jpg;"]},
        {"fields": ["jpg", "jpg;png"]},
        {"fields": 3},
        {"label": 3},
        {"missing": "maybe"},
        {"end": True},
        {"duplicates": "first"},
    ],
)
def test_wrong_options(options: dict[str, Any], tmp_path: Path) -> None:
    """An option that cannot be meant is a UsageError that names it."""
    (tmp_path / "x.tar").write_bytes(archive({"a.jpg": b""}))
    with pytest.raises(penstock.errors.UsageError, match=re.escape(next(iter(options)))):
        penstock.open(tmp_path / "x.tar", index="memory", **options)
