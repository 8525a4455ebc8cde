"""Samples: fields of one type whatever their size, and random numbers of their own."""

from __future__ import annotations

import copy
import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock


def write_captions(path: Path, sizes: list[int]) -> penstock.Dataset:
    """Write a WebDataset of captions of these sizes."""
    with tarfile.open(path, "w") as tar:
        for number, size in enumerate(sizes):
            text = "ü" + "x" * size
            for extension, content in (
                ("txt", text.encode()),
                ("json", json.dumps({"caption": text}).encode()),
            ):
                info = tarfile.TarInfo(f"{number:04}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return penstock.open(path, index="memory")


@pytest.mark.parametrize("sizes", [[5] * 6, [0, 1, 10, 300_000, 2_000_000, 77], [0] * 3])
def test_captions(tmp_path: Path, sizes: list[int]) -> None:
    """Raw fields are bytes at any size, equal sizes or not, in decode as by number."""
    dataset = write_captions(tmp_path / "captions.tar", sizes)

    def decode(sample: dict[str, Any]) -> dict[str, Any]:
        assert type(sample["txt"]) is type(sample["json"]) is bytes
        return {"txt": sample["txt"].decode(), "json": json.loads(sample["json"])["caption"]}

    (batch,) = penstock.Loader(dataset, len(sizes), shuffle="none", decode=decode)
    assert batch["txt"] == batch["json"] == ["ü" + "x" * size for size in sizes]
    assert [decode(dataset[i])["txt"] for i in range(len(sizes))] == batch["txt"]


@pytest.mark.parametrize("sizes", [[5] * 6, [0, 1, 10, 300_000]])
def test_views_on_request(tmp_path: Path, sizes: list[int]) -> None:
    """A decode that is marked gets memoryviews of the same bytes, at any size."""
    dataset = write_captions(tmp_path / "captions.tar", sizes)

    @penstock.loader.takes_views
    def decode(sample: dict[str, Any]) -> bytes:
        assert type(sample["txt"]) is memoryview
        return bytes(sample["txt"])

    (batch,) = penstock.Loader(dataset, len(sizes), shuffle="none", decode=decode)
    assert batch == [dataset[i]["txt"] for i in range(len(sizes))]


@pytest.mark.parametrize("kind", ["tar", "npy", "records", "files"])
def test_decode_gets_what_indexing_gives(tmp_path: Path, kind: str) -> None:
    """A sample in decode equals that of `dataset[i]`, types included."""
    if kind == "tar":
        dataset = write_captions(tmp_path / "a.tar", [3, 4, 5])
    elif kind == "npy":
        np.save(tmp_path / "a.npy", np.arange(12, dtype=np.uint8).reshape(3, 4))
        dataset = penstock.open(tmp_path / "a.npy", index="memory")
    elif kind == "records":
        (tmp_path / "a.bin").write_bytes(bytes(range(12)))
        dataset = penstock.open(tmp_path / "a.bin", record_bytes=4, index="memory")
    else:
        for i in range(3):
            (tmp_path / f"{i}.bin").write_bytes(bytes(8))
        dataset = penstock.open(tmp_path, index="memory")
    seen: dict[int, dict[str, Any]] = {}

    def decode(sample: dict[str, Any]) -> int:
        seen[sample["__id__"]] = dict(sample)
        return 0

    list(penstock.Loader(dataset, 2, decode=decode))
    for number, sample in seen.items():
        by_number = dataset[number]
        assert by_number["__id__"] == sample.pop("__id__")
        assert by_number["__epoch__"] == sample.pop("__epoch__") == 0
        assert sample.keys() == by_number.keys()
        for name, part in sample.items():
            assert type(part) is type(by_number[name])
            assert np.array_equal(part, by_number[name])


def numbers(sample: dict[str, Any]) -> tuple[int, int, int, float]:
    random = sample["__rng__"]
    assert sample["__rng__"] is random
    assert "__rng__" not in sample
    turn = sample.get("pass", sample["__epoch__"])
    return sample["__id__"], sample["__epoch__"], turn, random.random()


@pytest.fixture
def records(tmp_path: Path) -> penstock.Dataset:
    np.arange(60, dtype=np.uint8).tofile(tmp_path / "r.bin")
    return penstock.open(tmp_path / "r.bin", record_bytes=1, index="memory")


def drawn(batches: Any) -> dict[tuple[int, int], float]:
    found = {}
    for ids, epochs, _, values in batches:
        for number, epoch, value in zip(
            ids.tolist(), epochs.tolist(), values.tolist(), strict=True
        ):
            assert (epoch, number) not in found
            found[epoch, number] = value
    return found


def test_random_numbers_of_a_sample(records: penstock.Dataset) -> None:
    """They depend on seed, epoch and sample: not on threads, ranks, steps or resuming."""
    expected = {
        (epoch, number): penstock.rng(7, epoch, number).random()
        for epoch in range(2)
        for number in range(60)
    }
    for world, threads in ((1, 1), (1, 4), (3, 2)):
        found = {}
        for rank in range(world):
            loader = penstock.Loader(
                records,
                5,
                seed=7,
                rank=rank,
                world_size=world,
                decode=numbers,
                decode_threads=threads,
            )
            for _ in range(2):
                found |= drawn(loader)
        assert found == expected
    assert len(set(expected.values())) == 120


def test_random_numbers_of_a_mixture(records: penstock.Dataset) -> None:
    """A sample that comes in several passes of one epoch draws other numbers in each."""
    mixture = penstock.mix([(records, 1.0)], samples_per_epoch=180)
    found: dict[tuple[int, int], float] = {}
    for ids, _, passes, values in penstock.Loader(mixture, 9, seed=7, decode=numbers):
        for place in zip(ids.tolist(), passes.tolist(), values.tolist(), strict=True):
            found[place[:2]] = place[2]
    assert found == {
        (number, turn): penstock.rng(7, turn, number).random()
        for number in range(60)
        for turn in range(3)
    }


def test_copies_of_a_sample(records: penstock.Dataset) -> None:
    """A sample is a dict; a pickled or copied one keeps its random numbers."""
    sample = records[3]
    for again in (copy.copy(sample), pickle.loads(pickle.dumps(sample))):
        assert again == sample
        assert again["__rng__"].random() == penstock.rng(0, 0, 3).random()
    assert "__rng__" not in {**sample}
    with pytest.raises(KeyError, match="image"):
        sample["image"]
