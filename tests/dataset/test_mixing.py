"""Mixtures of datasets whose fields differ: renamed, or mixed after each one's own decode."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import UsageError


@pytest.fixture
def tar(tmp_path: Path) -> penstock.Dataset:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(20):
            for extension, content in (("jpg", b"tar%d" % number), ("txt", b"caption" * number)):
                info = tarfile.TarInfo(f"{number:03}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return penstock.open(tmp_path / "a.tar", index="memory")


@pytest.fixture
def folder(tmp_path: Path) -> penstock.Dataset:
    for name in ("cats", "dogs"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        for number in range(7):
            (tmp_path / "tree" / name / f"{number}.jpg").write_bytes(b"file%d" % number)
    return penstock.open(tmp_path / "tree", index="memory")


@pytest.fixture
def tokens(tmp_path: Path) -> penstock.Dataset:
    np.arange(101, dtype=np.uint16).tofile(tmp_path / "t.bin")
    return penstock.open(tmp_path / "t.bin", window=10, dtype="uint16", index="memory")


def test_renamed_fields(tar: penstock.Dataset, tmp_path: Path) -> None:
    """Fields that differ in name alone are mixed under common names; others are left out."""
    for number in range(9):
        (tmp_path / f"{number}.png").write_bytes(b"png%d" % number)
    files = penstock.open(tmp_path, extensions="png", index="memory")
    with pytest.raises(UsageError, match="use rename="):
        penstock.mix([(tar, 0.5), (files, 0.5)])
    both = penstock.mix(
        [(tar, 0.5), (files, 0.5)], rename=[{"jpg": "image", "txt": None}, {"data": "image"}]
    )
    for mixture in (both, pickle.loads(pickle.dumps(both))):
        seen = set()
        for batch in penstock.Loader(mixture, 4, seed=1):
            assert list(batch) == ["image", "source", "pass"]
            seen |= {bytes(row) for row in batch["image"]}
        assert {row.rstrip(b"0123456789") for row in seen} == {b"tar", b"png"}
        assert mixture[0]["image"] == b"tar0"
        assert mixture[20]["image"] == b"png0"


def from_tar(sample: dict[str, Any]) -> dict[str, Any]:
    assert set(sample) - {"__id__", "__epoch__", "source", "pass"} == {"jpg", "txt", "__key__"}
    return {"x": len(sample["txt"].decode()), "kind": sample["jpg"][:3].decode()}


def from_folder(sample: dict[str, Any]) -> dict[str, Any]:
    assert type(sample["data"]) is bytes
    return {"x": sample["label"], "kind": sample["data"][:3].decode()}


@penstock.loader.takes_views
def from_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    assert (sample["tokens"].shape, sample["tokens"].dtype) == ((11,), np.uint16)
    assert "label" not in sample
    return {"x": int(sample["tokens"][0]), "kind": "tok"}


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"x": 2 * sample["x"]}


@pytest.mark.parametrize("kind", [None, "threads", "processes"])
def test_each_with_its_own_decode(
    tar: penstock.Dataset, folder: penstock.Dataset, tokens: penstock.Dataset, kind: str | None
) -> None:
    """Containers of other fields, dtypes, shapes and labels are mixed after their own decode."""
    made = penstock.mix(
        [(tar, 0.4), (folder, 0.3), (tokens, 0.3)], decode=[from_tar, from_folder, from_tokens]
    )
    expected = {
        **{number: ("tar", 7 * number) for number in range(20)},
        **{20 + number: ("fil", number // 7) for number in range(14)},
        **{34 + number: ("tok", 10 * number) for number in range(10)},
    }
    mixture = pickle.loads(pickle.dumps(made))
    for then, factor in ((None, 1), (double, 2)):
        if kind is None:
            loader: Any = penstock.Loader(mixture, 6, seed=1, decode=then, pad=True)
        else:
            torch = pytest.importorskip("penstock.torch")
            loader = torch.DataLoader(
                mixture, 6, shuffle=True, seed=1, decode=then, num_workers=1, workers=kind
            )
        seen = set()
        for batch in loader:
            for number, name, x in zip(
                batch.ids.tolist(), batch["kind"], batch["x"].tolist(), strict=True
            ):
                assert (name, x) == (expected[number][0], factor * expected[number][1])
                seen.add(name)
        assert seen == {"tar", "fil", "tok"}
        loader.close()
    if kind is not None:
        numbers = [40, 3, 3, 25]
        by_sampler = torch.DataLoader(mixture, 4, sampler=numbers)
        (batch,) = by_sampler
        assert batch["kind"] == [expected[number][0] for number in numbers]
    for number in (0, 3, 25, 40):
        assert mixture.compose_decode(None)(mixture[number])["kind"] == expected[number][0]


def test_an_empty_share(tar: penstock.Dataset, tokens: penstock.Dataset) -> None:
    """A rank without samples in the last step has the structure of the others."""
    mixture = penstock.mix(
        [(tar, 1), (tokens, 1)], decode=[from_tar, from_tokens], samples_per_epoch=7
    )
    loader = penstock.Loader(mixture, 2, rank=2, world_size=3)
    *_, last = loader
    assert (len(last.ids), list(last), len(last["x"])) == (0, ["x", "kind"], 0)


def test_wrong_arguments(tar: penstock.Dataset, folder: penstock.Dataset) -> None:
    """Wrong names and lists of another length are refused when the mixture is made."""
    pairs = [(tar, 1.0), (folder, 1.0)]
    for arguments, match in (
        ({"rename": [{"png": "x"}, None]}, "no field 'png', but jpg, txt"),
        ({"rename": [{"jpg": "txt"}, None]}, "its own name"),
        ({"rename": [{}]}, "for each dataset"),
        ({"rename": [3, None]}, r"rename is \[3, None\]: give a dict"),
        ({"decode": from_tar}, "for each dataset"),
        ({"decode": [from_tar, 3]}, "decode is .*, 3\\]: give a function"),
        (
            {"rename": [None, {"data": "source"}], "decode": [None, None]},
            "use mix.rename=",
        ),
    ):
        with pytest.raises(UsageError, match=match):
            penstock.mix(pairs, **arguments)  # type: ignore[arg-type]
