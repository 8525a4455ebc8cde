"""Folders of files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import Index
from penstock.errors import FormatError, MissingError, StorageError, UsageError


def make(root: Path, names: list[str]) -> None:
    """Files that hold their own names."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names_of(index: Index) -> list[str]:
    """The keys of all samples."""
    return [index.key(sample) for sample in range(index.count)]


def opened(root: Path, **options) -> Index:
    """The index of a folder, neither read from nor written to a sidecar."""
    return penstock.open(root, index="memory", **options).index


def test_class_folders_give_labels_in_sorted_order(tmp_path):
    """The first part of the path is the class; sub-folders below belong to it."""
    make(tmp_path, ["cat/1.jpg", "cat/x/2.jpg", "ant/9.jpg", "ant-eater/3.jpg"])
    dataset = penstock.open(tmp_path, index="memory")
    assert dataset.classes == ("ant", "ant-eater", "cat")
    found = {sample["__key__"]: sample["label"] for sample in dataset}
    assert found == {"ant/9.jpg": 0, "ant-eater/3.jpg": 1, "cat/1.jpg": 2, "cat/x/2.jpg": 2}
    assert list(found) == sorted(found)


def test_an_empty_class_folder_keeps_its_label(tmp_path):
    """Validation data that lacks a class has the labels of the training data."""
    make(tmp_path, ["a/1", "c/1"])
    (tmp_path / "b").mkdir()
    index = opened(tmp_path)
    assert index.classes == ("a", "b", "c")
    assert index.labels(np.arange(2)).tolist() == [0, 2]


def test_a_flat_folder_has_no_labels(tmp_path):
    """Files at the top have no class, and so nobody has."""
    make(tmp_path, ["1", "a/2"])
    index = opened(tmp_path)
    assert index.classes is None
    assert index.labels(np.arange(2)) is None


def test_extensions_choose_files_without_regard_to_case(tmp_path):
    """With or without dot, in any case; other files do not count."""
    make(tmp_path, ["a.JPG", "b.jpeg", "c.txt", "djpg", "e.tar.gz"])
    assert names_of(opened(tmp_path, extensions=["jpg", ".JPEG"])) == ["a.JPG", "b.jpeg"]
    assert names_of(opened(tmp_path, extensions=".tar.gz")) == ["e.tar.gz"]


@pytest.mark.parametrize("wrong", [[], "", ["."], [3]])
def test_extensions_that_are_none_are_refused(tmp_path, wrong):
    """An empty or nameless extension is a mistake, not a filter."""
    with pytest.raises(UsageError, match="extensions is"):
        opened(tmp_path, extensions=wrong)


def test_hidden_files_and_sidecars_are_no_samples(tmp_path):
    """Names that start with a dot, and saved indexes, do not count."""
    make(tmp_path, ["a", ".b", ".c/d", "e.penstock"])
    assert names_of(opened(tmp_path)) == ["a"]


def test_links_are_followed_and_loops_are_not(tmp_path):
    """A link to a file or folder counts; a link to a folder around it does not."""
    make(tmp_path, ["data/a/1", "far/2"])
    (tmp_path / "data/b").symlink_to(tmp_path / "far")
    (tmp_path / "data/a/3").symlink_to(tmp_path / "far/2")
    (tmp_path / "data/a/loop").symlink_to(tmp_path / "data")
    dataset = penstock.open(tmp_path / "data", index="memory")
    assert names_of(dataset.index) == ["a/1", "a/3", "b/2"]
    assert dataset[1]["data"] == b"far/2"


def test_a_folder_of_links_to_itself(tmp_path):
    """A link to a folder around it leads nowhere new; a link to itself is named."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/loop").symlink_to(tmp_path / "data")
    with pytest.raises(FormatError, match="data holds no files"):
        opened(tmp_path / "data")
    make(tmp_path, ["data/a.bin", "data/b/c.bin"])
    index = opened(f"{tmp_path}/data/**/*.bin", format="records", record_bytes=1)
    assert [index.files.name(file) for file in range(len(index.files))] == ["a.bin", "b/c.bin"]
    (tmp_path / "data/self").symlink_to("self")
    (tmp_path / "data/a.bin").unlink()
    with pytest.raises(StorageError, match="data/self is behind too many links"):
        opened(tmp_path / "data")


def test_fifos_and_sockets_are_no_samples(tmp_path):
    """Files that cannot be read twice do not count, and are not waited for."""
    make(tmp_path, ["a"])
    os.mkfifo(tmp_path / "pipe")
    assert names_of(opened(tmp_path)) == ["a"]


def test_an_empty_folder_is_an_error(tmp_path):
    """No samples are a mistake of path or extension."""
    with pytest.raises(FormatError, match=r"holds no files \(hidden"):
        opened(tmp_path)
    make(tmp_path, ["a.png"])
    with pytest.raises(FormatError, match=r"holds no files with the extension \.jpg"):
        opened(tmp_path, extensions=["jpg"])


def test_a_dangling_link_is_an_error(tmp_path):
    """A link to nothing is named, with the number of others like it."""
    make(tmp_path, ["a"])
    for number in range(3):
        (tmp_path / f"gone{number}").symlink_to("nowhere")
    with pytest.raises(MissingError, match=r"gone0 is a link.*and 2 more"):
        opened(tmp_path)


def test_a_copy_has_the_same_fingerprint(tmp_path):
    """Place and time make no difference, a byte more does."""
    for copy in ("one", "two", "three"):
        make(tmp_path / copy, ["a/1", "b/2"])
    (tmp_path / "three/a/1").write_text("more bytes")
    prints = [opened(tmp_path / copy).fingerprint for copy in ("one", "two", "three")]
    assert prints[0] == prints[1] != prints[2]


PART = st.text(
    st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=6
).filter(lambda part: not part.startswith(".") and not part.endswith(".penstock"))


@given(st.sets(st.lists(PART, min_size=1, max_size=3).map("/".join), min_size=1, max_size=20))
def test_the_scan_equals_a_plain_walk(tmp_path_factory, names):
    """Names, order and sizes are those that os.walk finds and sorted() sorts, as bytes."""
    root = tmp_path_factory.mktemp("tree")
    for name in sorted(names):
        path = os.path.join(root, name)
        if not any(os.path.lexists(p) and not os.path.isdir(p) for p in parents(path, str(root))):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not os.path.isdir(path):
                Path(path).write_text(name)
    walked = [
        os.path.relpath(os.path.join(folder, file), root)
        for folder, _, files in os.walk(root)
        for file in files
    ]
    index = opened(root)
    assert names_of(index) == sorted(walked, key=os.fsencode)
    sizes = [os.path.getsize(os.path.join(root, name)) for name in names_of(index)]
    assert index.lengths(np.arange(index.count)).tolist() == sizes


def parents(path: str, root: str) -> list[str]:
    """The folders between a root and a path."""
    found = []
    while (path := os.path.dirname(path)) != root:
        found.append(path)
    return found


def test_a_flat_folder_of_many_files_is_listed_whole(tmp_path):
    """More files than one slice of work holds."""
    for number in range(2000):
        (tmp_path / f"{number * 7919 % 2003}").touch()
    index = opened(tmp_path)
    assert names_of(index) == sorted(os.listdir(tmp_path))


def test_progress_and_its_errors_pass_through(tmp_path):
    """A callback that raises ends the scan with its own error."""
    for number in range(50):
        make(tmp_path, [f"{number}/x"])

    def stop(files: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path, progress=stop)


def test_a_class_without_samples_is_said(tmp_path: Path) -> None:
    """It keeps its number, so that labels are those of data that has it; a warning names it."""
    for name in ("ant", "bee", "cat"):
        (tmp_path / name).mkdir()
    for name in ("ant", "cat"):
        (tmp_path / name / "1.jpg").write_text(name)
    with pytest.warns(RuntimeWarning, match="no samples in the class 'bee'"):
        dataset = penstock.open(tmp_path, index="memory")
    assert [sample["label"] for sample in dataset] == [0, 2]
    assert dataset.classes == ("ant", "bee", "cat")
