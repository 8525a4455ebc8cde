"""Names and places of data files are DLIO's, and what is there is found or clearly missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MissingError, UsageError
from penstock_bench.data import data_paths, find_paths, index_path
from penstock_bench.workload.sections import DatasetSpec


def touched(paths: list[str]) -> None:
    """Empty files of these names."""
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()


def test_names_are_those_of_dlio() -> None:
    """Numbers are as wide as the count, sub-folders as theirs; evaluation data begins at 0."""
    data = DatasetSpec(
        data_folder="data/unet3d",
        format="npz",
        num_files_train=168,
        num_files_eval=9,
        num_subfolders_train=10,
    )
    train = data_paths(data, "train", "/mnt")
    assert train[:2] + train[-1:] == [
        "/mnt/data/unet3d/train/00/img_000_of_168.npz",
        "/mnt/data/unet3d/train/01/img_001_of_168.npz",
        "/mnt/data/unet3d/train/07/img_167_of_168.npz",
    ]
    assert data_paths(data, "valid", "/mnt")[8] == "/mnt/data/unet3d/valid/img_8_of_9.npz"
    absolute = replace(data, data_folder="/data/", format="mmap_indexed_binary", file_prefix="part")
    last = "/data/valid/part_8_of_9.mmap_indexed_binary"
    assert data_paths(absolute, "valid", "/mnt")[8] == last
    record = replace(data, format="tfrecord")
    listed = index_path(record, "train", data_paths(record, "train")[3])
    assert listed == "data/unet3d/index/train/img_003_of_168.tfrecord.idx"


@given(count=st.integers(1, 40), folders=st.integers(0, 12))
def test_what_was_named_is_found(
    tmp_path_factory: pytest.TempPathFactory, count: int, folders: int
) -> None:
    """All files are found, by number, whatever else is there; fewer where fewer are asked for."""
    folders = min(folders, count)
    root = str(tmp_path_factory.mktemp("data"))
    data = DatasetSpec(format="npz", num_files_train=count, num_subfolders_train=folders)
    paths = data_paths(data, "train", root)
    touched(paths)
    folder = Path(root, "data", "train")
    for stray in ("a.txt", ".img_0_of_9.npz.part", "z.npzx"):
        (folder / stray).touch()
    assert find_paths(data, "train", root) == paths
    fewer = replace(data, num_files_train=(count + 1) // 2)
    assert find_paths(fewer, "train", root) == paths[: (count + 1) // 2]


def test_no_and_one_subfolder_are_flat(tmp_path: Path) -> None:
    """DLIO generates flat files for num_subfolders_train=1, and then fails to find them."""
    for folders in (0, 1):
        data = DatasetSpec(format="npy", num_files_train=3, num_subfolders_train=folders)
        touched(data_paths(data, "train", str(tmp_path)))
        found = find_paths(data, "train", str(tmp_path))
        assert [Path(each).parent for each in found] == [tmp_path / "data" / "train"] * 3


def test_upper_case_endings_are_found(tmp_path: Path) -> None:
    """DLIO takes them in sub-folders, and so do we everywhere."""
    data = DatasetSpec(format="jpeg", num_files_train=2)
    folder = tmp_path / "data" / "train"
    touched([str(folder / "a.JPEG"), str(folder / "b.jpeg"), str(folder / "c.jpg")])
    assert [Path(each).name for each in find_paths(data, "train", str(tmp_path))] == [
        "a.JPEG",
        "b.jpeg",
    ]


def test_other_subfolders_than_said(tmp_path: Path) -> None:
    """Folder counts that differ are an error that says which number is right."""
    data = DatasetSpec(format="npz", num_files_train=24, num_files_eval=2, num_subfolders_train=12)
    touched(data_paths(data, "train", str(tmp_path)) + data_paths(data, "valid", str(tmp_path)))
    for said in (0, 10):
        with pytest.raises(UsageError) as caught:
            find_paths(replace(data, num_subfolders_train=said), "train", str(tmp_path))
        assert str(caught.value) == (
            f"{tmp_path}/data/train: found 12 subfolders, config says {said}; "
            f"set dataset.num_subfolders_train=12"
        )
    with pytest.raises(UsageError, match=r"found 0 subfolders.* set dataset.num_subfolders_eval=0"):
        find_paths(replace(data, num_subfolders_eval=2), "valid", str(tmp_path))


def test_too_few_files(tmp_path: Path) -> None:
    """Fewer files than asked for are an error; none asked for is none."""
    data = DatasetSpec(format="npz", num_files_train=100)
    with pytest.raises(MissingError, match="is not there: check dataset.data_folder"):
        find_paths(data, "train", str(tmp_path))
    touched(data_paths(data, "train", str(tmp_path)))
    with pytest.raises(MissingError) as caught:
        find_paths(replace(data, num_files_train=168), "train", str(tmp_path))
    assert f"168 files expected, 100 found in {tmp_path}/data/train (format npz)" in str(
        caught.value
    )
    assert find_paths(data, "valid", str(tmp_path)) == []
    believed = replace(data, num_files_train=168, skip_listing=True)
    assert len(find_paths(believed, "train", str(tmp_path))) == 168
