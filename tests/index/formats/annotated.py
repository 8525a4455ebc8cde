"""Writers of annotated images: COCO, Pascal VOC, JSON beside images, tars of images and texts."""

from __future__ import annotations

import copy
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CATEGORIES = [
    {"id": 90, "name": "toothbrush", "supercategory": "indoor"},
    {"id": 17, "name": "cat", "supercategory": "animal"},
]


def make_coco(names: Sequence[str], per_image: Sequence[int]) -> dict[str, Any]:
    """Make a document of COCO: so many boxes of each image, whose numbers tell them apart."""
    images = [
        {"id": 100 + i, "file_name": name, "width": 640, "height": 480}
        for i, name in enumerate(names)
    ]
    entries = []
    for i, count in enumerate(per_image):
        for k in range(count):
            entries.append(
                {
                    "id": len(entries) + 1,
                    "image_id": 100 + i,
                    "category_id": (17, 90)[k % 2],
                    "bbox": [i, k, 1.5, 2],
                    "area": 3.0,
                    "iscrowd": k % 2,
                    "segmentation": [[0, 0, 1, 0, 1, 1]]
                    if k % 2 == 0
                    else {"counts": [2, 3, 1], "size": [2, 3]},
                }
            )
    return {
        "info": {},
        "images": images,
        "annotations": entries,
        "categories": copy.deepcopy(CATEGORIES),
    }


def write_coco(
    folder: Path, document: Mapping[str, Any], split: str = "train2017", kind: str = "instances"
) -> None:
    """Write a document, and an image for each that it names, which holds its own name."""
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    path = folder / "annotations" / f"{kind}_{split}.json"
    path.write_text(json.dumps(document))
    for image in document["images"]:
        target = folder / split / image["file_name"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(image["file_name"])


def make_voc(objects: Sequence[tuple[str, Sequence[float]]], name: str = "1.jpg") -> str:
    """Make the XML of one image, of objects with a class and corners."""
    inner = "".join(
        f"<object><name>{kind}</name><difficult>1</difficult><bndbox><xmin>{box[0]}</xmin>"
        f"<ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox>"
        f"<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax>"
        f"</bndbox></part></object>"
        for kind, box in objects
    )
    return (
        f"<annotation><filename>{name}</filename><size><width>50</width><height>40</height>"
        f"<depth>3</depth></size>{inner}</annotation>"
    )


def write_voc(
    folder: Path, sheets: Mapping[str, str | None], splits: Mapping[str, Sequence[str]] = {}
) -> None:
    """Write images of these names, the XML of each but where it is None, and lists of splits."""
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name, sheet in sheets.items():
        (folder / "JPEGImages" / f"{name}.jpg").write_text(name)
        if sheet is not None:
            (folder / "Annotations" / f"{name}.xml").write_text(sheet)
    for split, names in splits.items():
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")


def write_pairs(folder: Path, documents: Mapping[str, Any]) -> None:
    """Write images of these names, and a document of JSON beside each."""
    for name, document in documents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jpg").write_text(name)
        (folder / f"{name}.json").write_text(json.dumps(document))


def write_tar(path: Path, members: Mapping[str, bytes]) -> None:
    """Write an archive."""
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
