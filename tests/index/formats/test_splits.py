"""Splits are asked for, by one rule for all formats: against layouts whose maker knows the parts.

The maker is told what a person would say of each part; it never looks at names as the rule does.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, PenstockError, UsageError
from tests.index.formats.annotated import write_tar
from tests.index.formats.containers import CONTAINERS
from tests.slices import thinned

SPELLINGS = {"train": ("train", "training"), "test": ("test", "testing"), "dev": ("dev",)} | {
    "val": ("val", "valid", "validation"),
    "eval": ("eval", "evaluation"),
    "holdout": ("holdout",),
}
FOLDERS = ["{w}/a{n}", "{W}/a{n}", "{w}2017/a{n}", "{w}_data/a{n}", "images_{w}/a{n}"]
FOLDERS += ["{w}-clean-100/a{n}", "data/{w}/a{n}", "en/{w}/{n}/a", "set.{w}/{w}-{n}"]
FOLDERS += ["{U}/{n}", "{W}Set/{n}", "{w}A/{n}"]
NAMES = ["{w}-0000{n}-of-00002", "{w}_{n}", "part.{w}.{n}", "{W}{n}", "data/{w}-{n}", "{U}.{n}"]
NAMES += ["a-{w}set-{n}"]
WHOLE = ["{w}", "{W}", "{w}2017", "{w}_data", "images_{w}", "data/{w}", "{w}A"]
WIDTH = 12
LEFT = ["__MACOSX/train/._a.jpg", ".DS_Store", "Thumbs.db", "@eaDir/x.jpg", "lost+found/a.bin"]
LEFT += [
    "$RECYCLE.BIN/desktop.ini",
    "test/__pycache__/a.pyc",
    ".ipynb_checkpoints/a.jpg",
    "_SUCCESS",
]
OTHERS = ("unsupervised", "extra", "part")
FORMATS = [name for name in CONTAINERS if name not in ("listing", "megatron", "npz")]
OF_FOLDERS = {"mds", "litdata", "litdata, compressed", "zarr", "zarr, compressed"}


class Layout(NamedTuple):
    """Files on disk, and what a person would say of them: the samples of each split."""

    root: Path
    contents: dict[str, set[bytes]]
    options: Mapping[str, Any]


def write_part(target: Path, format: str, contents: list[bytes], scratch: Path) -> dict[str, Any]:
    """Write a part of a data set, as a file or folder of this name. Returns its options."""
    scratch.mkdir()
    more = [b"."] if format == "tokens" else []  # the last token is only a target
    place, options = CONTAINERS[format](scratch, contents + more)
    options = {**options} | ({"window": WIDTH} if more else {})
    end = "" if place.is_dir() or format == "tree" else place.suffix
    target = target.with_name(target.name + end)
    target.parent.mkdir(parents=True, exist_ok=True)
    if format == "tree":
        for number, path in enumerate(sorted(place.iterdir())):
            path.rename(f"{target}-{number}.jpg")
        scratch.rmdir()
    else:
        place.rename(target)
        if place != scratch:
            shutil.rmtree(scratch)
    return {k: v for k, v in options.items() if k not in ("check", "isolate")}


def make(
    root: Path, format: str, style: str, words: Sequence[str], others: Sequence[str] = ()
) -> Layout:
    """Make a data set of parts that are called by `words`, and of others."""
    contents: dict[str, set[bytes]] = {}
    options: dict[str, Any] = {}
    for word in (*words, *others):
        split = next((s for s, spelled in SPELLINGS.items() if word in spelled), "")
        for n in range(1 if format in OF_FOLDERS else 2):
            name = style.format(w=word, W=word.capitalize(), U=word.upper(), n=n)
            texts = [f"{word[:9]:9}{n}{k:2}".encode() for k in range(2)]
            assert {*map(len, texts)} == {WIDTH}
            contents.setdefault(split, set()).update(texts)
            options = write_part(root / name, format, texts, root.with_name(f"{root.name}-scratch"))
    if format == "npy" or format.startswith("hdf5"):
        options = options | {"sample": "row"}
    return Layout(root, contents, options)


def read(dataset: penstock.Dataset) -> set[bytes]:
    """The bytes of all samples."""
    name = dataset.fields[0].name
    rows = (sample[name] for sample in dataset)
    return {(row if isinstance(row, bytes) else np.asarray(row).tobytes())[:WIDTH] for row in rows}


def check(layout: Layout, path: Any, ask: bool) -> None:
    """Check that splits are asked for, and each can be had; or that none is asked for."""
    options = layout.options | {"index": "memory"}
    named = layout.contents.keys() - {""}
    everything: set[bytes] = set().union(*layout.contents.values())
    if not ask:
        assert read(penstock.open(path, **options)) == everything
        return
    with pytest.raises(UsageError, match="has the splits") as caught:
        penstock.open(path, **options)
    for split in named:
        assert f"{split} (" in str(caught.value)
        dataset = penstock.open(path, split=split, **options)
        assert read(dataset) == layout.contents[split]
        assert read(pickle.loads(pickle.dumps(dataset))) == layout.contents[split]
    if len(named) > 1:
        joint = penstock.open(path, split=sorted(named), **options)
        assert read(joint) == everything - layout.contents.get("", set())
    assert read(penstock.open(path, split="", **options)) == everything


def draw(root: Path, number: int) -> tuple[Layout, Any, bool]:
    """Draw a layout, the path by which it is opened, and whether there is a split to choose."""
    rng = random.Random(number)
    format = FORMATS[number % len(FORMATS)]
    style = rng.choice(WHOLE if format in OF_FOLDERS else rng.choice([FOLDERS, NAMES]))
    splits = rng.sample(sorted(SPELLINGS), rng.choice([1, 2, 2, 3]))
    words = [rng.choice(SPELLINGS[split]) for split in splits]
    others = rng.sample(OTHERS, rng.choice([0, 0, 1]))
    layout = make(root, format, style, words, others)
    files = [str(path) for path in sorted(root.rglob("*")) if path.is_file()]
    for name in rng.sample(LEFT, rng.choice([0, 1, 3])):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"left by a system")
    ways: list[Any] = [] if format == "npy" else [root]  # a folder of those is one of files
    if format == "lmdb":
        ways += [f"{root}/**/data.mdb"]
    elif format != "tree" and format not in OF_FOLDERS:
        ways += [f"{root}/**/*.*", files]
    return layout, rng.choice(ways), len(splits) > 1


@pytest.mark.wide
def test_layouts(tmp_path: Path) -> None:
    """Of no layout are splits mixed; where there is one split, nothing is asked."""
    for number in thinned(range(500)):
        layout, path, ask = draw(tmp_path / str(number), number)
        format = FORMATS[number % len(FORMATS)]
        if format in OF_FOLDERS:
            check_folders(layout, ask)
        else:
            check(layout, path, ask)


def check_folders(layout: Layout, ask: bool) -> None:
    """Check data sets that are a folder each: the folder above is refused or asked about."""
    options = layout.options | {"index": "memory"}
    with pytest.raises(PenstockError):
        penstock.open(layout.root, **options)
    for split in layout.contents.keys() - {""} if ask else ():
        assert read(penstock.open(layout.root, split=split, **options)) == layout.contents[split]


# -- what a split is called, and what is not one ---------------------------------------------------


def opened(root: Path, names: Sequence[str], path: str = "", **options: Any) -> penstock.Dataset:
    """Open files that hold a line of JSON, or begin as a picture does."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"name": name}) + "\n"
        (root / name).write_bytes(b"\xff\xd8\xff" * name.endswith(".jpg") + text.encode())
    return penstock.open(root / path, index="memory", **options)


def name_samples(dataset: penstock.Dataset) -> list[str]:
    """The names of the samples, which are a file each."""
    return [dataset.index.key(row) for row in range(len(dataset))]


@pytest.mark.parametrize(
    "names",
    [
        ["cat/1.jpg", "dog/2.jpg", "test/3.jpg"],  # a class of this name
        ["train/1.jpg", "bus/2.jpg"],
        ["bullet_train/1.jpg", "test_tube/1.jpg"] + [f"c{n}/1.jpg" for n in range(20)],
        ["a/train_station.jpg", "a/test.jpg"] + [f"a/{n}.jpg" for n in range(20)],
        ["train/1.jsonl", "train/2.jsonl"],
        ["data.jsonl", "training_log.jsonl"],
        ["contest.jsonl", "interval.jsonl", "strained.jsonl", "device.jsonl"],
        ["test-run/a.jsonl", "test-run/b.jsonl", "test-run/train.jsonl"],
        ["train-0.jsonl", "training-1.jsonl"],  # two words of one split
    ],
)
def test_nothing_is_asked(tmp_path: Path, names: list[str]) -> None:
    """One split, classes and words in other words are no splits to choose from."""
    assert len(opened(tmp_path, names)) == len(names)


@pytest.mark.parametrize(
    ("names", "split", "classes", "count"),
    [
        (["train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg"], "train", ("cat", "dog"), 2),
        (
            ["train/train/1.jpg", "train/cat/2.jpg", "test/train/3.jpg"],
            "train",
            ("cat", "train"),
            2,
        ),
        (["cat/train/1.jpg", "dog/train/2.jpg", "cat/test/3.jpg"], "train", ("cat", "dog"), 2),
        (["images/train/cat/1.jpg", "images/val/cat/2.jpg"], "validation", ("cat",), 1),
        (["a_train/1.jpg", "b_train/2.jpg", "a_val/3.jpg"], "train", ("a", "b"), 2),
        (
            ["train/cat/1.jpg", "val/dog/2.jpg", "test/cat/3.jpg"],
            ["train", "val"],
            ("cat", "dog"),
            2,
        ),
        (["train/1.jpg", "val/2.jpg", "test/3.jpg"], ["train", "val"], None, 2),
        (["train_1.jpg", "train_2.jpg", "val_1.jpg"], "train", None, 2),
        (["train/1.jpg", "test/2.jpg"], "", ("test", "train"), 2),
    ],
)
def test_classes_of_a_split(
    tmp_path: Path, names: list[str], split: Any, classes: Any, count: int
) -> None:
    """Splits of images are no classes, wherever the folder is that is called by them."""
    with pytest.raises(UsageError, match="has the splits"):
        opened(tmp_path, names)
    dataset = opened(tmp_path, names, split=split)
    assert (dataset.classes, len(dataset)) == (classes, count)


def test_documents_beside_splits(tmp_path: Path) -> None:
    """A document beside the data is no reason to propose a pattern that mixes."""
    names = ["README.md", "train.jsonl", "test.jsonl"]
    with pytest.raises(UsageError, match=r"test \(1 file, .* bytes\), train .*, others \(1 file"):
        opened(tmp_path, names)
    assert name_samples(opened(tmp_path, names, split="train"))[0].startswith("train.jsonl")


def test_what_split_may_be(tmp_path: Path) -> None:
    """Unknown splits, files and wrong values are refused; any folder is one, or word of names."""
    names = ["train/a.jsonl", "test/a.jsonl", "extra/a.jsonl", "b/c-more-1.jsonl"]
    for split, said in (
        ("val", r"has no split 'val', but test \(1 file"),
        (["train", ""], "give a name, names in a list, or '' for all data"),
        ("../x", "give a name below"),
        (3, "split is 3"),
    ):
        with pytest.raises(UsageError, match=said):
            opened(tmp_path, names, split=split)
    with pytest.raises(UsageError, match="is one file"):
        opened(tmp_path, names, "train/a.jsonl", split="train")
    assert len(opened(tmp_path, names, split="extra")) == 1
    assert len(opened(tmp_path, names, split="more")) == 1
    inner = ["x/eval-kit/train.jsonl", "x/eval-kit/test.jsonl", "x/train/a.jsonl"]
    with pytest.raises(UsageError, match="split 'eval' has the splits.*open the folder of one"):
        opened(tmp_path, inner, "x", split=["eval", "train"])


def test_saved_indexes_of_splits(tmp_path: Path) -> None:
    """Each split has an index of its own; none of them is taken for all data."""
    names = ["data/train-0.jsonl", "data/train-1.jsonl", "data/test-0.jsonl"]
    opened(tmp_path, names, split="")
    for path in (tmp_path / "data").iterdir():
        os.utime(path, (1, 1))
    os.utime(tmp_path / "data", (1, 1))
    for _ in range(2):
        sizes = {s: len(penstock.open(tmp_path / "data", split=s)) for s in ("train", "test", "")}
        assert sizes == {"train": 2, "test": 1, "": 3}
        with pytest.raises(UsageError, match="has the splits"):
            penstock.open(tmp_path / "data")
    paths = {penstock.open(tmp_path / "data", split=s).sidecar for s in ("train", "test", "")}
    assert len(paths) == 3
    (tmp_path / "data/train-2.jsonl").write_text("{}\n")
    assert len(penstock.open(tmp_path / "data", split="train")) == 3


def test_mirrors_of_a_split(tmp_path: Path) -> None:
    """Mirrors are of the folder that is opened, splits and all."""
    names = [f"{place}/{split}/a.jsonl" for place in ("data", "copy") for split in ("train", "val")]
    opened(tmp_path, names, split="")
    dataset = penstock.open(
        tmp_path / "data", split="val", mirrors=[str(tmp_path / "copy")], index="memory"
    )
    assert dataset.index.files.mirrors[0].root == str(tmp_path / "copy" / "val")


def test_splits_inside_an_archive(tmp_path: Path) -> None:
    """A tar of a folder of splits asks as the folder does; keys that are words are no splits."""
    path = tmp_path / "x.tar"
    names = [f"./data/{s}/{c}/{n}" for s in ("train", "val") for c in "ab" for n in range(3)]
    write_tar(path, {f"{name}.{end}": name.encode() for name in names for end in ("jpg", "cls")})
    with pytest.raises(UsageError, match="has the splits train .*, val .*: give split='train'"):
        penstock.open(path, index="memory")
    for split in ("train", "val"):
        dataset = penstock.open(path, index="memory", split=split)
        assert [s["jpg"].decode() for s in dataset] == [n for n in names if split in n]
        assert [dataset.classes[s["label"]] for s in dataset] == [n for n in names if split in n]
        assert len(pickle.loads(pickle.dumps(penstock.open(path, split=split)))) == 6
    assert len(penstock.open(path, index="memory", split="")) == 12
    with pytest.raises(UsageError, match="has no split 'test', but train"):
        penstock.open(path, index="memory", split="test")
    words = {f"{word}.txt": b"1" for word in ["test", "train", *map(str, range(30))]}
    write_tar(path, words)
    assert len(penstock.open(path, index="memory")) == 32


def test_arrays_below_are_no_samples(tmp_path: Path) -> None:
    """A folder above Zarr arrays is refused: the files of their chunks are no samples."""
    for name in ("a", "b/c"):
        write_part(tmp_path / "data" / name, "zarr", [b"1", b"2"], tmp_path / "scratch")
    with pytest.raises(FormatError, match="a is an array or group of Zarr: open it"):
        penstock.open(tmp_path / "data", index="memory")
