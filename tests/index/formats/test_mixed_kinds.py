"""Folders of several kinds of files are refused; folders of classes are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import FormatError
from penstock.index.formats.tree import KINDS

COCO = ["annotations/instances_train2017.json", "train2017/1.jpg", "val2017/2.jpg"]
VOC = ["Annotations/1.xml", "ImageSets/Main/train.txt", "JPEGImages/1.jpg"]


def opened(root: Path, names: list[str], **options: object) -> penstock.Dataset:
    """A data set of files that hold their own names."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return penstock.open(root, index="memory", **options)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([f"coco/{name}" for name in COCO], "as COCO does"),
        ([f"coco/{name}" for name in [*COCO, "README.md"]], "as COCO does"),
        ([f"VOCdevkit/VOC2012/{name}" for name in VOC], "as Pascal VOC does"),
        (["data.yaml", "images/train/1.jpg", "labels/train/1.txt"], "as YOLO does"),
        (["images/1.png", "masks/1.png"], "the folders images and masks"),
        (["train/1.jpg", "train/1.xml", "train/2.jpg", "train/2.xml"], "pairs such as train/1.jpg"),
        (["1.flac", "1.txt", "2.flac", "2.txt"], "pairs such as 1.flac and 1.txt"),
        (["a/1.jpg", "b/1.wav"], "audio (b/1.wav) beside images (a/1.jpg)"),
        (["all/1.jpg", "all/x.json", "b/1.jpg", "c/1.json"], "beside text (c/1.json)"),
    ],
)
def test_it_asks(tmp_path: Path, names: list[str], said: str) -> None:
    """The error names two of the files, and both ways out work."""
    with pytest.raises(FormatError) as caught:
        opened(tmp_path, names)
    assert str(caught.value).startswith(f"{tmp_path} holds ")
    assert said in str(caught.value)
    assert "open the folder of the samples alone" in str(caught.value)
    endings = {Path(name).suffix for name in names} - {""}
    assert len(opened(tmp_path, names, extensions=sorted(endings), split="")) == len(names)


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["cat/1.jpg", "dog/1.png"], ("cat", "dog")),
        (["pos/1.txt", "neg/1.json"], ("neg", "pos")),
        (["a/1", "b/2.unknown", "c/3.jpg"], ("a", "b", "c")),
        (["images/1.jpg", "images/2.jpg", ".DS_Store"], ("images",)),
        (["labels/1.jpg", "other/1.jpg"], ("labels", "other")),
        (["a/1.jpg", "a/1.png", "b/1.jpg"], ("a", "b")),
    ],
)
def test_classes_stay_classes(tmp_path: Path, names: list[str], classes: object) -> None:
    """Files of one kind, of unknown kinds, or hidden: folders are classes."""
    dataset = opened(tmp_path, names)
    assert dataset.classes == classes
    assert len(dataset) == sum(not name.startswith(".") for name in names)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["cat/1.jpg", "cat/2.jpg", "dog/1.png", "dog/notes.txt"], "images, and dog/notes.txt"),
        (["cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "README.md", "labels.csv"], "README.md"),
        (["1.jpg", "2.jpg", "3.jpg", "labels.csv", "README.txt"], "README.txt"),
        (["a/1.wav", "a/2.wav", "b/1.wav", "LICENSE"], "audio, and LICENSE"),
    ],
)
def test_a_note_beside_samples_asks(tmp_path: Path, names: list[str], said: str) -> None:
    """A note would be a sample, and at the top it would leave no classes."""
    with pytest.raises(FormatError) as caught:
        opened(tmp_path, names)
    assert str(caught.value).startswith(f"{tmp_path} holds ")
    assert said in str(caught.value)
    endings = sorted({Path(name).suffix for name in names} & {".jpg", ".png", ".wav"})
    dataset = opened(tmp_path, names, extensions=endings)
    assert len(dataset) == sum(Path(name).suffix in endings for name in names)
    assert dataset.classes == (tuple(sorted({n.split("/")[0] for n in names if "/" in n})) or None)


ENDINGS = st.sampled_from([f".{ending}" for text in KINDS.values() for ending in text.split()])


@given(st.lists(st.tuples(st.sampled_from("abc"), ENDINGS), min_size=1, max_size=12))
def test_folders_without_a_kind_in_common_ask(tmp_path_factory, files) -> None:
    """Any files in three folders are refused exactly if two folders have no kind in common."""
    root = tmp_path_factory.mktemp("kinds")
    kind_of = {f".{end}": kind for kind, text in KINDS.items() for end in text.split()}
    names = [f"{folder}/{number:02}{ending}" for number, (folder, ending) in enumerate(files)]
    # At most three files a folder, of which each is looked at.
    names = [name for name in names if sorted(n for n in names if n[0] == name[0]).index(name) < 3]
    kinds: dict[str, set[str]] = {}
    for name in names:
        kinds.setdefault(name[0], set()).add(kind_of[Path(name).suffix])
    unlike = any(a.isdisjoint(b) for a in kinds.values() for b in kinds.values())
    all_kinds = [kind_of[Path(name).suffix] for name in names]
    most = max(all_kinds, key=all_kinds.count)
    is_media = most in {"images", "audio", "video"} and 2 * all_kinds.count(most) > len(names)
    if unlike or (is_media and set(all_kinds) != {most}):
        with pytest.raises(FormatError, match="beside" if unlike else "which is none"):
            opened(root, names)
    else:
        assert len(opened(root, names)) == len(names)


@pytest.mark.parametrize("stray", ["README.md", "SUCCESS", "notes/about.txt"])
def test_notes_beside_shards_are_refused(stray: str, tmp_path: Path) -> None:
    """Shards beside other files are neither samples as wholes nor are the others shards."""
    (tmp_path / "parts").mkdir()
    for number in range(3):
        (tmp_path / "parts" / f"{number}.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    (tmp_path / stray).parent.mkdir(exist_ok=True)
    (tmp_path / stray).write_text("about the data\n")
    with pytest.raises(FormatError, match=rf"shards of jsonl \(parts/0\.jsonl\).*{stray}.*open"):
        penstock.open(tmp_path, index="memory")
    for dataset, count in (
        (penstock.open(tmp_path / "parts" / "*.jsonl", index="memory"), 6),
        (penstock.open(tmp_path, index="memory", extensions=".jsonl"), 6),
        (penstock.open(tmp_path, index="memory", format="tree"), 4),
    ):
        assert len(dataset) == count


def test_notes_among_many_lines_are_refused(tmp_path: Path) -> None:
    """A note that is not among the files by which the format is found is no sample either."""
    for number in range(40):
        (tmp_path / f"{number}.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "README.md").write_text("about the data\n")
    with pytest.raises(FormatError, match=r"README\.md"):
        penstock.open(tmp_path, index="memory")
    with pytest.raises(FormatError, match="give extensions="):
        penstock.open(tmp_path, index="memory", format="jsonl")
    assert len(penstock.open(tmp_path, index="memory", extensions=[".jsonl"])) == 40


@pytest.mark.parametrize("copy", ["a.jsonl.bak", "a.jsonl~", "a.jsonl.1", "b.JSONL.tmp", "b.txt"])
def test_copies_of_lines_are_refused(copy: str, tmp_path: Path) -> None:
    """Lines in a file that is not called so, beside one that is, would come twice."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 3)
    (tmp_path / copy).write_text('{"text": "a"}\n' * 3)
    with pytest.raises(FormatError, match="give extensions="):
        penstock.open(tmp_path, index="memory")
    assert len(penstock.open(tmp_path, index="memory", extensions=[".jsonl"])) == 3
    (tmp_path / copy).rename(tmp_path / "b.NDJSON")
    assert len(penstock.open(tmp_path, index="memory")) == 6


def test_extensions_choose_the_files_that_tell_the_format(tmp_path: Path) -> None:
    """Files that are no samples do not decide how the others are read, however many there are."""
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text("note\n")
    (tmp_path / "z.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    assert len(penstock.open(tmp_path, index="memory", extensions=[".jsonl"])) == 2
