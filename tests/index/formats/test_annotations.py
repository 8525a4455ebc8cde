"""Annotations are fields of the sample: COCO, VOC, JSON beside images, tars of images and texts."""

from __future__ import annotations

import copy
import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import penstock
import penstock.convert
from penstock import limits
from penstock.errors import FormatError, MissingError, PenstockError, UsageError
from penstock.index.formats.coco import parse_sheet as parse_coco
from penstock.index.formats.image_annotations import JsonLists
from penstock.index.formats.image_json import parse_object
from penstock.index.formats.voc import parse_sheet as parse_voc

from .annotated import (
    CATEGORIES,
    make_coco,
    make_voc,
    write_coco,
    write_pairs,
    write_tar,
    write_voc,
)

NAMES = [f"{i:012}.jpg" for i in range(6)]
COUNTS = [2, 0, 3, 1, 0, 4]
_PAST_NS = 10**18


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """COCO's layout with one split of six images, two of them without boxes."""
    folder = tmp_path / "coco"
    write_coco(folder, make_coco(NAMES, COUNTS))
    return folder


# -- COCO ------------------------------------------------------------------------------------------


def test_coco_samples(coco: Path) -> None:
    """Images come in the sequence of the file, each with its own annotations."""
    dataset = penstock.open(coco)
    assert dataset.index.format == "coco"
    assert dataset.classes == ("cat", "toothbrush")
    for i, sample in enumerate(dataset):
        assert sample["image"] == NAMES[i].encode()
        assert sample["__key__"] == f"train2017/{NAMES[i]}"
        assert sample["boxes"].tolist() == [[i, k, 1.5, 2] for k in range(COUNTS[i])]
        assert sample["boxes"].dtype == np.float32
        assert sample["labels"].tolist() == [k % 2 for k in range(COUNTS[i])]
        assert sample["category_ids"].tolist() == [(17, 90)[k % 2] for k in range(COUNTS[i])]
        assert sample["iscrowd"].tolist() == [bool(k % 2) for k in range(COUNTS[i])]
        assert (sample["image_id"], sample["width"], sample["height"]) == (100 + i, 640, 480)
        assert sample["objects"] == COUNTS[i]
        outlines = json.loads(sample["segmentations"])
        assert len(outlines) == COUNTS[i]
        assert outlines[:1] == [[[0, 0, 1, 0, 1, 1]]][: len(outlines)]


@pytest.mark.parametrize("decoded", [False, True])
def test_coco_batches(coco: Path, decoded: bool) -> None:
    """A shuffled epoch has every image once, with its own boxes and no other's."""
    dataset = penstock.open(coco)
    decode = (lambda s: {"image": s["image"], "boxes": s["boxes"].sum(0)}) if decoded else None
    seen = []
    with penstock.Loader(dataset, batch_size=4, seed=7, decode=decode) as loader:
        for batch in loader:
            for row, number in enumerate(batch.ids.tolist()):
                boxes = np.array([[number, k, 1.5, 2] for k in range(COUNTS[number])], np.float32)
                boxes = boxes.reshape(-1, 4)
                assert bytes(batch["image"][row]) == NAMES[number].encode()
                assert np.array_equal(batch["boxes"][row], boxes.sum(0) if decoded else boxes)
                seen.append(number)
    assert sorted(seen) == list(range(6))


def test_coco_selections_and_mixtures(coco: Path) -> None:
    """Conditions ask for classes and counts; mixtures keep each image's boxes; pickles too."""
    dataset = penstock.open(coco)
    cats = dataset.select(where="'cat' in labels")
    assert cats.ids(range(len(cats))).tolist() == [0, 2, 3, 5]
    both = dataset.select(where="'toothbrush' in labels and objects >= 3 and 90 in category_ids")
    assert both.ids(range(len(both))).tolist() == [2, 5]
    none = dataset.select(where="17 not in category_ids")
    assert none.ids(range(len(none))).tolist() == [1, 4]
    with pytest.raises(UsageError, match="no class 'dog'"):
        dataset.select(where="'dog' in labels")
    with pytest.raises(UsageError, match="asks for one number"):
        dataset.select(where="image_id in labels")
    with pytest.raises(UsageError, match="a list of each sample"):
        dataset.split({"a": 0.5, "b": 0.5}, by="labels")
    with pytest.raises(UsageError, match="is a list, where a number is needed|compared"):
        dataset.select(where="labels + 1 > 0")
    mixed = pickle.loads(pickle.dumps(penstock.mix([(cats, 1), (dataset, 1)])))
    with penstock.Loader(mixed, batch_size=5, seed=0) as loader:
        for batch in loader:
            for row, number in enumerate(batch.ids.tolist()):
                image = number % 6
                assert batch["image_id"][row] == 100 + image
                assert len(batch["boxes"][row]) == COUNTS[image]
                assert len(json.loads(batch["segmentations"][row])) == COUNTS[image]
    renamed = penstock.mix([(dataset, 1)], rename=[{"boxes": "bbox", "segmentations": None}])
    assert {"bbox", "labels"} <= {part.name for part in renamed.fields}
    assert "segmentations" not in renamed[0]


def test_mixtures_of_other_classes_are_refused(coco: Path, tmp_path: Path) -> None:
    """The same number would mean two classes."""
    other = make_coco(NAMES, COUNTS)
    other["categories"] = [{"id": 17, "name": "dog"}, {"id": 90, "name": "toothbrush"}]
    write_coco(tmp_path / "other", other)
    with pytest.raises(UsageError, match="would mean two things"):
        penstock.mix([(penstock.open(coco), 1), (penstock.open(tmp_path / "other"), 1)])


def test_coco_splits_keypoints_captions(tmp_path: Path) -> None:
    """Several splits are asked for; persons have joints; sentences come with boxes, or alone."""
    document = make_coco(NAMES, COUNTS)
    write_coco(tmp_path, document, "train2017")
    write_coco(tmp_path, make_coco(NAMES[:2], [1, 1]), "val2017")
    with pytest.raises(UsageError, match="splits train2017, val2017.*split='train2017'"):
        penstock.open(tmp_path)
    with pytest.raises(UsageError, match="no split 'test'"):
        penstock.open(tmp_path, split="test")
    assert len(penstock.open(tmp_path, split="val2017")) == 2
    sentences = [{"id": 7 * i, "image_id": 100 + i // 2, "caption": f"é {i}"} for i in range(6)]
    captions = {"images": document["images"], "annotations": sentences}
    write_coco(tmp_path, captions, "train2017", "captions")
    joints = copy.deepcopy(document)
    joints["categories"] = [
        one | {"keypoints": ["nose", "ear"] if one["id"] == 17 else []} for one in CATEGORIES
    ]
    for entry in joints["annotations"]:
        entry["keypoints"] = [entry["id"], 2, 2, 3, 4, 1]
    write_coco(tmp_path, joints, "train2017", "person_keypoints")
    alone = penstock.open(tmp_path, split="train2017", annotations="captions")
    assert alone[1]["captions"] == ["é 2", "é 3"]
    assert alone[5]["captions"] == []
    assert "boxes" not in alone[0]
    kinds = ["person_keypoints", "captions"]
    persons = penstock.open(tmp_path, split="train2017", annotations=kinds, index="memory")
    assert persons[0]["keypoints"].tolist() == [[[k, 2, 2], [3, 4, 1]] for k in (1, 2)]
    assert persons[1]["keypoints"].shape == (0, 2, 3)
    assert persons[0]["captions"] == ["é 0", "é 1"]
    with penstock.Loader(persons, batch_size=6, shuffle="none") as loader:
        batch = next(iter(loader))
    assert batch["keypoints"].values.shape == (10, 2, 3)
    assert batch["captions"][2] == ["é 4", "é 5"]
    with pytest.raises(UsageError, match="2 files with boxes"):
        penstock.open(tmp_path, split="train2017", annotations=["instances", "person_keypoints"])


def test_coco_beside_images(tmp_path: Path) -> None:
    """The layout of exports: the file lies beside the images of each split."""
    for split in ("train", "valid"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "_annotations.coco.json").write_text(
            json.dumps(make_coco(NAMES[:2], [1, 2]))
        )
        for name in NAMES[:2]:
            (tmp_path / split / name).write_text(split + name)
    dataset = penstock.open(tmp_path, split="valid")
    assert dataset[1]["image"] == b"valid" + NAMES[1].encode()
    assert len(dataset[1]["boxes"]) == 2


def test_coco_saved_index_and_changes(coco: Path) -> None:
    """A saved index is used while the annotations are as they were, and made anew when not."""
    for path in [*coco.rglob("*"), coco]:
        os.utime(path, ns=(_PAST_NS, _PAST_NS))
    first = penstock.open(coco)
    again = penstock.open(coco, index="read")
    assert again.sidecar == first.sidecar
    assert not isinstance(again.index.attributes[0].values, np.memmap)
    assert not again.index.attributes[0].values.flags.writeable  # mapped, not built
    assert again[2]["boxes"].tolist() == first[2]["boxes"].tolist()
    document = make_coco(NAMES, COUNTS)
    document["annotations"][0]["bbox"] = [9, 9, 9, 9]
    write_coco(coco, document)
    changed = penstock.open(coco)
    assert changed[0]["boxes"].tolist()[0] == [9, 9, 9, 9]
    assert changed.fingerprint != first.fingerprint


def test_annotations_that_come_later_are_noticed(coco: Path, tmp_path: Path) -> None:
    """A kept index does not hide a choice that has to be made, nor annotations that go first."""

    def age(folder: Path) -> None:
        for path in [*folder.rglob("*"), folder]:
            os.utime(path, ns=(_PAST_NS, _PAST_NS))

    age(coco)
    penstock.open(coco)
    write_coco(coco, make_coco(NAMES[:2], [1, 1]), "val2017")
    with pytest.raises(UsageError, match=r"has the splits train2017, val2017"):
        penstock.open(coco)
    assert len(penstock.open(coco, split="train2017")) == 6
    voc = tmp_path / "voc"
    write_voc(voc, {name: make_voc([]) for name in ("a", "b", "c")})
    for folder in ("ImageSets/Main", "ImageSets"):
        (voc / folder).rmdir()
    age(voc)
    assert len(penstock.open(voc)) == 3
    write_voc(voc, {}, {"train": ["a", "b"]})
    assert len(penstock.open(voc)) == 2
    age(voc)
    assert len(penstock.open(voc)) == 2
    write_voc(voc, {}, {"val": ["c"]})
    with pytest.raises(UsageError, match=r"has the splits train, val"):
        penstock.open(voc)


def test_images_alone(coco: Path) -> None:
    """extensions= still opens the images without their annotations."""
    dataset = penstock.open(coco, extensions=".jpg", index="memory")
    assert dataset.index.format == "tree"
    assert [part.name for part in dataset.fields] == ["data"]


def test_coco_missing_images(coco: Path) -> None:
    """A listed image without a file is an error that names entry and file, or is left out with its
    annotations; a file that is not listed is no sample."""
    (coco / "train2017" / NAMES[2]).unlink()
    (coco / "train2017" / "other.jpg").write_text("other")
    with pytest.raises(MissingError, match=r"images\[2\] \(id 102\): .*000002.jpg does not exist"):
        penstock.open(coco)
    dataset = penstock.open(coco, missing="skip")
    assert [sample["image_id"] for sample in dataset] == [100, 101, 103, 104, 105]
    assert [len(sample["boxes"]) for sample in dataset] == [2, 0, 1, 0, 4]


def test_integers_and_conversion(coco: Path, tmp_path: Path) -> None:
    """as_dtype= is of annotations, too; what would lose them is refused."""
    dataset = pickle.loads(pickle.dumps(penstock.open(coco, as_dtype="int32")))
    assert dataset[0]["labels"].dtype == np.int32
    with penstock.Loader(dataset, batch_size=2, seed=0) as loader:
        batch = next(iter(loader))
    assert batch["labels"].values.dtype == np.int32
    assert batch["image_id"].dtype == np.int32
    assert batch["boxes"].values.dtype == np.float32
    with pytest.raises(UsageError, match="has annotations"):
        penstock.convert.convert(dataset, tmp_path / "tar", to="tar")


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one value of a document, by a path such as "annotations/1/bbox"."""

    def apply(document: Any) -> None:
        *folders, last = path.split("/")
        for part in folders:
            document = document[int(part) if part.isdecimal() else part]
        if value is ...:
            del document[last]
        else:
            document[int(last) if last.isdecimal() else last] = value

    return apply


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("annotations/1/bbox", [1, 2, 3], "annotations[1] (id 2): bbox is [1, 2, 3]"),
        ("annotations/1/bbox", [1, 2, 3, "4"], "bbox is [1, 2, 3, '4']"),
        ("annotations/1/bbox", [1, 2, 3, -4], "bbox is [1, 2, 3, -4]"),
        ("annotations/1/bbox", [1, 2, 3, float("nan")], "bbox is [1, 2, 3, nan]"),
        ("annotations/1/bbox", [1, 2, 3, 1e300], "bbox is [1, 2, 3, 1e+300]"),
        ("annotations/1/bbox", [1, 2, 3, 10**400], "bbox is"),
        ("annotations/1/bbox", [True, 2, 3, 4], "bbox is [True"),
        ("annotations/1/bbox", ..., "bbox is None"),
        ("annotations/1/image_id", 7, "image_id is 7, which is not listed"),
        ("annotations/1/image_id", None, "image_id is None"),
        ("annotations/1/category_id", 5, "category_id is 5"),
        ("annotations/1/id", 1, "id 1 is that of [0], too"),
        ("annotations/1/id", "1", "id is '1'"),
        ("annotations/1/iscrowd", 2, "iscrowd is 2"),
        ("annotations/1/area", "x", "area is 'x'"),
        ("annotations/1/segmentation", [[1, float("nan")]], "segmentation is [[1, nan]]"),
        ("annotations/1/segmentation", 5, "segmentation is 5, no outline"),
        ("annotations/1", 5, "annotations[1] is 5, no object"),
        ("annotations", ..., "no list 'annotations'"),
        ("annotations", {}, "no list 'annotations'"),
        ("images", [], "the list 'images' is empty"),
        ("images/1/id", 100, "images[1]: id 100 is that of [0], too"),
        ("images/1/id", True, "id is True"),
        ("images/1/file_name", "../x.jpg", "is not the path of a file below"),
        ("images/1/file_name", "/etc/passwd", "is not the path of a file below"),
        ("images/1/file_name", NAMES[0], "is that of [0], too"),
        ("images/1/file_name", "\ud800.jpg", "file_name is"),
        ("images/1/file_name", None, "file_name is None"),
        ("images/1/width", -1, "width is -1"),
        ("categories/1/id", 90, "id 90 is that of [0], too"),
        ("categories/1/name", "toothbrush", "is that of [0], too"),
        ("categories/1/name", 3, "name is 3"),
        ("categories/1/keypoints", 3, "categories: keypoints"),
        ("categories", 3, "categories is 3"),
    ],
)
def test_coco_refuses(coco: Path, where: str, value: Any, said: str) -> None:
    """An error names the file, the entry and its value; nothing is taken as it is not meant."""
    document = make_coco(NAMES, COUNTS)
    change(where, value)(document)
    file = coco / "annotations" / "instances_train2017.json"
    file.write_text(json.dumps(document))
    with pytest.raises(FormatError) as caught:
        penstock.open(coco, index="memory")
    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "3", "[" * 100_000, '{"images": 1e999999}', "\xff"]
)
def test_coco_refuses_no_json(coco: Path, text: str) -> None:
    """A document that was cut, or is something else."""
    file = coco / "annotations" / "instances_train2017.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match="instances_train2017.json"):
        penstock.open(coco, index="memory")


@pytest.mark.parametrize("key", ["images", "annotations", "categories", "info"])
def test_coco_refuses_a_key_twice(coco: Path, key: str) -> None:
    """Of two lists of one name, parsers keep the last: half of the data would be gone."""
    file = coco / "annotations" / "instances_train2017.json"
    document = make_coco(NAMES, COUNTS) | {"info": {}}
    text = json.dumps(document)
    file.write_text(f'{text[:-1]}, "{key}": {json.dumps(document[key])}}}')
    with pytest.raises(FormatError, match=f"the key '{key}' comes a second time"):
        penstock.open(coco, index="memory")


def test_coco_takes_little_more_memory_than_its_text() -> None:
    """A document is never parsed as a whole: what grows is the text of the outlines."""
    document = make_coco([f"{i}.jpg" for i in range(60)], [10] * 60)
    for entry in document["annotations"]:
        entry["segmentation"] = [[0.5, 1.5] * 100]
    fetch = fetch_from(document)
    size = len(fetch(0, 1 << 30))
    limit, limits.annotation_piece_bytes = limits.annotation_piece_bytes, 1 << 14
    tracemalloc.start()
    try:
        parse_coco("x.json", fetch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        limits.annotation_piece_bytes = limit
    assert peak < 2 * size


@pytest.mark.parametrize("outline", [[[1, 2, 3]], [[1, None]], {"counts": "é"}, {"size": [2]}])
def test_outlines_are_those_of_the_file(coco: Path, outline: Any) -> None:
    """Outlines are handed over as they are: whoever draws them sees what is wrong with them."""
    document = make_coco(NAMES, COUNTS)
    document["annotations"][1]["segmentation"] = outline
    (coco / "annotations" / "instances_train2017.json").write_text(json.dumps(document))
    assert json.loads(penstock.open(coco, index="memory")[0]["segmentations"])[1] == outline


# -- VOC -------------------------------------------------------------------------------------------

SHEETS = {
    "a1": make_voc([("dog", (1, 2, 11, 22)), ("cat", (3.5, 4, 5, 6))]),
    "a2": make_voc([]),
    "a3": None,
    "a4": make_voc([("cow", (1, 1, 2, 2))]),
}


def test_voc_samples(tmp_path: Path) -> None:
    """Splits choose the images, classes have one number in all of them, and boxes are corner and
    size; an image without XML has no boxes, and says so."""
    write_voc(
        tmp_path, SHEETS, {"train": ["a3", "a1", "a2"], "val": ["a4"], "cat_train": ["a1  1"]}
    )
    with pytest.raises(UsageError, match="splits train, val.*split='train'"):
        penstock.open(tmp_path)
    dataset = penstock.open(tmp_path, split="train")
    assert dataset.classes == ("cat", "cow", "dog")
    assert [sample["image"] for sample in dataset] == [b"a3", b"a1", b"a2"]
    assert dataset[1]["boxes"].tolist() == [[1, 2, 10, 20], [3.5, 4, 1.5, 2]]
    assert dataset[1]["labels"].tolist() == [2, 0]
    assert dataset[1]["difficult"].tolist() == [True, True]
    assert dataset[1]["truncated"].tolist() == [False, False]
    assert (dataset[1]["width"], dataset[1]["height"]) == (50, 40)
    assert [bool(sample["annotated"]) for sample in dataset] == [False, True, True]
    assert dataset[0]["boxes"].shape == (0, 4)
    assert len(dataset.select(where="'dog' in labels")) == 1
    assert penstock.open(tmp_path, split="val")[0]["labels"].tolist() == [1]
    with pytest.raises(UsageError, match="open a list, and use where="):
        penstock.open(tmp_path, split="cat_train")
    with pytest.raises(UsageError, match="no list 'test'"):
        penstock.open(tmp_path, split="test")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no element found"),
        ("<annotation>", "no XML"),
        ("<html/>", "the XML is of <html>"),
        (make_voc([("cat", (5, 1, 2, 2))]), "bndbox of negative size"),
        (make_voc([("cat", ("x", 1, 2, 2))]), "bndbox is ['x'"),
        (make_voc([("cat", ("nan", 1, 2, 2))]), "bndbox is [nan"),
        (make_voc([("cat", ("1e99", 1, 2, 2))]), "bndbox is [1e+99"),
        (make_voc([("", (1, 1, 2, 2))]), "no name"),
        (
            make_voc([("cat", (1, 1, 2, 2))]).replace("<difficult>1", "<difficult>7"),
            "difficult is 7",
        ),
        (make_voc([]).replace("50", "-5"), "width and height are ['-5'"),
        ("<annotation>" + "<a>" * 100_000, "no XML"),
        (
            '<!DOCTYPE a [<!ENTITY x "y">]><annotation><size>&x;</size></annotation>',
            "a document type",
        ),
        (
            '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>',
            "a document type",
        ),
        ('<?xml version="1.0" encoding="nonsense"?><annotation/>', "no XML"),
    ],
)
def test_voc_refuses(tmp_path: Path, text: str, said: str) -> None:
    """An error names the file, the object and the value; entities are not read at all."""
    write_voc(tmp_path, SHEETS | {"a2": text})
    with pytest.raises(FormatError) as caught:
        penstock.open(tmp_path, index="memory")
    assert str(tmp_path / "Annotations" / "a2.xml") in str(caught.value)
    assert said in str(caught.value)


def test_voc_refuses_images_of_one_name(tmp_path: Path) -> None:
    """Annotations of which it is not clear whose they are."""
    write_voc(tmp_path, SHEETS)
    (tmp_path / "JPEGImages" / "a1.png").write_text("another")
    with pytest.raises(FormatError, match="have one name"):
        penstock.open(tmp_path, index="memory")


def test_text_among_elements_is_whole() -> None:
    """A name that comments, elements and entities cut is one name."""
    text = make_voc([("cat", (1, 1, 2, 2))]).replace(">cat<", ">c<!-- -->a<b>x</b>&#116;<b/>s<")
    assert parse_voc("x.xml", text.encode()).names == ["cats"]


def test_an_xml_bomb_is_not_unfolded(tmp_path: Path) -> None:
    """A document that would unfold to gigabytes is refused at its first line."""
    entities = "".join(f'<!ENTITY x{i} "{f"&x{i - 1};" * 10}">' for i in range(1, 30))
    bomb = f'<!DOCTYPE a [<!ENTITY x0 "lol">{entities}]><annotation>&x29;</annotation>'
    with pytest.raises(FormatError, match="take the <!DOCTYPE> out"):
        parse_voc("bomb.xml", bomb.encode())


@pytest.mark.parametrize(
    ("names", "error", "said"),
    [
        (["a1", "a1"], FormatError, "the name 'a1' is that of [0], too"),
        (["a1", "../a2"], FormatError, "'../a2' is not the name of an image"),
        (["a1", "a9"], MissingError, "ImageSets/Main/train.txt: 'a9'"),
        ([""], FormatError, "names no images"),
    ],
)
def test_voc_refuses_lists(
    tmp_path: Path, names: list[str], error: type[PenstockError], said: str
) -> None:
    """A list that names an image twice, elsewhere or in vain."""
    write_voc(tmp_path, SHEETS, {"train": names})
    with pytest.raises(error) as caught:
        penstock.open(tmp_path, index="memory")
    assert said in str(caught.value)


# -- JSON beside images ----------------------------------------------------------------------------


def test_pairs(tmp_path: Path) -> None:
    """Each key is a field of the narrowest kind that holds all values; none is lost."""
    write_pairs(
        tmp_path,
        {
            "a/1": {"caption": "é", "n": 1, "tags": ["x"], "ids": [1, 2], "label": "dog", "f": 1},
            "a/2": {"caption": "b", "n": 2, "tags": [], "ids": [], "label": "cat", "f": 0.5},
            "b/3": {"caption": "c", "n": 3, "tags": None, "ids": [3], "label": "cat", "f": 2},
        },
    )
    dataset = penstock.open(tmp_path)
    assert dataset.index.format == "image_json"
    assert dataset.classes == ("cat", "dog")
    assert [sample["label"] for sample in dataset] == [1, 0, 0]
    assert [sample["caption"] for sample in dataset] == ["é", "b", "c"]
    assert [sample["tags"] for sample in dataset] == [["x"], [], None]
    assert [sample["ids"].tolist() for sample in dataset] == [[1, 2], [], [3]]
    assert [float(sample["f"]) for sample in dataset] == [1, 0.5, 2]
    chosen = dataset.select(where="label == 'cat' and n > 2 and caption.startswith('c')")
    assert chosen[0]["image"] == b"b/3"
    few = penstock.open(tmp_path, fields=["n"], label="", index="memory")
    assert [part.name for part in few.fields] == ["image", "n"]
    with pytest.raises(UsageError, match="no 'm', but caption, n"):
        penstock.open(tmp_path, fields=["m"], index="memory")
    (tmp_path / "b" / "4.jpg").write_text("b/4")
    with pytest.raises(MissingError, match="b/4: the image has no document beside it"):
        penstock.open(tmp_path, index="memory")
    assert len(penstock.open(tmp_path, missing="skip", index="memory")) == 3


@pytest.mark.parametrize("text", ["", "[1]", '{"a": NaN}', '{"a": "\\ud800"}', "{", '{"image": 1}'])
def test_pairs_refuse(tmp_path: Path, text: str) -> None:
    """A document that is no object of JSON, or has a name that samples have."""
    write_pairs(tmp_path, {"1": {"a": 1}, "2": {"a": 2}})
    (tmp_path / "2.json").write_text(text)
    with pytest.raises(FormatError, match=r"\.json"):
        penstock.open(tmp_path, index="memory")


# -- tars of images and texts ----------------------------------------------------------------------


def test_clip(tmp_path: Path) -> None:
    """Images, texts and parsed JSON by name; mixed kinds of images are one field; a text that is
    none is an error at its step, which names the sample."""
    shard = {}
    for i in range(5):
        shard[f"{i}.{'png' if i == 3 else 'jpg'}"] = b"image %d" % i
        shard[f"{i}.txt"] = f"text é {i}".encode()
        shard[f"{i}.json"] = json.dumps({"width": i, "url": None}).encode()
    write_tar(tmp_path / "0.tar", shard)
    dataset = penstock.open(tmp_path / "0.tar", format="clip", index="memory")
    assert [part.name for part in dataset.fields] == ["image", "text", "json"]
    assert dataset[3]["image"] == b"image 3"
    assert dataset[3]["text"] == "text é 3"
    assert dataset[3]["json"] == {"width": 3, "url": None}
    again = pickle.loads(pickle.dumps(penstock.open(tmp_path / "0.tar", format="clip")))
    with penstock.Loader(again, batch_size=5, seed=0) as loader:
        batch = next(iter(loader))
    for row, number in enumerate(batch.ids.tolist()):
        assert batch["text"][row] == f"text é {number}"
        assert batch["json"][row]["width"] == number
    decode = lambda sample: f"{sample['text']} {sample['json']['width']}"  # noqa: E731
    with penstock.Loader(again, batch_size=5, shuffle="none", decode=decode) as loader:
        assert next(iter(loader)) == [f"text é {i} {i}" for i in range(5)]
    write_tar(tmp_path / "1.tar", shard | {"1.txt": b"\xff"})
    broken = penstock.open(tmp_path / "1.tar", format="clip", index="memory")
    with pytest.raises(FormatError, match=r"sample 1: .*field 'text' is no UTF-8"):
        broken[1]
    assert broken[2]["text"] == "text é 2"
    both = shard | {f"{i}.{kind}": b"other" for i in range(5) for kind in ("jpg", "png")}
    write_tar(tmp_path / "3.tar", dict(sorted(both.items())))
    with pytest.raises(FormatError, match=r"every sample has jpg and png: leave out format='clip'"):
        penstock.open(tmp_path / "3.tar", format="clip", index="memory")
    del shard["4.txt"]
    write_tar(tmp_path / "2.tar", shard)
    with pytest.raises(FormatError, match=r"'4' has no txt .*, as 1 of 5: .*missing='empty'"):
        penstock.open(tmp_path / "2.tar", format="clip", index="memory")


# -- properties ------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([100, 17, 90, 1, 2**63, -1, "1.jpg", [[1, 2]], {"counts": [6]}]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def fetch_from(document: Any) -> Callable[[int, int], bytes]:
    """A function that returns parts of a document's text."""
    text = json.dumps(document).encode()
    return lambda offset, length: text[offset : offset + length]


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.integers(1, 40), st.data())
def test_lists_are_those_of_the_json_library(value: Any, piece: int, data: st.DataObject) -> None:
    """However the text is cut into pieces, elements are those of the whole; text that the library
    refuses is refused."""
    text = json.dumps(
        value, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.none() | st.just(1))
    )
    encoded = text.encode("utf-8", "replace")
    at = data.draw(st.integers(0, len(encoded)))
    inserted = data.draw(st.sampled_from([b"", b"", b",", b"]", b"}", b"1", b" ", b"\xff", b'"']))
    encoded = encoded[:at] + inserted + encoded[at:]
    limit, limits.annotation_piece_bytes = limits.annotation_piece_bytes, piece
    try:
        lists = JsonLists("x", lambda offset, length: encoded[offset : offset + length])
        found = {key: list(lists.parse(key)) for key in lists.keys if key in lists}
    except FormatError:
        with pytest.raises((ValueError, AssertionError)):
            pairs = json.loads(encoded.decode(), object_pairs_hook=list)
            assert encoded.lstrip().startswith(b"{")
            assert len(dict(pairs)) == len(pairs)
        return
    finally:
        limits.annotation_piece_bytes = limit
    whole = json.loads(encoded)
    assert lists.keys == list(whole)
    expected = {key: each for key, each in whole.items() if isinstance(each, list)}
    assert repr(found) == repr(expected)


def test_numbers_that_a_piece_cuts_off() -> None:
    """Wherever a piece ends, also behind the point or the exponent's sign of a number."""
    document = {"x": [1.5, 1e22, -2.5e-7, 3], "y": {}, "z": [[0.25], 4.75]}
    encoded = json.dumps(document).replace("1e+22", "1E+22").encode()
    limit = limits.annotation_piece_bytes
    try:
        for piece in range(1, len(encoded) + 1):
            limits.annotation_piece_bytes = piece
            lists = JsonLists("x", lambda offset, length: encoded[offset : offset + length])
            assert list(lists.parse("x")) == document["x"], piece
            assert list(lists.parse("z")) == document["z"], piece
    finally:
        limits.annotation_piece_bytes = limit


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """A document with some of its values exchanged, left out or doubled, at any depth."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(0, 3))):
        part = document
        while True:
            keys = list(part) if isinstance(part, dict) else list(range(len(part)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            inner = part[key]
            if isinstance(inner, (dict, list)) and draw(st.integers(0, 3)):
                part = inner
                continue
            action = draw(st.sampled_from(["set", "set", "delete", "double"]))
            if action == "set":
                part[key] = draw(VALUES)
            elif action == "delete":
                del part[key]
            elif isinstance(part, list):
                part.append(copy.deepcopy(inner))
            break
    return document


@given(mutated(make_coco(["1.jpg", "2.jpg"], [2, 1])), st.booleans())
@example({"images": [], "annotations": []}, False)
def test_any_coco(document: Any, skip: bool) -> None:
    """A changed document is refused by an error that names the file, or parsed to whole values."""
    try:
        sheet = parse_coco("x.json", fetch_from(document), skip)
    except FormatError as error:
        refused = str(error)
        assert refused.startswith("x.json: ")
        return
    columns, images = sheet.columns, len(sheet.images["id"])
    count = len(columns["image"])
    assert len(set(sheet.images["id"].tolist())) == images > 0
    assert len(set(sheet.images["file_name"])) == images
    assert set(columns["image"].tolist()) <= set(range(images))
    assert len(columns["id"]) == len(sheet.texts) == count
    for text in sheet.texts:
        json.dumps(json.loads(text), allow_nan=False)
    if not sheet.has_captions:
        assert set(columns["category_id"].tolist()) <= {number for number, _ in sheet.categories}
        assert np.isfinite(columns["bbox"]).all()
        assert columns["bbox"].shape == (count, 4)
        assert len(columns["iscrowd"]) == len(columns["area"]) == count
        assert not sheet.joints or columns["keypoints"].shape == (count, 3 * sheet.joints)


@given(st.binary(max_size=40), st.integers(0, 400), st.integers(0, 40))
def test_any_voc(inserted: bytes, at: int, removed: int) -> None:
    """XML with other bytes in it is refused by an error that names the file, or is whole."""
    text = make_voc([("dog", (1, 2, 11, 22))]).encode()
    try:
        sheet = parse_voc("x.xml", text[:at] + inserted + text[at + removed :])
    except FormatError as error:
        refused = str(error)
        assert "x.xml" in refused
        return
    assert len(sheet.names) == len(sheet.boxes) == len(sheet.difficult) == len(sheet.truncated)
    for name, box in zip(sheet.names, sheet.boxes, strict=True):
        assert name
        assert np.isfinite(box).all()
        assert min(box[2:]) >= 0


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4) | VALUES | st.binary(max_size=20))
def test_any_document(value: Any) -> None:
    """A file of JSON beside an image is an object of plain JSON, or is refused."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    try:
        found = parse_object("x.json", data)
    except FormatError as error:
        refused = str(error)
        assert "x.json" in refused
        return
    assert isinstance(found, dict)
